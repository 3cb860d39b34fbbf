//! Opens a connection to a shard, at both ends: see `hoplite_proto::directory::Preface`.

use std::borrow::Cow;
use std::io;

use hoplite_core::Version;
use hoplite_core::checksum::crc32c;
use hoplite_core::error::{Error, Plane};
use hoplite_core::id::{ClusterId, NodeId};
use hoplite_proto::directory::{MAX_OPENING_BYTES, Preface};
use hoplite_proto::v1::opening::{Body, Hello, Proof};
use hoplite_proto::{error, v1};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::challenge::{self, HelloFields, Hellos, NONCE_BYTES, Prover};
use super::record::{DamagedRecord, KEY_BYTES, Opener, Sealer};
use super::refusal::close_refused;
use super::token::{Purpose, Token};

/// Program that connects to a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// Caller's cluster; `None` to accept any.
    pub cluster: Option<ClusterId>,
    /// Caller's name; `None` if the caller is no store.
    pub node: Option<NodeId>,
    /// Newest protocol version of the caller.
    pub newest: Version,
}

/// A connection's [`Sealer`] for outgoing bytes, and [`Opener`] for incoming ones.
pub type Records = (Sealer, Opener);

/// Failure of an opening.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpeningError {
    /// The connection broke.
    #[error("the connection broke while it was opened")]
    Io(#[from] io::Error),
    /// The peer refuses this side.
    #[error(transparent)]
    Refused(Error),
    /// This side refuses the peer.
    #[error(transparent)]
    Refuses(Error),
}

impl OpeningError {
    /// Reason for a refusal; `None` if the peer may be no Hoplite program.
    pub const fn refusal(&self) -> Option<&Error> {
        match self {
            Self::Io(_) | Self::Refuses(Error::Malformed { .. }) => None,
            Self::Refused(error) | Self::Refuses(error) => Some(error),
        }
    }
}

/// Opens a connection to a shard for the purpose in `preface`.
pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    token: Option<&Token>,
    caller: &Caller,
    preface: Preface,
) -> Result<Records, OpeningError> {
    let ours = Hello {
        cluster: caller
            .cluster
            .as_ref()
            .map(|cluster| cluster.as_str().to_owned())
            .unwrap_or_default(),
        node: caller.node.as_ref().map(|node| node.as_str().to_owned()).unwrap_or_default(),
        ..hello(token, caller.newest)?
    };
    stream.write_all(preface.bytes()).await?;
    write(stream, Body::Hello(ours.clone())).await?;
    let Body::Hello(theirs) = read_answer(stream).await? else { return Err(out_of_order()) };
    check_version(&theirs, caller.newest)?;
    check_cluster(&theirs, caller.cluster.as_ref())?;
    let hellos = Hellos { connecting: fields(&ours), accepting: fields(&theirs) };
    let Some(token) = shared_token(token, &theirs, "the directory", "this program")? else {
        return Ok(records(None, Prover::Connecting));
    };
    let tag = hellos.proof(token, Purpose::Control, Prover::Connecting).to_vec().into();
    write(stream, Body::Proof(Proof { tag })).await?;
    let Body::Proof(Proof { tag }) = read_answer(stream).await? else { return Err(out_of_order()) };
    if !hellos.is_proven(token, Purpose::Control, Prover::Accepting, &tag) {
        return Err(OpeningError::Refuses(Error::permission_denied(
            "this program has another token than the directory",
        )));
    }
    Ok(records(Some(hellos.secret(token)), Prover::Connecting))
}

/// Accepts a connection, as a shard of `cluster` that speaks versions up to `newest`. The caller
/// has read the preface. Tells a refused peer the reason.
pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    token: Option<&Token>,
    cluster: &ClusterId,
    newest: Version,
) -> Result<Records, OpeningError> {
    let opened = answer(stream, token, cluster, newest).await;
    if let Err(OpeningError::Refuses(error)) = &opened {
        // Returns the error even if the peer cannot be told.
        if write(stream, Body::Refusal(error::encode(error))).await.is_ok() {
            close_refused(stream).await;
        }
    }
    opened
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    token: Option<&Token>,
    cluster: &ClusterId,
    newest: Version,
) -> Result<Records, OpeningError> {
    let Body::Hello(theirs) = read(stream).await? else { return Err(out_of_order()) };
    check_version(&theirs, newest)?;
    check_cluster(&theirs, Some(cluster))?;
    let token = shared_token(token, &theirs, "this program", "the directory")?;
    let ours = Hello { cluster: cluster.as_str().to_owned(), ..hello(token, newest)? };
    write(stream, Body::Hello(ours.clone())).await?;
    let Some(token) = token else {
        return Ok(records(None, Prover::Accepting));
    };
    let hellos = Hellos { connecting: fields(&theirs), accepting: fields(&ours) };
    let Body::Proof(Proof { tag }) = read(stream).await? else { return Err(out_of_order()) };
    if !hellos.is_proven(token, Purpose::Control, Prover::Connecting, &tag) {
        return Err(OpeningError::Refuses(Error::permission_denied(
            "the directory has another token than this program",
        )));
    }
    let tag = hellos.proof(token, Purpose::Control, Prover::Accepting).to_vec().into();
    write(stream, Body::Proof(Proof { tag })).await?;
    Ok(records(Some(hellos.secret(token)), Prover::Accepting))
}

fn hello(token: Option<&Token>, newest: Version) -> io::Result<Hello> {
    let nonce = match token {
        Some(_) => challenge::nonce()?.to_vec(),
        None => Vec::new(),
    };
    Ok(Hello {
        version: Version::OLDEST.number(),
        newest_version: newest.number(),
        nonce: nonce.into(),
        ..Hello::default()
    })
}

fn fields(hello: &Hello) -> HelloFields<'_> {
    HelloFields {
        version: hello.version,
        newest: hello.newest_version,
        cluster: &hello.cluster,
        node: &hello.node,
        nonce: &hello.nonce,
        bound_to: &[],
    }
}

fn check_version(theirs: &Hello, newest: Version) -> Result<(), OpeningError> {
    newest.agree(theirs.version, theirs.newest_version).map(drop).map_err(OpeningError::Refuses)
}

fn check_cluster(theirs: &Hello, own: Option<&ClusterId>) -> Result<(), OpeningError> {
    match own {
        Some(own) if !theirs.cluster.is_empty() => {
            own.check_same(&theirs.cluster).map_err(|error| OpeningError::Refuses(error.into()))
        }
        _ => Ok(()),
    }
}

/// Token that the sides must prove; `None` if neither has one. `peer` and `this` name
/// the sides in errors.
fn shared_token<'t>(
    token: Option<&'t Token>,
    theirs: &Hello,
    peer: &'static str,
    this: &'static str,
) -> Result<Option<&'t Token>, OpeningError> {
    let lacking = match (token, theirs.nonce.len()) {
        (None, 0) => return Ok(None),
        (Some(token), NONCE_BYTES) => return Ok(Some(token)),
        (Some(_), 0) => format!("{this} has a token, and {peer} has none"),
        (None, _) => format!("{peer} has a token, and {this} has none"),
        (Some(_), _) => return Err(malformed("a nonce has 32 bytes")),
    };
    Err(OpeningError::Refuses(Error::PermissionDenied { reason: Cow::Owned(lacking) }))
}

fn records(secret: Option<[u8; 2 * KEY_BYTES]>, side: Prover) -> Records {
    let half = |start: usize| {
        secret.map(|secret| {
            let mut key = [0; KEY_BYTES];
            key.copy_from_slice(&secret[start..start + KEY_BYTES]);
            key
        })
    };
    let (connecting, accepting) = (half(0), half(KEY_BYTES));
    match side {
        Prover::Connecting => (Sealer::new(connecting), Opener::new(accepting)),
        Prover::Accepting => (Sealer::new(accepting), Opener::new(connecting)),
    }
}

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, body: Body) -> io::Result<()> {
    let message = v1::Opening { body: Some(body) };
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    let frame = [&length.to_le_bytes()[..], &message, &crc32c(&message).to_le_bytes()].concat();
    stream.write_all(&frame).await?;
    stream.flush().await
}

async fn read_answer<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Body, OpeningError> {
    match read(stream).await? {
        Body::Refusal(refusal) => {
            Err(OpeningError::Refused(error::decode(refusal, Plane::Control)))
        }
        body => Ok(body),
    }
}

/// A damaged message is an I/O error, because another connection may succeed.
async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Body, OpeningError> {
    let length = stream.read_u32_le().await? as usize;
    if length > MAX_OPENING_BYTES {
        return Err(damaged());
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    if stream.read_u32_le().await? != crc32c(&bytes) {
        return Err(damaged());
    }
    let message = v1::Opening::decode(bytes.as_slice());
    let message = message.map_err(|_| malformed("a message of an opening cannot be decoded"))?;
    message.body.ok_or_else(|| malformed("a message of an opening is empty"))
}

fn damaged() -> OpeningError {
    io::Error::new(io::ErrorKind::InvalidData, DamagedRecord).into()
}

fn malformed(reason: &'static str) -> OpeningError {
    OpeningError::Refuses(Error::malformed(Plane::Control, reason))
}

fn out_of_order() -> OpeningError {
    malformed("a message of an opening is out of order")
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use crate::record::Checked;

    fn cluster(name: &str) -> ClusterId {
        ClusterId::new(name).unwrap()
    }

    fn token(secret: &[u8]) -> Token {
        Token::new(secret).unwrap()
    }

    fn store() -> Caller {
        Caller { cluster: Some(cluster("c")), node: NodeId::new("n").ok(), newest: Version::NEWEST }
    }

    async fn open(
        [connecting, accepting]: [Option<&Token>; 2],
        caller: &Caller,
    ) -> [Result<(Records, DuplexStream), OpeningError>; 2] {
        let (mut near, mut far) = duplex(1 << 16);
        let cluster = cluster("c");
        let accept = async {
            let mut preface = [0; 16];
            far.read_exact(&mut preface).await.unwrap();
            assert_eq!(Preface::of_bytes(&preface), Some(Preface::Direct));
            let opened = accept(&mut far, accepting, &cluster, Version::NEWEST).await;
            opened.map(|records| (records, far))
        };
        let connect = async {
            let opened = connect(&mut near, connecting, caller, Preface::Direct).await;
            opened.map(|records| (records, near))
        };
        let (near, far) = tokio::join!(connect, accept);
        [near, far]
    }

    #[tokio::test]
    async fn both_sides_agree_and_speak_in_records() {
        let secret = token(b"sixteen bytes ok");
        for tokens in [[Some(&secret); 2], [None; 2]] {
            let [near, far] = open(tokens, &store()).await.map(|opened| {
                let (records, stream) = opened.unwrap();
                Checked::new(stream, records)
            });
            let (mut near, mut far) = (near, far);
            near.write_all(b"ping").await.unwrap();
            let mut received = [0; 4];
            far.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"ping");
            far.write_all(b"pong").await.unwrap();
            near.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"pong");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_side_gets_the_reason_of_a_failed_opening() {
        let (one, other) = (token(b"sixteen bytes ok"), token(b"sixteen bytes no"));
        let foreign = Caller { cluster: Some(cluster("d")), ..Caller::default() };
        for (tokens, caller, expected) in [
            (
                [Some(&one), Some(&other)],
                store(),
                "the directory has another token than this program",
            ),
            ([None, Some(&other)], store(), "the directory has a token, and this program has none"),
            ([Some(&one), None], store(), "this program has a token, and the directory has none"),
            ([None, None], foreign, "the peer belongs to cluster \"c\", and this side to \"d\""),
        ] {
            let [near, far] = open(tokens, &caller).await;
            let near = near.unwrap_err();
            assert!(matches!(near, OpeningError::Refused(_)), "{near:?}");
            assert!(near.to_string().ends_with(expected), "{near}");
            assert!(matches!(far.unwrap_err(), OpeningError::Refuses(_)));
        }
    }

    #[tokio::test]
    async fn a_changed_byte_is_no_refusal() {
        let (mut near, mut far) = duplex(1 << 16);
        write(&mut near, Body::Hello(Hello { cluster: "c".to_owned(), ..Hello::default() }))
            .await
            .unwrap();
        let mut bytes = [0; 4 + 3 + 2 + 4];
        let length = far.read(&mut bytes).await.unwrap();
        for bit in 0..length * 8 {
            let (mut near, mut far) = duplex(1 << 16);
            let mut changed = bytes[..length].to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            near.write_all(&changed).await.unwrap();
            drop(near);
            assert!(matches!(read(&mut far).await, Err(OpeningError::Io(_))), "bit {bit}");
        }
    }

    #[tokio::test]
    async fn only_an_authenticated_shard_can_refuse() {
        let (mut near, mut far) = duplex(1 << 16);
        let refusal = error::encode(&Error::permission_denied("a text of a stranger"));
        write(&mut near, Body::Refusal(refusal)).await.unwrap();
        drop(near);
        let error = accept(&mut far, None, &cluster("c"), Version::NEWEST).await.unwrap_err();
        assert!(error.to_string().ends_with("a message of an opening is out of order"), "{error}");
        assert!(
            matches!(error, OpeningError::Refuses(_)) && error.refusal().is_none(),
            "{error:?}"
        );
    }

    async fn rogue(mut stream: DuplexStream, answer_to_hello: Body, answer_to_proof: Body) {
        let mut preface = [0; 16];
        stream.read_exact(&mut preface).await.unwrap();
        let _ = read(&mut stream).await;
        let _ = write(&mut stream, answer_to_hello).await;
        let _ = read(&mut stream).await;
        let _ = write(&mut stream, answer_to_proof).await;
    }

    #[tokio::test]
    async fn a_shard_that_cannot_prove_itself_is_refused() {
        let secret = token(b"sixteen bytes ok");
        let hello = |nonce: &[u8]| {
            let cluster = "c".to_owned();
            Body::Hello(Hello {
                version: Version::OLDEST.number(),
                cluster,
                nonce: nonce.to_vec().into(),
                ..Hello::default()
            })
        };
        for (answer, expected) in [
            (hello(&[7; 32]), "this program has another token than the directory"),
            (hello(&[]), "this program has a token, and the directory has none"),
            (hello(&[7; 31]), "a nonce has 32 bytes"),
            (Body::Proof(Proof::default()), "a message of an opening is out of order"),
        ] {
            let (mut near, far) = duplex(1 << 16);
            let rogue =
                tokio::spawn(rogue(far, answer, Body::Proof(Proof { tag: vec![7; 32].into() })));
            let error =
                connect(&mut near, Some(&secret), &store(), Preface::Grpc).await.unwrap_err();
            assert!(matches!(error, OpeningError::Refuses(_)), "{error:?}");
            assert!(error.to_string().ends_with(expected), "{error}");
            drop(near);
            rogue.await.unwrap();
        }
    }
}
