//! What the device tells of itself now and then, for people who look at it: the core's figures as one JSON object, and
//! the work of each die.
//!
//! The device's process writes; the first word is odd meanwhile, and a reader that finds it changed reads again.

use std::sync::atomic::{Ordering, fence};

use osier_domain::Nanos;
use osier_pmr::Object;

/// Bytes that the figures may take.
const TEXT_BYTES: usize = 4096;
const SEQUENCE: usize = 0;
const AT: usize = 1;
const LENGTH: usize = 2;
const TEXT: usize = 3;
const DIES: usize = TEXT + TEXT_BYTES / 8;
/// Tries to read a board that is being written, which takes microseconds.
const TRIES: usize = 16;

/// Bytes of the object for so many dies.
#[must_use]
pub fn board_bytes(dies: usize) -> u64 {
    ((DIES + dies) * 8) as u64
}

/// A handle on the words.
pub struct Board {
    words: Object,
    dies: usize,
}

/// What was told last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The figures ([`osier_device::DeviceStats`]) as a JSON object.
    pub figures: String,
    /// Nanoseconds of work given to each die so far.
    pub die_busy_ns: Vec<u64>,
}

impl Board {
    /// A handle on an object of [`board_bytes`].
    pub fn new(words: Object, dies: usize) -> Board {
        assert!(words.len() >= board_bytes(dies));
        Board { words, dies }
    }

    fn get(&self, at: usize) -> u64 {
        self.words.word64(at as u64 * 8).load(Ordering::Relaxed)
    }

    fn set(&self, at: usize, value: u64) {
        self.words.word64(at as u64 * 8).store(value, Ordering::Relaxed);
    }

    /// Tells. Figures that do not fit are left out, and so is what there is of more dies.
    pub fn tell(&self, now: Nanos, figures: &str, die_busy_ns: impl Iterator<Item = u64>) {
        let figures = if figures.len() <= TEXT_BYTES { figures } else { "{}" };
        // A writer that died while it wrote has left an odd number.
        let writing = self.get(SEQUENCE) | 1;
        self.set(SEQUENCE, writing);
        fence(Ordering::Release);
        self.set(AT, now.0);
        self.set(LENGTH, figures.len() as u64);
        for (at, chunk) in (TEXT..).zip(figures.as_bytes().chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.set(at, u64::from_le_bytes(word));
        }
        for (at, busy) in (DIES..DIES + self.dies).zip(die_busy_ns) {
            self.set(at, busy);
        }
        self.words.word64(0).store(writing + 1, Ordering::Release);
    }

    /// What was told last; nothing before the first time, and when the device died in the middle of it.
    #[must_use]
    pub fn read(&self) -> Option<Told> {
        for _ in 0..TRIES {
            let before = self.words.word64(0).load(Ordering::Acquire);
            let told = self.copy();
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.get(SEQUENCE) == before {
                return (before > 0).then_some(told);
            }
            std::thread::yield_now();
        }
        None
    }

    fn copy(&self) -> Told {
        let length = (self.get(LENGTH) as usize).min(TEXT_BYTES);
        let mut bytes: Vec<u8> = (TEXT..TEXT + length.div_ceil(8)).flat_map(|at| self.get(at).to_le_bytes()).collect();
        bytes.truncate(length);
        Told {
            at_ns: self.get(AT),
            figures: String::from_utf8_lossy(&bytes).into_owned(),
            die_busy_ns: (DIES..DIES + self.dies).map(|at| self.get(at)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use osier_pmr::{Backing, ObjectKind, Region};

    use super::*;

    fn board(dies: usize) -> Board {
        let region = Region::create(&Backing::Memfd, 1 << 18, [0; 16]).expect("a region");
        Board::new(region.allocate("board", ObjectKind::STATISTICS, board_bytes(dies), 4096).expect("room"), dies)
    }

    #[test]
    fn what_was_told_last_is_read() {
        let board = board(3);
        assert_eq!(board.read(), None);
        board.tell(Nanos(5), "{\"flushes\":12}", [1, 2, 3].into_iter());
        board.tell(Nanos(6), "{}", [4, 5, 6, 7].into_iter());
        let told = Told { at_ns: 6, figures: "{}".to_owned(), die_busy_ns: vec![4, 5, 6] };
        assert_eq!(board.read(), Some(told));
        board.tell(Nanos(7), &"x".repeat(TEXT_BYTES + 1), std::iter::empty());
        assert_eq!(board.read().map(|told| told.figures).as_deref(), Some("{}"));
    }

    #[test]
    fn what_a_death_cut_short_is_not_read_and_the_next_life_goes_on() {
        let board = board(1);
        board.tell(Nanos(5), "{}", [1].into_iter());
        board.set(SEQUENCE, board.get(SEQUENCE) + 1);
        board.set(LENGTH, u64::MAX);
        assert_eq!(board.read(), None);
        board.tell(Nanos(8), "{\"a\":1}", [2].into_iter());
        assert_eq!(board.read().map(|told| (told.at_ns, told.figures)), Some((8, "{\"a\":1}".to_owned())));
    }

    #[test]
    fn a_reader_never_sees_two_tellings_mixed() {
        let board = board(64);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    board.tell(Nanos(round), &format!("{{\"round\":{round}}}"), std::iter::repeat_n(round, 64));
                }
            });
            let mut seen = 0;
            while seen < 2_000 {
                let Some(told) = board.read() else { continue };
                assert_eq!(told.figures, format!("{{\"round\":{}}}", told.at_ns));
                assert!(told.die_busy_ns.iter().all(|busy| *busy == told.at_ns));
                seen += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
