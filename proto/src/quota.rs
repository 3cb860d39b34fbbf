use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::ObjectId;
use hoplite_core::quota::{QuotaExcess, QuotaResource, QuotaSubject};

use crate::bounds::encode_id;
use crate::enumeration::enumeration;
use crate::v1;
use crate::v1::quota_subject::Of;

enumeration!(encode_resource, decode_resource: QuotaResource, v1::QuotaResource, "resource of a quota" { Memory, Objects });

/// User in a quota of each client, which programs without such quotas read as a user's quota.
const EACH_CLIENT: u32 = u32::MAX;

pub(crate) fn encode_subject(subject: &QuotaSubject) -> v1::QuotaSubject {
    let of = match subject {
        QuotaSubject::User(user) => Of::User(*user),
        QuotaSubject::EachClient => Of::User(EACH_CLIENT),
        QuotaSubject::Prefix(prefix) => Of::Prefix(encode_id(prefix)),
    };
    v1::QuotaSubject { of: Some(of), each_client: *subject == QuotaSubject::EachClient }
}

pub(crate) fn decode_subject(subject: Option<v1::QuotaSubject>) -> Result<QuotaSubject> {
    let v1::QuotaSubject { of, each_client } = subject.unwrap_or_default();
    match of {
        _ if each_client => Ok(QuotaSubject::EachClient),
        Some(Of::User(user)) => Ok(QuotaSubject::User(user)),
        Some(Of::Prefix(prefix)) => Ok(QuotaSubject::Prefix(ObjectId::new(&prefix)?)),
        None => Err(Error::malformed(Plane::Local, "a quota without a subject")),
    }
}

pub(crate) fn encode_excess(excess: &QuotaExcess) -> v1::QuotaExcess {
    v1::QuotaExcess {
        subject: Some(encode_subject(&excess.subject)),
        resource: encode_resource(excess.resource),
        needed: excess.needed,
        used: excess.used,
        limit: excess.limit,
    }
}

pub(crate) fn decode_excess(excess: Option<v1::QuotaExcess>) -> Option<Box<QuotaExcess>> {
    let v1::QuotaExcess { subject, resource, needed, used, limit } = excess?;
    let (subject, resource) =
        (decode_subject(subject).ok()?, decode_resource(resource, Plane::Local).ok()?);
    Some(Box::new(QuotaExcess { subject, resource, needed, used, limit }))
}
