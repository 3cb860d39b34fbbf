//! The log of a store's run beside its spill files: the cluster, the boot of the machine, and the
//! shards with which the store had sessions. The frames, in bytes:
//!
//! * run: kind (1), length of the boot's name (1), name, cluster
//! * shard: kind (1), run of the shard (8)

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use hoplite_core::ClusterId;
use hoplite_core::shard::ShardRun;

use super::frames::{self, Flaw, take_bytes};

const NAME: &str = "run.log";
const RUN: u8 = 16;
const SHARD: u8 = 17;
/// Longest log of a run. Each run of a shard takes 21 bytes in it.
const MAX_LOG_BYTES: u64 = 1 << 20;

/// Origin of a run. A run recovers only files of runs with the same origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    cluster: String,
    /// Empty if unknown. A crash of the machine may lose the latest noted deletions, so files of
    /// another boot are not recovered.
    boot: String,
}

impl Origin {
    pub(super) fn of(cluster: &ClusterId) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = boot.trim().chars().take(64).collect();
        Self { cluster: cluster.to_string(), boot }
    }

    fn check(&self, earlier: &Self) -> Result<(), Flaw> {
        if self.boot.is_empty() || self.boot != earlier.boot {
            return Err(Flaw::OtherBoot);
        }
        if self.cluster != earlier.cluster {
            return Err(Flaw::OtherCluster);
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct RunLog {
    path: PathBuf,
    noted: BTreeSet<ShardRun>,
}

impl RunLog {
    pub(super) fn begin(directory: &Path, origin: &Origin) -> io::Result<Self> {
        let path = directory.join(NAME);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        let mut content = vec![RUN, u8::try_from(origin.boot.len()).unwrap_or(u8::MAX)];
        content.extend(origin.boot.as_bytes());
        content.extend(origin.cluster.as_bytes());
        let mut log = Vec::new();
        frames::append(&mut log, &content);
        file.write_all(&log)?;
        Ok(Self { path, noted: BTreeSet::new() })
    }

    pub(super) fn remove(directory: &Path) {
        let _ = fs::remove_file(directory.join(NAME));
    }

    /// Notes runs of shards that had sessions with this store, or with a killed store whose files
    /// it takes over. A failure removes the log.
    pub(super) fn note(&mut self, runs: impl IntoIterator<Item = ShardRun>) -> io::Result<()> {
        let mut log = Vec::new();
        for run in runs.into_iter().filter(|run| self.noted.insert(*run)) {
            let mut content = vec![SHARD];
            content.extend(run.0.to_le_bytes());
            frames::append(&mut log, &content);
        }
        let written =
            File::options().append(true).open(&self.path).and_then(|mut file| file.write_all(&log));
        if written.is_err() {
            let _ = fs::remove_file(&self.path);
        }
        written
    }
}

pub(super) fn read(directory: &Path, origin: &Origin) -> Result<Vec<ShardRun>, Flaw> {
    let mut log = Vec::new();
    frames::open(&directory.join(NAME))?.take(MAX_LOG_BYTES + 1).read_to_end(&mut log)?;
    decode(&log, origin)
}

fn decode(mut log: &[u8], origin: &Origin) -> Result<Vec<ShardRun>, Flaw> {
    const DAMAGED: Flaw = Flaw::Damaged("the log of its store");
    if log.len() as u64 > MAX_LOG_BYTES {
        return Err(DAMAGED);
    }
    let mut content = frames::take(&mut log)?;
    let [RUN, boot_bytes] = take_bytes(&mut content).ok_or(DAMAGED)? else { return Err(DAMAGED) };
    let (boot, cluster) = content.split_at_checked(boot_bytes.into()).ok_or(DAMAGED)?;
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| DAMAGED);
    origin.check(&Origin { cluster: text(cluster)?, boot: text(boot)? })?;
    let mut runs = Vec::new();
    while !log.is_empty() {
        let mut content = frames::take(&mut log)?;
        let [SHARD] = take_bytes(&mut content).ok_or(DAMAGED)? else { return Err(DAMAGED) };
        let run = take_bytes(&mut content).filter(|_| content.is_empty()).ok_or(DAMAGED)?;
        runs.push(ShardRun(u64::from_le_bytes(run)));
    }
    Ok(runs)
}
