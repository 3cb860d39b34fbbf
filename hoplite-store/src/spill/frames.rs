//! Frames of a log: magic (4 bytes), length of the content (4), CRC-32C of the content (4),
//! content. A log grows at its end only.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hoplite_core::checksum::crc32c;
use rustix::fs::OFlags;
use rustix::io::Errno;

pub(super) const MAGIC: &[u8; 4] = b"HLOG";
/// Longest content of a log's frame. The longest metadata of an object has about 6 KiB.
const MAX_CONTENT_BYTES: usize = 16 << 10;

/// Reason why a file of a killed store is not recovered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Flaw {
    #[error("it is incomplete")]
    Incomplete,
    #[error("its format has another version")]
    OtherVersion,
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    #[error("the machine was restarted since")]
    OtherBoot,
    #[error("it belongs to another cluster")]
    OtherCluster,
    #[error("other users may write to it")]
    NotPrivate,
    #[error("the store has reached its limit of objects")]
    TooManyObjects,
    #[error("it is no readable file: {reason}")]
    Unread { kind: io::ErrorKind, reason: String },
}

impl Flaw {
    /// Disk's error if the file itself may be intact and must not be removed.
    pub(super) fn disk_error(&self) -> Option<io::Error> {
        use io::ErrorKind::{InvalidInput, NotFound, UnexpectedEof};
        match self {
            Self::Unread { kind: NotFound | UnexpectedEof | InvalidInput, .. } => None,
            Self::Unread { kind, reason } => Some(io::Error::new(*kind, reason.clone())),
            _ => None,
        }
    }
}

impl From<io::Error> for Flaw {
    fn from(error: io::Error) -> Self {
        Self::Unread { kind: error.kind(), reason: error.to_string() }
    }
}

pub(super) fn append(log: &mut Vec<u8>, content: &[u8]) {
    log.extend(MAGIC);
    log.extend(u32::try_from(content.len()).unwrap_or(u32::MAX).to_le_bytes());
    log.extend(crc32c(content).to_le_bytes());
    log.extend(content);
}

/// Takes the first frame of a log. Returns its content, unless the frame is truncated, too long or
/// damaged.
pub(super) fn take<'a>(log: &mut &'a [u8]) -> Result<&'a [u8], Flaw> {
    const DAMAGED: Flaw = Flaw::Damaged("a frame of the index");
    let mut rest = *log;
    let magic = take_bytes::<4>(&mut rest).ok_or(DAMAGED)?;
    let length = take_bytes(&mut rest).map(u32::from_le_bytes).ok_or(DAMAGED)?;
    let checksum = take_bytes(&mut rest).map(u32::from_le_bytes).ok_or(DAMAGED)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let (content, rest) = rest.split_at_checked(length).ok_or(DAMAGED)?;
    if magic != *MAGIC || length > MAX_CONTENT_BYTES || crc32c(content) != checksum {
        return Err(DAMAGED);
    }
    *log = rest;
    Ok(content)
}

pub(super) fn take_bytes<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

pub(super) fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    take_bytes(bytes).map(u64::from_le_bytes)
}

/// Opens a file. Refuses links and everything but regular files.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = flags.bits().try_into().unwrap_or_default();
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(|error| {
        let is_link = error.raw_os_error() == Some(Errno::LOOP.raw_os_error());
        if is_link { io::ErrorKind::InvalidInput.into() } else { error }
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}
