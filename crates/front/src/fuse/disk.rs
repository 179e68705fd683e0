//! A device's queues as the blocks of a file system.
//!
//! Each thread uses a queue of its own as long as there are enough, so no two wait for each other. When the device's
//! host domain dies, the queue attaches to the next one and sends again what had not ended; only a device that stays
//! away is an error.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use osier_client::{Ask, DEALLOCATE_BLOCKS_MAX, NamespaceInfo, Queue, QueueError, Slot, ZEROES_BLOCKS_MAX};
use osier_device::Status;
use osier_fs::{BLOCK_BYTES, Blocks};

/// Commands of a queue.
const DEPTH: u16 = 32;
/// Bytes of each.
const TRANSFER_BYTES: u32 = 128 << 10;
/// How long a device may stay away.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to sleep before looking whether the device is still there.
const LOOK: Duration = Duration::from_secs(5);

/// Why there is no disk.
pub type DiskError = QueueError;

/// A device's blocks.
pub struct DeviceDisk {
    /// A queue whose device did not come back is gone for good.
    lanes: Vec<Mutex<Option<Queue>>>,
    info: NamespaceInfo,
}

impl DeviceDisk {
    /// The device that is served at a socket, by so many queues.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn attach(socket: &Path, lanes: usize) -> Result<DeviceDisk, DiskError> {
        let first = Queue::attach_as(socket, DEPTH, TRANSFER_BYTES, "mount")?;
        let info = first.namespace().clone();
        let mut queues = vec![Mutex::new(Some(first))];
        for _ in 1..lanes {
            queues.push(Mutex::new(Some(Queue::attach_as(socket, DEPTH, TRANSFER_BYTES, "mount")?)));
        }
        Ok(DeviceDisk { lanes: queues, info })
    }

    /// Whether the device takes no writes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.info.is_read_only
    }

    /// The calling thread's queue, or another that nobody uses.
    fn lane(&self) -> MutexGuard<'_, Option<Queue>> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        let mine = MINE.get();
        for index in 0..self.lanes.len() {
            match self.lanes[(mine + index) % self.lanes.len()].try_lock() {
                Ok(lane) => return lane,
                Err(TryLockError::Poisoned(lane)) => return lane.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        self.lanes[mine % self.lanes.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has all of these done, as many at a time as the queue takes.
    fn run<'a>(&self, asks: &mut dyn Iterator<Item = Request<'a>>) -> io::Result<()> {
        let mut lane = self.lane();
        let queue = lane.as_mut().ok_or_else(gone)?;
        // What is read into when a place's command ends.
        let mut into: [Option<&'a mut [u8]>; DEPTH as usize] = [const { None }; DEPTH as usize];
        let (mut outcome, mut count, mut is_all) = (Ok(()), 0, false);
        loop {
            while !is_all && let Some(slot) = queue.take() {
                let Some(request) = asks.next() else {
                    queue.release(slot);
                    is_all = true;
                    break;
                };
                if let Some(from) = request.from {
                    queue.buffer(slot).write(0, from);
                }
                queue.submit(slot, &request.ask);
                into[slot.index()] = request.into;
                count += 1;
            }
            if count == 0 {
                return outcome;
            }
            queue.ring();
            let Some(ended) = wait(queue) else {
                *lane = None;
                return Err(gone());
            };
            let mut next = Some(ended);
            while let Some((slot, status)) = next {
                finish(queue, slot, status, into[slot.index()].take(), &mut outcome);
                count -= 1;
                next = queue.reap();
            }
        }
    }
}

/// What a thread wants, and its bytes.
struct Request<'a> {
    ask: Ask,
    from: Option<&'a [u8]>,
    into: Option<&'a mut [u8]>,
}

fn finish(queue: &mut Queue, slot: Slot, status: Status, into: Option<&mut [u8]>, outcome: &mut io::Result<()>) {
    if !status.is_success() {
        *outcome = Err(error_of(status));
    } else if let Some(into) = into {
        queue.buffer(slot).read(0, into);
    }
    queue.release(slot);
}

/// Something that has ended; nothing when the device does not come back.
fn wait(queue: &mut Queue) -> Option<(Slot, Status)> {
    loop {
        if let Some(ended) = queue.wait(LOOK) {
            return Some(ended);
        }
        if queue.has_lost_device()
            && let Err(error) = queue.recover(PATIENCE)
        {
            tracing::error!(%error, "the device does not come back: the file system fails");
            return None;
        }
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the device has gone")
}

fn error_of(status: Status) -> io::Error {
    let kind = match status {
        Status::LBA_OUT_OF_RANGE => io::ErrorKind::InvalidInput,
        Status::CAPACITY_EXCEEDED => io::ErrorKind::StorageFull,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("the device says: {status}"))
}

/// A range in parts of so many blocks.
fn parts(block: u64, blocks: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..blocks.div_ceil(most)).map(move |part| (block + part * most, most.min(blocks - part * most)))
}

fn command(ask: Ask) -> Request<'static> {
    Request { ask, from: None, into: None }
}

fn writes<'a>(block: u64, bytes: &'a [u8]) -> impl Iterator<Item = Request<'a>> {
    const STEP: u64 = TRANSFER_BYTES as u64 / BLOCK_BYTES as u64;
    bytes.chunks(TRANSFER_BYTES as usize).zip((block..).step_by(STEP as usize)).map(|(part, block)| Request {
        ask: Ask::Write { block, blocks: (part.len() / BLOCK_BYTES) as u32, fua: false },
        from: Some(part),
        into: None,
    })
}

impl Blocks for DeviceDisk {
    fn blocks(&self) -> u64 {
        self.info.blocks
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        const STEP: usize = TRANSFER_BYTES as usize / BLOCK_BYTES;
        let parts = bytes.chunks_mut(TRANSFER_BYTES as usize).zip((block..).step_by(STEP));
        self.run(&mut parts.map(|(part, block)| Request {
            ask: Ask::Read { block, blocks: (part.len() / BLOCK_BYTES) as u32 },
            from: None,
            into: Some(part),
        }))
    }

    fn write(&self, block: u64, bytes: &[u8]) -> io::Result<()> {
        self.run(&mut writes(block, bytes))
    }

    fn write_all(&self, ranges: &[(u64, &[u8])]) -> io::Result<()> {
        self.run(&mut ranges.iter().flat_map(|(block, bytes)| writes(*block, bytes)))
    }

    fn zero(&self, block: u64, blocks: u64) -> io::Result<()> {
        let ask = |(block, blocks)| command(Ask::WriteZeroes { block, blocks, deallocate: true, fua: false });
        self.run(&mut parts(block, blocks, ZEROES_BLOCKS_MAX).map(ask))
    }

    fn deallocate(&self, block: u64, blocks: u64) -> io::Result<()> {
        let ask = |(block, blocks)| command(Ask::Deallocate { block, blocks });
        self.run(&mut parts(block, blocks, DEALLOCATE_BLOCKS_MAX).map(ask))
    }

    fn flush(&self) -> io::Result<()> {
        // Without a volatile cache what has ended is persistent (NVM Express Base, Identify Controller, VWC).
        if !self.info.has_volatile_cache {
            return Ok(());
        }
        self.run(&mut std::iter::once(command(Ask::Flush)))
    }
}
