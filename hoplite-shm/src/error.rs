//! The errors of shared memory.

use std::io;
use std::path::PathBuf;

use hoplite_core::extent::Extent;

/// The result of an operation on shared memory.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation on shared memory failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine or the file system of the arena has too little memory.
    #[error("the arena needs {needed_bytes} bytes of memory, {available_bytes} are available")]
    NotEnoughMemory {
        /// The requested capacity.
        needed_bytes: u64,
        /// The available bytes.
        available_bytes: u64,
    },
    /// Fewer huge pages are reserved than the arena needs.
    #[error(
        "the arena needs {needed_pages} huge pages of {page_bytes} bytes, {free_pages} are free: reserve more \
         (sysctl vm.nr_hugepages, or hugepagesz= and hugepages= at boot), or lower --memory"
    )]
    NotEnoughHugePages {
        /// The size of a page in bytes.
        page_bytes: u64,
        /// The number of pages that the arena needs.
        needed_pages: u64,
        /// The number of free pages.
        free_pages: u64,
    },
    /// The machine has no huge pages of this size.
    #[error("this machine has no huge pages of {page_bytes} bytes: /sys/kernel/mm/hugepages shows the sizes")]
    NoSuchHugePages {
        /// The requested size.
        page_bytes: u64,
    },
    /// The arena exceeds this process's limit of file sizes, because it counts as a file.
    #[error(
        "the arena needs {needed_bytes} bytes, and a file of this process may have {limit_bytes}: \
         raise the limit (ulimit -f), or lower --memory"
    )]
    FileSizeLimit {
        /// The requested capacity.
        needed_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// This process's limit of its address space leaves no room to map the arena.
    #[error(
        "the arena needs {needed_bytes} bytes of address space, and this process may have {limit_bytes} in all: \
         raise the limit (ulimit -v), or lower --memory"
    )]
    AddressSpaceLimit {
        /// The requested capacity.
        needed_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The capacity is less than one page of the arena's backing.
    #[error("an arena of {capacity_bytes} bytes is smaller than its pages of {page_bytes} bytes")]
    CapacityTooSmall {
        /// The requested capacity.
        capacity_bytes: u64,
        /// The size of a page of the backing.
        page_bytes: u64,
    },
    /// A path for the arena is on a disk.
    #[error("{} is not on a tmpfs, ramfs or hugetlbfs", path.display())]
    NotInMemory {
        /// The path.
        path: PathBuf,
    },
    /// The file system of a path for the arena is unknown.
    #[error("cannot {operation} the arena's path {}", path.display())]
    File {
        /// The step that failed, as a verb.
        operation: &'static str,
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The received file is shorter than the announced arena.
    #[error("the arena's file has {actual_bytes} bytes instead of {needed_bytes}")]
    FileTooShort {
        /// The announced capacity.
        needed_bytes: u64,
        /// The length of the file.
        actual_bytes: u64,
    },
    /// An extent is misaligned, is outside of the arena, or is too short for its header and its
    /// object.
    #[error("{extent:?} cannot hold {size_bytes} bytes in an arena of {capacity_bytes} bytes")]
    OutOfArena {
        /// The extent.
        extent: Extent,
        /// The size of the object.
        size_bytes: u64,
        /// The size of the arena.
        capacity_bytes: u64,
    },
    /// A writer was requested on a read-only mapping.
    #[error("the mapping is read-only")]
    ReadOnly,
    /// A read reaches beyond the valid bytes or the end of the object.
    #[error("bytes up to {end_bytes} were to be read, {valid_bytes} are valid")]
    NotValid {
        /// The end of the read.
        end_bytes: u64,
        /// The number of leading bytes that are valid.
        valid_bytes: u64,
    },
    /// A write reaches beyond the end of the object.
    #[error("{length_bytes} bytes were to be written where {remaining_bytes} remain of the object")]
    PastEnd {
        /// The length of the write.
        length_bytes: u64,
        /// The number of bytes of the object that are not written yet.
        remaining_bytes: u64,
    },
    /// A writer was finished before the whole object was written.
    #[error("{written_bytes} of {size_bytes} bytes were written")]
    Unfinished {
        /// The number of written bytes.
        written_bytes: u64,
        /// The size of the object.
        size_bytes: u64,
    },
    /// A system call failed.
    #[error("cannot {operation}")]
    System {
        /// The step that failed, as a verb.
        operation: &'static str,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Returns a function that wraps the error of a system call, which was part of `operation`.
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System { operation, source: errno.into() }
    }
}
