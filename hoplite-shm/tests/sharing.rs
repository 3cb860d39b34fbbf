//! A store and its clients, as mappings in one process.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hoplite_shm::{Arena, Backing, Doorbell, Error, Extent, HEADER_BYTES, Mapping, State};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const TIME_LIMIT: Duration = Duration::from_secs(300);

struct Shared {
    arena: Arc<Arena>,
    reading: Arc<Mapping>,
    writing: Arc<Mapping>,
}

impl Shared {
    fn new(capacity_bytes: u64) -> Self {
        let arena = Arena::create(Backing::Pages, capacity_bytes).expect("an arena");
        let capacity_bytes = arena.capacity_bytes();
        let fd = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
        let reading =
            Mapping::read_only(fd(arena.read_only_fd()), capacity_bytes).expect("a mapping");
        let writing =
            Mapping::writable(fd(arena.writable_fd()), capacity_bytes).expect("a mapping");
        Self { arena, reading, writing }
    }
}

fn extent(offset_bytes: u64, size_bytes: u64) -> Extent {
    Extent { offset_bytes, length_bytes: (size_bytes + HEADER_BYTES).next_multiple_of(64) }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 % 251) as u8).collect()
}

#[test]
fn store_and_readers_see_the_writers_bytes() {
    let shared = Shared::new(16 * MIB);
    for size in [0, 1, 4095, 4096, 4097, 12_345, MIB - 1, MIB, 5 * MIB + 17] {
        let place = extent(64, size);
        let bytes = pattern(size as usize);
        let buffer = shared.arena.buffer(place, size).unwrap();
        buffer.initialise();
        let reader = shared.reading.reader(place, size).unwrap();
        assert_eq!(reader.as_slice().is_some(), size == 0);

        let mut writer = shared.writing.writer(place, size).unwrap();
        writer.write(&bytes, || panic!("the doorbell was not requested")).unwrap();
        let own = writer.finish().unwrap();
        assert_eq!(
            buffer.valid_bytes(),
            size.saturating_sub(1) / 4096 * 4096,
            "the seal publishes the rest"
        );
        assert_eq!((own.as_slice().is_some(), reader.state()), (size == 0, State::Open));
        buffer.set_complete();
        assert_eq!(buffer.valid_bytes(), size);
        assert_eq!(reader.state(), State::Complete);

        for reader in [&own, &reader] {
            assert!(reader.as_slice() == Some(&bytes), "{size} bytes");
            let mut copy = vec![0; bytes.len()];
            reader.copy_to(0, &mut copy).unwrap();
            assert!(copy == bytes, "{size} bytes");
        }
        assert_eq!(buffer.crc32c(0..size), hoplite_core::checksum::crc32c(&bytes));
    }
}

#[test]
fn progress_is_published_in_whole_blocks() {
    let shared = Shared::new(MIB);
    let place = extent(0, 8200);
    let buffer = shared.arena.buffer(place, 8200).unwrap();
    buffer.initialise();
    let reader = shared.reading.reader(place, 8200).unwrap();
    let mut writer = shared.writing.writer(place, 8200).unwrap();
    for (length, valid_bytes) in [(4095, 0), (1, 4096), (4097, 8192), (6, 8192), (1, 8192)] {
        writer.write(&pattern(length), || ()).unwrap();
        assert_eq!(reader.valid_bytes(), valid_bytes);
        assert_eq!(buffer.valid_bytes(), valid_bytes);
    }
}

#[test]
fn a_writer_publishes_the_last_block_of_no_object() {
    let shared = Shared::new(MIB);
    for (size, published) in [(1, 0), (4096, 0), (4097, 4096), (8192, 4096), (8193, 8192)] {
        let place = extent(0, size);
        let buffer = shared.arena.buffer(place, size).unwrap();
        buffer.initialise();
        let mut writer = shared.writing.writer(place, size).unwrap();
        let mut rings = 0;
        writer.write(&pattern(size as usize - 1), || rings += 1).unwrap();
        assert_eq!(buffer.want_doorbell(), published, "{size} bytes");
        writer.write(&[0], || rings += 1).unwrap();
        assert_eq!(
            (buffer.valid_bytes(), rings),
            (published, 0),
            "{size} bytes: nothing new, so no doorbell"
        );
        writer.finish().unwrap();
        assert_eq!(buffer.valid_bytes(), published, "{size} bytes");
    }
}

#[test]
fn reading_beyond_the_valid_bytes_is_refused() {
    let shared = Shared::new(MIB);
    let place = extent(0, 10_000);
    let buffer = shared.arena.buffer(place, 10_000).unwrap();
    buffer.initialise();
    buffer.write(0, &pattern(10_000));
    buffer.publish(8192);
    let reader = shared.reading.reader(place, 10_000).unwrap();
    let mut out = [0; 100];
    reader.copy_to(8092, &mut out).unwrap();
    assert!(out[..] == pattern(10_000)[8092..8192]);
    let error = reader.copy_to(8093, &mut out).unwrap_err();
    assert!(matches!(error, Error::NotValid { end_bytes: 8193, valid_bytes: 8192 }), "{error}");
    assert!(reader.copy_to(u64::MAX, &mut out).is_err());
    assert!(reader.as_slice().is_none());
    buffer.set_complete();
    assert!(reader.copy_to(9901, &mut out).is_err());
    assert!(reader.as_slice().is_some());
}

#[test]
fn writing_past_the_end_and_finishing_before_it_are_refused() {
    let shared = Shared::new(MIB);
    let place = extent(0, 10);
    shared.arena.buffer(place, 10).unwrap().initialise();
    let mut writer = shared.writing.writer(place, 10).unwrap();
    writer.write(b"123456", || ()).unwrap();
    let error = writer.write(b"12345", || ()).unwrap_err();
    assert!(matches!(error, Error::PastEnd { length_bytes: 5, remaining_bytes: 4 }), "{error}");
    assert!(writer.advance(5).is_err());
    let error = writer.finish().unwrap_err();
    assert!(matches!(error, Error::Unfinished { written_bytes: 6, size_bytes: 10 }), "{error}");
}

#[test]
fn an_object_can_be_written_through_its_address() {
    let shared = Shared::new(8 * MIB);
    let size = 3 * MIB + 1;
    let place = extent(128, size);
    let bytes = pattern(size as usize);
    let buffer = shared.arena.buffer(place, size).unwrap();
    buffer.initialise();
    let mut writer = shared.writing.writer(place, size).unwrap();
    for part in bytes.chunks(MIB as usize) {
        writer.prepare(part.len() as u64);
        let at = writer.as_mut_ptr().wrapping_add(writer.written_bytes() as usize);
        // SAFETY: the part fits behind the written bytes. Only this code accesses these bytes
        // before the advance.
        unsafe { at.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
        assert_eq!(writer.advance(part.len() as u64).unwrap(), Doorbell::Silent);
    }
    let reader = writer.finish().unwrap();
    buffer.set_complete();
    assert!(reader.as_slice() == Some(&bytes));
    // SAFETY: the object is complete and has at least one byte.
    assert_eq!(unsafe { *reader.as_ptr() }, bytes[0]);
}

#[test]
fn a_read_only_descriptor_gives_no_writable_mapping_and_no_writer() {
    let shared = Shared::new(MIB);
    let fd = || shared.arena.read_only_fd().try_clone_to_owned().unwrap();
    let error = Mapping::writable(fd(), MIB).unwrap_err();
    let Error::System { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(rustix::io::write(fd(), b"x").is_err());

    let place = extent(0, 1);
    shared.arena.buffer(place, 1).unwrap().initialise();
    assert!(matches!(shared.reading.writer(place, 1).unwrap_err(), Error::ReadOnly));
}

#[test]
fn a_mapping_longer_than_the_file_is_refused() {
    let shared = Shared::new(MIB);
    let fd = || shared.arena.read_only_fd().try_clone_to_owned().unwrap();
    let error = Mapping::read_only(fd(), MIB + 1).unwrap_err();
    assert!(
        matches!(error, Error::FileTooShort { needed_bytes, actual_bytes: MIB } if needed_bytes == MIB + 1),
        "{error}"
    );
    assert!(Mapping::read_only(fd(), u64::MAX).is_err());
    assert!(Mapping::read_only(fd(), 0).is_err());
}

#[test]
fn readers_and_writers_check_the_extent() {
    let shared = Shared::new(MIB);
    let place = extent(4096, 100);
    let length_bytes = place.length_bytes;
    assert!(shared.reading.reader(place, 100).is_ok());
    assert!(matches!(
        shared.writing.writer(place, length_bytes).unwrap_err(),
        Error::OutOfArena { .. }
    ));
    assert!(matches!(
        shared.reading.reader(extent(MIB, 100), 100).unwrap_err(),
        Error::OutOfArena { .. }
    ));
}

#[test]
fn a_forged_header_hides_no_valid_bytes() {
    let shared = Shared::new(MIB);
    let place = extent(0, 100);
    let buffer = shared.arena.buffer(place, 100).unwrap();
    buffer.initialise();
    buffer.write(0, &[7; 100]);
    buffer.set_complete();
    rustix::io::pwrite(shared.arena.writable_fd(), &[0; 64], 0).unwrap();
    let mut reader = shared.reading.reader(place, 100).unwrap();
    assert_eq!((reader.valid_bytes(), reader.as_slice()), (0, None));
    reader.confirm(40);
    assert!(reader.as_slice().is_none());
    reader.copy_to(0, &mut [0; 40]).unwrap();
    reader.confirm(u64::MAX);
    reader.confirm(1);
    assert_eq!(reader.as_slice(), Some(&[7; 100][..]));
}

#[test]
fn a_corrupt_header_cannot_make_readers_leave_the_object() {
    let shared = Shared::new(MIB);
    let place = extent(0, 100);
    let buffer = shared.arena.buffer(place, 100).unwrap();
    buffer.initialise();
    let reader = shared.reading.reader(place, 100).unwrap();
    rustix::io::pwrite(shared.arena.writable_fd(), &u64::MAX.to_ne_bytes(), 16).unwrap();
    assert_eq!(reader.valid_bytes(), 100);
    assert_eq!(buffer.valid_bytes(), 100);
    assert_eq!(buffer.want_doorbell(), 100);
    assert_eq!(reader.as_slice().unwrap().len(), 100);
    rustix::io::pwrite(shared.arena.writable_fd(), &77_u32.to_ne_bytes(), 28).unwrap();
    assert_eq!((reader.state(), buffer.state()), (State::Failed, State::Failed));
}

#[test]
fn the_doorbell_rings_once_per_request() {
    let shared = Shared::new(8 * MIB);
    let size = 4 * MIB;
    let place = extent(0, size);
    let buffer = shared.arena.buffer(place, size).unwrap();
    buffer.initialise();
    let mut writer = shared.writing.writer(place, size).unwrap();
    let bytes = pattern(size as usize);
    let mut rings = 0;
    writer.write(&bytes[..10], || rings += 1).unwrap();
    assert_eq!(buffer.want_doorbell(), 0);
    writer.write(&bytes[10..20], || rings += 1).unwrap();
    assert_eq!(rings, 0, "nothing was published");
    writer.write(&bytes[20..MIB as usize * 3], || rings += 1).unwrap();
    assert_eq!(rings, 1);
    assert_eq!(buffer.want_doorbell(), 3 * MIB);
    let mut valid = Vec::new();
    writer.write(&bytes[MIB as usize * 3..], || valid.push(buffer.want_doorbell())).unwrap();
    assert_eq!(valid, [4 * MIB - 4096]);
}

#[test]
fn no_doorbell_is_lost_between_threads() {
    const BLOCKS: u64 = 20_000;
    let size = BLOCKS * 4096;
    let shared = Shared::new(size + MIB);
    let place = extent(0, size);
    let buffer = shared.arena.buffer(place, size).unwrap();
    shared.arena.prefault(|_| ControlFlow::Continue(())).unwrap();
    for _ in 0..5 {
        buffer.initialise();
        let (ring, doorbell) = mpsc::channel();
        let mut writer = shared.writing.writer(place, size).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for block in 0..BLOCKS {
                    let bytes = [(block % 251) as u8; 4096];
                    writer
                        .write(&bytes, || ring.send(()).expect("the store listens until the end"))
                        .unwrap();
                }
            });
            let mut seen = 0;
            while seen < size - 4096 {
                let valid_bytes = buffer.want_doorbell();
                if valid_bytes > seen {
                    let mut last = [0];
                    buffer.read(valid_bytes - 1, &mut last);
                    assert_eq!(u64::from(last[0]), (valid_bytes / 4096 - 1) % 251);
                    seen = valid_bytes;
                } else {
                    doorbell
                        .recv()
                        .expect("the writer rings before it ends, or all is valid already");
                }
            }
        });
    }
}

#[test]
fn readers_see_the_bytes_that_progress_promises() {
    let size = 64 * MIB + 5;
    let shared = Shared::new(size + MIB);
    let place = extent(0, size);
    let bytes = pattern(size as usize);
    let buffer = shared.arena.buffer(place, size).unwrap();
    buffer.initialise();
    let reader = shared.reading.reader(place, size).unwrap();
    let mut writer = shared.writing.writer(place, size).unwrap();
    let mut copy = vec![0; bytes.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.write(&bytes, || ()).unwrap();
            buffer.set_complete();
        });
        let (mut done, began) = (0, Instant::now());
        while done < size {
            assert!(began.elapsed() < TIME_LIMIT, "{done} bytes have been written");
            let valid_bytes = reader.valid_bytes();
            reader.copy_to(done, &mut copy[done as usize..valid_bytes as usize]).unwrap();
            done = valid_bytes;
        }
    });
    assert!(copy == bytes);
    assert!(reader.as_slice() == Some(&bytes));
}

#[test]
fn prefaulting_keeps_the_bytes_of_a_concurrent_writer() {
    let size = 48 * MIB;
    let shared = Shared::new(size + MIB);
    let place = extent(0, size);
    let bytes = pattern(size as usize);
    shared.arena.buffer(place, size).unwrap().initialise();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for _ in 0..3 {
                let buffer = shared.arena.buffer(place, size).unwrap();
                buffer.initialise();
                let mut writer = shared.writing.writer(place, size).unwrap();
                writer.write(&bytes, || ()).unwrap();
                let reader = writer.finish().unwrap();
                buffer.set_complete();
                assert!(reader.as_slice() == Some(&bytes));
            }
        });
        while !writing.is_finished() {
            shared.arena.prefault(|_| ControlFlow::Continue(())).unwrap();
            shared.writing.populate(|_| ControlFlow::Continue(()));
            shared.reading.populate(|_| ControlFlow::Continue(()));
        }
    });
}

#[test]
fn memory_outlives_the_arena_as_long_as_it_is_used() {
    let shared = Shared::new(MIB);
    let place = extent(0, 5);
    let buffer = shared.arena.buffer(place, 5).unwrap();
    buffer.initialise();
    buffer.write(0, b"bytes");
    buffer.set_complete();
    let reader = shared.reading.reader(place, 5).unwrap();
    drop(shared);
    drop(buffer);
    assert_eq!(reader.as_slice(), Some(&b"bytes"[..]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_of_the_writes_gives_the_same_object(
        size in 0_usize..300_000,
        offset in 0_u64..1000,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let shared = Shared::new(MIB);
        let place = extent(offset * 64, size as u64);
        let bytes = pattern(size);
        let buffer = shared.arena.buffer(place, size as u64).unwrap();
        buffer.initialise();
        let mut writer = shared.writing.writer(place, size as u64).unwrap();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(size + 1)).chain([0, size]).collect();
        cuts.sort();
        for pair in cuts.windows(2) {
            writer.write(&bytes[pair[0]..pair[1]], || ()).unwrap();
        }
        writer.finish().unwrap();
        buffer.set_complete();
        prop_assert!(shared.reading.reader(place, size as u64).unwrap().as_slice() == Some(&bytes));
    }
}
