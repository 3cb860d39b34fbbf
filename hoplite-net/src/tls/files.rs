use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoClientAuth, ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme, version,
};

use crate::facts::{CertificateFacts, is_authority};
use crate::file::{self, FileError};

const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reason why TLS files are unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum TlsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} has no {what} in the form of PEM", path.display())]
    Missing { path: PathBuf, what: &'static str },
    /// The files do not match, or are not valid now.
    #[error("the certificate in {} cannot be used", path.display())]
    Unusable {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error(
        "the certificate in {} is that of an authority, with which no daemon can introduce itself: name the \
         certificate that the authority has made for this daemon",
        path.display()
    )]
    IsAuthority { path: PathBuf },
    #[error(
        "the certificate in {} is not for {name}, under which peers reach this daemon, so that all of them would \
         refuse it: make it for {name} too, or give all daemons one --tls-name",
        path.display()
    )]
    Elsewhere { path: PathBuf, name: String },
    #[error("the key in {} cannot be used", path.display())]
    Key {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("the key in {} is not that of the certificate in {}", key.display(), cert.display())]
    KeyMismatch { key: PathBuf, cert: PathBuf },
    #[error("the authority in {} cannot be used", path.display())]
    Authority {
        path: PathBuf,
        #[source]
        source: VerifierBuilderError,
    },
    #[error("{name:?} is neither a host name nor an address, so no certificate can be for it")]
    Name { name: String },
}

/// Files with a daemon's certificate, key and authority.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// This daemon's certificate, and intermediate certificates.
    pub cert: PathBuf,
    /// Certificate's key.
    pub key: PathBuf,
    /// Cluster's authority.
    pub ca: PathBuf,
}

/// A file's inode, times of change and size. At least one changes with the file.
pub(super) type FileStamp = Option<(u64, [(i64, i64); 2], u64)>;

pub(super) struct Configs {
    pub(super) own: CertificateDer<'static>,
    pub(super) client: ClientConfig,
    pub(super) server: ServerConfig,
    pub(super) anybody: ServerConfig,
    pub(super) expiry: Option<SystemTime>,
}

impl TlsFiles {
    pub(super) fn stamps(&self) -> [FileStamp; 3] {
        [&self.cert, &self.key, &self.ca].map(|path| {
            let found = fs::metadata(path).ok()?;
            let times = [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())];
            Some((found.ino(), times, found.len()))
        })
    }

    /// Checks this daemon's certificate, as peers do.
    pub fn check_trust(&self, name: Option<&str>) -> Result<(), TlsError> {
        let name = name.map(server_name).transpose()?;
        self.trust(name.as_ref(), &Arc::new(provider()), UnixTime::now()).map(drop)
    }

    /// Checks that the key belongs to the certificate.
    pub fn check_key(&self) -> Result<(), TlsError> {
        let provider = provider();
        let key = read_key(&self.key, &provider)?;
        self.check_pair(&certificates(&self.cert)?, &key, &provider)
    }

    pub(super) fn check_reached_at(
        &self,
        own: &CertificateDer<'_>,
        name: &ServerName<'_>,
    ) -> Result<(), TlsError> {
        let is_for =
            ParsedCertificate::try_from(own).and_then(|own| verify_server_name(&own, name));
        is_for.map_err(|_| TlsError::Elsewhere {
            path: self.cert.clone(),
            name: name.to_str().into_owned(),
        })
    }

    pub(super) fn load(
        &self,
        name: Option<&ServerName<'static>>,
        clock: &Arc<dyn TimeProvider>,
    ) -> Result<Configs, TlsError> {
        let provider = Arc::new(provider());
        let Trust { chain, roots, clients } = self.trust(name, &provider, time_of(&**clock))?;
        let key = read_key(&self.key, &provider)?;
        self.check_pair(&chain, &key, &provider)?;
        let unusable = |source| TlsError::Unusable { path: self.cert.clone(), source };
        let versions = &[&version::TLS13];
        let mut client =
            ClientConfig::builder_with_details(Arc::clone(&provider), Arc::clone(clock))
                .with_protocol_versions(versions)
                .map_err(unusable)?
                .with_root_certificates(roots)
                .with_client_auth_cert(chain.clone(), key.clone_key())
                .map_err(unusable)?;
        // Without resumption, each connection checks the current certificates.
        client.resumption = Resumption::disabled();
        let server = |clients: Arc<dyn ClientCertVerifier>| {
            let mut server =
                ServerConfig::builder_with_details(Arc::clone(&provider), Arc::clone(clock))
                    .with_protocol_versions(versions)?
                    .with_client_cert_verifier(clients)
                    .with_single_cert(chain.clone(), key.clone_key())?;
            server.send_tls13_tickets = 0;
            Ok(server)
        };
        let anybody = server(Arc::new(NoClientAuth)).map_err(unusable)?;
        let server = server(clients).map_err(unusable)?;
        let own =
            chain.into_iter().next().ok_or(unusable(rustls::Error::NoCertificatesPresented))?;
        let expiry = CertificateFacts::parse(&own).map(|facts| facts.validity.end);
        Ok(Configs { own, client, server, anybody, expiry })
    }

    fn trust(
        &self,
        name: Option<&ServerName<'static>>,
        provider: &Arc<CryptoProvider>,
        now: UnixTime,
    ) -> Result<Trust, TlsError> {
        let chain = certificates(&self.cert)?;
        let mut roots = RootCertStore::empty();
        for root in certificates(&self.ca)? {
            roots
                .add(root)
                .map_err(|source| TlsError::Unusable { path: self.ca.clone(), source })?;
        }
        let roots = Arc::new(roots);
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider))
                .build()
                .map_err(|source| TlsError::Authority { path: self.ca.clone(), source })?;
        let clients: Arc<dyn ClientCertVerifier> = match name {
            Some(name) => Arc::new(NamedClients { inner: clients, name: name.clone() }),
            None => clients,
        };
        let checked =
            check_own(&chain, &*clients, &roots, provider.signature_verification_algorithms, now);
        checked.map_err(|source| {
            let path = self.cert.clone();
            match chain.first().is_some_and(is_authority) {
                true => TlsError::IsAuthority { path },
                false => TlsError::Unusable { path, source },
            }
        })?;
        Ok(Trust { chain, roots, clients })
    }

    fn check_pair(
        &self,
        chain: &[CertificateDer<'static>],
        key: &PrivateKeyDer<'static>,
        provider: &CryptoProvider,
    ) -> Result<(), TlsError> {
        match CertifiedKey::from_der(chain.to_vec(), key.clone_key(), provider) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InconsistentKeys(_)) => {
                Err(TlsError::KeyMismatch { key: self.key.clone(), cert: self.cert.clone() })
            }
            Err(source) => Err(TlsError::Unusable { path: self.cert.clone(), source }),
        }
    }
}

struct Trust {
    chain: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
}

fn read_key(path: &Path, provider: &CryptoProvider) -> Result<PrivateKeyDer<'static>, TlsError> {
    let pem = file::read_private(path, MAX_FILE_BYTES)?;
    let key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| TlsError::Missing { path: path.to_owned(), what: "private key" })?;
    let usable = provider.key_provider.load_private_key(key.clone_key());
    usable.map_err(|source| TlsError::Key { path: path.to_owned(), source })?;
    Ok(key)
}

/// Ciphers, the preferred first: with AES instructions, 128 bits are faster and
/// suffice.
pub(crate) fn provider() -> CryptoProvider {
    let cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    CryptoProvider { cipher_suites, ..default_provider() }
}

fn check_own(
    chain: &[CertificateDer<'static>],
    clients: &dyn ClientCertVerifier,
    roots: &RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
    now: UnixTime,
) -> Result<(), rustls::Error> {
    let Some((own, others)) = chain.split_first() else {
        return Err(rustls::Error::NoCertificatesPresented);
    };
    clients.verify_client_cert(own, others, now)?;
    let parsed = ParsedCertificate::try_from(own)?;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, others, now, algorithms.all)
}

impl CertificateFacts {
    /// Facts of a file's certificates, in order, without unparsable ones.
    ///
    /// # Errors
    /// [`TlsError`] if the file is unreadable or has no certificate.
    pub fn read_all(path: &Path) -> Result<Vec<Self>, TlsError> {
        Ok(certificates(path)?.iter().filter_map(Self::parse).collect())
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = file::read(path, MAX_FILE_BYTES)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(TlsError::Missing { path: path.to_owned(), what: "certificate" }),
    }
}

pub(super) fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name { name: name.to_owned() })
}

/// Accepts clients whose certificate contains the cluster's name.
#[derive(Debug)]
struct NamedClients {
    inner: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for NamedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(own, others, now)?;
        verify_server_name(&ParsedCertificate::try_from(own)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

pub(super) fn time_of(clock: &dyn TimeProvider) -> UnixTime {
    clock.current_time().unwrap_or(UnixTime::since_unix_epoch(Duration::ZERO))
}
