//! What is in a trace, or in any run of requests.

use std::collections::BTreeSet;

use super::pages::PageNumbers;
use crate::{Nanos, Op, Request};

/// The page in which footprints are counted.
pub const PAGE_BYTES: u32 = 4096;
/// Bins of sizes: zero, and one for each power of two that a size can reach.
const SIZE_BINS: usize = 34;

/// Sums over requests.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    requests: [u64; Op::ALL.len()],
    bytes: [u64; Op::ALL.len()],
    sizes: Vec<u64>,
    pages: PageNumbers,
    /// Whether there were more pages than are told apart.
    pages_exceeded: bool,
    tenants: BTreeSet<u16>,
    /// Address behind the last byte.
    address_end: u64,
    first: Option<Nanos>,
    last: Nanos,
}

impl Summary {
    /// Adds a request.
    pub fn add(&mut self, request: &Request) {
        self.requests[request.op as usize] += 1;
        self.bytes[request.op as usize] += u64::from(request.bytes);
        self.tenants.insert(request.tenant);
        self.sizes.resize(SIZE_BINS, 0);
        self.sizes[bin(request.bytes)] += 1;
        self.first.get_or_insert(request.at);
        self.last = self.last.max(request.at);
        if request.bytes > 0 {
            let end = request.address + u64::from(request.bytes);
            self.address_end = self.address_end.max(end);
            self.add_pages(request.address / u64::from(PAGE_BYTES), (end - 1) / u64::from(PAGE_BYTES));
        }
    }

    fn add_pages(&mut self, first: u64, last: u64) {
        for page in first..=last {
            self.pages_exceeded |= self.pages.number(page).is_none();
        }
    }

    /// Requests of one kind.
    #[must_use]
    pub fn requests(&self, op: Op) -> u64 {
        self.requests[op as usize]
    }

    /// Bytes that requests of one kind asked for.
    #[must_use]
    pub fn bytes(&self, op: Op) -> u64 {
        self.bytes[op as usize]
    }

    /// All requests.
    #[must_use]
    pub fn requests_all(&self) -> u64 {
        self.requests.iter().sum()
    }

    /// All bytes asked for.
    #[must_use]
    pub fn bytes_all(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Different pages of [`PAGE_BYTES`] that were touched.
    #[must_use]
    pub fn footprint_pages(&self) -> u64 {
        self.pages.len()
    }

    /// Whether there were more than [`super::PAGES_MAX`], so that the footprint is larger than it says.
    #[must_use]
    pub fn is_footprint_exceeded(&self) -> bool {
        self.pages_exceeded
    }

    /// Tenants that had requests.
    #[must_use]
    pub fn tenants(&self) -> usize {
        self.tenants.len()
    }

    /// The address behind the last byte that was asked for: what a device must have unless addresses are mapped.
    #[must_use]
    pub fn address_end(&self) -> u64 {
        self.address_end
    }

    /// Time from the first arrival to the last, in nanoseconds.
    #[must_use]
    pub fn span_ns(&self) -> u64 {
        self.last.0 - self.first.map_or(self.last.0, |first| first.0)
    }

    /// Requests a second over that time, in thousandths; nothing if no time passed.
    #[must_use]
    pub fn rate_millihertz(&self) -> Option<u64> {
        let span = u128::from(self.span_ns());
        // So many requests have one interval fewer between them.
        let intervals = u128::from(self.requests_all().saturating_sub(1));
        let rate = (intervals * 1_000_000_000_000).checked_div(span)?;
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// Requests by size: least and greatest size of a bin in bytes, and its requests. Bins are the powers of two; empty
    /// ones are left out.
    pub fn sizes(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.sizes.iter().enumerate().filter(|(_, count)| **count > 0).map(|(bin, count)| match bin {
            0 => (0, 0, *count),
            bin => (1 << (bin - 1), (1 << bin) - 1, *count),
        })
    }
}

/// Of sizes that are powers of two, as most are, each has a bin with none smaller.
fn bin(bytes: u32) -> usize {
    bytes.checked_ilog2().map_or(0, |power| power as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_adds_up() {
        let mut summary = Summary::default();
        assert_eq!((summary.span_ns(), summary.rate_millihertz()), (0, None));
        let request = |at, op, address, bytes| Request { at: Nanos(at), address, bytes, tenant: 3, op };
        for request in [
            request(1_000_000_000, Op::Read, 4095, 2),
            request(1_500_000_000, Op::Write, 0, 4096),
            request(2_000_000_000, Op::Flush, 0, 0),
            request(3_000_000_000, Op::Read, 1 << 40, u32::MAX),
        ] {
            summary.add(&request);
        }
        assert_eq!((summary.requests(Op::Read), summary.bytes(Op::Write), summary.requests_all()), (2, 4096, 4));
        assert_eq!(summary.footprint_pages(), 2 + (1 << 20));
        assert_eq!(summary.address_end(), (1 << 40) + u64::from(u32::MAX));
        assert_eq!((summary.span_ns(), summary.rate_millihertz()), (2_000_000_000, Some(1500)));
        let sizes: Vec<_> = summary.sizes().collect();
        assert_eq!(sizes, [(0, 0, 1), (2, 3, 1), (4096, 8191, 1), (1 << 31, u32::MAX.into(), 1)]);
        assert_eq!(summary.tenants(), 1);
    }
}
