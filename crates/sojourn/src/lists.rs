//! Lists, ranges and times, as people write them on the command line.

use block::{ByteSize, Error, Result};

/// The most items of a list.
const MOST: usize = 100_000;

/// Whole numbers: `1-100`, `1,2,5`, `10-50:10`; ascending, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Numbers(pub(crate) Vec<u32>);

/// Shares from 0 to 1: `0.95`, `95%`, `0-1:0.05`; ascending, each once.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shares(pub(crate) Vec<f64>);

/// Sizes: `4K,8K`, and `1G-16G` for 1, 2, 4, 8 and 16 GiB; ascending, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<u64>);

/// Sizes, or parts of a whole that is known later: `64M,1G-4G`, `10%`, `1%-40%` for 1, 2, 4, 8, 16, 32 and
/// 40 %.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Amounts {
    sizes: Vec<u64>,
    /// Above 0, up to 1.
    shares: Vec<f64>,
}

/// Names as a sentence has them: `a, b or c`.
pub(crate) fn spoken(names: impl Iterator<Item = impl Into<String>>) -> String {
    let names: Vec<String> = names.map(Into::into).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

impl Amounts {
    /// All of them in bytes, ascending, each once. A part of the whole is at least `least`.
    pub(crate) fn of(&self, whole: u64, least: u64) -> Vec<u64> {
        let part = |share: &f64| ((whole as f64 * share).round() as u64).max(least);
        let parts = self.shares.iter().map(part);
        let mut all: Vec<u64> = self.sizes.iter().copied().chain(parts).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// All of them, when none is a part.
    pub(crate) fn sizes(&self) -> Option<&[u64]> {
        self.shares.is_empty().then_some(&self.sizes)
    }
}

impl std::str::FromStr for Numbers {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid(format!(
                "{text:?} is no list of numbers: write it as 8, 1-100, 10-50:10 or 1,2,5"
            ))
        };
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| bad());
        let mut all = Vec::new();
        for item in text.split(',') {
            let (range, step) = item.split_once(':').unwrap_or((item, "1"));
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let (from, to, step) = (number(from)?, number(to)?, number(step)?);
            if from > to || step == 0 || (to - from) as usize / step as usize >= MOST {
                return Err(bad());
            }
            all.extend((from..=to).step_by(step as usize));
            limit(all.len())?;
        }
        all.sort_unstable();
        all.dedup();
        Ok(Self(all))
    }
}

impl std::str::FromStr for Shares {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid(format!(
                "{text:?} is no list of shares from 0 to 1: write it as 0.95, 95%, 0-1:0.05 or 0,0.9"
            ))
        };
        let number = |text: &str| -> Result<f64> {
            let text = text.trim();
            let (digits, scale) = text.strip_suffix('%').map_or((text, 1.0), |rest| (rest, 100.0));
            digits.parse::<f64>().map(|number| number / scale).map_err(|_| bad())
        };
        let share = |text: &str| {
            number(text).and_then(|n| if (0.0..=1.0).contains(&n) { Ok(n) } else { Err(bad()) })
        };
        let mut all = Vec::new();
        for item in text.split(',') {
            let Some((from, rest)) = item.split_once('-') else {
                all.push(share(item)?);
                continue;
            };
            let (to, step) = rest.split_once(':').ok_or_else(bad)?;
            let (from, to, step) = (share(from)?, share(to)?, share(step)?);
            if from > to || step < 1e-5 {
                return Err(bad());
            }
            let count = ((to - from) / step + 1e-9) as u32;
            // Rounded, so that 0.05 nineteen times is 0.95.
            let at = |i: u32| ((from + f64::from(i) * step) * 1e9).round() / 1e9;
            all.extend((0..=count).map(|i| at(i).min(1.0)));
            limit(all.len())?;
        }
        all.sort_by(f64::total_cmp);
        all.dedup();
        Ok(Self(all))
    }
}

impl std::str::FromStr for Amounts {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (mut sizes, mut shares) = (Vec::new(), Vec::new());
        for item in text.split(',') {
            if !item.contains('%') {
                sizes.extend(item.parse::<Sizes>()?.0);
                continue;
            }
            let bad =
                || Error::invalid(format!("{item:?} is no part of a whole: write 10%, or 1%-50%"));
            let share = |text: &str| {
                let percent =
                    text.trim().strip_suffix('%').and_then(|text| text.parse::<f64>().ok());
                percent.filter(|part| *part > 0.0 && *part <= 100.0).ok_or_else(bad)
            };
            let (from, to) = item.split_once('-').unwrap_or((item, item));
            let (from, to) = (share(from)?, share(to)?);
            if from > to || from < to * 1e-6 {
                return Err(bad());
            }
            let doubled = std::iter::successors(Some(from), |part| Some(part * 2.0));
            shares.extend(doubled.take_while(|part| *part < to).map(|part| part / 100.0));
            shares.push(to / 100.0);
        }
        limit(sizes.len() + shares.len())?;
        Ok(Self { sizes, shares })
    }
}

impl std::str::FromStr for Sizes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut all = Vec::new();
        for item in text.split(',') {
            let Some((from, to)) = item.split_once('-') else {
                all.push(item.parse::<ByteSize>()?.0);
                continue;
            };
            let (from, to) = (from.parse::<ByteSize>()?.0, to.parse::<ByteSize>()?.0);
            if from == 0 || from > to {
                return Err(Error::invalid(format!("{item:?} is no range of sizes: write 1G-16G")));
            }
            let doubled = std::iter::successors(Some(from), |size| size.checked_mul(2));
            all.extend(doubled.take_while(|size| *size < to));
            all.push(to);
        }
        limit(all.len())?;
        all.sort_unstable();
        all.dedup();
        Ok(Self(all))
    }
}

fn limit(length: usize) -> Result<()> {
    if length > MOST {
        return Err(Error::invalid(format!("a list of more than {MOST} items: give fewer")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_read_as_people_write_them() {
        let numbers = |text: &str| text.parse::<Numbers>().unwrap().0;
        assert_eq!(numbers("3"), [3]);
        assert_eq!(numbers("5,1-3,2"), [1, 2, 3, 5]);
        assert_eq!(numbers("10-35:10"), [10, 20, 30]);
        let shares = |text: &str| text.parse::<Shares>().unwrap().0;
        assert_eq!(shares("95%,0"), [0.0, 0.95]);
        assert_eq!(shares("0.9-1:0.05"), [0.9, 0.95, 1.0]);
        assert_eq!(shares("0-1:0.05")[19], 0.95);
        let sizes = |text: &str| text.parse::<Sizes>().unwrap().0;
        assert_eq!(sizes("8K,4K"), [4096, 8192]);
        assert_eq!(sizes("1M-5M"), [1 << 20, 2 << 20, 4 << 20, 5 << 20]);
    }

    #[test]
    fn what_is_no_list_is_refused_with_an_example() {
        for bad in ["", "x", "5-1", "1-5:0", "1-4294967295", "1.5", "-1"] {
            assert!(bad.parse::<Numbers>().unwrap_err().message().contains("1-100"), "{bad}");
        }
        for bad in ["", "1.1", "-0.1", "nan", "0-1", "0-1:0", "1-0:0.1", "101%"] {
            assert!(bad.parse::<Shares>().unwrap_err().message().contains("95%"), "{bad}");
        }
        for bad in ["", "4Q", "0-4K", "8K-4K"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn amounts_are_sizes_or_parts_of_a_whole() {
        let amounts = |text: &str| text.parse::<Amounts>().unwrap();
        assert_eq!(amounts("1%-5%").of(1000, 1), [10, 20, 40, 50]);
        assert_eq!(amounts("4K,50%,100%").of(1000, 1), [500, 1000, 4096]);
        assert_eq!(amounts("1K-4K").sizes(), Some(&[1024, 2048, 4096][..]));
        assert_eq!(amounts("4K,10%").sizes(), None);
        for bad in ["0%", "101%", "-1%", "nan%", "x%", "5%-1%", "1e-9%-100%", "10%-20"] {
            assert!(bad.parse::<Amounts>().unwrap_err().message().contains("10%"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[-0-9.,:%KMGsmh]{0,24}") {
            let _ = text.parse::<Numbers>();
            let _ = text.parse::<Shares>();
            let _ = text.parse::<Sizes>();
            let _ = text.parse::<Amounts>();
        }
    }
}
