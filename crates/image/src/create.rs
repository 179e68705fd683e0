//! The making of an image: whole or not at all.
//!
//! Everything is written and synced in a directory of a temporary name, which then takes the image's name
//! in one step. A failure removes that directory; a kill leaves it to the next sweep (`leftover`).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use osier_pmr::{Backing, PmrError, REGION_BYTES_MIN, Region};
use rustix::fs::{CWD, RenameFlags};

use crate::clock;
use crate::error::{ImageError, io_error};
use crate::image::{Image, ProfileCheck};
use crate::layout::Layout;
use crate::leftover;
use crate::lock::OwnerLock;
use crate::media::{BlockMedia, Media};
use crate::superblock::{
    Incarnation, MEDIA_PATH_BYTES_MAX, MediaKind, PROFILE_NAME_BYTES_MAX, SUPERBLOCK_BYTES, Superblock,
};
use crate::uuid::Uuid;
use crate::{BLOCK_BYTES, image};

/// How much of a block device is looked at to see whether it is in use: every common file system,
/// partition table and volume manager writes within it.
const BLANK_BYTES: u64 = 1024 * 1024;

/// A profile: its name and the full text of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileText {
    /// The name shown to people.
    pub name: String,
    /// The TOML text.
    pub text: String,
}

/// Which media a new image gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaSpec {
    /// A sparse file in the image.
    File,
    /// A block device.
    Block {
        /// Its path.
        path: PathBuf,
        /// Whether a device that holds something may be erased.
        overwrite: bool,
    },
    /// Anonymous memory.
    Memory,
    /// None: timing only.
    None,
}

/// What a new image shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// The device description.
    pub profile: ProfileText,
    /// Where the flash array's bytes go.
    pub media: MediaSpec,
    /// The size of the flash array in bytes, a multiple of 4096.
    pub media_bytes: u64,
    /// The size of the persistent memory region in bytes, a multiple of 4096.
    pub pmr_bytes: u64,
    /// The capacity in logical blocks of 4096 bytes.
    pub logical_blocks: u64,
}

impl Image {
    /// Makes an image in the directory `path`, which must not exist while its parent must.
    ///
    /// # Errors
    /// [`ImageError::Options`] and [`ImageError::Profile`] before anything is written;
    /// [`ImageError::Exists`]; [`ImageError::NoSpace`] when the files or the reserved region do not fit.
    /// Nothing is left behind after an error.
    pub fn create(
        path: &Path,
        options: &CreateOptions,
        check_profile: ProfileCheck<'_>,
    ) -> Result<Superblock, ImageError> {
        Self::create_with(path, options, check_profile, |_| Ok(()))
    }

    /// [`Image::create`], with more files: `fill` writes them where the layout says, before the image gets its
    /// name, so that they are part of its being whole or not at all. It syncs what it writes.
    ///
    /// # Errors
    /// As [`Image::create`], and what `fill` says.
    pub fn create_with<E: From<ImageError>>(
        path: &Path,
        options: &CreateOptions,
        check_profile: ProfileCheck<'_>,
        fill: impl FnOnce(&Layout) -> Result<(), E>,
    ) -> Result<Superblock, E> {
        let superblock = plan(path, options, check_profile)?;
        let parent = parent_of(path);
        leftover::sweep(parent);
        if fs::symlink_metadata(path).is_ok() {
            return Err(ImageError::Exists { path: path.to_owned() }.into());
        }
        let temporary = Temporary::make(parent, path, &superblock)?;
        temporary.fill(&superblock, options)?;
        fill(&temporary.layout)?;
        image::sync_directory(temporary.layout.root())?;
        if let MediaSpec::Block { path: device, overwrite } = &options.media {
            take_block_device(path, device, *overwrite, options.media_bytes)?;
        }
        temporary.publish(path)?;
        image::sync_directory(parent)?;
        Ok(superblock)
    }
}

/// Checks what was asked for, and says what the superblock will be.
fn plan(path: &Path, options: &CreateOptions, check_profile: ProfileCheck<'_>) -> Result<Superblock, ImageError> {
    let refuse = |why: String| Err(ImageError::Options { path: path.to_owned(), why });
    let profile = &options.profile;
    if profile.name.is_empty() || profile.name.len() > PROFILE_NAME_BYTES_MAX {
        return refuse(format!("the profile's name must have 1 to {PROFILE_NAME_BYTES_MAX} bytes"));
    }
    if profile.text.len() as u64 > image::PROFILE_BYTES_MAX {
        return refuse(format!("the profile is longer than {} bytes", image::PROFILE_BYTES_MAX));
    }
    for (what, bytes, min) in
        [("media", options.media_bytes, BLOCK_BYTES), ("persistent memory region", options.pmr_bytes, REGION_BYTES_MIN)]
    {
        if bytes < min || !bytes.is_multiple_of(BLOCK_BYTES) || i64::try_from(bytes).is_err() {
            return refuse(format!(
                "the {what} cannot have {bytes} bytes; use a multiple of {BLOCK_BYTES} from {min} on"
            ));
        }
    }
    if options.logical_blocks == 0 {
        return refuse("the capacity is zero".to_owned());
    }
    check_profile(&profile.name, &profile.text).map_err(|why| ImageError::Profile { path: path.to_owned(), why })?;
    let mut random = [0u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| io_error("drawing an identifier for", path)(errno.into()))?;
    Ok(Superblock {
        uuid: Uuid::from_random(random),
        incarnation: Incarnation(0),
        media: plan_media(path, &options.media)?,
        media_bytes: options.media_bytes,
        pmr_bytes: options.pmr_bytes,
        logical_blocks: options.logical_blocks,
        created_unix_seconds: clock::now_unix_seconds(),
        profile_name: profile.name.clone(),
        profile_bytes: profile.text.len() as u32,
        profile_crc: crc32c::crc32c(profile.text.as_bytes()),
    })
}

fn plan_media(path: &Path, media: &MediaSpec) -> Result<MediaKind, ImageError> {
    Ok(match media {
        MediaSpec::File => MediaKind::File,
        MediaSpec::Memory => MediaKind::Memory,
        MediaSpec::None => MediaKind::None,
        MediaSpec::Block { path: device, .. } => {
            // Made absolute, but links are kept: a name under /dev/disk/by-id outlives a reboot, and what
            // it points to may not.
            let absolute = std::path::absolute(device).map_err(io_error("finding", device))?;
            if absolute.as_os_str().len() > MEDIA_PATH_BYTES_MAX {
                let why = format!("the path of the block device has more than {MEDIA_PATH_BYTES_MAX} bytes");
                return Err(ImageError::Options { path: path.to_owned(), why });
            }
            MediaKind::Block(absolute)
        }
    })
}

/// Makes a block device blank for a new image, unless it holds something and that was not offered.
fn take_block_device(path: &Path, device: &Path, overwrite: bool, bytes: u64) -> Result<(), ImageError> {
    let refuse = |why: String| ImageError::Options { path: path.to_owned(), why };
    let media = BlockMedia::open(device, bytes).map_err(|e| refuse(e.to_string()))?;
    if !overwrite && !media.begins_blank(BLANK_BYTES).map_err(|e| refuse(e.to_string()))? {
        return Err(refuse(format!("{} holds data; ask for it to be overwritten if it may be lost", device.display())));
    }
    // All of it, also when it begins blank: what an earlier device left would be taken for pages of this.
    media.erase(0, bytes).and_then(|()| media.sync()).map_err(|e| refuse(e.to_string()))
}

/// The directory in which an image is being made. Dropping it removes it, unless it was published.
struct Temporary {
    layout: Layout,
    /// Held while the image is made, so that no sweep takes the directory for a leftover.
    lock: Option<OwnerLock>,
    published: bool,
}

impl Temporary {
    fn make(parent: &Path, path: &Path, superblock: &Superblock) -> Result<Self, ImageError> {
        let root = leftover::creating(parent, &superblock.uuid.to_string());
        DirBuilder::new().mode(0o700).create(&root).map_err(io_error("making the device image", path))?;
        let layout = Layout::new(&root);
        let mut made = Self { layout, lock: None, published: false };
        made.lock = Some(OwnerLock::acquire(&root, &made.layout.lock())?);
        Ok(made)
    }

    fn fill(&self, superblock: &Superblock, options: &CreateOptions) -> Result<(), ImageError> {
        let layout = &self.layout;
        let mut copies = Vec::with_capacity(SUPERBLOCK_BYTES);
        copies.extend_from_slice(&superblock.encode(0));
        copies.extend_from_slice(&superblock.encode(1));
        write_new(&layout.superblock(), &copies)?;
        write_new(&layout.profile(), options.profile.text.as_bytes())?;
        if options.media == MediaSpec::File {
            let media = layout.media();
            let make = || -> io::Result<()> {
                let file = new_file(&media)?;
                file.set_len(options.media_bytes)?;
                file.sync_all()
            };
            make().map_err(io_error("making the media file", &media))?;
        }
        for directory in [layout.keys(), layout.run()] {
            DirBuilder::new().mode(0o700).create(&directory).map_err(io_error("making", &directory))?;
        }
        make_pmr(&layout.pmr(), options.pmr_bytes, superblock.uuid)
    }

    /// Gives the directory its name, which must still be free.
    fn publish(mut self, path: &Path) -> Result<(), ImageError> {
        let root = self.layout.root();
        match rustix::fs::renameat_with(CWD, root, CWD, path, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            // File systems without that flag: a directory never replaces one that is not empty, nor a file.
            Err(rustix::io::Errno::INVAL) => {
                fs::rename(root, path).map_err(io_error("naming the device image", path))?;
            }
            Err(rustix::io::Errno::EXIST) => {
                return Err(ImageError::Exists { path: path.to_owned() });
            }
            Err(errno) => return Err(io_error("naming the device image", path)(errno.into())),
        }
        self.published = true;
        // Only now: a directory of a temporary name whose lock is free may count as a leftover.
        self.lock = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.published {
            // The error that led here is the one to report; what stays is swept by the next creation.
            let _ = fs::remove_dir_all(self.layout.root());
        }
    }
}

/// Makes the region: formatted, all its room reserved, and on disk.
fn make_pmr(path: &Path, bytes: u64, uuid: Uuid) -> Result<(), ImageError> {
    let operation = "making the persistent memory region";
    Region::create(&Backing::File(path.to_owned()), bytes, uuid.0).and_then(|region| region.sync()).map_err(|error| {
        match error {
            PmrError::NoSpace { .. } => {
                io_error(operation, path)(io::Error::new(io::ErrorKind::StorageFull, "no space left"))
            }
            PmrError::Io { source, .. } => io_error(operation, path)(source),
            other => io_error(operation, path)(io::Error::other(other.to_string())),
        }
    })
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    let write = || -> io::Result<()> {
        let mut file = new_file(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(io_error("writing", path))
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// The directory in which `path` is named.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
