//! The calendar, as far as an image needs it: a time stamp and its text.

use std::time::{SystemTime, UNIX_EPOCH};

const SECONDS_PER_DAY: u64 = 86_400;

/// Now, in seconds since 1970 (UTC). A clock set before 1970 counts as 1970.
pub(crate) fn now_unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The text of a time stamp, as in `2031-05-07 09:03:00 UTC`.
#[must_use]
pub fn utc_text(unix_seconds: u64) -> String {
    let (days, rest) = (unix_seconds / SECONDS_PER_DAY, unix_seconds % SECONDS_PER_DAY);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Gregorian date of a count of days since 1970-01-01. Counting from 1 March puts the leap day at the
/// end of a year, so that no table of month lengths is needed.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    // From 0000-03-01 to 1970-01-01.
    const DAYS_TO_1970: u64 = 719_468;
    let shifted = days + DAYS_TO_1970;
    let (era, day_of_era) = (shifted / DAYS_PER_ERA, shifted % DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_instants_have_their_known_dates() {
        assert_eq!(utc_text(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc_text(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc_text(1_000_000_000), "2001-09-09 01:46:40 UTC");
        assert_eq!(utc_text(4_107_542_399), "2100-02-28 23:59:59 UTC");
        assert_eq!(utc_text(4_107_542_400), "2100-03-01 00:00:00 UTC");
    }
}
