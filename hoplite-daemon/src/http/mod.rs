//! An HTTP server for a daemon's users. Each connection serves one request within seconds.
//!
//! At most [`MAX_CONNECTIONS`] connections wait for a complete request; one more closes the oldest.
//! At most as many complete requests are answered at a time; further ones wait.

mod address;
mod hosts;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hoplite_net::{HalfOpen, HalfOpenSlot, Protocol, Tls, accept_tls};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

pub use address::{HttpAddress, NotAPlace};
pub(crate) use hosts::HostSettings;
pub use hyper::body::{Body, Bytes};
pub use hyper::header;
pub use hyper::{HeaderMap, Method, StatusCode, Uri};

use crate::accept::Acceptor;
use crate::metrics::IntCounter;

/// A request. The body is `None` if it exceeds [`MAX_BODY_BYTES`] or does not arrive.
pub type HttpRequest = Request<Option<Bytes>>;
/// Address of the client, an extension of each request.
#[derive(Debug, Clone, Copy)]
pub struct HttpPeer(pub SocketAddr);

/// A response.
pub type HttpResponse = hyper::Response<Full<Bytes>>;

/// Most connections that wait for a complete request, and most that wait for its answer.
pub const MAX_CONNECTIONS: usize = 32;
/// Most bytes of a body: enough for a login form with the longest token, each byte as `%XX`.
pub const MAX_BODY_BYTES: usize = 16 << 10;
/// Time limit for the headers, and again for the body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for handshake, request and answer together.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_HEADER_BYTES: usize = 16 << 10;

/// Protocol below HTTP.
#[derive(Debug, Clone)]
pub enum Scheme {
    /// Plain TCP.
    Http,
    /// TLS, for clients with a certificate of the cluster.
    HttpsForMembers(Tls),
    /// TLS, for clients without a certificate.
    HttpsForAnybody(Tls),
}

/// Answers requests until dropped. Counts connections without a complete request in `refused`.
/// Without TLS, refuses requests with unknown host names (`hosts`).
pub async fn serve<A, F>(
    listener: TcpListener,
    scheme: Scheme,
    refused: Option<IntCounter>,
    answer: A,
) where
    A: Fn(HttpRequest) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = HttpResponse> + Send + 'static,
{
    let waiting = HalfOpen::new(MAX_CONNECTIONS);
    let answer_slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let acceptor = Acceptor::new("users of HTTP");
    loop {
        let (stream, address) = tokio::select! {
            accepted = acceptor.accept(&listener, || listener.accept()) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let admission = Admission::new(waiting.admit(), Arc::clone(&answer_slots));
        let (scheme, answer, refused) = (scheme.clone(), answer.clone(), refused.clone());
        connections.spawn(async move {
            let evicted = admission.evicted();
            let serving = secure(stream, scheme, admission.clone(), address, answer);
            tokio::select! {
                _ = timeout(CONNECTION_TIMEOUT, serving) => {}
                () = evicted => {}
            }
            if let Some(refused) = refused
                && admission.is_half_open()
            {
                refused.inc();
            }
        });
    }
}

#[derive(Debug, Clone)]
struct Admission {
    held: Arc<Mutex<(Option<HalfOpenSlot>, Option<OwnedSemaphorePermit>)>>,
    answer_slots: Arc<Semaphore>,
}

impl Admission {
    fn new(place: HalfOpenSlot, answer_slots: Arc<Semaphore>) -> Self {
        Self { held: Arc::new(Mutex::new((Some(place), None))), answer_slots }
    }

    fn evicted(&self) -> impl Future<Output = ()> + use<> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let evicted = held.0.as_ref().map(HalfOpenSlot::evicted);
        async {
            match evicted {
                Some(evicted) => evicted.await,
                None => std::future::pending().await,
            }
        }
    }

    fn is_half_open(&self) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    async fn acquire_slot(&self) {
        // The semaphore is never closed.
        let slot = Arc::clone(&self.answer_slots).acquire_owned().await.ok();
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = (None, slot);
    }
}

async fn secure<A, F>(
    stream: TcpStream,
    scheme: Scheme,
    admission: Admission,
    address: SocketAddr,
    answer: A,
) where
    A: Fn(HttpRequest) -> F + Send + Sync + 'static,
    F: Future<Output = HttpResponse> + Send + 'static,
{
    let config = match scheme {
        Scheme::Http => {
            let peer = PeerInfo { address, is_tls: false };
            return serve_connection(stream, admission, peer, answer).await;
        }
        Scheme::HttpsForMembers(tls) => tls.server(Protocol::Http1),
        Scheme::HttpsForAnybody(tls) => tls.server_for_anybody(Protocol::Http1),
    };
    match accept_tls(config, stream).await {
        Ok(stream) => {
            serve_connection(stream, admission, PeerInfo { address, is_tls: true }, answer).await
        }
        Err(error) => tracing::debug!(%error, "a handshake of HTTPS failed"),
    }
}

#[derive(Debug, Clone, Copy)]
struct PeerInfo {
    address: SocketAddr,
    is_tls: bool,
}

async fn serve_connection<A, F>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    admission: Admission,
    peer: PeerInfo,
    answer: A,
) where
    A: Fn(HttpRequest) -> F + Send + Sync + 'static,
    F: Future<Output = HttpResponse> + Send + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        let (admission, answer) = (admission.clone(), &answer);
        async move {
            let (head, body) = request.into_parts();
            let body = timeout(REQUEST_TIMEOUT, Limited::new(body, MAX_BODY_BYTES).collect()).await;
            let body = body.ok().and_then(Result::ok).map(Collected::to_bytes);
            admission.acquire_slot().await;
            let mut request = Request::from_parts(head, body);
            if !peer.is_tls && !hosts::are_known(&request) {
                return Ok::<_, Infallible>(misdirected_request());
            }
            request.extensions_mut().insert(HttpPeer(peer.address));
            Ok(answer(request).await)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection of HTTP ended");
    }
}

fn misdirected_request() -> HttpResponse {
    let says = "this server does not have that host name: use its address, as in http://127.0.0.1:PORT/, or allow the name with --http-hosts\n";
    let mut response = HttpResponse::new(Full::new(Bytes::from_static(says.as_bytes())));
    *response.status_mut() = StatusCode::MISDIRECTED_REQUEST;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}
