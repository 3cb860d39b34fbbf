//! Tests of the store's side alone: creation, prefault, bounds, sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use hoplite_shm::{Arena, Backing, Error, Extent, HEADER_BYTES, State};
use rustix::fs::SealFlags;
use rustix::io::Errno;

const MIB: u64 = 1 << 20;

fn extent(offset_bytes: u64, size_bytes: u64) -> Extent {
    Extent { offset_bytes, length_bytes: (size_bytes + HEADER_BYTES).next_multiple_of(64) }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 % 251) as u8).collect()
}

#[test]
fn the_capacity_is_rounded_down_to_pages() {
    assert_eq!(Arena::create(Backing::Pages, MIB + 4095).unwrap().capacity_bytes(), MIB);
    let error = Arena::create(Backing::Pages, 4095).unwrap_err();
    assert!(
        matches!(error, Error::CapacityTooSmall { capacity_bytes: 4095, page_bytes: 4096 }),
        "{error}"
    );
}

#[test]
fn an_arena_larger_than_the_memory_is_refused_with_both_sizes() {
    let error = Arena::create(Backing::Pages, 1 << 46).unwrap_err();
    let Error::NotEnoughMemory { needed_bytes, available_bytes } = error else { panic!("{error}") };
    assert_eq!(needed_bytes, 1 << 46);
    assert!(available_bytes > 0 && available_bytes < needed_bytes);
}

#[test]
fn no_process_with_a_descriptor_can_resize_the_memory_or_seal_it_against_writing() {
    let arena = Arena::create(Backing::Pages, MIB).unwrap();
    let buffer = arena.buffer(extent(MIB - 4096, 5), 5).unwrap();
    let path = format!("/proc/self/fd/{}", arena.writable_fd().as_raw_fd());
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    for fd in [arena.writable_fd(), opened.as_fd()] {
        for size in [0, 4096, 2 * MIB] {
            assert_eq!(rustix::fs::ftruncate(fd, size), Err(Errno::PERM));
        }
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        assert_eq!(rustix::fs::fcntl_get_seals(fd), Ok(seals));
        assert_eq!(rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE), Err(Errno::PERM));
    }
    buffer.initialise();
    buffer.write(0, b"bytes");
}

#[test]
fn huge_pages_are_there_from_the_start_or_the_error_counts_them() {
    match Arena::create(Backing::HugePages { page_bytes: None }, 5 * MIB) {
        Ok(arena) => {
            assert_eq!(arena.capacity_bytes() % (2 * MIB), 0);
            assert_eq!(rustix::fs::ftruncate(arena.writable_fd(), 0), Err(Errno::PERM));
            let blocks = rustix::fs::fstat(arena.writable_fd()).unwrap().st_blocks as u64;
            assert_eq!(blocks * 512, arena.capacity_bytes());
            let buffer = arena.buffer(extent(0, 5), 5).unwrap();
            buffer.initialise();
            buffer.write(0, b"bytes");
        }
        Err(Error::NotEnoughHugePages { page_bytes, needed_pages, free_pages }) => {
            assert_eq!(needed_pages, 5 * MIB / page_bytes);
            assert!(free_pages < needed_pages);
        }
        Err(Error::CapacityTooSmall { .. } | Error::System { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    for page_bytes in [3 * MIB, 8192] {
        let error = Arena::create(Backing::HugePages { page_bytes: Some(page_bytes) }, 8 * MIB)
            .unwrap_err();
        assert!(
            matches!(error, Error::NoSuchHugePages { page_bytes: of } if of == page_bytes),
            "{error}"
        );
    }
}

#[test]
fn a_path_selects_the_backing_and_no_file_is_created_or_removed() {
    let path = Path::new("/dev/shm/hoplite-shm-test-of-paths");
    assert_eq!(Backing::of_file_at(path).unwrap(), Backing::Pages);
    assert!(!path.exists());
    let on_disk = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    for path in [on_disk.as_path(), Path::new("/proc/self/status")] {
        let error = Backing::of_file_at(path).unwrap_err();
        assert!(matches!(error, Error::NotInMemory { .. }), "{error}");
        assert!(path.exists());
    }
    let error = Backing::of_file_at(Path::new("/dev/shm/no/such/directory")).unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error}");
}

#[test]
fn prefaulting_reports_progress_stops_when_told_and_keeps_the_bytes() {
    let arena = Arena::create(Backing::Pages, 80 * MIB).unwrap();
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
    let arena = Arena::create(Backing::Pages, MIB).unwrap();
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
    let arena = Arena::create(Backing::Pages, MIB).unwrap();
    let bytes = pattern(100_001);
    let buffer = arena.buffer(extent(64, 100_001), 100_001).unwrap();
    buffer.initialise();
    buffer.write(0, &bytes);
    for range in [0..0, 7..8, 0..100_001, 1..16_385, 3..16_387, 16_384..32_768, 99_999..100_001] {
        let expected = &bytes[range.start as usize..range.end as usize];
        assert_eq!(
            buffer.crc32c(range.clone()),
            hoplite_core::checksum::crc32c(expected),
            "{range:?}"
        );
        let mut joined = Vec::new();
        buffer.for_each_chunk(range, |chunk| joined.extend_from_slice(chunk));
        assert!(joined == expected);
    }
}

#[test]
#[should_panic(expected = "of an object of 10 bytes")]
fn writing_past_an_object_panics() {
    let arena = Arena::create(Backing::Pages, MIB).unwrap();
    arena.buffer(extent(0, 10), 10).unwrap().write(5, &[0; 6]);
}

#[test]
fn ends_are_final_and_initialising_starts_over() {
    let arena = Arena::create(Backing::Pages, MIB).unwrap();
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
    let arena = Arena::create(Backing::Pages, 16 * MIB).unwrap();
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
    let arena = Arena::create(Backing::Pages, 4 * MIB).unwrap();
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
