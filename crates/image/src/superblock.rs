//! The superblock: what an image is, in two checksummed copies.
//!
//! This module knows bytes and meaning, not files. [`Superblock::decode`] is the only door from bytes
//! to a value, and it lets through nothing that [`Superblock::encode`] would not have written: every
//! reserved byte is checked to be zero, so that a later format can give it a meaning.
//!
//! Invariants:
//! 1. The place of the magic, of the version and of the checksum is the same in every format version,
//!    so that any version can tell a newer superblock from a damaged one.
//! 2. Only the incarnation differs between the two copies (and the byte that says which copy it is).
//! 3. Of two valid copies the one with the higher incarnation is current.
//!
//! The layout, byte by byte, is in `docs/formats-image.md`.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::uuid::Uuid;

/// The first eight bytes of each copy.
pub const MAGIC: [u8; 8] = *b"OSIERIMG";
/// The format version that this program writes, and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;
/// The size of one copy.
pub const COPY_BYTES: usize = 4096;
/// How many copies the superblock file holds.
pub const COPIES: usize = 2;
/// The size of the superblock file.
pub const SUPERBLOCK_BYTES: usize = COPY_BYTES * COPIES;
/// The longest profile name, in bytes of UTF-8.
pub const PROFILE_NAME_BYTES_MAX: usize = 64;
/// The longest path to a block device, in bytes.
pub const MEDIA_PATH_BYTES_MAX: usize = 1024;

const VERSION_AT: usize = 8;
const COPY_AT: usize = 12;
const UUID_AT: usize = 16;
const INCARNATION_AT: usize = 32;
const MEDIA_BYTES_AT: usize = 40;
const PMR_BYTES_AT: usize = 48;
const LOGICAL_BLOCKS_AT: usize = 56;
const CREATED_AT: usize = 64;
const MEDIA_KIND_AT: usize = 72;
const PROFILE_BYTES_AT: usize = 76;
const PROFILE_CRC_AT: usize = 80;
const PROFILE_NAME_LENGTH_AT: usize = 84;
const MEDIA_PATH_LENGTH_AT: usize = 88;
const RESERVED_A_AT: usize = 92;
const PROFILE_NAME_AT: usize = 96;
const MEDIA_PATH_AT: usize = 160;
const RESERVED_B_AT: usize = 1184;
const CRC_AT: usize = 4092;

const _: () = assert!(PROFILE_NAME_AT == RESERVED_A_AT + 4);
const _: () = assert!(MEDIA_PATH_AT == PROFILE_NAME_AT + PROFILE_NAME_BYTES_MAX);
const _: () = assert!(RESERVED_B_AT == MEDIA_PATH_AT + MEDIA_PATH_BYTES_MAX);
const _: () = assert!(CRC_AT + 4 == COPY_BYTES);

/// How often an image was started. It rises, and is on disk, before a start does anything else, so a
/// number drawn under one incarnation (a nonce, a ring's generation) is never drawn again under a later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where the bytes of the flash array live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaKind {
    /// A sparse file, `media`, in the image.
    File,
    /// A block device at this absolute path.
    Block(PathBuf),
    /// Anonymous memory: empty again after each start.
    Memory,
    /// No bytes at all: a device for timing only.
    None,
}

impl MediaKind {
    fn code(&self) -> u32 {
        match self {
            Self::File => 1,
            Self::Block(_) => 2,
            Self::Memory => 3,
            Self::None => 4,
        }
    }

    /// The word by which the command line and the tables name this kind.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Block(_) => "block",
            Self::Memory => "memory",
            Self::None => "none",
        }
    }

    /// The path kept in the superblock, empty for all kinds but a block device.
    fn path_bytes(&self) -> &[u8] {
        match self {
            Self::Block(path) => path.as_os_str().as_encoded_bytes(),
            Self::File | Self::Memory | Self::None => &[],
        }
    }
}

impl fmt::Display for MediaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(path) => write!(f, "block {}", path.display()),
            other => f.write_str(other.word()),
        }
    }
}

/// What an image is. Everything but the incarnation is fixed when the image is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The image's identity.
    pub uuid: Uuid,
    /// How often the image was started.
    pub incarnation: Incarnation,
    /// Where the media are.
    pub media: MediaKind,
    /// The size of the flash array in bytes.
    pub media_bytes: u64,
    /// The size of the persistent memory region in bytes.
    pub pmr_bytes: u64,
    /// The capacity shown to programs, in logical blocks of 4096 bytes.
    pub logical_blocks: u64,
    /// When the image was made, in seconds since 1970 (UTC).
    pub created_unix_seconds: u64,
    /// The name of the profile.
    pub profile_name: String,
    /// The length of `profile.toml` in bytes.
    pub profile_bytes: u32,
    /// The CRC-32C of `profile.toml`.
    pub profile_crc: u32,
}

/// Why one copy of the superblock cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyFault {
    /// The file ends before the copy does; this many bytes of it are there.
    Short(usize),
    /// The magic is not there.
    Magic,
    /// The checksum does not match.
    Checksum {
        /// The checksum in the copy.
        stored: u32,
        /// The checksum of the copy's bytes.
        computed: u32,
    },
    /// The copy is whole but of a format that this program does not know.
    Newer(u32),
    /// The checksum is right and yet this field holds what no version 1 writes.
    Field(&'static str),
}

impl fmt::Display for CopyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(bytes) => write!(f, "only {bytes} of {COPY_BYTES} bytes are there"),
            Self::Magic => f.write_str("the magic OSIERIMG is missing"),
            Self::Checksum { stored, computed } => {
                write!(f, "checksum {stored:08x} stored, {computed:08x} computed")
            }
            Self::Newer(version) => {
                write!(f, "format version {version}, newer than {FORMAT_VERSION}")
            }
            Self::Field(name) => write!(f, "the field `{name}` holds an impossible value"),
        }
    }
}

/// What the two copies said together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The current superblock.
    pub superblock: Superblock,
    /// What is wrong with each copy; at least one is sound.
    pub faults: [Option<CopyFault>; COPIES],
}

impl Reading {
    /// The number of a damaged copy, if there is one.
    #[must_use]
    pub fn damaged_copy(&self) -> Option<usize> {
        self.faults.iter().position(Option::is_some)
    }
}

/// Why a superblock file gives no superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadFault {
    /// Neither copy has the magic: this was never a superblock.
    NotASuperblock,
    /// A sound copy of a newer format is there: a newer program owns this image.
    Newer(u32),
    /// Both copies are damaged.
    BothDamaged([CopyFault; COPIES]),
    /// Both copies are sound and describe two different images.
    Disagree,
}

impl Superblock {
    /// The bytes of copy number `copy`.
    ///
    /// # Panics
    /// When a name or path is longer than its field, or `copy` is not a copy's number: the
    /// constructor of an image checks them first.
    #[must_use]
    pub fn encode(&self, copy: usize) -> [u8; COPY_BYTES] {
        assert!(copy < COPIES, "superblock copy {copy} does not exist");
        let name = self.profile_name.as_bytes();
        let path = self.media.path_bytes();
        assert!(!name.is_empty() && name.len() <= PROFILE_NAME_BYTES_MAX, "profile name out of bounds");
        assert!(path.len() <= MEDIA_PATH_BYTES_MAX, "media path out of bounds");
        let mut bytes = [0u8; COPY_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        put_u32(&mut bytes, VERSION_AT, FORMAT_VERSION);
        put_u32(&mut bytes, COPY_AT, copy as u32);
        bytes[UUID_AT..UUID_AT + 16].copy_from_slice(&self.uuid.0);
        put_u64(&mut bytes, INCARNATION_AT, self.incarnation.0);
        put_u64(&mut bytes, MEDIA_BYTES_AT, self.media_bytes);
        put_u64(&mut bytes, PMR_BYTES_AT, self.pmr_bytes);
        put_u64(&mut bytes, LOGICAL_BLOCKS_AT, self.logical_blocks);
        put_u64(&mut bytes, CREATED_AT, self.created_unix_seconds);
        put_u32(&mut bytes, MEDIA_KIND_AT, self.media.code());
        put_u32(&mut bytes, PROFILE_BYTES_AT, self.profile_bytes);
        put_u32(&mut bytes, PROFILE_CRC_AT, self.profile_crc);
        put_u32(&mut bytes, PROFILE_NAME_LENGTH_AT, name.len() as u32);
        put_u32(&mut bytes, MEDIA_PATH_LENGTH_AT, path.len() as u32);
        bytes[PROFILE_NAME_AT..PROFILE_NAME_AT + name.len()].copy_from_slice(name);
        bytes[MEDIA_PATH_AT..MEDIA_PATH_AT + path.len()].copy_from_slice(path);
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        put_u32(&mut bytes, CRC_AT, crc);
        bytes
    }

    /// The superblock in the bytes of copy number `copy`.
    ///
    /// # Errors
    /// The first fault found, in the order magic, checksum, version, fields.
    pub fn decode(bytes: &[u8], copy: usize) -> Result<Self, CopyFault> {
        if bytes.len() < COPY_BYTES {
            return Err(CopyFault::Short(bytes.len()));
        }
        if bytes[..MAGIC.len()] != MAGIC {
            return Err(CopyFault::Magic);
        }
        let stored = get_u32(bytes, CRC_AT);
        let computed = crc32c::crc32c(&bytes[..CRC_AT]);
        if stored != computed {
            return Err(CopyFault::Checksum { stored, computed });
        }
        let version = get_u32(bytes, VERSION_AT);
        if version > FORMAT_VERSION {
            return Err(CopyFault::Newer(version));
        }
        if version == 0 {
            return Err(CopyFault::Field("version"));
        }
        if get_u32(bytes, COPY_AT) as usize != copy {
            return Err(CopyFault::Field("copy"));
        }
        Self::decode_fields(bytes)
    }

    fn decode_fields(bytes: &[u8]) -> Result<Self, CopyFault> {
        if bytes[RESERVED_A_AT..PROFILE_NAME_AT].iter().any(|b| *b != 0)
            || bytes[RESERVED_B_AT..CRC_AT].iter().any(|b| *b != 0)
        {
            return Err(CopyFault::Field("reserved"));
        }
        let name = field(bytes, PROFILE_NAME_AT, PROFILE_NAME_BYTES_MAX, PROFILE_NAME_LENGTH_AT)
            .ok_or(CopyFault::Field("profile name"))?;
        let name = std::str::from_utf8(name).map_err(|_| CopyFault::Field("profile name"))?;
        if name.is_empty() {
            return Err(CopyFault::Field("profile name"));
        }
        let path = field(bytes, MEDIA_PATH_AT, MEDIA_PATH_BYTES_MAX, MEDIA_PATH_LENGTH_AT)
            .ok_or(CopyFault::Field("media path"))?;
        let superblock = Self {
            uuid: Uuid::from_slice(&bytes[UUID_AT..UUID_AT + 16]),
            incarnation: Incarnation(get_u64(bytes, INCARNATION_AT)),
            media: decode_media(get_u32(bytes, MEDIA_KIND_AT), path)?,
            media_bytes: get_u64(bytes, MEDIA_BYTES_AT),
            pmr_bytes: get_u64(bytes, PMR_BYTES_AT),
            logical_blocks: get_u64(bytes, LOGICAL_BLOCKS_AT),
            created_unix_seconds: get_u64(bytes, CREATED_AT),
            profile_name: name.to_owned(),
            profile_bytes: get_u32(bytes, PROFILE_BYTES_AT),
            profile_crc: get_u32(bytes, PROFILE_CRC_AT),
        };
        if superblock.media_bytes == 0 || superblock.pmr_bytes == 0 || superblock.logical_blocks == 0 {
            return Err(CopyFault::Field("size"));
        }
        Ok(superblock)
    }

    /// Reads both copies of a superblock file.
    ///
    /// # Errors
    /// See [`ReadFault`]. A sound copy of a newer format refuses the image even when the other copy is
    /// of this one: a newer program has been at work, and what it meant is not known here.
    pub fn read(bytes: &[u8]) -> Result<Reading, ReadFault> {
        let split = bytes.len().min(COPY_BYTES);
        let end = bytes.len().min(SUPERBLOCK_BYTES);
        let (first, second) = (Self::decode(&bytes[..split], 0), Self::decode(&bytes[split..end], 1));
        for copy in [&first, &second] {
            if let Err(CopyFault::Newer(version)) = copy {
                return Err(ReadFault::Newer(*version));
            }
        }
        match (first, second) {
            (Ok(a), Ok(b)) if !a.same_image(&b) => Err(ReadFault::Disagree),
            (Ok(a), Ok(b)) => {
                let superblock = if a.incarnation >= b.incarnation { a } else { b };
                Ok(Reading { superblock, faults: [None, None] })
            }
            (Ok(a), Err(fault)) => Ok(Reading { superblock: a, faults: [None, Some(fault)] }),
            (Err(fault), Ok(b)) => Ok(Reading { superblock: b, faults: [Some(fault), None] }),
            (Err(_), Err(_)) if !has_magic(bytes) => Err(ReadFault::NotASuperblock),
            (Err(a), Err(b)) => Err(ReadFault::BothDamaged([a, b])),
        }
    }

    fn same_image(&self, other: &Self) -> bool {
        let other = Self { incarnation: self.incarnation, ..other.clone() };
        *self == other
    }
}

/// Whether either copy begins with the magic, be it damaged or not.
#[must_use]
pub fn has_magic(bytes: &[u8]) -> bool {
    let at = |offset: usize| bytes.get(offset..offset + MAGIC.len()) == Some(&MAGIC[..]);
    at(0) || at(COPY_BYTES)
}

fn decode_media(code: u32, path: &[u8]) -> Result<MediaKind, CopyFault> {
    use std::os::unix::ffi::OsStrExt;
    let kind = match code {
        1 => MediaKind::File,
        2 => MediaKind::Block(Path::new(std::ffi::OsStr::from_bytes(path)).to_owned()),
        3 => MediaKind::Memory,
        4 => MediaKind::None,
        _ => return Err(CopyFault::Field("media kind")),
    };
    let block = matches!(kind, MediaKind::Block(_));
    if block != path.starts_with(b"/") || path.contains(&0) {
        return Err(CopyFault::Field("media path"));
    }
    Ok(kind)
}

/// The used part of a zero-padded text field, or nothing when its length or its padding is wrong.
fn field(bytes: &[u8], at: usize, bytes_max: usize, length_at: usize) -> Option<&[u8]> {
    let length = get_u32(bytes, length_at) as usize;
    let whole = &bytes[at..at + bytes_max];
    let used = whole.get(..length)?;
    whole[length..].iter().all(|b| *b == 0).then_some(used)
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn get_u64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
#[path = "superblock_tests.rs"]
mod tests;
