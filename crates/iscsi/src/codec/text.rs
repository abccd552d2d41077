//! Keys and values (RFC 7143, 6.1): `key=value`, each ended by a zero byte.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt::{Display, Write};

/// The longest key and the longest value, in bytes.
const LONGEST_KEY: usize = 63;
const LONGEST_VALUE: usize = 8192;

/// Splits a text into its keys and values.
///
/// # Errors
/// What is wrong with it: not UTF-8, an entry without `=`, a key or a value that is too long.
pub fn parse(text: &[u8]) -> Result<Vec<(&str, &str)>, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| "a text is not UTF-8")?;
    let mut pairs = Vec::new();
    for entry in text.split('\0').filter(|entry| !entry.is_empty()) {
        let (key, value) = entry.split_once('=').ok_or("a key without a value")?;
        if key.is_empty() || key.len() > LONGEST_KEY {
            return Err("a key of a length that is not allowed");
        }
        if value.len() > LONGEST_VALUE {
            return Err("a value that is too long");
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// Appends a key and its value.
pub fn push(text: &mut Vec<u8>, key: &str, value: impl Display) {
    let mut entry = String::new();
    // Writing to a string does not fail.
    let _ = write!(entry, "{key}={value}\0");
    text.extend_from_slice(entry.as_bytes());
}

/// A number as initiators write it: decimal, or hexadecimal behind `0x`.
pub fn number(value: &str) -> Option<u32> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    }
}

/// Binary data as initiators write it: hexadecimal behind `0x` or base64 behind `0b`, at most
/// `longest` bytes.
pub fn binary(value: &str, longest: usize) -> Option<Vec<u8>> {
    let (digits, base64) = match value.get(..2)? {
        "0x" | "0X" => (&value[2..], false),
        "0b" | "0B" => (&value[2..], true),
        _ => return None,
    };
    if digits.len() > longest * 2 + 4 || digits.is_empty() {
        return None;
    }
    let bytes = if base64 { STANDARD.decode(digits).ok()? } else { from_hex(digits)? };
    (bytes.len() <= longest).then_some(bytes)
}

/// Binary data as it is sent.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    // An odd number of digits leaves out a leading zero.
    let even = if digits.len() % 2 == 1 { format!("0{digits}") } else { digits.to_owned() };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    even.as_bytes()
        .chunks_exact(2)
        .map(|pair| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn binary_data_is_read_in_both_notations() {
        assert_eq!(binary("0x0aFf", 16).unwrap(), [0x0a, 0xff]);
        assert_eq!(binary("0xaff", 16).unwrap(), [0x0a, 0xff]);
        assert_eq!(binary("0bSGVsbG8=", 16).unwrap(), b"Hello");
        for bad in ["", "0", "0x", "12", "0xg0", "0b!!", "ä", &format!("0x{}", "00".repeat(17))] {
            assert_eq!(binary(bad, 16), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_was_pushed_is_parsed(key in "[A-Za-z]{1,63}", value in "[ -~]{0,99}") {
            let mut text = Vec::new();
            push(&mut text, &key, &value);
            prop_assert_eq!(parse(&text).unwrap(), vec![(key.as_str(), value.as_str())]);
        }

        #[test]
        fn no_text_is_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,40}") {
            let _ = parse(&bytes);
            let _ = (number(&text), binary(&text, 8), binary(&format!("0x{text}"), 8), binary(&format!("0b{text}"), 8));
        }

        #[test]
        fn binary_data_survives(bytes in prop::collection::vec(any::<u8>(), 1..64)) {
            prop_assert_eq!(binary(&hex(&bytes), 64).unwrap(), bytes);
        }
    }
}
