//! An image that is there: opening it, looking at it, starting it.
//!
//! Invariants:
//! 1. Nothing is written to an image without its owner lock.
//! 2. A superblock copy that is damaged is never written over. While one is, the next superblock is built
//!    in a file of its own, the damaged bytes included, and takes the old one's place by a rename.
//! 3. An incarnation is on disk before [`Image::begin_incarnation`] returns it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{ImageError, io_error};
use crate::layout::Layout;
use crate::lock::{LockState, OwnerLock, probe};
use crate::media::{BlockMedia, FileMedia, Media, MediaError, MediaView, MemoryMedia, NoneMedia};
use crate::superblock::{
    COPIES, COPY_BYTES, CopyFault, Incarnation, MediaKind, ReadFault, Reading, SUPERBLOCK_BYTES, Superblock,
};

/// The longest profile, in bytes.
pub(crate) const PROFILE_BYTES_MAX: u64 = 1024 * 1024;
/// The unit in which `stat` counts allocated room (stat(2), `st_blocks`).
const STAT_BLOCK_BYTES: u64 = 512;

/// Whether a profile (name, text) is one that the device model accepts; if not, why.
pub type ProfileCheck<'a> = &'a dyn Fn(&str, &str) -> Result<(), String>;

/// An image that this process owns. Dropping it gives the lock back.
#[derive(Debug)]
pub struct Image {
    layout: Layout,
    reading: Reading,
    profile_text: String,
    lock: OwnerLock,
}

impl Image {
    /// Opens the image in the directory `path`, and takes its owner lock.
    ///
    /// An image with one damaged superblock copy opens; [`Image::damaged_copy`] says so.
    ///
    /// # Errors
    /// [`ImageError::Missing`], [`ImageError::NotAnImage`], [`ImageError::NewerFormat`],
    /// [`ImageError::Damaged`], [`ImageError::Busy`], [`ImageError::Profile`], or what the system said.
    pub fn open(path: &Path, check_profile: ProfileCheck<'_>) -> Result<Self, ImageError> {
        // First without the lock, so that a lock file is never made in what is not an image.
        let root = fs::canonicalize(path).map_err(|cause| missing_or(path, cause))?;
        let layout = Layout::new(&root);
        read_superblock(&layout)?;
        let lock = OwnerLock::acquire(&root, &layout.lock())?;
        let reading = read_superblock(&layout)?;
        let profile_text = read_profile(&layout, &reading.superblock)?;
        check_profile(&reading.superblock.profile_name, &profile_text)
            .map_err(|why| ImageError::Profile { path: root, why })?;
        Ok(Self { layout, reading, profile_text, lock })
    }

    /// Raises the incarnation, and returns it when it is safe on disk. To be called once at each start,
    /// before anything that draws numbers from the incarnation.
    ///
    /// # Errors
    /// What the system said; then the incarnation on disk is the old one or the new one, and the call may
    /// be repeated.
    pub fn begin_incarnation(&mut self) -> Result<Incarnation, ImageError> {
        let raised = self.reading.superblock.incarnation.0.checked_add(1);
        let next = Incarnation(raised.ok_or_else(|| ImageError::Damaged {
            path: self.path().to_owned(),
            what: "the incarnation counter of the superblock is at its end".to_owned(),
        })?);
        let superblock = Superblock { incarnation: next, ..self.reading.superblock.clone() };
        if self.reading.damaged_copy().is_some() {
            self.replace_sound_copy(&superblock)?;
        } else {
            let copy = (next.0 % COPIES as u64) as usize;
            self.write_copy(&superblock, copy)?;
        }
        self.reading.superblock = superblock;
        Ok(next)
    }

    /// Writes a sound copy in the place of a damaged one. The superblock file as it was, the damaged bytes
    /// with it, is kept as `superblock.damaged`. Returns whether there was anything to restore.
    ///
    /// # Errors
    /// What the system said; the superblock is then as it was.
    pub fn restore_copy(&mut self) -> Result<bool, ImageError> {
        if self.reading.damaged_copy().is_none() {
            return Ok(false);
        }
        let kept = self.layout.superblock_damaged();
        fs::copy(self.layout.superblock(), &kept)
            .and_then(|_| File::open(&kept)?.sync_all())
            .map_err(io_error("keeping the damaged superblock as", &kept))?;
        let superblock = &self.reading.superblock;
        let bytes: Vec<u8> = (0..COPIES).flat_map(|copy| superblock.encode(copy)).collect();
        self.replace_superblock(&bytes)?;
        self.reading.faults = [None, None];
        Ok(true)
    }

    /// Opens the media that the superblock names. Media in memory are new and empty at each call.
    ///
    /// # Errors
    /// When they are missing, of another size, in use, or the system refuses.
    pub fn open_media(&self) -> Result<Arc<dyn Media>, MediaError> {
        open_media(&self.layout, self.superblock())
    }

    /// The image's directory, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.layout.root()
    }

    /// Where everything in the image is.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What the image is.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.reading.superblock
    }

    /// The full text of its profile, whose checksum and meaning were checked.
    #[must_use]
    pub fn profile_text(&self) -> &str {
        &self.profile_text
    }

    /// The number of the superblock copy that is damaged and why, if one is. To be told to people: the
    /// image has no second chance left.
    #[must_use]
    pub fn damaged_copy(&self) -> Option<(usize, &CopyFault)> {
        let copy = self.reading.damaged_copy()?;
        self.reading.faults[copy].as_ref().map(|fault| (copy, fault))
    }

    /// The owner lock. A child that inherits its descriptor keeps the image owned while it lives, so that
    /// a supervisor's successor cannot start beside a domain that outlived it.
    #[must_use]
    pub fn lock(&self) -> &OwnerLock {
        &self.lock
    }

    fn write_copy(&self, superblock: &Superblock, copy: usize) -> Result<(), ImageError> {
        let path = self.layout.superblock();
        let write = || -> io::Result<()> {
            let file = OpenOptions::new().write(true).open(&path)?;
            file.write_all_at(&superblock.encode(copy), (copy * COPY_BYTES) as u64)?;
            file.sync_all()
        };
        write().map_err(io_error("writing", &path))
    }

    fn replace_sound_copy(&self, superblock: &Superblock) -> Result<(), ImageError> {
        let mut bytes = read_superblock_bytes(&self.layout)?;
        for copy in 0..COPIES {
            if self.reading.faults[copy].is_none() {
                // The sound copy is whole, so the file reaches at least to its end.
                bytes[copy * COPY_BYTES..][..COPY_BYTES].copy_from_slice(&superblock.encode(copy));
            }
        }
        self.replace_superblock(&bytes)
    }

    fn replace_superblock(&self, bytes: &[u8]) -> Result<(), ImageError> {
        let (new, path) = (self.layout.superblock_new(), self.layout.superblock());
        let replace = || -> io::Result<()> {
            fs::write(&new, bytes)?;
            File::open(&new)?.sync_all()?;
            fs::rename(&new, &path)
        };
        replace().map_err(io_error("replacing", &path))?;
        sync_directory(self.layout.root())
    }
}

/// What can be seen of an image without owning it.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The image's directory.
    pub path: PathBuf,
    /// What the image is.
    pub superblock: Superblock,
    /// The fault of each superblock copy, if it has one.
    pub faults: [Option<CopyFault>; COPIES],
    /// Who owns it.
    pub lock: LockState,
    /// The room that its media take on disk, in bytes; nothing when they are not in a file.
    pub media_allocated_bytes: Option<u64>,
    /// The room that its memory region takes on disk, in bytes.
    pub pmr_allocated_bytes: Option<u64>,
}

impl Inspection {
    /// Opens the media, for a process that the image's owner started to use them.
    ///
    /// # Errors
    /// As [`Image::open_media`].
    pub fn open_media(&self) -> Result<Arc<dyn Media>, MediaError> {
        open_media(&Layout::new(&self.path), &self.superblock)
    }

    /// Opens the media for reading alone; `None` when they keep nothing beyond the process that has them.
    ///
    /// # Errors
    /// As [`MediaView::open`].
    pub fn view_media(&self) -> Result<Option<MediaView>, MediaError> {
        let bytes = self.superblock.media_bytes;
        match &self.superblock.media {
            MediaKind::File => MediaView::open(&Layout::new(&self.path).media(), bytes).map(Some),
            MediaKind::Block(path) => MediaView::open(path, bytes).map(Some),
            MediaKind::Memory | MediaKind::None => Ok(None),
        }
    }

    /// The full text of the profile, checked against the superblock.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] or what the system said.
    pub fn profile_text(&self) -> Result<String, ImageError> {
        read_profile(&Layout::new(&self.path), &self.superblock)
    }

    /// Whether somebody owns the image now.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        matches!(self.lock, LockState::Held(_))
    }
}

fn open_media(layout: &Layout, superblock: &Superblock) -> Result<Arc<dyn Media>, MediaError> {
    let bytes = superblock.media_bytes;
    Ok(match &superblock.media {
        MediaKind::File => Arc::new(FileMedia::open(&layout.media(), bytes)?),
        MediaKind::Block(path) => Arc::new(BlockMedia::open(path, bytes)?),
        MediaKind::Memory => Arc::new(MemoryMedia::create(bytes)?),
        MediaKind::None => Arc::new(NoneMedia::new(bytes)),
    })
}

/// One image in a home directory.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// What can be seen of it, or why nothing can.
    pub inspection: Result<Inspection, ImageError>,
}

/// Looks at the image in the directory `path` without taking its lock.
///
/// # Errors
/// As [`Image::open`], except that an owner is no obstacle and the profile is not read.
pub fn inspect(path: &Path) -> Result<Inspection, ImageError> {
    let layout = Layout::new(path);
    let reading = read_superblock(&layout)?;
    Ok(Inspection {
        path: path.to_owned(),
        lock: probe(&layout.lock())?,
        media_allocated_bytes: allocated(&layout.media()),
        pmr_allocated_bytes: allocated(&layout.pmr()),
        superblock: reading.superblock,
        faults: reading.faults,
    })
}

/// The images in a home directory, by name. What is not an image is passed over; an image that is damaged
/// or too new is listed with its error. A home that does not exist has no images.
///
/// # Errors
/// What the system said when the directory could not be read.
pub fn list(home: &Path) -> Result<Vec<Entry>, ImageError> {
    let entries = match fs::read_dir(home) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(io_error("listing", home)(cause)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io_error("listing", home))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if name.starts_with('.') {
            continue;
        }
        match inspect(&entry.path()) {
            Err(ImageError::NotAnImage { .. } | ImageError::Missing { .. }) => {}
            inspection => found.push(Entry { name, inspection }),
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn allocated(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.blocks() * STAT_BLOCK_BYTES)
}

/// The bytes of the superblock file, at most one more than it should have.
pub(crate) fn read_superblock_bytes(layout: &Layout) -> Result<Vec<u8>, ImageError> {
    let root = layout.root();
    let not_an_image = |why: &str| ImageError::NotAnImage { path: root.to_owned(), why: why.to_owned() };
    let meta = fs::metadata(root).map_err(|cause| missing_or(root, cause))?;
    if !meta.is_dir() {
        return Err(not_an_image("an image is a directory"));
    }
    let path = layout.superblock();
    // A fifo of that name would make the opening wait for ever.
    match fs::metadata(&path) {
        Ok(meta) if meta.is_file() => {}
        Ok(_) => return Err(not_an_image("its `superblock` is not a file")),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            return Err(not_an_image("it holds no file `superblock`"));
        }
        Err(cause) => return Err(io_error("reading", &path)(cause)),
    }
    read_bounded(&path, SUPERBLOCK_BYTES as u64 + 1)
}

/// Reads the superblock; what is wrong with it becomes an error that names the image.
pub(crate) fn read_superblock(layout: &Layout) -> Result<Reading, ImageError> {
    let bytes = read_superblock_bytes(layout)?;
    let path = layout.root().to_owned();
    Superblock::read(&bytes).map_err(|fault| match fault {
        ReadFault::NotASuperblock => {
            let why = "its `superblock` does not begin with the magic OSIERIMG".to_owned();
            ImageError::NotAnImage { path, why }
        }
        ReadFault::Newer(found) => ImageError::NewerFormat { path, found },
        ReadFault::BothDamaged([a, b]) => ImageError::Damaged {
            path,
            what: format!("both copies of the superblock are damaged (copy 0: {a}; copy 1: {b})"),
        },
        ReadFault::Disagree => ImageError::Damaged {
            path,
            what: "the two copies of the superblock are sound but describe different images".to_owned(),
        },
    })
}

/// Reads the profile, and checks it against the superblock.
pub(crate) fn read_profile(layout: &Layout, superblock: &Superblock) -> Result<String, ImageError> {
    let path = layout.profile();
    let bytes = read_bounded(&path, PROFILE_BYTES_MAX + 1)?;
    let computed = crc32c::crc32c(&bytes);
    let damaged = |what: String| ImageError::Damaged { path: layout.root().to_owned(), what };
    if bytes.len() as u64 != u64::from(superblock.profile_bytes) || computed != superblock.profile_crc {
        return Err(damaged(format!(
            "profile.toml has {} bytes with checksum {computed:08x}, and the image was made with {} bytes \
             and {:08x} (a profile is fixed when an image is made)",
            bytes.len(),
            superblock.profile_bytes,
            superblock.profile_crc
        )));
    }
    String::from_utf8(bytes).map_err(|_| damaged("profile.toml is not UTF-8".to_owned()))
}

fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>, ImageError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(bytes_max).read_to_end(&mut bytes))
        .map_err(io_error("reading", path))?;
    Ok(bytes)
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), ImageError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(io_error("syncing the directory", path))
}

fn missing_or(path: &Path, cause: io::Error) -> ImageError {
    match cause.kind() {
        io::ErrorKind::NotFound => ImageError::Missing { path: path.to_owned() },
        _ => io_error("opening", path)(cause),
    }
}
