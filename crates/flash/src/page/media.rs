//! What lies on the media, slot by slot.
//!
//! A slot is programmed whole, and a unit's metadata is programmed with it, as in the out-of-band area of a
//! real page: whose unit it is, and the sequence number of the write. Runs that model time and space only
//! keep nothing ([`NoMedia`]).

/// One unit of 4 KiB with its metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Whose it is; pages of the map come after the logical units.
    pub lpn: u32,
    /// Sequence of the write; a relocated copy keeps it.
    pub sequence: u64,
    /// What was written: stands for the bytes.
    pub payload: u64,
    /// The bytes cannot be corrected: here, or before they were copied here.
    pub lost: bool,
}

/// A trim that is on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimRecord {
    /// First unit.
    pub lpn: u32,
    /// Units.
    pub count: u32,
    /// Its place among the writes.
    pub sequence: u64,
}

/// A block that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BadBlock {
    /// Superblock that it was a part of.
    pub superblock: u32,
    /// Plane that it lies in, counted through all dies.
    pub plane: u32,
    /// Spare block of that plane that stands in; without one the superblock is used no more.
    pub spare: Option<u32>,
}

/// The last record of a checkpoint: without it there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Root {
    /// Highest sequence when the checkpoint began.
    pub sequence: u64,
    /// Superblocks of this life and later were opened since it began.
    pub life: u64,
    /// Superblocks that were open, with their life, and the first unit that was not taken.
    pub open: Vec<(u32, u64, u32)>,
    /// Stripes that were dead: nothing was programmed there since.
    pub dead: Vec<u32>,
}

/// What one slot holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Units of the log; those that were never filled are missing at the end.
    Data {
        /// The stream that wrote them.
        stream: u32,
        /// Erases of the superblock before.
        erases: u32,
        /// The units, from the slot's first.
        units: Vec<Unit>,
    },
    /// A part of the map.
    Map {
        /// Number of the checkpoint.
        checkpoint: u64,
        /// Number of the part.
        part: u32,
        /// Physical units by logical unit.
        entries: Vec<u32>,
    },
    /// Trims, and blocks that went bad.
    Journal {
        /// The trims.
        trims: Vec<TrimRecord>,
        /// The blocks, in the order in which they failed.
        bad: Vec<BadBlock>,
    },
    /// The end of a checkpoint.
    Root {
        /// Number of the checkpoint.
        checkpoint: u64,
        /// When it began.
        root: Root,
    },
}

/// What a slot reads as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotState {
    /// Never programmed since its erase.
    Erased,
    /// Unreadable: a program or an erase was cut, or it rotted.
    Torn,
    /// Its die, or its plane, does not answer.
    Dead,
    /// Whole.
    Whole {
        /// Life of its superblock.
        life: u64,
        /// What it holds.
        record: Record,
    },
}

/// The media. Slots are numbered through the whole array: `superblock * slots_per_superblock + slot`.
pub trait PageMedia {
    /// Whether anything is kept; if not, nothing is given to it.
    const KEEPS: bool;

    /// A slot was programmed.
    fn program(&mut self, slot: u32, life: u64, record: Record);

    /// The slots of one stripe of a superblock were erased: every `stripes`-th of `count`, from `first`.
    fn erase(&mut self, first: u32, stripes: u32, count: u32);

    /// What a slot reads as. A whole slot is read by recovery and collection.
    fn slot(&self, slot: u32) -> SlotState;

    /// A unit of a slot, if it can be read: what the host asks for, so that nobody copies the others.
    fn unit(&self, slot: u32, index: usize) -> Option<Unit> {
        match self.slot(slot) {
            SlotState::Whole { record: Record::Data { units, .. }, .. } => units.get(index).copied(),
            _ => None,
        }
    }

    /// Power was lost while a slot was programmed (as [`PageMedia::program`]).
    fn cut_program(&mut self, slot: u32, life: u64, record: Option<Record>);

    /// Power was lost while slots were erased (as [`PageMedia::erase`]).
    fn cut_erase(&mut self, first: u32, stripes: u32, count: u32);

    /// The dies or planes of a stripe stop answering: every `stripes`-th slot is [`SlotState::Dead`].
    fn lose_stripe(&mut self, stripe: u32);

    /// From now on a spare block stands in for one that failed: its slots have the numbers of those. Which blocks
    /// stand in is forgotten with the power.
    ///
    /// As these that follow, for media that model blocks; others find a slot by its number whatever stands there.
    fn stand_in(&mut self, _bad: BadBlock) {}

    /// A block failed, and a spare one stands in from now on ([`PageMedia::stand_in`]). It takes over what the slots
    /// hold with the next program or erase.
    fn replace(&mut self, _bad: BadBlock) {}

    /// The superblock in whose place a spare block of a plane was programmed, as its pages say.
    fn stands_in(&self, _plane: u32, _spare: u32) -> Option<u32> {
        None
    }

    /// So many blocks of each plane are marked as bad from the factory. They have no numbers.
    fn set_factory_bad(&mut self, _by_plane: Vec<u32>) {}

    /// What [`PageMedia::set_factory_bad`] set.
    fn factory_bad(&self) -> &[u32] {
        &[]
    }

    /// The power is off.
    fn power_lost(&mut self) {}
}

/// Media that keeps nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMedia;

impl PageMedia for NoMedia {
    const KEEPS: bool = false;

    fn program(&mut self, _: u32, _: u64, _: Record) {}

    fn erase(&mut self, _: u32, _: u32, _: u32) {}

    fn slot(&self, _: u32) -> SlotState {
        SlotState::Erased
    }

    fn cut_program(&mut self, _: u32, _: u64, _: Option<Record>) {}

    fn cut_erase(&mut self, _: u32, _: u32, _: u32) {}

    fn lose_stripe(&mut self, _: u32) {}
}
