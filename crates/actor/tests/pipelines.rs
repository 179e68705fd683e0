//! Whole pipelines of the built-in actors: what is written is read back, whatever is moved, and whenever.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{FULL, Pair, Random};

#[test]
fn what_is_written_is_read_back() {
    let mut pair = Pair::new(FULL, &[]);
    let mut random = Random(1);
    for sequence in 1..=40 {
        let blocks = 1 + random.below(32) as u32;
        let data = random.data(blocks, sequence % 3 == 0);
        let extents = pair.write("full", 0, (0, sequence), sequence * 100, &data).unwrap();
        assert_eq!(pair.read(0, &extents).unwrap(), data, "sequence {sequence}");
    }
}

/// The same requests, once undisturbed and once with every actor moved between the two runners at random,
/// most of the time in the middle of a unit: the extents are the same byte for byte.
#[test]
fn moves_at_every_border_change_no_byte() {
    for seed in 0..6 {
        let mut quiet = Pair::new(FULL, &[]);
        let mut moved = Pair::new(FULL, &[]);
        let mut random = Random(seed);
        let mut decide = Random(seed + 1000);
        moved.moves = Box::new(move |_| decide.below(2) == 0);
        for sequence in 1..=30 {
            moved.budget = [256, 1024, 4096, 8192][random.below(4) as usize];
            let stream = random.below(1) as u16;
            let (blocks, noise) = (1 + random.below(32) as u32, random.below(4) == 0);
            let data = random.data(blocks, noise);
            let slba = random.below(1 << 40);
            let flags = random.below(2) as u16 * 2;
            let expected = quiet.write("full", flags, (stream, sequence), slba, &data).unwrap();
            let found = moved.write("full", flags, (stream, sequence), slba, &data).unwrap();
            assert_eq!(found, expected, "seed {seed} sequence {sequence}");
            assert_eq!(moved.read(0, &found).unwrap(), data, "seed {seed} sequence {sequence}");
        }
        assert!(moved.moved > 500, "only {} moves", moved.moved);
    }
}
