//! Units: which prefix an axis gets, and how one figure is written.

use serde::Serialize;

/// What a figure measures. Values are always in the base unit that is named here; the prefix is
/// chosen when they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A bare number.
    Number,
    /// How many of something; no fractions, thousands are grouped.
    Count,
    /// Bytes; decimal prefixes.
    Bytes,
    /// Bytes a second; decimal prefixes.
    BytesPerSecond,
    /// Operations a second; decimal prefixes.
    PerSecond,
    /// Seconds: from ns to hours.
    Seconds,
    /// Degrees Celsius.
    Celsius,
    /// Watts.
    Watts,
    /// A share of one, shown in percent.
    Share,
}

/// A unit with its prefix: what values are divided by, and what is written behind them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Prefixed {
    pub(crate) divisor: f64,
    pub(crate) symbol: &'static str,
}

const fn prefixed(divisor: f64, symbol: &'static str) -> Prefixed {
    Prefixed { divisor, symbol }
}

const BYTES: [Prefixed; 5] =
    [prefixed(1.0, "B"), prefixed(1e3, "kB"), prefixed(1e6, "MB"), prefixed(1e9, "GB"), prefixed(1e12, "TB")];
const BYTES_PER_SECOND: [Prefixed; 5] =
    [prefixed(1.0, "B/s"), prefixed(1e3, "kB/s"), prefixed(1e6, "MB/s"), prefixed(1e9, "GB/s"), prefixed(1e12, "TB/s")];
const PER_SECOND: [Prefixed; 4] =
    [prefixed(1.0, "/s"), prefixed(1e3, "k/s"), prefixed(1e6, "M/s"), prefixed(1e9, "G/s")];
const SECONDS: [Prefixed; 6] = [
    prefixed(1e-9, "ns"),
    prefixed(1e-6, "µs"),
    prefixed(1e-3, "ms"),
    prefixed(1.0, "s"),
    prefixed(60.0, "min"),
    prefixed(3600.0, "h"),
];
const WATTS: [Prefixed; 3] = [prefixed(1e-3, "mW"), prefixed(1.0, "W"), prefixed(1e3, "kW")];

impl Unit {
    /// The prefix that suits values of about this magnitude.
    pub(crate) fn prefix_for(self, magnitude: f64) -> Prefixed {
        let choices: &[Prefixed] = match self {
            Unit::Number | Unit::Count => &[prefixed(1.0, "")],
            Unit::Celsius => &[prefixed(1.0, "°C")],
            Unit::Share => &[prefixed(0.01, "%")],
            Unit::Bytes => &BYTES,
            Unit::BytesPerSecond => &BYTES_PER_SECOND,
            Unit::PerSecond => &PER_SECOND,
            Unit::Seconds => &SECONDS,
            Unit::Watts => &WATTS,
        };
        let fits = |choice: &&Prefixed| {
            // Minutes and hours only once there are a few of them: 90 s reads better than 1.5 min.
            let few = if matches!(choice.symbol, "min" | "h") { 3.0 } else { 1.0 };
            magnitude.abs() >= choice.divisor * few * 0.999_999
        };
        choices.iter().rev().find(fits).copied().unwrap_or(choices[0])
    }
}

/// One figure with its unit, to three significant digits or so: `1.90 GB/s`, `71.3 °C`, `12,345`.
#[must_use]
pub fn format_value(value: f64, unit: Unit) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let prefix = unit.prefix_for(value);
    let scaled = value / prefix.divisor;
    let digits = match (unit, scaled.abs()) {
        (Unit::Count, _) => 0,
        (Unit::Celsius | Unit::Share, _) => 1,
        (_, size) if size == 0.0 || size >= 99.95 => 0,
        (_, size) if size >= 9.995 => 1,
        _ => 2,
    };
    let number = group_thousands(&format!("{scaled:.digits$}"));
    match prefix.symbol {
        "" => number,
        "%" => format!("{number}%"),
        symbol => format!("{number} {symbol}"),
    }
}

/// Commas between thousands, from five digits on.
pub(crate) fn group_thousands(number: &str) -> String {
    let (sign, rest) = match number.strip_prefix('-') {
        Some(rest) => ("−", rest),
        None => ("", number),
    };
    let (whole, fraction) = match rest.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (rest, None),
    };
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if whole.len() >= 5 && index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    match fraction {
        Some(fraction) => format!("{sign}{grouped}.{fraction}"),
        None => format!("{sign}{grouped}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_as_an_engineer_writes_them() {
        let cases = [
            (1.9e9, Unit::BytesPerSecond, "1.90 GB/s"),
            (950e6, Unit::BytesPerSecond, "950 MB/s"),
            (0.0, Unit::BytesPerSecond, "0 B/s"),
            (71.34, Unit::Celsius, "71.3 °C"),
            (-5.0, Unit::Celsius, "−5.0 °C"),
            (12_345.0, Unit::Count, "12,345"),
            (1_234.0, Unit::Count, "1234"),
            (4.2e-6, Unit::Seconds, "4.20 µs"),
            (90.0, Unit::Seconds, "90.0 s"),
            (600.0, Unit::Seconds, "10.0 min"),
            (0.4567, Unit::Share, "45.7%"),
            (33.0, Unit::Watts, "33.0 W"),
            (f64::NAN, Unit::Watts, "–"),
            (1_000_000.0, Unit::Count, "1,000,000"),
        ];
        for (value, unit, expected) in cases {
            assert_eq!(format_value(value, unit), expected);
        }
    }
}
