use std::str::FromStr;
use std::time::Duration;

/// A duration, written like `500ms`, `2s` or `1m 30s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Duration);

/// The text is not a duration.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not a duration: write it like 500ms, 2s or 1m 30s")]
pub struct NotADuration {
    /// First 64 characters of the text.
    pub text: String,
}

impl FromStr for TimeSpan {
    type Err = NotADuration;

    fn from_str(text: &str) -> Result<Self, NotADuration> {
        let span = humantime::parse_duration(text.trim());
        span.map(Self).map_err(|_| NotADuration { text: text.chars().take(64).collect() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read() {
        assert_eq!("2s".parse::<TimeSpan>().unwrap().0, Duration::from_secs(2));
        assert_eq!("1m 30s".parse::<TimeSpan>().unwrap().0, Duration::from_secs(90));
        assert_eq!("500ms".parse::<TimeSpan>().unwrap().0, Duration::from_millis(500));
        for text in ["", "2", "s", "-1s", "2 parsecs"] {
            assert!(text.parse::<TimeSpan>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".{0,40}") {
            let _ = text.parse::<TimeSpan>();
        }
    }
}
