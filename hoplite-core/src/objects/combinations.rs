//! The combinations under way: copies that are computed from others.

use std::collections::BTreeMap;

use crate::collective::MembershipId;
use crate::id::ObjectId;
use crate::message::{CombineId, CopyId, HopOwner};

/// The user of a combination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CombineUser {
    /// The target of a reduce of this store.
    Target(ObjectId),
    /// A hop.
    Hop(HopOwner),
    /// The target of a session in which this store is a member.
    Membership(MembershipId),
}

/// A combination under way.
#[derive(Debug)]
pub(crate) struct Combination {
    pub(super) copy: CopyId,
    /// The local copies that it reads; held until it has ended.
    pub(super) held: Vec<CopyId>,
    pub(super) user: CombineUser,
}

/// All combinations under way.
pub(crate) type Combinations = BTreeMap<CombineId, Combination>;
