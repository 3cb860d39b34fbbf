use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::own_directory::{self, Existence};

const LOGS: &str = "logs";

/// Removes the cluster's files when dropped.
#[derive(Debug)]
pub(super) struct Workplace {
    root: Root,
    logs: Logs,
    names: Vec<String>,
}

#[derive(Debug)]
enum Root {
    Temporary(TempDir),
    Given {
        path: PathBuf,
        existence: Existence,
        /// Lock of the logs' directory against other clusters.
        _lock: File,
    },
}

#[derive(Debug, PartialEq, Eq)]
enum Logs {
    Remove,
    Keep,
}

impl Workplace {
    pub(super) fn create(directory: Option<&Path>, names: Vec<String>) -> anyhow::Result<Self> {
        let root = match directory {
            None => {
                let directory = tempfile::Builder::new().prefix("hoplite-").tempdir();
                Root::Temporary(directory.context("cannot create a temporary directory")?)
            }
            Some(path) => {
                let create = || format!("cannot use the directory {}", path.display());
                let existence = own_directory::make(path)?;
                let logs = path.join(LOGS);
                own_directory::make(&logs)?;
                let lock = File::open(logs).with_context(create)?;
                flock(&lock, FlockOperation::NonBlockingLockExclusive).with_context(|| {
                    format!("another cluster uses the directory {}", path.display())
                })?;
                Root::Given {
                    path: fs::canonicalize(path).with_context(create)?,
                    existence,
                    _lock: lock,
                }
            }
        };
        let workplace = Self { root, logs: Logs::Remove, names };
        fs::create_dir_all(workplace.logs_path())
            .context("cannot create the directory of the logs")?;
        Ok(workplace)
    }

    pub(super) fn path(&self) -> &Path {
        match &self.root {
            Root::Temporary(directory) => directory.path(),
            Root::Given { path, .. } => path,
        }
    }

    pub(super) fn socket(&self, name: &str) -> PathBuf {
        self.path().join(format!("{name}.sock"))
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.logs_path().join(format!("{name}.log"))
    }

    fn logs_path(&self) -> PathBuf {
        self.path().join(LOGS)
    }

    pub(super) fn keep_logs(&mut self) {
        self.logs = Logs::Keep;
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let Root::Given { path, existence, .. } = &self.root else { return };
        for name in &self.names {
            let _ = fs::remove_file(self.socket(name));
            if self.logs == Logs::Remove {
                let _ = fs::remove_file(self.log(name));
            }
        }
        let _ = fs::remove_dir(self.logs_path());
        if *existence == Existence::Made {
            let _ = fs::remove_dir(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(directory: Option<&Path>) -> Workplace {
        let workplace = Workplace::create(directory, vec!["node-0".to_owned()]).unwrap();
        fs::write(workplace.log("node-0"), b"log").unwrap();
        fs::write(workplace.socket("node-0"), b"socket").unwrap();
        workplace
    }

    #[test]
    fn nothing_is_left_of_what_was_made() {
        let workplace = used(None);
        let path = workplace.path().to_owned();
        drop(workplace);
        assert!(!path.exists());

        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("made");
        drop(used(Some(&path)));
        assert!(!path.exists());
    }

    #[test]
    fn what_was_there_stays() {
        let given = tempfile::tempdir().unwrap();
        fs::write(given.path().join("mine"), b"x").unwrap();
        drop(used(Some(given.path())));
        let left: Vec<_> =
            fs::read_dir(given.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["mine"]);
    }

    #[test]
    fn links_are_not_followed() {
        let given = tempfile::tempdir().unwrap();
        let path = |name: &str| given.path().join(name);
        fs::create_dir(path("elsewhere")).unwrap();
        std::os::unix::fs::symlink(path("elsewhere"), path("logs")).unwrap();
        std::os::unix::fs::symlink(path("elsewhere"), path("link")).unwrap();
        for directory in [given.path(), &path("link")] {
            let refused = Workplace::create(Some(directory), Vec::new()).unwrap_err();
            assert!(refused.to_string().contains("symbolic link"), "{refused}");
        }
        assert_eq!(fs::read_dir(path("elsewhere")).unwrap().count(), 0);
    }

    #[test]
    fn two_clusters_do_not_share_a_directory() {
        let given = tempfile::tempdir().unwrap();
        let first = used(Some(given.path()));
        let refused = Workplace::create(Some(given.path()), vec!["node-0".to_owned()]).unwrap_err();
        assert!(refused.to_string().contains("another cluster"), "{refused}");
        assert!(first.socket("node-0").exists(), "the files of the first are left alone");
        drop(first);
        drop(used(Some(given.path())));
    }

    #[test]
    fn logs_stay_after_a_failure() {
        let given = tempfile::tempdir().unwrap();
        let mut workplace = used(Some(given.path()));
        workplace.keep_logs();
        drop(workplace);
        assert_eq!(fs::read(given.path().join("logs/node-0.log")).unwrap(), b"log");
        assert!(!given.path().join("node-0.sock").exists());
    }
}
