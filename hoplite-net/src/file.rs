//! Reads secrets and certificates from bounded regular files.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Permission bits of other users.
const OTHER_USERS_BITS: u32 = 0o077;
/// Bits that a file of root must not have, if this process runs as another user. Its group may read
/// it: Kubernetes mounts secrets this way.
const OTHER_USERS_BITS_FOR_ROOT: u32 = 0o037;

/// Reason to reject a file of secrets or certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum FileError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} may be read or written by others than its owner (mode {mode:o}): chmod 600 it", path.display())]
    NotPrivate { path: PathBuf, mode: u32 },
    #[error("{} belongs to user {owner}, and not to user {user}, who runs this process, or to root", path.display())]
    NotOurs {
        path: PathBuf,
        owner: u32,
        /// This process's user.
        user: u32,
    },
    #[error("{} is not a regular file of at most {limit_bytes} bytes", path.display())]
    Unlikely { path: PathBuf, limit_bytes: u64 },
}

/// Reads a file, without waiting for the writer of a pipe.
pub(crate) fn read(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let (file, _) = open(path, limit_bytes)?;
    contents(file, path, limit_bytes)
}

/// Reads a file of this user or root that other users cannot access. Only root's file may be
/// readable by its group. Follows links, and checks the opened file.
pub(crate) fn read_private(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let (file, found) = open(path, limit_bytes)?;
    accept_private(path, found.mode() & 0o7777, found.uid(), rustix::process::geteuid().as_raw())?;
    contents(file, path, limit_bytes)
}

fn accept_private(path: &Path, mode: u32, owner: u32, user: u32) -> Result<(), FileError> {
    if owner != user && owner != 0 {
        return Err(FileError::NotOurs { path: path.to_owned(), owner, user });
    }
    let forbidden = if owner == user { OTHER_USERS_BITS } else { OTHER_USERS_BITS_FOR_ROOT };
    if mode & forbidden != 0 {
        return Err(FileError::NotPrivate { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Byte-order marks of UTF-8 and both forms of UTF-16.
const BYTE_ORDER_MARKS: [&[u8]; 3] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];

/// Returns `true` for a byte-order mark, which would invisibly become part of a secret.
pub fn begins_with_byte_order_mark(bytes: &[u8]) -> bool {
    BYTE_ORDER_MARKS.iter().any(|mark| bytes.starts_with(mark))
}

fn open(path: &Path, limit_bytes: u64) -> Result<(File, Metadata), FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    // Otherwise opening a pipe would wait for its writer.
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() || found.len() > limit_bytes {
        return Err(FileError::Unlikely { path: path.to_owned(), limit_bytes });
    }
    Ok((file, found))
}

fn contents(file: File, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let read = file.take(limit_bytes).read_to_end(&mut bytes);
    read.map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn byte_order_marks_are_noticed() {
        for marked in [&b"\xef\xbb\xbfsecret"[..], b"\xff\xfes\0", b"\xfe\xff\0s"] {
            assert!(begins_with_byte_order_mark(marked));
        }
        assert!(!begins_with_byte_order_mark(b"secret") && !begins_with_byte_order_mark(b""));
    }

    #[test]
    fn only_a_regular_file_within_the_limit_is_read() {
        let place = tempfile::tempdir().unwrap();
        let pipe = place.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [&pipe, Path::new("/dev/zero"), place.path()] {
            let errors = [read(path, 1 << 20), read_private(path, 1 << 20)].map(Result::unwrap_err);
            assert!(
                errors.iter().all(|error| matches!(error, FileError::Unlikely { .. })),
                "{errors:?}"
            );
        }
        assert_eq!(read(Path::new("/proc/self/status"), 10).unwrap().len(), 10);
    }

    #[test]
    fn a_file_of_root_may_be_readable_by_its_group() {
        let accepts =
            |mode, owner, user| accept_private(Path::new("secret"), mode, owner, user).is_ok();
        for mode in [0o400, 0o440, 0o600, 0o640] {
            assert!(accepts(mode, 0, 7400), "{mode:o}");
        }
        for mode in [0o444, 0o460, 0o450, 0o644, 0o604, 0o602, 0o601] {
            assert!(!accepts(mode, 0, 7400), "{mode:o}");
        }
        assert!(!accepts(0o440, 7400, 7400), "the file belongs to the user of the process");
        assert!(!accepts(0o440, 0, 0), "the process runs as root");
        assert!(!accepts(0o400, 1, 7400), "the file belongs to another user");
    }

    #[test]
    fn a_private_file_belongs_to_this_user_and_is_closed_to_others() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("secret");
        assert!(matches!(read_private(&path, 10), Err(FileError::Read { .. })));
        assert!(matches!(read_private(place.path(), 10), Err(FileError::Unlikely { .. })));
        fs::write(&path, "0123456789").unwrap();
        for mode in [0o640, 0o604, 0o620, 0o602, 0o601] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = read_private(&path, 10).unwrap_err();
            assert!(matches!(error, FileError::NotPrivate { .. }), "{mode:o}: {error}");
            assert!(error.to_string().contains(&format!("{mode:o}")), "{error}");
        }
        for mode in [0o600, 0o400] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_private(&path, 10).unwrap(), b"0123456789");
        }
        assert!(matches!(read_private(&path, 9), Err(FileError::Unlikely { .. })));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4_000_000), None).unwrap();
            assert!(matches!(
                read_private(&path, 10),
                Err(FileError::NotOurs { owner: 4_000_000, .. })
            ));
        }
    }
}
