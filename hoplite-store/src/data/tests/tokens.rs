use hoplite_core::error::Error;
use hoplite_core::id::NodeId;
use hoplite_net::Token;
use hoplite_proto::data::frame::Kind;
use hoplite_proto::{PROTOCOL_VERSION, v1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::advertised::Advertised;
use crate::data::connection::ConnectionError;

const SECRET: &[u8] = b"a secret of the tests";

fn with_token(name: &str, secret: &[u8]) -> DataConfig {
    DataConfig { token: Some(Token::new(secret).unwrap()), ..config(name) }
}

async fn node(name: &str, secret: &[u8]) -> TestNode {
    TestNode::start_with(with_token(name, secret), Duration::ZERO).await
}

async fn refusal(config: &DataConfig, node: &TestNode) -> Error {
    let stream = TcpStream::connect(node.address).await.unwrap();
    let peer = (node.config.node.clone(), node.address);
    let opening = handshake::open(config, stream, Side::Connecting(&peer), TIME_LIMIT);
    match timeout(TIME_LIMIT, opening).await.unwrap() {
        Err(ConnectionError::Refused(error)) => error,
        other => panic!("{other:?}"),
    }
}

async fn silent(node: &TestNode) -> PeerConnection {
    let stream = TcpStream::connect(node.address).await.unwrap();
    PeerConnection::new(Transport::connect(&transport(), stream).await.unwrap(), TIME_LIMIT)
}

fn hello(name: &str, challenge: &[u8]) -> v1::DataHello {
    v1::DataHello {
        version: PROTOCOL_VERSION,
        cluster: "test".into(),
        node: name.into(),
        challenge: challenge.to_vec().into(),
        ..v1::DataHello::default()
    }
}

fn is_closed(ended: &Result<v1::DataProof, ConnectionError>) -> bool {
    matches!(ended, Err(ConnectionError::Closed | ConnectionError::Io(_)))
}

fn is_refused(answer: &Result<v1::DataProof, ConnectionError>) -> bool {
    matches!(answer, Ok(proof) if proof.tag.is_empty() && proof.refusal.is_some())
}

#[tokio::test]
async fn stores_with_one_token_serve_each_other() {
    let (sender, receiver) = (node("a", SECRET).await, node("b", SECRET).await);
    let bytes = content(100_000);
    sender.test_store.add("x", &filled(&bytes));
    let copy = empty(100_000);
    assert_eq!(receiver.pull(&sender, "x", &copy).await, (100_000, PullOutcome::Complete));
    assert!(prefix(&copy, 100_000) == bytes);
    sender.stop().await;
}

#[tokio::test]
async fn either_side_refuses_a_peer_with_another_token_or_none() {
    let secured = node("a", SECRET).await;
    let open = TestNode::start("b").await;
    for (name, config, node) in [
        ("another token", with_token("c", b"another secret of the tests"), &secured),
        ("no token", config("c"), &secured),
        ("a token where there is none", with_token("c", SECRET), &open),
    ] {
        let error = refusal(&config, node).await;
        assert!(matches!(error, Error::PermissionDenied { .. }), "{name}: {error}");
        assert!(error.to_string().contains("token"), "{name}: {error}");
        let puller = TestNode::start_with(config, Duration::ZERO).await;
        node.test_store.add("x", &filled(&content(9)));
        assert_eq!(
            puller.pull(node, "x", &empty(9)).await,
            (0, PullOutcome::SenderUnreachable),
            "{name}"
        );
        assert_eq!(read(&node.metrics.serves), 0, "{name}");
    }
}

#[tokio::test]
async fn requests_without_a_proof_are_not_answered() {
    let secured = node("a", SECRET).await;
    secured.test_store.add("x", &filled(&content(9)));
    let id = id("x").as_bytes().to_vec().into();
    let pull = v1::Pull { id, put: PUT.0, size_bytes: 9, ..v1::Pull::default() };
    for challenge in [&[][..], &[7; 31], &[7; 32], &[7; 33]] {
        let mut stranger = silent(&secured).await;
        stranger.write_control(Kind::Hello, &hello("stranger", challenge)).await.unwrap();
        stranger.read_expected::<v1::DataHello>(Kind::Hello).await.unwrap();
        stranger.write_control(Kind::Pull, &pull).await.unwrap();
        let ended = stranger.read_expected::<v1::DataProof>(Kind::Proof).await;
        assert!(is_closed(&ended), "{ended:?}");
    }
    for tag in [&[][..], &[0; 32], &[0; 1000]] {
        let mut stranger = silent(&secured).await;
        stranger.write_control(Kind::Hello, &hello("stranger", &[7; 32])).await.unwrap();
        stranger.read_expected::<v1::DataHello>(Kind::Hello).await.unwrap();
        let proof = v1::DataProof { tag: tag.to_vec().into(), refusal: None };
        stranger.write_control(Kind::Proof, &proof).await.unwrap();
        let answer = stranger.read_expected::<v1::DataProof>(Kind::Proof).await;
        assert!(is_refused(&answer), "{answer:?}");
        assert!(is_closed(&stranger.read_expected(Kind::Proof).await));
    }
    assert_eq!(read(&secured.metrics.serves), 0);
    assert_eq!(read(&secured.metrics.malformed_connections), 7);
}

async fn record_handshake(
    node: &TestNode,
) -> (v1::DataHello, v1::DataProof, v1::DataHello, v1::DataProof) {
    let (relay, address) = FakePeer::start("unused").await;
    let legitimate = with_token("b", SECRET);
    let peer = (node.config.node.clone(), address);
    let client = tokio::spawn(async move {
        let stream = TcpStream::connect(address).await.unwrap();
        handshake::open(&legitimate, stream, Side::Connecting(&peer), TIME_LIMIT).await.map(drop)
    });
    let (stream, _) = relay.listener.accept().await.unwrap();
    let transport = Transport::accept(&transport(), stream).await.unwrap();
    let (mut near, mut far) = (PeerConnection::new(transport, TIME_LIMIT), silent(node).await);
    let connecting: v1::DataHello = near.read_expected(Kind::Hello).await.unwrap();
    far.write_control(Kind::Hello, &connecting).await.unwrap();
    let accepting: v1::DataHello = far.read_expected(Kind::Hello).await.unwrap();
    near.write_control(Kind::Hello, &accepting).await.unwrap();
    let first: v1::DataProof = near.read_expected(Kind::Proof).await.unwrap();
    far.write_control(Kind::Proof, &first).await.unwrap();
    let second: v1::DataProof = far.read_expected(Kind::Proof).await.unwrap();
    near.write_control(Kind::Proof, &second).await.unwrap();
    client.await.unwrap().unwrap();
    (connecting, first, accepting, second)
}

#[tokio::test]
async fn a_replayed_handshake_is_refused() {
    let secured = node("a", SECRET).await;
    let (connecting, first, accepting, second) = record_handshake(&secured).await;

    for proof in [&first, &second] {
        let mut stranger = silent(&secured).await;
        stranger.write_control(Kind::Hello, &connecting).await.unwrap();
        stranger.read_expected::<v1::DataHello>(Kind::Hello).await.unwrap();
        stranger.write_control(Kind::Proof, proof).await.unwrap();
        assert!(is_refused(&stranger.read_expected(Kind::Proof).await));
    }
    let (fake_peer, address) = FakePeer::start("a").await;
    let receiver = node("b", SECRET).await;
    let (pull, _) = receiver.start_pull(request("x", "a", address), &empty(9));
    let (stream, _) = fake_peer.listener.accept().await.unwrap();
    let mut stranger =
        PeerConnection::new(Transport::accept(&transport(), stream).await.unwrap(), TIME_LIMIT);
    stranger.write_control(Kind::Hello, &accepting).await.unwrap();
    stranger.write_control(Kind::Proof, &second).await.unwrap();
    assert_eq!(pull.await.unwrap(), (0, PullOutcome::SenderUnreachable));
}

#[tokio::test]
async fn proofs_that_are_passed_on_from_another_address_are_refused() {
    let elsewhere = Advertised::find(&[], &["127.0.0.1:9".parse().unwrap()]).await.unwrap();
    let config = DataConfig { advertised: Some(elsewhere), ..with_token("a", SECRET) };
    let secured = TestNode::start_with(config, Duration::ZERO).await;
    secured.test_store.add("x", &filled(&content(9)));
    let receiver = node("b", SECRET).await;
    assert_eq!(receiver.pull(&secured, "x", &empty(9)).await, (0, PullOutcome::SenderUnreachable));
    assert_eq!(read(&secured.metrics.serves), 0);
    // Each proof covers the address, so a relay cannot change it.
    let (relay, address) = FakePeer::start("unused").await;
    let client = tokio::spawn(async move {
        let stream = TcpStream::connect(address).await.unwrap();
        let peer = (NodeId::new("a").unwrap(), address);
        handshake::open(&with_token("b", SECRET), stream, Side::Connecting(&peer), TIME_LIMIT)
            .await
            .map(drop)
    });
    let (stream, _) = relay.listener.accept().await.unwrap();
    let mut near =
        PeerConnection::new(Transport::accept(&transport(), stream).await.unwrap(), TIME_LIMIT);
    let mut far = silent(&secured).await;
    let connecting: v1::DataHello = near.read_expected(Kind::Hello).await.unwrap();
    far.write_control(Kind::Hello, &connecting).await.unwrap();
    let accepting: v1::DataHello = far.read_expected(Kind::Hello).await.unwrap();
    let changed = v1::DataHello { address: address.to_string(), ..accepting };
    near.write_control(Kind::Hello, &changed).await.unwrap();
    let proof: v1::DataProof = near.read_expected(Kind::Proof).await.unwrap();
    far.write_control(Kind::Proof, &proof).await.unwrap();
    let refused: v1::DataProof = far.read_expected(Kind::Proof).await.unwrap();
    assert!(refused.tag.is_empty() && refused.refusal.is_some(), "{refused:?}");
    near.write_control(Kind::Proof, &refused).await.unwrap();
    assert!(matches!(
        client.await.unwrap(),
        Err(ConnectionError::Refused(Error::PermissionDenied { .. }))
    ));
}

#[tokio::test]
async fn a_reflected_proof_is_refused() {
    let (fake_peer, address) = FakePeer::start("a").await;
    let receiver = node("b", SECRET).await;
    let (pull, _) = receiver.start_pull(request("x", "a", address), &empty(9));
    let (stream, _) = fake_peer.listener.accept().await.unwrap();
    let mut mirror =
        PeerConnection::new(Transport::accept(&transport(), stream).await.unwrap(), TIME_LIMIT);
    let theirs: v1::DataHello = mirror.read_expected(Kind::Hello).await.unwrap();
    mirror.write_control(Kind::Hello, &hello("a", &theirs.challenge)).await.unwrap();
    let proof: v1::DataProof = mirror.read_expected(Kind::Proof).await.unwrap();
    mirror.write_control(Kind::Proof, &proof).await.unwrap();
    assert_eq!(pull.await.unwrap(), (0, PullOutcome::SenderUnreachable));

    let (pull, _) = receiver.start_pull(request("x", "a", address), &empty(9));
    let (stream, _) = fake_peer.listener.accept().await.unwrap();
    let mut mirror =
        PeerConnection::new(Transport::accept(&transport(), stream).await.unwrap(), TIME_LIMIT);
    let theirs: v1::DataHello = mirror.read_expected(Kind::Hello).await.unwrap();
    mirror.write_control(Kind::Hello, &theirs).await.unwrap();
    assert!(is_closed(&mirror.read_expected(Kind::Proof).await));
    assert_eq!(pull.await.unwrap(), (0, PullOutcome::SenderUnreachable));
}

#[tokio::test]
async fn unfinished_handshakes_do_not_block_others() {
    let config =
        DataConfig { max_half_open: 4, handshake_timeout: TIME_LIMIT, ..with_token("a", SECRET) };
    let secured = TestNode::start_with(config, Duration::ZERO).await;
    secured.test_store.add("x", &filled(&content(9)));
    let mut strangers = Vec::new();
    for _ in 0..200 {
        let mut stranger = TcpStream::connect(secured.address).await.unwrap();
        let _ = stranger.write_all(b"HPLD").await;
        strangers.push(stranger);
    }
    let receiver = node("b", SECRET).await;
    assert_eq!(receiver.pull(&secured, "x", &empty(9)).await, (9, PullOutcome::Complete));
    for mut stranger in strangers.into_iter().take(190) {
        let _ = timeout(TIME_LIMIT / 2, stranger.read_to_end(&mut Vec::new())).await.unwrap();
    }
}
