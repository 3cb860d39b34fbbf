//! Creates certificates for clusters without a certificate authority.

use std::ops::Range;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

const NAME: &str = "Hoplite CA";

/// Certificate authority, as PEM.
#[derive(Clone)]
pub struct Authority {
    /// Authority's certificate.
    pub cert: String,
    /// Certificate's key.
    pub key: String,
}

/// Issued certificate.
#[derive(Clone)]
pub struct IssuedCertificate {
    /// Certificate, as PEM.
    pub cert: String,
    /// Certificate's key, as PEM.
    pub key: String,
}

/// A certificate's name, or the authority's key, is invalid.
#[derive(Debug, thiserror::Error)]
#[error("no certificate can be made")]
pub struct IssueError(#[from] rcgen::Error);

impl Authority {
    /// Creates an authority.
    pub fn new(validity: Range<SystemTime>) -> Result<Self, IssueError> {
        let key = KeyPair::generate()?;
        let mut params = authority();
        (params.not_before, params.not_after) = (validity.start.into(), validity.end.into());
        Ok(Self { cert: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
    }

    /// Issues a certificate for these host names and addresses. Reads only the authority's key: its
    /// certificate must come from [`new`](Self::new).
    pub fn issue(
        &self,
        names: &[String],
        validity: Range<SystemTime>,
    ) -> Result<IssuedCertificate, IssueError> {
        let issuer = Issuer::new(authority(), KeyPair::from_pem(&self.key)?);
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.remove(DnType::CommonName);
        if let Some(first) = names.first() {
            params.distinguished_name.push(DnType::CommonName, first);
        }
        (params.not_before, params.not_after) = (validity.start.into(), validity.end.into());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        Ok(IssuedCertificate {
            cert: params.signed_by(&key, &issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}
