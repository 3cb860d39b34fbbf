use std::os::fd::AsFd;

use bytes::BytesMut;
use hoplite_core::Version;
use hoplite_core::error::{Error, Plane};
use hoplite_core::extent::HEADER_BYTES;
use hoplite_core::lifetime::Owner;
use hoplite_proto::framing::{self, MAX_HELLO_BYTES};
use hoplite_proto::lifetime::decode_owners;
use hoplite_proto::v1;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;

use super::inbox::MIN_READ_BYTES;
use super::shares::Seat;
use super::{LocalPlane, Role};

pub(super) struct Greeted {
    pub(super) program: String,
    pub(super) version: Version,
    pub(super) role: Role,
    pub(super) seat: Seat,
    pub(super) owners: Vec<Owner>,
    pub(super) inbox: BytesMut,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Protocol(#[from] Error),
}

pub(super) async fn greet(
    stream: &mut UnixStream,
    plane: &LocalPlane,
    user: u32,
    role: Result<Role, Error>,
) -> Result<Greeted, ConnectionError> {
    let mut inbox = BytesMut::with_capacity(MIN_READ_BYTES);
    let hello = loop {
        match framing::decode::<v1::ClientHello>(&mut inbox, MAX_HELLO_BYTES) {
            Ok(None) => {}
            Ok(Some(hello)) => break Ok(hello),
            Err(error) => break Err(error),
        }
        if stream.read_buf(&mut inbox).await? == 0 {
            return Err(Error::malformed(Plane::Local, "closed before its first message").into());
        }
    };
    let accepted = hello.and_then(|hello| {
        let version = plane.newest.agree(hello.version, hello.newest_version)?;
        let role = role?;
        let seat = plane.shares.enter(user)?;
        let owners = decode_owners(&hello.owners)?;
        Ok((hello.program.chars().take(64).collect(), version, role, seat, owners))
    });
    let arena = plane.engine.arena();
    let answer = v1::ServerHello {
        version: Version::OLDEST.number(),
        newest_version: plane.newest.number(),
        error: accepted.as_ref().err().map(hoplite_proto::error::encode),
        node: plane.node.as_str().to_owned(),
        cluster: plane.cluster.as_str().to_owned(),
        max_object_bytes: plane
            .limits
            .max_object_bytes
            .min(arena.capacity_bytes().saturating_sub(HEADER_BYTES)),
        arena_bytes: arena.capacity_bytes(),
        // A put must wait for the directory, which counts copies, because the client does not know
        // the default number.
        confirmed_from_bytes: if plane.replicas > 1 {
            0
        } else {
            plane.limits.confirmed_from_bytes
        },
        max_calls: plane.limits.max_requests_per_client as u64,
        max_ids: plane.limits.max_ids_per_request as u64,
    };
    let mut frame = BytesMut::new();
    framing::encode(&answer, &mut frame)?;
    let (readable, writable) = (arena.read_only_fd(), arena.writable_fd());
    let fds: &[_] = match &accepted {
        Ok((_, _, Role::Owner | Role::Writer, ..)) => &[readable, writable],
        Ok((_, _, Role::Reader, ..)) => &[readable],
        Err(_) => &[],
    };
    let sent = stream
        .async_io(Interest::WRITABLE, || hoplite_shm::fds::send(stream.as_fd(), &frame, fds))
        .await?;
    let mut rest = &frame[sent..];
    tokio::io::AsyncWriteExt::write_all_buf(stream, &mut rest).await?;
    let (program, version, role, seat, owners) = accepted?;
    Ok(Greeted { program, version, role, seat, owners, inbox })
}
