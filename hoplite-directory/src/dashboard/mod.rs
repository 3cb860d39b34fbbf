//! The dashboard: a page for people, and the JSON that it asks for.
//!
//! Off unless an address is given. Nothing can be changed here. With a token, only who has logged in with it is told
//! anything; with TLS and no token, only who has a certificate of the cluster gets as far as a request.
//!
//! * `login`: who is in. `api`: what the page asks for. `page`: what browsers load.

mod api;
mod heat;
mod login;
mod page;

use std::net::IpAddr;
use std::sync::Arc;

use hoplite_core::id::ClusterId;
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_daemon::http::{self, Bytes, HttpRequest, HttpResponse, Method, Scheme, StatusCode, Uri, header};
use hoplite_daemon::metrics::IntCounter;
use hoplite_daemon::{Credentials, is_notable};
use hoplite_proto::dashboard::{Question, query};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::login::Door;
use self::page::Asset;
use crate::connection::Strangers;
use crate::events::Events;
use crate::owner::ShardHandle;
use crate::watch::Loads;

/// What the dashboard shows.
#[derive(Debug, Clone)]
pub(crate) struct Sights {
    /// The shard.
    pub(crate) shard: ShardHandle,
    /// The cluster.
    pub(crate) cluster: ClusterId,
    /// What has happened lately.
    pub(crate) events: Events,
    /// How the stores are.
    pub(crate) loads: Loads,
    /// The visitors that were refused.
    pub(crate) strangers: Arc<Strangers>,
}

/// Serves the dashboard on `listener` until `stop`; counts in `refused` the connections whose request never came.
pub(crate) async fn serve(
    listener: TcpListener,
    credentials: Credentials,
    sights: Sights,
    refused: Option<IntCounter>,
    stop: CancellationToken,
) {
    let Credentials { token, tls, .. } = credentials;
    let port = listener.local_addr().map_or(0, |address| address.port());
    let scheme = match (tls, &token) {
        (None, _) => Scheme::Http,
        // A browser proves that its user knows the token; without a token it must be a member as daemons are.
        (Some(tls), Some(_)) => Scheme::HttpsForAnybody(tls),
        (Some(tls), None) => Scheme::HttpsForMembers(tls),
    };
    let is_tls = !matches!(scheme, Scheme::Http);
    let dashboard =
        Dashboard { is_open: token.is_none() && !is_tls, door: Door::new(token, port, is_tls), sights };
    let dashboard = Arc::new(dashboard);
    let server = http::serve(listener, scheme, refused, move |request| {
        let dashboard = Arc::clone(&dashboard);
        async move { dashboard.answer(request).await }
    });
    stop.run_until_cancelled(server).await;
}

#[derive(Debug)]
struct Dashboard {
    door: Door,
    /// Whether nobody has to prove anything.
    is_open: bool,
    sights: Sights,
}

impl Dashboard {
    async fn answer(&self, request: HttpRequest) -> HttpResponse {
        if self.is_open && !is_address(&request) {
            return page::text(
                StatusCode::MISDIRECTED_REQUEST,
                "open this page by address, as in http://127.0.0.1:PORT/: under another name, pages of others could read it",
            );
        }
        let path = request.uri().path();
        match *request.method() {
            Method::GET | Method::HEAD => {}
            // A browser says where a form comes from; nobody else's page may fill in one of this.
            Method::POST if is_foreign(&request) => {
                return page::text(StatusCode::FORBIDDEN, "only this page itself may do that");
            }
            Method::POST if path == "/login" => return self.login(&request),
            Method::POST if path == "/logout" => {
                return page::to("/login", self.door.leave(request.headers()));
            }
            _ => return page::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD"),
        }
        if path == "/login" && !self.door.is_locked() {
            return page::to("/", None);
        }
        let is_in = self.door.admits(request.headers());
        match Asset::at(path) {
            Some(asset) if is_in || asset.is_public() => asset.response(StatusCode::OK),
            None if is_in => self.tell(request.uri()).await,
            None if path.starts_with("/api/") => page::text(StatusCode::UNAUTHORIZED, "log in first"),
            _ => page::to("/login", None),
        }
    }

    async fn tell(&self, uri: &Uri) -> HttpResponse {
        let Some(question) = Question::parse(uri.path(), uri.query().unwrap_or_default().as_bytes()) else {
            return page::text(StatusCode::NOT_FOUND, "not found, or a parameter is invalid");
        };
        self.sights.loads.look();
        match timeout(ANSWER_TIMEOUT, api::answer(question, &self.sights)).await {
            Ok(Ok(json)) => page::json(json),
            Ok(Err(error)) => page::text(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
            Err(_) => page::text(StatusCode::SERVICE_UNAVAILABLE, "the shard is too busy"),
        }
    }

    fn login(&self, request: &HttpRequest) -> HttpResponse {
        let Some(form) = request.body() else {
            return page::text(StatusCode::PAYLOAD_TOO_LARGE, "that is no token");
        };
        match self.enter(form) {
            Some(cookie) => page::to("/", Some(cookie)),
            None => {
                if is_notable(&self.sights.strangers.logins) {
                    tracing::warn!("a login at the dashboard failed: wrong token");
                }
                self.sights.events.push_stranger("wrong token at the dashboard".to_owned());
                page::wrong_token(StatusCode::FORBIDDEN)
            }
        }
    }

    fn enter(&self, form: &Bytes) -> Option<String> {
        self.door.enter(&query::value(form, "token")?)
    }
}

/// Whether a browser says that the page of somebody else has made this request.
fn is_foreign(request: &HttpRequest) -> bool {
    request.headers().get("sec-fetch-site").is_some_and(|site| site == "cross-site")
}

/// Whether the server is called by its address, or as `localhost`. A page from elsewhere can have its own name looked up as
/// the address of this server, and then read what it answers; but not change what the browser says it asked for.
fn is_address(request: &HttpRequest) -> bool {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(host) = host.and_then(|host| host.parse::<Uri>().ok()) else { return false };
    let name = host.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<IpAddr>().is_ok()
}
