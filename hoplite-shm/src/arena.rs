//! The store's side: creating the arena, faulting it in, handing it out.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hoplite_core::extent::Extent;
use memmap2::Advice;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::region::{Access, Region};
use crate::span::Span;

/// How much is faulted in before the caller is asked again whether to go on. At 2 s per GiB (first touch on a virtual
/// machine) this is 60 ms.
const PREFAULT_STEP_BYTES: usize = 32 << 20;

/// The kind of memory that an arena is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Anonymous memory, which is freed when the last process that maps it ends.
    Memfd,
    /// A file on a tmpfs, ramfs or hugetlbfs. Its name is removed at once, so that it is freed as a memfd is.
    File(PathBuf),
}

/// The shared memory of a store.
///
/// It never grows or shrinks. It stays mapped until the last [`Buffer`] is dropped too.
#[derive(Debug)]
pub struct Arena {
    region: Region,
    writable: OwnedFd,
    read_only: OwnedFd,
}

impl Arena {
    /// Creates an arena of `capacity_bytes`, rounded down to whole pages of the memory it is made of.
    ///
    /// No memory is used until it is touched or [prefaulted](Self::prefault). With [`Backing::File`], this replaces a file that
    /// was left at that path.
    ///
    /// # Errors
    ///
    /// [`Error::NotEnoughMemory`] if the machine or the file system is too small, [`Error::CapacityTooSmall`],
    /// [`Error::NotInMemory`] and [`Error::File`] if the file is not usable, [`Error::System`] otherwise.
    pub fn create(backing: Backing, capacity_bytes: u64) -> Result<Arc<Self>> {
        let (writable, capacity_bytes) = match &backing {
            Backing::Memfd => create_memfd(capacity_bytes)?,
            Backing::File(path) => create_file(path, capacity_bytes)?,
        };
        let read_only = rustix::fs::open(
            format!("/proc/self/fd/{}", writable.as_raw_fd()),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(Error::system("open the arena read-only"))?;
        let region = Region::map(writable.as_fd(), capacity_bytes as usize, Access::Writable)
            .map_err(|source| out_of_memory_or(source, "map the arena", capacity_bytes))?;
        Ok(Arc::new(Self { region, writable, read_only }))
    }

    /// The size of the arena.
    pub fn capacity_bytes(&self) -> u64 {
        self.region.len() as u64
    }

    /// The descriptor with which a client maps the arena to write to it.
    pub fn writable_fd(&self) -> BorrowedFd<'_> {
        self.writable.as_fd()
    }

    /// The descriptor with which a client maps the arena to read from it. It cannot be mapped writable.
    pub fn read_only_fd(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    /// Faults in all of the arena, so that later use does not pay for it; blocks for up to seconds per GiB.
    ///
    /// Calls `step` with the number of bytes done after every 32 MiB, and stops early if told to. May run while objects
    /// are written and read.
    ///
    /// # Errors
    ///
    /// [`Error::NotEnoughMemory`] if the memory that was promised is not there. [`Error::System`] otherwise.
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
                // Linux before 5.14 does not know how to populate.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.region.touch(start..end, rustix::param::page_size());
                }
                // The kernel says "bad address" where a plain write would end in SIGBUS.
                Err(error) if error.raw_os_error() == Some(Errno::FAULT.raw_os_error()) => {
                    return Err(Error::NotEnoughMemory {
                        needed_bytes: self.capacity_bytes(),
                        available_bytes: start as u64,
                    });
                }
                Err(source) => {
                    return Err(out_of_memory_or(source, "fault in the arena", self.capacity_bytes()));
                }
            }
            start = end;
            if step(start as u64).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The buffer of an object of `size_bytes` in `extent`. Its header is left as it is; see [`Buffer::initialise`].
    ///
    /// # Errors
    ///
    /// [`Error::OutOfArena`] if `extent` is misaligned, out of bounds or too short.
    pub fn buffer(self: &Arc<Self>, extent: Extent, size_bytes: u64) -> Result<Buffer> {
        let span = Span::new(extent, size_bytes, self.capacity_bytes())?;
        Ok(Buffer::new(Arc::clone(self), span))
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

fn create_memfd(capacity_bytes: u64) -> Result<(OwnedFd, u64)> {
    let capacity_bytes = whole_pages(capacity_bytes, rustix::param::page_size() as u64)?;
    let information = rustix::system::sysinfo();
    let total_bytes = u64::from(information.mem_unit).saturating_mul(information.totalram);
    if capacity_bytes > total_bytes {
        return Err(Error::NotEnoughMemory { needed_bytes: capacity_bytes, available_bytes: total_bytes });
    }
    let fd = rustix::fs::memfd_create("hoplite-arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(Error::system("create the arena"))?;
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(Error::system("protect the arena"))?;
    rustix::fs::ftruncate(&fd, capacity_bytes).map_err(Error::system("size the arena"))?;
    // A client that shrinks the file kills every process that maps it. One that adds a seal against writing stops the store.
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(Error::system("seal the size of the arena"))?;
    Ok((fd, capacity_bytes))
}

fn create_file(path: &Path, capacity_bytes: u64) -> Result<(OwnedFd, u64)> {
    let failed = |operation| {
        move |errno: Errno| Error::File { operation, path: path.to_owned(), source: errno.into() }
    };
    let is_in_memory = |kind| {
        kind == libc::HUGETLBFS_MAGIC as u32 || kind == libc::TMPFS_MAGIC as u32 || kind == RAMFS_MAGIC
    };
    let not_in_memory = || Error::NotInMemory { path: path.to_owned() };
    // Checked before anything is removed: a file on a disk is no leftover of an arena.
    match rustix::fs::statfs(path) {
        Ok(file_system) if !is_in_memory(kind_of(&file_system)) => return Err(not_in_memory()),
        Ok(_) => rustix::fs::unlink(path).map_err(failed("remove the leftover of"))?,
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed("find out the file system of")(errno)),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed("create"))?;
    // Clients get descriptors. Without a name, no file is left behind even if this process is killed.
    rustix::fs::unlink(path).map_err(failed("unlink"))?;

    let file_system = rustix::fs::fstatfs(&fd).map_err(failed("find out the file system of"))?;
    let page_bytes = u64::try_from(file_system.f_bsize).unwrap_or(0).max(1);
    if !is_in_memory(kind_of(&file_system)) {
        return Err(not_in_memory());
    }
    let capacity_bytes = whole_pages(capacity_bytes, page_bytes)?;
    // A file system that reports zero blocks in total has no limit.
    let available_bytes = file_system.f_bavail.saturating_mul(page_bytes);
    if file_system.f_blocks > 0 && available_bytes < capacity_bytes {
        return Err(Error::NotEnoughMemory { needed_bytes: capacity_bytes, available_bytes });
    }
    rustix::fs::ftruncate(&fd, capacity_bytes).map_err(failed("size"))?;
    Ok((fd, capacity_bytes))
}

fn kind_of(file_system: &rustix::fs::StatFs) -> u32 {
    u32::try_from(file_system.f_type).unwrap_or(0)
}

/// From linux/magic.h; neither libc nor rustix has it.
const RAMFS_MAGIC: u32 = 0x8584_58F6;

fn whole_pages(capacity_bytes: u64, page_bytes: u64) -> Result<u64> {
    match capacity_bytes / page_bytes {
        0 => Err(Error::CapacityTooSmall { capacity_bytes, page_bytes }),
        pages => Ok(pages * page_bytes),
    }
}

fn out_of_memory_or(source: io::Error, operation: &'static str, needed_bytes: u64) -> Error {
    if source.kind() == io::ErrorKind::OutOfMemory {
        let information = rustix::system::sysinfo();
        let available_bytes = u64::from(information.mem_unit).saturating_mul(information.freeram);
        return Error::NotEnoughMemory { needed_bytes, available_bytes };
    }
    Error::System { operation, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_on_a_disk_is_neither_used_nor_removed() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let error = create_file(&path, 1 << 20).unwrap_err();
        assert!(matches!(error, Error::NotInMemory { .. }), "{error}");
        assert!(path.exists());
    }

    fn resident_bytes(arena: &Arena) -> u64 {
        let status = rustix::fs::fstat(&arena.writable).unwrap();
        u64::try_from(status.st_blocks).unwrap() * 512
    }

    #[test]
    fn kernels_that_cannot_populate_get_every_page_touched() {
        let arena = Arena::create(Backing::Memfd, 40 << 20).unwrap();
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
    fn memory_that_is_not_there_after_all_is_an_error() {
        let arena = Arena::create(Backing::Memfd, 40 << 20).unwrap();
        for errno in [Errno::FAULT, Errno::NOMEM] {
            let error =
                arena.prefault_with(|_| Err(errno.into()), |_| ControlFlow::Continue(())).unwrap_err();
            assert!(matches!(error, Error::NotEnoughMemory { needed_bytes, .. } if needed_bytes == 40 << 20));
        }
        let error =
            arena.prefault_with(|_| Err(Errno::PERM.into()), |_| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(error, Error::System { .. }), "{error}");
    }
}
