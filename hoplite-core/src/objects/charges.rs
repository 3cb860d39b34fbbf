use super::Objects;
use super::notice::SpaceWaiter;
use super::quotas::Payer;
use crate::error::{Error, Missing, Result};
use crate::id::ObjectId;
use crate::message::ClientId;
use crate::quota::QuotaResource;

impl Objects {
    /// Returns `false` if a new object must wait because its payer's quota is used up. Then frees
    /// the memory of the quota's spilled copies, or notes that copies must be spilled.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`] if the object is larger than the whole quota.
    pub(crate) fn make_quota_room(
        &mut self,
        payer: Payer,
        id: &ObjectId,
        size_bytes: u64,
    ) -> Result<bool> {
        while let Err(excess) = self.copies.check_quota(payer, id, size_bytes) {
            if excess.is_final() {
                return Err(Error::QuotaExceeded(Box::new(excess)));
            }
            let copy = match excess.resource {
                QuotaResource::Memory => self.copies.make_quota_room(payer, id, size_bytes),
                QuotaResource::Objects => None,
            };
            let Some(copy) = copy else {
                self.copies.note_excess(payer, id, size_bytes);
                return Ok(false);
            };
            self.copies.drop_memory(&mut self.ctx, copy);
        }
        Ok(true)
    }

    pub(crate) fn missing_of_room(
        &self,
        waiter: &SpaceWaiter,
        client: ClientId,
        (id, size_bytes): (&ObjectId, u64),
    ) -> Option<Missing> {
        if self.copies.is_waiting_for_space(waiter) {
            return Some(self.copies.lacks_room(size_bytes));
        }
        if !self.copies.quotas.is_waiting(waiter) {
            return None;
        }
        let excess =
            self.copies.check_quota(self.copies.quotas.payer(client), id, size_bytes).err()?;
        Some(Missing::Quota { excess: Box::new(excess) })
    }
}
