//! A shard that stands still while stores give up their sessions with it.

use std::time::Duration;

use bytes::Bytes;
use futures::channel::mpsc::unbounded;
use hoplite_core::Error;
use hoplite_proto::PROTOCOL_VERSION;
use hoplite_proto::status::from_status;
use hoplite_proto::v1::directory_client::DirectoryClient;
use hoplite_proto::v1::store_message::{Body, Delete};
use hoplite_proto::v1::{Hello, StoreMessage, StoreMessages};
use hoplite_tests::cluster::Cluster;
use rustix::process::Signal;

use super::TIME_LIMIT;

/// Longer than the silence after which a store gives up a session.
const PAUSE: Duration = Duration::from_millis(1500);

#[test]
fn a_delete_that_waited_for_a_frozen_shard_is_discarded() {
    let mut cluster = Cluster::open(2);
    cluster.client(0).put("x", &[7; 100_000]).unwrap();
    let shard = cluster.shards[0].as_ref().unwrap();
    let hello = Hello {
        version: PROTOCOL_VERSION,
        cluster: "hoplite".to_owned(),
        node: "raw".to_owned(),
        incarnation: 7,
        data_address: "127.0.0.1:9".to_owned(),
        shards: cluster.shard_addresses.clone(),
        ..Hello::default()
    };
    let delete = Delete { request: 1, id: Bytes::from_static(b"x"), ..Delete::default() };
    let delete = StoreMessage { body: Some(Body::Delete(delete)), ..StoreMessage::default() };
    let session = async {
        let mut client = DirectoryClient::connect(format!("http://{}", cluster.shard_addresses[0]))
            .await
            .unwrap();
        let (frames, inbound) = unbounded();
        frames.unbounded_send(StoreMessages { hello: Some(hello), messages: vec![] }).unwrap();
        let mut answers = client.session(inbound).await.unwrap().into_inner();
        assert!(answers.message().await.unwrap().unwrap().welcome.is_some());
        shard.signal(Signal::STOP);
        frames.unbounded_send(StoreMessages { hello: None, messages: vec![delete] }).unwrap();
        tokio::time::sleep(PAUSE).await;
        shard.signal(Signal::CONT);
        loop {
            match answers.message().await {
                Ok(answer) => assert!(answer.is_some(), "the session ends with the cause"),
                Err(status) => return from_status(&status),
            }
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended =
        runtime.block_on(async { tokio::time::timeout(TIME_LIMIT, session).await.unwrap() });
    assert!(matches!(ended, Error::Unavailable { .. }), "{ended}");
    for node in 0..2 {
        cluster.await_sessions(node);
        assert_eq!(cluster.client(node).get("x", TIME_LIMIT).unwrap()[..], [7; 100_000]);
    }
    cluster.assert_serves();
}
