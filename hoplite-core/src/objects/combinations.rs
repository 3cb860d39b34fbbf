use std::collections::BTreeMap;

use crate::collective::MembershipId;
use crate::id::ObjectId;
use crate::message::{CombineId, CopyId, HopOwner};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CombineUser {
    Target(ObjectId),
    Hop(HopOwner),
    Membership(MembershipId),
}

#[derive(Debug)]
pub(crate) struct Combination {
    pub(super) copy: CopyId,
    pub(super) held: Vec<CopyId>,
    pub(super) user: CombineUser,
}

pub(crate) type Combinations = BTreeMap<CombineId, Combination>;
