use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use hoplite_daemon::http::header::{self, HeaderMap, HeaderValue};
use hoplite_daemon::http::{Bytes, HttpResponse, StatusCode};

/// No other hosts, inline code or frames; forms to this server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

macro_rules! assets {
    ($($path:literal, $file:literal, $kind:expr, $audience:ident;)*) => {
        const ASSETS: &[Asset] = &[$(Asset {
            path: $path,
            text: include_str!(concat!("../../dashboard/", $file)),
            kind: $kind,
            audience: Audience::$audience,
        },)*];
    };
}

assets! {
    "/", "index.html", HTML, Admitted;
    "/app.js", "app.js", SCRIPT, Admitted;
    "/dom.js", "dom.js", SCRIPT, Admitted;
    "/prefixes.js", "prefixes.js", SCRIPT, Admitted;
    "/tree.js", "tree.js", SCRIPT, Admitted;
    "/views.js", "views.js", SCRIPT, Admitted;
    "/chart.js", "chart.js", SCRIPT, Admitted;
    "/node.js", "node.js", SCRIPT, Admitted;
    "/reduces.js", "reduces.js", SCRIPT, Admitted;
    "/login", "login.html", HTML, Anybody;
    "/style.css", "style.css", STYLE, Anybody;
    "/icon.svg", "icon.svg", IMAGE, Anybody;
}

#[derive(Debug)]
pub(super) struct Asset {
    path: &'static str,
    text: &'static str,
    kind: &'static str,
    audience: Audience,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    Anybody,
    Admitted,
}

impl Asset {
    pub(super) fn at(path: &str) -> Option<&'static Self> {
        ASSETS.iter().find(|asset| asset.path == path)
    }

    pub(super) fn is_public(&self) -> bool {
        self.audience == Audience::Anybody
    }

    pub(super) fn response(&self, status: StatusCode) -> HttpResponse {
        response(status, self.kind, Bytes::from_static(self.text.as_bytes()))
    }
}

pub(super) fn wrong_token() -> HttpResponse {
    login_again(StatusCode::FORBIDDEN, "That is not the token of this cluster.")
}

pub(super) fn too_many(wait: Duration) -> HttpResponse {
    let seconds = wait.as_secs();
    let says = format!("There were too many wrong tokens. Try again in {seconds} seconds.");
    let mut response = login_again(StatusCode::TOO_MANY_REQUESTS, &says);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

fn login_again(status: StatusCode, why: &str) -> HttpResponse {
    let form = include_str!("../../dashboard/login.html");
    let why = format!("<p class=\"error\" role=\"alert\" id=\"why\">{why}</p>");
    let form = form
        .replace("<!-- why -->", &why)
        .replace(" autofocus", " autofocus aria-invalid=\"true\" aria-describedby=\"why\"");
    response(status, HTML, form.into())
}

pub(super) fn text(status: StatusCode, words: &str) -> HttpResponse {
    response(status, TEXT, format!("{words}\n").into())
}

/// Returns JSON, without a body if the browser already has the text.
pub(super) fn json(text: String, headers: &HeaderMap) -> HttpResponse {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    let tag = format!("\"{:016x}\"", hasher.finish());
    let is_known =
        headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = match is_known {
        true => response(StatusCode::NOT_MODIFIED, JSON, Bytes::new()),
        false => response(StatusCode::OK, JSON, text.into()),
    };
    let tag = HeaderValue::try_from(tag).expect("hexadecimal digits are ASCII");
    response.headers_mut().insert(header::ETAG, tag);
    response
}

pub(super) fn to(path: &'static str, cookies: Vec<String>) -> HttpResponse {
    let mut response = response(StatusCode::SEE_OTHER, TEXT, Bytes::new());
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::from_static(path));
    for cookie in cookies {
        let mut cookie =
            HeaderValue::try_from(cookie).expect("hexadecimal digits and attributes are ASCII");
        cookie.set_sensitive(true);
        headers.append(header::SET_COOKIE, cookie);
    }
    response
}

fn response(status: StatusCode, kind: &'static str, body: Bytes) -> HttpResponse {
    let mut response = HttpResponse::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Not cached, because another version of the daemon has other files.
        (header::CACHE_CONTROL, "no-store"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
