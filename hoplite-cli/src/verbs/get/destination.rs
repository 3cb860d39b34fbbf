//! Standard output, or a file that appears only when complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, StdoutLock, Write};
use std::path::{Path, PathBuf};

const JUDGED_BYTES: usize = 4096;

/// Standard output. A terminal takes only text, unless the user named `-`.
#[derive(Debug)]
pub(in crate::verbs) struct Standard {
    out: StdoutLock<'static>,
    takes_text_only: bool,
}

impl Standard {
    pub(in crate::verbs) fn open(output: Option<&Path>) -> Self {
        let out = io::stdout().lock();
        let takes_text_only = output.is_none() && out.is_terminal();
        Self { out, takes_text_only }
    }
}

impl Write for Standard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.takes_text_only && !begins_as_text(bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, NotText));
        }
        self.takes_text_only = false;
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the object is not text, and this is a terminal: name a file with -o FILE, or insist with -o -"
)]
struct NotText;

/// Returns `true` if the leading bytes are UTF-8 without control characters.
fn begins_as_text(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(JUDGED_BYTES)];
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The limit of leading bytes may split a character.
        Err(error) if error.error_len().is_none() && start.len() < bytes.len() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'))
}

/// Removes the file if dropped before completion.
#[derive(Debug)]
pub(in crate::verbs) struct Destination {
    file: File,
    /// `None` for a pipe or device, written directly.
    rename: Option<Rename>,
}

#[derive(Debug)]
struct Rename {
    from: PathBuf,
    to: PathBuf,
}

pub(in crate::verbs) fn file(output: Option<&Path>) -> Option<&Path> {
    output.filter(|path| *path != Path::new("-"))
}

impl Destination {
    pub(in crate::verbs) fn create(path: &Path) -> io::Result<Self> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => {
                // A symbolic link stays; its target is replaced.
                let destination = Self::create_beside(&fs::canonicalize(path)?)?;
                destination.file.set_permissions(metadata.permissions())?;
                Ok(destination)
            }
            Ok(_) => Ok(Self { file: OpenOptions::new().write(true).open(path)?, rename: None }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create_beside(path),
            Err(error) => Err(error),
        }
    }

    fn create_beside(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
        let start: String = name.chars().take(40).collect();
        let from = path.with_file_name(format!(".{start}.hoplite-{}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&from)?;
        Ok(Self { file, rename: Some(Rename { from, to: path.to_owned() }) })
    }

    pub(in crate::verbs) fn complete(mut self) -> io::Result<()> {
        if let Some(Rename { from, to }) = &self.rename {
            fs::rename(from, to)?;
            self.rename = None;
        }
        Ok(())
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let Some(Rename { from, .. }) = &self.rename {
            let _ = fs::remove_file(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let mut destination = Destination::create(&path).unwrap();
        destination.write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(destination);
        assert_eq!(names(directory.path()), Vec::<String>::new());

        let mut destination = Destination::create(&path).unwrap();
        destination.write_all(b"whole").unwrap();
        destination.complete().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(names(directory.path()), ["out"]);
    }

    #[test]
    fn an_existing_file_stays_until_the_new_one_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let link = directory.path().join("link");
        fs::write(&path, b"old").unwrap();
        symlink(&path, &link).unwrap();
        let mut destination = Destination::create(&link).unwrap();
        destination.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        destination.complete().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(link.is_symlink());
    }

    #[test]
    fn text_is_told_from_other_bytes() {
        let long = "é".repeat(JUDGED_BYTES);
        assert!(
            begins_as_text(long.as_bytes()) && begins_as_text(&long.as_bytes()[..JUDGED_BYTES])
        );
        assert!(begins_as_text(format!("x{long}").as_bytes()), "the cut is within a character");
        assert!(begins_as_text(b"") && begins_as_text(b"1\t2\r\n"));
        assert!(
            !begins_as_text(b"\x00\x00\x80\x3f")
                && !begins_as_text(b"\x1b[2J")
                && !begins_as_text(b"\xff")
        );
    }

    #[test]
    fn devices_are_written_to_and_not_replaced() {
        let mut destination = Destination::create(Path::new("/dev/null")).unwrap();
        assert!(destination.rename.is_none());
        destination.write_all(b"nothing").unwrap();
        destination.complete().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_dash_is_standard_output_and_a_path_that_begins_with_one_is_a_file() {
        let file = |name: &'static str| file(Some(Path::new(name)));
        assert_eq!(super::file(None), None);
        assert_eq!(file("-"), None);
        assert_eq!(file("./-"), Some(Path::new("./-")));
        assert_eq!(file("-x"), Some(Path::new("-x")));
    }

    #[test]
    fn names_that_are_none_are_refused() {
        assert!(Destination::create(Path::new("/")).is_err());
        assert!(Destination::create(Path::new("/no/such/directory/out")).is_err());
    }
}
