//! What tests of sessions share: draws, the other side of a session's bytes, and the first seed that fails.

use std::io::IoSlice;
use std::ops::Range;

use super::Duplex;

/// What a check gives: nothing that is wrong, or what is.
pub type Check<T> = Result<T, String>;

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Rng(pub u64);

impl Rng {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// How many bytes a link carries at once: cuts fall everywhere, most of them inside headers.
pub fn draw_cut(rng: &mut Rng) -> usize {
    match rng.below(4) {
        0 => 1 + rng.below(40) as usize,
        1 => 1 + rng.below(4) as usize,
        _ => usize::MAX,
    }
}

/// Gives a session the first of these bytes, as many as it takes and `most` at most; how many.
pub fn feed(session: &mut impl Duplex, mut bytes: &[u8], most: usize) -> usize {
    let mut filled = 0;
    for slice in &mut session.space() {
        let count = slice.len().min(bytes.len()).min(most - filled);
        slice[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        filled += count;
    }
    session.filled(filled);
    filled
}

/// Takes what a session sends, of that many parts and `most` bytes at most; how many.
pub fn drain<const PARTS: usize>(session: &mut impl Duplex, received: &mut Vec<u8>, most: usize) -> usize {
    let mut slices = [IoSlice::new(&[]); PARTS];
    let count = session.output(&mut slices);
    let mut sent = 0;
    for slice in &slices[..count] {
        let length = slice.len().min(most - sent);
        received.extend_from_slice(&slice[..length]);
        sent += length;
    }
    session.sent(sent);
    sent
}

/// The first seed that fails, and why.
pub fn first_failure(seeds: Range<u64>, run: fn(u64) -> Check<()>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let result = std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|_| Err("it panicked".to_owned()));
        result.err().map(|error| (seed, error))
    })
}
