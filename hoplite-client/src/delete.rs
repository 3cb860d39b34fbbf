use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use hoplite_core::missing::Named;
use hoplite_core::node::{self, Response};
use hoplite_core::shard::DeleteWait;
use hoplite_core::{Error as ObjectError, NodeId, ObjectId, Operation};

use crate::begun::{Repeat, Wait};
use crate::client::{Client, checked};
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::timeout::default_timeout;

/// Options of a delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Total time to wait; by default [`default_timeout`].
    pub timeout: Duration,
    /// Stores to wait for; by default [`DeleteWait::Reachable`].
    pub wait: DeleteWait,
}

impl Default for DeleteOptions {
    fn default() -> Self {
        Self { timeout: default_timeout(), wait: DeleteWait::Reachable }
    }
}

impl From<Duration> for DeleteOptions {
    fn from(timeout: Duration) -> Self {
        Self { timeout, wait: DeleteWait::Reachable }
    }
}

/// Result of a delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// Number of ids that named an object, without objects that a shard deleted before it failed.
    pub count: usize,
    /// Some of the lost nodes that may still have a copy. A lost node serves no copies, and drops
    /// these when it returns.
    pub absent: Vec<NodeId>,
    /// Number of all lost nodes that may still have a copy.
    pub absent_count: u64,
}

impl Client {
    /// Removes all copies of the objects. Returns the number of ids that named an object. Existing
    /// views stay readable.
    ///
    /// For 5 s (by default) after its restart, a directory shard delays deletes of unknown ids.
    ///
    /// # Errors
    /// `Timeout` if the deletion is not confirmed in time. Known copies are still removed.
    pub async fn delete<I>(&self, ids: I, timeout: Duration) -> Result<usize>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        Ok(self.delete_with(ids, timeout.into()).await?.count)
    }

    /// Deletes objects as [`Client::delete`] does. Depending on `options.wait`, returns lost nodes
    /// that may have a copy, or waits for them.
    ///
    /// # Errors
    /// As for [`Client::delete`]. If all nodes must confirm, `Timeout` names the nodes that did
    /// not. A shard forgets a lost node after 10 minutes.
    pub async fn delete_with<I>(&self, ids: I, mut options: DeleteOptions) -> Result<Deletion>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let ids = checked(ids, usize::MAX)?;
        let call = self.begin(&mut options.timeout).await?;
        let connection = &call.connection;
        connection.check_usable()?;
        ids.iter().for_each(|id| connection.recent_puts().forget(id));
        let first = ids.first().cloned();
        let delete = pin!(delete(connection, ids, options));
        let wait = Wait { operation: "delete", id: first.as_ref(), needs: &[] };
        call.run(wait, Repeat::IfUnsent, delete).await
    }
}

/// Deletes in parts that fit into one request. Sends all parts, even if one times out.
async fn delete(
    connection: &Connection,
    ids: Vec<ObjectId>,
    options: DeleteOptions,
) -> Result<Deletion> {
    let deadline = Deadline::after(options.timeout);
    let (mut count, mut absent, mut most, mut late) = (0, BTreeSet::new(), 0, None);
    for part in ids.chunks(connection.max_ids().max(1)) {
        let options = DeleteOptions { timeout: deadline.left(), ..options };
        match delete_part(connection, part.to_vec(), options).await {
            Ok((deleted, nodes)) => {
                count += deleted;
                most = nodes.count.max(most);
                absent.extend(nodes.first);
            }
            Err(error @ Error::Object(ObjectError::Timeout { .. })) => late = Some(error),
            Err(error) => return Err(error),
        }
    }
    let absent_count = most.max(absent.len() as u64);
    let deletion = Deletion { count, absent: absent.into_iter().collect(), absent_count };
    late.map_or(Ok(deletion), Err)
}

async fn delete_part(
    connection: &Connection,
    ids: Vec<ObjectId>,
    DeleteOptions { timeout, wait }: DeleteOptions,
) -> Result<(usize, Named<NodeId>)> {
    let request = node::Request::Delete { ids, timeout, wait };
    match connection.call_node(request, Operation::Delete, timeout).await? {
        Response::Deleted { count, absent } => Ok((count, absent)),
        _ => Err(connection.unexpected()),
    }
}
