//! Logins at the dashboard. If there is a token, only logged-in users see data.
//!
//! Wrong tokens slow down logins from their address. A browser with the cookie of an earlier login
//! with this token is exempt: a stranger at its address must not lock its user out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hoplite_daemon::http::{HeaderMap, header};
use hoplite_net::{Purpose, TAG_BYTES, Token};
use hoplite_proto::dashboard::query::{from_hex, to_hex};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::time::Instant;

use super::throttle::Throttle;

/// Most logins at a time; one more ends the oldest.
const MAX_SESSIONS: usize = 64;
/// Longest login: a working day.
const SESSION_TTL: Duration = Duration::from_secs(12 * 60 * 60);
const KNOWN_TTL: Duration = Duration::from_secs(400 * 24 * 60 * 60);
/// Cookie of a browser after a login, which all shards on a host accept: they share the token.
const KNOWN_COOKIE: &str = "hoplite_known";
/// Text that the token signs for the cookie, before a random number.
const KNOWN_LABEL: &[u8] = b"known browser";
const SECRET_BYTES: usize = 32;

/// A digest of a session's secret: the time of a lookup reveals nothing.
type Fingerprint = [u8; 32];

#[derive(Debug)]
pub(super) struct Door {
    token: Option<Token>,
    cookie: String,
    /// Attributes that follow the value of a cookie.
    attributes: String,
    sessions: Mutex<BTreeMap<Fingerprint, Instant>>,
    throttle: Mutex<Throttle>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    In(Vec<String>),
    Wrong,
    /// Tokens of this source are checked after this time.
    Later(Duration),
}

impl Door {
    /// Without a token, every visitor has access.
    pub(super) fn new(token: Option<Token>, port: u16, is_tls: bool) -> Self {
        // A cookie belongs to all ports of a host, so each shard needs its own name.
        let mut own = [0; 4];
        let cookie = match SystemRandom::new().fill(&mut own) {
            Ok(()) => format!("hoplite_{:08x}", u32::from_be_bytes(own)),
            Err(_) => format!("hoplite_{port}"),
        };
        let secure = if is_tls { "; Secure" } else { "" };
        let attributes = format!("; HttpOnly; SameSite=Lax; Path=/{secure}");
        Self { token, cookie, attributes, sessions: Mutex::default(), throttle: Mutex::default() }
    }

    pub(super) fn is_locked(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        if self.token.is_none() {
            return true;
        }
        let known = self.presented(headers).and_then(|secret| self.sessions().get(&secret).copied());
        known.is_some_and(|expires| expires > Instant::now())
    }

    pub(super) fn enter(&self, secret: &[u8], headers: &HeaderMap, address: IpAddr) -> Entry {
        let Some(token) = &self.token else { return Entry::Wrong };
        // Concurrent logins must get no more tries than sequential ones.
        let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let wait = throttle.wait(address.into(), now);
        if !wait.is_zero() && !is_known_browser(token, headers) {
            return Entry::Later(wait);
        }
        if !token.is_known_as(secret) {
            throttle.was_wrong(address.into(), now);
            return Entry::Wrong;
        }
        drop(throttle);
        let cookies = self.session_cookie().into_iter().chain(self.known_cookie(token)).collect();
        Entry::In(cookies)
    }

    /// `None` if the system has no random numbers.
    fn session_cookie(&self) -> Option<String> {
        let mut secret = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut secret).ok()?;
        let now = Instant::now();
        let mut sessions = self.sessions();
        sessions.retain(|_, expires| *expires > now);
        if sessions.len() >= MAX_SESSIONS {
            let first = sessions.iter().min_by_key(|(_, expires)| **expires).map(|(found, _)| *found);
            first.map(|first| sessions.remove(&first));
        }
        sessions.insert(fingerprint(&secret), now + SESSION_TTL);
        let value = to_hex(&secret);
        Some(format!("{}={value}{}; Max-Age={}", self.cookie, self.attributes, SESSION_TTL.as_secs()))
    }

    fn known_cookie(&self, token: &Token) -> Option<String> {
        let mut number = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut number).ok()?;
        let tag = token.sign(Purpose::Login, &[KNOWN_LABEL, &number].concat());
        let value = to_hex(&[number, tag].concat());
        Some(format!("{KNOWN_COOKIE}={value}{}; Max-Age={}", self.attributes, KNOWN_TTL.as_secs()))
    }

    /// Returns the cookie to set; `None` if the sender was not logged in.
    pub(super) fn leave(&self, headers: &HeaderMap) -> Option<String> {
        self.sessions().remove(&self.presented(headers)?)?;
        Some(format!("{}={}; Max-Age=0", self.cookie, self.attributes))
    }

    fn presented(&self, headers: &HeaderMap) -> Option<Fingerprint> {
        Some(fingerprint(&from_hex(cookie(headers, &self.cookie)?, SECRET_BYTES)?))
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<Fingerprint, Instant>> {
        // A panic leaves the map valid.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_known_browser(token: &Token, headers: &HeaderMap) -> bool {
    let value = cookie(headers, KNOWN_COOKIE).and_then(|value| from_hex(value, SECRET_BYTES + TAG_BYTES));
    value.is_some_and(|value| match value.split_at_checked(SECRET_BYTES) {
        Some((number, tag)) => token.verify(Purpose::Login, &[KNOWN_LABEL, number].concat(), tag),
        None => false,
    })
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split("; ")).filter_map(|pair| pair.split_once('='));
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

    fn door() -> Door {
        Door::new(Some(Token::new(TOKEN).unwrap()), 7402, false)
    }

    fn enter(door: &Door) -> [String; 2] {
        match door.enter(TOKEN, &HeaderMap::new(), ADDRESS) {
            Entry::In(cookies) => cookies.try_into().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn with(cookie: &str) -> HeaderMap {
        let pair = cookie.split(';').next().unwrap();
        HeaderMap::from_iter([(header::COOKIE, format!("a=b; {pair}; c=d").parse().unwrap())])
    }

    #[tokio::test(start_paused = true)]
    async fn who_knows_the_token_is_in_for_a_while() {
        let door = door();
        assert!(!door.admits(&HeaderMap::new()));
        let wrong = door.enter(b"another token of the tests", &HeaderMap::new(), ADDRESS);
        assert_eq!(wrong, Entry::Wrong);
        let [cookie, _] = enter(&door);
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
        assert!(!cookie.contains("Secure") && !cookie.contains("token"), "{cookie}");
        assert!(door.admits(&with(&cookie)));
        assert!(!door.admits(&with(&cookie.replace(&door.cookie, "hoplite"))));
        tokio::time::advance(SESSION_TTL).await;
        assert!(!door.admits(&with(&cookie)));
        assert_eq!(door.leave(&HeaderMap::new()), None);
        assert!(Door::new(None, 7402, true).attributes.contains("Secure"));
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_is_out_and_the_first_makes_room_for_the_last() {
        let door = door();
        let [first, _] = enter(&door);
        tokio::time::advance(Duration::from_secs(1)).await;
        let [second, _] = enter(&door);
        assert_ne!(first, second);
        for _ in 0..MAX_SESSIONS - 1 {
            tokio::time::advance(Duration::from_secs(1)).await;
            enter(&door);
        }
        assert!(!door.admits(&with(&first)) && door.admits(&with(&second)));
        assert!(door.leave(&with(&second)).unwrap().contains("Max-Age=0"));
        assert!(!door.admits(&with(&second)));
        assert_eq!(door.sessions().len(), MAX_SESSIONS - 1);
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_tokens_slow_down_who_types_them_but_no_browser_that_is_known() {
        let door = door();
        let [session, known] = enter(&door);
        assert!(known.contains("HttpOnly") && !known.contains("token"), "{known}");
        let (nobody, elsewhere) = (HeaderMap::new(), "10.1.2.3".parse().unwrap());
        let wait =
            (0..1000).find_map(|_| match door.enter(b"a wrong token of the tests", &nobody, ADDRESS) {
                Entry::Later(wait) => Some(wait),
                other => {
                    assert_eq!(other, Entry::Wrong);
                    None
                }
            });
        assert_eq!(door.enter(TOKEN, &nobody, ADDRESS), Entry::Later(wait.unwrap()));
        assert!(matches!(door.enter(TOKEN, &nobody, elsewhere), Entry::In(_)));
        assert!(matches!(door.enter(TOKEN, &with(&known), ADDRESS), Entry::In(_)));
        let forged = known.replace(|digit: char| digit.is_ascii_digit(), "0");
        for unknown in [&session, &forged, &"hoplite_known=".to_owned()] {
            assert!(matches!(door.enter(TOKEN, &with(unknown), ADDRESS), Entry::Later(_)), "{unknown}");
        }
        tokio::time::advance(wait.unwrap()).await;
        assert!(matches!(door.enter(TOKEN, &nobody, ADDRESS), Entry::In(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_browser_is_known_by_the_token_that_counts_now() {
        let [_, known] = enter(&door());
        let token = |bytes: &[u8]| Token::new(bytes).unwrap();
        assert!(is_known_browser(&token(TOKEN), &with(&known)));
        assert!(!is_known_browser(&token(b"a later token of the tests"), &with(&known)));
    }

    #[tokio::test]
    async fn what_is_no_secret_is_no_login() {
        let door = door();
        for value in ["", "x", "00", &"zz".repeat(32), &"00".repeat(32), &"00".repeat(4096), "+1+1"] {
            assert!(!door.admits(&with(&format!("{}={value}", door.cookie))), "{value}");
        }
    }
}
