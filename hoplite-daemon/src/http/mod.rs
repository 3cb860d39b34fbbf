//! How a daemon serves HTTP, to those who look at it: one request for each connection, and nothing that a stranger does may
//! cost much.
//!
//! A connection waits until all of its request is there: in a bounded number of places, of which the oldest is lost to the next
//! comer, so that those who connect and say little keep nobody out. Then it has a seat, of which there are as many, until
//! its answer is sent. All of it ends after a few seconds.

mod address;
mod hosts;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hoplite_net::{HalfOpen, HalfOpenPlace, Protocol, Tls, accept_tls};
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

/// What is asked for, with its body; `None` if that is longer than [`MAX_BODY_BYTES`] or does not come.
pub type HttpRequest = Request<Option<Bytes>>;
/// The address that a request comes from; each request has it among its extensions.
#[derive(Debug, Clone, Copy)]
pub struct HttpPeer(pub SocketAddr);

/// What is answered.
pub type HttpResponse = hyper::Response<Full<Bytes>>;

/// Most connections that wait for their request, and most whose request is answered.
pub const MAX_CONNECTIONS: usize = 32;
/// Longest body of a request: a form with the largest token, each of whose bytes is encoded as three.
pub const MAX_BODY_BYTES: usize = 16 << 10;
/// The time that a peer may take to send the headers of its request, and again as long for its body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// The time that a connection may last: the handshake of TLS, the request and the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest request line with headers. A browser sends along what it keeps for other programs on the same host.
const MAX_HEADER_BYTES: usize = 16 << 10;

/// What is spoken below HTTP.
#[derive(Debug, Clone)]
pub enum Scheme {
    /// Nothing.
    Http,
    /// TLS, with a certificate of the cluster on both sides.
    HttpsForMembers(Tls),
    /// TLS, with a certificate of the server only.
    HttpsForAnybody(Tls),
}

/// Answers requests on `listener`, for ever; with the future, all connections end. Those whose
/// request never came are counted in `refused`. Without TLS, a request for a host whose name is not
/// that of this server is refused: see `hosts`.
pub async fn serve<A, F>(listener: TcpListener, scheme: Scheme, refused: Option<IntCounter>, answer: A)
where
    A: Fn(HttpRequest) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = HttpResponse> + Send + 'static,
{
    let waiting = HalfOpen::new(MAX_CONNECTIONS);
    let seats = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let acceptor = Acceptor::new("users of HTTP");
    loop {
        let (stream, address) = tokio::select! {
            accepted = acceptor.accept(&listener, || listener.accept()) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let seating = Seating::new(waiting.enter(), Arc::clone(&seats));
        let (scheme, answer, refused) = (scheme.clone(), answer.clone(), refused.clone());
        connections.spawn(async move {
            let lost = seating.lost();
            let conversation = secure(stream, scheme, seating.clone(), address, answer);
            tokio::select! {
                _ = timeout(CONNECTION_TIMEOUT, conversation) => {}
                () = lost => {}
            }
            if let Some(refused) = refused
                && seating.still_waits()
            {
                refused.inc();
            }
        });
    }
}

/// Where a connection is: in the place where it waits for its request, or in a seat.
#[derive(Debug, Clone)]
struct Seating {
    held: Arc<Mutex<(Option<HalfOpenPlace>, Option<OwnedSemaphorePermit>)>>,
    seats: Arc<Semaphore>,
}

impl Seating {
    fn new(place: HalfOpenPlace, seats: Arc<Semaphore>) -> Self {
        Self { held: Arc::new(Mutex::new((Some(place), None))), seats }
    }

    /// Ends when another connection has got the place.
    fn lost(&self) -> impl Future<Output = ()> + use<> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = held.0.as_ref().map(HalfOpenPlace::lost);
        async {
            match lost {
                Some(lost) => lost.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Returns `true` if the request has not come.
    fn still_waits(&self) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    /// The request is there.
    async fn sit(&self) {
        // The semaphore is never closed.
        let seat = Arc::clone(&self.seats).acquire_owned().await.ok();
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = (None, seat);
    }
}

async fn secure<A, F>(stream: TcpStream, scheme: Scheme, seating: Seating, address: SocketAddr, answer: A)
where
    A: Fn(HttpRequest) -> F + Send + Sync + 'static,
    F: Future<Output = HttpResponse> + Send + 'static,
{
    let config = match scheme {
        Scheme::Http => {
            let visit = Visit { address, is_tls: false };
            return converse(stream, seating, visit, answer).await;
        }
        Scheme::HttpsForMembers(tls) => tls.server(Protocol::Http1),
        Scheme::HttpsForAnybody(tls) => tls.server_for_anybody(Protocol::Http1),
    };
    match accept_tls(config, stream).await {
        Ok(stream) => converse(stream, seating, Visit { address, is_tls: true }, answer).await,
        Err(error) => tracing::debug!(%error, "a handshake of HTTPS failed"),
    }
}

/// The kind and the origin of a connection.
#[derive(Debug, Clone, Copy)]
struct Visit {
    address: SocketAddr,
    is_tls: bool,
}

async fn converse<A, F>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    seating: Seating,
    visit: Visit,
    answer: A,
) where
    A: Fn(HttpRequest) -> F + Send + Sync + 'static,
    F: Future<Output = HttpResponse> + Send + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        let (seating, answer) = (seating.clone(), &answer);
        async move {
            let (head, body) = request.into_parts();
            let body = timeout(REQUEST_TIMEOUT, Limited::new(body, MAX_BODY_BYTES).collect()).await;
            let body = body.ok().and_then(Result::ok).map(Collected::to_bytes);
            seating.sit().await;
            let mut request = Request::from_parts(head, body);
            if !visit.is_tls && !hosts::are_known(&request) {
                return Ok::<_, Infallible>(misdirected());
            }
            request.extensions_mut().insert(HttpPeer(visit.address));
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

/// The answer to a request for a host that this server is not.
fn misdirected() -> HttpResponse {
    let says = "this server does not know itself under that name: use its address, as in http://127.0.0.1:PORT/, \
                or name it with --http-hosts\n";
    let mut response = HttpResponse::new(Full::new(Bytes::from_static(says.as_bytes())));
    *response.status_mut() = StatusCode::MISDIRECTED_REQUEST;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}
