//! Text from other parties, made safe for a terminal or a table.

use std::time::Duration;

pub(crate) fn escape_into(out: &mut String, text: &str) {
    for character in text.chars() {
        if disturbs(character) {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
}

/// Escapes characters that disturb a terminal or table, as in Rust.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    escape_into(&mut escaped, text);
    escaped
}

/// Rounds to tenths of a second, or to milliseconds below a second.
pub fn rounded(duration: Duration) -> Duration {
    let step = if duration < Duration::from_secs(1) { 1_000 } else { 100_000 };
    let steps = (duration.as_micros() + step / 2) / step;
    Duration::from_micros(u64::try_from(steps * step).unwrap_or(u64::MAX))
}

/// Returns a number of bytes with about three digits: `17 B`, `1.5 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // Rounding would print 1023.95 as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Returns the [`size`] of each, or exact numbers of bytes if different sizes would look the same.
pub fn sizes<const N: usize>(bytes: [u64; N]) -> [String; N] {
    let rounded = bytes.map(size);
    let is_clear =
        |at: usize| (0..at).all(|other| bytes[at] == bytes[other] || rounded[at] != rounded[other]);
    if (0..N).all(is_clear) { rounded } else { bytes.map(|bytes| format!("{bytes} B")) }
}

/// Returns `true` if [`escape`] changes nothing.
pub fn is_plain(text: &str) -> bool {
    !text.chars().any(disturbs)
}

/// Returns at most the first `max_bytes` bytes of `text`, as whole characters.
pub fn cut(mut text: String, max_bytes: usize) -> String {
    while text.len() > max_bytes {
        text.pop();
    }
    text
}

fn disturbs(character: char) -> bool {
    character.is_control() || reorders(character)
}

/// Returns `true` for characters that break lines or change the direction of text.
fn reorders(character: char) -> bool {
    matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_for_people() {
        for (micros, shown) in
            [(0, "0ns"), (1_400, "1ms"), (250_600, "251ms"), (7_493_735, "7.5s"), (2_000_100, "2s")]
        {
            assert_eq!(format!("{:?}", rounded(Duration::from_micros(micros))), shown);
        }
        assert_eq!(rounded(Duration::MAX), Duration::from_micros(u64::MAX));
    }

    #[test]
    fn sizes_are_readable() {
        let readable = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (3 << 19, "1.5 MiB"),
            (1 << 40, "1.0 TiB"),
            (u64::MAX, "16384.0 PiB"),
        ];
        for (bytes, text) in readable {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn different_sizes_look_different() {
        assert_eq!(sizes([1 << 20, 3 << 20, 1 << 20]), ["1.0 MiB", "3.0 MiB", "1.0 MiB"]);
        assert_eq!(sizes([1 << 20, (1 << 20) - 1]), ["1048576 B", "1048575 B"]);
    }

    #[test]
    fn nothing_that_is_escaped_disturbs_a_terminal() {
        for (text, shown) in [
            ("a plan of 3.2\u{b5}s", "a plan of 3.2\u{b5}s"),
            ("a\nb\x1b[2J", r"a\nb\u{1b}[2J"),
            ("\u{202e}a", r"\u{202e}a"),
            ("\u{9b}1m", r"\u{9b}1m"),
        ] {
            assert_eq!(escape(text), shown);
            assert_eq!(is_plain(text), text == shown);
            assert!(is_plain(&escape(text)));
        }
    }
}
