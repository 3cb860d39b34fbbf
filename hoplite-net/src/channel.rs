//! Connections of clients of the control plane.

use std::error;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hoplite_core::error::Error;
use hoplite_core::session::HELLO_TIMEOUT;
use hoplite_proto::status::from_status;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, InvalidMessage, RootCertStore, version};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::Status;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use super::Credentials;
use super::opening::{self, Caller, OpeningError};
use super::record::Checked;
use super::tls::{Protocol, Tls, provider, tls_explanation};
use crate::socket::{InProcess, Socket};

/// The port of an address without one: that of HTTP.
const DEFAULT_PORT: u16 = 80;

/// The way to a shard.
#[derive(Debug, Clone)]
pub enum Route {
    /// By TCP, and TLS if there are certificates.
    Network,
    /// Within this process.
    InProcess(InProcess),
}

impl Credentials {
    /// A channel of `caller` to `endpoint`, whose scheme is `http` in any case. Connects when it is first used.
    pub fn channel(&self, endpoint: &Endpoint, caller: Caller, route: Route) -> Channel {
        endpoint.connect_with_connector_lazy(Connector { credentials: self.clone(), caller, route })
    }

    /// Returns the error of a call that ended with `status`. If the connection failed, the error names its cause: the side
    /// that refuses and its reason, a certificate that one side rejects, or that only one side seems to speak TLS.
    pub fn error_of(&self, status: Status) -> Error {
        match cause::<OpeningError>(&status).and_then(OpeningError::refusal) {
            Some(refusal) => refusal.clone(),
            None => from_status(&self.explained(status)),
        }
    }

    fn explained(&self, status: Status) -> Status {
        let hint = match &self.tls {
            Some(_) => match cause::<rustls::Error>(&status) {
                Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                    Some("this side speaks TLS and the other one does not")
                }
                // A peer rejects the certificate of this side only after the handshake (TLS 1.3), so the alert breaks the
                // opening.
                Some(error) => tls_explanation(error),
                None => None,
            },
            // A peer that speaks TLS breaks the connection off, with an alert that this side cannot read.
            None => cause::<OpeningError>(&status).map(|_| {
                "perhaps the other side speaks TLS; this one does not without --tls-cert, --tls-key and --tls-ca"
            }),
        };
        match hint {
            Some(hint) => Status::new(status.code(), format!("{hint} ({})", status.message())),
            None => status,
        }
    }
}

/// Returns the error of a TLS handshake with the peer at `host`. Reads a byte after the handshake, because the peer rejects
/// a certificate only then.
pub async fn handshake_error(tls: &Tls, host: &str, stream: TcpStream) -> Option<rustls::Error> {
    let name = tls.name_at(host).ok()?;
    let shaken = TlsConnector::from(tls.client(Protocol::Http2)).connect(name, stream).await;
    let heard = match shaken {
        Ok(mut stream) => stream.read_u8().await.map(drop),
        Err(error) => Err(error),
    };
    heard.err().and_then(|error| cause(&error).cloned())
}

/// Returns `true` if the peer answers a TLS greeting. Neither side authenticates the other.
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

/// Returns the first error of type `E` in the chain of sources of `error`.
pub fn cause<'e, E: error::Error + 'static>(error: &'e (dyn error::Error + 'static)) -> Option<&'e E> {
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

/// Connects by TCP, and by TLS if there are certificates, and opens the connection.
#[derive(Debug, Clone)]
struct Connector {
    credentials: Credentials,
    caller: Caller,
    route: Route,
}

/// A stream of bytes in both directions.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connector {
    async fn connect(self, uri: Uri) -> io::Result<Box<dyn Stream>> {
        let Self { credentials: Credentials { token, tls, .. }, caller, route } = self;
        let socket = match route {
            Route::InProcess(directory) => directory.connect().await?,
            Route::Network => {
                let stream = TcpStream::connect((host(&uri), uri.port_u16().unwrap_or(DEFAULT_PORT))).await?;
                stream.set_nodelay(true)?;
                Socket::Tcp(stream)
            }
        };
        let opening = async {
            match (tls, socket) {
                (Some(tls), Socket::Tcp(stream)) => {
                    let name = tls.name_at(host(&uri)).map_err(io::Error::other)?;
                    let connector = TlsConnector::from(tls.client(Protocol::Http2));
                    let mut stream = connector.connect(name, stream).await?;
                    Protocol::Http2.check(stream.get_ref().1).map_err(io::Error::other)?;
                    opening::connect(&mut stream, token.as_ref(), &caller, None)
                        .await
                        .map_err(io::Error::other)?;
                    Ok(Box::new(stream) as Box<dyn Stream>)
                }
                (_, mut socket) => {
                    let opened = opening::connect(&mut socket, token.as_ref(), &caller, None).await;
                    let records = opened.map_err(io::Error::other)?.records;
                    Ok(Box::new(Checked::new(socket, records)) as Box<dyn Stream>)
                }
            }
        };
        timeout(HELLO_TIMEOUT, opening).await?
    }
}

/// Returns the host in `uri`, without the brackets of an IPv6 address.
fn host(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.clone().connect(uri);
        Box::pin(async move { connecting.await.map(TokioIo::new) })
    }
}
