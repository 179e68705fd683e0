//! XXH64, resumable, and the running hash of a stream that is built from it.
//!
//! XXH64 is chosen because it is specified, fast with plain 64-bit arithmetic, and takes a seed: the hash of one
//! unit seeds that of the next. It finds accidents, not attackers; sealing is for those.

const PRIMES: [u64; 5] =
    [0x9e37_79b1_85eb_ca87, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x85eb_ca77_c2b2_ae63, 0x27d4_eb2f_1656_67c5];

/// Bytes that one round takes.
pub const STRIPE_BYTES: usize = 32;

/// The hash of an input that comes in pieces.
#[derive(Debug, Clone, Default)]
pub struct Xxh64 {
    seed: u64,
    lanes: [u64; 4],
    total: u64,
}

impl Xxh64 {
    /// The hash of nothing yet.
    pub const fn new(seed: u64) -> Xxh64 {
        let lanes = [
            seed.wrapping_add(PRIMES[0]).wrapping_add(PRIMES[1]),
            seed.wrapping_add(PRIMES[1]),
            seed,
            seed.wrapping_sub(PRIMES[0]),
        ];
        Xxh64 { seed, lanes, total: 0 }
    }

    /// Takes a piece whose length is a multiple of [`STRIPE_BYTES`].
    ///
    /// # Panics
    /// On another length.
    pub fn update(&mut self, bytes: &[u8]) {
        assert!(bytes.len().is_multiple_of(STRIPE_BYTES), "only the last piece may be odd");
        let mut lanes = self.lanes;
        for stripe in bytes.as_chunks::<STRIPE_BYTES>().0 {
            for (lane, word) in lanes.iter_mut().zip(stripe.as_chunks::<8>().0) {
                *lane = round(*lane, u64::from_le_bytes(*word));
            }
        }
        self.lanes = lanes;
        self.total += bytes.len() as u64;
    }

    /// Takes the last piece, of any length, and answers the hash.
    pub fn finish(mut self, bytes: &[u8]) -> u64 {
        let (stripes, rest) = bytes.split_at(bytes.len() - bytes.len() % STRIPE_BYTES);
        self.update(stripes);
        let mut hash =
            if self.total >= STRIPE_BYTES as u64 { self.converge() } else { self.seed.wrapping_add(PRIMES[4]) };
        hash = hash.wrapping_add(self.total + rest.len() as u64);
        let (words, rest) = rest.as_chunks::<8>();
        for word in words {
            hash ^= round(0, u64::from_le_bytes(*word));
            hash = hash.rotate_left(27).wrapping_mul(PRIMES[0]).wrapping_add(PRIMES[3]);
        }
        let (words, rest) = rest.as_chunks::<4>();
        for word in words {
            hash ^= u64::from(u32::from_le_bytes(*word)).wrapping_mul(PRIMES[0]);
            hash = hash.rotate_left(23).wrapping_mul(PRIMES[1]).wrapping_add(PRIMES[2]);
        }
        for byte in rest {
            hash ^= u64::from(*byte).wrapping_mul(PRIMES[4]);
            hash = hash.rotate_left(11).wrapping_mul(PRIMES[0]);
        }
        hash = (hash ^ hash >> 33).wrapping_mul(PRIMES[1]);
        hash = (hash ^ hash >> 29).wrapping_mul(PRIMES[2]);
        hash ^ hash >> 32
    }

    fn converge(&self) -> u64 {
        let rotations = [1, 7, 12, 18];
        let sum = self.lanes.iter().zip(rotations).fold(0u64, |sum, (lane, by)| sum.wrapping_add(lane.rotate_left(by)));
        self.lanes
            .iter()
            .fold(sum, |hash, lane| (hash ^ round(0, *lane)).wrapping_mul(PRIMES[0]).wrapping_add(PRIMES[3]))
    }
}

fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(PRIMES[1])).rotate_left(31).wrapping_mul(PRIMES[0])
}

/// Where a stream's running hash stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// The hash over every unit so far; each unit's hash is seeded with the one before, the first with 0.
    pub hash: u64,
    /// How many units those are.
    pub units: u64,
    /// The request that the last of them was part of.
    pub sequence: u64,
}

/// Bytes that [`Position::trailer`] adds to a unit.
pub const TRAILER_BYTES: usize = 16;
/// Bytes of [`Position::encode`].
pub const POSITION_BYTES: usize = 24;

impl Position {
    /// What is appended to a unit: the hash up to and with it, and its number in the stream, from 1.
    pub fn trailer(&self) -> [u8; TRAILER_BYTES] {
        let mut out = [0; TRAILER_BYTES];
        out[..8].copy_from_slice(&self.hash.to_le_bytes());
        out[8..].copy_from_slice(&self.units.to_le_bytes());
        out
    }

    /// The position as it is kept in the shared state.
    pub fn encode(&self) -> [u8; POSITION_BYTES] {
        let mut out = [0; POSITION_BYTES];
        out[..16].copy_from_slice(&self.trailer());
        out[16..].copy_from_slice(&self.sequence.to_le_bytes());
        out
    }

    /// Reads a position; `None` when it cannot be one.
    pub fn decode(bytes: &[u8]) -> Option<Position> {
        let bytes: &[u8; POSITION_BYTES] = bytes.try_into().ok()?;
        let words = bytes.as_chunks::<8>().0;
        let [hash, units, sequence] = [0, 1, 2].map(|index| u64::from_le_bytes(words[index]));
        (units > 0 && sequence > 0).then_some(Position { hash, units, sequence })
    }
}

/// The length of a unit's content, given the unit with its trailer; `None` when it has none.
pub fn strip(unit: &[u8]) -> Option<usize> {
    let (content, trailer) = unit.split_last_chunk::<TRAILER_BYTES>()?;
    let numbered = trailer[8..].iter().any(|byte| *byte != 0);
    (numbered && !content.is_empty()).then_some(content.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(bytes: &[u8], seed: u64) -> u64 {
        Xxh64::new(seed).finish(bytes)
    }

    /// Vectors of the reference implementation's self test: a generated buffer, with seed 0 and with a prime.
    #[test]
    fn known_values() {
        const PRIME32: u64 = 2_654_435_761;
        const PRIME64: u64 = 11_400_714_785_074_694_797;
        let mut buffer = [0u8; 222];
        let mut state = PRIME32;
        for byte in &mut buffer {
            *byte = (state >> 56) as u8;
            state = state.wrapping_mul(PRIME64);
        }
        for (length, seed, hash) in [
            (0, 0, 0xef46_db37_51d8_e999),
            (0, PRIME32, 0xac75_fda2_929b_17ef),
            (1, 0, 0xe934_a84a_db05_2768),
            (1, PRIME32, 0x5014_607643a9b4c3),
            (4, 0, 0x9136_a0dc_a574_57ee),
            (14, 0, 0x8282_dcc4_994e_35c8),
            (14, PRIME32, 0xc3bd_6bf6_3deb_6df0),
            (222, 0, 0xb641_ae8c_b691_c174),
            (222, PRIME32, 0x20cb_8ab7_ae10_c14a),
        ] {
            assert_eq!(whole(&buffer[..length], seed), hash, "{length} {seed}");
        }
    }

    proptest! {
        #[test]
        fn pieces_make_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..500),
            cuts in proptest::collection::vec(0usize..5, 0..6),
            seed in any::<u64>(),
        ) {
            let mut hash = Xxh64::new(seed);
            let mut rest = &bytes[..];
            for cut in cuts {
                if let Some((piece, behind)) = rest.split_at_checked(cut * STRIPE_BYTES) {
                    hash.update(piece);
                    rest = behind;
                }
            }
            prop_assert_eq!(hash.finish(rest), whole(&bytes, seed));
        }

        #[test]
        fn a_position_survives(hash in any::<u64>(), units in 1u64.., sequence in 1u64..) {
            let position = Position { hash, units, sequence };
            prop_assert_eq!(Position::decode(&position.encode()), Some(position));
            let unit = [b"content".as_slice(), &position.trailer()].concat();
            prop_assert_eq!(strip(&unit), Some(7));
        }
    }

    #[test]
    fn what_is_no_trailer() {
        assert_eq!(strip(&[1; 16]), None);
        assert_eq!(strip(&[0; 40]), None);
        assert_eq!(strip(b""), None);
        assert_eq!(Position::decode(&[0; POSITION_BYTES]), None);
        assert_eq!(Position::decode(&[1; 5]), None);
    }
}
