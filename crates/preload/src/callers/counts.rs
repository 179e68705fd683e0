//! How many bytes of the window each call site asked for: a table without locks, of as many call sites as fit.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Call sites that there is room for.
const PLACES: usize = 4096;
/// Places that are looked at for one.
const LOOKS: usize = 32;

/// What a call site has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub calls: u64,
    pub bytes: u64,
}

struct Place {
    address: AtomicUsize,
    calls: AtomicU64,
    bytes: AtomicU64,
}

/// See the module.
pub struct Counts {
    places: [Place; PLACES],
    /// Of call sites that found no room.
    others: Place,
}

impl Place {
    const fn new() -> Place {
        Place { address: AtomicUsize::new(0), calls: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    fn add(&self, bytes: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn asked(&self) -> Asked {
        Asked { calls: self.calls.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }
}

impl Counts {
    pub const fn new() -> Counts {
        Counts { places: [const { Place::new() }; PLACES], others: Place::new() }
    }

    /// Counts a call.
    pub fn add(&self, address: usize, bytes: u64) {
        let first = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - PLACES.ilog2());
        for look in 0..LOOKS {
            let place = &self.places[(first + look) % PLACES];
            let there = place.address.load(Ordering::Relaxed);
            let is_its = there == address
                || (there == 0
                    && place
                        .address
                        .compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed)
                        .map_or_else(|found| found == address, |_| true));
            if is_its {
                return place.add(bytes);
            }
        }
        self.others.add(bytes);
    }

    /// All call sites, those with most bytes first, and what others asked for together.
    pub fn all(&self) -> (Vec<(usize, Asked)>, Asked) {
        let there = self.places.iter().map(|place| (place.address.load(Ordering::Relaxed), place.asked()));
        let mut all: Vec<(usize, Asked)> = there.filter(|(address, _)| *address != 0).collect();
        all.sort_by_key(|(address, asked)| (std::cmp::Reverse(asked.bytes), *address));
        (all, self.others.asked())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_is_counted_once_whatever_finds_room() {
        let counts = Box::new(Counts::new());
        let sites = 3 * PLACES;
        for round in 1..=3 {
            (1..=sites).for_each(|site| counts.add(site * 16, (site * round) as u64));
        }
        let (all, others) = counts.all();
        assert!(all.len() > PLACES * 9 / 10, "{} found room", all.len());
        for (address, asked) in &all {
            assert_eq!(*asked, Asked { calls: 3, bytes: 6 * (*address as u64 / 16) });
        }
        assert!(all.windows(2).all(|pair| pair[0].1.bytes >= pair[1].1.bytes));
        let calls = all.iter().map(|(_, asked)| asked.calls).sum::<u64>() + others.calls;
        let bytes = all.iter().map(|(_, asked)| asked.bytes).sum::<u64>() + others.bytes;
        assert_eq!((calls, bytes), (3 * sites as u64, 6 * (sites * (sites + 1) / 2) as u64));
    }
}
