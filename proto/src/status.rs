//! Errors as gRPC statuses.

use std::borrow::Cow;

use bytes::Bytes;
use hoplite_core::error::{Error, Plane};
use prost::Message;
use tonic::{Code, Status};

use crate::error::{cut, decode, encode, shown};
use crate::v1;

/// Encodes `error` in a status and its details.
pub fn to_status(error: &Error) -> Status {
    let code = match error {
        Error::InvalidId { .. }
        | Error::InvalidName { .. }
        | Error::InvalidMetadata(_)
        | Error::InvalidRequest { .. }
        | Error::TypeMismatch { .. }
        | Error::DuplicateId { .. }
        | Error::UnknownReference { .. }
        | Error::Malformed { .. } => Code::InvalidArgument,
        Error::AlreadyExists { .. } | Error::PutConflict { .. } | Error::NodeIdInUse { .. } => {
            Code::AlreadyExists
        }
        Error::ObjectTooLarge { .. } => Code::OutOfRange,
        Error::StoreFull { .. } | Error::QuotaExceeded(_) | Error::LimitExceeded { .. } => {
            Code::ResourceExhausted
        }
        Error::Timeout { .. } => Code::DeadlineExceeded,
        Error::ObjectLost { .. } => Code::DataLoss,
        Error::Deleted { .. } => Code::NotFound,
        Error::ClusterMismatch { .. }
        | Error::ShardListMismatch { .. }
        | Error::VersionMismatch { .. } => Code::FailedPrecondition,
        Error::Superseded { .. } => Code::Aborted,
        Error::PermissionDenied { .. } => Code::PermissionDenied,
        Error::Unavailable { .. } | Error::ShuttingDown => Code::Unavailable,
        _ => Code::Unknown,
    };
    let message = cut(error.to_string());
    let mut detail = encode(error);
    detail.text = cut(detail.text);
    detail.other_text = cut(detail.other_text);
    let details = RpcStatus {
        code: code.into(),
        message: message.clone(),
        details: vec![Detail {
            type_url: DETAIL_TYPE.to_owned(),
            value: detail.encode_to_vec().into(),
        }],
    };
    Status::with_details(code, message, details.encode_to_vec().into())
}

/// Returns the error in the status' details, or else an error for its code.
pub fn from_status(status: &Status) -> Error {
    let details = RpcStatus::decode(status.details()).unwrap_or_default().details;
    let typed = details.into_iter().find(|detail| detail.type_url == DETAIL_TYPE);
    if let Some(error) = typed.and_then(|detail| v1::Error::decode(detail.value).ok()) {
        return decode(error, Plane::Control);
    }
    let text = shown(status.message());
    match status.code() {
        Code::InvalidArgument
        | Code::Unimplemented
        | Code::OutOfRange
        | Code::Internal
        | Code::DataLoss => Error::Malformed { plane: Plane::Control, reason: Cow::Owned(text) },
        // Without details, the status is from tonic or HTTP/2: a broken connection.
        _ => Error::Unavailable { what: Cow::Owned(format!("the directory ({text})")) },
    }
}

const DETAIL_TYPE: &str = "type.googleapis.com/hoplite.v1.Error";

/// `google.rpc.Status`, which tools such as grpcurl expect in the details.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

#[derive(Clone, PartialEq, Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary;

    #[test]
    fn statuses_without_details_are_about_the_transport() {
        assert!(matches!(from_status(&Status::unavailable("no route")), Error::Unavailable { .. }));
        assert!(matches!(from_status(&Status::internal("bad frame")), Error::Malformed { .. }));
    }

    proptest! {
        #[test]
        fn errors_round_trip(error in arbitrary::error()) {
            prop_assert_eq!(&from_status(&to_status(&error)), &error);
        }

        #[test]
        fn arbitrary_details_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            from_status(&Status::with_details(Code::Aborted, "", bytes.into()));
        }
    }
}
