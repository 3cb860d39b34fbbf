use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

/// Facts in a certificate, without a decision about trust.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct CertificateFacts {
    pub names: Vec<String>,
    pub validity: Range<SystemTime>,
}

impl CertificateFacts {
    pub(super) fn parse(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let validity = parsed.validity();
        let names = parsed.subject_alternative_name().ok().flatten();
        let names =
            names.iter().flat_map(|names| &names.value.general_names).filter_map(name).collect();
        Some(Self { names, validity: time(validity.not_before)?..time(validity.not_after)? })
    }
}

pub(super) fn is_authority(der: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(der).is_ok_and(|(_, parsed)| parsed.is_ca())
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match *name {
        GeneralName::DNSName(name) => Some(name.to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

fn time(time: ASN1Time) -> Option<SystemTime> {
    let seconds = Duration::from_secs(time.timestamp().unsigned_abs());
    if time.timestamp() < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::Authority;

    #[test]
    fn certificate_facts_match_the_request() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let authority = Authority::new(at(1)..at(4_000_000_000)).unwrap();
        let names = ["node-1", "10.0.0.1", "fd00::1"].map(str::to_owned);
        for end in [1_700_000_000, 3_000_000_000] {
            let issued = authority.issue(&names, at(1_600_000_000)..at(end)).unwrap();
            let der = CertificateDer::from_pem_slice(issued.cert.as_bytes()).unwrap();
            let facts = CertificateFacts::parse(&der).unwrap();
            let validity = at(1_600_000_000)..at(end);
            assert_eq!(facts, CertificateFacts { names: names.to_vec(), validity });
            for length in 0..der.len() {
                assert_eq!(CertificateFacts::parse(&CertificateDer::from(&der[..length])), None);
            }
        }
    }
}
