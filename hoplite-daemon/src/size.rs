use std::str::FromStr;

use parse_size::Config;

/// A number of bytes, written like `512MiB`, `4GB` or `65536`.
///
/// `K`, `M`, `G` and `T` alone are powers of 1024. Case is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// The text is not a size.
#[derive(Debug, thiserror::Error)]
#[error(
    "{text:?} is not a size: write a number of bytes, or one with KiB, MiB, GiB, TiB, kB, MB, GB or TB"
)]
pub struct NotASize {
    /// First 64 characters of the text.
    pub text: String,
}

impl FromStr for Size {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        let lower = text.trim().to_ascii_lowercase();
        // A unit with `b`, such as `MB` or `MiB`, has its standard meaning.
        let config = if lower.ends_with('b') {
            Config::new().with_decimal()
        } else {
            Config::new().with_binary()
        };
        let size_bytes = config.parse_size(&lower);
        size_bytes.map(Self).map_err(|_| NotASize { text: text.chars().take(64).collect() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_with_all_units() {
        for (text, size_bytes) in [
            ("0", 0),
            ("65536", 65_536),
            ("1B", 1),
            ("4K", 4096),
            ("64k", 65_536),
            ("512MiB", 512 << 20),
            ("2 GiB", 2 << 30),
            (" 1tib ", 1 << 40),
            ("3kB", 3000),
            ("3MB", 3_000_000),
            ("3GB", 3_000_000_000),
            ("2gb", 2_000_000_000),
            ("1TB", 1_000_000_000_000),
            ("1.5GiB", 3 << 29),
        ] {
            assert_eq!(text.parse::<Size>().unwrap(), Size(size_bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "MiB",
            "-1",
            "1 MiB extra",
            "1Mbit",
            "1X",
            "99999999TiB",
            "99999999999999999999",
            "١",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn numbers_of_bytes_are_exact(size_bytes in any::<u64>()) {
            prop_assert_eq!(size_bytes.to_string().parse::<Size>().unwrap(), Size(size_bytes));
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".{0,40}") {
            let _ = text.parse::<Size>();
        }
    }
}
