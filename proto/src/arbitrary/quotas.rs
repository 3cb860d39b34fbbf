use hoplite_core::quota::{Quota, QuotaExcess, QuotaLimits, QuotaResource, QuotaSubject, QuotaUse};
use proptest::prelude::*;
use proptest::sample::select;

use super::id;

pub(super) fn quota_subject() -> impl Strategy<Value = QuotaSubject> {
    prop_oneof![
        any::<u32>().prop_map(QuotaSubject::User),
        Just(QuotaSubject::EachClient),
        id().prop_map(QuotaSubject::Prefix),
    ]
}

pub(super) fn quota_limits() -> impl Strategy<Value = QuotaLimits> {
    any::<(Option<u64>, Option<u64>, Option<u64>)>().prop_map(
        |(memory_bytes, disk_bytes, objects)| QuotaLimits { memory_bytes, disk_bytes, objects },
    )
}

pub(super) fn quota() -> impl Strategy<Value = Quota> {
    (quota_subject(), quota_limits(), any::<(u64, u64, u64)>()).prop_map(
        |(subject, limits, (memory_bytes, disk_bytes, objects))| Quota {
            subject,
            limits,
            used: QuotaUse { memory_bytes, disk_bytes, objects },
        },
    )
}

pub(super) fn excess() -> impl Strategy<Value = QuotaExcess> {
    let resource = select(vec![QuotaResource::Memory, QuotaResource::Objects]);
    (quota_subject(), resource, any::<(u64, u64, u64)>()).prop_map(
        |(subject, resource, (needed, used, limit))| QuotaExcess {
            subject,
            resource,
            needed,
            used,
            limit,
        },
    )
}
