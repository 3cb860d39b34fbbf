//! Certificates: this daemon's own, and the authority that its peers' must come from. TLS 1.3 only, and always mutual.
//!
//! The files are looked at again when a connection is made, at most once a second; so new ones count without a restart.
//! As long as new files cannot be used, the old ones count.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoClientAuth, ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
    version,
};

use super::facts::CertificateFacts;
use super::file::{self, FileError};

/// How often the files are looked at, at most.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest file: a bundle of all authorities of the world has a quarter of that.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What is spoken inside of TLS. A peer that wants to speak something else is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// The control plane.
    Http2,
    /// The data plane.
    Data,
    /// Pages for people.
    Http1,
}

impl Protocol {
    pub(super) const fn name(self) -> &'static [u8] {
        match self {
            Self::Http2 => b"h2",
            Self::Data => b"hoplite-data",
            Self::Http1 => b"http/1.1",
        }
    }
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file is not as it must be.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no certificate, or no key, in a file where one should be.
    #[error("{} has no {what} in the form of PEM", path.display())]
    Missing {
        /// Its path.
        path: PathBuf,
        /// What should be there.
        what: &'static str,
    },
    /// What is in the files does not fit together, or is not valid now.
    #[error("the certificate in {} cannot be used", path.display())]
    Unusable {
        /// The file of the certificate.
        path: PathBuf,
        /// The cause.
        #[source]
        source: rustls::Error,
    },
    /// The key is none that can be used.
    #[error("the key in {} cannot be used", path.display())]
    Key {
        /// Its file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: rustls::Error,
    },
    /// The key belongs to another certificate.
    #[error("the key in {} is not that of the certificate in {}", key.display(), cert.display())]
    KeyMismatch {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        cert: PathBuf,
    },
    /// The authority cannot be used.
    #[error("the authority in {} cannot be used", path.display())]
    Authority {
        /// The file of the authority.
        path: PathBuf,
        /// The cause.
        #[source]
        source: VerifierBuilderError,
    },
    /// A name that no certificate can have.
    #[error("{name:?} is neither a host name nor an address, so no certificate can be for it")]
    Name {
        /// The name.
        name: String,
    },
}

/// Where the certificates are.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate of this daemon, and those between it and the authority.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority of the cluster.
    pub ca: PathBuf,
}

/// What this daemon needs to speak TLS with its peers.
#[derive(Clone)]
pub struct Tls {
    shared: Arc<Shared>,
}

struct Shared {
    files: TlsFiles,
    name: Option<ServerName<'static>>,
    state: Mutex<State>,
}

struct State {
    configs: Arc<Configs>,
    stamps: [Stamp; 3],
    checked: Instant,
}

/// Changes when a file does.
type Stamp = Option<(u64, i64, i64, u64)>;

struct Configs {
    client: ClientConfig,
    server: ServerConfig,
    /// As `server`, but asks for no certificate.
    anybody: ServerConfig,
    expiry: Option<SystemTime>,
}

impl Tls {
    /// Reads the files. Certificates of peers must be for the host or address at which the peer is reached; or else all of
    /// them, also those of peers that connect to this daemon, for `name`.
    ///
    /// # Errors
    /// [`TlsError`]; an expired certificate is one, and so is a certificate that peers with the same authority would not accept.
    pub fn read(files: TlsFiles, name: Option<&str>) -> Result<Self, TlsError> {
        let name = name.map(server_name).transpose()?;
        let stamps = files.stamps();
        let configs = Arc::new(files.load(name.as_ref())?);
        let state = Mutex::new(State { configs, stamps, checked: Instant::now() });
        Ok(Self { shared: Arc::new(Shared { files, name, state }) })
    }

    /// How to connect to peers.
    pub fn client(&self, protocol: Protocol) -> Arc<ClientConfig> {
        let mut config = self.current().client.clone();
        config.alpn_protocols = vec![protocol.name().to_vec()];
        Arc::new(config)
    }

    /// How to accept them.
    pub fn server(&self, protocol: Protocol) -> Arc<ServerConfig> {
        let mut config = self.current().server.clone();
        config.alpn_protocols = vec![protocol.name().to_vec()];
        Arc::new(config)
    }

    /// How to accept those who prove in another way who they are, and have no certificate.
    pub fn server_for_anybody(&self, protocol: Protocol) -> Arc<ServerConfig> {
        let mut config = self.current().anybody.clone();
        config.alpn_protocols = vec![protocol.name().to_vec()];
        Arc::new(config)
    }

    /// When the certificate that is used now expires, if it says so in a form that is understood.
    pub fn expiry(&self) -> Option<SystemTime> {
        self.current().expiry
    }

    /// What the certificate of a peer that is reached at `host` must be for.
    ///
    /// # Errors
    /// [`TlsError::Name`].
    pub fn name_at(&self, host: &str) -> Result<ServerName<'static>, TlsError> {
        self.shared.name.clone().map_or_else(|| server_name(host), Ok)
    }

    fn current(&self) -> Arc<Configs> {
        let Shared { files, name, state } = &*self.shared;
        // Each field is replaced whole, so a panic elsewhere does no harm.
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.checked.elapsed() >= CHECK_INTERVAL {
            state.checked = Instant::now();
            let stamps = files.stamps();
            if stamps != state.stamps {
                // A file that is replaced after the others changes the stamps again.
                state.stamps = stamps;
                match files.load(name.as_ref()) {
                    Ok(configs) => {
                        state.configs = Arc::new(configs);
                        tracing::info!(cert = %files.cert.display(), "took over new certificates");
                    }
                    Err(error) => {
                        let error = anyhow::Error::from(error);
                        tracing::warn!(error = %format!("{error:#}"), "go on with the old certificates");
                    }
                }
            }
        }
        Arc::clone(&state.configs)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.shared.files).field("name", &self.shared.name).finish()
    }
}

impl TlsFiles {
    fn stamps(&self) -> [Stamp; 3] {
        [&self.cert, &self.key, &self.ca].map(|path| {
            let found = fs::metadata(path).ok()?;
            Some((found.ino(), found.mtime(), found.mtime_nsec(), found.len()))
        })
    }

    /// Judges the certificate by the authority, as peers with the same settings will, and says what is wrong with either.
    ///
    /// # Errors
    /// [`TlsError`], never of the key.
    pub fn check_trust(&self, name: Option<&str>) -> Result<(), TlsError> {
        let name = name.map(server_name).transpose()?;
        self.trust(name.as_ref(), &Arc::new(provider())).map(drop)
    }

    /// Whether the key can be used, and is that of the certificate.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn check_key(&self) -> Result<(), TlsError> {
        let provider = provider();
        let key = read_key(&self.key, &provider)?;
        self.check_pair(&certificates(&self.cert)?, &key, &provider)
    }

    fn load(&self, name: Option<&ServerName<'static>>) -> Result<Configs, TlsError> {
        let provider = Arc::new(provider());
        let Trust { chain, roots, clients } = self.trust(name, &provider)?;
        let key = read_key(&self.key, &provider)?;
        self.check_pair(&chain, &key, &provider)?;
        let unusable = |source| TlsError::Unusable { path: self.cert.clone(), source };
        let versions = &[&version::TLS13];
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        // Sessions are not resumed, so that each connection is checked against the certificates of now.
        client.resumption = Resumption::disabled();
        let server = |clients: Arc<dyn ClientCertVerifier>| {
            let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(versions)?
                .with_client_cert_verifier(clients)
                .with_single_cert(chain.clone(), key.clone_key())?;
            server.send_tls13_tickets = 0;
            Ok(server)
        };
        let anybody = server(Arc::new(NoClientAuth)).map_err(unusable)?;
        let expiry = chain.first().and_then(CertificateFacts::parse).map(|facts| facts.validity.end);
        Ok(Configs { client, server: server(clients).map_err(unusable)?, anybody, expiry })
    }

    fn trust(
        &self,
        name: Option<&ServerName<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Trust, TlsError> {
        let chain = certificates(&self.cert)?;
        let mut roots = RootCertStore::empty();
        for root in certificates(&self.ca)? {
            roots.add(root).map_err(|source| TlsError::Unusable { path: self.ca.clone(), source })?;
        }
        let roots = Arc::new(roots);
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider))
            .build()
            .map_err(|source| TlsError::Authority { path: self.ca.clone(), source })?;
        let clients: Arc<dyn ClientCertVerifier> = match name {
            Some(name) => Arc::new(NamedClients { inner: clients, name: name.clone() }),
            None => clients,
        };
        check_own(&chain, &*clients, &roots, provider.signature_verification_algorithms)
            .map_err(|source| TlsError::Unusable { path: self.cert.clone(), source })?;
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

/// A certificate that was judged by its authority, and who else is.
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

/// That of rustls, with the ciphers in the order of their speed where the processor has instructions for AES: 128 bits
/// are plenty.
pub(super) fn provider() -> CryptoProvider {
    let cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    CryptoProvider { cipher_suites, ..default_provider() }
}

/// Checks a chain as the peers will, so that this daemon says what is wrong and not they.
fn check_own(
    chain: &[CertificateDer<'static>],
    clients: &dyn ClientCertVerifier,
    roots: &RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
) -> Result<(), rustls::Error> {
    let Some((own, others)) = chain.split_first() else { return Err(rustls::Error::NoCertificatesPresented) };
    let now = UnixTime::now();
    clients.verify_client_cert(own, others, now)?;
    let parsed = ParsedCertificate::try_from(own)?;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, others, now, algorithms.all)
}

pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = file::read(path, MAX_FILE_BYTES)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(TlsError::Missing { path: path.to_owned(), what: "certificate" }),
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name { name: name.to_owned() })
}

/// Accepts only clients whose certificate is for a certain name, too.
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
