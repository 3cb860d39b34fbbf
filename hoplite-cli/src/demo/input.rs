use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use xxhash_rust::xxh3::Xxh3;

const SOURCES: [&str; 4] = ["/usr/lib", "/usr/bin", "/usr/share", "/usr/local"];
const PIECE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Input {
    pub(super) path: PathBuf,
    pub(super) description: String,
    pub(super) size_bytes: u64,
    pub(super) digest: Digest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest(u128);

impl Input {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let read = || format!("cannot read {}", path.display());
        let size_bytes = fs::metadata(path).with_context(read)?.len();
        let digest = Digest::of_file(path)?;
        Ok(Self {
            path: path.to_owned(),
            description: path.display().to_string(),
            size_bytes,
            digest,
        })
    }

    pub(super) fn collect(path: &Path, size_bytes: u64) -> anyhow::Result<Self> {
        let write = || format!("cannot write {}", path.display());
        let mut file = File::create(path).with_context(write)?;
        let mut collected = 0;
        let mut count = 0_u64;
        for source in files_below(&SOURCES.map(PathBuf::from)) {
            if collected >= size_bytes {
                break;
            }
            let Ok(source) = File::open(source) else { continue };
            let copied = io::copy(&mut source.take(size_bytes - collected), &mut file)
                .with_context(write)?;
            collected += copied;
            count += 1;
        }
        ensure!(collected > 0, "this machine has no files to share; choose one with --file");
        file.flush().with_context(write)?;
        let description =
            format!("{count} programs and libraries of this machine, one after the other");
        let digest = Digest::of_file(path)?;
        Ok(Self { path: path.to_owned(), description, size_bytes: collected, digest })
    }
}

fn files_below(roots: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    let mut waiting: Vec<PathBuf> = roots.iter().rev().cloned().collect();
    std::iter::from_fn(move || {
        loop {
            let path = waiting.pop()?;
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_file() {
                return Some(path);
            }
            if metadata.is_dir() {
                let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                let mut entries: Vec<_> = entries.map(|entry| entry.path()).collect();
                entries.sort();
                waiting.extend(entries.into_iter().rev());
            }
        }
    })
}

impl Digest {
    pub(super) fn of_file(path: &Path) -> anyhow::Result<Self> {
        let read = || format!("cannot read {}", path.display());
        let mut file = File::open(path).with_context(read)?;
        let mut hash = Xxh3::new();
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match file.read(&mut piece) {
                Ok(0) => return Ok(Self(hash.digest128())),
                Ok(length) => hash.update(&piece[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).with_context(read),
            }
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_in_order_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("b")).unwrap();
        for name in ["c", "a", "b/x"] {
            fs::write(path(name), name).unwrap();
        }
        std::os::unix::fs::symlink(directory.path(), path("b/loop")).unwrap();
        let found: Vec<_> = files_below(&[directory.path().to_owned()]).collect();
        assert_eq!(found, [path("a"), path("b/x"), path("c")]);
    }

    #[test]
    fn a_collected_file_has_the_size_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("input");
        let input = Input::collect(&path, 100_000).unwrap();
        assert_eq!(input.size_bytes, 100_000);
        assert_eq!(fs::metadata(&path).unwrap().len(), 100_000);
        let given = Input::read(&path).unwrap();
        assert_eq!(given.digest, input.digest);
        fs::write(&path, b"other").unwrap();
        assert_ne!(Digest::of_file(&path).unwrap(), input.digest);
    }
}
