//! Sessions: collectives that several stores perform together, each by its program.
//!
//! An allreduce begins as a reduce whose target all want. The store of rank 0 *coordinates*: it follows the sources until all
//! are somewhere ([`Gathering`]), and then asks the stores that have them to be *members* of a [`CollectiveSession`], each with a
//! [`Plan`]. A member makes room for the target, gives and takes as its program says ([`plan::collective`](crate::plan::collective)),
//! and reports when it has all bytes. How far it is, and what may be done next, [`Progress`] says. What is not ready in time, or is of no use
//! as a session, is done by one reduce and one broadcast instead: the *general path*.
//!
//! A reduce_scatter and an allgather are *collectives of parts*. Their members exchange in private copies, from which each participant
//! copies its parts. Nobody waits for a word there. The target is an object without bytes, made when that is over or cannot be.
//! An all-to-all is one too, but its sources are gone afterwards: so participants wait until all have what is for them, and there is a
//! target only if there is no session, or it has failed.
//!
//! # Invariants
//! * A member of an allreduce counts its bytes as the target only on the coordinator's word, which it gives once the member at its own store
//!   has all bytes. The general path begins only after the coordinator has given that up for good. So no two ranks ever get different
//!   bits, whoever dies, freezes or is cut off in between.
//! * After its word the coordinator never takes it back: who has not all bytes yet gets them from those who have.
//! * A member that has left a session never takes part in it again: what others gave it before may be overwritten by now.

mod event;
mod gathering;
mod membership;
mod message;
mod progress;
mod resume;
mod session;

pub use event::{CollectiveEffect, CollectiveEvent};
pub use gathering::{Gathering, MAX_STAR_BYTES, Outlook, Roster, Seated, is_little};
pub use membership::{MemberStage, Membership};
pub use message::{
    Agreement, EnlistmentId, Failure, MAX_ACCOUNT_BYTES, MAX_PAIRS_PER_MEMBER, MAX_SOURCES_PER_MEMBER,
    Member, MembershipId, Plan, Report, Word, describe_plan,
};
pub use progress::{BadBlock, Block, Lack, Progress, Reading, Stream, Work};
pub use resume::{Break, Resumes};
pub(crate) use session::describe_failure;
pub use session::{CollectiveSession, Decision, SessionAction};
