//! Dashboard: a page for people, and its JSON.
//!
//! The dashboard is off unless an address is given, and read-only. With a token, only logged-in
//! users see data. With TLS and no token, only peers with a certificate of the cluster can send
//! requests.

mod api;
mod heat;
mod login;
mod node;
mod page;
mod prefixes;
mod reduces;
mod rows;
mod share;
mod throttle;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::id::ClusterId;
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_daemon::http::{self, HttpPeer, HttpRequest, HttpResponse, Method, Scheme, StatusCode};
use hoplite_daemon::is_notable;
use hoplite_daemon::metrics::IntCounter;
use hoplite_net::Credentials;
use hoplite_proto::dashboard::{Question, query};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::login::{Login, LoginOutcome};
use self::page::Asset;
pub(crate) use self::prefixes::Prefixes;
use crate::events::{EventKind, Events};
use crate::owner::ShardHandle;
use crate::refusals::Refusals;
use crate::watch::Loads;

#[derive(Debug, Clone)]
pub(crate) struct DashboardData {
    pub(crate) shard: ShardHandle,
    pub(crate) cluster: ClusterId,
    pub(crate) events: Events,
    pub(crate) loads: Loads,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) prefixes: Prefixes,
}

/// Serves the dashboard. Counts connections without a complete request in `refused`.
pub(crate) async fn serve(
    listener: TcpListener,
    credentials: Credentials,
    data: DashboardData,
    refused: Option<IntCounter>,
    stop: CancellationToken,
) {
    let Credentials { token, tls, .. } = credentials;
    let port = listener.local_addr().map_or(0, |address| address.port());
    let scheme = match (tls, &token) {
        (None, _) => Scheme::Http,
        (Some(tls), Some(_)) => Scheme::HttpsForAnybody(tls),
        (Some(tls), None) => Scheme::HttpsForMembers(tls),
    };
    let is_tls = !matches!(scheme, Scheme::Http);
    let dashboard = Arc::new(Dashboard { login: Login::new(token, port, is_tls), data });
    let server = http::serve(listener, scheme, refused, move |request| {
        let dashboard = Arc::clone(&dashboard);
        async move { dashboard.answer(request).await }
    });
    stop.run_until_cancelled(server).await;
}

#[derive(Debug)]
struct Dashboard {
    login: Login,
    data: DashboardData,
}

impl Dashboard {
    async fn answer(&self, request: HttpRequest) -> HttpResponse {
        let path = request.uri().path();
        match *request.method() {
            Method::GET | Method::HEAD => {}
            // Refuses forms of other sites, which browsers name.
            Method::POST if is_foreign(&request) => {
                return page::text(StatusCode::FORBIDDEN, "only forms of this page are accepted");
            }
            Method::POST if path == "/login" => return self.login(&request),
            Method::POST if path == "/logout" => {
                return page::to(
                    "/login",
                    self.login.log_out(request.headers()).into_iter().collect(),
                );
            }
            _ => return page::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD"),
        }
        if path == "/login" && !self.login.requires_login() {
            return page::to("/", Vec::new());
        }
        let is_in = self.login.is_logged_in(request.headers());
        match Asset::at(path) {
            Some(asset) if is_in || asset.is_public() => asset.response(StatusCode::OK),
            None if is_in => self.answer_api(&request).await,
            None if path.starts_with("/api/") => {
                page::text(StatusCode::UNAUTHORIZED, "log in first")
            }
            _ => page::to("/login", Vec::new()),
        }
    }

    async fn answer_api(&self, request: &HttpRequest) -> HttpResponse {
        let uri = request.uri();
        let Some(question) =
            Question::parse(uri.path(), uri.query().unwrap_or_default().as_bytes())
        else {
            return page::text(StatusCode::NOT_FOUND, "not found, or a parameter is invalid");
        };
        self.data.loads.request_reports();
        match timeout(ANSWER_TIMEOUT, api::answer(question, &self.data)).await {
            Ok(Ok(json)) => page::json(json, request.headers()),
            Ok(Err(error)) => page::text(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
            Err(_) => page::text(StatusCode::SERVICE_UNAVAILABLE, "the shard is too busy"),
        }
    }

    fn login(&self, request: &HttpRequest) -> HttpResponse {
        let Some(form) = request.body() else {
            return page::text(StatusCode::PAYLOAD_TOO_LARGE, "that is no token");
        };
        let token = query::value(form, "token").unwrap_or_default();
        let peer = request.extensions().get::<HttpPeer>();
        let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0.ip());
        match self.login.log_in(&token, request.headers(), address) {
            LoginOutcome::Accepted(cookies) => page::to("/", cookies),
            LoginOutcome::WrongToken => {
                self.note_failure(address, "wrong token");
                page::wrong_token()
            }
            LoginOutcome::RetryAfter(wait) => {
                self.note_failure(address, "too many wrong tokens");
                page::too_many(wait + Duration::from_millis(999))
            }
        }
    }

    fn note_failure(&self, address: IpAddr, why: &str) {
        if is_notable(&self.data.refusals.logins) {
            tracing::warn!(%address, why, "a login at the dashboard failed");
        }
        self.data.events.push_stranger(EventKind::Stranger, format!("{why} at the dashboard"));
    }
}

fn is_foreign(request: &HttpRequest) -> bool {
    request.headers().get("sec-fetch-site").is_some_and(|site| site == "cross-site")
}
