use std::error;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hoplite_core::error::Error;
use hoplite_core::session::{CONNECT_TIMEOUT, HELLO_TIMEOUT};
use hoplite_proto::directory::Preface;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, InvalidMessage, RootCertStore, version};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use super::credentials::Credentials;
use super::frames::{FrameReader, FrameWriter, frames};
use super::opening::{self, Caller, OpeningError, Records};
use super::record::Checked;
use super::socket::{InProcess, Socket};
use super::tls::{Protocol, Tls, provider, tls_explanation};

/// Port of a shard whose address has none, as for HTTP.
const DEFAULT_PORT: u16 = 80;

/// Route to a shard.
#[derive(Debug, Clone)]
pub enum Route {
    /// TCP, with TLS if the credentials have certificates.
    Network,
    /// Connects within this process.
    InProcess(InProcess),
}

impl Credentials {
    /// Makes a channel, which connects at first use. The scheme of `endpoint` must be `http`.
    pub fn channel(&self, endpoint: &Endpoint, caller: Caller, route: Route) -> Channel {
        endpoint.connect_with_connector_lazy(Connector { credentials: self.clone(), caller, route })
    }

    /// Opens a direct connection (without gRPC) to the shard at `uri`.
    ///
    /// # Errors
    /// The errors of a gRPC connection, which [`error_of`](Self::error_of) explains.
    pub async fn connect_direct(
        &self,
        uri: &Uri,
        caller: &Caller,
        route: &Route,
    ) -> io::Result<(FrameReader, FrameWriter)> {
        let (socket, records) = self.connect(uri, caller, route, Preface::Direct).await?;
        socket.prepare()?;
        // After a loss, the store uses each object's other shard, so unsent bytes are out of date.
        socket.discard_unsent()?;
        Ok(frames(socket, records))
    }

    async fn connect(
        &self,
        uri: &Uri,
        caller: &Caller,
        route: &Route,
        preface: Preface,
    ) -> io::Result<(Socket, Records)> {
        let socket = match route {
            Route::InProcess(directory) => directory.connect().await?,
            Route::Network => {
                let connecting =
                    TcpStream::connect((host(uri), uri.port_u16().unwrap_or(DEFAULT_PORT)));
                let stream = timeout(CONNECT_TIMEOUT, connecting).await??;
                stream.set_nodelay(true)?;
                Socket::Tcp(stream)
            }
        };
        let opening = async {
            let mut socket = match (&self.tls, socket) {
                (Some(tls), Socket::Tcp(stream)) => {
                    let name = tls.name_at(host(uri)).map_err(io::Error::other)?;
                    let connector = TlsConnector::from(tls.client(Protocol::Http2));
                    let stream = connector.connect(name, stream).await?;
                    Protocol::Http2.check(stream.get_ref().1).map_err(io::Error::other)?;
                    Socket::Tls(Box::new(stream.into()))
                }
                (_, socket) => socket,
            };
            let opened = opening::connect(&mut socket, self.token.as_ref(), caller, preface).await;
            Ok((socket, opened.map_err(io::Error::other)?))
        };
        timeout(HELLO_TIMEOUT, opening).await?
    }

    /// Explains a failed connection: a refusal, a rejected certificate, or TLS on one side only.
    pub fn error_of(&self, failure: &(dyn error::Error + 'static)) -> Error {
        if let Some(refusal) = cause::<OpeningError>(failure).and_then(OpeningError::refusal) {
            return refusal.clone();
        }
        let mut text = failure.to_string();
        let mut source = failure.source();
        while let Some(error) = source {
            let detail = error.to_string();
            if !text.contains(&detail) {
                text = format!("{text}: {detail}");
            }
            source = error.source();
        }
        let what = match self.hint(failure) {
            Some(hint) => format!("the directory ({hint} ({text}))"),
            None => format!("the directory ({text})"),
        };
        Error::Unavailable { what: what.into() }
    }

    fn hint(&self, failure: &(dyn error::Error + 'static)) -> Option<&'static str> {
        match (&self.tls, cause::<rustls::Error>(failure)) {
            (Some(_), Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType))) => {
                Some("this side speaks TLS and the other one does not")
            }
            // In TLS 1.3, the peer rejects a certificate after the handshake.
            (Some(_), Some(error)) => tls_explanation(error),
            (Some(_), None) => None,
            // A peer that speaks TLS answers with an alert, which this side cannot decode, and
            // closes.
            (None, _) => cause::<OpeningError>(failure).map(|_| {
                "perhaps the other side speaks TLS; this one does not without --tls-cert, --tls-key and --tls-ca"
            }),
        }
    }
}

/// Performs a TLS handshake and one read, because the peer rejects a certificate only afterwards.
/// Returns the error.
pub async fn handshake_error(tls: &Tls, host: &str, stream: TcpStream) -> Option<rustls::Error> {
    let name = tls.name_at(host).ok()?;
    let shaken = TlsConnector::from(tls.client(Protocol::Http2)).connect(name, stream).await;
    let read = match shaken {
        Ok(mut stream) => stream.read_u8().await.map(drop),
        Err(error) => Err(error),
    };
    read.err().and_then(|error| cause(&error).cloned())
}

/// Returns `true` if the peer speaks TLS. Authenticates neither side.
pub async fn speaks_tls(stream: TcpStream) -> bool {
    let config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&version::TLS13])
        .map(|config| config.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
    let Ok(mut config) = config else { return false };
    config.alpn_protocols = vec![Protocol::Http2.name().to_vec()];
    let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(_) => true,
        // These errors show TLS: the certificate is untrusted, or the peer requests one.
        Err(error) => matches!(
            cause::<rustls::Error>(&error),
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))
        ),
    }
}

/// First error of type `E` among the error and its sources.
pub fn cause<'e, E: error::Error + 'static>(
    error: &'e (dyn error::Error + 'static),
) -> Option<&'e E> {
    let found = error.downcast_ref();
    if found.is_some() {
        return found;
    }
    // `source` of an I/O error skips its inner error.
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(within) => cause(within),
        None => error.source().and_then(cause),
    }
}

#[derive(Debug, Clone)]
struct Connector {
    credentials: Credentials,
    caller: Caller,
    route: Route,
}

fn host(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Checked<Socket>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { credentials, caller, route } = self.clone();
        Box::pin(async move {
            let (socket, records) =
                credentials.connect(&uri, &caller, &route, Preface::Grpc).await?;
            Ok(TokioIo::new(Checked::new(socket, records)))
        })
    }
}
