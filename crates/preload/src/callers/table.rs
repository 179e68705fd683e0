//! Which rules an address is of: a sorted table that one thread at a time replaces while others look addresses up.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// Most places of the table where something begins or ends.
const BOUNDS_MAX: usize = 4096;
/// Looks that are spun before the processor is given to whoever replaces the table.
const SPINS: u32 = 1000;

/// See the module.
pub struct Table {
    /// Odd while the table is being replaced.
    sequence: AtomicU64,
    count: AtomicUsize,
    /// Ascending; the bits of each are those of the addresses up to the next.
    bounds: [AtomicUsize; BOUNDS_MAX],
    bits: [AtomicU64; BOUNDS_MAX],
}

impl Table {
    pub const fn new() -> Table {
        Table {
            sequence: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            bounds: [const { AtomicUsize::new(0) }; BOUNDS_MAX],
            bits: [const { AtomicU64::new(0) }; BOUNDS_MAX],
        }
    }

    /// The bits of all ranges that an address lies in.
    pub fn look_up(&self, address: usize) -> u64 {
        let mut spins = 0;
        loop {
            let sequence = self.sequence.load(Ordering::Acquire);
            let bits = self.find(address);
            fence(Ordering::Acquire);
            if sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence {
                return bits;
            }
            spins += 1;
            if spins > SPINS {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn find(&self, address: usize) -> u64 {
        let (mut low, mut length) = (0, self.count.load(Ordering::Relaxed).min(BOUNDS_MAX));
        // The first `low` bounds are not beyond the address.
        while length > 0 {
            let half = length / 2;
            if self.bounds[low + half].load(Ordering::Relaxed) <= address {
                low += half + 1;
                length -= half + 1;
            } else {
                length = half;
            }
        }
        if low == 0 { 0 } else { self.bits[low - 1].load(Ordering::Relaxed) }
    }

    /// Replaces the table by ranges and their bits; how many at the end of the list found no room. One thread at a
    /// time.
    pub fn replace(&self, ranges: &[(Range<usize>, u64)]) -> usize {
        let fitting = ranges.len().min(BOUNDS_MAX / 2);
        let ranges_in = &ranges[..fitting];
        let mut bounds: Vec<usize> = ranges_in.iter().flat_map(|(range, _)| [range.start, range.end]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let mut all = vec![0_u64; bounds.len()];
        for (range, bits) in ranges_in {
            let first = bounds.partition_point(|bound| *bound < range.start);
            let last = bounds.partition_point(|bound| *bound < range.end);
            all[first..last].iter_mut().for_each(|place| *place |= bits);
        }
        self.sequence.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (index, (bound, bits)) in bounds.iter().zip(&all).enumerate() {
            self.bounds[index].store(*bound, Ordering::Relaxed);
            self.bits[index].store(*bits, Ordering::Relaxed);
        }
        self.count.store(bounds.len(), Ordering::Relaxed);
        self.sequence.fetch_add(1, Ordering::Release);
        ranges.len() - fitting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_bits_of_the_ranges_that_it_lies_in() {
        let mut state = 5_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let table = Box::new(Table::new());
        assert_eq!(table.look_up(7), 0, "nothing is there yet");
        for _ in 0..300 {
            let ranges: Vec<(Range<usize>, u64)> = (0..random(12))
                .map(|_| {
                    let start = random(60) as usize;
                    (start..start + 1 + random(20) as usize, 1 << random(64))
                })
                .collect();
            assert_eq!(table.replace(&ranges), 0);
            for address in 0..90 {
                let reference = ranges.iter().filter(|(range, _)| range.contains(&address));
                assert_eq!(
                    table.look_up(address),
                    reference.fold(0, |all, (_, bits)| all | bits),
                    "{address} of {ranges:?}"
                );
            }
        }
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let table = Box::new(Table::new());
        let ranges: Vec<(Range<usize>, u64)> = (0..BOUNDS_MAX / 2 + 5).map(|at| (at * 4..at * 4 + 2, 1)).collect();
        assert_eq!(table.replace(&ranges), 5);
        assert_eq!((table.look_up(1), table.look_up(3), table.look_up((BOUNDS_MAX / 2) * 4)), (1, 0, 0));
    }

    #[test]
    fn who_looks_while_it_is_replaced_sees_one_table() {
        let table = Box::leak(Box::new(Table::new()));
        // Each table has the same bits everywhere; the bounds move.
        let of = |round: usize| -> Vec<(Range<usize>, u64)> {
            (0..40).map(|at| (at * 100 + round % 7..at * 100 + 100 + round % 7, 1 << (round % 64))).collect()
        };
        table.replace(&of(0));
        let looks = std::thread::spawn(|| {
            for look in 0..200_000_usize {
                let bits = table.look_up(50 + look % 3900);
                assert_eq!(bits.count_ones(), 1, "bits of two tables: {bits:x}");
            }
        });
        let mut round = 0;
        while !looks.is_finished() {
            round += 1;
            table.replace(&of(round));
        }
        looks.join().expect("each look saw one table");
    }
}
