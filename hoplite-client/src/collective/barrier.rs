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
    /// Waits until each of `participants` ranks has called this with the same `name` and its
    /// `rank`.
    ///
    /// Rank r puts the empty object `NAME/r`. Rank 0 reduces these objects to `NAME`, for which the
    /// others wait, and then deletes them.
    ///
    /// `NAME` stays: a call that finds it complete fails, so each round needs a new name.
    /// [Delete](Client::delete) it when all ranks have returned.
    ///
    /// # Errors
    /// [`Error::RanksMissing`] names all ranks that have not called in time. `AlreadyExists` if all
    /// ranks have met before. `InvalidRequest` for a bad rank. `InvalidId` if the ranks' ids would
    /// be too long. `LimitExceeded` for more than [`Client::max_ids`] ranks.
    ///
    /// # Cancel safety
    /// After a cancelled call or an error, this rank counts as arrived, and `NAME/r` stays until
    /// rank 0 has seen all ranks. The call can be repeated; `AlreadyExists` then means that all
    /// have arrived.
    pub async fn barrier(
        &self,
        name: impl AsRef<[u8]>,
        participants: usize,
        rank: usize,
        mut timeout: Duration,
    ) -> Result<()> {
        if rank >= participants {
            return Err(no_such_rank());
        }
        let name = ObjectId::new(name)?;
        let id = |rank: usize| [name.as_bytes(), format!("/{rank}").as_bytes()].concat();
        let call = self.begin(&mut timeout).await?;
        let (client, connection) = (call.client(), &call.connection);
        let ranks = checked((0..participants).map(id), connection.max_ids())?;
        let deadline = Deadline::after(timeout);
        let all = pin!(async {
            let met = client.meet(&name, &ranks, rank, deadline).await;
            let left = match met {
                Err(error @ Error::Object(ObjectError::Timeout { .. })) => {
                    return Err(client
                        .missing(name.clone(), &ranks, timeout)
                        .await
                        .unwrap_or(error));
                }
                ended => ended?,
            };
            client.forget(left, deadline).await
        });
        let barrier = pin!(connection.bounded(Operation::Barrier, timeout, all));
        let wait = Wait { operation: "barrier", id: Some(&name), needs: &ranks };
        call.run(wait, Repeat::Never, barrier).await
    }

    async fn meet<'a>(
        &self,
        name: &ObjectId,
        ranks: &'a [ObjectId],
        rank: usize,
        deadline: Deadline,
    ) -> Result<&'a [ObjectId]> {
        // This rank has not called yet, so an existing `NAME` is from an earlier barrier.
        if self.contains(name).await? {
            return Err(ObjectError::AlreadyExists { id: name.clone() }.into());
        }
        let metadata = Metadata { dtype: Dtype::U8, ..Metadata::default() };
        let options = PutOptions { metadata, timeout: deadline.left(), ..PutOptions::default() };
        if rank > 0 {
            // If this rank repeats a call, the barrier may be complete.
            let put = async {
                let options = PutOptions { confirm: Confirmation::Confirmed, ..options };
                match self.put_with(&ranks[rank], b"", options).await {
                    // Rank 0 deleted the object before the put was confirmed.
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

    /// Deletes the ranks' objects. After a timeout, the store deletes nevertheless.
    pub(super) async fn forget(&self, left: &[ObjectId], deadline: Deadline) -> Result<()> {
        if left.is_empty() {
            return Ok(());
        }
        match self.delete(left, deadline.left()).await {
            Err(Error::Object(ObjectError::Timeout { .. })) => Ok(()),
            ended => ended.map(drop),
        }
    }

    /// Returns an error that names the missing ranks, if any are known.
    pub(super) async fn missing(
        &self,
        name: ObjectId,
        ranks: &[ObjectId],
        waited: Duration,
    ) -> Option<Error> {
        let here = self.wait(ranks, ranks.len(), Duration::ZERO).await.ok()?;
        let ranks: Vec<usize> =
            (0..ranks.len()).filter(|rank| here.binary_search(rank).is_err()).collect();
        (!ranks.is_empty()).then_some(Error::RanksMissing { name, ranks, waited })
    }
}
