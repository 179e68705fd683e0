//! Colours.
//!
//! Series take the eight colours of Okabe and Ito ("Color Universal Design", 2008), which readers
//! with any of the common forms of colour blindness tell apart; black and yellow, the two that
//! vanish on one of the two backgrounds, are replaced. Each has a lighter twin for dark pages.
//! Heat uses a sequential scale of rising lightness (as the viridis family does), so that it also
//! reads in grey.

/// One colour on light and on dark pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Colour {
    pub(crate) light: &'static str,
    pub(crate) dark: &'static str,
}

/// The colours of series, in the order in which they are given out.
pub(crate) const SERIES: [Colour; 7] = [
    Colour { light: "#0072b2", dark: "#56a8e0" },
    Colour { light: "#d55e00", dark: "#f08b45" },
    Colour { light: "#009e73", dark: "#3ec79c" },
    Colour { light: "#a9488a", dark: "#e08fc2" },
    Colour { light: "#b58900", dark: "#e6b93d" },
    Colour { light: "#3a7d9c", dark: "#7cc4e2" },
    Colour { light: "#5b5b5b", dark: "#b4b4b4" },
];

/// The colour of the n-th series. After the last the colours start again; strokes then tell.
pub(crate) fn series(index: usize) -> usize {
    index % SERIES.len()
}

/// Stops of the heat scale, cold to hot.
const HEAT: [(u8, u8, u8); 6] =
    [(27, 38, 79), (62, 73, 137), (38, 130, 142), (53, 183, 121), (180, 222, 44), (253, 231, 37)];

/// The colour of a share between 0 (cold) and 1 (hot).
pub(crate) fn heat(share: f64) -> String {
    let steps = (HEAT.len() - 1) as f64;
    let place = share.clamp(0.0, 1.0) * steps;
    let index = (place as usize).min(HEAT.len() - 2);
    let part = place - index as f64;
    let mix = |from: u8, to: u8| (f64::from(from) + (f64::from(to) - f64::from(from)) * part).round() as u8;
    let (from, to) = (HEAT[index], HEAT[index + 1]);
    format!("#{:02x}{:02x}{:02x}", mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn every_series_stands_out_on_both_pages() {
        // 3:1 is what WCAG 2.1 asks of graphical objects.
        for colour in SERIES {
            assert!(contrast(colour.light, "#ffffff") >= 3.0, "{}", colour.light);
            assert!(contrast(colour.dark, "#14171a") >= 3.0, "{}", colour.dark);
        }
    }

    #[test]
    fn heat_gets_lighter_with_every_step() {
        let scale: Vec<f64> = (0..=50).map(|step| luminance(&heat(f64::from(step) / 50.0))).collect();
        assert!(scale.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
