use hoplite_core::error::Result;
use hoplite_core::node;
use hoplite_core::quota::{MAX_QUOTAS, Quota, QuotaLimits, QuotaSubject, QuotaUse};

use crate::bounds::check_count;
use crate::quota::{decode_subject, encode_subject};
use crate::v1::{QuotaLimits as WireLimits, request, response};

const fn encode_limits(limits: QuotaLimits) -> WireLimits {
    let QuotaLimits { memory_bytes, disk_bytes, objects } = limits;
    WireLimits { memory_bytes, disk_bytes, objects }
}

const fn decode_limits(limits: WireLimits) -> QuotaLimits {
    let WireLimits { memory_bytes, disk_bytes, objects } = limits;
    QuotaLimits { memory_bytes, disk_bytes, objects }
}

pub(super) fn encode_set(subject: &QuotaSubject, limits: Option<QuotaLimits>) -> request::SetQuota {
    request::SetQuota { subject: Some(encode_subject(subject)), limits: limits.map(encode_limits) }
}

pub(super) fn decode_set(set: request::SetQuota) -> Result<node::Request> {
    let (subject, limits) = (decode_subject(set.subject)?, set.limits.map(decode_limits));
    Ok(node::Request::SetQuota { subject, limits })
}

pub(super) fn encode_quotas(quotas: Vec<Quota>) -> response::Quotas {
    let encode = |quota: Quota| response::Quota {
        subject: Some(encode_subject(&quota.subject)),
        limits: Some(encode_limits(quota.limits)),
        memory_bytes: quota.used.memory_bytes,
        objects: quota.used.objects,
        disk_bytes: quota.used.disk_bytes,
    };
    response::Quotas { quotas: quotas.into_iter().map(encode).collect() }
}

pub(super) fn decode_quotas(quotas: response::Quotas) -> Result<Vec<Quota>> {
    check_count("quotas of a store", quotas.quotas.len(), MAX_QUOTAS)?;
    let decode = |quota: response::Quota| {
        Ok(Quota {
            subject: decode_subject(quota.subject)?,
            limits: quota.limits.map(decode_limits).unwrap_or_default(),
            used: QuotaUse {
                memory_bytes: quota.memory_bytes,
                disk_bytes: quota.disk_bytes,
                objects: quota.objects,
            },
        })
    };
    quotas.quotas.into_iter().map(decode).collect()
}
