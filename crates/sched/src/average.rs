//! A moving average of a share, with a forecast. Fixed point.

use crate::Nanos;

/// A moving average of a load, and a forecast that counts moves just ordered.
///
/// A share taken over one epoch is coarse (the kernel counts in ticks of a few milliseconds), so
/// thresholds look at the average over a window. In millionths, so that small steps are not lost.
#[derive(Debug)]
pub(crate) struct Average {
    window_ns: i64,
    last: Option<Nanos>,
    measured_millionths: i64,
    offset_millionths: i64,
}

impl Average {
    pub(crate) fn new(window_ms: u64) -> Average {
        let window_ns = i64::try_from(window_ms.clamp(1, 3_600_000)).expect("an hour at most") * 1_000_000;
        Average { window_ns, last: None, measured_millionths: 0, offset_millionths: 0 }
    }

    /// Takes in the share since the last sample.
    pub(crate) fn add(&mut self, at: Nanos, permille: u32) {
        let value = i64::from(permille) * 1000;
        let Some(last) = self.last.replace(at) else {
            self.measured_millionths = value;
            return;
        };
        let elapsed = i64::try_from(at.0.saturating_sub(last.0)).unwrap_or(i64::MAX);
        let elapsed = elapsed.min(self.window_ns);
        let part = |difference: i64| {
            let product = i128::from(difference) * i128::from(elapsed);
            i64::try_from(product / i128::from(self.window_ns)).expect("a part is not more than the whole")
        };
        self.measured_millionths += part(value - self.measured_millionths);
        self.offset_millionths -= part(self.offset_millionths);
    }

    /// Counts a move just ordered: so much more or less load is to be expected.
    pub(crate) fn expect(&mut self, change_permille: i64) {
        self.offset_millionths += change_permille * 1000;
    }

    /// What was measured.
    pub(crate) fn measured_permille(&self) -> u32 {
        permille(self.measured_millionths)
    }

    /// What was measured, and what the moves just ordered will change.
    pub(crate) fn expected_permille(&self) -> u32 {
        permille(self.measured_millionths + self.offset_millionths)
    }
}

fn permille(millionths: i64) -> u32 {
    u32::try_from((millionths / 1000).clamp(0, 1000)).expect("clamped")
}
