//! Numbers and words of text formats, from bytes that may be anything.

use super::{Parsed, SECOND};
use crate::Op;

/// A field for a message: short, and safe to print.
pub(crate) fn shown(field: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(field)
        .chars()
        .take(40)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    format!("'{text}'")
}

/// A decimal number.
pub(crate) fn number(field: &[u8], what: &str) -> Parsed<u64> {
    let field = field.trim_ascii();
    let mut value: u64 = 0;
    for byte in field {
        let digit = byte.wrapping_sub(b'0');
        let next = value.checked_mul(10).and_then(|v| v.checked_add(digit.into()));
        match next {
            Some(next) if digit < 10 => value = next,
            _ => return Err(format!("the {what} is not a number below 2^64: {}", shown(field))),
        }
    }
    match field {
        [] => Err(format!("there is no {what}")),
        _ => Ok(value),
    }
}

/// A decimal number that may have a fraction, in units of `unit` nanoseconds, as nanoseconds;
/// digits beyond them are dropped. Exact, unlike a floating-point number.
pub(crate) fn time(field: &[u8], unit: u64, what: &str) -> Parsed<u64> {
    let field = field.trim_ascii();
    let wrong = || format!("the {what} is not a time: {}", shown(field));
    let (whole, fraction) = match field.iter().position(|b| *b == b'.') {
        Some(dot) => (&field[..dot], &field[dot + 1..]),
        None => (field, &[][..]),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(wrong());
    }
    let whole = if whole.is_empty() { 0 } else { number(whole, what).map_err(|_| wrong())? };
    let mut total = whole.checked_mul(unit).ok_or_else(wrong)?;
    let mut place = unit;
    for byte in fraction {
        let digit = u64::from(byte.wrapping_sub(b'0'));
        if digit > 9 {
            return Err(wrong());
        }
        place /= 10;
        total = total.checked_add(digit * place).ok_or_else(wrong)?;
    }
    Ok(total)
}

/// Seconds as nanoseconds.
pub(crate) fn seconds(field: &[u8], what: &str) -> Parsed<u64> {
    time(field, SECOND, what)
}

/// What an operation is called in the many formats that name it.
pub(crate) fn operation(field: &[u8]) -> Parsed<Op> {
    let field = field.trim_ascii();
    let is = |names: &[&str]| names.iter().any(|n| field.eq_ignore_ascii_case(n.as_bytes()));
    if is(&["r", "read", "reads", "rs"]) {
        Ok(Op::Read)
    } else if is(&["w", "write", "writes", "ws"]) {
        Ok(Op::Write)
    } else if is(&["f", "flush", "sync", "fsync", "datasync"]) {
        Ok(Op::Flush)
    } else if is(&["t", "d", "trim", "discard", "unmap"]) {
        Ok(Op::Trim)
    } else if is(&["z", "zero", "zeroes", "write-zeroes", "write_zeroes"]) {
        Ok(Op::Zero)
    } else {
        Err(format!("{} is no operation (read, write, flush, trim, zero)", shown(field)))
    }
}

/// Cuts a line at each `separator`; at most `N` fields, and how many there are in all.
pub(crate) fn split<const N: usize>(line: &[u8], separator: u8) -> ([&[u8]; N], usize) {
    let mut fields = [&[][..]; N];
    let mut count = 0;
    for field in line.split(|b| *b == separator) {
        if let Some(slot) = fields.get_mut(count) {
            *slot = field;
        }
        count += 1;
    }
    (fields, count)
}

/// Cuts a line at white space; at most `N` words, and how many there are in all.
pub(crate) fn words<const N: usize>(line: &[u8]) -> ([&[u8]; N], usize) {
    let mut fields = [&[][..]; N];
    let mut count = 0;
    for word in line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        if let Some(slot) = fields.get_mut(count) {
            *slot = word;
        }
        count += 1;
    }
    (fields, count)
}
