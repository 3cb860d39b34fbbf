//! How daemons are configured: flags, then `HOPLITE_*` environment variables, then a TOML file, then defaults.
//!
//! A daemon has one struct of settings whose fields are all `Option`s. It derives `clap::Args`, with `env` on each
//! field, for the first two layers, and `serde::Deserialize`, with `deny_unknown_fields`, for the file, which
//! [`read_file`] reads. [`layer_settings!`](crate::layer_settings) lays the one over the other; what is still unset gets its default where the
//! settings are turned into a configuration. [`Size`] and [`TimeSpan`] are written the same way in all layers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Why settings were not understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML, or has a key or a value that is not known; the text names it.
    #[error("{}, line {line}: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where, counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The text is not a size.
    #[error(
        "{text:?} is not a size: write a whole number of bytes, or one with KiB, MiB, GiB, TiB, kB, MB, GB or TB"
    )]
    NotASize {
        /// The text.
        text: String,
    },
    /// The text is not a duration.
    #[error("{text:?} is not a duration: write it like 500ms, 2s or 1m 30s")]
    NotADuration {
        /// The text.
        text: String,
    },
}

/// Reads the settings in the TOML file at `path`; the defaults if there is no path.
///
/// # Errors
/// [`ConfigError::Read`] or [`ConfigError::Parse`]. That the file does not exist is an error too: somebody named it.
pub fn read_file<T: DeserializeOwned + Default>(path: Option<&Path>) -> Result<T, ConfigError> {
    let Some(path) = path else { return Ok(T::default()) };
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    toml::from_str(&text).map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
        let line = before.matches('\n').count() + 1;
        // Parts of the message of a syntax error are on lines of their own.
        let message = error.message().lines().collect::<Vec<_>>().join("; ");
        ConfigError::Parse { path: path.to_owned(), line, message }
    })
}

/// Lays settings over others: `layer_settings!(Settings: upper, lower => field, field, ...)`. All fields must be named,
/// so that none is forgotten; each is the upper one if that is set.
#[macro_export]
macro_rules! layer_settings {
    ($settings:ident: $upper:expr, $lower:expr => $($field:ident),+ $(,)?) => {{
        let (upper, lower): ($settings, $settings) = ($upper, $lower);
        $settings { $($field: upper.$field.or(lower.$field)),+ }
    }};
}

/// A number of bytes, written like `512MiB`, `4GB` or `65536`.
///
/// `K`, `M`, `G` and `T` alone mean the powers of 1024. Case matters only in that there is no bit: `mib` is a `MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "NumberOrText")]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let error = || ConfigError::NotASize { text: text.chars().take(64).collect() };
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let factor = match unit.trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(error()),
        };
        let number: u64 = number.parse().map_err(|_| error())?;
        number.checked_mul(factor).map(Self).ok_or_else(error)
    }
}

impl fmt::Display for Size {
    /// Prints the largest binary unit of which it is a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0 != 0 && self.0.trailing_zeros() >= *shift) {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// In a file a size may also be a bare number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a size, such as \"512MiB\"")]
enum NumberOrText {
    Number(u64),
    Text(String),
}

impl TryFrom<NumberOrText> for Size {
    type Error = ConfigError;

    fn try_from(value: NumberOrText) -> Result<Self, ConfigError> {
        match value {
            NumberOrText::Number(bytes) => Ok(Self(bytes)),
            NumberOrText::Text(text) => text.parse(),
        }
    }
}

/// A length of time, written like `500ms`, `2s` or `1m 30s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct TimeSpan(pub Duration);

impl FromStr for TimeSpan {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        humantime::parse_duration(text.trim())
            .map(Self)
            .map_err(|_| ConfigError::NotADuration { text: text.chars().take(64).collect() })
    }
}

impl TryFrom<String> for TimeSpan {
    type Error = ConfigError;

    fn try_from(text: String) -> Result<Self, ConfigError> {
        text.parse()
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
    struct Settings {
        memory: Option<Size>,
        node_grace: Option<TimeSpan>,
        name: Option<String>,
    }

    fn read(text: &str) -> Result<Settings, ConfigError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        read_file(Some(file.path()))
    }

    #[test]
    fn sizes_are_read_with_all_units() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65_536),
            ("1B", 1),
            ("4K", 4096),
            ("512MiB", 512 << 20),
            ("2 GiB", 2 << 30),
            (" 1tib ", 1 << 40),
            ("3kB", 3000),
            ("3MB", 3_000_000),
            ("3GB", 3_000_000_000),
            ("1TB", 1_000_000_000_000),
        ] {
            assert_eq!(text.parse::<Size>().unwrap(), Size(bytes), "{text}");
        }
        for text in
            ["", "MiB", "-1", "1.5GiB", "1 MiB extra", "1Mbit", "99999999TiB", "99999999999999999999", "١"]
        {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_read() {
        assert_eq!("2s".parse::<TimeSpan>().unwrap().0, Duration::from_secs(2));
        assert_eq!("1m 30s".parse::<TimeSpan>().unwrap().0, Duration::from_secs(90));
        assert_eq!("500ms".parse::<TimeSpan>().unwrap().to_string(), "500ms");
        for text in ["", "2", "s", "-1s", "2 parsecs"] {
            assert!(text.parse::<TimeSpan>().is_err(), "{text}");
        }
    }

    #[test]
    fn files_are_read_and_lie_under_what_is_set() {
        let file = read("memory = \"1GiB\"\nnode-grace = \"2s\"\n").unwrap();
        assert_eq!(file.memory, Some(Size(1 << 30)));
        assert_eq!(read("memory = 4096").unwrap().memory, Some(Size(4096)));
        let flags = Settings { memory: Some(Size(7)), name: Some("a".to_owned()), ..Settings::default() };
        let merged = layer_settings!(Settings: flags, file => memory, node_grace, name);
        assert_eq!(merged.memory, Some(Size(7)));
        assert_eq!(merged.node_grace, Some(TimeSpan(Duration::from_secs(2))));
        assert_eq!(merged.name.as_deref(), Some("a"));
        assert_eq!(read_file::<Settings>(None).unwrap(), Settings::default());
    }

    #[test]
    fn errors_name_the_key_the_value_and_the_line() {
        let text = |file| read(file).unwrap_err().to_string();
        let unknown = text("memory = 1\nmemmory = 2\n");
        assert!(unknown.contains("line 2") && unknown.contains("memmory"), "{unknown}");
        let bad_size = text("memory = \"lots\"");
        assert!(bad_size.contains("line 1") && bad_size.contains("size"), "{bad_size}");
        let bad_span = text("node-grace = \"soon\"");
        assert!(bad_span.contains("soon"), "{bad_span}");
        assert_eq!(text("memory = = 1").lines().count(), 1);
        let missing = read_file::<Settings>(Some(Path::new("/nonexistent/hoplite.toml"))).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent/hoplite.toml"));
    }

    proptest! {
        #[test]
        fn sizes_round_trip(bytes in any::<u64>()) {
            prop_assert_eq!(Size(bytes).to_string().parse::<Size>().unwrap(), Size(bytes));
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".{0,40}") {
            let _ = text.parse::<Size>();
            let _ = text.parse::<TimeSpan>();
        }
    }
}
