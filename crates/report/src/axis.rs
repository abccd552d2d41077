//! Axes: what they are called, how they are scaled, where their ticks stand, how numbers on them
//! are written.

/// How numbers are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A plain number; thousands as k, M, G.
    Number,
    /// Bytes, in powers of 1024.
    Bytes,
    /// Parts of a hundred: 42.5 is written 42.5 %.
    Percent,
    /// Seconds, as ns, µs, ms, s, min, h.
    Seconds,
}

impl Unit {
    /// The number as people read it, with at most four digits.
    pub fn show(self, value: f64) -> String {
        let (scaled, suffix) = match self {
            Self::Percent => (value, " %"),
            Self::Number => steps(value, 1000.0, &["", " k", " M", " G", " T"]),
            Self::Bytes => steps(value, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"]),
            Self::Seconds => seconds(value),
        };
        format!("{}{suffix}", digits(scaled))
    }
}

/// The value in the largest step that leaves at least 1.
fn steps(value: f64, step: f64, suffixes: &[&'static str]) -> (f64, &'static str) {
    let mut scaled = value;
    let mut at = 0;
    while scaled.abs() >= step && at + 1 < suffixes.len() {
        scaled /= step;
        at += 1;
    }
    (scaled, suffixes[at])
}

fn seconds(value: f64) -> (f64, &'static str) {
    match value.abs() {
        0.0 => (0.0, " s"),
        v if v < 1e-6 => (value * 1e9, " ns"),
        v if v < 1e-3 => (value * 1e6, " \u{b5}s"),
        v if v < 1.0 => (value * 1e3, " ms"),
        v if v < 120.0 => (value, " s"),
        v if v < 7200.0 => (value / 60.0, " min"),
        _ => (value / 3600.0, " h"),
    }
}

/// At most four digits, without zeroes that say nothing.
fn digits(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 1e9 => return format!("{value:.3e}"),
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        v if v >= 0.01 || v == 0.0 => 3,
        _ => return format!("{value:.2e}"),
    };
    let text = format!("{value:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    pub(crate) label: String,
    pub(crate) unit: Unit,
    logarithmic: bool,
    range: Option<(f64, f64)>,
}

impl Axis {
    /// A linear axis. It takes the range of the data, and begins at 0 unless the data do not come
    /// near it.
    pub fn new(label: impl Into<String>, unit: Unit) -> Self {
        Self { label: label.into(), unit, logarithmic: false, range: None }
    }

    /// A logarithmic axis: of base 2 for bytes, else 10. Values that are not above 0 are left out.
    pub fn log(label: impl Into<String>, unit: Unit) -> Self {
        Self { logarithmic: true, ..Self::new(label, unit) }
    }

    /// The axis from `low` to `high`, whatever the data. Points outside are drawn at the edge.
    #[must_use]
    pub fn between(mut self, low: f64, high: f64) -> Self {
        self.range = Some((low, high));
        self
    }

    /// Whether a value can be drawn on it.
    pub(crate) fn holds(&self, value: f64) -> bool {
        value.is_finite() && (!self.logarithmic || value > 0.0)
    }

    /// The axis laid out for values that it holds.
    pub(crate) fn lay_out(&self, values: impl Iterator<Item = f64>) -> Scale {
        let (mut low, mut high) = values
            .filter(|v| self.holds(*v))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            (low, high) = if self.logarithmic { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        let fixed = self.range.filter(|(l, h)| self.holds(*l) && self.holds(*h) && l < h);
        if let Some(range) = fixed {
            (low, high) = range;
        }
        if self.logarithmic {
            return self.logarithmic_scale(low, high);
        }
        if fixed.is_none() && low > 0.0 && low < high * 0.6 {
            low = 0.0;
        }
        if low == high {
            (low, high) = (low - low.abs().max(1.0) * 0.5, high + high.abs().max(1.0) * 0.5);
            low = if self.range.is_none() && high > 0.0 { low.max(0.0) } else { low };
        }
        let step = self.step((high - low) / 6.0);
        let mut ticks = Vec::new();
        let first = (low / step).ceil();
        for i in 0..12 {
            let at = (first + f64::from(i)) * step;
            if at > high + step * 1e-9 {
                break;
            }
            // Not -0, nor 0.30000000000000004.
            ticks.push(if at.abs() < step * 1e-9 { 0.0 } else { at });
        }
        if fixed.is_none() && ticks.last().is_some_and(|last| *last < high) {
            high = (first + ticks.len() as f64) * step;
            ticks.push(high);
        }
        Scale { low, high, logarithmic: false, ticks }
    }

    /// A round number not below `least`.
    fn step(&self, least: f64) -> f64 {
        if self.unit == Unit::Bytes && least >= 1.0 {
            return 2f64.powf(least.log2().ceil());
        }
        let power = 10f64.powf(least.log10().floor());
        [1.0, 2.0, 5.0, 10.0]
            .iter()
            .map(|m| m * power)
            .find(|s| *s >= least * 0.999)
            .unwrap_or(power * 10.0)
    }

    fn logarithmic_scale(&self, low: f64, high: f64) -> Scale {
        let base: f64 = if self.unit == Unit::Bytes { 2.0 } else { 10.0 };
        let power = |v: f64| v.log2() / base.log2();
        let (mut first, mut last) = (power(low), power(high));
        if self.range.is_none() {
            // To whole powers where that wastes little of the room.
            if last - first > 2.0 || first == last {
                (first, last) = ((first + 1e-9).floor(), (last - 1e-9).ceil());
            }
            if last - first < 1e-9 {
                last = first + 1.0;
            }
        }
        let every = ((last - first) / 10.0).ceil().max(1.0);
        let mut ticks = Vec::new();
        let mut at = first.ceil();
        while at <= last + 1e-9 && ticks.len() < 12 {
            ticks.push(base.powf(at));
            at += every;
        }
        if ticks.len() < 3 && base == 10.0 {
            let whole = first.floor();
            let finer = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0].map(|m| base.powf(whole) * m);
            let inside = |v: &f64| power(*v) >= first - 1e-9 && power(*v) <= last + 1e-9;
            ticks = finer.into_iter().filter(inside).collect();
        }
        Scale { low: base.powf(first), high: base.powf(last), logarithmic: true, ticks }
    }
}

/// A laid-out axis: values to fractions of its length.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    pub(crate) ticks: Vec<f64>,
}

impl Scale {
    /// Where a value stands: 0 at the low end, 1 at the high one; held inside.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let map = |v: f64| if self.logarithmic { v.ln() } else { v };
        let at = (map(value) - map(self.low)) / (map(self.high) - map(self.low));
        if at.is_finite() { at.clamp(0.0, 1.0) } else { 0.0 }
    }
}
