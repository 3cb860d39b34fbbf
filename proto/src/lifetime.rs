//! Lifetimes of objects on the wire.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::lifetime::{Lifetime, MAX_OWNERS_PER_CLIENT, Owner, Ttl, TtlAction};

use crate::bounds::check_count;
use crate::enumeration::enumeration;
use crate::v1;

enumeration!(encode_action, decode_action: TtlAction, v1::TtlAction, "action of a ttl" { Delete, Free });

/// Encodes an owner.
pub fn encode_owner(owner: &Owner) -> Bytes {
    Bytes::copy_from_slice(owner.as_str().as_bytes())
}

/// Checks owners that a client wants to hold.
///
/// # Errors
/// [`Error::LimitExceeded`] for more than [`MAX_OWNERS_PER_CLIENT`]; [`Error::InvalidRequest`] for
/// an invalid name.
pub fn decode_owners(owners: &[Bytes]) -> Result<Vec<Owner>> {
    check_count("owners of a client", owners.len(), MAX_OWNERS_PER_CLIENT)?;
    owners.iter().map(Owner::new).collect()
}

pub(crate) fn encode(lifetime: &Lifetime) -> v1::Lifetime {
    let ttl = lifetime.ttl;
    v1::Lifetime {
        owner: lifetime.owner.as_ref().map(encode_owner).unwrap_or_default(),
        ttl_ms: ttl.map(|ttl| u64::try_from(ttl.after().as_millis()).unwrap_or(u64::MAX)),
        ttl_action: encode_action(ttl.map_or(TtlAction::Delete, Ttl::action)),
    }
}

pub(crate) fn decode(lifetime: &v1::Lifetime) -> Result<Option<Arc<Lifetime>>> {
    let owner = if lifetime.owner.is_empty() { None } else { Some(Owner::new(&lifetime.owner)?) };
    let action = decode_action(lifetime.ttl_action, Plane::Local)?;
    let ttl = lifetime.ttl_ms.map(|ttl_ms| Ttl::new(Duration::from_millis(ttl_ms), action));
    if ttl.is_none() && action != TtlAction::Delete {
        return Err(Error::invalid_request("the action of a ttl without a ttl"));
    }
    Ok(Lifetime::of(owner, ttl.transpose()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_checked() {
        let ttl = |ttl_ms, ttl_action| v1::Lifetime {
            ttl_ms: Some(ttl_ms),
            ttl_action,
            ..Default::default()
        };
        let day_ms = 24 * 60 * 60 * 1000;
        assert!(decode(&ttl(30 * day_ms, 0)).is_ok());
        for wrong in [ttl(0, 0), ttl(30 * day_ms + 1, 0), ttl(u64::MAX, 1)] {
            assert!(matches!(decode(&wrong), Err(Error::InvalidRequest { .. })), "{wrong:?}");
        }
        assert!(matches!(decode(&ttl(1, 2)), Err(Error::Malformed { .. })));
        assert!(decode(&v1::Lifetime { ttl_action: 1, ..Default::default() }).is_err());
        assert_eq!(decode(&v1::Lifetime::default()), Ok(None));
        for owner in [&b"\xff"[..], b"a\n", &[b'x'; 256]] {
            let wrong = v1::Lifetime { owner: Bytes::copy_from_slice(owner), ..Default::default() };
            assert!(matches!(decode(&wrong), Err(Error::InvalidRequest { .. })), "{owner:?}");
        }
    }

    #[test]
    fn a_client_holds_few_owners() {
        let owners = vec![Bytes::from_static(b"job"); MAX_OWNERS_PER_CLIENT + 1];
        assert!(decode_owners(&owners[1..]).is_ok());
        assert!(matches!(decode_owners(&owners), Err(Error::LimitExceeded { .. })));
        assert!(decode_owners(&[Bytes::new()]).is_err());
    }
}
