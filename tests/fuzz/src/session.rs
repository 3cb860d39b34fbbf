//! The control plane: batches of messages in a session.

use std::time::Duration;

use bytes::Bytes;
use hoplite_core::load::Reporter;
use hoplite_core::shard::ToStore;
use hoplite_core::time::Time;
use hoplite_core::{ClusterId, Version};
use hoplite_proto::directory::{
    check_welcome, decode_hello, decode_load, decode_shard_batch, decode_store_batch, encode_hello,
    encode_load, encode_to_shard, encode_to_store,
};
use hoplite_proto::v1;
use prost::Message;

/// Decodes messages of a store.
pub fn store_batch(bytes: &[u8]) {
    load_report(bytes);
    let Ok(batch) = v1::StoreMessages::decode(Bytes::copy_from_slice(bytes)) else { return };
    hello(batch.hello.clone());
    let Ok(decoded) = decode_store_batch(batch) else { return };
    let messages = decoded.iter().cloned().map(encode_to_shard).collect();
    let encoded = v1::StoreMessages { hello: None, messages }.encode_to_vec();
    let again = v1::StoreMessages::decode(&encoded[..]).expect("what was encoded can be decoded");
    assert_eq!(decode_store_batch(again), Ok(decoded));
}

fn hello(hello: Option<v1::Hello>) {
    let cluster = ClusterId::new("c").expect("the name is valid");
    // A wrong cluster would hide all other errors.
    let hello = hello.map(|hello| v1::Hello { cluster: cluster.as_str().to_owned(), ..hello });
    let Some(Ok(info)) = hello.map(|hello| decode_hello(hello, &cluster, Version::NEWEST)) else {
        return;
    };
    assert_eq!(decode_hello(encode_hello(&info, &cluster), &cluster, Version::NEWEST), Ok(info));
}

fn load_report(bytes: &[u8]) {
    let Ok(report) = v1::LoadReport::decode(bytes) else { return };
    let Ok(load) = decode_load(report) else { return };
    let encoded = encode_load(load.clone()).encode_to_vec();
    let again = v1::LoadReport::decode(&encoded[..]).expect("what was encoded can be decoded");
    assert_eq!(decode_load(again), Ok(load.clone()));
    let mut reporter = Reporter::default();
    reporter.watch(Time::ZERO, Duration::ZERO, Duration::MAX);
    for millis in [0, 250, 500] {
        reporter.measured(Time::from_micros(1000 * millis), load.clone());
    }
}

/// Decodes messages of a shard.
pub fn shard_batch(bytes: &[u8]) {
    let Ok(batch) = v1::ShardMessages::decode(Bytes::copy_from_slice(bytes)) else { return };
    let _ = batch.welcome.as_ref().map(|welcome| check_welcome(welcome, Version::NEWEST));
    let Ok(decoded) = decode_shard_batch(batch) else { return };
    assert_eq!(returned(returned(decoded.clone())), decoded);
}

fn returned(messages: Vec<ToStore>) -> Vec<ToStore> {
    let messages = messages.into_iter().map(encode_to_store).collect();
    let encoded = v1::ShardMessages { messages, ..Default::default() }.encode_to_vec();
    let again = v1::ShardMessages::decode(&encoded[..]).expect("what was encoded can be decoded");
    decode_shard_batch(again).expect("what was accepted once is accepted again")
}
