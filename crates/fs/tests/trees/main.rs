//! A file system against a plain model of one: under random operations, and after a crash at any write.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod crash;
mod model;
mod operations;

use osier_fs::Time;

/// Blocks of the file systems here: 16 MiB.
const BLOCKS: usize = 4096;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }
}

fn time(seconds: u64) -> Time {
    Time { seconds: seconds.cast_signed(), nanoseconds: 0 }
}
