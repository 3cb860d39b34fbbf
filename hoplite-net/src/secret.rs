//! A user's secret: the default token of the user's programs on this machine.
//!
//! Without it, every user could connect to the daemons' loopback ports.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};
use rustix::fs::OFlags;

use super::challenge;
use super::file::{self, FileError};
use super::token::{Token, TokenError};

/// Hexadecimal digits: 256 bits.
const SECRET_DIGITS: usize = 64;
/// Room for the digits and white space.
const MAX_FILE_BYTES: u64 = 256;

/// Reason why the user's secret is unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SecretError {
    #[error(
        "this user has no home directory: set XDG_CONFIG_HOME, or name a token with --token-file"
    )]
    NoHome,
    #[error(
        "cannot create {}, the secret of this user: set XDG_CONFIG_HOME to a directory that this user may write, or name a \
         token with --token-file, or say --insecure if everybody on this machine may connect",
        path.display()
    )]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "others than user {user} may change {} (owner {owner}, mode {mode:o}): it must belong to user {user} or to root, and have \
         mode 700",
        path.display()
    )]
    Exposed {
        path: PathBuf,
        /// This process's user.
        user: u32,
        owner: u32,
        mode: u32,
    },
    #[error("{} does not contain {SECRET_DIGITS} hexadecimal digits: remove it, and a new one is made", path.display())]
    Damaged { path: PathBuf },
    #[error(transparent)]
    Token(#[from] TokenError),
}

pub(super) fn of_user() -> Result<(PathBuf, Token), SecretError> {
    let path = directory()?.join("hoplite").join("secret");
    let token = read_or_create(&path)?;
    Ok((path, token))
}

fn directory() -> Result<PathBuf, SecretError> {
    let named = |variable| {
        let path = std::env::var_os(variable).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    if let Some(path) = named("XDG_CONFIG_HOME") {
        return Ok(path);
    }
    let home = named("HOME").or_else(|| Some(User::from_uid(Uid::effective()).ok()??.dir));
    home.map(|home| home.join(".config")).ok_or(SecretError::NoHome)
}

fn read_or_create(path: &Path) -> Result<Token, SecretError> {
    let failed = |source| SecretError::Create { path: path.to_owned(), source };
    let directory = path.parent().unwrap_or(Path::new("/"));
    match fs::symlink_metadata(path) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
            check(directory).map_err(failed)??;
            create(path).map_err(failed)?;
        }
        Err(source) => return Err(FileError::Read { path: path.to_owned(), source }.into()),
    }
    check(directory).map_err(failed)??;
    let bytes = file::read_private(path, MAX_FILE_BYTES)?;
    let secret = bytes.trim_ascii();
    if secret.len() != SECRET_DIGITS || !secret.iter().all(u8::is_ascii_hexdigit) {
        return Err(SecretError::Damaged { path: path.to_owned() });
    }
    Ok(Token::new(secret)?)
}

fn check(directory: &Path) -> io::Result<Result<(), SecretError>> {
    let found = fs::metadata(directory)?;
    let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
    let mode = found.mode() & 0o7777;
    if (owner == user || owner == 0) && mode & 0o022 == 0 {
        return Ok(Ok(()));
    }
    Ok(Err(SecretError::Exposed { path: directory.to_owned(), user, owner, mode }))
}

fn create(path: &Path) -> io::Result<()> {
    let bytes = challenge::nonce()?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let unfinished = path.with_extension(format!("{}-{}", std::process::id(), &digits[..8]));
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let digits: String = challenge::nonce()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let linked = options.open(&unfinished).and_then(|mut file| {
        file.write_all(format!("{digits}\n").as_bytes())?;
        file.sync_all()?;
        fs::hard_link(&unfinished, path)
    });
    let _ = fs::remove_file(&unfinished);
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::thread;

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_secret_is_created_once_and_private_to_the_user() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new").join("hoplite").join("secret");
        let made = thread::scope(|scope| {
            let all: Vec<_> =
                (0..8).map(|_| scope.spawn(|| read_or_create(&path).map(drop))).collect();
            all.into_iter().all(|made| made.join().unwrap().is_ok())
        });
        assert!(made);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.trim().len(), SECRET_DIGITS);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(
            fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "nothing unfinished is left"
        );
        assert!(read_or_create(&path).unwrap().is_known_as(text.as_bytes()), "it is read again");
    }

    #[test]
    fn a_secret_file_with_open_permissions_or_invalid_content_is_refused() {
        let place = tempfile::tempdir().unwrap();
        mode(place.path(), 0o700);
        let path = place.path().join("secret");
        read_or_create(&path).unwrap();
        for wrong in [0o640, 0o604, 0o620] {
            mode(&path, wrong);
            let error = read_or_create(&path).unwrap_err();
            assert!(matches!(error, SecretError::File(FileError::NotPrivate { .. })), "{error}");
        }
        mode(&path, 0o600);
        mode(place.path(), 0o770);
        let error = read_or_create(&path).unwrap_err();
        assert!(matches!(error, SecretError::Exposed { mode: 0o770, .. }), "{error}");
        mode(place.path(), 0o700);
        for wrong in ["", "short", &"x".repeat(64), &"a".repeat(63), &"a".repeat(65)] {
            fs::write(&path, wrong).unwrap();
            let error = read_or_create(&path).unwrap_err();
            assert!(matches!(error, SecretError::Damaged { .. }), "{wrong}: {error}");
        }
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(4_000_000), None).unwrap();
            let error = read_or_create(&path).unwrap_err();
            assert!(matches!(error, SecretError::File(FileError::NotOurs { .. })), "{error}");
        }
    }

    #[test]
    fn an_unwritable_secret_path_names_the_setting() {
        let error = read_or_create(Path::new("/proc/nowhere/hoplite/secret")).unwrap_err();
        assert!(matches!(error, SecretError::Create { .. }), "{error:?}");
        assert!(error.to_string().contains("XDG_CONFIG_HOME"), "{error}");
    }
}
