//! Spilling: cold copies move from the arena to files, and return on demand.

use std::fmt;

use super::CopyId;

/// The settings of spilling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillConfig {
    /// The names of the directories for spill files, for messages. At least one.
    pub directories: Vec<String>,
    /// Most bytes of spill files together; `None` if only the disks limit them.
    pub limit_bytes: Option<u64>,
}

/// A spill file of this run of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpillFile {
    /// The index of its directory in the settings.
    pub directory: usize,
    /// Its number, unique in this run.
    pub number: u64,
}

/// The place of a copy in a spill file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpillRecord {
    /// The file.
    pub file: SpillFile,
    /// The offset of the record in the file.
    pub offset_bytes: u64,
}

impl SpillRecord {
    /// The size of the header of a spill file, in front of its records.
    pub const FILE_HEADER_BYTES: u64 = 128;
    /// The size of the header of a record, in front of the bytes of the object.
    pub const HEADER_BYTES: u64 = 32;
    /// The size of a block of an object. A checksum of each block follows the last one.
    pub const BLOCK_BYTES: u64 = 1 << 20;

    /// Returns the length of the record of an object of this size.
    pub const fn length_bytes(size_bytes: u64) -> u64 {
        // One more checksum protects the list of checksums.
        Self::HEADER_BYTES + size_bytes + 4 * (size_bytes.div_ceil(Self::BLOCK_BYTES) + 1)
    }
}

/// A copy to write into a new spill file. The records follow each other in the order of the items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpillItem {
    /// The copy.
    pub copy: CopyId,
    /// The size of the object.
    pub size_bytes: u64,
    /// The record to copy, in an older file. `None` for a copy in the arena.
    pub from: Option<SpillRecord>,
}

/// The reason for which a spill file cannot be written or read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpillFault {
    /// The disk, a quota or the spill limit has no room.
    Full(String),
    /// The operating system reports an error.
    Failed(String),
    /// The file does not have the bytes that the store wrote.
    Damaged(String),
}

impl fmt::Display for SpillFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Full(reason) | Self::Failed(reason) | Self::Damaged(reason)) = self;
        f.write_str(reason)
    }
}

/// The state of spilling, for status reports and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpillStatus {
    /// The number of objects that are only in spill files.
    pub objects: u64,
    /// The size of these objects.
    pub bytes: u64,
    /// The size of copies in the arena that spill files have too. The store can free them at once.
    pub clean_bytes: u64,
    /// The number of spill files.
    pub files: u64,
    /// The size of these files.
    pub file_bytes: u64,
    /// Most bytes of spill files; zero if only the disks limit them.
    pub limit_bytes: u64,
    /// The number of objects that were written to spill files so far.
    pub spilled_objects: u64,
    /// The size of these objects.
    pub spilled_bytes: u64,
    /// The number of objects that were read from spill files so far.
    pub loaded_objects: u64,
    /// The size of these objects.
    pub loaded_bytes: u64,
    /// The number of writes and reads of spill files that failed so far.
    pub failures: u64,
}

/// A directory of spill files that cannot be used now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillTrouble {
    /// The name of the directory.
    pub directory: String,
    /// The reason.
    pub fault: SpillFault,
}
