//! Trace context that travels with calls and messages. The daemons record the spans.

use std::str::FromStr;

/// Span that caused a call, as in W3C Trace Context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceContext {
    trace: [u8; 16],
    span: [u8; 8],
    is_sampled: bool,
}

/// The text is not a `traceparent` of W3C Trace Context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a traceparent, which looks like 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)]
pub struct NotATraceparent;

impl TraceContext {
    /// Length of the binary form: trace id, span id and flags.
    pub const BYTES: usize = 25;
    const SAMPLED: u8 = 1;

    /// Makes a trace context; `None` if an id is zero, which is invalid.
    pub fn new(trace: [u8; 16], span: [u8; 8], is_sampled: bool) -> Option<Self> {
        (trace != [0; 16] && span != [0; 8]).then_some(Self { trace, span, is_sampled })
    }

    /// Trace's id.
    pub const fn trace(&self) -> [u8; 16] {
        self.trace
    }

    /// Span's id.
    pub const fn span(&self) -> [u8; 8] {
        self.span
    }

    /// Returns `true` if the trace's spans are recorded.
    pub const fn is_sampled(&self) -> bool {
        self.is_sampled
    }

    /// Binary form.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.trace);
        bytes[16..24].copy_from_slice(&self.span);
        bytes[24] = if self.is_sampled { Self::SAMPLED } else { 0 };
        bytes
    }

    /// Reads the binary form; `None` if invalid. The standard then demands to continue without a
    /// trace.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let (trace, rest) = bytes.split_first_chunk::<16>()?;
        let (span, flags) = rest.split_first_chunk::<8>()?;
        Self::new(*trace, *span, flags[0] & Self::SAMPLED != 0)
    }
}

impl FromStr for TraceContext {
    type Err = NotATraceparent;

    fn from_str(text: &str) -> Result<Self, NotATraceparent> {
        let parts: Vec<&str> = text.split('-').collect();
        let [version, trace, span, flags, more @ ..] = parts.as_slice() else {
            return Err(NotATraceparent);
        };
        let [version] = hex(version)?;
        // A later version may append to this form; version 255 is invalid.
        if version == 0xff || (version == 0 && !more.is_empty()) {
            return Err(NotATraceparent);
        }
        let [flags] = hex(flags)?;
        Self::new(hex(trace)?, hex(span)?, flags & Self::SAMPLED != 0).ok_or(NotATraceparent)
    }
}

fn hex<const N: usize>(text: &str) -> Result<[u8; N], NotATraceparent> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(NotATraceparent),
    };
    if text.len() != 2 * N {
        return Err(NotATraceparent);
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = (digit(digits[0])? << 4) | digit(digits[1])?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_traceparent_is_read_by_the_rules_of_the_standard() {
        let read = |text: &str| text.parse::<TraceContext>();
        let sampled = read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        assert!(sampled.is_sampled());
        assert_eq!(sampled.trace()[..2], [0x4b, 0xf9]);
        assert_eq!(sampled.span(), [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert!(
            !read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00").unwrap().is_sampled()
        );
        assert!(
            read("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-09-what-is-new").is_ok()
        );
        for wrong in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e47\u{e4}-00f067aa0ba902b7-01",
        ] {
            assert_eq!(read(wrong), Err(NotATraceparent), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn the_binary_form_is_read_back(trace: [u8; 16], span: [u8; 8], is_sampled: bool) {
            if let Some(context) = TraceContext::new(trace, span, is_sampled) {
                prop_assert_eq!(TraceContext::from_bytes(&context.to_bytes()), Some(context));
            }
        }

        #[test]
        fn any_bytes_and_text_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..40), text in ".{0,60}") {
            let _ = TraceContext::from_bytes(&bytes);
            let _ = text.parse::<TraceContext>();
        }
    }
}
