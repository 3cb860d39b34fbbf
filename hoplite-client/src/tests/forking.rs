//! Tests of forked children: another process number stands for a fork.

use std::sync::Arc;

use hoplite_core::node::{CopyId, Request};
use hoplite_core::{ObjectId, Operation};

use super::{FakeStore, LONG, connect};
use crate::connection::{Connection, Role, handshake};
use crate::location_watch::LocationWatch;
use crate::reference::Reference;
use crate::{ConnectOptions, Error, ErrorCode};

#[tokio::test]
async fn a_forked_child_can_neither_use_nor_disturb_the_connection() {
    let store = FakeStore::start();
    let options =
        ConnectOptions { socket: store.socket(), ..ConnectOptions::default() }.with_own_owner();
    let greeted = tokio::task::spawn_blocking(move || handshake::greet(&options, options.timeout))
        .await
        .unwrap()
        .unwrap();
    let current = std::process::id();
    let connection = Connection::start_in(current - 1, greeted).unwrap();

    let request = Request::Get {
        id: ObjectId::new("a").unwrap(),
        until: hoplite_core::node::Until::Complete,
        timeout: LONG,
        allow_stale: false,
    };
    let error = connection.call_node(request, Operation::Get, LONG).await.unwrap_err();
    assert!(
        matches!(error, Error::ForkedChild { connected, current: here } if connected == current - 1 && here == current)
    );
    assert_eq!(error.code(), ErrorCode::ForkedChild);
    assert!(connection.ring(CopyId(1)).is_err());
    assert!(LocationWatch::open(&connection, ObjectId::new("a").unwrap()).is_err());
    drop(Reference::new(Arc::clone(&connection), CopyId(1), Role::Reader));
    drop(Reference::new(Arc::clone(&connection), CopyId(1), Role::Writer));
    drop(connection);

    // The fake store would panic on use of the connection.
    let client = connect(&store).await;
    client.status().await.unwrap();
    assert_eq!(store.state().requests.len(), 1);
    assert_eq!(store.state().ended_clients, 0);
}
