//! Collective sessions: collectives that several stores perform together.
//!
//! # An allreduce, from the call to the target
//!
//! 1. Every participant joins at its own store: it gets the target. Rank 0 also has its store *coordinate*.
//! 2. The coordinator follows the sources ([`Gathering`]). When all have a location, a session begins, however late the last source
//!    is, because a session moves 2S(n-1)/n bytes through the last node's link and the general path 2S. The coordinator takes the
//!    *general path*, one reduce and one broadcast, for sources of at most 64 KiB together, for a fixed order, for more than 256
//!    nodes or 64 sources at one node, if one node has all sources or rank 0's node has none, and for the other reasons in
//!    [`Gathering::outlook`].
//! 3. The planner puts the members in the order of their groups, so that a ring enters each rack once, and takes the cheapest
//!    schedule: a ring, halving-doubling, or stages of rings ([`plan::collective`](crate::plan::collective)). Each node with sources is a
//!    member and gets a [`Plan`], over a connection of its own. From the schedule it derives its *program*: which range it gives to
//!    which member, and takes from which, in which order.
//! 4. A member makes room for the target in a copy that the directory does not know, and exchanges ranges with its neighbours.
//!    [`Progress`] decides what may be given next. Partial results live in the target. A stream that breaks resumes where its receiver
//!    is. Participants copy ranges out as they become valid.
//! 5. When the coordinator's own member has all bytes, the coordinator *commits* ([`CollectiveSession`]). Only then another member
//!    completes its copy and publishes it.
//!
//! `hoplite stat TARGET` shows the schedule, the reason for it, and how far each member is.
//!
//! # Failures
//!
//! Before the commit, a member that fails, refuses or finds no room ends the session for good. All members drop their copies, and the
//! general path begins under another put id. A member that disagrees about the operation or the type fails the whole call instead. After the commit, the session never begins anew: members that miss bytes get them from
//! the others. So no two ranks get different bits. If the coordinator is lost before its commit reaches a member, the participants
//! there look for the target elsewhere for five seconds, then fail with `ObjectLost`. If rank 0's call fails, its store tells the
//! stores of the other sources why, and these fail the participants that wait there with the same error. If the ranks disagree, a
//! participant that joins within the next ten seconds waits for another attempt until they have passed, and at least two seconds.
//! Then it fails with that error, too.
//!
//! # Collectives of parts
//!
//! A reduce_scatter and an allgather take the same way with a ring, but wait for the last source only as long as one member's part
//! takes on its link, and at least 2 ms. Their members exchange in private copies, from which each
//! participant copies its parts. No member waits for a commit, because each part is for one participant. When all members are done,
//! when one has failed, or when there is no session, the coordinator makes the target, an object without bytes. A participant that
//! gets this object makes its part itself: with a reduce of that range, or with gets.
//!
//! An all_to_all is a collective of parts whose sources are deleted afterwards. Participants go on together, when all members have
//! their bytes. If there is no session, or it fails, the target says so, and each pair of ranks exchanges an object of its own.
//!
//! # Invariants
//! * A member of an allreduce counts its bytes as the target only after the coordinator has committed, which it does once the member
//!   at its own store has all bytes. The general path begins only after the coordinator has given the session up for good.
//! * The coordinator never takes a commit back.
//! * A member that has left a session never takes part in it again, because what others gave it may be overwritten.

mod event;
mod gathering;
mod membership;
mod message;
mod progress;
mod resume;
mod session;

pub use crate::vocabulary::agreement::Agreement;
pub use event::{CollectiveEffect, CollectiveEvent};
pub use gathering::{Gathering, MAX_STAR_BYTES, Outlook, Roster, Seated, is_little, promises_session};
pub use membership::{MemberStage, Membership};
pub use message::{
    EnlistmentId, Failure, MAX_ACCOUNT_BYTES, MAX_PAIRS_PER_MEMBER, MAX_SOURCES_PER_MEMBER, Member,
    MembershipId, Plan, Report, Word, describe_plan,
};
pub use progress::{BadBlock, Block, Lack, Progress, Reading, Stream, Work};
pub use resume::{Break, Resumes};
pub(crate) use session::describe_failure;
pub use session::{CollectiveSession, Decision, SessionAction};
