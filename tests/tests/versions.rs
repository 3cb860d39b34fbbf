//! What docs/compatibility.md promises of programs that speak another version of the protocol.

use hoplite_core::{Error, ErrorCode};
use hoplite_proto::PROTOCOL_VERSION;
use hoplite_proto::status::from_status;
use hoplite_proto::v1::directory_client::DirectoryClient;
use hoplite_proto::v1::{ClientHello, Hello, ServerHello, StoreMessages};
use hoplite_tests::cluster::Cluster;
use hoplite_tests::raw::{Kind, RawClient, RawPeer, data_frame, hello};
use prost::Message;

/// The version that programs of the time before this one speak.
const PREVIOUS: u32 = PROTOCOL_VERSION - 1;

#[test]
fn a_client_of_the_previous_version_is_told_both_versions() {
    let mut cluster = Cluster::of(1);
    let mut client = RawClient::connect(&cluster.socket(0));
    client.say(&ClientHello { version: PREVIOUS, program: "old".to_owned(), ..Default::default() });
    let answer: ServerHello = client.hear().expect("the store says why");
    let error = answer.error.expect("it is refused");
    assert_eq!(error.code, ErrorCode::VersionMismatch as u32);
    assert_eq!((error.a, error.b), (PROTOCOL_VERSION.into(), PREVIOUS.into()));
    client.await_close();
    cluster.assert_serves();
}

#[test]
fn a_store_of_the_previous_version_is_told_both_versions_by_the_directory() {
    let mut cluster = Cluster::of(1);
    let address = cluster.shard_addresses[0].clone();
    let hello = Hello {
        version: PREVIOUS,
        cluster: "hoplite".to_owned(),
        node: "old".to_owned(),
        data_address: "127.0.0.1:9".to_owned(),
        shards: vec![address.clone()],
        ..Hello::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime.block_on(async {
        let mut client = DirectoryClient::connect(format!("http://{address}")).await.unwrap();
        let said = StoreMessages { hello: Some(hello), messages: vec![] };
        let open = futures::StreamExt::chain(futures::stream::iter([said]), futures::stream::pending());
        client.session(open).await?.into_inner().message().await
    });
    let error = from_status(&ended.expect_err("it is refused"));
    // From where the store stands.
    assert_eq!(error, Error::VersionMismatch { ours: PREVIOUS, theirs: PROTOCOL_VERSION });
    cluster.assert_serves();
}

#[test]
fn a_store_of_the_previous_version_is_not_served_by_others() {
    let mut cluster = Cluster::of(1);
    cluster.client(0).put("object", &[7; 100_000]).unwrap();
    let mut peer = RawPeer::connect(&cluster.data_address(0));
    peer.send_bytes(&data_frame(Kind::Hello, &hello("hoplite", PREVIOUS).encode_to_vec()));
    peer.await_close();
    cluster.assert_serves();
}
