use std::io;

use hoplite_core::id::{ClusterId, NodeId};
use hoplite_net::Protocol;
use rustls::{AlertDescription, ClientConfig, ClientConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::data::DataConfig;
use crate::data::connection::ConnectionError;
use crate::data::handshake::{self, Side};

const TIME_LIMIT: Duration = Duration::from_secs(300);

fn config(name: &str, transport: TransportKind) -> DataConfig {
    let config = DataConfig::new(ClusterId::new("test").unwrap(), NodeId::new(name).unwrap());
    DataConfig { transport, ..config }
}

async fn handshake_both(
    connecting: TransportKind,
    accepting: TransportKind,
) -> (Result<(), ConnectionError>, Result<(), ConnectionError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepts = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        handshake::open(&config("b", accepting), stream, Side::Accepting, TIME_LIMIT)
            .await
            .map(drop)
    });
    let stream = TcpStream::connect(address).await.unwrap();
    let peer = (NodeId::new("b").unwrap(), address);
    let connecting = config("a", connecting);
    let connects = handshake::open(&connecting, stream, Side::Connecting(&peer), TIME_LIMIT);
    let connected = timeout(TIME_LIMIT, connects).await.unwrap().map(drop);
    (connected, timeout(TIME_LIMIT, accepts).await.unwrap().unwrap())
}

fn error_text(ended: Result<(), ConnectionError>) -> String {
    ended.expect_err("the handshake fails").to_string()
}

#[tokio::test]
async fn certificates_of_one_authority_for_the_right_address_are_accepted() {
    let certificates = Certificates::new();
    let kind = |name| TransportKind::Tls(certificates.tls(name));
    let (connected, accepted) = handshake_both(kind("elsewhere"), kind("127.0.0.1")).await;
    connected.unwrap();
    accepted.unwrap();
}

#[tokio::test]
async fn a_connecting_store_refuses_a_certificate_of_another_address() {
    let certificates = Certificates::new();
    let kind = |name| TransportKind::Tls(certificates.tls(name));
    for wrong in ["127.0.0.2", "localhost", "elsewhere"] {
        let (connected, accepted) = handshake_both(kind("127.0.0.1"), kind(wrong)).await;
        assert!(error_text(connected).contains("certificate"));
        assert!(accepted.is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn with_a_common_name_either_side_refuses_other_names() {
    let certificates = Certificates::new();
    let named = |name: &str, expected: &str| {
        let files = certificates.files(name, &certificates.issue(name, today()));
        TransportKind::Tls(Tls::read(files, Some(expected)).unwrap())
    };
    let (connected, accepted) = handshake_both(
        named("store.hoplite", "store.hoplite"),
        named("store.hoplite", "store.hoplite"),
    )
    .await;
    connected.unwrap();
    accepted.unwrap();
    let plain = TransportKind::Tls(certificates.tls("127.0.0.1"));
    let (connected, accepted) =
        handshake_both(plain.clone(), named("127.0.0.1.hoplite", "127.0.0.1.hoplite")).await;
    assert!(connected.is_err() && accepted.is_err());
    let (connected, _) = handshake_both(named("store.hoplite", "store.hoplite"), plain).await;
    assert!(error_text(connected).contains("certificate"));
    let files = certificates.files("other", &certificates.issue("other", today()));
    assert!(Tls::read(files, Some("store.hoplite")).is_err());
}

#[tokio::test]
async fn another_authority_is_refused_by_either_side() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let kind = |certificates: &Certificates| TransportKind::Tls(certificates.tls("127.0.0.1"));
    let (connected, accepted) = handshake_both(kind(&theirs), kind(&ours)).await;
    assert!(error_text(connected).contains("certificate"));
    assert!(accepted.is_err());
    let files = ours.files("foreign", &theirs.issue("127.0.0.1", today()));
    write(&files.ca, &theirs.authority.cert);
    let foreign = Tls::read(files.clone(), None).unwrap();
    let both = format!("{}{}", ours.authority.cert, theirs.authority.cert);
    write(&files.ca, &both);
    let trusting = Tls::read(files, None).unwrap();
    drop(foreign);
    let (connected, accepted) = handshake_both(TransportKind::Tls(trusting), kind(&ours)).await;
    assert!(error_text(accepted).contains("certificate"));
    assert!(connected.is_err());
}

#[tokio::test]
async fn an_expired_certificate_is_refused_by_either_side() {
    let certificates = Certificates::new();
    let mut remaining = Duration::from_millis(1500);
    let (ends_soon, short, expiring) = loop {
        let ends_soon = SystemTime::now() + remaining;
        let short = certificates.issue("127.0.0.1", ends_soon - DAY..ends_soon);
        match Tls::read(certificates.files("short", &short), None) {
            Ok(expiring) => break (ends_soon, short, expiring),
            Err(_) if SystemTime::now() + Duration::from_secs(1) > ends_soon => remaining *= 2,
            Err(error) => panic!("{error}"),
        }
    };
    let good = TransportKind::Tls(certificates.tls("127.0.0.1"));
    while SystemTime::now() < ends_soon + Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (connected, accepted) =
        handshake_both(good.clone(), TransportKind::Tls(expiring.clone())).await;
    assert!(error_text(connected).contains("xpired"));
    assert!(accepted.is_err());
    let (connected, accepted) = handshake_both(TransportKind::Tls(expiring), good).await;
    assert!(error_text(accepted).contains("xpired"));
    assert!(connected.is_err());
    let error = Tls::read(certificates.files("short", &short), None).unwrap_err();
    assert!(format!("{:#}", anyhow::Error::from(error)).contains("xpired"));
}

#[tokio::test]
async fn plain_tcp_and_tls_refuse_each_other() {
    let certificates = Certificates::new();
    let tls = TransportKind::Tls(certificates.tls("127.0.0.1"));
    let (connected, accepted) = handshake_both(TransportKind::Plain, tls.clone()).await;
    assert!(connected.is_err());
    assert!(matches!(accepted, Err(ConnectionError::Tls(_))), "{accepted:?}");
    let (connected, accepted) = handshake_both(tls, TransportKind::Plain).await;
    assert!(
        matches!(connected, Err(ConnectionError::Tls(_) | ConnectionError::Io(_))),
        "{connected:?}"
    );
    assert!(accepted.is_err());
}

#[tokio::test]
async fn bytes_that_are_not_tls_are_refused_with_an_alert() {
    let certificates = Certificates::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = config("b", TransportKind::Tls(certificates.tls("127.0.0.1")));
    let server = tokio::spawn(async move {
        let mut ends = Vec::new();
        for _ in 0..3 {
            let (stream, _) = listener.accept().await.unwrap();
            ends.push(
                handshake::open(&accepting, stream, Side::Accepting, TIME_LIMIT).await.map(drop),
            );
        }
        ends
    });
    let endless_record = [22, 3, 1, 0xff, 0xff];
    let endless_message =
        [&[22, 3, 1, 0x40, 0][..], &[1, 0xff, 0xff, 0xff], &[0; 0x4000 - 4]].concat();
    for (what, sent) in [
        ("garbage", vec![0xa5; 3000]),
        ("a record that is too long", endless_record.to_vec()),
        ("a message that is too long", endless_message.repeat(20)),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(&sent).await;
        let mut answer = Vec::new();
        match timeout(TIME_LIMIT, stream.read_to_end(&mut answer)).await.unwrap() {
            Ok(_) => assert_eq!(answer.first(), Some(&21), "{what}"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{what}"),
        }
    }
    for end in timeout(TIME_LIMIT, server).await.unwrap().unwrap() {
        assert!(matches!(end, Err(ConnectionError::Tls(_))), "{end:?}");
    }
}

#[tokio::test]
async fn new_certificates_count_without_a_restart_and_bad_ones_do_not() {
    let (old, new) = (Certificates::new(), Certificates::new());
    let files = old.files("node", &old.issue("127.0.0.1", today()));
    let tls = Tls::read(files.clone(), None).unwrap();
    let old_peer = TransportKind::Tls(old.tls("127.0.0.1"));
    let new_peer = TransportKind::Tls(new.tls("127.0.0.1"));
    let works = async |peer: &TransportKind| {
        let (connected, accepted) =
            handshake_both(peer.clone(), TransportKind::Tls(tls.clone())).await;
        connected.is_ok() && accepted.is_ok()
    };
    assert!(works(&old_peer).await && !works(&new_peer).await);
    let issued = new.issue("127.0.0.1", today());
    write(&files.cert, &issued.cert);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(works(&old_peer).await && !works(&new_peer).await);
    write(&files.key, &issued.key);
    write(&files.ca, &new.authority.cert);
    let changed = async {
        while !works(&new_peer).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TIME_LIMIT, changed).await.expect("the new certificate counts");
    assert!(!works(&old_peer).await);
}

async fn handshake_raw(
    certificates: &Certificates,
    config: ClientConfig,
) -> (Option<rustls::Error>, ConnectionError) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = config_of_store(certificates);
    let store = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        handshake::open(&accepting, stream, Side::Accepting, TIME_LIMIT).await.map(drop)
    });
    let visitor = tokio::task::spawn_blocking(move || {
        let name = address.ip().to_string().try_into().unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        let mut stream = rustls::Stream::new(&mut connection, &mut stream);
        let error = std::io::Read::read_to_end(&mut stream, &mut Vec::new()).err()?;
        error.get_ref()?.downcast_ref::<rustls::Error>().cloned()
    });
    let visitor = timeout(TIME_LIMIT, visitor).await.unwrap().unwrap();
    (visitor, timeout(TIME_LIMIT, store).await.unwrap().unwrap().unwrap_err())
}

fn config_of_store(certificates: &Certificates) -> DataConfig {
    config("b", TransportKind::Tls(certificates.tls("127.0.0.1")))
}

#[tokio::test]
async fn a_member_of_another_protocol_gets_a_typed_refusal() {
    let certificates = Certificates::new();
    let config = certificates.tls("127.0.0.1").client(Protocol::Http2);
    let (client_error, found) = handshake_raw(&certificates, ClientConfig::clone(&config)).await;
    assert_eq!(
        client_error,
        Some(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol))
    );
    assert!(found.to_string().contains("does not say (by ALPN)"), "{found}");
}

#[tokio::test]
async fn a_member_that_names_no_protocol_is_refused() {
    let certificates = Certificates::new();
    let config = certificates.tls("127.0.0.1").client(Protocol::Data);
    let mut config = ClientConfig::clone(&config);
    config.alpn_protocols.clear();
    let (_, found) = handshake_raw(&certificates, config).await;
    assert!(matches!(found, ConnectionError::Tls(_)), "{found:?}");
    assert!(found.to_string().contains("does not say (by ALPN)"), "{found}");
}

#[tokio::test]
async fn a_refused_peer_gets_the_reason_despite_unread_bytes() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let files = theirs.files("node", &theirs.issue("127.0.0.1", today()));
    write(&files.ca, &format!("{}{}", theirs.authority.cert, ours.authority.cert));
    let stranger = Tls::read(files, None).unwrap();
    let (connected, accepted) =
        handshake_both(TransportKind::Tls(stranger), TransportKind::Tls(ours.tls("127.0.0.1")))
            .await;
    assert!(error_text(accepted).contains("does not come from the authority"));
    let connected = error_text(connected);
    assert!(connected.contains("does not accept the certificate of this daemon"), "{connected}");
}

#[tokio::test]
async fn a_long_handshake_message_is_refused_before_it_is_buffered() {
    let certificates = Certificates::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = config_of_store(&certificates);
    let store = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        handshake::open(&accepting, stream, Side::Accepting, TIME_LIMIT).await.map(drop)
    });
    let head = [&[22, 3, 1, 0x40, 0][..], &[1, 0, 0xff, 0xff], &[0; 0x4000 - 4]].concat();
    let more = [&[22, 3, 1, 0x40, 0][..], &[0; 0x4000]].concat();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream.write_all(&[head, more.clone(), more].concat()).await;
    let error = timeout(TIME_LIMIT, store).await.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}
