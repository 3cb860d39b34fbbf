use std::pin::pin;

use bytes::Bytes;
use hoplite_core::Operation;
use hoplite_core::lifetime::Owner;
use hoplite_core::node::{self, OwnerlessPage, Response};

use crate::begun::{REPORT_TIMEOUT, Repeat, Wait};
use crate::client::Client;
use crate::error::Result;

impl Client {
    /// Owner name of this client and its clones. Objects with this owner in their
    /// [`Lifetime`](crate::Lifetime) end after the client's last connection, view and writer.
    pub fn owner(&self) -> Owner {
        self.connection().owner().clone()
    }

    /// Lists at most `limit` ownerless objects put at this store, whose id begins with
    /// `prefix` and is greater than `after`. An object is ownerless if its owner is gone, or if it
    /// has no lifetime and its putting client is gone. A page may be empty although others follow.
    pub async fn ownerless(
        &self,
        prefix: impl AsRef<[u8]>,
        after: impl AsRef<[u8]>,
        limit: usize,
    ) -> Result<OwnerlessPage> {
        let (prefix, after) = (prefix.as_ref(), after.as_ref());
        let call = self.begin_report().await?;
        let connection = &call.connection;
        let request = node::Request::ListOwnerless {
            prefix: Bytes::copy_from_slice(prefix),
            after: Bytes::copy_from_slice(after),
            limit,
        };
        let list = pin!(async {
            match connection.call_node(request, Operation::Connect, REPORT_TIMEOUT).await? {
                Response::Ownerless(page) => Ok(page),
                _ => Err(connection.unexpected()),
            }
        });
        call.run(Wait { operation: "list", id: None, needs: &[] }, Repeat::Harmless, list).await
    }
}
