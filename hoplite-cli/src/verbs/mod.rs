//! One module per command, each with a variant of [`Command`](crate::Command).

pub(crate) mod allreduce;
pub(crate) mod barrier;
pub(crate) mod certs;
pub(crate) mod completion;
pub(crate) mod delete;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod gc;
pub(crate) mod get;
mod lifetime;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod nodes;
pub(crate) mod put;
pub(crate) mod quota;
pub(crate) mod reduce;
pub(crate) mod shards;
pub(crate) mod start;
pub(crate) mod stat;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod up;
pub(crate) mod wait;
