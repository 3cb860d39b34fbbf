use std::io;
use std::path::PathBuf;

use hoplite_core::extent::Extent;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failure of an operation on shared memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("the arena needs {needed_bytes} bytes of memory, {available_bytes} are available")]
    NotEnoughMemory { needed_bytes: u64, available_bytes: u64 },
    #[error(
        "the arena needs {needed_pages} huge pages of {page_bytes} bytes, {free_pages} are free: reserve more \
         (sysctl vm.nr_hugepages, or hugepagesz= and hugepages= at boot), or lower --memory"
    )]
    NotEnoughHugePages { page_bytes: u64, needed_pages: u64, free_pages: u64 },
    #[error(
        "this machine has no huge pages of {page_bytes} bytes: /sys/kernel/mm/hugepages shows the sizes"
    )]
    NoSuchHugePages { page_bytes: u64 },
    #[error(
        "the arena needs {needed_bytes} bytes, and a file of this process may have {limit_bytes}: \
         raise the limit (ulimit -f), or lower --memory"
    )]
    FileSizeLimit { needed_bytes: u64, limit_bytes: u64 },
    #[error(
        "the arena needs {needed_bytes} bytes of address space, and this process may have {limit_bytes} in all: \
         raise the limit (ulimit -v), or lower --memory"
    )]
    AddressSpaceLimit { needed_bytes: u64, limit_bytes: u64 },
    #[error("an arena of {capacity_bytes} bytes is smaller than its pages of {page_bytes} bytes")]
    CapacityTooSmall { capacity_bytes: u64, page_bytes: u64 },
    #[error("{} is not on a tmpfs, ramfs or hugetlbfs", path.display())]
    NotInMemory { path: PathBuf },
    #[error("cannot {operation} the arena's path {}", path.display())]
    File {
        /// Failed step, as a verb.
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the arena's file has {actual_bytes} bytes instead of {needed_bytes}")]
    FileTooShort { needed_bytes: u64, actual_bytes: u64 },
    /// An extent is misaligned, out of the arena's bounds, or too short.
    #[error("{extent:?} cannot hold {size_bytes} bytes in an arena of {capacity_bytes} bytes")]
    OutOfArena { extent: Extent, size_bytes: u64, capacity_bytes: u64 },
    #[error("the mapping is read-only")]
    ReadOnly,
    /// A read exceeds the valid bytes, or the object.
    #[error("bytes up to {end_bytes} were to be read, {valid_bytes} are valid")]
    NotValid {
        /// End of the read, from the start of the object.
        end_bytes: u64,
        valid_bytes: u64,
    },
    #[error("{length_bytes} bytes were to be written where {remaining_bytes} remain of the object")]
    PastEnd { length_bytes: u64, remaining_bytes: u64 },
    #[error("{written_bytes} of {size_bytes} bytes were written")]
    Unfinished { written_bytes: u64, size_bytes: u64 },
    #[error("cannot {operation}")]
    System {
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
