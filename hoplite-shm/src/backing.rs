use std::fs;
use std::path::Path;

use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Flags above this bit hold the binary logarithm of the page size (linux/memfd.h).
const HUGE_SHIFT: u32 = 26;
/// Type of a ramfs (linux/magic.h), which libc and rustix lack.
const RAMFS_MAGIC: u32 = 0x8584_58F6;
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

/// Kind of an arena's memory, which is anonymous and freed with the last process that maps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Pages of the usual size.
    Pages,
    /// Reserved huge pages (`vm.nr_hugepages`).
    HugePages {
        /// Size of a huge page in bytes; `None` for the machine's default.
        page_bytes: Option<u64>,
    },
}

impl Backing {
    /// Kind of memory at `path`. Creates no file.
    ///
    /// # Errors
    /// [`Error::NotInMemory`] unless the path is on a tmpfs, ramfs or hugetlbfs; [`Error::File`] if
    /// its file system is unknown.
    pub fn of_file_at(path: &Path) -> Result<Self> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let file_system =
            rustix::fs::statfs(directory.unwrap_or(Path::new("."))).map_err(|errno| {
                let operation = "find out the file system of";
                Error::File { operation, path: path.to_owned(), source: errno.into() }
            })?;
        let kind = u32::try_from(file_system.f_type).unwrap_or(0);
        if kind == libc::HUGETLBFS_MAGIC as u32 {
            return Ok(Self::HugePages { page_bytes: u64::try_from(file_system.f_bsize).ok() });
        }
        if kind == libc::TMPFS_MAGIC as u32 || kind == RAMFS_MAGIC {
            return Ok(Self::Pages);
        }
        Err(Error::NotInMemory { path: path.to_owned() })
    }

    pub(crate) fn memfd_flags(self) -> Result<MemfdFlags> {
        match self {
            Self::Pages => Ok(MemfdFlags::empty()),
            Self::HugePages { page_bytes: None } => Ok(MemfdFlags::HUGETLB),
            Self::HugePages { page_bytes: Some(bytes) } if bytes.is_power_of_two() => {
                let size = MemfdFlags::from_bits_retain(bytes.ilog2() << HUGE_SHIFT);
                Ok(MemfdFlags::HUGETLB | size)
            }
            Self::HugePages { page_bytes: Some(page_bytes) } => {
                Err(Error::NoSuchHugePages { page_bytes })
            }
        }
    }

    pub(crate) fn not_supported_or(self, errno: Errno) -> Error {
        match (self, errno) {
            (Self::HugePages { page_bytes: Some(page_bytes) }, Errno::NODEV | Errno::INVAL) => {
                Error::NoSuchHugePages { page_bytes }
            }
            _ => Error::System { operation: "create the arena", source: errno.into() },
        }
    }

    pub(crate) fn too_few(self, needed_bytes: u64) -> Error {
        let Self::HugePages { page_bytes } = self else {
            return Error::NotEnoughMemory { needed_bytes, available_bytes: 0 };
        };
        let page_bytes = page_bytes.or_else(default_page_bytes).unwrap_or(1);
        let file = format!("{HUGE_PAGES}/hugepages-{}kB/free_hugepages", page_bytes >> 10);
        let free_pages = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        Error::NotEnoughHugePages {
            page_bytes,
            needed_pages: needed_bytes / page_bytes,
            free_pages: free_pages.unwrap_or(0),
        }
    }
}

fn default_page_bytes() -> Option<u64> {
    let information = fs::read_to_string("/proc/meminfo").ok()?;
    let line = information.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}
