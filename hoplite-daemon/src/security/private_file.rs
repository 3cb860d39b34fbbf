//! Files that only their owner may have access to.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Permissions that the file may not give: any to its group, any to others.
const OTHERS: u32 = 0o077;

/// Why a file with a secret is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivateFileError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Others may have access to it.
    #[error("{} may be read or written by others than its owner (mode {mode:o}): chmod 600 it", path.display())]
    NotPrivate {
        /// Its path.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Another user owns it.
    #[error("{} belongs to user {owner}, and not to user {user}, who runs this process, or to root", path.display())]
    NotOurs {
        /// Its path.
        path: PathBuf,
        /// The user who owns it.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// It is no file, or a longer one than a secret would be in.
    #[error("{} is not a file of at most {limit_bytes} bytes", path.display())]
    Unlikely {
        /// Its path.
        path: PathBuf,
        /// How long it may be.
        limit_bytes: u64,
    },
}

/// Reads the file at `path`, which must belong to the user of this process or to root, and to which nobody else may have
/// access. Follows links: the permissions are those of the file that was opened.
pub(crate) fn read(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, PrivateFileError> {
    let failed = |source| PrivateFileError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() || found.len() > limit_bytes {
        return Err(PrivateFileError::Unlikely { path: path.to_owned(), limit_bytes });
    }
    let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != user && owner != 0 {
        return Err(PrivateFileError::NotOurs { path: path.to_owned(), owner, user });
    }
    let mode = found.mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(PrivateFileError::NotPrivate { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(limit_bytes).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_file_of_ours_that_nobody_else_may_touch_is_read() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("secret");
        assert!(matches!(read(&path, 10), Err(PrivateFileError::Read { .. })));
        assert!(matches!(read(place.path(), 10), Err(PrivateFileError::Unlikely { .. })));
        fs::write(&path, "0123456789").unwrap();
        for mode in [0o640, 0o604, 0o620, 0o602, 0o601] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = read(&path, 10).unwrap_err();
            assert!(matches!(error, PrivateFileError::NotPrivate { .. }), "{mode:o}: {error}");
            assert!(error.to_string().contains(&format!("{mode:o}")), "{error}");
        }
        for mode in [0o600, 0o400] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path, 10).unwrap(), b"0123456789");
        }
        assert!(matches!(read(&path, 9), Err(PrivateFileError::Unlikely { .. })));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4_000_000), None).unwrap();
            assert!(matches!(read(&path, 10), Err(PrivateFileError::NotOurs { owner: 4_000_000, .. })));
        }
    }
}
