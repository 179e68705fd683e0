//! The headers on the media, byte by byte, and nothing else.
//!
//! Two structures of 64 bytes, little-endian, each closed by a CRC-32C: one at the start of the first two
//! pages of every superblock, one before the payload of every extent. `docs/formats-flash.md` is the same in prose.
//!
//! The CRC of an extent's header also covers where it lies (superblock and offset), which is not
//! stored: a header that was written to the wrong place, or survives from another place, is invalid.
//! It carries the sequence and the salt of the superblock's life, so what an interrupted erase left
//! behind does not mix with what was written since. CRC-32C has Hamming distance 6 at this length, so
//! a single flipped bit is put right and up to four more are still noticed.

use crate::{Geometry, Lba};

/// Bytes of an extent's header.
pub const EXTENT_HEADER_BYTES: u32 = 64;
/// Bytes of a superblock's header.
pub const SUPERBLOCK_HEADER_BYTES: u32 = 64;
/// Extents begin at multiples of this.
pub const EXTENT_ALIGN: u32 = 16;
/// Version of the format that this crate writes, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 1;

const EXTENT_MAGIC: u32 = u32::from_le_bytes(*b"OSXT");
const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"OSIERSB\x1a");
const FLAG_DAMAGED: u16 = 1;
/// Value of the `unsynced` field that claims nothing.
const UNSYNCED_UNKNOWN: u32 = u32::MAX;

/// An image of a header.
pub(crate) type HeaderBytes = [u8; 64];

const _: () = assert!(size_of::<HeaderBytes>() == EXTENT_HEADER_BYTES as usize);
const _: () = assert!(size_of::<HeaderBytes>() == SUPERBLOCK_HEADER_BYTES as usize);
const _: () = assert!(EXTENT_HEADER_BYTES.is_multiple_of(EXTENT_ALIGN));

/// Offsets of the fields, so that writing and reading cannot disagree.
mod extent_at {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 4;
    pub const KIND: usize = 5;
    pub const FLAGS: usize = 6;
    pub const SLBA: usize = 8;
    pub const SEQUENCE: usize = 16;
    pub const LIFE: usize = 24;
    pub const BLOCKS: usize = 32;
    pub const RAW_BYTES: usize = 36;
    pub const STORED_BYTES: usize = 40;
    pub const TAG: usize = 44;
    pub const CHECKSUM: usize = 48;
    pub const SALT: usize = 52;
    pub const UNSYNCED: usize = 56;
    pub const CRC: usize = 60;
}

mod superblock_at {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 8;
    pub const STREAM: usize = 10;
    pub const RESERVED: usize = 11;
    pub const INDEX: usize = 12;
    pub const SEQUENCE: usize = 16;
    pub const ERASE_COUNT: usize = 24;
    pub const GEOMETRY: usize = 28;
    pub const TRUSTED_SEQUENCE: usize = 32;
    pub const HOST_DISTANCE: usize = 40;
    pub const RELOCATION_DISTANCE: usize = 44;
    pub const NOTE_SUPERBLOCK: usize = 48;
    pub const NOTE_ERASE_COUNT: usize = 52;
    pub const SALT: usize = 56;
    pub const CRC: usize = 60;
}

const _: () = assert!(extent_at::CRC + 4 == EXTENT_HEADER_BYTES as usize);
const _: () = assert!(superblock_at::CRC + 4 == SUPERBLOCK_HEADER_BYTES as usize);

/// What an extent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Payload for its blocks.
    Data,
    /// Its blocks read as never written.
    Trim,
}

/// Who writes a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Appends and trims of the host.
    Host,
    /// What garbage collection moves.
    Relocation,
}

impl StreamKind {
    pub(crate) const ALL: [StreamKind; 2] = [StreamKind::Host, StreamKind::Relocation];

    pub(crate) const fn index(self) -> usize {
        match self {
            StreamKind::Host => 0,
            StreamKind::Relocation => 1,
        }
    }
}

/// Bytes that an extent with this payload takes on the media, header and alignment included.
#[must_use]
pub const fn extent_footprint(stored_bytes: u32) -> u32 {
    (EXTENT_HEADER_BYTES + stored_bytes).next_multiple_of(EXTENT_ALIGN)
}

/// Offsets in a superblock of its header and of the header's copy: at the start of its first two pages,
/// so that neither the loss nor the decay of one page takes a superblock's extents along.
pub(crate) const fn header_offsets(geometry: &Geometry) -> [u64; 2] {
    [0, geometry.page_bytes as u64]
}

/// Offset in a superblock of its first extent. The rest of the first page is padding: an extent may not
/// be interrupted by the copy.
pub(crate) const fn first_extent_offset(geometry: &Geometry) -> u64 {
    header_offsets(geometry)[1] + SUPERBLOCK_HEADER_BYTES as u64
}

/// Where a header lies, in the terms that its CRC covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeaderPlace {
    pub superblock: u32,
    /// Offset in the superblock, in units of [`EXTENT_ALIGN`].
    pub offset16: u32,
}

/// Header of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentHeader {
    pub kind: ExtentKind,
    /// The payload did not fit its checksum when it was relocated: it is kept so that reads fail,
    /// and must not be taken for a write that was torn.
    pub damaged: bool,
    pub slba: Lba,
    pub blocks: u32,
    pub raw_bytes: u32,
    pub stored_bytes: u32,
    pub tag: u32,
    pub checksum: u32,
    pub sequence: u64,
    /// Sequence of the superblock's life.
    pub life: u64,
    pub salt: u32,
    /// Every record up to this sequence was synced when this one was written.
    pub trusted_sequence: Option<u64>,
}

/// Header of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SuperblockHeader {
    pub stream: StreamKind,
    pub index: u32,
    pub sequence: u64,
    pub erase_count: u32,
    pub geometry: u32,
    /// Every record up to this sequence was synced when the superblock was opened.
    pub trusted_sequence: u64,
    /// Superblocks of each stream below this sequence were wholly programmed, synced and undamaged.
    pub trusted_superblocks: [u64; 2],
    /// Erase count of some free superblock, whose own header is erased.
    pub note: Option<(u32, u32)>,
    pub salt: u32,
}

/// Why 64 bytes are not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    /// Another magic number or a wrong CRC.
    Invalid,
    /// Sound, but of a format version that is not known.
    Version(u16),
}

/// A header, and whether a bit of it had to be put right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decoded<T> {
    pub header: T,
    pub repaired: bool,
}

impl ExtentHeader {
    pub(crate) fn encode(&self, place: HeaderPlace) -> HeaderBytes {
        use extent_at as at;
        let mut bytes = [0; 64];
        put(&mut bytes, at::MAGIC, EXTENT_MAGIC.to_le_bytes());
        put(&mut bytes, at::VERSION, [FORMAT_VERSION as u8]);
        put(
            &mut bytes,
            at::KIND,
            [match self.kind {
                ExtentKind::Data => 1,
                ExtentKind::Trim => 2,
            }],
        );
        put(&mut bytes, at::FLAGS, if self.damaged { FLAG_DAMAGED } else { 0 }.to_le_bytes());
        put(&mut bytes, at::SLBA, self.slba.0.to_le_bytes());
        put(&mut bytes, at::SEQUENCE, self.sequence.to_le_bytes());
        put(&mut bytes, at::LIFE, self.life.to_le_bytes());
        put(&mut bytes, at::BLOCKS, self.blocks.to_le_bytes());
        put(&mut bytes, at::RAW_BYTES, self.raw_bytes.to_le_bytes());
        put(&mut bytes, at::STORED_BYTES, self.stored_bytes.to_le_bytes());
        put(&mut bytes, at::TAG, self.tag.to_le_bytes());
        put(&mut bytes, at::CHECKSUM, self.checksum.to_le_bytes());
        put(&mut bytes, at::SALT, self.salt.to_le_bytes());
        put(&mut bytes, at::UNSYNCED, self.unsynced().to_le_bytes());
        let crc = extent_crc(&bytes, place);
        put(&mut bytes, at::CRC, crc.to_le_bytes());
        bytes
    }

    /// Reads a header that is expected at `place`.
    pub(crate) fn decode(bytes: &HeaderBytes, place: HeaderPlace) -> Result<ExtentHeader, HeaderFault> {
        use extent_at as at;
        let magic = u32::from_le_bytes(get(bytes, at::MAGIC));
        if magic != EXTENT_MAGIC || u32::from_le_bytes(get(bytes, at::CRC)) != extent_crc(bytes, place) {
            return Err(HeaderFault::Invalid);
        }
        let [version] = get(bytes, at::VERSION);
        if u16::from(version) != FORMAT_VERSION {
            return Err(HeaderFault::Version(u16::from(version)));
        }
        let kind = match get(bytes, at::KIND) {
            [1] => ExtentKind::Data,
            [2] => ExtentKind::Trim,
            _ => return Err(HeaderFault::Invalid),
        };
        let sequence = u64::from_le_bytes(get(bytes, at::SEQUENCE));
        let unsynced = u32::from_le_bytes(get(bytes, at::UNSYNCED));
        Ok(ExtentHeader {
            kind,
            damaged: u16::from_le_bytes(get(bytes, at::FLAGS)) & FLAG_DAMAGED != 0,
            slba: Lba(u64::from_le_bytes(get(bytes, at::SLBA))),
            blocks: u32::from_le_bytes(get(bytes, at::BLOCKS)),
            raw_bytes: u32::from_le_bytes(get(bytes, at::RAW_BYTES)),
            stored_bytes: u32::from_le_bytes(get(bytes, at::STORED_BYTES)),
            tag: u32::from_le_bytes(get(bytes, at::TAG)),
            checksum: u32::from_le_bytes(get(bytes, at::CHECKSUM)),
            sequence,
            life: u64::from_le_bytes(get(bytes, at::LIFE)),
            salt: u32::from_le_bytes(get(bytes, at::SALT)),
            trusted_sequence: match unsynced {
                UNSYNCED_UNKNOWN => None,
                distance => sequence.checked_sub(u64::from(distance)),
            },
        })
    }

    /// As [`ExtentHeader::decode`], and puts a single flipped bit right.
    pub(crate) fn decode_repairing(
        bytes: &HeaderBytes,
        place: HeaderPlace,
    ) -> Result<Decoded<ExtentHeader>, HeaderFault> {
        repairing(bytes, extent_at::MAGIC..extent_at::MAGIC + 4, &EXTENT_MAGIC.to_le_bytes(), |bytes| {
            ExtentHeader::decode(bytes, place)
        })
    }

    /// Whether these bytes may begin a header, cheap enough to ask at every multiple of the alignment.
    pub(crate) fn looks_like(bytes: &[u8]) -> bool {
        bytes.starts_with(&EXTENT_MAGIC.to_le_bytes())
    }

    fn unsynced(&self) -> u32 {
        self.trusted_sequence
            .and_then(|trusted| self.sequence.checked_sub(trusted))
            .and_then(|distance| u32::try_from(distance).ok())
            .unwrap_or(UNSYNCED_UNKNOWN)
    }
}

impl SuperblockHeader {
    pub(crate) fn encode(&self) -> HeaderBytes {
        use superblock_at as at;
        let mut bytes = [0; 64];
        put(&mut bytes, at::MAGIC, SUPERBLOCK_MAGIC.to_le_bytes());
        put(&mut bytes, at::VERSION, FORMAT_VERSION.to_le_bytes());
        put(&mut bytes, at::STREAM, [self.stream.index() as u8 + 1]);
        put(&mut bytes, at::RESERVED, [0]);
        put(&mut bytes, at::INDEX, self.index.to_le_bytes());
        put(&mut bytes, at::SEQUENCE, self.sequence.to_le_bytes());
        put(&mut bytes, at::ERASE_COUNT, self.erase_count.to_le_bytes());
        put(&mut bytes, at::GEOMETRY, self.geometry.to_le_bytes());
        put(&mut bytes, at::TRUSTED_SEQUENCE, self.trusted_sequence.to_le_bytes());
        put(&mut bytes, at::HOST_DISTANCE, self.distance(StreamKind::Host).to_le_bytes());
        put(&mut bytes, at::RELOCATION_DISTANCE, self.distance(StreamKind::Relocation).to_le_bytes());
        let (superblock, erase_count) = self.note.unwrap_or((u32::MAX, 0));
        put(&mut bytes, at::NOTE_SUPERBLOCK, superblock.to_le_bytes());
        put(&mut bytes, at::NOTE_ERASE_COUNT, erase_count.to_le_bytes());
        put(&mut bytes, at::SALT, self.salt.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..at::CRC]);
        put(&mut bytes, at::CRC, crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &HeaderBytes) -> Result<SuperblockHeader, HeaderFault> {
        use superblock_at as at;
        let magic = u64::from_le_bytes(get(bytes, at::MAGIC));
        if magic != SUPERBLOCK_MAGIC || u32::from_le_bytes(get(bytes, at::CRC)) != crc32c::crc32c(&bytes[..at::CRC]) {
            return Err(HeaderFault::Invalid);
        }
        let version = u16::from_le_bytes(get(bytes, at::VERSION));
        if version != FORMAT_VERSION {
            return Err(HeaderFault::Version(version));
        }
        let stream = match get(bytes, at::STREAM) {
            [1] => StreamKind::Host,
            [2] => StreamKind::Relocation,
            _ => return Err(HeaderFault::Invalid),
        };
        let sequence = u64::from_le_bytes(get(bytes, at::SEQUENCE));
        let trusted = |at| sequence.saturating_sub(u64::from(u32::from_le_bytes(get(bytes, at))));
        let note = u32::from_le_bytes(get(bytes, at::NOTE_SUPERBLOCK));
        Ok(SuperblockHeader {
            stream,
            index: u32::from_le_bytes(get(bytes, at::INDEX)),
            sequence,
            erase_count: u32::from_le_bytes(get(bytes, at::ERASE_COUNT)),
            geometry: u32::from_le_bytes(get(bytes, at::GEOMETRY)),
            trusted_sequence: u64::from_le_bytes(get(bytes, at::TRUSTED_SEQUENCE)),
            trusted_superblocks: [trusted(at::HOST_DISTANCE), trusted(at::RELOCATION_DISTANCE)],
            note: (note != u32::MAX).then(|| (note, u32::from_le_bytes(get(bytes, at::NOTE_ERASE_COUNT)))),
            salt: u32::from_le_bytes(get(bytes, at::SALT)),
        })
    }

    /// As [`SuperblockHeader::decode`], and puts a single flipped bit right.
    pub(crate) fn decode_repairing(bytes: &HeaderBytes) -> Result<Decoded<SuperblockHeader>, HeaderFault> {
        let magic = superblock_at::MAGIC..superblock_at::MAGIC + 8;
        repairing(bytes, magic, &SUPERBLOCK_MAGIC.to_le_bytes(), SuperblockHeader::decode)
    }

    /// A distance that does not fit says "trust less", which is safe.
    fn distance(&self, stream: StreamKind) -> u32 {
        let distance = self.sequence.saturating_sub(self.trusted_superblocks[stream.index()]);
        u32::try_from(distance).unwrap_or(u32::MAX)
    }
}

/// Decodes as it is, then with each bit flipped in turn. The magic number must be right but for one
/// bit before the search is worth its 512 checksums.
fn repairing<T>(
    bytes: &HeaderBytes,
    magic_at: core::ops::Range<usize>,
    magic: &[u8],
    decode: impl Fn(&HeaderBytes) -> Result<T, HeaderFault>,
) -> Result<Decoded<T>, HeaderFault> {
    match decode(bytes) {
        Ok(header) => return Ok(Decoded { header, repaired: false }),
        Err(HeaderFault::Version(version)) => return Err(HeaderFault::Version(version)),
        Err(HeaderFault::Invalid) => {}
    }
    let wrong_bits: u32 = bytes[magic_at].iter().zip(magic).map(|(a, b)| (a ^ b).count_ones()).sum();
    if wrong_bits > 1 {
        return Err(HeaderFault::Invalid);
    }
    let mut candidate = *bytes;
    for bit in 0..bytes.len() * 8 {
        candidate[bit / 8] ^= 1 << (bit % 8);
        match decode(&candidate) {
            Ok(header) => return Ok(Decoded { header, repaired: true }),
            Err(HeaderFault::Version(version)) => return Err(HeaderFault::Version(version)),
            Err(HeaderFault::Invalid) => candidate[bit / 8] ^= 1 << (bit % 8),
        }
    }
    Err(HeaderFault::Invalid)
}

fn extent_crc(bytes: &HeaderBytes, place: HeaderPlace) -> u32 {
    let mut where_it_lies = [0; 8];
    where_it_lies[..4].copy_from_slice(&place.superblock.to_le_bytes());
    where_it_lies[4..].copy_from_slice(&place.offset16.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..extent_at::CRC]), &where_it_lies)
}

fn put<const N: usize>(bytes: &mut HeaderBytes, at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn get<const N: usize>(bytes: &HeaderBytes, at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: HeaderPlace = HeaderPlace { superblock: 3, offset16: 77 };

    fn extent() -> ExtentHeader {
        ExtentHeader {
            kind: ExtentKind::Data,
            damaged: false,
            slba: Lba(0x0102_0304_0506),
            blocks: 16,
            raw_bytes: 65_536,
            stored_bytes: 1_234,
            tag: 9,
            checksum: 0xdead_beef,
            sequence: 1_000_000,
            life: 42,
            salt: 7,
            trusted_sequence: Some(999_000),
        }
    }

    fn superblock() -> SuperblockHeader {
        SuperblockHeader {
            stream: StreamKind::Relocation,
            index: 5,
            sequence: 100,
            erase_count: 12,
            geometry: 0x1234_5678,
            trusted_sequence: 17,
            trusted_superblocks: [90, 80],
            note: Some((6, 11)),
            salt: 99,
        }
    }

    #[test]
    fn headers_come_back_as_they_were() {
        let trim = ExtentHeader { kind: ExtentKind::Trim, damaged: true, trusted_sequence: None, ..extent() };
        for header in [extent(), trim] {
            assert_eq!(ExtentHeader::decode(&header.encode(PLACE), PLACE), Ok(header));
        }
        for header in [superblock(), SuperblockHeader { note: None, ..superblock() }] {
            assert_eq!(SuperblockHeader::decode(&header.encode()), Ok(header));
        }
    }

    /// The layout is a promise to media already written: this image changes with the version only.
    #[test]
    fn the_bytes_are_the_documented_ones() {
        let bytes = extent().encode(PLACE);
        assert_eq!(&bytes[..8], b"OSXT\x01\x01\x00\x00");
        assert_eq!(&bytes[8..16], &[6, 5, 4, 3, 2, 1, 0, 0]);
        assert_eq!(&bytes[16..24], &1_000_000_u64.to_le_bytes());
        assert_eq!(&bytes[24..32], &42_u64.to_le_bytes());
        let words: Vec<u32> = bytes[32..60].chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [16, 65_536, 1_234, 9, 0xdead_beef, 7, 1_000]);
        let bytes = superblock().encode();
        assert_eq!(&bytes[..12], b"OSIERSB\x1a\x01\x00\x02\x00");
        let words: Vec<u32> = bytes[12..60].chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [5, 100, 0, 12, 0x1234_5678, 17, 0, 10, 20, 6, 11, 99]);
    }

    #[test]
    fn every_single_flipped_bit_is_put_right_and_two_are_refused() {
        let good = extent().encode(PLACE);
        for bit in 0..512 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let decoded = ExtentHeader::decode_repairing(&bytes, PLACE).unwrap();
            assert_eq!(decoded, Decoded { header: extent(), repaired: true }, "bit {bit}");
            let other = (bit * 7 + 131) % 512;
            if other != bit {
                bytes[other / 8] ^= 1 << (other % 8);
                assert_eq!(
                    ExtentHeader::decode_repairing(&bytes, PLACE),
                    Err(HeaderFault::Invalid),
                    "bits {bit} {other}"
                );
            }
            let mut bytes = superblock().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SuperblockHeader::decode_repairing(&bytes).unwrap().header, superblock(), "bit {bit}");
        }
    }

    #[test]
    fn a_header_in_the_wrong_place_is_invalid() {
        let bytes = extent().encode(PLACE);
        for place in [HeaderPlace { superblock: 4, ..PLACE }, HeaderPlace { offset16: 78, ..PLACE }] {
            assert_eq!(ExtentHeader::decode_repairing(&bytes, place), Err(HeaderFault::Invalid));
        }
    }

    #[test]
    fn a_sound_header_of_another_version_says_so() {
        let mut bytes = superblock().encode();
        bytes[superblock_at::VERSION] = 2;
        let crc = crc32c::crc32c(&bytes[..superblock_at::CRC]);
        put(&mut bytes, superblock_at::CRC, crc.to_le_bytes());
        assert_eq!(SuperblockHeader::decode_repairing(&bytes), Err(HeaderFault::Version(2)));
        let mut bytes = extent().encode(PLACE);
        bytes[extent_at::VERSION] = 3;
        let crc = extent_crc(&bytes, PLACE);
        put(&mut bytes, extent_at::CRC, crc.to_le_bytes());
        assert_eq!(ExtentHeader::decode_repairing(&bytes, PLACE), Err(HeaderFault::Version(3)));
    }

    #[test]
    fn footprints_are_aligned() {
        assert_eq!(extent_footprint(0), 64);
        assert_eq!(extent_footprint(1), 80);
        assert_eq!(extent_footprint(4096), 4160);
    }
}
