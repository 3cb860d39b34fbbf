//! Logins at the dashboard. If there is a token, only logged-in users see data.
//!
//! Wrong tokens slow down logins from their address. Browsers with the cookie of an earlier login
//! with this token are exempt, so that no stranger at the address locks their users out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use hoplite_daemon::http::{HeaderMap, header};
use hoplite_net::{Purpose, TAG_BYTES, Token};
use hoplite_proto::dashboard::query::{from_hex, to_hex};
use tokio::time::Instant;

use super::throttle::Throttle;

/// Most logins at a time; one more ends the oldest.
const MAX_SESSIONS: usize = 64;
/// Longest login: a working day.
const SESSION_TTL: Duration = Duration::from_secs(12 * 60 * 60);
const KNOWN_TTL: Duration = Duration::from_secs(400 * 24 * 60 * 60);
/// Cookie that exempts a browser's later logins from throttling. All shards on a host accept it,
/// because they share the token.
const KNOWN_COOKIE: &str = "hoplite_known";
const KNOWN_LABEL: &[u8] = b"known browser";
const SECRET_BYTES: usize = 32;

/// A digest of a session's secret, so that the time of a lookup reveals nothing.
type Fingerprint = [u8; 32];

#[derive(Debug)]
pub(super) struct Login {
    token: Option<Token>,
    cookie: String,
    attributes: String,
    sessions: Mutex<BTreeMap<Fingerprint, Instant>>,
    throttle: Mutex<Throttle>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum LoginOutcome {
    Accepted(Vec<String>),
    WrongToken,
    /// Tokens of this source are refused unchecked until this time has passed.
    RetryAfter(Duration),
}

impl Login {
    /// Without a token, every visitor has access.
    pub(super) fn new(token: Option<Token>, port: u16, is_tls: bool) -> Self {
        // Each shard's cookie needs its own name, because browsers send a cookie to all ports of a
        // host.
        let mut own = [0; 4];
        let cookie = match SystemRandom::new().fill(&mut own) {
            Ok(()) => format!("hoplite_{:08x}", u32::from_be_bytes(own)),
            Err(_) => format!("hoplite_{port}"),
        };
        let secure = if is_tls { "; Secure" } else { "" };
        let attributes = format!("; HttpOnly; SameSite=Lax; Path=/{secure}");
        Self { token, cookie, attributes, sessions: Mutex::default(), throttle: Mutex::default() }
    }

    pub(super) fn requires_login(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn is_logged_in(&self, headers: &HeaderMap) -> bool {
        if self.token.is_none() {
            return true;
        }
        let known = self
            .session_fingerprint(headers)
            .and_then(|secret| self.sessions().get(&secret).copied());
        known.is_some_and(|expires| expires > Instant::now())
    }

    pub(super) fn log_in(
        &self,
        secret: &[u8],
        headers: &HeaderMap,
        address: IpAddr,
    ) -> LoginOutcome {
        let Some(token) = &self.token else { return LoginOutcome::WrongToken };
        // Locked during the comparison: concurrent logins get no more tries than sequential ones.
        let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let wait = throttle.wait(address.into(), now);
        if !wait.is_zero() && !is_known_browser(token, headers) {
            return LoginOutcome::RetryAfter(wait);
        }
        if !token.is_known_as(secret) {
            throttle.record_wrong_token(address.into(), now);
            return LoginOutcome::WrongToken;
        }
        drop(throttle);
        let cookies = self.session_cookie().into_iter().chain(self.known_cookie(token)).collect();
        LoginOutcome::Accepted(cookies)
    }

    /// Makes a session's cookie; `None` if the system has no random numbers.
    fn session_cookie(&self) -> Option<String> {
        let mut secret = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut secret).ok()?;
        let now = Instant::now();
        let mut sessions = self.sessions();
        sessions.retain(|_, expires| *expires > now);
        if sessions.len() >= MAX_SESSIONS {
            let first =
                sessions.iter().min_by_key(|(_, expires)| **expires).map(|(found, _)| *found);
            first.map(|first| sessions.remove(&first));
        }
        sessions.insert(fingerprint(&secret), now + SESSION_TTL);
        let value = to_hex(&secret);
        Some(format!(
            "{}={value}{}; Max-Age={}",
            self.cookie,
            self.attributes,
            SESSION_TTL.as_secs()
        ))
    }

    fn known_cookie(&self, token: &Token) -> Option<String> {
        let mut number = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut number).ok()?;
        let tag = token.sign(Purpose::Login, &[KNOWN_LABEL, &number].concat());
        let value = to_hex(&[number, tag].concat());
        Some(format!("{KNOWN_COOKIE}={value}{}; Max-Age={}", self.attributes, KNOWN_TTL.as_secs()))
    }

    /// Returns the cookie to set, or `None` if the sender was not logged in.
    pub(super) fn log_out(&self, headers: &HeaderMap) -> Option<String> {
        self.sessions().remove(&self.session_fingerprint(headers)?)?;
        Some(format!("{}={}; Max-Age=0", self.cookie, self.attributes))
    }

    fn session_fingerprint(&self, headers: &HeaderMap) -> Option<Fingerprint> {
        Some(fingerprint(&from_hex(cookie(headers, &self.cookie)?, SECRET_BYTES)?))
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<Fingerprint, Instant>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_known_browser(token: &Token, headers: &HeaderMap) -> bool {
    let value =
        cookie(headers, KNOWN_COOKIE).and_then(|value| from_hex(value, SECRET_BYTES + TAG_BYTES));
    value.is_some_and(|value| match value.split_at_checked(SECRET_BYTES) {
        Some((number, tag)) => token.verify(Purpose::Login, &[KNOWN_LABEL, number].concat(), tag),
        None => false,
    })
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        cookies.flat_map(|line| line.split("; ")).filter_map(|pair| pair.split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
}

fn fingerprint(secret: &[u8]) -> Fingerprint {
    digest(&SHA256, secret).as_ref().try_into().expect("a digest of SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &[u8] = b"a token of the tests";

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn login() -> Login {
        Login::new(Some(Token::new(TOKEN).unwrap()), 7402, false)
    }

    fn log_in(login: &Login) -> [String; 2] {
        match login.log_in(TOKEN, &HeaderMap::new(), ADDRESS) {
            LoginOutcome::Accepted(cookies) => cookies.try_into().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn with(cookie: &str) -> HeaderMap {
        let pair = cookie.split(';').next().unwrap();
        HeaderMap::from_iter([(header::COOKIE, format!("a=b; {pair}; c=d").parse().unwrap())])
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_with_the_token_lasts_until_it_expires() {
        let login = login();
        assert!(!login.is_logged_in(&HeaderMap::new()));
        let wrong = login.log_in(b"another token of the tests", &HeaderMap::new(), ADDRESS);
        assert_eq!(wrong, LoginOutcome::WrongToken);
        let [cookie, _] = log_in(&login);
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
        assert!(!cookie.contains("Secure") && !cookie.contains("token"), "{cookie}");
        assert!(login.is_logged_in(&with(&cookie)));
        assert!(!login.is_logged_in(&with(&cookie.replace(&login.cookie, "hoplite"))));
        tokio::time::advance(SESSION_TTL).await;
        assert!(!login.is_logged_in(&with(&cookie)));
        assert_eq!(login.log_out(&HeaderMap::new()), None);
        assert!(Login::new(None, 7402, true).attributes.contains("Secure"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_logout_ends_the_session_and_the_oldest_session_is_evicted() {
        let login = login();
        let [first, _] = log_in(&login);
        tokio::time::advance(Duration::from_secs(1)).await;
        let [second, _] = log_in(&login);
        assert_ne!(first, second);
        for _ in 0..MAX_SESSIONS - 1 {
            tokio::time::advance(Duration::from_secs(1)).await;
            log_in(&login);
        }
        assert!(!login.is_logged_in(&with(&first)) && login.is_logged_in(&with(&second)));
        assert!(login.log_out(&with(&second)).unwrap().contains("Max-Age=0"));
        assert!(!login.is_logged_in(&with(&second)));
        assert_eq!(login.sessions().len(), MAX_SESSIONS - 1);
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_tokens_throttle_their_source_but_no_recognized_browser() {
        let login = login();
        let [session, known] = log_in(&login);
        assert!(known.contains("HttpOnly") && !known.contains("token"), "{known}");
        let (without_cookies, other_address) = (HeaderMap::new(), "10.1.2.3".parse().unwrap());
        let wait = (0..1000).find_map(|_| {
            match login.log_in(b"a wrong token of the tests", &without_cookies, ADDRESS) {
                LoginOutcome::RetryAfter(wait) => Some(wait),
                other => {
                    assert_eq!(other, LoginOutcome::WrongToken);
                    None
                }
            }
        });
        assert_eq!(
            login.log_in(TOKEN, &without_cookies, ADDRESS),
            LoginOutcome::RetryAfter(wait.unwrap())
        );
        assert!(matches!(
            login.log_in(TOKEN, &without_cookies, other_address),
            LoginOutcome::Accepted(_)
        ));
        assert!(matches!(login.log_in(TOKEN, &with(&known), ADDRESS), LoginOutcome::Accepted(_)));
        let forged = known.replace(|digit: char| digit.is_ascii_digit(), "0");
        for unknown in [&session, &forged, &"hoplite_known=".to_owned()] {
            assert!(
                matches!(login.log_in(TOKEN, &with(unknown), ADDRESS), LoginOutcome::RetryAfter(_)),
                "{unknown}"
            );
        }
        tokio::time::advance(wait.unwrap()).await;
        assert!(matches!(
            login.log_in(TOKEN, &without_cookies, ADDRESS),
            LoginOutcome::Accepted(_)
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_browser_is_recognized_by_the_current_token() {
        let [_, known] = log_in(&login());
        let token = |bytes: &[u8]| Token::new(bytes).unwrap();
        assert!(is_known_browser(&token(TOKEN), &with(&known)));
        assert!(!is_known_browser(&token(b"a later token of the tests"), &with(&known)));
    }

    #[tokio::test]
    async fn an_invalid_cookie_is_no_login() {
        let login = login();
        for value in ["", "x", "00", &"zz".repeat(32), &"00".repeat(32), &"00".repeat(4096), "+1+1"]
        {
            assert!(!login.is_logged_in(&with(&format!("{}={value}", login.cookie))), "{value}");
        }
    }
}
