use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use memmap2::Advice;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::limits::{address_space_limit_bytes, file_size_limit_bytes, is_overcommit_strict};
use crate::region::{Access, Region};

/// Bytes touched between two calls of `step`.
const PREFAULT_STEP_BYTES: usize = 32 << 20;

const ALLOCATE_STEP_BYTES: u64 = 1 << 30;

/// A store's shared memory.
///
/// Its size is fixed. It stays mapped until the last [`Buffer`](crate::Buffer) is dropped.
#[derive(Debug)]
pub struct Arena {
    region: Region,
    backing: Backing,
    writable: OwnedFd,
    read_only: OwnedFd,
}

impl Arena {
    /// Creates an arena of `capacity_bytes`, rounded down to whole pages of `backing`.
    ///
    /// The size is sealed, so no process can shrink memory in use. Usual pages are allocated when
    /// touched or [prefaulted](Self::prefault). Huge pages, and all pages without overcommit, are
    /// allocated here, because a later failure would kill the process that touches them (SIGBUS).
    ///
    /// # Errors
    /// [`Error::NotEnoughMemory`], [`Error::NotEnoughHugePages`], [`Error::FileSizeLimit`],
    /// [`Error::AddressSpaceLimit`], [`Error::CapacityTooSmall`], and [`Error::System`] otherwise.
    pub fn create(backing: Backing, capacity_bytes: u64) -> Result<Arc<Self>> {
        let (writable, capacity_bytes) = create_memfd(backing, capacity_bytes)?;
        let read_only = rustix::fs::open(
            format!("/proc/self/fd/{}", writable.as_raw_fd()),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(Error::system("open the arena read-only"))?;
        let region = Region::map(writable.as_fd(), capacity_bytes as usize, Access::Writable)
            .map_err(|source| no_memory_or(source, "map the arena", backing, capacity_bytes))?;
        let is_huge = matches!(backing, Backing::HugePages { .. });
        if is_huge || is_overcommit_strict() {
            allocate(&writable, capacity_bytes).map_err(|source| {
                no_memory_or(source, "allocate the arena", backing, capacity_bytes)
            })?;
        }
        Ok(Arc::new(Self { region, backing, writable, read_only }))
    }

    /// Arena's size in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.region.len() as u64
    }

    /// Descriptor for clients that write.
    pub fn writable_fd(&self) -> BorrowedFd<'_> {
        self.writable.as_fd()
    }

    /// Descriptor for clients that only read: it cannot be mapped writable.
    pub fn read_only_fd(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    /// Touches all pages, to avoid later page faults. Blocks for up to seconds per GiB.
    ///
    /// Calls `step` with the bytes touched so far after every 32 MiB, and stops if `step` breaks.
    /// Clients may use objects at the same time.
    ///
    /// # Errors
    /// [`Error::NotEnoughMemory`] without free memory, else [`Error::System`].
    pub fn prefault(&self, step: impl FnMut(u64) -> ControlFlow<()>) -> Result<()> {
        self.prefault_with(|range| self.region.advise(Advice::PopulateWrite, range), step)
    }

    fn prefault_with(
        &self,
        populate: impl Fn(std::ops::Range<usize>) -> io::Result<()>,
        mut step: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut start = 0;
        while start < self.region.len() {
            let end = self.region.len().min(start + PREFAULT_STEP_BYTES);
            match populate(start..end) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Linux before 5.14 lacks this advice.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.region.touch(start..end, rustix::param::page_size());
                }
                // No page is left (EFAULT): a plain write would kill the process (SIGBUS).
                Err(error) if error.raw_os_error() == Some(Errno::FAULT.raw_os_error()) => {
                    return Err(Error::NotEnoughMemory {
                        needed_bytes: self.capacity_bytes(),
                        available_bytes: start as u64,
                    });
                }
                Err(source) => {
                    let capacity_bytes = self.capacity_bytes();
                    return Err(no_memory_or(
                        source,
                        "fault in the arena",
                        self.backing,
                        capacity_bytes,
                    ));
                }
            }
            start = end;
            if step(start as u64).is_break() {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

fn create_memfd(backing: Backing, capacity_bytes: u64) -> Result<(OwnedFd, u64)> {
    let kind = backing.memfd_flags()?;
    let fd = rustix::fs::memfd_create(
        "hoplite-arena",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind,
    )
    .map_err(|errno| backing.not_supported_or(errno))?;
    let file_system =
        rustix::fs::fstatfs(&fd).map_err(Error::system("find out the arena's pages"))?;
    let page_bytes = u64::try_from(file_system.f_bsize).unwrap_or(0).max(1);
    let capacity_bytes = match capacity_bytes / page_bytes {
        0 => return Err(Error::CapacityTooSmall { capacity_bytes, page_bytes }),
        pages => pages * page_bytes,
    };
    let information = rustix::system::sysinfo();
    let total_bytes = u64::from(information.mem_unit).saturating_mul(information.totalram);
    if capacity_bytes > total_bytes {
        return Err(Error::NotEnoughMemory {
            needed_bytes: capacity_bytes,
            available_bytes: total_bytes,
        });
    }
    let limit_bytes = file_size_limit_bytes();
    if capacity_bytes > limit_bytes {
        return Err(Error::FileSizeLimit { needed_bytes: capacity_bytes, limit_bytes });
    }
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(Error::system("protect the arena"))?;
    rustix::fs::ftruncate(&fd, capacity_bytes).map_err(Error::system("size the arena"))?;
    // Without these seals, a client could shrink the file, which kills every process that maps it,
    // or seal it against writing.
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(Error::system("seal the size of the arena"))?;
    Ok((fd, capacity_bytes))
}

fn allocate(fd: &OwnedFd, capacity_bytes: u64) -> io::Result<()> {
    let mut start = 0;
    while start < capacity_bytes {
        let length = ALLOCATE_STEP_BYTES.min(capacity_bytes - start);
        rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(fd, FallocateFlags::empty(), start, length)
        })?;
        start += length;
    }
    Ok(())
}

fn no_memory_or(
    source: io::Error,
    operation: &'static str,
    backing: Backing,
    needed_bytes: u64,
) -> Error {
    if !matches!(source.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull) {
        return Error::System { operation, source };
    }
    let limit_bytes = address_space_limit_bytes();
    if operation == "map the arena" && limit_bytes < u64::MAX {
        return Error::AddressSpaceLimit { needed_bytes, limit_bytes };
    }
    if let Backing::HugePages { .. } = backing {
        return backing.too_few(needed_bytes);
    }
    let information = rustix::system::sysinfo();
    let available_bytes = u64::from(information.mem_unit).saturating_mul(information.freeram);
    Error::NotEnoughMemory { needed_bytes, available_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hoplite_core::extent::Extent;

    fn resident_bytes(arena: &Arena) -> u64 {
        let status = rustix::fs::fstat(&arena.writable).unwrap();
        u64::try_from(status.st_blocks).unwrap() * 512
    }

    #[test]
    fn every_page_is_touched_if_the_kernel_cannot_populate() {
        let arena = Arena::create(Backing::Pages, 40 << 20).unwrap();
        let buffer = arena.buffer(Extent { offset_bytes: 0, length_bytes: 1 << 20 }, 1000).unwrap();
        buffer.write(0, &[7; 1000]);
        let cannot = |_| Err(io::Error::from(Errno::INVAL));
        arena.prefault_with(cannot, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(resident_bytes(&arena), 40 << 20);
        let mut read = [0; 1000];
        buffer.read(0, &mut read);
        assert_eq!(read, [7; 1000]);
    }

    #[test]
    fn allocated_memory_is_resident_before_the_first_touch() {
        let arena = Arena::create(Backing::Pages, 40 << 20).unwrap();
        assert_eq!(resident_bytes(&arena), 0);
        allocate(&arena.writable, arena.capacity_bytes()).unwrap();
        assert_eq!(resident_bytes(&arena), 40 << 20);
    }

    #[test]
    fn missing_memory_is_an_error() {
        let arena = Arena::create(Backing::Pages, 40 << 20).unwrap();
        for errno in [Errno::FAULT, Errno::NOMEM] {
            let error = arena
                .prefault_with(|_| Err(errno.into()), |_| ControlFlow::Continue(()))
                .unwrap_err();
            assert!(
                matches!(error, Error::NotEnoughMemory { needed_bytes, .. } if needed_bytes == 40 << 20)
            );
        }
        let error = arena
            .prefault_with(|_| Err(Errno::PERM.into()), |_| ControlFlow::Continue(()))
            .unwrap_err();
        assert!(matches!(error, Error::System { .. }), "{error}");
    }
}
