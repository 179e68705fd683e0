//! A volume in memory, for tests and figures. It does what it is asked at once, unless it is told to be late: then it
//! ends requests in an order that a seed draws, from a thread of its own.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use super::volume::{About, BLOCK_BYTES, Ended, Export, Extent, Operation, Outcome, Volume, VolumeError};

/// A namespace in memory, which any number of volumes are views of.
pub struct Disk {
    blocks: u64,
    pub bytes: RwLock<Vec<u8>>,
    /// Which blocks take space.
    allocated: RwLock<Vec<bool>>,
    /// A block that cannot be read or written.
    pub broken: Option<u64>,
    pub is_read_only: bool,
    pub flushes: AtomicU64,
    pub fua_writes: AtomicU64,
}

impl Disk {
    pub fn new(blocks: u64) -> Disk {
        Disk {
            blocks,
            bytes: RwLock::new(vec![0; blocks as usize * BLOCK_BYTES]),
            allocated: RwLock::new(vec![false; blocks as usize]),
            broken: None,
            is_read_only: false,
            flushes: AtomicU64::new(0),
            fua_writes: AtomicU64::new(0),
        }
    }

    pub fn apply(&self, operation: Operation) -> Result<Outcome, VolumeError> {
        let (block, blocks) = match &operation {
            Operation::Read { block, buffer } => (*block, (buffer.len() / BLOCK_BYTES) as u64),
            Operation::Write { block, data, .. } => (*block, (data.len() / BLOCK_BYTES) as u64),
            Operation::Flush => (0, 0),
            Operation::Deallocate { block, blocks }
            | Operation::WriteZeroes { block, blocks, .. }
            | Operation::Allocation { block, blocks } => (*block, *blocks),
        };
        if block + blocks > self.blocks {
            return Err(VolumeError::OutOfRange);
        }
        if self.broken.is_some_and(|broken| (block..block + blocks).contains(&broken)) {
            return Err(VolumeError::Media);
        }
        let range = block as usize * BLOCK_BYTES..(block + blocks) as usize * BLOCK_BYTES;
        let entries = block as usize..(block + blocks) as usize;
        match operation {
            Operation::Read { mut buffer, .. } => {
                buffer.copy_from_slice(&self.bytes.read().unwrap()[range]);
                let is_hole = self.allocated.read().unwrap()[entries].iter().all(|is_allocated| !is_allocated);
                return Ok(Outcome::Buffer { buffer, is_hole });
            }
            Operation::Allocation { .. } => {
                let extents = self.allocated.read().unwrap()[entries]
                    .chunk_by(|one, other| one == other)
                    .map(|alike| Extent { blocks: alike.len() as u64, is_hole: !alike[0] })
                    .collect();
                return Ok(Outcome::Extents(extents));
            }
            Operation::Flush => {
                self.flushes.fetch_add(1, Ordering::Relaxed);
            }
            _ if self.is_read_only => return Err(VolumeError::WriteProtected),
            Operation::Write { data, fua, .. } => {
                self.bytes.write().unwrap()[range].copy_from_slice(&data);
                self.allocated.write().unwrap()[entries].fill(true);
                self.fua_writes.fetch_add(u64::from(fua), Ordering::Relaxed);
                return Ok(Outcome::Buffer { buffer: data, is_hole: false });
            }
            Operation::Deallocate { .. } => {
                self.bytes.write().unwrap()[range].fill(0);
                self.allocated.write().unwrap()[entries].fill(false);
            }
            Operation::WriteZeroes { may_deallocate, fua, .. } => {
                self.bytes.write().unwrap()[range].fill(0);
                self.allocated.write().unwrap()[entries].fill(!may_deallocate);
                self.fua_writes.fetch_add(u64::from(fua), Ordering::Relaxed);
            }
        }
        Ok(Outcome::Done)
    }
}

/// How much a volume that is late takes at a time.
const ROOM: usize = 24;

/// A volume on a disk.
struct View {
    disk: Arc<Disk>,
    transfer_blocks_max: u32,
    pace: Pace,
    /// Rung when something has ended later.
    event: std::io::PipeReader,
    bell: std::io::PipeWriter,
}

/// When a volume does what it is asked.
enum Pace {
    /// At once; this has ended.
    Prompt(Vec<Ended>),
    /// Later, in another order, some at a time.
    Late(Arc<Mutex<Pile>>),
}

#[derive(Default)]
struct Pile {
    taken: Vec<(u64, Operation)>,
    ended: Vec<Ended>,
    draws: u64,
    has_rung: bool,
}

/// Does one of what was taken, in a thread that comes late.
fn do_one(disk: &Disk, shared: &Mutex<Pile>, mut bell: &std::io::PipeWriter) {
    use std::io::Write;
    let (token, operation) = {
        let mut pile = shared.lock().unwrap();
        pile.draws = pile.draws.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let drawn = (pile.draws >> 33) as usize % pile.taken.len();
        pile.taken.swap_remove(drawn)
    };
    let outcome = disk.apply(operation);
    let mut pile = shared.lock().unwrap();
    pile.ended.push(Ended { token, outcome });
    if !std::mem::replace(&mut pile.has_rung, true) {
        bell.write_all(&[1]).unwrap();
    }
}

impl Volume for View {
    fn blocks(&self) -> u64 {
        self.disk.blocks
    }

    fn is_read_only(&self) -> bool {
        self.disk.is_read_only
    }

    fn about(&self) -> About {
        About { model: "Memory".to_owned(), nguid: *b"memory of a test", has_volatile_cache: true }
    }

    fn transfer_blocks_max(&self) -> u32 {
        self.transfer_blocks_max
    }

    fn submit(&mut self, token: u64, operation: Operation) -> Result<(), Operation> {
        let shared = match &mut self.pace {
            Pace::Prompt(ended) => {
                ended.push(Ended { token, outcome: self.disk.apply(operation) });
                return Ok(());
            }
            Pace::Late(shared) => shared,
        };
        let mut pile = shared.lock().unwrap();
        if pile.taken.len() >= ROOM {
            return Err(operation);
        }
        pile.taken.push((token, operation));
        drop(pile);
        let (disk, shared, bell) = (Arc::clone(&self.disk), Arc::clone(shared), self.bell.try_clone().unwrap());
        std::thread::spawn(move || do_one(&disk, &shared, &bell));
        Ok(())
    }

    fn reap(&mut self, ended: &mut Vec<Ended>) {
        match &mut self.pace {
            Pace::Prompt(own) => ended.append(own),
            Pace::Late(shared) => ended.append(&mut shared.lock().unwrap().ended),
        }
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn arm(&mut self) -> bool {
        use std::io::Read;
        let shared = match &self.pace {
            Pace::Prompt(ended) => return ended.is_empty(),
            Pace::Late(shared) => shared,
        };
        let mut pile = shared.lock().unwrap();
        if std::mem::take(&mut pile.has_rung) {
            self.event.read_exact(&mut [0]).unwrap();
        }
        pile.ended.is_empty()
    }
}

/// A disk under a name.
pub struct MemoryExport {
    pub name: String,
    pub disk: Arc<Disk>,
    pub transfer_blocks_max: u32,
    /// The seed of a volume that is late.
    pub late: Option<u64>,
}

impl MemoryExport {
    pub fn new(name: &str, disk: &Arc<Disk>) -> MemoryExport {
        MemoryExport { name: name.to_owned(), disk: Arc::clone(disk), transfer_blocks_max: 32, late: None }
    }
}

impl Export for MemoryExport {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self) -> Result<Box<dyn Volume>, String> {
        let (event, bell) = std::io::pipe().map_err(|error| error.to_string())?;
        let pace = match self.late {
            None => Pace::Prompt(Vec::new()),
            Some(draws) => Pace::Late(Arc::new(Mutex::new(Pile { draws, ..Pile::default() }))),
        };
        let (disk, transfer_blocks_max) = (Arc::clone(&self.disk), self.transfer_blocks_max);
        Ok(Box::new(View { disk, transfer_blocks_max, pace, event, bell }))
    }
}
