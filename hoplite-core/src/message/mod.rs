//! [`Event`]s go into a [`Node`](crate::node::Node), [`Effect`]s come out. Clients' [`Request`]s
//! are events; [`Response`]s are effects.

mod drain;
mod effect;
mod event;
mod hop;
mod lifetime;
mod recovery;
mod request;
mod response;
mod spill;
mod status;
mod trouble;

pub use drain::*;
pub use effect::*;
pub use event::*;
pub use hop::*;
pub use lifetime::*;
pub use recovery::*;
pub use request::*;
pub use response::*;
pub use spill::*;
pub use status::*;
pub use trouble::*;

pub use crate::collective::{Position, ReduceRecord};
pub use crate::vocabulary::local::*;
pub use crate::vocabulary::reduce::{Reduce, ReduceOrder};
