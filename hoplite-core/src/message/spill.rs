use std::fmt;

use super::CopyId;

/// Settings of spilling copies into files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillConfig {
    /// Directories' names, for messages; at least one.
    pub directories: Vec<String>,
    /// Most bytes of spill files; `None` if only the disks limit them.
    pub limit_bytes: Option<u64>,
}

/// Names a spill file of this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpillFile {
    /// Directory's index in the settings.
    pub directory: usize,
    /// Unique in this run.
    pub number: u64,
}

/// Place of a copy in a spill file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "most names say it")]
pub struct SpillRecord {
    pub file: SpillFile,
    pub offset_bytes: u64,
}

impl SpillRecord {
    /// Size of a file's header.
    pub const FILE_HEADER_BYTES: u64 = 128;
    /// Size of a record's header.
    pub const HEADER_BYTES: u64 = 32;
    /// Number of object bytes under one checksum. The checksums follow the last block.
    pub const BLOCK_BYTES: u64 = 1 << 20;

    /// Returns the length of an object's record.
    pub const fn length_bytes(size_bytes: u64) -> u64 {
        // One more checksum protects the list of checksums.
        Self::HEADER_BYTES + size_bytes + 4 * (size_bytes.div_ceil(Self::BLOCK_BYTES) + 1)
    }
}

/// Copy to write into a new spill file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct SpillItem {
    pub copy: CopyId,
    pub size_bytes: u64,
    /// Record in an older file; `None` for a copy in the arena.
    pub from: Option<SpillRecord>,
}

/// Reason why a spill file fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpillFault {
    /// The disk is full, or a quota or the spill limit is reached.
    Full(String),
    /// Error of the operating system.
    Failed(String),
    /// A compaction of files cannot read its old file now.
    Unread(String),
    /// The file has other bytes than the store wrote.
    Damaged(String),
}

impl fmt::Display for SpillFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Full(reason)
        | Self::Failed(reason)
        | Self::Unread(reason)
        | Self::Damaged(reason)) = self;
        f.write_str(reason)
    }
}

/// State of spilling to files, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct SpillStatus {
    /// Objects only in spill files.
    pub objects: u64,
    /// Size of these objects.
    pub bytes: u64,
    /// Bytes of copies in both the arena and files, whose memory can be freed at once.
    pub clean_bytes: u64,
    pub files: u64,
    pub file_bytes: u64,
    /// Zero if only the disks limit spill files.
    pub limit_bytes: u64,
    pub spilled_objects: u64,
    pub spilled_bytes: u64,
    pub loaded_objects: u64,
    pub loaded_bytes: u64,
    /// Failed writes and reads so far.
    pub failures: u64,
    /// Objects that this run took over from killed stores.
    pub recovered_objects: u64,
    pub recovered_bytes: u64,
    /// Objects of killed stores that did not come back.
    pub unrecovered_objects: u64,
}

/// Unusable spill directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct SpillTrouble {
    pub directory: String,
    pub fault: SpillFault,
}
