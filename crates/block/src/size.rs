//! Sizes as people write them.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of bytes, read and printed the way people write it.
///
/// `K`, `M`, `G`, `T`, `P` and `KiB`, `MiB`, … are powers of 1024; `KB`, `MB`, … powers of 1000;
/// no suffix or `B` is bytes. A fraction (`1.5G`) must come to a whole number of bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(try_from = "Written", into = "u64")]
pub struct ByteSize(pub u64);

/// A size in a configuration file: a number of bytes or text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a size is a number of bytes, or text such as \"256MiB\"")]
enum Written {
    Bytes(u64),
    Text(String),
}

impl TryFrom<Written> for ByteSize {
    type Error = Error;
    fn try_from(written: Written) -> Result<Self> {
        match written {
            Written::Bytes(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse(),
        }
    }
}

impl From<ByteSize> for u64 {
    fn from(size: ByteSize) -> Self {
        size.0
    }
}

const UNITS: [&str; 5] = ["K", "M", "G", "T", "P"];

fn unit(suffix: &str) -> Option<u64> {
    if suffix.is_empty() || suffix.eq_ignore_ascii_case("b") {
        return Some(1);
    }
    let upper = suffix.to_ascii_uppercase();
    let power = UNITS.iter().position(|u| upper.starts_with(u))? as u32 + 1;
    match &upper[1..] {
        "" | "IB" => Some(1024u64.pow(power)),
        "B" => Some(1000u64.pow(power)),
        _ => None,
    }
}

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Error::invalid(format!("size '{text}' {why}; write it as 4096, 64KiB, 10G or 1.5T"))
        };
        let trimmed = text.trim();
        let split =
            trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, suffix) = trimmed.split_at(split);
        let unit = unit(suffix.trim()).ok_or_else(|| bad("has an unknown unit"))?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if number.is_empty() || whole.is_empty() || fraction.contains('.') || fraction.len() > 12 {
            return Err(bad("is not a number"));
        }
        let too_big = || bad("is too large");
        let whole: u64 = whole.parse().map_err(|_| too_big())?;
        let mut bytes = whole.checked_mul(unit).ok_or_else(too_big)?;
        if !fraction.is_empty() {
            let scale = 10u128.pow(fraction.len() as u32);
            let part: u128 = fraction.parse().map_err(|_| bad("is not a number"))?;
            let scaled = part * u128::from(unit);
            if !scaled.is_multiple_of(scale) {
                return Err(bad("is not a whole number of bytes"));
            }
            bytes = bytes.checked_add((scaled / scale) as u64).ok_or_else(too_big)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for ByteSize {
    /// The largest binary unit that leaves at least 1, with one decimal unless it is whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut power = 0;
        while power < UNITS.len() && self.0 >> (10 * (power + 1)) > 0 {
            power += 1;
        }
        let text = if power == 0 {
            format!("{} B", self.0)
        } else {
            let unit = 1u64 << (10 * power);
            let name = UNITS[power - 1];
            if self.0.is_multiple_of(unit) {
                format!("{} {name}iB", self.0 / unit)
            } else {
                format!("{:.1} {name}iB", self.0 as f64 / unit as f64)
            }
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn people_may_write_sizes_as_they_do() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512B", 512),
            ("64KiB", 65536),
            ("64k", 65536),
            ("64KB", 64000),
            ("10G", 10 << 30),
            ("1.5M", 3 << 19),
            (" 2 TiB ", 2 << 40),
        ] {
            assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes, "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "G", "-1", "1.2.3", "10X", "99999999999P", "1e9", "0.3", "16777216T"] {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains("64KiB"), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_print_short() {
        assert_eq!(ByteSize(4096).to_string(), "4 KiB");
        assert_eq!(ByteSize(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(ByteSize(17).to_string(), "17 B");
    }

    proptest! {
        #[test]
        fn any_text_is_a_size_or_an_error(text in "\\PC{0,20}") {
            let _ = text.parse::<ByteSize>();
        }

        #[test]
        fn whole_multiples_print_and_parse_back(n in 0u64..1023, power in 0u32..5) {
            let size = ByteSize(n << (10 * power));
            prop_assert_eq!(size.to_string().parse::<ByteSize>().unwrap(), size);
        }
    }
}
