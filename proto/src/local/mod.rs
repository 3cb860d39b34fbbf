//! Local plane: clients' requests, and the store's responses.

mod drain;
mod ownerless;
mod quota;
mod request;
mod response;

pub(crate) use drain::{decode_drain, encode_drain};
pub use request::{Request, decode_request, encode_request};
pub use response::{Response, decode_response, encode_response};
