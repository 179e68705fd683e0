//! An FTL on a modelled array, with the owner's loop around them.

use std::collections::BTreeMap;

use super::NandArray;
use crate::rng::Rng;
use crate::{
    AppendId, BLOCK_BYTES, Backpressure, Extent, ExtentKind, Ftl, FtlEvent, Lba, MediaError, MediaOpKind, MediaResult,
    Nanos, PieceKind, ReadId, SyncId,
};

/// What a block reads from: the extent, the block's index in it, and the payload.
pub type BlockRead = (Extent, u16, Result<Box<[u8]>, MediaError>);

/// FTL, array and clock.
pub struct Bench {
    /// The FTL.
    pub ftl: Ftl,
    /// Its media.
    pub array: NandArray,
    /// The time.
    pub now: Nanos,
    /// Reads that ended and were not looked at.
    pub reads: BTreeMap<ReadId, Result<Box<[u8]>, MediaError>>,
    /// Syncs that ended and were not looked at.
    pub syncs: BTreeMap<SyncId, Result<(), MediaError>>,
    /// Everything else that the FTL reported.
    pub events: Vec<FtlEvent>,
    /// Whether the array carries out operations in any order.
    pub in_any_order: bool,
    /// Says which operations fail instead of going to the array.
    pub fails: Box<dyn FnMut(&MediaOpKind) -> bool>,
}

impl Bench {
    /// An FTL on an array that was made for it.
    #[must_use]
    pub fn over(ftl: Ftl, array: NandArray) -> Bench {
        Bench {
            ftl,
            array,
            now: Nanos::ZERO,
            reads: BTreeMap::new(),
            syncs: BTreeMap::new(),
            events: Vec::new(),
            in_any_order: false,
            fails: Box::new(|_| false),
        }
    }

    /// Gives new operations to the array.
    pub fn issue(&mut self) {
        while let Some(op) = self.ftl.next_op() {
            if (self.fails)(&op.kind) {
                self.ftl.media_done(self.now, op.id, MediaResult::Failed(MediaError::Io));
            } else {
                self.array.issue(op);
            }
        }
    }

    /// One event: an operation is carried out and answered, or time passes to the next due time.
    /// False when nothing is left to happen.
    pub fn step(&mut self) -> bool {
        self.issue();
        if let Some((id, result)) = self.array.carry_out(self.in_any_order) {
            self.ftl.media_done(self.now, id, result);
        } else {
            let Some(at) = self.ftl.next_event() else { return false };
            self.now = self.now.max(at);
        }
        self.poll();
        true
    }

    /// Lets everything that is over take effect.
    ///
    /// # Panics
    /// When a read or a sync ends twice.
    pub fn poll(&mut self) {
        let mut events = Vec::new();
        self.ftl.poll(self.now, &mut events);
        for event in events {
            match event {
                FtlEvent::ReadDone { id, result } => assert!(self.reads.insert(id, result).is_none()),
                FtlEvent::SyncDone { id, result } => assert!(self.syncs.insert(id, result).is_none()),
                other => self.events.push(other),
            }
        }
        self.issue();
    }

    /// Goes on until nothing is left to happen.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    /// Appends, waiting as long as the FTL says to.
    ///
    /// # Errors
    /// As the FTL's append.
    ///
    /// # Panics
    /// When the FTL is busy and nothing will ever change it.
    pub fn append(&mut self, extent: &Extent, payload: &[u8]) -> Result<AppendId, Backpressure> {
        loop {
            match self.ftl.append(self.now, extent, Some(payload)) {
                Err(Backpressure::Busy) => assert!(self.step(), "busy, and nothing will ever change it"),
                other => return other,
            }
        }
    }

    /// Trims, waiting as long as the FTL says to.
    ///
    /// # Errors
    /// As the FTL's trim.
    ///
    /// # Panics
    /// When the FTL is busy and nothing will ever change it.
    pub fn trim(&mut self, slba: Lba, blocks: u32, sequence: u64) -> Result<AppendId, Backpressure> {
        loop {
            match self.ftl.trim(self.now, slba, blocks, sequence) {
                Err(Backpressure::Busy) => assert!(self.step(), "busy, and nothing will ever change it"),
                other => return other,
            }
        }
    }

    /// Reads the payload of the extent that a block reads from; `None` when it is unmapped.
    ///
    /// # Panics
    /// When the read never ends.
    pub fn read_block(&mut self, block: u64) -> Option<BlockRead> {
        let mut pieces = Vec::new();
        self.ftl.pieces(Lba(block), 1, &mut pieces);
        let PieceKind::Mapped { extent, location, first } = pieces[0].kind else { return None };
        let id = self.ftl.read(self.now, location, 0..extent.stored_bytes).expect("the location is fresh");
        loop {
            if let Some(result) = self.reads.remove(&id) {
                return Some((extent, first, result));
            }
            assert!(self.step(), "the read never ends");
        }
    }

    /// Closes the page, waits for everything, syncs.
    ///
    /// # Errors
    /// The media failed.
    ///
    /// # Panics
    /// When the flush never ends though the media works.
    pub fn flush(&mut self) -> Result<(), MediaError> {
        let last = self.ftl.last_append();
        self.ftl.close_page(self.now);
        while self.ftl.durable_through() < last {
            if let Some(error) = self.ftl.read_only() {
                return Err(error);
            }
            assert!(self.step(), "the last append never becomes durable");
        }
        let id = self.ftl.sync(self.now);
        loop {
            if let Some(result) = self.syncs.remove(&id) {
                return result;
            }
            assert!(self.step(), "the sync never ends");
        }
    }
}

/// An extent whose payload follows from its sequence.
#[must_use]
pub fn extent(slba: u64, blocks: u16, stored_bytes: u32, sequence: u64) -> (Extent, Vec<u8>) {
    let mut rng = Rng::new(sequence);
    let mut payload: Vec<u8> = Vec::with_capacity(stored_bytes as usize + 8);
    while payload.len() < stored_bytes as usize {
        payload.extend(rng.next().to_le_bytes());
    }
    payload.truncate(stored_bytes as usize);
    let extent = Extent {
        slba: Lba(slba),
        blocks,
        raw_bytes: u32::from(blocks) * BLOCK_BYTES,
        stored_bytes,
        tag: sequence as u32 ^ 0xa5,
        checksum: crc32c::crc32c(&payload),
        sequence,
        kind: ExtentKind::Data,
    };
    (extent, payload)
}
