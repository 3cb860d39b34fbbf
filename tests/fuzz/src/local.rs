//! The local plane: messages of a store and its clients.

use bytes::{Bytes, BytesMut};
use hoplite_core::Limits;
use hoplite_proto::framing::{self, MAX_RESPONSE_BYTES, max_request_bytes};
use hoplite_proto::local::{decode_request, decode_response, encode_request, encode_response};
use hoplite_proto::v1;
use prost::Message;

/// Decodes requests as a stream of frames, then as one message.
pub fn request(bytes: &[u8]) {
    let limits = Limits::default();
    each_message(bytes, max_request_bytes(&limits), |message: v1::Request| {
        let (call, decoded) = decode_request(message, limits.max_ids_per_request);
        let Ok(decoded) = decoded else { return };
        let again = reframed(&encode_request(call, decoded.clone()), max_request_bytes(&limits));
        assert_eq!(decode_request(again, limits.max_ids_per_request), (call, Ok(decoded)));
    });
}

/// Decodes responses as a stream of frames, then as one message.
pub fn response(bytes: &[u8]) {
    each_message(bytes, MAX_RESPONSE_BYTES, |message: v1::Response| {
        let (call, decoded) = decode_response(message);
        let encoded = encode_response(call, decoded);
        // Decodes twice, because each decoding swaps the two sides of a version mismatch.
        let again = returned(returned(encoded.clone()));
        assert_eq!(again.encode_to_vec(), encoded.encode_to_vec(), "{encoded:?}");
    });
}

fn returned(response: v1::Response) -> v1::Response {
    let (call, decoded) = decode_response(reframed(&response, MAX_RESPONSE_BYTES));
    encode_response(call, decoded)
}

fn each_message<M: Message + Default>(bytes: &[u8], limit_bytes: usize, check: impl Fn(M)) {
    let mut stream = BytesMut::from(bytes);
    while let Ok(Some(message)) = framing::decode(&mut stream, limit_bytes) {
        check(message);
    }
    if let Ok(message) = M::decode(Bytes::copy_from_slice(bytes)) {
        check(message);
    }
}

fn reframed<M: Message + Default>(message: &M, limit_bytes: usize) -> M {
    let mut stream = BytesMut::new();
    framing::encode(message, &mut stream).expect("what was short enough to arrive can be sent");
    let decoded =
        framing::decode(&mut stream, limit_bytes).expect("what was encoded can be decoded");
    assert!(stream.is_empty(), "a frame is consumed whole");
    decoded.expect("the frame is all there")
}
