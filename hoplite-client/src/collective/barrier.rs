//! Barrier: nobody goes on before everybody is there.

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
    /// Waits until all of `participants` have called this with the same `name`, each with its own `rank`, in any order.
    ///
    /// It is a reduce of empty objects: rank r puts `NAME/r`, rank 0 reduces all of them to the object `NAME`, and the others
    /// wait for that. Each rank asks the directory for `NAME` before its put, and all but rank 0 once more after it, while they
    /// wait. Rank 0 deletes the objects of the ranks when all are there, and a rank that called again and came too late its own;
    /// `NAME` stays, without bytes. It serves one round: a call that finds it complete fails.
    /// Give each round a name of its own, and have somebody [delete](Client::delete) it who knows that all have returned, for
    /// example after a later round.
    ///
    /// # Errors
    /// [`Error::RanksMissing`], which names all that have not called before the timeout. `AlreadyExists` if all had called
    /// before; so does a repeated call if all have met and the first one could not delete, such as when the connection was lost.
    /// `InvalidRequest` if there is no such rank, `InvalidId` if the ids of the ranks would be too long,
    /// `LimitExceeded` if there are more of them than ids may be in a request (65,536 unless the store says otherwise).
    ///
    /// # Cancel safety
    /// Cancelled, or after an error, this rank counts as one that has called, and `NAME/r` stays until rank 0 has seen all. The
    /// same call can be made again; `AlreadyExists` then says that all have called meanwhile.
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
        // Before its own object is there, none of this round can be.
        if self.contains(name).await? {
            return Err(ObjectError::AlreadyExists { id: name.clone() }.into());
        }
        let metadata = Metadata { dtype: Dtype::U8, ..Metadata::default() };
        let options = PutOptions { metadata, timeout: deadline.left(), ..PutOptions::default() };
        if rank > 0 {
            // If this rank had called before, rank 0 may have deleted between the question and the put: then nobody else would
            // delete what was put. The directory knew of the end before that was deleted, so this second question finds it, if
            // the directory has what was put by then.
            let put = async {
                let options = PutOptions { confirm: Confirmation::Confirmed, ..options };
                match self.put_with(&ranks[rank], b"", options).await {
                    // By rank 0, which may have seen it sooner than the directory has confirmed it here.
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

    /// Deletes objects of ranks that have met. It is too late to say that they have not; and they go, too, if that takes longer
    /// than there is time.
    async fn forget(&self, left: &[ObjectId], deadline: Deadline) -> Result<()> {
        if left.is_empty() {
            return Ok(());
        }
        match self.delete(left, deadline.left()).await {
            Err(Error::Object(ObjectError::Timeout { .. })) => Ok(()),
            ended => ended.map(drop),
        }
    }

    /// The error that names who has not called; none if all have, or the directory cannot say.
    async fn missing(&self, name: ObjectId, ranks: &[ObjectId], waited: Duration) -> Option<Error> {
        let here = self.wait(ranks, ranks.len(), Duration::ZERO).await.ok()?;
        let ranks: Vec<usize> = (0..ranks.len()).filter(|rank| here.binary_search(rank).is_err()).collect();
        (!ranks.is_empty()).then_some(Error::RanksMissing { name, ranks, waited })
    }
}
