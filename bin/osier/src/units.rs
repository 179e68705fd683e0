//! Sizes and times as people write and read them.

const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
const DECIMAL: [(&str, u64); 4] = [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)];

/// The bytes that a text such as `1GiB`, `512M`, `4 TB` or `4096` means. `K`, `M`, `G` and `T` alone are
/// binary, as `KiB` is; `KB` and its like are decimal.
///
/// # Errors
/// What a size looks like.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (digits, unit) = (&trimmed[..end], trimmed[end..].trim());
    let factor = factor_of(unit);
    let bytes = digits.parse::<u64>().ok().zip(factor).and_then(|(n, factor)| n.checked_mul(factor));
    bytes.ok_or_else(|| format!("`{text}` is not a size: write a whole number and a unit, as in 4096, 64MiB or 1GiB"))
}

fn factor_of(unit: &str) -> Option<u64> {
    if unit.is_empty() || unit.eq_ignore_ascii_case("b") {
        return Some(1);
    }
    let named = UNITS.iter().chain(&DECIMAL).find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let short = UNITS.iter().find(|(name, _)| name[..1].eq_ignore_ascii_case(unit));
    named.or(short).map(|(_, factor)| *factor)
}

const TIMES: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// The nanoseconds that a text such as `5s`, `2.5 ms` or `10min` means. A number alone has no meaning.
///
/// # Errors
/// What a time looks like.
pub fn parse_duration_ns(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (digits, unit) = (&trimmed[..end], trimmed[end..].trim());
    let factor = TIMES.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let nanos = factor.and_then(|factor| scaled(digits, factor));
    nanos.ok_or_else(|| format!("`{text}` is not a time: write a number and ns, us, ms, s, min or h, as in 2.5s"))
}

/// A decimal number times a factor, if that is whole; no rounding.
pub fn scaled(digits: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) || digits.ends_with('.') {
        return None;
    }
    let power = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let parts = whole.parse::<u64>().ok()?.checked_mul(power)?.checked_add(fraction.parse().unwrap_or(0))?;
    let product = u128::from(parts) * u128::from(factor);
    let power = u128::from(power);
    (product % power == 0).then_some(product / power).and_then(|value| u64::try_from(value).ok())
}

/// A size in the largest unit in which it is at least one, to a tenth where it is not whole.
pub fn format_bytes(bytes: u64) -> String {
    let Some((name, factor)) = UNITS.iter().find(|(_, factor)| bytes >= *factor) else {
        return format!("{bytes} B");
    };
    let (whole, rest) = (bytes / factor, bytes % factor);
    // Tenths are cut, not rounded: 1023.96 MiB must not read as 1024.0 MiB.
    let tenths = u64::try_from(u128::from(rest) * 10 / u128::from(*factor)).unwrap_or(0);
    if rest == 0 { format!("{whole} {name}") } else { format!("{whole}.{tenths} {name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_form_that_people_use() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1GiB", 1 << 30),
            (" 64 MiB ", 64 << 20),
            ("2k", 2048),
            ("3M", 3 << 20),
            ("4TB", 4_000_000_000_000),
            ("7b", 7),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "-1", "1.5GiB", "1XB", "99999999999TiB", "1 G i B", "0x10"] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.contains("1GiB"), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_written_short_and_never_too_large() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 30) - 1, "1023.9 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
    }

    #[test]
    fn times_are_read_to_the_nanosecond() {
        let cases =
            [("5s", 5_000_000_000), ("2.5 ms", 2_500_000), ("0.001us", 1), ("10min", 600_000_000_000), ("0h", 0)];
        for (text, nanos) in cases {
            assert_eq!(parse_duration_ns(text), Ok(nanos), "{text}");
        }
        for text in ["5", "", "s", "-1s", "1.s", ".5s", "1e3s", "0.0001us", "99999999999h", "5 S"] {
            let error = parse_duration_ns(text).unwrap_err();
            assert!(error.contains("2.5s"), "{text}: {error}");
        }
    }
}
