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
    /// Reduces objects as [`Client::reduce_with`] does, with the default [`ReduceOptions`].
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
        self.reduce_with(target, sources, ReduceOptions { op, timeout, ..ReduceOptions::default() })
            .await
    }

    /// Reduces equally shaped arrays element by element into the new object `target`. Returns the
    /// ids of the reduced sources, in the order of joining, or as listed if the order is fixed.
    ///
    /// Sources may be created later, at any node; each joins when its first bytes exist. The target
    /// is pinned on this node, and can be read, or reduced again, while it grows. The call returns
    /// when the target is complete.
    ///
    /// Integers wrap around. f16 and bf16 are rounded after every operation. A NaN in any source
    /// makes the target's element a NaN. Sums and products of floats may differ by rounding between
    /// runs, unless the order is [`ReduceOrder::Fixed`](crate::ReduceOrder::Fixed): from left to
    /// right, as listed. All other results have the same bits in any order.
    ///
    /// # Errors
    /// Before anything is sent: `DuplicateId`; `InvalidRequest` for too few sources. Later:
    /// `TypeMismatch`, which names a source whose type, shape, size or operation does not fit;
    /// `AlreadyExists` if `target` exists; `ObjectLost` if no source can replace a lost one;
    /// `Deleted`; `StoreFull`, `ObjectTooLarge`; `NotEnoughNodes` for the target's replicas;
    /// `Timeout` if too few sources appear in time.
    ///
    /// # Cancel safety
    /// A cancelled reduce ends everywhere. The target is aborted unless it was complete.
    pub async fn reduce_with<I>(
        &self,
        target: impl AsRef<[u8]>,
        sources: I,
        mut options: ReduceOptions,
    ) -> Result<Vec<ObjectId>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let (target, call) = (ObjectId::new(target)?, self.begin(&mut options.timeout).await?);
        let sources = checked(sources, call.connection.max_ids())?;
        let reduce =
            pin!(tracked_reduce(&call.connection, target.clone(), sources.clone(), options));
        let wait = Wait { operation: "reduce", id: Some(&target), needs: &sources };
        call.run(wait, Repeat::IfUnsent, reduce).await
    }
}

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
            // The target may be deleted already.
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
    let ReduceOptions { op, num_objects, order, range, replicas, timeout } = options;
    let count = num_objects.unwrap_or(sources.len());
    let reduce = node::Reduce {
        target,
        sources: sources.clone(),
        count,
        op,
        order,
        range,
        replicas,
        timeout,
    };
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
