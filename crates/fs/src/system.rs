//! The file system as a whole: making, mounting, committing.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use redb::Database;
use rustix::io::Errno;

use crate::backend::Backend;
use crate::behind::{Behind, ranges_of};
use crate::blocks::{BLOCK_BYTES, Blocks};
use crate::layout::{BLOCKS_MAX, BLOCKS_MIN, Content, Geometry, probe};
use crate::log::{self, Log, PAIRS_BYTES_MAX};
use crate::record::{COUNTERS, Counters, Inode, LOGGED, S_IFDIR, Time, key, last_number};
use crate::space::{Run, Space};
use crate::state::State;
use crate::store::{self, Layer, Store};

/// The root's number.
pub const ROOT: u64 = 1;
/// Bytes of changes in memory at which whoever made the last one commits.
const ACTIVE_BYTES_MAX: usize = 16 << 20;
/// The store's region holds so many times the bytes of its keys and values: pages are not full, and a transaction
/// writes new ones before it frees the old.
const STORE_FACTOR: u64 = 6;
/// Inodes that there can ever have been: at a million a second none is reached.
const INODES_MAX: u64 = 1 << 62;
/// Records of the log that there can ever have been.
const RECORDS_MAX: u64 = 1 << 62;
/// Locks of files' contents.
const STRIPES: usize = 256;
/// Pairs read in one step of a walk.
pub(crate) const STEP: usize = 1024;

/// Why there is no file system to work with.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Too small or too large.
    #[error("a file system has {BLOCKS_MIN} to {BLOCKS_MAX} blocks of 4096 bytes, and the device has {0}")]
    Size(u64),
    /// The device fails.
    #[error("cannot {what}: {source}")]
    Device {
        /// What was attempted.
        what: &'static str,
        /// What the device says.
        source: io::Error,
    },
    /// There is none.
    #[error("there is no file system on the device")]
    NoFileSystem,
    /// There is one that this program cannot use.
    #[error("the file system on the device cannot be used: {0}")]
    Unusable(String),
}

/// What there is and what is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Blocks of 4096 bytes for data.
    pub blocks: u64,
    /// Of those, free ones.
    pub blocks_free: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes that there is still room for, about.
    pub inodes_free: u64,
}

/// A mounted file system. Every method may be called from any thread.
///
/// What an operation changed is seen by all later ones at once; it is persistent after [`FileSystem::sync`] or
/// [`FileSystem::commit`], in the log or in the store. After a crash the file system is what it was after some
/// operation, and never earlier than what was persistent; the bytes of files that were overwritten in place may be
/// newer.
pub struct FileSystem {
    blocks: Arc<dyn Blocks>,
    /// The same, for data.
    pub(crate) behind: Behind,
    geometry: Geometry,
    state: RwLock<State>,
    /// How often each inode was given to somebody who has not forgotten it.
    pub(crate) held: Mutex<HashMap<u64, u64>>,
    /// Held shared while a file's bytes are read or overwritten, alone while its blocks change. Taken before the state.
    stripes: Box<[RwLock<()>]>,
    /// Held by whoever makes something persistent.
    durable: Mutex<Durable>,
    /// A commit has failed: nothing changes any more.
    has_failed: AtomicBool,
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSystem").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}

/// Where changes become persistent.
struct Durable {
    database: Database,
    log: Log,
}

fn builder() -> redb::Builder {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(64 << 20);
    builder
}

fn device(what: &'static str) -> impl Fn(io::Error) -> MountError {
    move |source| MountError::Device { what, source }
}

fn unusable(why: impl std::fmt::Display) -> MountError {
    MountError::Unusable(why.to_string())
}

impl FileSystem {
    /// Makes an empty file system on all of the blocks, and mounts it. Whatever they held is lost. The root belongs to
    /// that user and group.
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn format(
        blocks: Arc<dyn Blocks>,
        identity: [u8; 16],
        (uid, gid): (u32, u32),
        now: Time,
    ) -> Result<FileSystem, MountError> {
        let geometry = Geometry::new(blocks.blocks(), identity).ok_or(MountError::Size(blocks.blocks()))?;
        Geometry::erase(&*blocks).map_err(device("erase the old superblock"))?;
        let what = "make the store";
        let backend = Backend::create(Arc::clone(&blocks), &geometry).map_err(device(what))?;
        let database = builder().create_with_backend(backend).map_err(unusable)?;
        let root = Inode {
            mode: S_IFDIR | 0o755,
            uid,
            gid,
            nlink: 2,
            rdev: 0,
            size: BLOCK_BYTES as u64,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            parent: ROOT,
            cookie: 3,
        };
        let pair = (key(b'I', ROOT), root.encode());
        let live_bytes = (pair.0.len() + pair.1.len()) as u64;
        let counters = Counters { next_inode: ROOT + 1, inodes: 1, live_bytes };
        let layer: Layer = [(pair.0, Some(pair.1)), (COUNTERS.to_vec(), Some(counters.encode()))].into_iter().collect();
        let layer: Layer = layer.into_iter().chain([logged(0)]).collect();
        store::apply(&database, &layer).map_err(unusable)?;
        geometry.write(&*blocks).map_err(device("write the superblock"))?;
        FileSystem::start(blocks, Durable { database, log: Log::new(geometry, 0) })
    }

    /// Mounts the file system that the blocks hold.
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn mount(blocks: Arc<dyn Blocks>) -> Result<FileSystem, MountError> {
        let geometry = match probe(&*blocks).map_err(device("read the superblock"))? {
            Content::FileSystem(geometry) => geometry,
            Content::Unusable(why) => return Err(MountError::Unusable(why)),
            Content::NoSuperblock | Content::Foreign => return Err(MountError::NoFileSystem),
        };
        let backend = Backend::open(Arc::clone(&blocks), &geometry).map_err(device("open the store"))?;
        let database = builder().create_with_backend(backend).map_err(unusable)?;
        let log = replay(&*blocks, &geometry, &database)?;
        FileSystem::start(blocks, Durable { database, log })
    }

    fn start(blocks: Arc<dyn Blocks>, durable: Durable) -> Result<FileSystem, MountError> {
        let (database, geometry) = (&durable.database, *durable.log.geometry());
        let committed = store::committed(database).map_err(unusable)?;
        let probe = Store::new(committed, 0);
        let counters = probe.get(COUNTERS).map_err(unusable)?.ok_or_else(|| unusable("it has no counters"))?;
        let counters = Counters::decode(&counters).ok().filter(|counters| counters.next_inode < INODES_MAX);
        let counters = counters.ok_or_else(|| unusable("its counters are damaged"))?;
        let mut space = Space::new(geometry.data_start(), geometry.blocks);
        for (key, value) in probe.range(b"B", b"C", usize::MAX).map_err(unusable)? {
            let chunk = last_number(&key).unwrap_or(u64::MAX);
            if !space.load(chunk, &value) {
                return Err(unusable("its map of free blocks is damaged"));
            }
        }
        let committed = store::committed(database).map_err(unusable)?;
        let state = State::new(
            Store::new(committed, counters.live_bytes),
            space,
            counters,
            geometry.store_bytes() / STORE_FACTOR,
        );
        let system = FileSystem {
            behind: Behind::new(Arc::clone(&blocks)),
            blocks,
            geometry,
            state: RwLock::new(state),
            held: Mutex::default(),
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            durable: Mutex::new(durable),
            has_failed: AtomicBool::new(false),
        };
        system.reap_all().map_err(unusable)?;
        Ok(system)
    }

    /// Where things lie.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What there is and what is free.
    #[must_use]
    pub fn totals(&self) -> Totals {
        // About what a file of one extent with a short name takes.
        const INODE_BYTES: u64 = 300;
        let state = self.state();
        let room = state.live_bytes_max.saturating_sub(state.store.live_bytes());
        Totals {
            blocks: state.space.blocks(),
            blocks_free: state.space.free(),
            inodes: state.inodes,
            inodes_free: room / INODE_BYTES,
        }
    }

    pub(crate) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn held(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock of a file's content.
    pub(crate) fn stripe(&self, inode: u64) -> &RwLock<()> {
        &self.stripes[inode as usize % STRIPES]
    }

    /// Does something to the state, wholly or not at all.
    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut State) -> Result<T, Errno>) -> Result<T, Errno> {
        self.refuse_after_failure()?;
        let mut state = self.state_mut();
        state.begin();
        let result = work(&mut state);
        match result {
            Err(_) => state.roll_back(),
            Ok(_) if state.store.has_changed() => state.sequence += 1,
            Ok(_) => {}
        }
        let is_much = state.store.active_bytes() > ACTIVE_BYTES_MAX;
        drop(state);
        if is_much && result.is_ok() {
            self.checkpoint()?;
        }
        result
    }

    /// Makes persistent whatever was done before.
    ///
    /// # Errors
    /// `EIO` when the device fails; nothing can be changed any more then.
    pub fn commit(&self) -> Result<(), Errno> {
        let target = self.state().sequence;
        self.make_durable(target)
    }

    /// Makes a file's bytes persistent, and what is needed to find them; of its times only when `is_all`.
    ///
    /// # Errors
    /// As [`FileSystem::commit`].
    pub fn sync(&self, inode: u64, is_all: bool) -> Result<(), Errno> {
        let target = {
            let state = self.state();
            if is_all { state.sequence } else { state.essential.get(&inode).copied().unwrap_or(0) }
        };
        self.make_durable(target)
    }

    /// Makes persistent whatever was done before, in the store, so that nothing of it is left in the log.
    ///
    /// # Errors
    /// As [`FileSystem::commit`].
    pub fn checkpoint(&self) -> Result<(), Errno> {
        let mut durable = self.durable();
        self.transact(&mut durable)
    }

    /// Whether there is something that a commit would make persistent.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let state = self.state();
        state.sequence > state.committed || !self.behind.is_durable(self.behind.stamp())
    }

    fn durable(&self) -> MutexGuard<'_, Durable> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_durable(&self, target: u64) -> Result<(), Errno> {
        let stamp = self.behind.stamp();
        let is_done = || self.state().committed >= target && self.behind.is_durable(stamp);
        if is_done() {
            return Ok(());
        }
        let mut durable = self.durable();
        // Who held the lock may have made this persistent, too.
        if is_done() {
            return Ok(());
        }
        if self.state().committed >= target && !durable.log.holds_data() {
            return self.behind.sync().map_err(device_errno);
        }
        self.log(&mut durable)
    }

    /// Makes everything persistent by a record of the log, or by a transaction when that is too much for one.
    fn log(&self, durable: &mut Durable) -> Result<(), Errno> {
        self.refuse_after_failure()?;
        if !durable.log.has_room() {
            return self.transact(durable);
        }
        let changed = {
            let mut state = self.state_mut();
            state.put_totals();
            state.store.take_unlogged(PAIRS_BYTES_MAX).map(|pairs| (pairs, state.space.take_freed(), state.sequence))
        };
        let Some((pairs, freed, sequence)) = changed else { return self.transact(durable) };
        // Looked at after what shows them: they are all there.
        let stamp = self.behind.stamp();
        let data = self.behind.dirty();
        let (place, record) = durable.log.record(&pairs, &data);
        let mut ranges = ranges_of(&data);
        ranges.push((place, &record));
        let done = self.behind.flush().and_then(|()| self.blocks.write_durably(&ranges)).map_err(device_errno);
        self.note_failure(done)?;
        durable.log.advance(&record, &data);
        self.behind.clean(&data);
        self.behind.set_durable(stamp);
        self.discard(&freed);
        self.state_mut().is_durable(sequence, &freed);
        Ok(())
    }

    /// Makes everything persistent by a transaction of the store.
    fn transact(&self, durable: &mut Durable) -> Result<(), Errno> {
        self.refuse_after_failure()?;
        let (layer, freed, sequence) = {
            let mut state = self.state_mut();
            state.put_totals();
            let (key, value) = logged(durable.log.sequence());
            state.store.put_uncounted(key, value.unwrap_or_default());
            (state.store.freeze(), state.space.take_freed(), state.sequence)
        };
        let done = self.behind.sync().map_err(device_errno).and_then(|()| store::apply(&durable.database, &layer));
        let committed = self.note_failure(done)?;
        durable.log.restart();
        self.discard(&freed);
        let mut state = self.state_mut();
        state.store.thaw(committed);
        state.is_durable(sequence, &freed);
        Ok(())
    }

    fn refuse_after_failure(&self) -> Result<(), Errno> {
        if self.has_failed.load(Ordering::Acquire) { Err(Errno::IO) } else { Ok(()) }
    }

    /// What could not be made persistent is in no layer any more that a later commit would look at.
    fn note_failure<T>(&self, done: Result<T, Errno>) -> Result<T, Errno> {
        done.inspect_err(|_| {
            tracing::error!("a commit failed: the file system takes no more changes; mount it again");
            self.has_failed.store(true, Ordering::Release);
        })
    }

    /// Tells the device what no file has any more, before anybody else gets it.
    fn discard(&self, freed: &[Run]) {
        let mut runs = freed.to_vec();
        runs.sort_unstable();
        let mut whole: Vec<Run> = Vec::new();
        for run in runs {
            match whole.last_mut() {
                Some(last) if last.block + last.blocks == run.block => last.blocks += run.blocks,
                _ => whole.push(run),
            }
        }
        for run in whole {
            self.behind.forget(run);
            // Only a hint: the blocks are free whatever the device makes of it.
            if let Err(error) = self.blocks.deallocate(run.block, run.blocks) {
                tracing::warn!(%error, "the device does not take back blocks that are free");
            }
        }
    }
}

/// What says which record of the log is the last that the store has.
fn logged(sequence: u64) -> (Vec<u8>, Option<Vec<u8>>) {
    (LOGGED.to_vec(), Some(sequence.to_le_bytes().to_vec()))
}

/// Gives the store what the log has beyond it; the log, empty.
fn replay(blocks: &dyn Blocks, geometry: &Geometry, database: &Database) -> Result<Log, MountError> {
    let found = store::committed(database).and_then(|table| Store::new(table, 0).get(LOGGED)).map_err(unusable)?;
    let last = found.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let last = last.filter(|last| *last < RECORDS_MAX).ok_or_else(|| unusable("its place in the log is damaged"))?;
    let mut replay = log::replay(blocks, geometry, last).map_err(device("read the log"))?;
    if replay.records > 0 {
        let data: Vec<(u64, &[u8])> = replay.data.iter().map(|(block, bytes)| (*block, &bytes[..])).collect();
        blocks.write_durably(&data).map_err(device("put the log's data to their places"))?;
        tracing::info!(records = replay.records, "the log had what the store had not");
    }
    // One number is left out: what is there of a record that was cut short never becomes whole.
    let sequence = last + replay.records + 1;
    replay.layer.extend([logged(sequence)]);
    store::apply(database, &replay.layer).map_err(unusable)?;
    Ok(Log::new(*geometry, sequence))
}

/// What the device says of data as the caller hears it.
pub(crate) fn device_errno(error: io::Error) -> Errno {
    tracing::error!(%error, "the device failed");
    if error.kind() == io::ErrorKind::StorageFull { Errno::NOSPC } else { Errno::IO }
}
