//! Sizes as people write and read them.

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
}
