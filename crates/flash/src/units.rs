//! Newtypes for time, addresses and identities. No arithmetic here can wrap silently.

/// Bytes of one logical block, the unit of [`Lba`].
pub const BLOCK_BYTES: u32 = 4096;

/// A point in model time, or a span of it, in nanoseconds.
///
/// The caller supplies every point in time; nothing in this crate reads a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The beginning of time.
    pub const ZERO: Nanos = Nanos(0);
    /// Later than anything that happens.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// A span of whole microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Nanos {
        Nanos(micros.saturating_mul(1_000))
    }

    /// A span of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis.saturating_mul(1_000_000))
    }

    /// This point moved `nanos` later; stays at [`Nanos::MAX`] instead of wrapping.
    #[must_use]
    pub const fn saturating_add(self, nanos: u64) -> Nanos {
        Nanos(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to this point; zero when `earlier` is not earlier.
    #[must_use]
    #[inline]
    pub const fn saturating_since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl core::fmt::Display for Nanos {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ns", self.0)
    }
}

/// A logical block address, in units of [`BLOCK_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lba(pub u64);

impl Lba {
    /// The address `blocks` further on; stays at the last address instead of wrapping.
    #[must_use]
    pub const fn saturating_add(self, blocks: u64) -> Lba {
        Lba(self.0.saturating_add(blocks))
    }
}

impl core::fmt::Display for Lba {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Identity of one media operation; never used twice by one FTL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// Position of an append in the order of appends; the first of a session is 1, and 0 means "nothing yet".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AppendId(pub u64);

/// Identity of one read; never used twice by one FTL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// Identity of one sync; never used twice by one FTL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SyncId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_saturates() {
        assert_eq!(Nanos::MAX.saturating_add(1), Nanos::MAX);
        assert_eq!(Nanos(5).saturating_since(Nanos(9)), 0);
        assert_eq!(Nanos::from_millis(2), Nanos::from_micros(2_000));
        assert_eq!(Lba(u64::MAX).saturating_add(1), Lba(u64::MAX));
    }
}
