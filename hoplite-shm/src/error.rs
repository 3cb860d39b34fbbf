//! What can go wrong with shared memory.

use std::io;
use std::path::PathBuf;

use hoplite_core::extent::Extent;

/// The result of an operation on shared memory.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason for which an operation on shared memory failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine, or the file system that backs the arena, has less memory than the arena needs.
    #[error("the arena needs {needed_bytes} bytes of memory, {available_bytes} are available")]
    NotEnoughMemory {
        /// The capacity asked for.
        needed_bytes: u64,
        /// The number of bytes that the machine or the file system has.
        available_bytes: u64,
    },
    /// Fewer huge pages are reserved than the arena needs.
    #[error(
        "the arena needs {needed_pages} huge pages of {page_bytes} bytes, {free_pages} are free: reserve more \
         (sysctl vm.nr_hugepages, or hugepagesz= and hugepages= at boot), or lower --memory"
    )]
    NotEnoughHugePages {
        /// The size of a page.
        page_bytes: u64,
        /// How many pages the arena needs.
        needed_pages: u64,
        /// How many pages are free.
        free_pages: u64,
    },
    /// The machine has no huge pages of that size.
    #[error("this machine has no huge pages of {page_bytes} bytes: /sys/kernel/mm/hugepages shows the sizes")]
    NoSuchHugePages {
        /// The size asked for.
        page_bytes: u64,
    },
    /// The limit of file sizes of this process is less than the arena, which counts as a file.
    #[error(
        "the arena needs {needed_bytes} bytes, and a file of this process may have {limit_bytes}: \
         raise the limit (ulimit -f), or lower --memory"
    )]
    FileSizeLimit {
        /// The capacity asked for.
        needed_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The limit of the address space of this process leaves no room to map the arena.
    #[error(
        "the arena needs {needed_bytes} bytes of address space, and this process may have {limit_bytes} in all: \
         raise the limit (ulimit -v), or lower --memory"
    )]
    AddressSpaceLimit {
        /// The capacity asked for.
        needed_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The capacity is less than one page of the memory that backs the arena.
    #[error("an arena of {capacity_bytes} bytes is smaller than its pages of {page_bytes} bytes")]
    CapacityTooSmall {
        /// The capacity asked for.
        capacity_bytes: u64,
        /// The size of a page of that memory.
        page_bytes: u64,
    },
    /// A path given for the arena is on a disk.
    #[error("{} is not on a tmpfs, ramfs or hugetlbfs", path.display())]
    NotInMemory {
        /// The path that was given for the arena.
        path: PathBuf,
    },
    /// The place of a path given for the arena cannot be looked at.
    #[error("cannot {operation} the arena's path {}", path.display())]
    File {
        /// The step that failed, as a verb.
        operation: &'static str,
        /// The path that was given for the arena.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file that was received is shorter than the arena is said to be.
    #[error("the arena's file has {actual_bytes} bytes instead of {needed_bytes}")]
    FileTooShort {
        /// The capacity that the mapping should have.
        needed_bytes: u64,
        /// The length of the file.
        actual_bytes: u64,
    },
    /// An extent is misaligned, not inside the arena, or too short for its header and its object.
    #[error("{extent:?} cannot hold {size_bytes} bytes in an arena of {capacity_bytes} bytes")]
    OutOfArena {
        /// The extent that was given.
        extent: Extent,
        /// The size of the object.
        size_bytes: u64,
        /// The size of the arena.
        capacity_bytes: u64,
    },
    /// A writer was asked for on a mapping that is read-only.
    #[error("the mapping is read-only")]
    ReadOnly,
    /// The caller wanted bytes that are not valid yet, or that the object does not have.
    #[error("bytes up to {end_bytes} were to be read, {valid_bytes} are valid")]
    NotValid {
        /// Where the read would have ended.
        end_bytes: u64,
        /// How many leading bytes are valid.
        valid_bytes: u64,
    },
    /// The caller wanted to write more bytes than the object has.
    #[error("{length_bytes} bytes were to be written where {remaining_bytes} remain of the object")]
    PastEnd {
        /// The number of bytes that were to be written.
        length_bytes: u64,
        /// How many bytes of the object were still to be written.
        remaining_bytes: u64,
    },
    /// A writer was finished before all of the object was written.
    #[error("{written_bytes} of {size_bytes} bytes were written")]
    Unfinished {
        /// The number of bytes that were written.
        written_bytes: u64,
        /// The size of the object.
        size_bytes: u64,
    },
    /// The operating system refused.
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
    /// Makes the error of a system call that was tried in order to do `operation`.
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System { operation, source: errno.into() }
    }
}
