//! The local plane: requests of clients, and the store's responses.
//!
//! Most of both belong to the node's state machine; the others are answered by the shell around it.

mod request;
mod response;

pub use request::{Request, check_reduce, decode_request, encode_request};
pub use response::{Response, decode_response, encode_response};
