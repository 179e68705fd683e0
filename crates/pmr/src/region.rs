//! A region: memory that several processes map, with a header that says what it is and a table of the
//! named objects in it.
//!
//! Invariants:
//! 1. Nothing is ever created over something that exists, and nothing damaged is written to.
//! 2. All of the region's space is reserved when it is created and again when it is opened, so a store
//!    never meets a full disk.
//! 3. One process at a time changes the table; the lock for it falls with that process.

use crate::copy;
use crate::error::{PmrError, Result};
use crate::layout::{
    DATA_OFFSET, Entry, FORMAT_VERSION, HEADER_BYTES, Header, HeaderFault, LINE_BYTES, ObjectKind, ObjectName,
    REGION_BYTES_MAX, REGION_BYTES_MIN, SERIAL_OFFSET, Side, TABLE_ENTRIES, WATERMARK_OFFSET, region_bytes_allowed,
    watermark_encode,
};
use crate::map::{self, Mapping, WriterLock};
use crate::object::Object;
use crate::table::{Finding, Medium, Refusal, Table, Words};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What holds the bytes of a new region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// A file, on a disk or in a memory file system. It must not exist yet.
    File(PathBuf),
    /// Anonymous shared memory, passed on as a file descriptor.
    Memfd,
}

/// What a region's bytes outlive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// Processes, as long as one holds the descriptor.
    Holders,
    /// All processes, but not the operating system.
    Processes,
    /// All processes; and the operating system and power as far as [`Region::sync`] was called.
    PowerAfterSync,
}

impl std::fmt::Display for Survival {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Holders => "survives a killed process while another holds it; lost with the last one",
            Self::Processes => "survives all processes; lost when the system stops",
            Self::PowerAfterSync => "survives all processes; survives power loss up to the last sync",
        })
    }
}

/// A shared region that this process has mapped. Cloning is cheap and shares the mapping.
#[derive(Debug, Clone)]
pub struct Region {
    pub(crate) shared: Arc<Shared>,
}

/// What a region and all its objects hold on to.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) mapping: Mapping,
    pub(crate) fd: OwnedFd,
    /// Name for messages.
    pub(crate) on: String,
    header: Header,
    anonymous: bool,
    /// The lock of the table's writer, taken at the first change.
    writer: Mutex<Option<WriterLock>>,
}

impl Region {
    /// Makes a region of `bytes` bytes, all reserved and zero, and maps it.
    ///
    /// `uuid` is the caller's identity for it, for example that of the device image. The header is
    /// written last: a creation that was cut short leaves a file that [`Region::open`] refuses.
    ///
    /// # Errors
    /// `BadSize`, `Exists`, `NoSpace` (then nothing is left behind), or what the system refused.
    pub fn create(backing: &Backing, bytes: u64, uuid: [u8; 16]) -> Result<Self> {
        if !region_bytes_allowed(bytes) {
            return Err(PmrError::BadSize { bytes, min: REGION_BYTES_MIN, max: REGION_BYTES_MAX });
        }
        let header = Header { region_bytes: bytes, uuid };
        match backing {
            Backing::Memfd => {
                let on = "in anonymous memory".to_owned();
                Self::format(map::memfd(bytes, &on)?, header, on, true)
            }
            Backing::File(path) => {
                let on = path.display().to_string();
                let file = create_new(path, &on)?;
                let made = map::reserve(&file, bytes, &on).and_then(|()| Self::format(file, header, on, false));
                if made.is_err() {
                    // The file is ours and holds nothing; a failure to remove it adds nothing to the error.
                    let _ = std::fs::remove_file(path);
                }
                made
            }
        }
    }

    /// Maps the region in a file.
    ///
    /// # Errors
    /// `Missing`, `NotARegion`, `NewerVersion`, `DamagedHeader`, `Truncated`: nothing was written; `NoSpace` when
    /// the file has holes that cannot be filled; or what the system refused.
    pub fn open(path: &Path) -> Result<Self> {
        let on = path.display().to_string();
        let opened = File::options().read(true).write(true).open(path);
        let file = opened.map_err(|source| not_opened(&on, source))?;
        Self::adopt(file, on, false)
    }

    /// Maps the region behind a descriptor that another process passed on.
    ///
    /// # Errors
    /// As [`Region::open`].
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let on = "in passed-on memory".to_owned();
        // Only memory without a name in a file system dies with its last holder.
        let anonymous = File::from(fd.try_clone().map_err(|source| io_error("duplicate", &on, source))?)
            .metadata()
            .map(|metadata| std::os::unix::fs::MetadataExt::nlink(&metadata) == 0)
            .map_err(|source| io_error("inspect", &on, source))?;
        Self::adopt(File::from(fd), on, anonymous)
    }

    /// The descriptor to pass to another process, or to map parts of the region by.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }

    /// Bytes of the whole region.
    pub fn region_bytes(&self) -> u64 {
        self.shared.header.region_bytes
    }

    /// Bytes that objects can use, before alignment.
    pub fn usable_bytes(&self) -> u64 {
        self.region_bytes() - DATA_OFFSET
    }

    /// The identity that the creator gave.
    pub fn uuid(&self) -> [u8; 16] {
        self.shared.header.uuid
    }

    /// What the region's bytes outlive; printed wherever persistence is reported.
    ///
    /// # Errors
    /// What the system refused.
    pub fn survival(&self) -> Result<Survival> {
        if self.shared.anonymous {
            return Ok(Survival::Holders);
        }
        let in_memory = map::is_in_memory(self.as_fd(), &self.shared.on)?;
        Ok(if in_memory { Survival::Processes } else { Survival::PowerAfterSync })
    }

    /// Writes the whole region through to its file and waits for it. Without a file it does nothing.
    ///
    /// # Errors
    /// What the system refused.
    pub fn sync(&self) -> Result<()> {
        self.shared.mapping.sync(0, self.shared.mapping.bytes(), &self.shared.on)
    }

    /// Makes an object of `bytes` zero bytes at an offset that is a multiple of `align` (and of 64).
    ///
    /// # Errors
    /// `BadName`, `BadRequest`, `NameTaken`, `TableFull`, `NoRoom`, `DamagedTable`, `WriterBusy`.
    pub fn allocate(&self, name: &str, kind: ObjectKind, bytes: u64, align: u64) -> Result<Object> {
        let parsed = parse_name(name)?;
        let _writer = self.claim()?;
        let made = self.table().allocate(parsed, kind, bytes, align);
        let (slot, entry) = made.map_err(|refusal| self.refused(refusal, name, bytes))?;
        Ok(Object::new(Arc::clone(&self.shared), slot, entry))
    }

    /// Finds an object by name.
    ///
    /// # Errors
    /// `NotFound`, `BadName`, or `DamagedTable` when its entry leaves the region.
    pub fn find(&self, name: &str) -> Result<Object> {
        let (slot, entry) = self.lookup(name)?;
        Ok(Object::new(Arc::clone(&self.shared), slot, entry))
    }

    /// Frees an object. Handles to it stay valid memory, but [`Object::is_current`] turns false.
    ///
    /// # Errors
    /// `NotFound`, `BadName`, `WriterBusy`.
    pub fn free(&self, name: &str) -> Result<()> {
        let _writer = self.claim()?;
        let (slot, _) = self.lookup(name)?;
        self.table().free(slot);
        Ok(())
    }

    /// Assigns an object to a side, in one store.
    ///
    /// # Errors
    /// `NotFound`, `BadName`, `WriterBusy`.
    pub fn set_owner(&self, name: &str, owner: Side) -> Result<Object> {
        let _writer = self.claim()?;
        let (slot, entry) = self.lookup(name)?;
        let entry = self.table().set_owner(slot, &entry, owner);
        Ok(Object::new(Arc::clone(&self.shared), slot, entry))
    }

    /// All objects, by offset.
    pub fn list(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.table().entries().map(|(_, entry)| entry).collect();
        entries.sort_by_key(|entry| entry.offset);
        entries
    }

    /// Verifies the table of objects; empty when all is well. Changes nothing.
    pub fn check(&self) -> Vec<Finding> {
        self.table().check()
    }

    /// Frees damaged table entries, and says how many there were. Their objects' bytes become free space:
    /// only for an operator who has saved what was needed.
    ///
    /// # Errors
    /// `WriterBusy`.
    pub fn drop_damaged(&self) -> Result<usize> {
        let _writer = self.claim()?;
        Ok(self.table().drop_damaged())
    }

    fn format(file: File, header: Header, on: String, anonymous: bool) -> Result<Self> {
        let write = |bytes: &[u8], at| {
            file.write_all_at(bytes, at).map_err(|source| io_error("write the header of", &on, source))
        };
        write(&watermark_encode(DATA_OFFSET).to_le_bytes(), WATERMARK_OFFSET)?;
        write(&0u64.to_le_bytes(), SERIAL_OFFSET)?;
        let sync = |what| file.sync_all().map_err(|source| io_error(what, &on, source));
        sync("write through")?;
        write(&header.encode(), 0)?;
        sync("write through the header of")?;
        Self::map(file, header, on, anonymous)
    }

    fn adopt(file: File, on: String, anonymous: bool) -> Result<Self> {
        let header = read_header(&file, &on)?;
        // A copy of a region may have lost its reservation: holes would be a SIGBUS waiting for a full disk.
        // A sealed memfd of the right size cannot have lost it, and sealing forbids the call on old kernels.
        if !anonymous {
            map::reserve(&file, header.region_bytes, &on)?;
        }
        Self::map(file, header, on, anonymous)
    }

    fn map(file: File, header: Header, on: String, anonymous: bool) -> Result<Self> {
        let mapping = Mapping::new(file.as_fd(), header.region_bytes, &on)?;
        let writer = Mutex::new(None);
        let shared = Shared { mapping, fd: file.into(), on, header, anonymous, writer };
        Ok(Self { shared: Arc::new(shared) })
    }

    fn table(&self) -> Table<&Mapping> {
        Table { medium: &self.shared.mapping, region_bytes: self.shared.header.region_bytes }
    }

    fn lookup(&self, name: &str) -> Result<(u32, Entry)> {
        let found = self.table().find(parse_name(name)?);
        let on = || self.shared.on.clone();
        let (slot, entry) = found.ok_or_else(|| PmrError::NotFound { on: on(), name: name.to_owned() })?;
        if !self.table().in_range(&entry) {
            return Err(PmrError::DamagedTable { on: on(), count: 1 });
        }
        Ok((slot, entry))
    }

    /// Becomes the table's writer, if need be, and keeps other threads out while the guard lives.
    fn claim(&self) -> Result<MutexGuard<'_, Option<WriterLock>>> {
        // A thread that panicked in a change left the old table or the new one, as a killed process does.
        let mut guard = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            *guard = map::lock_writer(self.as_fd(), &self.shared.on)?;
        }
        match guard.is_some() {
            true => Ok(guard),
            false => Err(PmrError::WriterBusy { on: self.shared.on.clone() }),
        }
    }

    fn refused(&self, refusal: Refusal, name: &str, bytes: u64) -> PmrError {
        let name = name.to_owned();
        match refusal {
            Refusal::Damaged { count } => PmrError::DamagedTable { on: self.shared.on.clone(), count },
            Refusal::NameTaken => PmrError::NameTaken { name },
            Refusal::TableFull => PmrError::TableFull { name, entries: TABLE_ENTRIES },
            Refusal::NoRoom { largest_gap_bytes } => PmrError::NoRoom { name, bytes, largest_gap_bytes },
            Refusal::BadRequest(why) => PmrError::BadRequest { name, why },
        }
    }
}

impl Shared {
    /// Whether the table still holds this very entry in this slot.
    pub(crate) fn holds(&self, slot: u32, entry: &Entry) -> bool {
        let table = Table { medium: &self.mapping, region_bytes: self.header.region_bytes };
        matches!(table.read(slot), crate::table::Slot::Used(now) if Entry { owner: entry.owner, ..now } == *entry)
    }
}

impl Words for &Mapping {
    fn load(&self, offset: u64) -> u64 {
        word(self, offset).load(Ordering::Acquire)
    }
}

impl Medium for &Mapping {
    fn store(&self, offset: u64, value: u64) {
        word(self, offset).store(value, Ordering::Release);
    }

    fn zero(&self, offset: u64, bytes: u64) {
        let (offset, bytes) = (offset as usize, bytes as usize);
        let at = self.range(offset, bytes);
        // SAFETY: the range was checked to lie in the mapping, which is shared memory.
        unsafe { copy::fill_shared(at.as_ptr(), bytes, 0) };
    }
}

/// A word of a mapping, by its offset, which must be a multiple of eight.
fn word(mapping: &Mapping, offset: u64) -> &AtomicU64 {
    assert!(offset.is_multiple_of(8), "word at {offset} is not aligned");
    let at = mapping.range(offset as usize, 8);
    // SAFETY: eight aligned bytes inside the mapping, which lives as long as the reference; everyone
    // accesses them by atomics or opaque copies.
    unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
}

pub(crate) fn parse_name(name: &str) -> Result<ObjectName> {
    ObjectName::parse(name).ok_or_else(|| PmrError::BadName { name: name.to_owned() })
}

/// Reads and checks the header, and that the file is as long as it states.
pub(crate) fn read_header(file: &File, on: &str) -> Result<Header> {
    let on = || on.to_owned();
    let found = file.metadata().map_err(|source| io_error("inspect", &on(), source))?.len();
    let mut page = [0; HEADER_BYTES];
    if found < HEADER_BYTES as u64 {
        return Err(PmrError::NotARegion { on: on() });
    }
    file.read_exact_at(&mut page, 0).map_err(|source| io_error("read the header of", &on(), source))?;
    let header = match Header::decode(&page) {
        Ok(header) => header,
        Err(HeaderFault::NotARegion) => return Err(PmrError::NotARegion { on: on() }),
        Err(HeaderFault::NewerVersion(found)) => {
            return Err(PmrError::NewerVersion { on: on(), found, known: FORMAT_VERSION });
        }
        Err(HeaderFault::Damaged(why)) => return Err(PmrError::DamagedHeader { on: on(), why }),
    };
    let stated = header.region_bytes;
    if found < stated {
        return Err(PmrError::Truncated { on: on(), stated, found });
    }
    Ok(header)
}

fn create_new(path: &Path, on: &str) -> Result<File> {
    // The region holds users' data in the clear: no one but its owner may open it.
    let opened = File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
    opened.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => PmrError::Exists { on: on.to_owned() },
        _ => io_error("create", on, source),
    })
}

/// Why a region's file could not be opened.
pub(crate) fn not_opened(on: &str, source: io::Error) -> PmrError {
    match source.kind() {
        io::ErrorKind::NotFound => PmrError::Missing { on: on.to_owned() },
        _ => io_error("open", on, source),
    }
}

pub(crate) fn io_error(what: &'static str, on: &str, source: io::Error) -> PmrError {
    PmrError::Io { what, on: on.to_owned(), source }
}

const _: () = assert!(LINE_BYTES.is_multiple_of(8));

#[cfg(test)]
mod tests;
