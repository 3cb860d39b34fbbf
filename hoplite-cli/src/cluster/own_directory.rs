use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use hoplite_proto::socket_place::{TrustedUsers, check_directory};
use rustix::process::geteuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existence {
    Before,
    Made,
}

pub(super) fn make(directory: &Path) -> anyhow::Result<Existence> {
    let existence = match fs::symlink_metadata(directory) {
        Ok(_) => Existence::Before,
        Err(_) => {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.with_context(|| cannot_use(directory))?;
            Existence::Made
        }
    };
    check(directory)?;
    Ok(existence)
}

/// Refuses a directory that another user could replace: its files could be links.
pub(super) fn check(directory: &Path) -> anyhow::Result<()> {
    let found = fs::symlink_metadata(directory).with_context(|| cannot_use(directory))?;
    if found.is_symlink() {
        bail!("{} is a symbolic link: name the directory itself", directory.display());
    }
    ensure!(found.is_dir(), "{} is not a directory", directory.display());
    ensure!(
        found.uid() == geteuid().as_raw(),
        "{} belongs to user {}: use a directory of your own, or run this as that user",
        directory.display(),
        found.uid()
    );
    // Sticky directories too: other users can create files there first.
    ensure!(
        found.mode() & 0o022 == 0,
        "other users may write to {} (mode {:o}): chmod 700 it, or use another directory",
        directory.display(),
        found.mode() & 0o7777
    );
    check_directory(directory, &TrustedUsers::from_environment())
        .with_context(|| cannot_use(directory))
}

fn cannot_use(directory: &Path) -> String {
    format!("cannot use the directory {}", directory.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn links_and_directories_of_other_users_are_not_entered() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let refusal = |name: &str| format!("{:#}", make(&path(name)).unwrap_err());
        assert_eq!(make(&path("a/b")).unwrap(), Existence::Made);
        for made in ["a", "a/b"] {
            assert_eq!(fs::metadata(path(made)).unwrap().mode() & 0o777, 0o700);
        }
        assert_eq!(make(&path("a/b")).unwrap(), Existence::Before);
        symlink(path("a/b"), path("link")).unwrap();
        assert!(refusal("link").contains("symbolic link"), "{}", refusal("link"));
        symlink(path("nowhere"), path("dangling")).unwrap();
        assert!(refusal("dangling").contains("symbolic link"), "{}", refusal("dangling"));
        assert!(!path("nowhere").exists());
        fs::set_permissions(path("a"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refusal("a/b").contains("other users may write to"), "{}", refusal("a/b"));
        for shared in [0o1777, 0o770, 0o720] {
            assert_eq!(make(&path("shared")).unwrap(), Existence::Made);
            fs::set_permissions(path("shared"), fs::Permissions::from_mode(shared)).unwrap();
            assert!(
                refusal("shared").contains("other users may write to"),
                "{}",
                refusal("shared")
            );
            fs::remove_dir(path("shared")).unwrap();
        }
        fs::write(path("file"), "").unwrap();
        assert!(refusal("file").contains("file is not a directory"), "{}", refusal("file"));
        if geteuid().is_root() {
            chown(path("a/b"), Some(12345), None).unwrap();
            assert!(refusal("a/b").contains("belongs to user 12345"), "{}", refusal("a/b"));
        }
    }
}
