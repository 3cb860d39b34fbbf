//! Barrier: each participant waits until all have arrived.

use std::pin::pin;
use std::slice;
use std::time::Duration;

use futures::future::try_join;
use hoplite_core::{Dtype, Error as ObjectError, Metadata, ObjectId, Operation};

use super::gather::no_such_rank;
use crate::begun::{Repeat, Wait};
use crate::client::{Client, checked};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::{Confirmation, PutOptions, ReduceOptions};

impl Client {
    /// Waits until all of `participants` have called this with the same `name`, each with its own
    /// `rank`, in any order.
    ///
    /// It is a reduce of empty objects: rank r puts `NAME/r`, rank 0 reduces all of them to the
    /// object `NAME`, and the others wait for it. Each rank queries the directory for `NAME` before
    /// its put; all ranks but 0 do so once more afterwards. Rank 0 deletes the objects of the ranks
    /// when all have arrived.
    ///
    /// The empty object `NAME` stays and serves one round: a call that finds it complete fails.
    /// Each round needs a new name. [Delete](Client::delete) `NAME` when all ranks have returned,
    /// for example after a later round.
    ///
    /// # Errors
    /// [`Error::RanksMissing`], which names all ranks that have not called before the timeout.
    /// `AlreadyExists` if all had called before. A repeated call also gets it if all have met and
    /// the first call could not delete, for example because the connection was lost.
    /// `InvalidRequest` if there is no such rank. `InvalidId` if the ids of the ranks would be too
    /// long. `LimitExceeded` if there are more ranks than ids in a request (65,536 unless the store
    /// sets another limit).
    ///
    /// # Cancel safety
    /// After a cancelled call or an error, this rank counts as arrived, and `NAME/r` stays until
    /// rank 0 has seen all ranks. The same call can be made again; `AlreadyExists` then means that
    /// all have arrived.
    pub async fn barrier(
        &self,
        name: impl AsRef<[u8]>,
        participants: usize,
        rank: usize,
        timeout: Duration,
    ) -> Result<()> {
        if rank >= participants {
            return Err(no_such_rank());
        }
        let name = ObjectId::new(name)?;
        let id = |rank: usize| [name.as_bytes(), format!("/{rank}").as_bytes()].concat();
        let call = self.begin(timeout).await?;
        let (client, connection) = (call.client(), &call.connection);
        let ranks = checked((0..participants).map(id), connection.max_ids())?;
        let deadline = Deadline::after(timeout);
        let all = pin!(async {
            let met = client.meet(&name, &ranks, rank, deadline).await;
            let left = match met {
                Err(error @ Error::Object(ObjectError::Timeout { .. })) => {
                    return Err(client.missing(name.clone(), &ranks, timeout).await.unwrap_or(error));
                }
                ended => ended?,
            };
            client.forget(left, deadline).await
        });
        let barrier = pin!(connection.bounded(Operation::Reduce, timeout, all));
        let wait = Wait { operation: "barrier", id: Some(&name), needs: &ranks };
        call.run(wait, Repeat::Never, barrier).await
    }

    /// Returns the objects that this rank has to delete when all have called.
    async fn meet<'a>(
        &self,
        name: &ObjectId,
        ranks: &'a [ObjectId],
        rank: usize,
        deadline: Deadline,
    ) -> Result<&'a [ObjectId]> {
        // `NAME` cannot exist yet in this round, because this rank's object is missing.
        if self.contains(name).await? {
            return Err(ObjectError::AlreadyExists { id: name.clone() }.into());
        }
        let metadata = Metadata { dtype: Dtype::U8, ..Metadata::default() };
        let options = PutOptions { metadata, timeout: deadline.left(), ..PutOptions::default() };
        if rank > 0 {
            // If this rank had called before, rank 0 may have completed the round between the first
            // query and the put. The second query finds that, and the rank deletes its own object.
            let put = async {
                let options = PutOptions { confirm: Confirmation::Confirmed, ..options };
                match self.put_with(&ranks[rank], b"", options).await {
                    // Rank 0 deleted it before the directory confirmed it here.
                    Ok(()) | Err(Error::Object(ObjectError::Deleted { .. })) => {}
                    Err(error) => return Err(error),
                }
                Ok(self.contains(name).await.unwrap_or(true))
            };
            let (may_be_over, _) = try_join(put, self.get(name, deadline.left())).await?;
            let stays = may_be_over && self.contains(&ranks[rank]).await.unwrap_or(true);
            return Ok(if stays { slice::from_ref(&ranks[rank]) } else { &[] });
        }
        self.put_with(&ranks[rank], b"", options).await?;
        let options = ReduceOptions { timeout: deadline.left(), ..ReduceOptions::default() };
        self.reduce_with(name, ranks, options).await?;
        Ok(ranks)
    }

    /// Deletes objects of ranks that have met. Ignores a timeout, because the store deletes them
    /// nevertheless.
    pub(super) async fn forget(&self, left: &[ObjectId], deadline: Deadline) -> Result<()> {
        if left.is_empty() {
            return Ok(());
        }
        match self.delete(left, deadline.left()).await {
            Err(Error::Object(ObjectError::Timeout { .. })) => Ok(()),
            ended => ended.map(drop),
        }
    }

    /// The error that names the missing ranks; `None` if all have called, or the directory cannot
    /// tell.
    pub(super) async fn missing(
        &self,
        name: ObjectId,
        ranks: &[ObjectId],
        waited: Duration,
    ) -> Option<Error> {
        let here = self.wait(ranks, ranks.len(), Duration::ZERO).await.ok()?;
        let ranks: Vec<usize> = (0..ranks.len()).filter(|rank| here.binary_search(rank).is_err()).collect();
        (!ranks.is_empty()).then_some(Error::RanksMissing { name, ranks, waited })
    }
}
