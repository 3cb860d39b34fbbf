//! A daemon's certificate and trusted authority: TLS 1.3, always mutual.
//!
//! New connections look for changed files, at most once a second, so new certificates need no
//! restart. If the files are unusable, the old certificates stay.

mod files;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustls::pki_types::ServerName;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::{AlertDescription, CertificateError, ClientConfig, CommonState, ServerConfig};

use files::{Configs, FileStamp, server_name, time_of};

pub(super) use files::provider;
pub use files::{TlsError, TlsFiles};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which unusable files are read again: a certificate may have become valid.
const RETRY_INTERVAL: Duration = Duration::from_secs(3);
const EXPIRY_LOG_INTERVAL: Duration = Duration::from_secs(600);

/// Protocol inside TLS (ALPN). A peer that names another is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC, and sessions of stores with directory shards.
    Http2,
    /// The data plane.
    Data,
    /// Web pages.
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

    /// Checks that a handshake agreed on this protocol, because rustls also accepts a peer that
    /// offers none.
    ///
    /// The web server does not call this, because many HTTP clients offer none.
    pub fn check(self, connection: &CommonState) -> Result<(), rustls::Error> {
        if connection.alpn_protocol() == Some(self.name()) {
            Ok(())
        } else {
            Err(rustls::Error::NoApplicationProtocol)
        }
    }
}

/// Explains a failed handshake; `None` if rustls' text is clear.
pub fn tls_explanation(error: &rustls::Error) -> Option<&'static str> {
    use CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext,
        NotValidYet, NotValidYetContext, UnknownIssuer,
    };
    Some(match error {
        rustls::Error::NoApplicationProtocol => {
            "the peer does not say (by ALPN) that it speaks the protocol of this port: is it a daemon of Hoplite?"
        }
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "the port of the peer is for another protocol: of control plane, data plane and dashboard, is it the right one?"
        }
        // Bad signature: the authority has the right name but another key.
        rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature) => {
            "the certificate of the peer does not come from the authority that --tls-ca names here"
        }
        rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. }) => {
            "the certificate of the peer has expired, or a clock is wrong"
        }
        rustls::Error::InvalidCertificate(NotValidYet | NotValidYetContext { .. }) => {
            "the certificate of the peer is not valid yet, or a clock is wrong"
        }
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "the certificate of the peer is not for the address or name at which the peer is reached"
        }
        rustls::Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::DecryptError
            | AlertDescription::CertificateUnknown,
        ) => {
            "the peer does not accept the certificate of this daemon: it trusts another authority, or wants a name"
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "the peer does not accept the certificate of this daemon: it has expired, or a clock is wrong"
        }
        _ => return None,
    })
}

/// Contents of the TLS files in use, shared by clones.
#[derive(Clone)]
pub struct Tls {
    shared: Arc<Shared>,
}

struct Shared {
    files: TlsFiles,
    name: Option<ServerName<'static>>,
    clock: Arc<dyn TimeProvider>,
    state: Mutex<State>,
}

struct State {
    configs: Arc<Configs>,
    stamps: [FileStamp; 3],
    checked: Instant,
    failure: Option<Failure>,
    reached_at: Option<ServerName<'static>>,
    expiry_logged: Option<Instant>,
}

struct Failure {
    retry_at: Instant,
    error: String,
    times: u64,
}

impl Tls {
    /// Reads the files. A peer's certificate must contain `name`, or without `name` the host to
    /// which this daemon connects.
    ///
    /// # Errors
    /// [`TlsError`], also if peers would reject the certificate.
    pub fn read(files: TlsFiles, name: Option<&str>) -> Result<Self, TlsError> {
        Self::read_by(Arc::new(DefaultTimeProvider), files, name)
    }

    fn read_by(
        clock: Arc<dyn TimeProvider>,
        files: TlsFiles,
        name: Option<&str>,
    ) -> Result<Self, TlsError> {
        let name = name.map(server_name).transpose()?;
        let stamps = files.stamps();
        let state = State {
            configs: Arc::new(files.load(name.as_ref(), &clock)?),
            stamps,
            checked: Instant::now(),
            failure: None,
            reached_at: None,
            expiry_logged: None,
        };
        Ok(Self { shared: Arc::new(Shared { files, name, clock, state: Mutex::new(state) }) })
    }

    /// Returns the TLS settings for connections to peers.
    pub fn client(&self, protocol: Protocol) -> Arc<ClientConfig> {
        let mut config = self.current().client.clone();
        config.alpn_protocols = vec![protocol.name().to_vec()];
        Arc::new(config)
    }

    /// Returns the TLS settings for connections from peers.
    pub fn server(&self, protocol: Protocol) -> Arc<ServerConfig> {
        let mut config = self.current().server.clone();
        config.alpn_protocols = vec![protocol.name().to_vec()];
        Arc::new(config)
    }

    /// Returns the TLS settings for clients without certificates, which authenticate otherwise.
    pub fn server_for_anybody(&self, protocol: Protocol) -> Arc<ServerConfig> {
        let mut config = self.current().anybody.clone();
        config.alpn_protocols = vec![protocol.name().to_vec()];
        Arc::new(config)
    }

    /// Expiry of this daemon's certificate; `None` if unparsable.
    pub fn expiry(&self) -> Option<SystemTime> {
        self.current().expiry
    }

    /// Name that the certificate of a peer at `host` must contain.
    pub fn name_at(&self, host: &str) -> Result<ServerName<'static>, TlsError> {
        self.shared.name.clone().map_or_else(|| server_name(host), Ok)
    }

    /// Checks that this daemon's certificate has the name that peers demand at `host` (the `name`
    /// of [`read`](Self::read), else `host`). Later certificates must have it too.
    ///
    /// # Errors
    /// [`TlsError::Elsewhere`] if the certificate lacks the name; [`TlsError::Name`].
    pub fn check_reached_at(&self, host: &str) -> Result<(), TlsError> {
        let name = self.name_at(host)?;
        let mut state = self.shared.lock();
        state.reached_at = Some(name.clone());
        self.shared.files.check_reached_at(&state.configs.own, &name)
    }

    /// Like [`check_reached_at`](Self::check_reached_at), but ignores later certificates.
    pub fn check_named(&self, host: &str) -> Result<(), TlsError> {
        let name = self.name_at(host)?;
        let own = self.shared.lock().configs.own.clone();
        self.shared.files.check_reached_at(&own, &name)
    }

    fn current(&self) -> Arc<Configs> {
        self.current_at(Instant::now())
    }

    fn current_at(&self, now: Instant) -> Arc<Configs> {
        let mut state = self.shared.lock();
        if now.saturating_duration_since(state.checked) >= CHECK_INTERVAL {
            state.checked = now;
            self.shared.reload_changed_files(&mut state, now);
            self.shared.log_expiry(&mut state, now);
        }
        Arc::clone(&state.configs)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reload_changed_files(&self, state: &mut State, now: Instant) {
        // Read before the contents, so that a concurrent change is noticed next time.
        let stamps = self.files.stamps();
        let is_due = state.failure.as_ref().is_some_and(|failure| now >= failure.retry_at);
        if stamps == state.stamps && !is_due {
            return;
        }
        state.stamps = stamps;
        match self.load(state.reached_at.as_ref()) {
            Ok(configs) => {
                let failures = state.failure.take().map_or(0, |failure| failure.times);
                state.configs = Arc::new(configs);
                state.expiry_logged = None;
                tracing::info!(cert = %self.files.cert.display(), failures, "took over new certificates");
            }
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::from(error));
                let before = state.failure.take().filter(|failure| failure.error == error);
                let times = before.map_or(1, |failure| failure.times + 1);
                if times.is_power_of_two() {
                    tracing::warn!(error, times, retry_after = ?RETRY_INTERVAL, "go on with the old certificates");
                }
                state.failure = Some(Failure { retry_at: now + RETRY_INTERVAL, error, times });
            }
        }
    }

    fn load(&self, reached_at: Option<&ServerName<'static>>) -> Result<Configs, TlsError> {
        let configs = self.files.load(self.name.as_ref(), &self.clock)?;
        if let Some(name) = reached_at {
            self.files.check_reached_at(&configs.own, name)?;
        }
        Ok(configs)
    }

    fn log_expiry(&self, state: &mut State, now: Instant) {
        let is_news = state
            .expiry_logged
            .is_none_or(|logged| now.saturating_duration_since(logged) >= EXPIRY_LOG_INTERVAL);
        let Some(expiry) = state.configs.expiry.filter(|_| is_news) else { return };
        let now_seconds = time_of(&*self.clock).as_secs();
        let expired =
            expiry.duration_since(UNIX_EPOCH).is_ok_and(|expiry| expiry.as_secs() < now_seconds);
        if expired {
            state.expiry_logged = Some(now);
            tracing::warn!(
                cert = %self.files.cert.display(),
                "the certificate of this daemon has expired, or the clock is wrong: peers refuse it"
            );
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("files", &self.shared.files)
            .field("name", &self.shared.name)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::Range;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, UnixTime};
    use rustls::{ClientConnection, ConnectionCommon, ServerConnection, SideData};
    use tempfile::TempDir;

    use super::*;
    use crate::{Authority, IssuedCertificate};

    const HOUR: u64 = 3600;
    const NOON: u64 = 1_800_000_000;

    #[derive(Debug)]
    struct Clock(AtomicU64);

    impl Clock {
        fn at(seconds: u64) -> Arc<Self> {
            Arc::new(Self(AtomicU64::new(seconds)))
        }

        fn set(&self, seconds: u64) {
            self.0.store(seconds, Ordering::Relaxed);
        }
    }

    impl TimeProvider for Clock {
        fn current_time(&self) -> Option<UnixTime> {
            Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::Relaxed))))
        }
    }

    struct Daemon {
        authority: Authority,
        place: TempDir,
    }

    impl Daemon {
        fn new(authority: &Authority, issued: &IssuedCertificate) -> Self {
            let daemon = Self { authority: authority.clone(), place: tempfile::tempdir().unwrap() };
            daemon.replace(issued, 0o600);
            daemon
        }

        fn files(&self) -> TlsFiles {
            let path = |name| self.place.path().join(name);
            TlsFiles { cert: path("cert.pem"), key: path("key.pem"), ca: path("ca.pem") }
        }

        fn replace(&self, issued: &IssuedCertificate, mode_of_key: u32) {
            let TlsFiles { cert, key, ca } = self.files();
            let texts = [
                (cert, &issued.cert, 0o644),
                (key, &issued.key, mode_of_key),
                (ca, &self.authority.cert, 0o644),
            ];
            for (path, text, mode) in texts {
                let new = path.with_extension("new");
                fs::write(&new, text).unwrap();
                fs::set_permissions(&new, fs::Permissions::from_mode(mode)).unwrap();
                fs::rename(&new, &path).unwrap();
            }
        }

        fn tls(&self, clock: &Arc<Clock>) -> Tls {
            Tls::read_by(clock.clone(), self.files(), None).unwrap()
        }
    }

    fn authority() -> Authority {
        Authority::new(time(0)..time(2 * NOON)).unwrap()
    }

    fn time(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn issue(authority: &Authority, name: &str, validity: Range<u64>) -> IssuedCertificate {
        authority.issue(&[name.to_owned()], time(validity.start)..time(validity.end)).unwrap()
    }

    fn der(issued: &IssuedCertificate) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(issued.cert.as_bytes()).unwrap()
    }

    fn pass<A: SideData, B: SideData>(
        from: &mut ConnectionCommon<A>,
        to: &mut ConnectionCommon<B>,
    ) -> Result<bool, rustls::Error> {
        let mut sent = Vec::new();
        while from.wants_write() {
            from.write_tls(&mut sent).unwrap();
        }
        let mut unread = sent.as_slice();
        while !unread.is_empty() {
            to.read_tls(&mut unread).unwrap();
            to.process_new_packets()?;
        }
        Ok(!sent.is_empty())
    }

    fn handshake(
        client: Arc<ClientConfig>,
        server: Arc<ServerConfig>,
    ) -> Result<(ClientConnection, ServerConnection), rustls::Error> {
        let mut client = ClientConnection::new(client, server_name("127.0.0.1").unwrap())?;
        let mut server = ServerConnection::new(server)?;
        while pass(&mut client, &mut server)? | pass(&mut server, &mut client)? {}
        Ok((client, server))
    }

    fn connects(client: &Tls, server: &Tls) -> Result<(), rustls::Error> {
        handshake(client.client(Protocol::Data), server.server(Protocol::Data)).map(drop)
    }

    fn certificate_after(tls: &Tls, seconds: u64) -> CertificateDer<'static> {
        tls.current_at(Instant::now() + Duration::from_secs(seconds)).own.clone()
    }

    #[test]
    fn a_refused_key_counts_as_soon_as_its_permissions_are_right() {
        let authority = authority();
        let [old, new] = [(); 2].map(|()| issue(&authority, "127.0.0.1", 0..2 * NOON));
        let daemon = Daemon::new(&authority, &old);
        let tls = daemon.tls(&Clock::at(NOON));
        daemon.replace(&new, 0o644);
        assert_eq!(certificate_after(&tls, 2), der(&old));
        assert!(tls.shared.lock().failure.as_ref().unwrap().error.contains("chmod 600"));
        fs::set_permissions(daemon.files().key, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(certificate_after(&tls, 4), der(&new));
        assert!(tls.shared.lock().failure.is_none());
    }

    #[test]
    fn a_certificate_counts_as_soon_as_it_is_valid() {
        let authority = authority();
        let old = issue(&authority, "127.0.0.1", 0..2 * NOON);
        let new = issue(&authority, "127.0.0.1", NOON + 5..2 * NOON);
        let (daemon, clock) = (Daemon::new(&authority, &old), Clock::at(NOON));
        let tls = daemon.tls(&clock);
        daemon.replace(&new, 0o600);
        assert_eq!(certificate_after(&tls, 2), der(&old));
        clock.set(NOON + 5);
        assert_eq!(certificate_after(&tls, 4), der(&old), "it is not tried again all the time");
        assert_eq!(certificate_after(&tls, 6), der(&new));
    }

    #[test]
    fn invalid_files_are_retried_while_the_old_certificates_stay_in_use() {
        let authority = authority();
        let old = issue(&authority, "127.0.0.1", 0..2 * NOON);
        let daemon = Daemon::new(&authority, &old);
        let tls = daemon.tls(&Clock::at(NOON));
        fs::remove_file(daemon.files().key).unwrap();
        for tries in 1..=5 {
            assert_eq!(certificate_after(&tls, 4 * tries), der(&old));
            assert_eq!(tls.shared.lock().failure.as_ref().unwrap().times, tries);
        }
        assert!(connects(&tls, &tls).is_ok());
        fs::write(daemon.files().key, "no key").unwrap();
        fs::set_permissions(daemon.files().key, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(certificate_after(&tls, 30), der(&old));
        assert_eq!(tls.shared.lock().failure.as_ref().unwrap().times, 1);
    }

    #[test]
    fn a_clock_jump_ends_no_connection_and_fails_new_ones() {
        let authority = authority();
        let window = NOON - HOUR / 2..NOON + HOUR / 2;
        let daemon = || Daemon::new(&authority, &issue(&authority, "127.0.0.1", window.clone()));
        let (ours, theirs) = (daemon(), daemon());
        let (right, jumping) = (Clock::at(NOON), Clock::at(NOON));
        let (ours, theirs) = (ours.tls(&right), theirs.tls(&jumping));
        let (mut client, mut server) =
            handshake(ours.client(Protocol::Data), theirs.server(Protocol::Data)).unwrap();
        let before = certificate_after(&theirs, 0);
        for (seconds, says) in [
            (NOON + HOUR, "has expired, or a clock is wrong"),
            (NOON - HOUR, "not valid yet, or a clock is wrong"),
        ] {
            jumping.set(seconds);
            for error in
                [connects(&ours, &theirs).unwrap_err(), connects(&theirs, &ours).unwrap_err()]
            {
                assert!(tls_explanation(&error).unwrap().contains(says), "{error}");
            }
            assert_eq!(certificate_after(&theirs, 2), before);
            std::io::Write::write_all(&mut client.writer(), b"go on").unwrap();
            assert!(pass(&mut client, &mut server).unwrap());
        }
        jumping.set(NOON);
        connects(&ours, &theirs).unwrap();
        connects(&theirs, &ours).unwrap();
    }

    #[test]
    fn certificates_are_replaced_under_connections_that_go_on() {
        let authority = authority();
        let [old, new] = [NOON, 2 * NOON].map(|end| issue(&authority, "127.0.0.1", 0..end));
        let daemon = Daemon::new(&authority, &old);
        let clock = Clock::at(NOON - 5);
        let tls = daemon.tls(&clock);
        let (mut client, mut server) =
            handshake(tls.client(Protocol::Data), tls.server(Protocol::Data)).unwrap();
        clock.set(NOON + 5);
        assert!(connects(&tls, &tls).is_err());
        daemon.replace(&new, 0o600);
        assert_eq!(certificate_after(&tls, 2), der(&new));
        connects(&tls, &tls).unwrap();
        for _ in 0..2 {
            std::io::Write::write_all(&mut client.writer(), b"go on").unwrap();
            assert!(pass(&mut client, &mut server).unwrap());
        }
    }

    #[test]
    fn an_expired_certificate_in_use_is_logged_now_and_then() {
        let authority = authority();
        let daemon = Daemon::new(&authority, &issue(&authority, "127.0.0.1", 0..NOON));
        let clock = Clock::at(NOON - 5);
        let tls = daemon.tls(&clock);
        certificate_after(&tls, 2);
        assert!(tls.shared.lock().expiry_logged.is_none());
        clock.set(NOON + 5);
        let logged = [4, 6, 700].map(|seconds| {
            certificate_after(&tls, seconds);
            tls.shared.lock().expiry_logged.unwrap()
        });
        assert!(logged[0] == logged[1] && logged[1] < logged[2], "{logged:?}");
    }

    #[test]
    fn a_port_accepts_only_its_own_protocol() {
        let authority = authority();
        let daemon = Daemon::new(&authority, &issue(&authority, "127.0.0.1", 0..2 * NOON));
        let tls = daemon.tls(&Clock::at(NOON));
        let mut silent = ClientConfig::clone(&tls.client(Protocol::Data));
        silent.alpn_protocols.clear();
        for protocol in [Protocol::Data, Protocol::Http2] {
            let (client, server) = handshake(tls.client(protocol), tls.server(protocol)).unwrap();
            protocol.check(&client).unwrap();
            protocol.check(&server).unwrap();
            let (client, server) =
                handshake(Arc::new(silent.clone()), tls.server(protocol)).unwrap();
            assert_eq!(protocol.check(&client), Err(rustls::Error::NoApplicationProtocol));
            assert_eq!(protocol.check(&server), Err(rustls::Error::NoApplicationProtocol));
            let wrong = handshake(tls.client(Protocol::Http1), tls.server(protocol)).map(drop);
            assert_eq!(wrong, Err(rustls::Error::NoApplicationProtocol));
        }
    }

    #[test]
    fn a_certificate_of_an_authority_is_refused_for_a_daemon() {
        let authority = authority();
        let own = IssuedCertificate { cert: authority.cert.clone(), key: authority.key.clone() };
        let daemon = Daemon::new(&authority, &own);
        let error = Tls::read_by(Clock::at(NOON), daemon.files(), None).unwrap_err();
        assert!(matches!(error, TlsError::IsAuthority { .. }), "{error}");
        let says = format!("{:#}", anyhow::Error::from(error));
        assert!(
            says.contains("is that of an authority") && !says.contains("CaUsedAsEndEntity"),
            "{says}"
        );
    }

    #[test]
    fn a_certificate_must_name_the_address_that_peers_use() {
        let authority = authority();
        let [named, addressed] =
            ["node.example", "127.0.0.1"].map(|name| issue(&authority, name, 0..2 * NOON));
        let daemon = Daemon::new(&authority, &named);
        let clock = Clock::at(NOON);
        let error = daemon.tls(&clock).check_reached_at("127.0.0.1").unwrap_err();
        assert!(error.to_string().contains("is not for 127.0.0.1"), "{error}");
        let for_all = Tls::read_by(clock.clone(), daemon.files(), Some("node.example")).unwrap();
        for_all.check_reached_at("127.0.0.1").unwrap();

        daemon.replace(&addressed, 0o600);
        let tls = daemon.tls(&clock);
        tls.check_reached_at("127.0.0.1").unwrap();
        daemon.replace(&named, 0o600);
        assert_eq!(certificate_after(&tls, 2), der(&addressed));
    }
}
