//! Compares decimal numbers as they are written in JSON, exactly: no rounding, no floating point.

use core::cmp::Ordering;

/// A number's digits in place, from the first one that is not zero.
struct Decimal<'a> {
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
    /// Index of the first digit that is not zero in `whole` followed by `fraction`.
    first: usize,
    /// Power of ten of that digit, plus one.
    magnitude: i64,
}

impl<'a> Decimal<'a> {
    /// Reads a number that is known to be a JSON number. `None` is zero.
    fn read(text: &'a [u8]) -> Option<Decimal<'a>> {
        let negative = text.first() == Some(&b'-');
        let text = &text[usize::from(negative)..];
        let exponent_at = text.iter().position(|b| matches!(b, b'e' | b'E')).unwrap_or(text.len());
        let (digits, exponent) = text.split_at(exponent_at);
        let dot = digits.iter().position(|b| *b == b'.').unwrap_or(digits.len());
        let whole = &digits[..dot];
        let fraction = digits.get(dot + 1..).unwrap_or(&[]);
        let first = whole.iter().chain(fraction).position(|b| *b != b'0')?;
        let magnitude = (whole.len() as i64 - first as i64).saturating_add(read_exponent(exponent));
        Some(Decimal { negative, whole, fraction, first, magnitude })
    }

    fn digits(&self) -> impl Iterator<Item = u8> + use<'a> {
        self.whole.iter().chain(self.fraction).skip(self.first).copied()
    }

    fn sign(this: Option<&Decimal<'_>>) -> i8 {
        this.map_or(0, |d| if d.negative { -1 } else { 1 })
    }
}

/// `e+12` as 12. Exponents that no one can mean saturate.
fn read_exponent(text: &[u8]) -> i64 {
    const BOUND: i64 = i64::MAX / 4;
    let Some((_, text)) = text.split_first() else { return 0 };
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, text),
    };
    let value = digits.iter().fold(0i64, |sum, digit| (sum * 10 + i64::from(digit - b'0')).min(BOUND / 10));
    if negative { -value } else { value }
}

/// Which of two JSON numbers is greater. Both must be well formed.
pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (a, b) = (Decimal::read(a), Decimal::read(b));
    let by_sign = Decimal::sign(a.as_ref()).cmp(&Decimal::sign(b.as_ref()));
    let (Some(a), Some(b)) = (a, b) else { return by_sign };
    if by_sign != Ordering::Equal {
        return by_sign;
    }
    let by_size = a.magnitude.cmp(&b.magnitude).then_with(|| compare_digits(a.digits(), b.digits()));
    if a.negative { by_size.reverse() } else { by_size }
}

fn compare_digits(mut a: impl Iterator<Item = u8>, mut b: impl Iterator<Item = u8>) -> Ordering {
    loop {
        match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (a, b) => {
                let order = a.unwrap_or(b'0').cmp(&b.unwrap_or(b'0'));
                if order != Ordering::Equal {
                    return order;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms_of_one_number() {
        for (a, b, order) in [
            ("1", "1.000", Ordering::Equal),
            ("0", "-0.0e9", Ordering::Equal),
            ("100", "1e2", Ordering::Equal),
            ("0.0012", "12E-4", Ordering::Equal),
            ("1e-3", "1e-2", Ordering::Less),
            ("-5", "-4", Ordering::Less),
            ("-5", "0", Ordering::Less),
            ("0", "0.1", Ordering::Less),
            ("9007199254740993", "9007199254740992", Ordering::Greater),
            ("1e999999999999999999999", "1e5", Ordering::Greater),
            ("-1e999999999999999999999", "1", Ordering::Less),
        ] {
            assert_eq!(compare(a.as_bytes(), b.as_bytes()), order, "{a} {b}");
            assert_eq!(compare(b.as_bytes(), a.as_bytes()), order.reverse(), "{b} {a}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_integers(a in -100_000i64..100_000, b in -100_000i64..100_000, scale in 0usize..4) {
            let shift = |v: i64| format!("{v}.{}e{scale}", "0".repeat(scale));
            prop_assert_eq!(compare(shift(a).as_bytes(), shift(b).as_bytes()), a.cmp(&b));
            let text = format!("{}e{scale}", a);
            prop_assert_eq!(compare(text.as_bytes(), b.to_string().as_bytes()), (a * 10i64.pow(scale as u32)).cmp(&b));
        }
    }
}
