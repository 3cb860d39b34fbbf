use super::Objects;
use super::notice::SpaceWaiter;
use super::quotas::Payer;
use crate::error::{Error, Missing, Result};
use crate::id::ObjectId;
use crate::message::ClientId;

impl Objects {
    /// Returns `false` if a new object must wait because its payer's quota is used up.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`] if the object is larger than the whole quota.
    pub(crate) fn fits_quota(&self, payer: Payer, id: &ObjectId, size_bytes: u64) -> Result<bool> {
        match self.copies.check_quota(payer, id, size_bytes) {
            Ok(()) => Ok(true),
            Err(excess) if excess.is_final() => Err(Error::QuotaExceeded(Box::new(excess))),
            Err(_) => Ok(false),
        }
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
