//! Clients that die between any two messages leave nothing.

use hoplite_proto::v1::request::{
    Abort, Body, Create, Delete, Doorbell, Follow, Get, List, Locate, Release, Seal,
    SealUnconfirmed, Subscribe, Wait,
};
use hoplite_proto::v1::response::Body as Answer;
use hoplite_tests::cluster::{Cluster, await_that};
use hoplite_tests::contents::bytes;
use hoplite_tests::raw::RawClient;

use super::TIME_LIMIT;

const TIMEOUT_MS: u64 = 60_000;

fn id(text: &str) -> hoplite_proto::v1::request::Get {
    Get {
        id: text.as_bytes().to_vec().into(),
        until: 0,
        timeout_ms: TIMEOUT_MS,
        allow_stale: false,
    }
}

fn get(text: &str) -> Body {
    Body::Get(id(text))
}

fn get_started(text: &str) -> Body {
    Body::Get(Get { until: 1, ..id(text) })
}

fn create(size_bytes: u64) -> Body {
    let id = b"new".to_vec().into();
    Body::Create(Create { id, size_bytes, metadata: None, timeout_ms: TIMEOUT_MS })
}

fn created(client: &mut RawClient, size_bytes: u64) -> u64 {
    client.request(create(size_bytes));
    match client.answer() {
        Answer::Created(view) => view.copy,
        other => panic!("not created: {other:?}"),
    }
}

fn got(client: &mut RawClient, body: Body) -> u64 {
    client.request(body);
    match client.answer() {
        Answer::Object(view) => view.copy,
        other => panic!("not got: {other:?}"),
    }
}

type Script = fn(&mut RawClient);

const SCRIPTS: &[(&str, Script)] = &[
    ("hello", |_| {}),
    ("half a frame", |client| client.send_bytes(&[100, 0, 0, 0, 8])),
    ("create, not answered", |client| {
        client.request(create(1 << 20));
    }),
    ("create", |client| {
        created(client, 1 << 20);
    }),
    ("create of a small object", |client| {
        created(client, 10);
    }),
    ("create and half a frame", |client| {
        created(client, 1 << 20);
        client.send_bytes(&[100, 0, 0, 0, 8]);
    }),
    ("create and doorbell", |client| {
        let copy = created(client, 1 << 20);
        client.request(Body::Doorbell(Doorbell { copy }));
    }),
    ("create and seal, not answered", |client| {
        let copy = created(client, 1 << 20);
        client.request(Body::Seal(Seal { copy, timeout_ms: TIMEOUT_MS }));
    }),
    ("create, seal", |client| {
        let copy = created(client, 1 << 20);
        client.request(Body::Seal(Seal { copy, timeout_ms: TIMEOUT_MS }));
        client.answer();
    }),
    ("create, seal, release", |client| {
        let copy = created(client, 1 << 20);
        client.request(Body::Seal(Seal { copy, timeout_ms: TIMEOUT_MS }));
        client.answer();
        client.request(Body::Release(Release { copy }));
    }),
    ("create, seal unconfirmed", |client| {
        let copy = created(client, 10);
        client.request(Body::SealUnconfirmed(SealUnconfirmed { copy }));
    }),
    ("create, seal unconfirmed, release, release", |client| {
        let copy = created(client, 10);
        client.request(Body::SealUnconfirmed(SealUnconfirmed { copy }));
        client.request(Body::Release(Release { copy }));
        client.request(Body::Release(Release { copy }));
    }),
    ("create, abort", |client| {
        let copy = created(client, 1 << 20);
        client.request(Body::Abort(Abort { copy }));
    }),
    ("create twice", |client| {
        created(client, 1 << 20);
        client.request(create(1 << 20));
    }),
    ("get what nobody has", |client| {
        client.request(get("nothing"));
    }),
    ("get what nobody has, and create it", |client| {
        client.request(get("new"));
        client.request(create(1 << 20));
    }),
    ("get from another node, not answered", |client| {
        client.request(get("large"));
    }),
    ("get from another node", |client| {
        got(client, get("large"));
    }),
    ("get a small object", |client| {
        got(client, get("small"));
    }),
    ("get twice, release once", |client| {
        let copy = got(client, get("large"));
        got(client, get("large"));
        client.request(Body::Release(Release { copy }));
    }),
    ("everything that waits", |client| {
        let ids: Vec<bytes::Bytes> = vec![b"nothing".to_vec().into(), b"neither".to_vec().into()];
        client.request(Body::Wait(Wait { ids, count: 2, timeout_ms: TIMEOUT_MS }));
        let nothing = || b"nothing".to_vec().into();
        client.request(Body::Locate(Locate { id: nothing(), timeout_ms: TIMEOUT_MS }));
        client.request(Body::Subscribe(Subscribe { id: nothing() }));
        client.request(Body::List(List { limit: 10, ..List::default() }));
        client.request(Body::Delete(Delete {
            ids: vec![nothing()],
            timeout_ms: TIMEOUT_MS,
            wait_all: false,
        }));
    }),
];

const FOLLOWERS: &[(&str, Script)] = &[
    ("get what is being written, and follow it", |client| {
        let copy = got(client, get_started("half"));
        client.request(Body::Follow(Follow {
            copy,
            beyond_bytes: 3 << 19,
            timeout_ms: TIMEOUT_MS,
        }));
    }),
    ("get what is being written", |client| {
        client.request(get("half"));
    }),
];

#[test]
fn a_client_may_die_between_any_two_messages() {
    let mut cluster = Cluster::of(2);
    let here = cluster.client(0);
    let there = cluster.client(1);
    there.put("large", &bytes(1, 2 << 20)).unwrap();
    there.put("small", &bytes(2, 100)).unwrap();
    let mut half = there.create("half", 2 << 20, hoplite_client::PutOptions::default()).unwrap();
    half.write(&bytes(3, 1 << 20)).unwrap();
    let there_before = there.status().unwrap();
    let gone = |what: &str, script: Script| {
        let mut client = RawClient::greeted(&cluster.socket(0));
        script(&mut client);
        drop(client);
        await_that(&format!("the client gone after {what:?}"), || {
            here.status().unwrap().clients == 1
        });
        await_that(&format!("nothing waiting in the directory after {what:?}"), || {
            here.status().unwrap().shards[0].waiting_queries == 0
        });
        let there_now = there.status().unwrap();
        assert_eq!(
            (there_now.copies, there_now.free_bytes),
            (there_before.copies, there_before.free_bytes),
            "{what}"
        );
    };
    for (what, script) in SCRIPTS {
        gone(what, *script);
        here.delete(["new"], TIME_LIMIT).unwrap();
        await_that(&format!("memory back after {what:?}"), || {
            let status = here.status().unwrap();
            let all_is_evictable =
                status.free_bytes + status.evictable_bytes == status.capacity_bytes;
            all_is_evictable && status.pulls == 0 && status.pinned_bytes == 0
        });
    }
    for (what, script) in FOLLOWERS {
        gone(what, *script);
    }
    half.write(&bytes(3, 2 << 20)[1 << 20..]).unwrap();
    half.seal().unwrap();
    assert!(
        here.get("half", TIME_LIMIT).unwrap()[..] == bytes(3, 2 << 20)[..],
        "the writer never noticed"
    );
    assert_eq!(there.delete(["large", "small", "half"], TIME_LIMIT).unwrap(), 3);
    for client in [&here, &there] {
        await_that("all memory back", || {
            let status = client.status().unwrap();
            status.copies == 0 && status.free_bytes == status.capacity_bytes
        });
    }
    cluster.assert_serves();
}
