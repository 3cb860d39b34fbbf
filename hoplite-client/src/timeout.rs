//! Default timeout of calls in Rust, the command line and Python.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::sync::OnceLock;
use std::time::Duration;

use hoplite_core::Error as ObjectError;
use hoplite_proto::bounds::MAX_TIMEOUT;

use crate::error::Result;

/// Environment variable that sets [`default_timeout`].
pub const TIMEOUT_VARIABLE: &str = "HOPLITE_TIMEOUT";

/// Default timeout, unless the environment sets another one.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// [`DEFAULT_TIMEOUT`] as text for people.
pub const DEFAULT_TIMEOUT_TEXT: &str = "5min";

/// A timeout that never expires: 30 days, a store's longest timeout.
pub const FOREVER: Duration = MAX_TIMEOUT;

/// Error of a text that is not a timeout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a timeout: write 500ms, 30s, 5min, a number of seconds, or never")]
pub struct NotATimeout {
    text: String,
}

/// Parses a timeout such as `1min 30s`, a number of seconds, or `never` (also `none`), which stands
/// for [`FOREVER`].
///
/// # Errors
/// [`NotATimeout`], which quotes the text.
pub fn parse_timeout(text: &str) -> Result<Duration, NotATimeout> {
    let text = text.trim();
    if ["never", "none"].iter().any(|never| text.eq_ignore_ascii_case(never)) {
        return Ok(FOREVER);
    }
    let parsed = match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    };
    match parsed {
        Some(timeout) => Ok(timeout.min(FOREVER)),
        None => Err(NotATimeout { text: text.chars().take(64).collect() }),
    }
}

/// Returns the timeout in `HOPLITE_TIMEOUT`, or else [`DEFAULT_TIMEOUT`].
///
/// Reads the variable once. An empty value counts as unset. If the value is invalid, connecting
/// fails, and this returns [`DEFAULT_TIMEOUT`].
pub fn default_timeout() -> Duration {
    checked_default().unwrap_or(DEFAULT_TIMEOUT)
}

pub(crate) fn checked_default() -> Result<Duration> {
    static DEFAULT: OnceLock<Result<Duration, String>> = OnceLock::new();
    let default =
        DEFAULT.get_or_init(|| from_variable(std::env::var_os(TIMEOUT_VARIABLE).as_deref()));
    default
        .clone()
        .map_err(|reason| ObjectError::InvalidRequest { reason: Cow::Owned(reason) }.into())
}

fn from_variable(value: Option<&OsStr>) -> Result<Duration, String> {
    match value {
        None => Ok(DEFAULT_TIMEOUT),
        Some(value) if value.is_empty() => Ok(DEFAULT_TIMEOUT),
        Some(value) => parse_timeout(&value.to_string_lossy()).map_err(|error| {
            format!("the environment variable {TIMEOUT_VARIABLE} is invalid: {error}")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_units_or_are_seconds_or_never() {
        let seconds = |seconds| Ok(Duration::from_secs(seconds));
        assert_eq!(parse_timeout(DEFAULT_TIMEOUT_TEXT), Ok(DEFAULT_TIMEOUT));
        assert_eq!(parse_timeout(" 1min 30s "), seconds(90));
        assert_eq!(parse_timeout("30"), seconds(30));
        assert_eq!(parse_timeout("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_timeout("0"), seconds(0));
        for never in ["never", "None", "none", "NEVER", "1e10", "99years"] {
            assert_eq!(parse_timeout(never), Ok(FOREVER), "{never}");
        }
        for text in ["", " ", "soon", "-1", "nan", "inf", "5 parsecs", "1e300"] {
            let message = parse_timeout(text).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("{:?} is not a timeout", text.trim())),
                "{message}"
            );
        }
    }

    #[test]
    fn an_empty_variable_counts_as_unset_and_a_wrong_one_is_named() {
        assert_eq!(from_variable(None), Ok(DEFAULT_TIMEOUT));
        assert_eq!(from_variable(Some(OsStr::new(""))), Ok(DEFAULT_TIMEOUT));
        assert_eq!(from_variable(Some(OsStr::new("7s"))), Ok(Duration::from_secs(7)));
        let reason = from_variable(Some(OsStr::new("soon"))).unwrap_err();
        assert!(reason.contains("HOPLITE_TIMEOUT") && reason.contains("\"soon\""), "{reason}");
    }
}
