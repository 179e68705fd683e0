//! An FTL on a modelled array, with the owner's loop around them.

use std::collections::BTreeMap;

use super::nand_array::NandArray;
use super::rng::Rng;
use crate::*;

/// A small device: two channels, 512 KiB superblocks.
pub const GEOMETRY: Geometry = Geometry {
    channels: 2,
    dies_per_channel: 1,
    planes_per_die: 2,
    blocks_per_plane: 16,
    pages_per_block: 8,
    page_bytes: 4096,
};

pub const TIMING: Timing =
    Timing { read_ns: 40_000, program_ns: 200_000, erase_ns: 2_000_000, channel_bytes_per_second: 800_000_000 };

pub const PARAMS: FtlParams = FtlParams {
    over_provisioning_permille: 70,
    gc_free_superblocks_low: 3,
    gc_free_superblocks_min: 1,
    with_data: true,
    thin: false,
};

/// What a block reads from: the extent, the block's index in it, and the payload.
pub type BlockRead = (Extent, u16, Result<Box<[u8]>, MediaError>);

/// FTL, array and clock.
pub struct Bench {
    pub ftl: Ftl,
    pub array: NandArray,
    pub now: Nanos,
    pub reads: BTreeMap<ReadId, Result<Box<[u8]>, MediaError>>,
    pub syncs: BTreeMap<SyncId, Result<(), MediaError>>,
    pub events: Vec<FtlEvent>,
    /// Whether the array carries out operations in any order.
    pub shuffle: Option<Rng>,
    /// Says which operations fail instead of going to the array.
    pub fails: Box<dyn FnMut(&MediaOpKind) -> bool>,
}

impl Bench {
    pub fn new(geometry: Geometry, params: FtlParams, logical_blocks: u64) -> Bench {
        let ftl = Ftl::new(geometry, TIMING, params, logical_blocks).unwrap();
        Bench::over(ftl, NandArray::new(geometry, 0xff))
    }

    pub fn over(ftl: Ftl, array: NandArray) -> Bench {
        Bench {
            ftl,
            array,
            now: Nanos::ZERO,
            reads: BTreeMap::new(),
            syncs: BTreeMap::new(),
            events: Vec::new(),
            shuffle: None,
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
        if let Some((id, result)) = self.array.carry_out(self.shuffle.as_mut()) {
            self.ftl.media_done(self.now, id, result);
        } else {
            let Some(at) = self.ftl.next_event() else { return false };
            self.now = self.now.max(at);
        }
        self.poll();
        true
    }

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

    pub fn settle(&mut self) {
        while self.step() {}
    }

    /// Appends, waiting as long as the FTL says to.
    pub fn append(&mut self, extent: &Extent, payload: &[u8]) -> Result<AppendId, Backpressure> {
        loop {
            match self.ftl.append(self.now, extent, Some(payload)) {
                Err(Backpressure::Busy) => assert!(self.step(), "busy, and nothing will ever change it"),
                other => return other,
            }
        }
    }

    pub fn trim(&mut self, slba: Lba, blocks: u32, sequence: u64) -> Result<AppendId, Backpressure> {
        loop {
            match self.ftl.trim(self.now, slba, blocks, sequence) {
                Err(Backpressure::Busy) => assert!(self.step(), "busy, and nothing will ever change it"),
                other => return other,
            }
        }
    }

    /// Reads the payload of the extent that a block reads from; `None` when it is unmapped.
    pub fn read_block(&mut self, block: u64) -> Option<BlockRead> {
        let mut pieces = Vec::new();
        self.ftl.pieces(Lba(block), 1, &mut pieces);
        let PieceKind::Mapped { extent, location, first } = pieces[0].kind else { return None };
        let id = self.ftl.read(self.now, location, 0..extent.stored_bytes).unwrap();
        loop {
            if let Some(result) = self.reads.remove(&id) {
                return Some((extent, first, result));
            }
            assert!(self.step(), "the read never ends");
        }
    }

    /// Closes the page, waits for everything, syncs.
    pub fn flush(&mut self) {
        let last = self.ftl.last_append();
        self.ftl.close_page(self.now);
        while self.ftl.durable_through() < last {
            assert!(self.step(), "the last append never becomes durable");
        }
        let id = self.ftl.sync(self.now);
        while !self.syncs.contains_key(&id) {
            assert!(self.step(), "the sync never ends");
        }
        self.syncs.remove(&id).unwrap().unwrap();
    }
}

/// An extent whose payload follows from its sequence.
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
