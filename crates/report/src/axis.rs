//! Axes: from values to places on the paper, and where the ticks go.

use serde::Serialize;

use crate::Unit;
use crate::unit::{Prefixed, group_thousands};

/// How values are spread over an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Equal steps.
    #[default]
    Linear,
    /// Equal factors. Values of zero and below have no place on it and are left out.
    Log,
}

/// What an axis shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Axis {
    /// What is measured, without the unit.
    pub label: String,
    /// In what.
    pub unit: Unit,
    /// How values are spread.
    pub scale: Scale,
    /// The lowest value shown; `None`: from the data.
    pub low: Option<f64>,
    /// The highest value shown; `None`: from the data.
    pub high: Option<f64>,
}

impl Axis {
    /// A linear axis that fits its data.
    #[must_use]
    pub fn new(label: impl Into<String>, unit: Unit) -> Axis {
        Axis { label: label.into(), unit, scale: Scale::Linear, low: None, high: None }
    }

    /// The same on a logarithmic scale.
    #[must_use]
    pub fn log(mut self) -> Axis {
        self.scale = Scale::Log;
        self
    }

    /// The same from this value on.
    #[must_use]
    pub fn from(mut self, low: f64) -> Axis {
        self.low = Some(low);
        self
    }

    /// The same up to this value.
    #[must_use]
    pub fn to(mut self, high: f64) -> Axis {
        self.high = Some(high);
        self
    }
}

/// A tick: where it is, and what is written at it. Minor ticks have no text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) value: f64,
    pub(crate) text: String,
}

/// An axis with its range and ticks settled.
#[derive(Clone, Debug)]
pub(crate) struct Laid {
    pub(crate) low: f64,
    pub(crate) high: f64,
    scale: Scale,
    pub(crate) ticks: Vec<Tick>,
    /// Label with unit, such as `Throughput (GB/s)`.
    pub(crate) title: String,
}

/// No axis has more ticks than this, whatever range is asked for.
const TICKS_MAX: usize = 60;

impl Laid {
    /// Settles an axis over the values it must show, with about `wanted` ticks. `grow` widens the
    /// range to whole ticks; a time axis must end where the data ends instead.
    pub(crate) fn new(axis: &Axis, values: impl Iterator<Item = f64>, wanted: usize, grow: bool) -> Laid {
        let (low, high) = range(axis, values);
        match axis.scale {
            Scale::Linear => Laid::linear(axis, low, high, wanted, grow),
            Scale::Log => Laid::log(axis, low, high),
        }
    }

    fn linear(axis: &Axis, mut low: f64, mut high: f64, wanted: usize, grow: bool) -> Laid {
        let prefix = axis.unit.prefix_for(low.abs().max(high.abs()));
        let step = nice_step((high - low) / prefix.divisor, wanted, prefix.symbol) * prefix.divisor;
        let first = (low / step + 1e-9).floor();
        let last = (high / step - 1e-9).ceil();
        if grow && axis.low.is_none() {
            low = first * step;
        }
        if grow && axis.high.is_none() {
            high = last * step;
        }
        let digits = fraction_digits(step / prefix.divisor);
        let slack = step * 1e-6;
        let ticks = (0..TICKS_MAX)
            .map(|index| (first + index as f64) * step)
            .filter(|value| *value >= low - slack && *value <= high + slack)
            .map(|value| Tick { value, text: tick_text(value, prefix, digits) })
            .collect();
        let title = title(axis, prefix);
        Laid { low, high, scale: Scale::Linear, ticks, title }
    }

    fn log(axis: &Axis, low: f64, high: f64) -> Laid {
        // Time is the one unit whose prefixes are worth mixing on one axis, because a latency axis
        // runs from nanoseconds to milliseconds; its ticks then carry their own unit.
        let decades = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
        let (low, high) = (
            axis.low.unwrap_or(10f64.powi(*decades.start())).max(f64::MIN_POSITIVE),
            axis.high.unwrap_or(10f64.powi(*decades.end())),
        );
        let few = decades.end() - decades.start() <= 3;
        let mut ticks = Vec::new();
        for decade in decades {
            for digit in 1..10 {
                let value = f64::from(digit) * 10f64.powi(decade);
                let labelled = digit == 1 || (few && matches!(digit, 2 | 5));
                if value >= low * 0.999 && value <= high * 1.001 && ticks.len() < TICKS_MAX {
                    let text = if labelled { short_value(value, axis.unit) } else { String::new() };
                    ticks.push(Tick { value, text });
                }
            }
        }
        Laid { low, high, scale: Scale::Log, ticks, title: axis.label.clone() }
    }

    /// The place of a value between 0 (low end) and 1 (high end); `None` if it has none. Values off
    /// the ends are kept, so that lines leave the plot in the right direction.
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        if !value.is_finite() {
            return None;
        }
        match self.scale {
            Scale::Linear => Some((value - self.low) / (self.high - self.low)),
            Scale::Log if value <= 0.0 => None,
            Scale::Log => Some((value / self.low).ln() / (self.high / self.low).ln()),
        }
    }
}

fn range(axis: &Axis, values: impl Iterator<Item = f64>) -> (f64, f64) {
    let log = axis.scale == Scale::Log;
    let mut low = f64::INFINITY;
    let mut high = f64::NEG_INFINITY;
    for value in values.filter(|value| value.is_finite() && (!log || *value > 0.0)) {
        low = low.min(value);
        high = high.max(value);
    }
    if low > high {
        (low, high) = if log { (1.0, 10.0) } else { (0.0, 1.0) };
    }
    low = axis.low.unwrap_or(low);
    high = axis.high.unwrap_or(high);
    if low < high {
        return (low, high);
    }
    // One value alone: room on both sides of it.
    match log {
        true => (low / 2.0, low * 2.0),
        false => (low - low.abs().max(1.0) * 0.1, low + low.abs().max(1.0) * 0.1),
    }
}

/// A step that a person would have chosen: 1, 2, 2.5 or 5 times a power of ten, or for minutes and
/// seconds a divisor of sixty.
fn nice_step(span: f64, wanted: usize, symbol: &str) -> f64 {
    let raw = span / wanted.max(1) as f64;
    let sixties: &[f64] = match symbol {
        "min" | "h" => &[0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0],
        "s" => &[5.0, 10.0, 15.0, 20.0, 30.0, 60.0],
        _ => &[],
    };
    let in_sixties = sixties.first().is_some_and(|least| raw > *least * 0.5);
    if let (true, Some(step)) = (in_sixties, sixties.iter().find(|step| **step >= raw * 0.999)) {
        return *step;
    }
    let power = 10f64.powf(raw.log10().floor());
    let factors = [1.0, 2.0, 2.5, 5.0, 10.0];
    let factor = factors.into_iter().find(|factor| factor * power >= raw * 0.999).unwrap_or(10.0);
    factor * power
}

fn fraction_digits(step: f64) -> usize {
    (0..9)
        .find(|digits| {
            let scaled = step * 10f64.powi(*digits);
            (scaled - scaled.round()).abs() < 1e-6 * scaled.abs().max(1.0)
        })
        .unwrap_or(9) as usize
}

fn tick_text(value: f64, prefix: Prefixed, digits: usize) -> String {
    let mut scaled = value / prefix.divisor;
    if scaled.abs() < 1e-9 {
        // Not "−0".
        scaled = 0.0;
    }
    group_thousands(&format!("{scaled:.digits$}"))
}

/// A round figure with its unit, without fractions that say nothing: `10 µs`, `200`, `1 GB/s`.
fn short_value(value: f64, unit: Unit) -> String {
    let prefix = unit.prefix_for(value);
    let scaled = value / prefix.divisor;
    let digits = fraction_digits(scaled);
    let number = group_thousands(&format!("{scaled:.digits$}"));
    match prefix.symbol {
        "" => number,
        "%" => format!("{number}%"),
        symbol => format!("{number} {symbol}"),
    }
}

fn title(axis: &Axis, prefix: Prefixed) -> String {
    match (axis.label.as_str(), prefix.symbol) {
        (label, "") => label.to_owned(),
        ("", symbol) => symbol.to_owned(),
        (label, symbol) => format!("{label} ({symbol})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(laid: &Laid) -> Vec<&str> {
        laid.ticks.iter().map(|tick| tick.text.as_str()).filter(|text| !text.is_empty()).collect()
    }

    fn laid(unit: Unit, values: &[f64]) -> Laid {
        Laid::new(&Axis::new("x", unit), values.iter().copied(), 6, true)
    }

    #[test]
    fn ticks_are_round_and_share_one_prefix() {
        assert_eq!(texts(&laid(Unit::BytesPerSecond, &[0.0, 1.9e9])), ["0.0", "0.5", "1.0", "1.5", "2.0"]);
        assert_eq!(laid(Unit::BytesPerSecond, &[0.0, 1.9e9]).title, "x (GB/s)");
        assert_eq!(texts(&laid(Unit::Celsius, &[34.9, 71.2])), ["30", "40", "50", "60", "70", "80"]);
        assert_eq!(texts(&laid(Unit::Seconds, &[0.0, 600.0])), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(texts(&laid(Unit::Seconds, &[0.0, 30.0])), ["0", "5", "10", "15", "20", "25", "30"]);
        assert_eq!(texts(&laid(Unit::Share, &[0.0, 1.0])), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(texts(&laid(Unit::Number, &[-1.0, 1.0])), ["−1.0", "−0.5", "0.0", "0.5", "1.0"]);
    }

    #[test]
    fn a_log_axis_of_times_names_the_unit_at_each_tick() {
        let axis = Axis::new("latency", Unit::Seconds).log();
        let laid = Laid::new(&axis, [3e-7, 0.02].into_iter(), 6, true);
        assert_eq!(texts(&laid), ["100 ns", "1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms"]);
        assert_eq!(laid.place(0.0), None);
        let middle = laid.place(1e-4).unwrap();
        assert!((middle - 0.5).abs() < 1e-9);
    }

    #[test]
    fn strange_data_still_gives_an_axis() {
        for values in [&[][..], &[f64::NAN], &[5.0], &[0.0], &[f64::INFINITY, 1.0], &[1e300, -1e300]] {
            for scale in [Scale::Linear, Scale::Log] {
                let mut axis = Axis::new("x", Unit::Number);
                axis.scale = scale;
                let laid = Laid::new(&axis, values.iter().copied(), 6, true);
                assert!(laid.low < laid.high, "{values:?} {scale:?}");
                assert!(laid.ticks.len() <= TICKS_MAX);
            }
        }
    }
}
