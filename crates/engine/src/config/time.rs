//! Times as people write them: a number of seconds (or of what the key's name says), or text such as `"30s"`.

use block::{Error, Result};
use serde::{Deserialize, Deserializer, de};
use std::time::Duration;

/// Reads a time: `20ms`, `1.5s`, `2m`, `500us`; up to a year.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for anything else, also a number without a unit.
pub fn duration(text: &str) -> Result<Duration> {
    const UNITS: [(&str, f64); 8] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("min", 60.0),
        ("h", 3600.0),
        ("d", 86_400.0),
    ];
    let bad = || {
        Error::invalid(format!("{text:?} is not a time: write it as 500us, 20ms, 1.5s, 2m or 1h"))
    };
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
    let (number, unit) = text.split_at(split);
    let scale = UNITS.iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(bad)?.1;
    let seconds = number.parse::<f64>().map_err(|_| bad())? * scale;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if seconds <= 366.0 * 86_400.0 => Ok(time),
        _ => Err(bad()),
    }
}

/// A time in a configuration file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

/// A key whose name ends in `_seconds`.
pub(super) fn seconds<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<u64, D::Error> {
    whole(from, Duration::from_secs(1), "seconds", "30 or \"30s\"")
}

/// A key whose name ends in `_ms`.
pub(super) fn milliseconds<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<u64, D::Error> {
    whole(from, Duration::from_millis(1), "milliseconds", "200 or \"200ms\"")
}

fn whole<'de, D: Deserializer<'de>>(
    from: D,
    unit: Duration,
    name: &str,
    example: &str,
) -> std::result::Result<u64, D::Error> {
    let bad = || de::Error::custom(format!("write a whole number of {name}, such as {example}"));
    match Written::deserialize(from).map_err(|_| bad())? {
        Written::Number(number) => Ok(number),
        Written::Text(text) => {
            let time = duration(text.trim()).map_err(|_| bad())?.as_nanos();
            let unit = unit.as_nanos();
            if !time.is_multiple_of(unit) {
                return Err(bad());
            }
            u64::try_from(time / unit).map_err(|_| bad())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Deserialize)]
    struct Keys {
        #[serde(default, deserialize_with = "seconds")]
        idle_seconds: u64,
        #[serde(default, deserialize_with = "milliseconds")]
        slow_ms: u64,
    }

    #[test]
    fn times_are_numbers_or_text() {
        for (text, idle, slow) in [
            ("idle_seconds = 30", 30, 0),
            ("idle_seconds = \"30s\"", 30, 0),
            ("idle_seconds = \"2 min\"", 120, 0),
            ("idle_seconds = \"1.5m\"", 90, 0),
            ("idle_seconds = \"1h\"", 3600, 0),
            ("slow_ms = 7", 0, 7),
            ("slow_ms = \"1.5s\"", 0, 1500),
            ("slow_ms = \"2ms\"", 0, 2),
        ] {
            let keys: Keys = toml::from_str(text).unwrap();
            assert_eq!((keys.idle_seconds, keys.slow_ms), (idle, slow), "{text}");
        }
        for bad in ["\"30\"", "\"500ms\"", "-1", "1.5", "\"soon\"", "true", "[30]", "\"9999999d\""]
        {
            let error = toml::from_str::<Keys>(&format!("idle_seconds = {bad}")).unwrap_err();
            assert!(error.message().contains("30 or \"30s\""), "{bad}: {error}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        assert_eq!(duration("1.5s").unwrap(), Duration::from_millis(1500));
        assert_eq!(duration("1d").unwrap(), Duration::from_secs(86_400));
        for bad in ["", "5", "ms", "1y", "1.2.3s", "-1s", "99999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[-0-9.a-z ]{0,24}") {
            let _ = duration(&text);
        }
    }
}
