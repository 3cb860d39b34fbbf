//! The start of a connection between two stores: the transport's handshake, both names, and proofs
//! of a shared token.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::Version;
use hoplite_core::error::{Error, Plane};
use hoplite_core::id::NodeId;
use hoplite_core::plan::rails::{MAX_RAILS, RAIL_ANSWER_TIMEOUT, RAIL_CONNECT_TIMEOUT};
use hoplite_net::{HelloFields, Hellos, NONCE_BYTES, Prover, Purpose, Token, Transport, nonce};
use hoplite_proto::bounds::decode_address;
use hoplite_proto::data::frame::Kind;
use hoplite_proto::error::{decode, encode};
use hoplite_proto::v1;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};

use super::config::{DataConfig, Sizes};
use super::connection::{ConnectionError, PeerConnection};
use super::pool::Peer;
use super::route::RouteUse;
use crate::advertised::Advertised;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side<'a> {
    Connecting(&'a Peer),
    Accepting,
}

/// Connects to a store over `rail`. Also returns the time that the socket took to connect.
pub(super) async fn connect(
    config: &DataConfig,
    peer: &NodeId,
    rail: &RouteUse,
) -> Result<(PeerConnection, Duration), ConnectionError> {
    let limit = rail.limit(config.connect_timeout, RAIL_CONNECT_TIMEOUT);
    let begun = Instant::now();
    let stream = timeout(limit, connect_from(rail.own(), rail.address())).await;
    let stream = stream.map_err(|_| ConnectionError::Idle(limit))??;
    let took = begun.elapsed();
    let peer = (peer.clone(), rail.address());
    let limit = rail.limit(config.handshake_timeout, RAIL_ANSWER_TIMEOUT);
    let opening = open(config, stream, Side::Connecting(&peer), config.silence_timeout);
    let opened = timeout(limit, opening).await.map_err(|_| ConnectionError::Idle(limit))?;
    Ok((opened?.0, took))
}

/// Connects from the address `own`, unless no card of this host has it, as behind NAT.
async fn connect_from(own: Option<IpAddr>, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(own) = own.filter(|own| own.is_ipv4() == address.is_ipv4()) {
        let bound = socket.bind(SocketAddr::new(own, 0));
        bound.or_else(|error| match error.kind() {
            io::ErrorKind::AddrNotAvailable => Ok(()),
            _ => Err(error),
        })?;
    }
    socket.connect(address).await
}

/// Performs the handshake. Also returns the peer's name.
///
/// # Errors
/// [`Error::VersionMismatch`], [`Error::ClusterMismatch`], [`Error::InvalidName`] or
/// [`Error::PermissionDenied`] inside [`ConnectionError::Refused`]; [`ConnectionError::Idle`] after
/// `config.handshake_timeout`; errors of the transport.
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
        let peer = exchange_hellos(&mut connection, config, side).await?;
        Ok((connection, peer))
    };
    let limit = config.handshake_timeout;
    timeout(limit, opening).await.map_err(|_| ConnectionError::Idle(limit))?
}

/// Both sides send first, so that each can explain a rejection.
async fn exchange_hellos(
    connection: &mut PeerConnection,
    config: &DataConfig,
    side: Side<'_>,
) -> Result<NodeId, ConnectionError> {
    let local = connection.addresses()?.0;
    let ours = our_hello(config, local, side == Side::Accepting)?;
    connection.write_control(Kind::Hello, &ours).await?;
    let theirs: v1::DataHello = connection.read_expected(Kind::Hello).await?;
    connection.sizes = if theirs.small { Sizes::Small } else { Sizes::Any };
    connection.version = config.newest.agree(theirs.version, theirs.newest_version)?;
    connection.rail = config.rails.number_of(local.ip());
    config.cluster.check_same(&theirs.cluster)?;
    let peer = NodeId::new(&theirs.node)?;
    // Checked before any proof: a store must not prove anything to itself under another name.
    if matches!(side, Side::Connecting((expected, _)) if *expected != peer) {
        return Err(ConnectionError::Nonsense("another node answers at that address"));
    }
    let rails = rails_of(&theirs, connection.version)?;
    match (&config.token, theirs.challenge.len()) {
        (None, 0) => {}
        (None, _) => {
            return Err(
                Error::permission_denied("the peer has a token, and this store has none").into()
            );
        }
        (Some(token), NONCE_BYTES) => prove(connection, token, side, (&ours, &theirs)).await?,
        (Some(_), _) => return Err(Error::permission_denied("the peer has no token").into()),
    }
    config.rails.learn(&peer, &rails);
    Ok(peer)
}

fn our_hello(
    config: &DataConfig,
    local: SocketAddr,
    is_accepting: bool,
) -> Result<v1::DataHello, ConnectionError> {
    let challenge = match &config.token {
        Some(_) => nonce()?.to_vec(),
        None => Vec::new(),
    };
    let advertised = config.advertised.as_ref();
    let address = advertised.filter(|_| is_accepting).map(|all| all.address_of(local).to_string());
    let rails = advertised.map(Advertised::addresses).filter(|rails| rails.len() > 1);
    Ok(v1::DataHello {
        version: Version::OLDEST.number(),
        newest_version: config.newest.number(),
        cluster: config.cluster.as_str().into(),
        node: config.node.as_str().into(),
        challenge: challenge.into(),
        small: config.sizes == Sizes::Small && !is_accepting,
        address: address.unwrap_or_default(),
        rails: rails.unwrap_or_default().iter().map(ToString::to_string).collect(),
    })
}

/// Exchanges proofs of the shared token.
async fn prove(
    connection: &mut PeerConnection,
    token: &Token,
    side: Side<'_>,
    (ours, theirs): (&v1::DataHello, &v1::DataHello),
) -> Result<(), ConnectionError> {
    let version = connection.version;
    let (our_bound, their_bound) = (bound(ours, version), bound(theirs, version));
    let (our_fields, their_fields) = (fields(ours, &our_bound), fields(theirs, &their_bound));
    match side {
        Side::Connecting((_, address)) => {
            // Prevents a process at another address from relaying the proofs.
            if !theirs.address.is_empty() && theirs.address != address.to_string() {
                return Err(ConnectionError::Nonsense(
                    "the peer is reached at another address than it says",
                ));
            }
            let hellos = Hellos { connecting: our_fields, accepting: their_fields };
            send_tag(connection, &hellos.proof(token, Purpose::Data, Prover::Connecting)).await?;
            let proof = receive_tag(connection).await?;
            if !hellos.is_proven(token, Purpose::Data, Prover::Accepting, &proof) {
                return Err(
                    Error::permission_denied("this store has another token than the peer").into()
                );
            }
            Ok(())
        }
        Side::Accepting => {
            let hellos = Hellos { connecting: their_fields, accepting: our_fields };
            let proof = receive_tag(connection).await?;
            if !hellos.is_proven(token, Purpose::Data, Prover::Connecting, &proof) {
                let error = Error::permission_denied("the peer has another token than this store");
                let refusal = Some(encode(&error));
                connection
                    .write_control(Kind::Proof, &v1::DataProof { refusal, ..Default::default() })
                    .await?;
                return Err(
                    Error::permission_denied("this store has another token than the peer").into()
                );
            }
            send_tag(connection, &hellos.proof(token, Purpose::Data, Prover::Accepting)).await
        }
    }
}

async fn send_tag(connection: &mut PeerConnection, tag: &[u8]) -> Result<(), ConnectionError> {
    connection
        .write_control(Kind::Proof, &v1::DataProof { tag: tag.to_vec().into(), refusal: None })
        .await
}

async fn receive_tag(connection: &mut PeerConnection) -> Result<Bytes, ConnectionError> {
    let proof: v1::DataProof = connection.read_expected(Kind::Proof).await?;
    match proof.refusal {
        Some(refusal) => Err(decode(refusal, Plane::Data).into()),
        None => Ok(proof.tag),
    }
}

/// Returns all addresses of a peer that names several. Ignores an older version's, which proofs do
/// not cover.
fn rails_of(hello: &v1::DataHello, version: Version) -> Result<Vec<SocketAddr>, ConnectionError> {
    if hello.rails.len() > MAX_RAILS {
        return Err(ConnectionError::Nonsense("a host with too many addresses"));
    }
    let named = hello.rails.iter().filter(|_| version.at_least(Version::WITH_RAILS));
    Ok(named.map(|rail| decode_address(rail, Plane::Data)).collect::<Result<_, _>>()?)
}

/// Addresses that the proofs cover. Lengths precede several, so that they have one
/// interpretation.
fn bound(hello: &v1::DataHello, version: Version) -> String {
    if hello.rails.is_empty() || !version.at_least(Version::WITH_RAILS) {
        return hello.address.clone();
    }
    let all = std::iter::once(&hello.address).chain(&hello.rails);
    all.map(|address| format!("{}:{address}", address.len())).collect()
}

fn fields<'a>(hello: &'a v1::DataHello, bound: &'a str) -> HelloFields<'a> {
    HelloFields {
        version: hello.version,
        newest: hello.newest_version,
        cluster: &hello.cluster,
        node: &hello.node,
        nonce: &hello.challenge,
        bound_to: bound.as_bytes(),
    }
}
