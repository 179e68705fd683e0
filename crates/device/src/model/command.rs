//! What the model is asked, and what it answers.

use osier_flash::Nanos;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Reads blocks.
    Read,
    /// Writes blocks.
    Write,
    /// Says that blocks are not needed any more.
    Trim,
    /// Waits until what was written before is persistent; of no bytes.
    Flush,
    /// Loads from memory.
    Load,
    /// Stores to memory.
    Store,
}

impl Op {
    /// All of them, in the order in which they are counted.
    pub const ALL: [Op; 6] = [Op::Read, Op::Write, Op::Trim, Op::Flush, Op::Load, Op::Store];

    /// The name in workload files and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Trim => "trim",
            Op::Flush => "flush",
            Op::Load => "load",
            Op::Store => "store",
        }
    }
}

/// One command. Those of blocks go by NVMe, loads and stores by CXL.mem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The caller's name for it; comes back with its end.
    pub id: u64,
    /// What it does.
    pub op: Op,
    /// Its first byte.
    pub address: u64,
    /// How many bytes; zero for a flush alone.
    pub bytes: u32,
    /// Whose it is.
    pub tenant: u16,
}

/// What the pages of a command met in the DRAM cache; of several pages, the slowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Met {
    /// It went past the cache, or has no pages.
    Nothing,
    /// All pages were resident, or the write log had the lines.
    Hit,
    /// A page was on its way already.
    Merged,
    /// A page had to come from flash, or a frame had to become free.
    Miss,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// As it was asked for.
    Ok,
    /// A page has more errors than retries and code correct: NVMe's Unrecovered Read Error (02h/81h).
    Uncorrectable,
    /// The flash is worn out: NVMe's Attempted Write to Read Only Range (01h/82h).
    ReadOnly,
    /// It reaches beyond the capacity: NVMe's LBA Out of Range (00h/80h).
    OutOfRange,
}

/// Where the time of a command went, in nanoseconds. The fields add up to its latency exactly: of things that went on
/// at the same time, the one that ended last counts, and each nanosecond once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Causes {
    /// Crossing the link, and waiting for it.
    pub link: u64,
    /// Work of the controller for each command, and waiting for the controller.
    pub controller: u64,
    /// Access to the device's DRAM.
    pub dram: u64,
    /// Waiting for a frame: a dirty page had to leave first, or all frames of the set were busy.
    pub frame: u64,
    /// Waiting for the die behind operations of the host.
    pub die: u64,
    /// Waiting for the die or for free space because of garbage collection.
    pub collection: u64,
    /// Waiting for the channel.
    pub channel: u64,
    /// Sensing a page.
    pub sense: u64,
    /// Sensing it again because of bit errors.
    pub retry: u64,
    /// Crossing the channel.
    pub transfer: u64,
    /// Waiting for a page of the map that was not cached.
    pub map: u64,
    /// Waiting for programs: a full write queue, or a flush.
    pub program: u64,
}

impl Causes {
    /// Names of the fields in their order, as in reports.
    pub const NAMES: [&str; 12] = [
        "link",
        "controller",
        "dram",
        "frame",
        "die",
        "collection",
        "channel",
        "sense",
        "retry",
        "transfer",
        "map",
        "program",
    ];

    /// The fields in the order of [`Causes::NAMES`].
    #[must_use]
    pub fn parts(&self) -> [u64; 12] {
        let Causes { link, controller, dram, frame, die, collection, channel, sense, retry, transfer, map, program } =
            *self;
        [link, controller, dram, frame, die, collection, channel, sense, retry, transfer, map, program]
    }

    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.parts().iter().sum()
    }
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Its name.
    pub id: u64,
    /// When it came.
    pub arrived: Nanos,
    /// When its completion is with the host: `arrived` and the sum of `causes`.
    pub at: Nanos,
    /// How it ended.
    pub outcome: Outcome,
    /// What it met in the cache.
    pub met: Met,
    /// Where its time went.
    pub causes: Causes,
}
