//! A file that is there when it is complete, or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where an object is written to. Dropped before it is complete, it leaves nothing behind.
#[derive(Debug)]
pub(in crate::verbs) struct Destination {
    file: File,
    /// The name until it is complete, and the one afterwards; `None` for what cannot be replaced, such as a pipe.
    rename: Option<Rename>,
}

#[derive(Debug)]
struct Rename {
    from: PathBuf,
    to: PathBuf,
}

/// Returns the file that `--output` names; `None` for standard output, which `-` stands for.
pub(in crate::verbs) fn file(output: Option<PathBuf>) -> Option<PathBuf> {
    output.filter(|path| path != Path::new("-"))
}

impl Destination {
    pub(in crate::verbs) fn create(path: &Path) -> io::Result<Self> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => {
                // A link stays a link: what it points to is replaced.
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
        // Names have at most 255 bytes.
        let start: String = name.chars().take(40).collect();
        let from = path.with_file_name(format!(".{start}.hoplite-{}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&from)?;
        Ok(Self { file, rename: Some(Rename { from, to: path.to_owned() }) })
    }

    /// Gives the file its name.
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
    fn devices_are_written_to_and_not_replaced() {
        let mut destination = Destination::create(Path::new("/dev/null")).unwrap();
        assert!(destination.rename.is_none());
        destination.write_all(b"nothing").unwrap();
        destination.complete().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_dash_is_standard_output_and_a_path_that_begins_with_one_is_a_file() {
        assert_eq!(file(None), None);
        assert_eq!(file(Some("-".into())), None);
        assert_eq!(file(Some("./-".into())), Some("./-".into()));
        assert_eq!(file(Some("-x".into())), Some("-x".into()));
    }

    #[test]
    fn names_that_are_none_are_refused() {
        assert!(Destination::create(Path::new("/")).is_err());
        assert!(Destination::create(Path::new("/no/such/directory/out")).is_err());
    }
}
