//! The store's side on its own: creating, faulting in, bounds, sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use hoplite_shm::{Arena, Backing, Error, Extent, HEADER_BYTES, Mapping, State};

const MIB: u64 = 1 << 20;

fn extent(offset_bytes: u64, size_bytes: u64) -> Extent {
    Extent { offset_bytes, length_bytes: (size_bytes + HEADER_BYTES).next_multiple_of(64) }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 % 251) as u8).collect()
}

fn path_in_memory(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/hoplite-shm-test-{}-{name}", std::process::id()))
}

#[test]
fn the_capacity_is_rounded_down_to_pages() {
    assert_eq!(Arena::create(Backing::Memfd, MIB + 4095).unwrap().capacity_bytes(), MIB);
    let error = Arena::create(Backing::Memfd, 4095).unwrap_err();
    assert!(matches!(error, Error::CapacityTooSmall { capacity_bytes: 4095, page_bytes: 4096 }), "{error}");
}

#[test]
fn more_than_the_machine_has_is_refused_with_both_numbers() {
    let error = Arena::create(Backing::Memfd, 1 << 46).unwrap_err();
    let Error::NotEnoughMemory { needed_bytes, available_bytes } = error else { panic!("{error}") };
    assert_eq!(needed_bytes, 1 << 46);
    assert!(available_bytes > 0 && available_bytes < needed_bytes);

    let error = Arena::create(Backing::File(path_in_memory("huge")), 1 << 46).unwrap_err();
    assert!(matches!(error, Error::NotEnoughMemory { .. }), "{error}");
    assert!(!path_in_memory("huge").exists());
}

#[test]
fn a_memfd_cannot_be_resized() {
    let arena = Arena::create(Backing::Memfd, MIB).unwrap();
    assert!(rustix::fs::ftruncate(arena.writable_fd(), 2 * MIB).is_err());
    assert!(rustix::fs::ftruncate(arena.writable_fd(), 4096).is_err());
}

#[test]
fn a_file_replaces_a_leftover_and_leaves_none() {
    let path = path_in_memory("leftover");
    std::fs::write(&path, b"of a store that was killed").unwrap();
    let arena = Arena::create(Backing::File(path.clone()), MIB).unwrap();
    assert!(!path.exists());
    assert_eq!(arena.capacity_bytes(), MIB);
    let buffer = arena.buffer(extent(0, 5), 5).unwrap();
    buffer.initialise();
    buffer.write(0, b"bytes");
    buffer.set_complete();
    let mapping = Mapping::read_only(arena.read_only_fd().try_clone_to_owned().unwrap(), MIB).unwrap();
    assert_eq!(mapping.reader(extent(0, 5), 5).unwrap().as_slice(), Some(&b"bytes"[..]));
}

#[test]
fn a_file_that_cannot_be_made_says_which_and_why() {
    let missing = path_in_memory("no-such-directory").join("arena");
    let error = Arena::create(Backing::File(missing.clone()), MIB).unwrap_err();
    let Error::File { operation: "create", path, source } = error else { panic!("{error}") };
    assert_eq!(path, missing);
    assert_eq!(source.kind(), ErrorKind::NotFound);

    let directory = path_in_memory("directory");
    std::fs::create_dir(&directory).unwrap();
    let error = Arena::create(Backing::File(directory.clone()), MIB).unwrap_err();
    std::fs::remove_dir(&directory).unwrap();
    assert!(matches!(error, Error::File { .. }), "{error}");
    let error = Arena::create(Backing::File(PathBuf::from("/proc/self/status")), MIB).unwrap_err();
    assert!(matches!(error, Error::NotInMemory { .. }), "{error}");
}

#[test]
fn prefaulting_reports_progress_stops_when_told_and_keeps_the_bytes() {
    let arena = Arena::create(Backing::Memfd, 80 * MIB).unwrap();
    let bytes = pattern(10_000);
    let buffer = arena.buffer(extent(40 * MIB, 10_000), 10_000).unwrap();
    buffer.write(0, &bytes);

    let mut steps = Vec::new();
    arena
        .prefault(|done| {
            steps.push(done / MIB);
            if done < 64 * MIB { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .unwrap();
    assert_eq!(steps, [32, 64]);
    let resident_blocks = rustix::fs::fstat(arena.writable_fd()).unwrap().st_blocks as u64;
    assert!(resident_blocks * 512 >= 64 * MIB && resident_blocks * 512 < 80 * MIB);

    steps.clear();
    arena
        .prefault(|done| {
            steps.push(done / MIB);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(steps, [32, 64, 80]);
    assert_eq!(rustix::fs::fstat(arena.writable_fd()).unwrap().st_blocks as u64 * 512, 80 * MIB);
    let mut read = vec![0; 10_000];
    buffer.read(0, &mut read);
    assert!(read == bytes);
}

#[test]
fn extents_outside_of_the_arena_are_refused() {
    let arena = Arena::create(Backing::Memfd, MIB).unwrap();
    for (offset_bytes, length_bytes, size_bytes) in [
        (MIB, 64, 0),
        (0, MIB + 64, 0),
        (0, 128, 65),
        (8, 128, 8),
        (u64::MAX - 63, 128, 8),
        (0, 64, u64::MAX),
    ] {
        let error = arena.buffer(Extent { offset_bytes, length_bytes }, size_bytes).unwrap_err();
        assert!(matches!(error, Error::OutOfArena { .. }), "{error}");
    }
    assert!(arena.buffer(Extent { offset_bytes: 0, length_bytes: MIB }, MIB - 64).is_ok());
}

#[test]
fn checksums_and_chunks_cover_any_range() {
    let arena = Arena::create(Backing::Memfd, MIB).unwrap();
    let bytes = pattern(100_001);
    let buffer = arena.buffer(extent(64, 100_001), 100_001).unwrap();
    buffer.initialise();
    buffer.write(0, &bytes);
    for range in [0..0, 7..8, 0..100_001, 1..16_385, 3..16_387, 16_384..32_768, 99_999..100_001] {
        let expected = &bytes[range.start as usize..range.end as usize];
        assert_eq!(buffer.crc32c(range.clone()), hoplite_core::checksum::crc32c(expected), "{range:?}");
        let mut joined = Vec::new();
        buffer.for_each_chunk(range, |chunk| joined.extend_from_slice(chunk));
        assert!(joined == expected);
    }
}

#[test]
#[should_panic(expected = "of an object of 10 bytes")]
fn writing_past_an_object_panics() {
    let arena = Arena::create(Backing::Memfd, MIB).unwrap();
    arena.buffer(extent(0, 10), 10).unwrap().write(5, &[0; 6]);
}

#[test]
fn ends_are_final_and_initialising_starts_over() {
    let arena = Arena::create(Backing::Memfd, MIB).unwrap();
    let buffer = arena.buffer(extent(0, 10), 10).unwrap();
    buffer.initialise();
    buffer.publish(4);
    buffer.set_failed();
    assert_eq!((buffer.valid_bytes(), buffer.state()), (4, State::Failed));
    buffer.initialise();
    assert_eq!((buffer.valid_bytes(), buffer.state()), (0, State::Open));
    buffer.set_complete();
    assert_eq!((buffer.valid_bytes(), buffer.state()), (10, State::Complete));
    buffer.set_failed();
    assert_eq!(buffer.state(), State::Complete);
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let one = listener.local_addr().and_then(TcpStream::connect).expect("a connection");
    (one, listener.accept().expect("a connection").0)
}

#[test]
fn an_object_goes_from_arena_to_arena_through_a_socket() {
    let arena = Arena::create(Backing::Memfd, 16 * MIB).unwrap();
    let size = 5 * MIB + 3;
    let sender = arena.buffer(extent(0, size), size).unwrap();
    let receiver = arena.buffer(extent(8 * MIB, size), size).unwrap();
    let bytes = pattern(size as usize);
    sender.write(0, &bytes);
    let (from, mut to) = tcp_pair();

    let head = b"eight by";
    let mut sent = 0;
    let mut head_received = [0; 8];
    let mut received = 0;
    let mut is_head_received = false;
    while received < size {
        let head_left = &head[sent.min(8)..];
        let offset = (sent as u64).saturating_sub(8);
        if sent as u64 != size + 8 {
            match sender.send(from.as_fd(), head_left, offset..size) {
                Ok(count) => sent += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        if !is_head_received {
            to.read_exact(&mut head_received).unwrap();
            is_head_received = true;
        }
        match receiver.receive(to.as_fd(), received..size) {
            Ok(count) => received += count as u64,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    assert_eq!(&head_received, head);
    assert_eq!(receiver.crc32c(0..size), hoplite_core::checksum::crc32c(&bytes));
}

#[test]
fn sockets_never_block_and_broken_ones_are_errors() {
    let arena = Arena::create(Backing::Memfd, 4 * MIB).unwrap();
    let buffer = arena.buffer(extent(0, 2 * MIB), 2 * MIB).unwrap();
    let (one, mut other) = UnixStream::pair().unwrap();
    assert_eq!(buffer.receive(one.as_fd(), 0..10).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(buffer.receive(one.as_fd(), 5..5).unwrap_err().kind(), ErrorKind::InvalidInput);
    other.write_all(b"abc").unwrap();
    assert_eq!(buffer.receive(one.as_fd(), 0..10).unwrap(), 3);
    let error = loop {
        if let Err(error) = buffer.send(one.as_fd(), &[], 0..2 * MIB) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(other);
    let error = buffer.send(one.as_fd(), b"head", 0..0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);

    let (one, other) = UnixStream::pair().unwrap();
    drop(other);
    assert_eq!(buffer.receive(one.as_fd(), 0..10).unwrap(), 0);
}
