//! A device that is served as a volume: each connection has a queue of its own ([`osier_client::Queue`]).
//!
//! When the device's host domain dies the queue attaches to the next one and sends again what had not ended, so clients
//! wait and see no error. Only a device that stays away fails what is under way, and all that comes after it.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use osier_client::{ALLOCATION_BLOCKS_MAX, Ask, Queue, QueueError, Slot};
use osier_device::Status;
use osier_nvme::BlockRange;

use crate::volume::{About, BLOCK_BYTES, Ended, Export, Extent, Operation, Outcome, Volume, VolumeError};

/// Requests of a connection that are under way at the device.
const DEPTH: u16 = 32;
/// Bytes of each.
const TRANSFER_BYTES: u32 = 128 << 10;
/// How long a device may stay away.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it is tried at a time to attach to one that comes back: whoever waits may have to look at its client.
const TRY: Duration = Duration::from_millis(100);
/// How long a client that comes while the device is away waits for it: less than it has to negotiate.
const PATIENCE_OF_NEW: Duration = Duration::from_secs(10);
/// NVM Command Set: the namespace is write protected.
const WRITE_PROTECTED: Status = Status(0x020);

/// Namespace 1 of a device.
pub struct DeviceExport {
    front: &'static str,
    name: String,
    socket: PathBuf,
}

impl DeviceExport {
    /// The device that is served at a socket, under a name for clients; `front` is what the device knows its queues by.
    #[must_use]
    pub fn new(front: &'static str, name: String, socket: PathBuf) -> DeviceExport {
        DeviceExport { front, name, socket }
    }
}

impl Export for DeviceExport {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self) -> Result<Box<dyn Volume>, String> {
        let name = format!("{} {}", self.front, self.name);
        let queue = Queue::attach_as(&self.socket, DEPTH, TRANSFER_BYTES, &name).map_err(|error| error.to_string())?;
        let out = (0..DEPTH).map(|_| None).collect();
        let ended = Vec::new();
        Ok(Box::new(DeviceVolume { queue, out, ended, is_armed: false, lost: None, has_failed: false }))
    }

    fn open_for_client(&self) -> Result<Box<dyn Volume>, String> {
        let until = Instant::now() + PATIENCE_OF_NEW;
        loop {
            match self.open() {
                Err(_) if Instant::now() < until => std::thread::sleep(TRY),
                opened => return opened,
            }
        }
    }
}

/// What is under way at a place of the queue.
enum Pending {
    Read(Vec<u8>),
    Write(Vec<u8>),
    Allocation(BlockRange),
    Other,
}

struct DeviceVolume {
    queue: Queue,
    out: Vec<Option<(u64, Pending)>>,
    /// Ended without the device.
    ended: Vec<Ended>,
    /// Somebody waits for the event: it may have come because the device has gone.
    is_armed: bool,
    /// Since when the device has been away, if it is.
    lost: Option<Instant>,
    has_failed: bool,
}

impl DeviceVolume {
    /// The device does not come back.
    fn fail(&mut self, why: &QueueError) {
        tracing::error!(%why, "a client's requests fail");
        self.has_failed = true;
        let pending = self.out.iter_mut().filter_map(Option::take);
        self.ended.extend(pending.map(|(token, _)| Ended { token, outcome: Err(VolumeError::ShutDown) }));
    }

    fn end(&mut self, slot: Slot, status: Status) -> Option<Ended> {
        let (token, pending) = self.out.get_mut(slot.index())?.take()?;
        let outcome = match pending {
            _ if !status.is_success() => Err(error_of(status)),
            Pending::Read(mut buffer) => {
                self.queue.buffer(slot).read(0, &mut buffer);
                let is_hole = buffer.iter().all(|byte| *byte == 0);
                Ok(Outcome::Buffer { buffer, is_hole })
            }
            Pending::Write(buffer) => Ok(Outcome::Buffer { buffer, is_hole: false }),
            Pending::Allocation(range) => {
                let (allocated, is_cut) = self.queue.allocated(slot);
                Ok(Outcome::Extents(extents(range, &allocated, is_cut)))
            }
            Pending::Other => Ok(Outcome::Done),
        };
        self.queue.release(slot);
        Some(Ended { token, outcome })
    }
}

/// The blocks of a range, by the parts of it that take space; up to the last of them if there are more.
fn extents(range: BlockRange, allocated: &[BlockRange], is_cut: bool) -> Vec<Extent> {
    let (mut at, end) = (range.slba, range.slba + range.blocks);
    let mut extents = Vec::new();
    let mut add = |until: u64, is_hole: bool| {
        let until = until.clamp(at, end);
        if until > at {
            extents.push(Extent { blocks: until - at, is_hole });
            at = until;
        }
    };
    for part in allocated {
        add(part.slba, true);
        add(part.slba.saturating_add(part.blocks), false);
    }
    if !is_cut {
        add(end, true);
    }
    // A device that says nothing has nothing to say of holes.
    if extents.is_empty() {
        extents.push(Extent { blocks: range.blocks, is_hole: false });
    }
    extents
}

fn error_of(status: Status) -> VolumeError {
    match status {
        Status::LBA_OUT_OF_RANGE => VolumeError::OutOfRange,
        Status::CAPACITY_EXCEEDED => VolumeError::CapacityExceeded,
        WRITE_PROTECTED => VolumeError::WriteProtected,
        _ => VolumeError::Media,
    }
}

impl Volume for DeviceVolume {
    fn blocks(&self) -> u64 {
        self.queue.namespace().blocks
    }

    fn is_read_only(&self) -> bool {
        self.queue.namespace().is_read_only
    }

    fn about(&self) -> About {
        let info = self.queue.namespace();
        About {
            model: format!("Osier {}", self.queue.device()),
            nguid: info.nguid,
            has_volatile_cache: info.has_volatile_cache,
        }
    }

    fn transfer_blocks_max(&self) -> u32 {
        TRANSFER_BYTES / BLOCK_BYTES as u32
    }

    fn submit(&mut self, token: u64, operation: Operation) -> Result<(), Operation> {
        if self.has_failed {
            self.ended.push(Ended { token, outcome: Err(VolumeError::ShutDown) });
            return Ok(());
        }
        let Some(slot) = self.queue.take() else { return Err(operation) };
        let (ask, pending) = match operation {
            Operation::Read { block, buffer } => {
                (Ask::Read { block, blocks: (buffer.len() / BLOCK_BYTES) as u32 }, Pending::Read(buffer))
            }
            Operation::Write { block, data, fua } => {
                self.queue.buffer(slot).write(0, &data);
                (Ask::Write { block, blocks: (data.len() / BLOCK_BYTES) as u32, fua }, Pending::Write(data))
            }
            Operation::Deallocate { block, blocks } => (Ask::Deallocate { block, blocks }, Pending::Other),
            Operation::WriteZeroes { block, blocks, may_deallocate, fua } => {
                (Ask::WriteZeroes { block, blocks, deallocate: may_deallocate, fua }, Pending::Other)
            }
            Operation::Flush => (Ask::Flush, Pending::Other),
            Operation::Allocation { block, blocks } => {
                let range = BlockRange { slba: block, blocks: blocks.min(ALLOCATION_BLOCKS_MAX) };
                (Ask::Allocation { block, blocks: range.blocks }, Pending::Allocation(range))
            }
        };
        self.out[slot.index()] = Some((token, pending));
        self.queue.submit(slot, &ask);
        self.queue.ring();
        Ok(())
    }

    fn reap(&mut self, ended: &mut Vec<Ended>) {
        let before = ended.len();
        ended.append(&mut self.ended);
        while let Some((slot, status)) = self.queue.reap() {
            ended.extend(self.end(slot, status));
        }
        let woken_for_nothing = std::mem::take(&mut self.is_armed) && ended.len() == before;
        if woken_for_nothing && self.queue.has_lost_device() {
            self.lost.get_or_insert_with(Instant::now);
        }
        let Some(lost) = self.lost.filter(|_| !self.has_failed) else { return };
        match self.queue.recover(TRY) {
            Ok(()) => self.lost = None,
            Err(error @ QueueError::Refused { .. }) => self.fail(&error),
            Err(error) if lost.elapsed() >= PATIENCE => self.fail(&error),
            Err(_) => {}
        }
        ended.append(&mut self.ended);
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.queue.event()
    }

    fn arm(&mut self) -> bool {
        self.is_armed = true;
        // Nothing says that a device has come back, so nobody may wait for that.
        let is_here = self.lost.is_none() || self.has_failed;
        is_here && self.ended.is_empty() && self.queue.arm()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_the_parts_of_a_range_and_what_lies_between_them() {
        let range = BlockRange { slba: 100, blocks: 50 };
        let parts = |list: &[(u64, u64)]| -> Vec<BlockRange> {
            list.iter().map(|&(slba, blocks)| BlockRange { slba, blocks }).collect()
        };
        let found = |list: &[(u64, u64)], is_cut| -> Vec<(u64, bool)> {
            extents(range, &parts(list), is_cut).iter().map(|extent| (extent.blocks, extent.is_hole)).collect()
        };
        assert_eq!(found(&[], false), [(50, true)]);
        assert_eq!(found(&[(100, 50)], false), [(50, false)]);
        assert_eq!(
            found(&[(110, 5), (115, 5), (140, 10)], false),
            [(10, true), (5, false), (5, false), (20, true), (10, false)]
        );
        assert_eq!(found(&[(110, 5)], true), [(10, true), (5, false)], "of what is behind nothing is known");
        // What a device must not say has no effect outside of the range, and is never taken for a hole.
        assert_eq!(found(&[], true), [(50, false)]);
        assert_eq!(found(&[(0, 120), (140, u64::MAX)], false), [(20, false), (20, true), (10, false)]);
        assert_eq!(found(&[(120, 5), (110, 5)], false), [(20, true), (5, false), (25, true)]);
    }
}
