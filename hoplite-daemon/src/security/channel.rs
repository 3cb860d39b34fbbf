//! Connections of clients of the control plane.

use std::error::Error;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, InvalidMessage, RootCertStore, version};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Status;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use super::Credentials;
use super::tls::{Protocol, Tls, provider};

/// The port of a host that has none said: that of HTTP, as elsewhere.
const DEFAULT_PORT: u16 = 80;

impl Credentials {
    /// A channel to `endpoint`, whose scheme is `http` in any case. Connects when it is first used.
    pub fn channel(&self, endpoint: &Endpoint) -> Channel {
        match &self.tls {
            Some(tls) => endpoint.connect_with_connector_lazy(Connector { tls: tls.clone() }),
            None => endpoint.connect_lazy(),
        }
    }

    /// The status of a call that ended before its peer had answered anything: it says so if it looks as if just one of the two
    /// speaks TLS, or as if they trust different authorities.
    pub fn explained(&self, status: Status) -> Status {
        let hint = match &self.tls {
            Some(_) => match cause::<rustls::Error>(&status) {
                Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                    Some("this side speaks TLS and the other one does not")
                }
                // An authority of the same name with another key shows as a bad signature.
                Some(rustls::Error::InvalidCertificate(
                    CertificateError::UnknownIssuer | CertificateError::BadSignature,
                )) => Some("its certificate does not come from the authority that --tls-ca names here"),
                _ => None,
            },
            // It was reached and broke off, with or without an alert that is no HTTP.
            None => cause::<hyper::Error>(&status)
.map(|_| "perhaps the other side speaks TLS; this one does not without --tls-cert, --tls-key and --tls-ca"),
        };
        match hint {
            Some(hint) => Status::new(status.code(), format!("{hint} ({})", status.message())),
            None => status,
        }
    }
}

/// What is wrong in the handshake of TLS with the peer at `host`. Waits for its first word, since a certificate is refused
/// after the handshake.
pub async fn handshake_error(tls: &Tls, host: &str, stream: TcpStream) -> Option<rustls::Error> {
    let name = tls.name_at(host).ok()?;
    let shaken = TlsConnector::from(tls.client(Protocol::Http2)).connect(name, stream).await;
    let heard = match shaken {
        Ok(mut stream) => stream.read_u8().await.map(drop),
        Err(error) => Err(error),
    };
    heard.err().and_then(|error| cause(&error).cloned())
}

/// Whether the peer answers a greeting of TLS as one who speaks it. Neither side proves anything.
pub async fn speaks_tls(stream: TcpStream) -> bool {
    let config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&version::TLS13])
        .map(|config| config.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
    let Ok(mut config) = config else { return false };
    config.alpn_protocols = vec![Protocol::Http2.name().to_vec()];
    let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(_) => true,
        // Its certificate comes from nobody that is trusted here, or it asks for one of ours.
        Err(error) => matches!(
            cause::<rustls::Error>(&error),
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))
        ),
    }
}

/// The error of type `E` that is behind another one.
pub fn cause<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    let found = error.downcast_ref();
    if found.is_some() {
        return found;
    }
    // The source of an error of I/O is that of the error in it, which it passes over.
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(within) => cause(within),
        None => error.source().and_then(cause),
    }
}

/// Connects by TCP and TLS.
#[derive(Debug, Clone)]
struct Connector {
    tls: Tls,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.tls.clone();
        Box::pin(async move {
            // An IPv6 address is in brackets.
            let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
            let name = tls.name_at(host).map_err(io::Error::other)?;
            let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(DEFAULT_PORT))).await?;
            stream.set_nodelay(true)?;
            let connector = TlsConnector::from(tls.client(Protocol::Http2));
            Ok(TokioIo::new(connector.connect(name, stream).await?))
        })
    }
}
