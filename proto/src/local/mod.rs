//! The local plane: requests of clients, and the store's responses.
//!
//! The node's state machine answers most requests; the shell around it answers the others.

mod drain;
mod request;
mod response;

pub use request::{Request, decode_request, encode_request};
pub use response::{Response, decode_response, encode_response};
