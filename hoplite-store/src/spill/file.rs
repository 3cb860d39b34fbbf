//! The format of spill files.
//!
//! A file has a header, then one record after the other. Numbers are little-endian. In bytes:
//!
//! * header of the file: magic (8), version (4), CRC-32C of the rest (4), run, number (8 each),
//!   length of the node's name (1), name
//! * header of a record: magic (4), CRC-32C of the rest (4), copy, size of the object, zero (8
//!   each)
//! * the object
//! * checksums: CRC-32C of each block of the object (4 each), CRC-32C of this list (4)
//!
//! With `--recover`, an [`index`](super::index) for a later run follows the last record.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hoplite_core::checksum::crc32c;
use hoplite_core::id::NodeId;
use hoplite_core::node::{CopyId, RecoveredFile, SpillFault, SpillRecord};
use rustix::fs::{Advice, fadvise};
use tokio_util::sync::CancellationToken;

use super::frames::{self, Flaw, take_bytes, take_number};
use crate::copies::LiveCopy;

const FILE_MAGIC: &[u8; 8] = b"HOPSPILL";
const RECORD_MAGIC: &[u8; 4] = b"HREC";
const VERSION: u32 = 2;
/// Longest spill file that a later run recovers.
const MAX_FILE_BYTES: u64 = 1 << 44;
const FILE_HEADER_BYTES: usize = SpillRecord::FILE_HEADER_BYTES as usize;
const HEADER_BYTES: usize = SpillRecord::HEADER_BYTES as usize;
const BLOCK_BYTES: usize = SpillRecord::BLOCK_BYTES as usize;

#[derive(Debug)]
pub(crate) enum Source {
    Memory(Arc<LiveCopy>),
    Record(SpillRecord),
}

#[derive(Debug)]
pub(super) struct Owner {
    pub(super) node: NodeId,
    /// Random; differs between the runs of a store.
    pub(super) run: u64,
}

pub(super) type FileHeader = [u8; FILE_HEADER_BYTES];

/// The headers that each read checks.
#[derive(Debug)]
pub(super) struct Stamp {
    pub(super) file: FileHeader,
    /// `None` in the file of another run, whose copies have other numbers.
    pub(super) copy: Option<CopyId>,
}

impl Owner {
    pub(super) fn file_header(&self, number: u64) -> FileHeader {
        let mut header = [0; FILE_HEADER_BYTES];
        let name = self.node.as_str().as_bytes();
        header[..8].copy_from_slice(FILE_MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..24].copy_from_slice(&self.run.to_le_bytes());
        header[24..32].copy_from_slice(&number.to_le_bytes());
        header[32] = u8::try_from(name.len()).expect("a node's name has up to 63 bytes");
        header[33..33 + name.len()].copy_from_slice(name);
        let checksum = crc32c(&header[16..]);
        header[12..16].copy_from_slice(&checksum.to_le_bytes());
        header
    }
}

/// Returns the header of another run's file, the offset and size of each object, and the offset of
/// the index; or the file's flaw.
pub(super) fn read_headers(
    file: &File,
    length_bytes: u64,
) -> Result<(FileHeader, BTreeMap<u64, u64>, u64), Flaw> {
    if !(SpillRecord::FILE_HEADER_BYTES..=MAX_FILE_BYTES).contains(&length_bytes) {
        return Err(Flaw::Incomplete);
    }
    let mut header = [0; FILE_HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    if header[..8] != FILE_MAGIC[..] || header[12..16] != crc32c(&header[16..]).to_le_bytes() {
        return Err(Flaw::Damaged("the header of the file"));
    }
    if header[8..12] != VERSION.to_le_bytes() {
        return Err(Flaw::OtherVersion);
    }
    let (mut records, mut end) = (BTreeMap::new(), SpillRecord::FILE_HEADER_BYTES);
    loop {
        if length_bytes - end < SpillRecord::HEADER_BYTES {
            return Err(Flaw::Incomplete);
        }
        let mut record = [0; HEADER_BYTES];
        file.read_exact_at(&mut record, end)?;
        if record.starts_with(frames::MAGIC) {
            return Ok((header, records, end));
        }
        let (_, size_bytes) =
            read_record_header(&record).ok_or(Flaw::Damaged("the header of a record"))?;
        let offset_bytes = end;
        // The object must fit, so the sum does not overflow.
        if size_bytes > length_bytes {
            return Err(Flaw::Incomplete);
        }
        end += SpillRecord::length_bytes(size_bytes);
        if end > length_bytes || records.len() == RecoveredFile::MAX_OBJECTS {
            return Err(Flaw::Incomplete);
        }
        records.insert(offset_bytes, size_bytes);
    }
}

fn read_record_header(header: &[u8; HEADER_BYTES]) -> Option<(CopyId, u64)> {
    let mut rest = &header[..];
    let (magic, checksum) = (take_bytes(&mut rest)?, take_bytes(&mut rest)?);
    let is_correct = magic == *RECORD_MAGIC && checksum == crc32c(rest).to_le_bytes();
    let (copy, size_bytes) = (CopyId(take_number(&mut rest)?), take_number(&mut rest)?);
    is_correct.then_some((copy, size_bytes))
}

pub(super) fn record_header(copy: CopyId, size_bytes: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(RECORD_MAGIC);
    header[8..16].copy_from_slice(&copy.0.to_le_bytes());
    header[16..24].copy_from_slice(&size_bytes.to_le_bytes());
    let checksum = crc32c(&header[8..]);
    header[4..8].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Blocks until the file is on the disk.
pub(super) fn write(
    path: &Path,
    (owner, number): (&Owner, u64),
    copies: &[(CopyId, u64, Source)],
    old: impl Fn(SpillRecord, CopyId) -> (PathBuf, Stamp),
    stop: &CancellationToken,
) -> Result<(), SpillFault> {
    let fault = |error: io::Error| {
        let reason = format!("cannot write {}: {error}", path.display());
        match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => SpillFault::Full(reason),
            _ => SpillFault::Failed(reason),
        }
    };
    let file =
        File::options().write(true).create_new(true).mode(0o600).open(path).map_err(fault)?;
    let mut out = BufWriter::with_capacity(BLOCK_BYTES, file);
    out.write_all(&owner.file_header(number)).map_err(fault)?;
    let mut block = Vec::new();
    for (copy, size_bytes, source) in copies {
        let record = match source {
            Source::Memory(_) => None,
            Source::Record(record) => {
                let (path, stamp) = old(*record, *copy);
                Some(Record::open(path, &stamp, record.offset_bytes, *size_bytes).map_err(unread)?)
            }
        };
        out.write_all(&record_header(*copy, *size_bytes)).map_err(fault)?;
        let mut checksums = Vec::new();
        for (offset_bytes, length) in blocks(*size_bytes) {
            check_runs(stop)?;
            block.resize(length, 0);
            match (&record, source) {
                (None, Source::Memory(live)) => live.buffer().read(offset_bytes, &mut block),
                (Some(record), _) => record.read(offset_bytes, &mut block).map_err(unread)?,
                (None, Source::Record(_)) => {}
            }
            checksums.extend(crc32c(&block).to_le_bytes());
            out.write_all(&block).map_err(fault)?;
        }
        checksums.extend(crc32c(&checksums).to_le_bytes());
        out.write_all(&checksums).map_err(fault)?;
    }
    let file = out.into_inner().map_err(|error| fault(error.into_error()))?;
    file.sync_data().map_err(fault)?;
    // Otherwise the kernel would keep the bytes in memory, too.
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    Ok(())
}

pub(super) fn read(
    path: &Path,
    stamp: &Stamp,
    offset_bytes: u64,
    (live, has_read): (&LiveCopy, impl Fn()),
    stop: &CancellationToken,
) -> Result<(), SpillFault> {
    let record = Record::open(path.to_owned(), stamp, offset_bytes, live.size_bytes())?;
    let mut block = Vec::new();
    for (offset_bytes, length) in blocks(live.size_bytes()) {
        check_runs(stop)?;
        block.resize(length, 0);
        record.read(offset_bytes, &mut block)?;
        live.buffer().write(offset_bytes, &block);
        has_read();
    }
    Ok(())
}

fn check_runs(stop: &CancellationToken) -> Result<(), SpillFault> {
    if stop.is_cancelled() { Err(SpillFault::Failed("the store stops".to_owned())) } else { Ok(()) }
}

/// An open record whose headers and list of checksums were checked.
pub(super) struct Record {
    path: PathBuf,
    file: File,
    first_byte: u64,
    checksums: Vec<u8>,
}

impl Record {
    pub(super) fn open(
        path: PathBuf,
        stamp: &Stamp,
        offset_bytes: u64,
        size_bytes: u64,
    ) -> Result<Self, SpillFault> {
        let file = File::open(&path).map_err(|error| fault_of(&path, &error))?;
        let first_byte = offset_bytes + SpillRecord::HEADER_BYTES;
        let checksums = vec![0; 4 * (blocks(size_bytes).count() + 1)];
        let mut record = Self { path, file, first_byte, checksums };
        let mut header = [0; FILE_HEADER_BYTES];
        record.read_at(0, &mut header)?;
        if header != stamp.file {
            return Err(record.damaged("the header of another file"));
        }
        let mut header = [0; HEADER_BYTES];
        record.read_at(offset_bytes, &mut header)?;
        let is_expected = |(copy, size): (CopyId, u64)| {
            size == size_bytes && stamp.copy.is_none_or(|expected| expected == copy)
        };
        if !read_record_header(&header).is_some_and(is_expected) {
            return Err(record.damaged("another record where the object should be"));
        }
        let mut checksums = std::mem::take(&mut record.checksums);
        record.read_at(first_byte + size_bytes, &mut checksums)?;
        let own = checksums.split_off(checksums.len() - 4);
        if own != crc32c(&checksums).to_le_bytes() {
            return Err(record.damaged("damaged checksums"));
        }
        record.checksums = checksums;
        Ok(record)
    }

    pub(super) fn read(&self, offset_bytes: u64, block: &mut [u8]) -> Result<(), SpillFault> {
        self.read_at(self.first_byte + offset_bytes, block)?;
        let index = usize::try_from(offset_bytes / SpillRecord::BLOCK_BYTES).unwrap_or(usize::MAX);
        if self.checksums.chunks_exact(4).nth(index) != Some(&crc32c(block).to_le_bytes()[..]) {
            return Err(self.damaged("bytes that do not match their checksum"));
        }
        Ok(())
    }

    fn read_at(&self, offset_bytes: u64, out: &mut [u8]) -> Result<(), SpillFault> {
        self.file.read_exact_at(out, offset_bytes).map_err(|error| fault_of(&self.path, &error))
    }

    fn damaged(&self, what: &str) -> SpillFault {
        SpillFault::Damaged(format!("{} has {what}", self.path.display()))
    }
}

/// Distinguishes a failure to read a spilled object from a failure to write its new file.
fn unread(fault: SpillFault) -> SpillFault {
    match fault {
        SpillFault::Failed(reason) => SpillFault::Unread(reason),
        fault => fault,
    }
}

fn fault_of(path: &Path, error: &io::Error) -> SpillFault {
    match error.kind() {
        io::ErrorKind::NotFound => SpillFault::Damaged(format!("{} is gone", path.display())),
        io::ErrorKind::UnexpectedEof => {
            SpillFault::Damaged(format!("{} is truncated", path.display()))
        }
        _ => SpillFault::Failed(format!("cannot read {}: {error}", path.display())),
    }
}

fn blocks(size_bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let length = move |offset_bytes: u64| {
        usize::try_from(size_bytes - offset_bytes).unwrap_or(usize::MAX).min(BLOCK_BYTES)
    };
    (0..size_bytes)
        .step_by(BLOCK_BYTES)
        .map(move |offset_bytes| (offset_bytes, length(offset_bytes)))
}
