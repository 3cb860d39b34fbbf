//! Tests of file descriptors that travel over Unix sockets.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use hoplite_shm::{Arena, Backing, Extent, Mapping, fds};

#[test]
fn an_arena_reaches_its_client() {
    let arena = Arena::create(Backing::Pages, 1 << 20).unwrap();
    let place = Extent { offset_bytes: 0, length_bytes: 128 };
    let buffer = arena.buffer(place, 5).unwrap();
    buffer.initialise();

    let (store, client) = UnixStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    let (mut bytes, mut received) = ([0; 100], Vec::new());
    let error = fds::receive(client.as_fd(), &mut bytes, &mut received).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);

    let both = [arena.read_only_fd(), arena.writable_fd()];
    assert_eq!(fds::send(store.as_fd(), b"hello", &both).unwrap(), 5);
    assert_eq!(fds::receive(client.as_fd(), &mut bytes, &mut received).unwrap(), 5);
    assert_eq!(&bytes[..5], b"hello");
    assert_eq!(received.len(), 2);
    for fd in &received {
        assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }
    let writable = received.pop().unwrap();
    let read_only = received.pop().unwrap();
    Mapping::writable(writable, 1 << 20)
        .unwrap()
        .writer(place, 5)
        .unwrap()
        .write(b"bytes", || ())
        .unwrap();
    let reader = Mapping::read_only(read_only, 1 << 20).unwrap().reader(place, 5).unwrap();
    assert_eq!(reader.as_slice(), None, "the store has not declared the object complete");
    buffer.set_complete();
    assert_eq!(reader.as_slice(), Some(&b"bytes"[..]));
    assert_eq!(buffer.valid_bytes(), 5);
}

#[test]
fn bytes_without_descriptors_pass_too() {
    let (mut one, other) = UnixStream::pair().unwrap();
    one.write_all(b"plain").unwrap();
    let (mut bytes, mut received) = ([0; 3], Vec::new());
    assert_eq!(fds::receive(other.as_fd(), &mut bytes, &mut received).unwrap(), 3);
    assert_eq!(fds::receive(other.as_fd(), &mut bytes, &mut received).unwrap(), 2);
    assert!(received.is_empty());
    assert_eq!(fds::send(other.as_fd(), b"back", &[]).unwrap(), 4);
    let mut back = [0; 4];
    one.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"back");
    drop(one);
    assert_eq!(fds::receive(other.as_fd(), &mut bytes, &mut received).unwrap(), 0);
    assert_eq!(fds::send(other.as_fd(), b"x", &[]).unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_full_socket_would_block() {
    let (one, _other) = UnixStream::pair().unwrap();
    one.set_nonblocking(true).unwrap();
    let error = loop {
        if let Err(error) = fds::send(one.as_fd(), &[0; 65536], &[]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn too_many_descriptors_are_refused_on_both_sides() {
    let (one, other) = UnixStream::pair().unwrap();
    let many = vec![one.as_fd(); fds::MAX_FDS + 1];
    assert_eq!(fds::send(one.as_fd(), b"x", &many).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(
        fds::send(one.as_fd(), b"", &many[..1]).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );

    let (mut bytes, mut received) = ([0; 10], Vec::new());
    for count in [fds::MAX_FDS + 1, fds::MAX_FDS + 2, 64] {
        send_without_a_limit(one.as_fd(), &vec![one.as_fd(); count]);
        let error = fds::receive(other.as_fd(), &mut bytes, &mut received).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(received.is_empty());
    }

    assert_eq!(fds::send(one.as_fd(), b"x", &many[1..]).unwrap(), 1);
    assert_eq!(fds::receive(other.as_fd(), &mut bytes, &mut received).unwrap(), 1);
    assert_eq!(received.len(), fds::MAX_FDS);
}

fn send_without_a_limit(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(fds)));
    let parts = [std::io::IoSlice::new(b"x")];
    let flags = rustix::net::SendFlags::empty();
    assert_eq!(rustix::net::sendmsg(socket, &parts, &mut control, flags), Ok(1));
}
