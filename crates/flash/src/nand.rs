//! When the NAND array will be done: occupancy of dies and channels.
//!
//! Each die works on one thing at a time, first come first served. Its page register is double
//! buffered (cache read and cache program), so a transfer may overlap the array's work.
//!
//! - read: the die is busy for `read_ns`, then the bytes asked for cross the channel;
//! - program: the page crosses the channel, then the die is busy for `program_ns`;
//! - erase: the die is busy for `erase_ns`, all its planes together.
//!
//! The pages of one row that lie on different planes of one die form a *multi-plane program*: they
//! share the array's time, and each only pays its transfer. A page that joins after the first
//! delays the die by the time between the two transfers, as the second data-in phase does on real
//! parts; the completion already promised for the first page is not moved.
//!
//! A channel is a server of *work*: it is never idle while a transfer waits for it, and a transfer
//! whose data is not there yet reserves no slot in the future. A plain "free at" time would let one
//! read that waits for its die block all other dies of the channel.

use crate::{Geometry, Nanos};

/// Durations of the array's operations and the speed of a channel. Zero is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Array time of one page read (tR), in nanoseconds.
    pub read_ns: u64,
    /// Array time of one page program (tPROG), in nanoseconds.
    pub program_ns: u64,
    /// Time of one block erase (tBERS), in nanoseconds.
    pub erase_ns: u64,
    /// Bytes that one channel moves in a second.
    pub channel_bytes_per_second: u64,
}

/// A duration that cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// An operation that takes no time hides the cost that the model is there to show.
    #[error("timing: {name} is zero, and no NAND part does that; give the datasheet's value")]
    Zero {
        /// The field of [`Timing`].
        name: &'static str,
    },
    /// An hour for one operation is a misplaced unit.
    #[error("timing: {name} is {value}, over the limit of {max}; check the unit, it is in the name")]
    TooLarge {
        /// The field of [`Timing`].
        name: &'static str,
        /// What it was.
        value: u64,
        /// The largest accepted.
        max: u64,
    },
}

/// Longest accepted operation: ten seconds.
const OPERATION_NS_MAX: u64 = 10_000_000_000;
/// Fastest accepted channel: a terabyte a second.
const CHANNEL_BYTES_PER_SECOND_MAX: u64 = 1_000_000_000_000;

impl Timing {
    /// Checks every value.
    ///
    /// # Errors
    /// Names the first value that cannot be true.
    pub fn validate(&self) -> Result<(), TimingError> {
        let values = [
            ("read_ns", self.read_ns, OPERATION_NS_MAX),
            ("program_ns", self.program_ns, OPERATION_NS_MAX),
            ("erase_ns", self.erase_ns, OPERATION_NS_MAX),
            ("channel_bytes_per_second", self.channel_bytes_per_second, CHANNEL_BYTES_PER_SECOND_MAX),
        ];
        for (name, value, max) in values {
            if value == 0 {
                return Err(TimingError::Zero { name });
            }
            if value > max {
                return Err(TimingError::TooLarge { name, value, max });
            }
        }
        Ok(())
    }

    /// Time in which `bytes` cross a channel, rounded up to whole nanoseconds.
    #[must_use]
    pub fn transfer_ns(&self, bytes: u32) -> u64 {
        (u64::from(bytes) * 1_000_000_000).div_ceil(self.channel_bytes_per_second)
    }
}

/// What a die did last, to recognise the next plane of the same multi-plane program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    superblock: u32,
    row: u32,
    plane: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Die {
    busy_until: Nanos,
    /// Start of the array's work on `programming`.
    program_start: Nanos,
    programming: Option<Row>,
    busy_ns: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Channel {
    busy_until: Nanos,
    busy_ns: u64,
}

/// Occupancy of the whole array.
#[derive(Debug)]
pub(crate) struct Nand {
    geometry: Geometry,
    timing: Timing,
    page_transfer_ns: u64,
    dies: Vec<Die>,
    channels: Vec<Channel>,
}

impl Nand {
    pub(crate) fn new(geometry: Geometry, timing: Timing) -> Nand {
        Nand {
            geometry,
            timing,
            page_transfer_ns: timing.transfer_ns(geometry.page_bytes),
            dies: vec![Die::default(); geometry.dies() as usize],
            channels: vec![Channel::default(); geometry.channels as usize],
        }
    }

    /// When a program of one whole page that is issued at `now` will be done.
    pub(crate) fn program(&mut self, now: Nanos, superblock: u32, page: u32) -> Nanos {
        let place = self.geometry.place(page);
        let arrived = self.transfer(place.channel, now, now, self.page_transfer_ns);
        let row = Row { superblock, row: place.row, plane: place.plane };
        let die = &mut self.dies[place.die as usize];
        let joins = die.programming.is_some_and(|p| p.superblock == superblock && p.row == place.row)
            && die.programming != Some(row);
        let earliest = if joins { die.program_start } else { die.busy_until };
        let start = arrived.max(earliest);
        let due = start.saturating_add(self.timing.program_ns);
        die.busy_ns += due.saturating_since(die.busy_until.max(start));
        die.program_start = start;
        die.busy_until = die.busy_until.max(due);
        die.programming = Some(row);
        due
    }

    /// When a read of `bytes` bytes of one page that is issued at `now` will be done.
    pub(crate) fn read(&mut self, now: Nanos, page: u32, bytes: u32) -> Nanos {
        let place = self.geometry.place(page);
        let sensed = self.occupy(place.die, now, self.timing.read_ns);
        let transfer_ns = self.timing.transfer_ns(bytes);
        self.transfer(place.channel, now, sensed, transfer_ns)
    }

    /// When an erase of one superblock that is issued at `now` will be done on all dies.
    pub(crate) fn erase(&mut self, now: Nanos) -> Nanos {
        let mut due = now;
        for die in 0..self.geometry.dies() {
            due = due.max(self.occupy(die, now, self.timing.erase_ns));
        }
        due
    }

    /// Nanoseconds that each die has been given work for, by die number.
    pub(crate) fn die_busy_ns(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.dies.iter().map(|die| die.busy_ns)
    }

    /// Nanoseconds that each channel has been given work for, by channel number.
    pub(crate) fn channel_busy_ns(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.channels.iter().map(|channel| channel.busy_ns)
    }

    fn occupy(&mut self, die: u32, now: Nanos, busy_ns: u64) -> Nanos {
        let die = &mut self.dies[die as usize];
        die.busy_until = die.busy_until.max(now).saturating_add(busy_ns);
        die.busy_ns += busy_ns;
        die.programming = None;
        die.busy_until
    }

    /// Moves bytes that are there from `ready` on; returns when they have crossed.
    fn transfer(&mut self, channel: u32, now: Nanos, ready: Nanos, transfer_ns: u64) -> Nanos {
        let channel = &mut self.channels[channel as usize];
        channel.busy_until = channel.busy_until.max(now).saturating_add(transfer_ns);
        channel.busy_ns += transfer_ns;
        channel.busy_until.max(ready.saturating_add(transfer_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        channels: 2,
        dies_per_channel: 2,
        planes_per_die: 2,
        blocks_per_plane: 16,
        pages_per_block: 8,
        page_bytes: 4096,
    };
    const TIMING: Timing =
        Timing { read_ns: 40_000, program_ns: 200_000, erase_ns: 2_000_000, channel_bytes_per_second: 1_000_000_000 };
    const TRANSFER_NS: u64 = 4_096;

    fn nand() -> Nand {
        Nand::new(GEOMETRY, TIMING)
    }

    #[test]
    fn zero_and_absurd_values_are_named() {
        let error = Timing { erase_ns: 0, ..TIMING }.validate().unwrap_err();
        assert!(error.to_string().contains("erase_ns is zero"));
        let error = Timing { read_ns: u64::MAX, ..TIMING }.validate().unwrap_err();
        assert!(error.to_string().contains("read_ns"));
        assert_eq!(TIMING.validate(), Ok(()));
    }

    #[test]
    fn a_single_operation_takes_its_datasheet_time() {
        assert_eq!(nand().program(Nanos(7), 0, 0), Nanos(7 + TRANSFER_NS + 200_000));
        assert_eq!(nand().read(Nanos(7), 0, 1_000), Nanos(7 + 40_000 + 1_000));
        assert_eq!(nand().erase(Nanos(7)), Nanos(7 + 2_000_000));
    }

    #[test]
    fn planes_share_the_array_and_dies_work_side_by_side() {
        let mut nand = nand();
        // Pages 0 and 2 are the two planes of die 0; page 4 is the next die of the channel.
        assert_eq!(nand.program(Nanos(0), 0, 0), Nanos(TRANSFER_NS + 200_000));
        assert_eq!(nand.program(Nanos(0), 0, 2), Nanos(2 * TRANSFER_NS + 200_000));
        assert_eq!(nand.program(Nanos(0), 0, 4), Nanos(3 * TRANSFER_NS + 200_000));
        // The next row of die 0 waits for the array, not for the channel.
        assert_eq!(nand.program(Nanos(0), 0, 8), Nanos(2 * TRANSFER_NS + 400_000));
        // The die was busy from the first page's arrival, without a gap.
        assert_eq!(nand.die_busy_ns().next(), Some(TRANSFER_NS + 400_000));
    }

    #[test]
    fn the_same_plane_twice_is_not_a_multi_plane_program() {
        let mut nand = nand();
        let first = nand.program(Nanos(0), 0, 0);
        assert_eq!(nand.program(Nanos(0), 1, 0), first.saturating_add(200_000));
    }

    #[test]
    fn a_read_waits_for_the_program_before_it_on_its_die_alone() {
        let mut nand = nand();
        let programmed = nand.program(Nanos(0), 0, 0);
        assert_eq!(nand.read(Nanos(0), 0, 4096), programmed.saturating_add(40_000 + TRANSFER_NS));
        // Another die of the same channel is not held up by the waiting transfer.
        assert!(nand.read(Nanos(0), 4, 4096) < Nanos(60_000));
    }

    #[test]
    fn sustained_programs_run_at_the_rate_of_the_slower_of_dies_and_channels() {
        for (program_ns, bound_ns) in [(200_000, 200_000), (1_000, 4 * TRANSFER_NS)] {
            let mut nand = Nand::new(GEOMETRY, Timing { program_ns, ..TIMING });
            let mut last = Nanos::ZERO;
            for superblock in 0..50 {
                for page in 0..GEOMETRY.pages_per_superblock() {
                    last = last.max(nand.program(Nanos::ZERO, superblock, page));
                }
            }
            // One row (all planes of all dies) per bound, and a margin of 5% for joins and the ends.
            let analytic = 50 * u64::from(GEOMETRY.pages_per_block) * bound_ns;
            assert!(last.0 >= analytic && last.0 <= analytic + analytic / 20, "{} against {analytic}", last.0);
        }
    }
}
