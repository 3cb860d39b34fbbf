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

const COUNT_TIMEOUT: Duration = Duration::from_secs(1);

impl Client {
    /// Reduces equally shaped arrays element by element into the new object `target`: all of
    /// `sources`, in any order, with the default [`ReduceOptions`].
    ///
    /// # Errors
    /// The errors of [`Client::reduce_with`].
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

    /// Reduces equally shaped arrays element by element into the new object `target`. Returns the
    /// ids of the reduced sources, in the order in which they joined, or in the order of the list
    /// if it is fixed.
    ///
    /// The sources may be created later, anywhere in the cluster; each joins when its first bytes
    /// exist. The target has their type and shape. It is made on this node and pinned there, as by
    /// a put. It can be read, or be the source of another reduce, as soon as it begins to exist.
    /// The call returns when the target is complete.
    ///
    /// Integers wrap around. Elements of f16 and bf16 are rounded after every operation. A NaN in
    /// any source makes the target's element a NaN, even for a minimum or maximum. Sums and
    /// products of floats may differ by rounding between runs, unless the order is
    /// [`ReduceOrder::Fixed`](crate::ReduceOrder::Fixed), which combines from left to right. All
    /// other results have the same bits in any order.
    ///
    /// # Errors
    /// Before anything is sent: `DuplicateId` if an object is named twice, the target included;
    /// `InvalidRequest` if there are no sources, or fewer than the requested number. Later:
    /// `TypeMismatch`, which names a source whose type, shape or size differs, or whose type lacks
    /// the operation; `AlreadyExists` if `target` exists; `ObjectLost` if a source is lost and no
    /// other can replace it; `Deleted` if the target was deleted; `StoreFull`, `ObjectTooLarge`;
    /// `Timeout` if too few sources appear in time.
    ///
    /// # Cancel safety
    /// A cancelled reduce ends everywhere, and the target is aborted unless it was complete.
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

/// Reduces, and counts the bytes of the growing target if the call is tracked. The target is on
/// this node, so counting moves no bytes.
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
    match select(reduce, pin!(get_tracked(connection, target.clone(), timeout.into()))).await {
        Either::Right((_, reduce)) => reduce.await,
        Either::Left((Ok(reduced), count)) => {
            // The target is complete; only the count may fail, because the target may be deleted.
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
