//! A reduce of several objects into one.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use hoplite_core::node::{self, Response};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::{ObjectId, Operation};

use crate::begun::{Repeat, Wait};
use crate::client::{Client, checked};
use crate::connection::Connection;
use crate::error::Result;
use crate::options::ReduceOptions;
use crate::progress;
use crate::reader::get_tracked;

/// The time that the count of a complete target may take.
const COUNT_TIMEOUT: Duration = Duration::from_secs(1);

impl Client {
    /// Reduces equally shaped arrays element by element into the new object `target`: all of `sources`, in any order.
    ///
    /// The same as [`Client::reduce_with`] with the other [`ReduceOptions`] by default.
    ///
    /// # Errors
    /// Those of [`Client::reduce_with`].
    pub async fn reduce<I>(
        &self,
        target: impl AsRef<[u8]>,
        sources: I,
        op: ReduceOp,
        timeout: Duration,
    ) -> Result<Vec<ObjectId>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.reduce_with(target, sources, ReduceOptions { op, timeout, ..ReduceOptions::default() }).await
    }

    /// Reduces equally shaped arrays element by element into the new object `target`, and returns the ids that were
    /// reduced, in the order in which they joined, or in that of the list if it is fixed.
    ///
    /// The sources need not exist yet, and may be anywhere in the cluster; each joins when its first bytes are there. The
    /// target has their type and shape. It is made on this node and pinned there as by a put. Once it begins to exist, it can
    /// be got, or be the source of another reduce. The call returns when it is complete.
    ///
    /// Integers wrap around. Elements of f16 and bf16 are rounded after every operation. A NaN in any source makes the
    /// element of the target a NaN, even of a minimum or maximum. Sums and products of floats may differ by rounding from
    /// run to run, unless the order is [`ReduceOrder::Fixed`](crate::ReduceOrder::Fixed): then they are combined from left
    /// to right, as listed. All other results have the same bits in any order.
    ///
    /// # Errors
    /// Before anything is sent: `DuplicateId` if an object is named twice, the target included; `InvalidRequest` if there are
    /// no sources, or fewer than are to be reduced. Later: `TypeMismatch`, which names the source whose type, shape or size
    /// is not that of the others, or for whose type the operation is not defined; `AlreadyExists` if there is an object
    /// `target`; `ObjectLost` if a source is gone that no other can replace; `Deleted` if the target was deleted;
    /// `StoreFull`, `ObjectTooLarge`; `Timeout` if too few sources appear, or they take too long.
    ///
    /// # Cancel safety
    /// If it is cancelled, the reduce ends everywhere, and the target is aborted unless it was complete.
    pub async fn reduce_with<I>(
        &self,
        target: impl AsRef<[u8]>,
        sources: I,
        options: ReduceOptions,
    ) -> Result<Vec<ObjectId>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let (target, call) = (ObjectId::new(target)?, self.begin(options.timeout).await?);
        let sources = checked(sources, call.connection.max_ids())?;
        let reduce = pin!(tracked_reduce(&call.connection, target.clone(), sources.clone(), options));
        let wait = Wait { operation: "reduce", id: Some(&target), needs: &sources };
        call.run(wait, Repeat::IfUnsent, reduce).await
    }
}

/// Reduces, and counts the bytes of the target while they are made, if the call is tracked. The target is made on this node, so that
/// nothing is moved for the count.
async fn tracked_reduce(
    connection: &Arc<Connection>,
    target: ObjectId,
    sources: Vec<ObjectId>,
    options: ReduceOptions,
) -> Result<Vec<ObjectId>> {
    let timeout = options.timeout;
    let reduce = pin!(reduce(connection, target.clone(), sources, options));
    if !progress::is_tracked() {
        return reduce.await;
    }
    match select(reduce, pin!(get_tracked(connection, target.clone(), timeout))).await {
        Either::Right((_, reduce)) => reduce.await,
        Either::Left((Ok(reduced), count)) => {
            // The target is complete. Only the count may fail: somebody may have deleted the target.
            let _ = connection.within(COUNT_TIMEOUT, count).await;
            Ok(reduced)
        }
        Either::Left((Err(error), _)) => Err(error),
    }
}

pub(super) async fn reduce(
    connection: &Connection,
    target: ObjectId,
    sources: Vec<ObjectId>,
    options: ReduceOptions,
) -> Result<Vec<ObjectId>> {
    let ReduceOptions { op, num_objects, order, range, timeout } = options;
    let count = num_objects.unwrap_or(sources.len());
    let reduce = node::Reduce { target, sources: sources.clone(), count, op, order, range, timeout };
    reduce.check()?;
    match connection.call_node(node::Request::Reduce(reduce), Operation::Reduce, timeout).await? {
        Response::Reduced { indices } if indices.len() == count => indices
            .iter()
            .map(|index| sources.get(*index).cloned())
            .collect::<Option<_>>()
            .ok_or_else(|| connection.unexpected()),
        _ => Err(connection.unexpected()),
    }
}
