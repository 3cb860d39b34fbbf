use super::Error;

/// Stable numbers of errors, for the wire, metrics and other languages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is documented at the variant of Error of the same name")]
pub enum ErrorCode {
    InvalidId = 1,
    InvalidName = 2,
    InvalidMetadata = 3,
    InvalidRequest = 4,
    AlreadyExists = 5,
    ObjectTooLarge = 6,
    StoreFull = 7,
    Timeout = 8,
    ObjectLost = 9,
    Deleted = 10,
    LimitExceeded = 11,
    UnknownReference = 12,
    NodeIdInUse = 13,
    ClusterMismatch = 14,
    VersionMismatch = 15,
    Malformed = 16,
    Unavailable = 17,
    ShuttingDown = 18,
    TypeMismatch = 19,
    DuplicateId = 20,
    Superseded = 21,
    PermissionDenied = 22,
    ShardListMismatch = 23,
    NotEnoughNodes = 30,
    Draining = 31,
    SpillFailed = 40,
    PutConflict = 41,
    QuotaExceeded = 45,
}

impl Error {
    /// Error's stable code.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::InvalidId { .. } => ErrorCode::InvalidId,
            Self::InvalidName { .. } => ErrorCode::InvalidName,
            Self::InvalidMetadata(_) => ErrorCode::InvalidMetadata,
            Self::InvalidRequest { .. } => ErrorCode::InvalidRequest,
            Self::AlreadyExists { .. } => ErrorCode::AlreadyExists,
            Self::PutConflict { .. } => ErrorCode::PutConflict,
            Self::ObjectTooLarge { .. } => ErrorCode::ObjectTooLarge,
            Self::StoreFull { .. } => ErrorCode::StoreFull,
            Self::QuotaExceeded(_) => ErrorCode::QuotaExceeded,
            Self::Timeout { .. } => ErrorCode::Timeout,
            Self::ObjectLost { .. } => ErrorCode::ObjectLost,
            Self::Deleted { .. } => ErrorCode::Deleted,
            Self::LimitExceeded { .. } => ErrorCode::LimitExceeded,
            Self::UnknownReference { .. } => ErrorCode::UnknownReference,
            Self::NodeIdInUse { .. } => ErrorCode::NodeIdInUse,
            Self::ClusterMismatch { .. } => ErrorCode::ClusterMismatch,
            Self::ShardListMismatch { .. } => ErrorCode::ShardListMismatch,
            Self::VersionMismatch { .. } => ErrorCode::VersionMismatch,
            Self::Malformed { .. } => ErrorCode::Malformed,
            Self::Unavailable { .. } => ErrorCode::Unavailable,
            Self::ShuttingDown => ErrorCode::ShuttingDown,
            Self::NotEnoughNodes { .. } => ErrorCode::NotEnoughNodes,
            Self::Draining => ErrorCode::Draining,
            Self::SpillFailed { .. } => ErrorCode::SpillFailed,
            Self::TypeMismatch { .. } => ErrorCode::TypeMismatch,
            Self::DuplicateId { .. } => ErrorCode::DuplicateId,
            Self::Superseded { .. } => ErrorCode::Superseded,
            Self::PermissionDenied { .. } => ErrorCode::PermissionDenied,
        }
    }

    /// Returns `true` if the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::QuotaExceeded(excess) => !excess.is_final(),
            Self::StoreFull { .. }
            | Self::Timeout { .. }
            | Self::LimitExceeded { .. }
            | Self::NodeIdInUse { .. }
            | Self::Unavailable { .. }
            | Self::Superseded { .. }
            | Self::ShuttingDown
            | Self::NotEnoughNodes { .. }
            | Self::Draining
            | Self::SpillFailed { .. }
            | Self::PutConflict { .. } => true,
            _ => false,
        }
    }
}
