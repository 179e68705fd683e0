//! Media that hold bytes, with delays, and with what deaths and power cuts do to them.
//!
//! Fault model, within what the flash layer claims to survive: a program that was not answered when
//! the device dies is there, torn (a prefix of it is there) or was never made. When the power goes,
//! the same holds for every program that was answered after the last sync was issued. Erases that
//! were not synced may be undone in the same way. Nothing else changes.

use std::collections::VecDeque;

use osier_flash::{MediaOp, MediaOpKind, MediaResult, Nanos, OpId};

use crate::Rng;

/// One operation under way.
struct UnderWay {
    ready: Nanos,
    op: MediaOp,
}

/// What a range held before an operation that is not synced.
struct Undo {
    address: usize,
    before: Vec<u8>,
}

pub(super) struct Media {
    bytes: Vec<u8>,
    under_way: VecDeque<UnderWay>,
    /// Oldest first.
    unsynced: Vec<Undo>,
    /// How much of `unsynced` each sync under way covers.
    syncs: Vec<(OpId, usize)>,
    rng: Rng,
    /// A planted defect: power cuts take synced programs too.
    pub(super) lies: bool,
}

impl Media {
    pub(super) fn new(bytes: u64, rng: Rng) -> Media {
        let len = usize::try_from(bytes).expect("a small device");
        Media {
            bytes: vec![0; len],
            under_way: VecDeque::new(),
            unsynced: Vec::new(),
            syncs: Vec::new(),
            rng,
            lies: false,
        }
    }

    /// Takes an operation; it will be carried out some time later.
    pub(super) fn begin(&mut self, now: Nanos, op: MediaOp) {
        let delay_ns = if self.rng.one_in(10) { self.rng.below(400_000) } else { self.rng.below(20_000) };
        if matches!(op.kind, MediaOpKind::Sync) {
            self.syncs.push((op.id, self.unsynced.len()));
        }
        self.under_way.push_back(UnderWay { ready: Nanos(now.0 + delay_ns), op });
    }

    /// When the next operation ends.
    pub(super) fn next_ready(&self) -> Option<Nanos> {
        self.under_way.iter().map(|one| one.ready).min()
    }

    /// An operation that has ended by now, not carried out yet.
    pub(super) fn take_ready(&mut self, now: Nanos) -> Option<MediaOp> {
        let index = self.under_way.iter().position(|one| one.ready <= now)?;
        self.under_way.remove(index).map(|one| one.op)
    }

    /// Carries an operation out.
    pub(super) fn carry_out(&mut self, op: &mut MediaOp) -> MediaResult {
        match &mut op.kind {
            MediaOpKind::Read { address, bytes } => {
                let from = at(*address);
                MediaResult::Read(self.bytes[from..from + *bytes as usize].into())
            }
            MediaOpKind::Program { address, data, .. } => {
                let data = data.take().expect("this device keeps data");
                self.overwrite(at(*address), &data);
                MediaResult::Programmed(Some(data))
            }
            MediaOpKind::Erase { address, bytes } => {
                // As a hole in a sparse file, or as flash.
                let fill = vec![if self.rng.one_in(2) { 0 } else { 0xff }; at(*bytes)];
                self.overwrite(at(*address), &fill);
                MediaResult::Erased
            }
            MediaOpKind::Sync => {
                self.synced(op.id);
                MediaResult::Synced
            }
        }
    }

    fn overwrite(&mut self, address: usize, data: &[u8]) {
        let range = address..address + data.len();
        self.unsynced.push(Undo { address, before: self.bytes[range.clone()].to_vec() });
        self.bytes[range].copy_from_slice(data);
    }

    fn synced(&mut self, id: OpId) {
        let index = self.syncs.iter().position(|(sync, _)| *sync == id).expect("a sync that was begun");
        let (_, covered) = self.syncs.remove(index);
        if !self.lies {
            self.unsynced.drain(..covered);
            for (_, other) in &mut self.syncs {
                *other = other.saturating_sub(covered);
            }
        }
    }

    /// The device dies: what is under way ends, tears or never was.
    pub(super) fn device_dies(&mut self) {
        while let Some(UnderWay { mut op, .. }) = self.under_way.pop_front() {
            match (&mut op.kind, self.rng.below(3)) {
                (MediaOpKind::Program { .. } | MediaOpKind::Erase { .. }, 0) => {
                    self.carry_out(&mut op);
                }
                (MediaOpKind::Program { address, data, .. }, 1) => {
                    let data = data.take().expect("this device keeps data");
                    let part = self.rng.between(1, data.len() as u64 - 1) as usize;
                    self.overwrite(at(*address), &data[..part]);
                }
                _ => {}
            }
        }
        self.syncs.clear();
    }

    /// The power goes, after [`Media::device_dies`]: newest first, each operation that was not synced
    /// stays, tears or is undone.
    pub(super) fn power_goes(&mut self) {
        while let Some(Undo { address, before }) = self.unsynced.pop() {
            let keep = match self.rng.below(3) {
                0 => before.len(),
                1 => self.rng.below(before.len() as u64) as usize,
                _ => 0,
            };
            self.bytes[address + keep..address + before.len()].copy_from_slice(&before[keep..]);
        }
    }

    /// Reads for a recovery.
    pub(super) fn read(&self, address: u64, into: &mut [u8]) {
        let from = at(address);
        into.copy_from_slice(&self.bytes[from..from + into.len()]);
    }
}

fn at(value: u64) -> usize {
    usize::try_from(value).expect("a small device")
}
