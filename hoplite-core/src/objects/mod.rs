//! The objects of one store.

pub(crate) mod calls;
pub(crate) mod combine;
pub(crate) mod context;
pub(crate) mod faults;
pub(crate) mod fetch;
pub(crate) mod notice;
pub(crate) mod publication;
pub(crate) mod queries;
pub(crate) mod queue;
pub(crate) mod recent_ends;
pub(crate) mod table;
