//! Parses the dashboard's URLs and forms.

/// Returns the decoded value of `name` in `a=b&c=d`; `None` if missing or invalid.
pub fn value(query: &[u8], name: &str) -> Option<Vec<u8>> {
    let pairs = query.split(|byte| *byte == b'&');
    let mut values =
        pairs.filter_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    decode(values.next()?)
}

/// Returns the value of `name` as a number, or `default` without a value.
pub fn number(query: &[u8], name: &str, default: u64) -> Option<u64> {
    match value(query, name) {
        None => Some(default),
        Some(text) if text.is_empty() => Some(default),
        Some(text) => std::str::from_utf8(&text).ok()?.parse().ok(),
    }
}

/// Decodes hexadecimal `text` to at most `max` bytes.
pub fn from_hex(text: &str, max: usize) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if digits.len() > 2 * max || !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// Encodes bytes in hexadecimal.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'+' => decoded.push(b' '),
            b'%' => {
                let (pair, after) = rest.split_first_chunk::<2>()?;
                decoded.push(digit(pair[0])? << 4 | digit(pair[1])?);
                rest = after;
            }
            other => decoded.push(*other),
        }
    }
    Some(decoded)
}

fn digit(character: u8) -> Option<u8> {
    u8::try_from(char::from(character).to_digit(16)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_decoded() {
        let query = b"a=1&bb=x+y%2Fz&c=%ff&d=&e=%zz&f=%2";
        assert_eq!(value(query, "bb").unwrap(), b"x y/z");
        assert_eq!(value(query, "c").unwrap(), [0xff]);
        for missing in ["b", "x", "e", "f", ""] {
            assert_eq!(value(query, missing), None, "{missing}");
        }
        assert_eq!(number(query, "a", 7), Some(1));
        assert_eq!((number(query, "d", 7), number(query, "x", 7)), (Some(7), Some(7)));
        assert_eq!((number(query, "bb", 7), number(b"a=-1", "a", 7)), (None, None));
    }

    #[test]
    fn digits_are_hexadecimal_and_not_too_many() {
        assert_eq!(from_hex("00fF", 2).unwrap(), [0, 255]);
        for wrong in ["0", "0g", "+1", "000000", "\u{e4}"] {
            assert_eq!(from_hex(wrong, 2), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(from_hex(&to_hex(&bytes), 40), Some(bytes.clone()));
            let encoded: String = bytes.iter().map(|byte| format!("%{byte:02X}")).collect();
            prop_assert_eq!(value(format!("x=1&y={encoded}").as_bytes(), "y"), Some(bytes.clone()));
            let _ = value(&bytes, "x");
        }
    }
}
