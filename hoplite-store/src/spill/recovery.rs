//! Takes over the complete files of killed stores.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use hoplite_core::node::{Recovered, RecoveredFile, SpillFile};

use super::directory::{RunDirectory, SpillDirError};
use super::file::{self, FileHeader};
use super::frames::{self, Flaw};
use super::index::{self, BootTime};
use super::run_log::{self, Origin};

/// Longest index, with an entry for each object and for its removal.
const MAX_INDEX_BYTES: u64 = 32 << 20;

#[derive(Debug, Default)]
pub(super) struct Takeover {
    pub(super) recovered: Recovered,
    pub(super) headers: BTreeMap<SpillFile, Box<FileHeader>>,
    pub(super) indexed: BTreeMap<SpillFile, u64>,
    objects: usize,
    bytes: u64,
    dropped_files: u64,
}

impl Takeover {
    /// Moves the complete files of an ended run to `own`, this run's directory with the index
    /// `directory`. Keeps files that it cannot read or move.
    pub(super) fn take(
        &mut self,
        earlier: &Path,
        (directory, own): (usize, &RunDirectory),
        origin: &Origin,
        max_objects: usize,
    ) -> Result<(), SpillDirError> {
        let failed = |error| own.unusable(error);
        let runs = match check_private(earlier).and_then(|()| run_log::read(earlier, origin)) {
            Ok(runs) => runs,
            Err(flaw) => {
                if let Some(error) = flaw.disk_error() {
                    return Err(failed(error));
                }
                tracing::warn!(path = %earlier.display(), %flaw, "cannot recover the spill files of a store");
                return Ok(());
            }
        };
        own.note_shards(runs.iter().copied()).map_err(failed)?;
        self.recovered.runs.extend(runs);
        for entry in fs::read_dir(earlier).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "spill") {
                continue;
            }
            let room = max_objects.saturating_sub(self.objects);
            if let Err(flaw) = self.take_file(&path, (directory, own), room) {
                if let Some(error) = flaw.disk_error() {
                    return Err(failed(error));
                }
                self.dropped_files += 1;
                tracing::warn!(path = %path.display(), %flaw, "dropping a spill file");
            }
        }
        Ok(())
    }

    fn take_file(
        &mut self,
        path: &Path,
        (directory, own): (usize, &RunDirectory),
        room: usize,
    ) -> Result<(), Flaw> {
        let (header, found, start) = read_file(path)?;
        if found.len() > room {
            return Err(Flaw::TooManyObjects);
        }
        let number = RecoveredFile::FIRST_NUMBER + self.recovered.files.len() as u64;
        let file = SpillFile { directory, number };
        own.keep(true);
        fs::rename(path, own.path_of(number))?;
        self.objects += found.len();
        let sizes = found.iter().map(|object| object.size_bytes);
        self.bytes = sizes.fold(self.bytes, u64::saturating_add);
        self.headers.insert(file, Box::new(header));
        self.indexed.insert(file, start);
        self.recovered.files.push(RecoveredFile { file, length_bytes: start, objects: found });
        Ok(())
    }

    pub(super) fn report(&self) {
        let (files, dropped_files) = (self.recovered.files.len(), self.dropped_files);
        if files > 0 || dropped_files > 0 {
            let (objects, bytes) = (self.objects, self.bytes);
            tracing::info!(
                files,
                objects,
                bytes,
                dropped_files,
                "took over the spill files of killed stores"
            );
        }
    }
}

fn check_private(directory: &Path) -> Result<(), Flaw> {
    let mode = fs::symlink_metadata(directory)?.mode();
    if mode & 0o077 == 0 { Ok(()) } else { Err(Flaw::NotPrivate) }
}

type Objects = Vec<hoplite_core::node::SpilledObject>;

/// Returns the header, the objects, and the offset of the index.
pub(super) fn read_file(path: &Path) -> Result<(FileHeader, Objects, u64), Flaw> {
    let file = frames::open(path)?;
    let length_bytes = file.metadata()?.len();
    let (header, records, start) = file::read_headers(&file, length_bytes)?;
    let index_bytes = length_bytes - start;
    if index_bytes > MAX_INDEX_BYTES {
        return Err(Flaw::Damaged("an index that is too long"));
    }
    let mut log = vec![0; usize::try_from(index_bytes).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut log, start)?;
    Ok((header, index::decode(&log, &records, BootTime::now())?, start))
}

#[cfg(test)]
mod tests {
    use hoplite_core::id::{NodeId, ObjectId, PutId};
    use hoplite_core::node::{CopyId, SpillRecord, SpilledObject};
    use hoplite_core::{ClusterId, Metadata};

    use super::super::file::{Owner, record_header};
    use super::*;

    fn sample() -> (Vec<u8>, Vec<std::ops::Range<usize>>) {
        let owner = Owner { node: NodeId::new("node").unwrap(), run: 1 };
        let mut bytes = owner.file_header(7).to_vec();
        let (mut objects, mut contents) = (Vec::new(), Vec::new());
        for (number, size_bytes) in [(1, 3), (2, 5)] {
            let offset_bytes = bytes.len() as u64;
            bytes.extend(record_header(CopyId(number), size_bytes));
            let start = bytes.len();
            let record_end = offset_bytes + SpillRecord::length_bytes(size_bytes);
            bytes.resize(usize::try_from(record_end).unwrap(), 9);
            contents.push(start..bytes.len());
            objects.push(SpilledObject {
                offset_bytes,
                id: ObjectId::new(number.to_le_bytes()).unwrap(),
                put: PutId(number),
                size_bytes,
                metadata: Metadata::default(),
                ends_in: None,
                ends_with_owner: false,
            });
        }
        bytes.extend(index::encode(&objects, BootTime(0)));
        (bytes, contents)
    }

    fn read(bytes: &[u8]) -> Result<usize, Flaw> {
        let place = tempfile::NamedTempFile::new().unwrap();
        fs::write(place.path(), bytes).unwrap();
        read_file(place.path()).map(|(_, objects, _)| objects.len())
    }

    #[test]
    fn a_file_is_complete_to_its_last_byte() {
        let (bytes, _) = sample();
        assert_eq!(read(&bytes), Ok(2));
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert!(read(&[&bytes[..], b"x"].concat()).is_err());
    }

    #[test]
    fn each_flipped_byte_outside_of_the_objects_is_found() {
        let (mut bytes, contents) = sample();
        for position in 0..bytes.len() {
            bytes[position] ^= 0x20;
            let is_content = contents.iter().any(|range| range.contains(&position));
            assert_eq!(read(&bytes).is_ok(), is_content, "byte {position}");
            bytes[position] ^= 0x20;
        }
    }

    #[test]
    fn hostile_sizes_are_refused() {
        let (bytes, _) = sample();
        for size_bytes in [4, 1 << 30, u64::MAX / 2, u64::MAX - 31, u64::MAX] {
            let mut bytes = bytes.clone();
            bytes[128..160].copy_from_slice(&record_header(CopyId(1), size_bytes));
            assert!(read(&bytes).is_err(), "{size_bytes}");
        }
        let mut newer = bytes;
        newer[8] = 3;
        assert_eq!(read(&newer), Err(Flaw::OtherVersion));
    }

    #[test]
    fn links_and_folders_are_not_read() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), sample().0).unwrap();
        std::os::unix::fs::symlink("file", place.path().join("link")).unwrap();
        assert!(read_file(&place.path().join("file")).is_ok());
        assert!(matches!(read_file(&place.path().join("link")), Err(Flaw::Unread { .. })));
        assert!(matches!(read_file(place.path()), Err(Flaw::Unread { .. })));
    }

    #[test]
    fn a_run_of_another_cluster_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let origin = Origin::of(&ClusterId::new("one").unwrap());
        let mut log = run_log::RunLog::begin(place.path(), &origin).unwrap();
        let runs = [1, 2].map(hoplite_core::shard::ShardRun);
        log.note(runs.into_iter().chain(runs)).unwrap();
        assert_eq!(run_log::read(place.path(), &origin), Ok(runs.to_vec()));
        let other = Origin::of(&ClusterId::new("other").unwrap());
        assert_eq!(run_log::read(place.path(), &other), Err(Flaw::OtherCluster));
        let path = place.path().join("run.log");
        let mut bytes = fs::read(&path).unwrap();
        let whole = bytes.len();
        for length in (0..whole).filter(|length| ![whole - 21, whole - 42].contains(length)) {
            fs::write(&path, &bytes[..length]).unwrap();
            assert!(run_log::read(place.path(), &origin).is_err(), "{length} bytes");
        }
        for position in 0..whole {
            bytes[position] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert!(run_log::read(place.path(), &origin).is_err(), "byte {position}");
            bytes[position] ^= 1;
        }
    }
}
