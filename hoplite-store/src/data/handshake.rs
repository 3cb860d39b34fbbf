//! How a connection between two stores begins: the handshake of its transport, then both say who they are, then, if they
//! have a token, both prove that they know it.
//!
//! A proof is an HMAC of which side proves and of both hellos, with a fresh challenge in each. So a proof that was
//! overheard is of no use on another connection, for other names, or in the other direction.

use std::io;
use std::time::Duration;

use hoplite_core::error::Error;
use hoplite_core::id::NodeId;
use hoplite_daemon::{Purpose, Token};
use hoplite_proto::data::frame::Kind;
use hoplite_proto::{PROTOCOL_VERSION, v1};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::connection::{ConnectionError, PeerConnection};
use super::pool::Peer;
use super::transport::Transport;
use super::{DataConfig, Sizes};

/// The length of a challenge: no two are ever the same.
const CHALLENGE_BYTES: usize = 32;

/// Which end of a connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side<'a> {
    /// It asks a certain store.
    Connecting(&'a NodeId),
    /// It listens.
    Accepting,
}

/// A new connection to a store, and how long its socket took to be connected.
///
/// # Errors
/// What [`open`] says; or that nobody is there.
pub(super) async fn connect(
    config: &DataConfig,
    (node, address): &Peer,
) -> Result<(PeerConnection, Duration), ConnectionError> {
    let limit = config.connect_timeout;
    let begun = Instant::now();
    let stream = timeout(limit, TcpStream::connect(address)).await;
    let stream = stream.map_err(|_| ConnectionError::Idle(limit))??;
    let took = begun.elapsed();
    let (connection, _) = open(config, stream, Side::Connecting(node), config.silence_timeout).await?;
    Ok((connection, took))
}

/// Makes `stream` a connection on which requests can be made, and tells who the peer is. The peer may then accept nothing
/// for `write_timeout`.
///
/// # Errors
/// [`Error::VersionMismatch`], [`Error::ClusterMismatch`], [`Error::InvalidName`] or [`Error::PermissionDenied`] inside
/// [`ConnectionError::Refused`]; [`ConnectionError::Idle`] after `config.handshake_timeout`; what the transport says.
pub(super) async fn open(
    config: &DataConfig,
    stream: TcpStream,
    side: Side<'_>,
    write_timeout: Duration,
) -> Result<(PeerConnection, NodeId), ConnectionError> {
    let opening = async {
        let transport = match side {
            Side::Connecting(_) => Transport::connect(&config.transport, stream).await?,
            Side::Accepting => Transport::accept(&config.transport, stream).await?,
        };
        let mut connection = PeerConnection::new(transport, write_timeout);
        let peer = greet(&mut connection, config, side).await?;
        Ok((connection, peer))
    };
    let limit = config.handshake_timeout;
    timeout(limit, opening).await.map_err(|_| ConnectionError::Idle(limit))?
}

/// Both sides say who they are without waiting for the other, so that each can tell why the other is refused.
async fn greet(
    connection: &mut PeerConnection,
    config: &DataConfig,
    side: Side<'_>,
) -> Result<NodeId, ConnectionError> {
    let mut challenge = [0; CHALLENGE_BYTES];
    if config.token.is_some() {
        getrandom(&mut challenge, GetRandomFlags::empty()).map_err(io::Error::from)?;
    }
    let ours = v1::DataHello {
        version: PROTOCOL_VERSION,
        cluster: config.cluster.as_str().into(),
        node: config.node.as_str().into(),
        challenge: config.token.iter().flat_map(|_| challenge).collect(),
        small: config.sizes == Sizes::Small && side != Side::Accepting,
    };
    connection.write_control(Kind::Hello, &ours).await?;
    let theirs: v1::DataHello = connection.read_expected(Kind::Hello).await?;
    connection.sizes = if theirs.small { Sizes::Small } else { Sizes::Any };
    if theirs.version != PROTOCOL_VERSION {
        return Err(Error::VersionMismatch { ours: PROTOCOL_VERSION, theirs: theirs.version }.into());
    }
    if theirs.cluster != config.cluster.as_str() {
        return Err(Error::ClusterMismatch.into());
    }
    let peer = NodeId::new(&theirs.node)?;
    // Before anything is proven: a store has nothing to prove to itself, for example, in the name of another.
    if matches!(side, Side::Connecting(expected) if *expected != peer) {
        return Err(ConnectionError::Nonsense("another node answers at that address"));
    }
    match (&config.token, theirs.challenge.len()) {
        (None, 0) => {}
        (None, _) => {
            return Err(Error::permission_denied("the peer has a token, and this store has none").into());
        }
        (Some(token), CHALLENGE_BYTES) => match side {
            Side::Connecting(_) => {
                let hellos = Hellos { connecting: &ours, accepting: &theirs };
                give(connection, token, &hellos.signed_by(Prover::Connecting)).await?;
                take(connection, token, &hellos.signed_by(Prover::Accepting)).await.map_err(refusal)?;
            }
            Side::Accepting => {
                let hellos = Hellos { connecting: &theirs, accepting: &ours };
                take(connection, token, &hellos.signed_by(Prover::Connecting)).await?;
                give(connection, token, &hellos.signed_by(Prover::Accepting)).await?;
            }
        },
        (Some(_), _) => return Err(Error::permission_denied("the peer has no token").into()),
    }
    Ok(peer)
}

async fn give(
    connection: &mut PeerConnection,
    token: &Token,
    statement: &[u8],
) -> Result<(), ConnectionError> {
    let tag = token.sign(Purpose::Data, statement).to_vec().into();
    connection.write_control(Kind::Proof, &v1::DataProof { tag }).await
}

async fn take(
    connection: &mut PeerConnection,
    token: &Token,
    statement: &[u8],
) -> Result<(), ConnectionError> {
    let proof: v1::DataProof = connection.read_expected(Kind::Proof).await?;
    if token.verify(Purpose::Data, statement, &proof.tag) {
        Ok(())
    } else {
        Err(Error::permission_denied("the peer has another token").into())
    }
}

/// What it means when the peer has our proof and closes.
fn refusal(error: ConnectionError) -> ConnectionError {
    match error {
        ConnectionError::Closed | ConnectionError::Io(_) => {
            Error::permission_denied("the peer does not accept the token of this store").into()
        }
        error => error,
    }
}

/// The side that signs.
#[derive(Debug, Clone, Copy)]
enum Prover {
    Connecting = 1,
    Accepting = 2,
}

struct Hellos<'a> {
    connecting: &'a v1::DataHello,
    accepting: &'a v1::DataHello,
}

impl Hellos<'_> {
    /// What `prover` signs. Lengths come in front of texts, so that it can be read in one way only.
    fn signed_by(&self, prover: Prover) -> Vec<u8> {
        let mut bytes = vec![prover as u8];
        for hello in [self.connecting, self.accepting] {
            bytes.extend_from_slice(&hello.version.to_le_bytes());
            for field in [hello.cluster.as_bytes(), hello.node.as_bytes(), &hello.challenge] {
                bytes.extend_from_slice(&(field.len() as u64).to_le_bytes());
                bytes.extend_from_slice(field);
            }
        }
        bytes
    }
}
