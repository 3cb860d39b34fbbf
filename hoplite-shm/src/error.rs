//! The errors of shared memory.

use std::io;
use std::path::PathBuf;

use hoplite_core::extent::Extent;

/// The result of an operation on shared memory.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The failure of an operation on shared memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    /// The system has too little memory for the arena.
    #[error("the arena needs {needed_bytes} bytes of memory, {available_bytes} are available")]
    NotEnoughMemory {
        /// The requested capacity.
        needed_bytes: u64,
        available_bytes: u64,
    },
    /// Too few huge pages are reserved on this machine.
    #[error(
        "the arena needs {needed_pages} huge pages of {page_bytes} bytes, {free_pages} are free: reserve more \
         (sysctl vm.nr_hugepages, or hugepagesz= and hugepages= at boot), or lower --memory"
    )]
    NotEnoughHugePages { page_bytes: u64, needed_pages: u64, free_pages: u64 },
    /// The system has no huge pages of this size.
    #[error("this machine has no huge pages of {page_bytes} bytes: /sys/kernel/mm/hugepages shows the sizes")]
    NoSuchHugePages {
        /// The requested size.
        page_bytes: u64,
    },
    /// The arena counts as a file, and exceeds the file size limit of this process.
    #[error(
        "the arena needs {needed_bytes} bytes, and a file of this process may have {limit_bytes}: \
         raise the limit (ulimit -f), or lower --memory"
    )]
    FileSizeLimit {
        /// The requested capacity.
        needed_bytes: u64,
        limit_bytes: u64,
    },
    /// The arena exceeds the limit of this process's address space.
    #[error(
        "the arena needs {needed_bytes} bytes of address space, and this process may have {limit_bytes} in all: \
         raise the limit (ulimit -v), or lower --memory"
    )]
    AddressSpaceLimit {
        /// The requested capacity.
        needed_bytes: u64,
        limit_bytes: u64,
    },
    /// The capacity is less than one page of the backing.
    #[error("an arena of {capacity_bytes} bytes is smaller than its pages of {page_bytes} bytes")]
    CapacityTooSmall {
        /// The requested capacity.
        capacity_bytes: u64,
        page_bytes: u64,
    },
    /// A path for the arena is not on a file system in memory.
    #[error("{} is not on a tmpfs, ramfs or hugetlbfs", path.display())]
    NotInMemory { path: PathBuf },
    /// The file system of a path could not be found out.
    #[error("cannot {operation} the arena's path {}", path.display())]
    File {
        /// The failed step, as a verb.
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file is shorter than the capacity that the store has announced.
    #[error("the arena's file has {actual_bytes} bytes instead of {needed_bytes}")]
    FileTooShort {
        /// The announced capacity.
        needed_bytes: u64,
        /// The length of the file.
        actual_bytes: u64,
    },
    /// An extent is misaligned, out of the arena's bounds, or too short for its object.
    #[error("{extent:?} cannot hold {size_bytes} bytes in an arena of {capacity_bytes} bytes")]
    OutOfArena {
        extent: Extent,
        /// Size of the object.
        size_bytes: u64,
        capacity_bytes: u64,
    },
    /// A writer was requested, but the mapping is read-only.
    #[error("the mapping is read-only")]
    ReadOnly,
    /// A read exceeds the valid bytes, or the size of the object.
    #[error("bytes up to {end_bytes} were to be read, {valid_bytes} are valid")]
    NotValid {
        /// The end of the read, in bytes from the start of the object.
        end_bytes: u64,
        valid_bytes: u64,
    },
    /// A write exceeds the size of the object.
    #[error("{length_bytes} bytes were to be written where {remaining_bytes} remain of the object")]
    PastEnd {
        length_bytes: u64,
        /// Number of bytes of the object that are not written yet.
        remaining_bytes: u64,
    },
    /// A writer was finished before it had written all bytes.
    #[error("{written_bytes} of {size_bytes} bytes were written")]
    Unfinished {
        written_bytes: u64,
        /// Size of the object.
        size_bytes: u64,
    },
    /// A system call failed.
    #[error("cannot {operation}")]
    System {
        /// The failed step, as a verb.
        operation: &'static str,
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System { operation, source: errno.into() }
    }
}
