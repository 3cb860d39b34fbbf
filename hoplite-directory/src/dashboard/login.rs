//! Who may look: whoever has logged in with the token, if there is one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hoplite_daemon::Token;
use hoplite_daemon::http::{HeaderMap, header};
use hoplite_proto::dashboard::query::from_hex;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::time::Instant;

/// Most people who are logged in at once; with more, the one who came first must log in again.
const MAX_SESSIONS: usize = 64;
/// For how long a login counts: a day's work.
const SESSION_TTL: Duration = Duration::from_secs(12 * 60 * 60);
/// Length of the secret of a login.
const SECRET_BYTES: usize = 32;

/// Under what a session is found: not the secret itself, so that the time of the search says nothing about it.
type Fingerprint = [u8; 32];

/// Keeps the logins.
#[derive(Debug)]
pub(super) struct Door {
    token: Option<Token>,
    cookie: String,
    /// What follows the value of the cookie.
    attributes: String,
    sessions: Mutex<BTreeMap<Fingerprint, Instant>>,
}

impl Door {
    /// The door of a server on `port`. Without a token, everybody is in who gets here.
    pub(super) fn new(token: Option<Token>, port: u16, is_tls: bool) -> Self {
        // Cookies are those of a host, not of a port; several shards may run on one, or be forwarded to one.
        let mut own = [0; 4];
        let cookie = match SystemRandom::new().fill(&mut own) {
            Ok(()) => format!("hoplite_{:08x}", u32::from_be_bytes(own)),
            Err(_) => format!("hoplite_{port}"),
        };
        let secure = if is_tls { "; Secure" } else { "" };
        let attributes = format!("; HttpOnly; SameSite=Lax; Path=/{secure}");
        Self { token, cookie, attributes, sessions: Mutex::default() }
    }

    /// Whether there is anything to log in with.
    pub(super) fn is_locked(&self) -> bool {
        self.token.is_some()
    }

    /// Whether who sends these headers is in.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        if self.token.is_none() {
            return true;
        }
        let known = self.presented(headers).and_then(|secret| self.sessions().get(&secret).copied());
        known.is_some_and(|expires| expires > Instant::now())
    }

    /// Logs in who types `secret`: the cookie to set, or `None` if that is not the token.
    pub(super) fn enter(&self, secret: &[u8]) -> Option<String> {
        if !self.token.as_ref()?.is_known_as(secret) {
            return None;
        }
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
        let value: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("{}={value}{}; Max-Age={}", self.cookie, self.attributes, SESSION_TTL.as_secs()))
    }

    /// Logs out who sends these headers: the cookie to set, or `None` if nobody was in.
    pub(super) fn leave(&self, headers: &HeaderMap) -> Option<String> {
        self.sessions().remove(&self.presented(headers)?)?;
        Some(format!("{}={}; Max-Age=0", self.cookie, self.attributes))
    }

    fn presented(&self, headers: &HeaderMap) -> Option<Fingerprint> {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|line| line.split("; ")).filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(name, _)| *name == self.cookie)?;
        Some(fingerprint(&from_hex(value, SECRET_BYTES)?))
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<Fingerprint, Instant>> {
        // Every change leaves it whole, so a panic elsewhere does no harm.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fingerprint(secret: &[u8]) -> Fingerprint {
    digest(&SHA256, secret).as_ref().try_into().expect("a digest of SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &[u8] = b"a token of the tests";

    fn door() -> Door {
        Door::new(Some(Token::new(TOKEN).unwrap()), 7402, false)
    }

    /// The headers of a browser that was told to keep this cookie, and has others.
    fn with(cookie: &str) -> HeaderMap {
        let pair = cookie.split(';').next().unwrap();
        HeaderMap::from_iter([(header::COOKIE, format!("a=b; {pair}; c=d").parse().unwrap())])
    }

    #[tokio::test(start_paused = true)]
    async fn who_knows_the_token_is_in_for_a_while() {
        let door = door();
        assert!(!door.admits(&HeaderMap::new()));
        assert_eq!(door.enter(b"another token of the tests"), None);
        let cookie = door.enter(TOKEN).unwrap();
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
        let first = door.enter(TOKEN).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = door.enter(TOKEN).unwrap();
        assert_ne!(first, second);
        for _ in 0..MAX_SESSIONS - 1 {
            tokio::time::advance(Duration::from_secs(1)).await;
            door.enter(TOKEN).unwrap();
        }
        assert!(!door.admits(&with(&first)) && door.admits(&with(&second)));
        assert!(door.leave(&with(&second)).unwrap().contains("Max-Age=0"));
        assert!(!door.admits(&with(&second)));
        assert_eq!(door.sessions().len(), MAX_SESSIONS - 1);
    }

    #[tokio::test]
    async fn what_is_no_secret_is_no_login() {
        let door = door();
        for value in ["", "x", "00", &"zz".repeat(32), &"00".repeat(32), &"00".repeat(4096), "+1+1"] {
            assert!(!door.admits(&with(&format!("{}={value}", door.cookie))), "{value}");
        }
    }
}
