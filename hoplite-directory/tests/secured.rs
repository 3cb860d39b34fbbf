//! A directory, stores with its credentials, and strangers.
#![expect(clippy::unwrap_used, reason = "the functions around the tests are tests too")]

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use hoplite_core::{ClusterId, Error, ErrorCode, NodeId, id::Incarnation, shard::NodeInfo};
use hoplite_directory::{DirectoryConfig, DirectoryError};
use hoplite_net::opening::Caller;
use hoplite_net::{Authority, Credentials, Route, Tls, TlsFiles, Token};
use hoplite_proto::directory::encode_hello;
use hoplite_proto::status::from_status;
use hoplite_proto::v1;
use hoplite_proto::v1::directory_client::DirectoryClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

const TIME_LIMIT: Duration = Duration::from_secs(300);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), DirectoryError>>,
}

type Client = DirectoryClient<Channel>;

impl Server {
    async fn start(credentials: Credentials) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let config = DirectoryConfig { credentials, ..DirectoryConfig::default() };
        let task = tokio::spawn(hoplite_directory::run(config, None, listener, shutdown.clone()));
        Self { address, shutdown, task }
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    async fn client(&self, credentials: &Credentials) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        DirectoryClient::new(credentials.channel(&endpoint, Caller::default(), Route::Network))
    }

    async fn stop(self) {
        self.shutdown.cancel();
        timeout(TIME_LIMIT, self.task).await.expect("the server stops").unwrap().unwrap();
    }
}

fn token(secret: &[u8]) -> Credentials {
    Credentials { token: Some(Token::new(secret).unwrap()), ..Credentials::default() }
}

fn hello() -> v1::StoreMessages {
    let info = NodeInfo {
        node: NodeId::new("n").unwrap(),
        incarnation: Incarnation(1),
        data_address: "127.0.0.1:9".parse().unwrap(),
        labels: Vec::new(),
        shards: hoplite_core::placement::ShardList::new(["127.0.0.1:7401"]),
        version: hoplite_core::Version::NEWEST,
    };
    let cluster = ClusterId::new(hoplite_directory::DEFAULT_CLUSTER).unwrap();
    v1::StoreMessages { hello: Some(encode_hello(&info, &cluster)), messages: Vec::new() }
}

async fn direct_session(server: &Server, credentials: &Credentials) -> Result<(), Error> {
    let uri = format!("http://{}", server.address).parse().unwrap();
    let connected = credentials.connect_direct(&uri, &Caller::default(), &Route::Network).await;
    let (mut reader, mut writer) = connected.map_err(|error| credentials.error_of(&error))?;
    writer.write(&hello()).await.unwrap();
    let first = timeout(TIME_LIMIT, reader.next::<v1::ShardMessages>(4096)).await.unwrap()?;
    first.unwrap().welcome.expect("the store is welcome");
    Ok(())
}

async fn all_calls(client: &mut Client) -> Vec<Result<(), Status>> {
    let says = futures::stream::once(std::future::ready(hello()));
    let session = async {
        let mut answers = client.clone().session(says).await?.into_inner();
        answers.message().await?.unwrap().welcome.unwrap();
        Ok(())
    };
    vec![
        timeout(TIME_LIMIT, session).await.unwrap(),
        client
            .watch(futures::stream::iter([v1::LoadReport {
                node: "n".to_owned(),
                ..Default::default()
            }]))
            .await
            .map(drop),
        client.list(v1::ListRequest::default()).await.map(drop),
        client.describe(v1::DescribeRequest { id: b"x".as_slice().into() }).await.map(drop),
        client.status(v1::StatusRequest::default()).await.map(drop),
    ]
}

#[tokio::test]
async fn a_client_with_the_token_is_served_and_others_are_told_that_one_is_required() {
    let credentials = token(b"a secret of the tests");
    let server = Server::start(credentials.clone()).await;
    for answer in all_calls(&mut server.client(&credentials).await).await {
        answer.unwrap();
    }
    direct_session(&server, &credentials).await.unwrap();
    for (who, presented) in
        [("nobody", Credentials::default()), ("another", token(b"another secret of the tests"))]
    {
        for answer in all_calls(&mut server.client(&presented).await).await {
            let error = presented.error_of(&answer.unwrap_err());
            assert_eq!(error.code(), ErrorCode::PermissionDenied, "{who}: {error}");
            assert!(
                matches!(error, Error::PermissionDenied { reason } if reason.contains("token")),
                "{who}"
            );
        }
        let error = direct_session(&server, &presented).await.unwrap_err();
        assert!(
            matches!(error, Error::PermissionDenied { reason } if reason.contains("token")),
            "{who}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn calls_on_a_connection_that_has_shown_no_token_are_refused() {
    let server = Server::start(token(b"a secret of the tests")).await;
    let status = |client: &mut DirectoryClient<Channel>| {
        let mut client = client.clone();
        async move { client.status(v1::StatusRequest::default()).await.unwrap_err() }
    };
    let mut client = DirectoryClient::new(server.channel().await);
    let refusal = status(&mut client).await;
    assert_eq!(from_status(&refusal).code(), ErrorCode::PermissionDenied, "{refusal}");
    let huge = |mut request: Request<()>| {
        request.metadata_mut().insert("authorization", "x".repeat(1 << 20).parse().unwrap());
        Ok(request)
    };
    let mut client = DirectoryClient::with_interceptor(server.channel().await, huge);
    assert!(client.status(v1::StatusRequest::default()).await.is_err());
    server.stop().await;
}

async fn record_handshake(server: &Server, credentials: &Credentials) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shard = server.address;
    let relay = tokio::spawn(async move {
        let (mut member, _) = listener.accept().await.unwrap();
        let mut shard = TcpStream::connect(shard).await.unwrap();
        let (mut from_shard, mut to_shard) = shard.split();
        let (mut from_member, mut to_member) = member.split();
        let mut recorded = Vec::new();
        let listening = async {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = from_member.read(&mut part).await {
                recorded.extend_from_slice(&part[..length]);
                to_shard.write_all(&part[..length]).await.unwrap();
            }
        };
        tokio::select! {
            () = listening => {}
            _ = tokio::io::copy(&mut from_shard, &mut to_member) => {}
        }
        recorded
    });
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut member =
        DirectoryClient::new(credentials.channel(&endpoint, Caller::default(), Route::Network));
    member.status(v1::StatusRequest::default()).await.unwrap();
    drop(member);
    timeout(TIME_LIMIT, relay).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_replayed_handshake_opens_no_connection() {
    let credentials = token(b"a secret of the tests");
    let server = Server::start(credentials.clone()).await;
    let recorded = record_handshake(&server, &credentials).await;
    assert!(recorded.len() > 200);
    let mut replayed = TcpStream::connect(server.address).await.unwrap();
    replayed.write_all(&recorded).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(TIME_LIMIT, replayed.read_to_end(&mut answer)).await.expect("it is closed");
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains("another token"), "the proof is of another connection: {text:?}");
}

#[tokio::test]
async fn a_process_without_the_token_cannot_pose_as_a_shard() {
    let credentials = token(b"a secret of the tests");
    let rogue = Server::start(token(b"a secret of the rogue")).await;
    let status =
        rogue.client(&credentials).await.status(v1::StatusRequest::default()).await.unwrap_err();
    let error = credentials.error_of(&status);
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
    let open = Server::start(Credentials::default()).await;
    let status =
        open.client(&credentials).await.status(v1::StatusRequest::default()).await.unwrap_err();
    let error = credentials.error_of(&status);
    assert!(
        error.to_string().contains("this program has a token, and the directory has none"),
        "{error}"
    );
    rogue.stop().await;
    open.stop().await;
}

#[tokio::test]
async fn health_is_open_and_reflection_is_not() {
    use tonic_health::pb::health_client::HealthClient;
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;

    let credentials = token(b"a secret of the tests");
    let server = Server::start(credentials.clone()).await;
    let mut health = HealthClient::new(server.channel().await);
    health.check(tonic_health::pb::HealthCheckRequest::default()).await.unwrap();
    let reflect = || futures::stream::once(std::future::ready(ServerReflectionRequest::default()));
    let mut stranger = ServerReflectionClient::new(server.channel().await);
    let status = stranger.server_reflection_info(reflect()).await.unwrap_err();
    assert_eq!(from_status(&status).code(), ErrorCode::PermissionDenied);
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    let channel = credentials.channel(&endpoint, Caller::default(), Route::Network);
    let mut member = ServerReflectionClient::new(channel);
    member.server_reflection_info(reflect()).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_connection_without_a_call_that_has_the_token_is_closed_in_time() {
    let server = Server::start(token(b"a secret of the tests")).await;
    let started = Instant::now();
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let mut speaks = TcpStream::connect(server.address).await.unwrap();
    speaks.write_all(PREFACE).await.unwrap();
    for stream in [&mut silent, &mut speaks] {
        let _ =
            timeout(TIME_LIMIT, stream.read_to_end(&mut Vec::new())).await.expect("it is closed");
    }
    assert!(started.elapsed() > Duration::from_secs(4), "members need a moment too");
    server.stop().await;
}

#[tokio::test]
async fn many_silent_connections_do_not_block_others() {
    let credentials = token(b"a secret of the tests");
    let server = Server::start(credentials.clone()).await;
    let mut strangers = Vec::new();
    for _ in 0..1500 {
        let Ok(mut stranger) = TcpStream::connect(server.address).await else { break };
        let _ = stranger.write_all(PREFACE).await;
        strangers.push(stranger);
    }
    drop(strangers.split_off(strangers.len().saturating_sub(8)));
    for answer in all_calls(&mut server.client(&credentials).await).await {
        answer.unwrap();
    }
    server.stop().await;
}

fn tls(place: &Path, name: &str, issuer: &Authority, trusted: &[&Authority]) -> Credentials {
    let day = Duration::from_secs(24 * 3600);
    let now = SystemTime::now();
    let issued = issuer.issue(&[name.to_owned()], now - day..now + day).unwrap();
    let write = |file: &str, text: &str| {
        let path = place.join(file);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let ca: String = trusted.iter().map(|authority| authority.cert.as_str()).collect();
    let files = TlsFiles {
        cert: write("cert", &issued.cert),
        key: write("key", &issued.key),
        ca: write("ca", &ca),
    };
    Credentials { tls: Some(Tls::read(files, None).unwrap()), ..Credentials::default() }
}

fn authority() -> Authority {
    let now = SystemTime::now();
    Authority::new(now - Duration::from_secs(60)..now + Duration::from_secs(3600)).unwrap()
}

#[tokio::test]
async fn with_certificates_only_members_are_served() {
    let place = tempfile::tempdir().unwrap();
    let (ours, theirs) = (authority(), authority());
    let server = Server::start(tls(place.path(), "127.0.0.1", &ours, &[&ours])).await;
    let member = tls(place.path(), "elsewhere", &ours, &[&ours]);
    for answer in all_calls(&mut server.client(&member).await).await {
        answer.unwrap();
    }
    direct_session(&server, &member).await.unwrap();
    let strangers = [
        ("no TLS", Credentials::default()),
        ("another authority", tls(place.path(), "127.0.0.1", &theirs, &[&theirs])),
        (
            "another authority, trusting ours",
            tls(place.path(), "127.0.0.1", &theirs, &[&theirs, &ours]),
        ),
    ];
    for (who, credentials) in strangers {
        for answer in all_calls(&mut server.client(&credentials).await).await {
            let status = answer.expect_err(who);
            assert!(matches!(from_status(&status), Error::Unavailable { .. }), "{who}: {status}");
        }
        let error = direct_session(&server, &credentials).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{who}: {error}");
        let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
        let mut health = tonic_health::pb::health_client::HealthClient::new(credentials.channel(
            &endpoint,
            Caller::default(),
            Route::Network,
        ));
        assert!(
            health.check(tonic_health::pb::HealthCheckRequest::default()).await.is_err(),
            "{who}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn a_directory_with_a_certificate_of_another_host_is_rejected() {
    let place = tempfile::tempdir().unwrap();
    let ours = authority();
    let server = Server::start(tls(place.path(), "127.0.0.2", &ours, &[&ours])).await;
    let member = tls(place.path(), "elsewhere", &ours, &[&ours]);
    let status =
        server.client(&member).await.status(v1::StatusRequest::default()).await.unwrap_err();
    assert!(matches!(from_status(&status), Error::Unavailable { .. }), "{status}");
    server.stop().await;
}

#[tokio::test]
async fn an_unfinished_tls_handshake_is_closed_in_time() {
    let place = tempfile::tempdir().unwrap();
    let ours = authority();
    let server = Server::start(tls(place.path(), "127.0.0.1", &ours, &[&ours])).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(&[22, 3, 1, 2, 0, 1, 0]).await.unwrap();
    let mut garbage = TcpStream::connect(server.address).await.unwrap();
    garbage.write_all(&[0xa5; 4096]).await.unwrap();
    for stream in [&mut garbage, &mut silent, &mut half] {
        let _ =
            timeout(TIME_LIMIT, stream.read_to_end(&mut Vec::new())).await.expect("it is closed");
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let member = tls(elsewhere.path(), "elsewhere", &ours, &[&ours]);
    server.client(&member).await.status(v1::StatusRequest::default()).await.unwrap();
    server.stop().await;
}
