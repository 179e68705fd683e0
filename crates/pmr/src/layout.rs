//! The bytes of a region: header page and table entries, as values and back.
//!
//! Pure: no memory is touched here. All integers are little-endian. `docs/formats-pmr.md` states the
//! same layout in prose; the assertions at the end keep both from drifting apart unnoticed.

/// First eight bytes of every region.
pub const REGION_MAGIC: [u8; 8] = *b"OSIERPMR";
/// Version of the format that this program writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;
/// Unit of mapping, and of page tags.
pub const PAGE_BYTES: u64 = 4096;
/// Smallest alignment of an object: a cache line, so that two objects never share one.
pub const LINE_BYTES: u64 = 64;
/// Objects that a region can hold.
pub const TABLE_ENTRIES: u32 = 512;
/// Bytes of a table entry: one cache line.
pub const ENTRY_BYTES: u64 = 64;
/// Where the table begins.
pub const TABLE_OFFSET: u64 = PAGE_BYTES;
/// Where the objects' bytes begin.
pub const DATA_OFFSET: u64 = TABLE_OFFSET + TABLE_ENTRIES as u64 * ENTRY_BYTES;
/// Smallest region: the header, the table and a little room.
pub const REGION_BYTES_MIN: u64 = 64 * 1024;
/// Largest region; bounded by the watermark, which counts pages in 32 bits.
pub const REGION_BYTES_MAX: u64 = 1 << 43;
/// Longest name of an object, in bytes.
pub const NAME_BYTES: usize = 32;

/// End of the part of the header page that never changes; the checksum is its last four bytes.
pub(crate) const HEADER_BYTES: usize = 2048;
/// The word that says which pages may hold old bytes.
pub(crate) const WATERMARK_OFFSET: u64 = 2048;
/// The word that numbers allocations.
pub(crate) const SERIAL_OFFSET: u64 = 2056;

const HEADER_CRC_AT: usize = HEADER_BYTES - 4;
const STATE_USED: u8 = 1;

/// What the header page says; it never changes after creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the whole region.
    pub region_bytes: u64,
    /// The identity that the creator gave, for example that of the device image.
    pub uuid: [u8; 16],
}

/// Why a header was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    NotARegion,
    NewerVersion(u32),
    Damaged(String),
}

impl Header {
    /// The unchanging part of the header page.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut page = [0; HEADER_BYTES];
        page[0..8].copy_from_slice(&REGION_MAGIC);
        page[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        let prefix_crc = crc32c::crc32c(&page[0..12]);
        page[12..16].copy_from_slice(&prefix_crc.to_le_bytes());
        page[16..24].copy_from_slice(&self.region_bytes.to_le_bytes());
        page[24..40].copy_from_slice(&self.uuid);
        page[40..48].copy_from_slice(&TABLE_OFFSET.to_le_bytes());
        page[48..52].copy_from_slice(&TABLE_ENTRIES.to_le_bytes());
        page[52..56].copy_from_slice(&(ENTRY_BYTES as u32).to_le_bytes());
        page[56..64].copy_from_slice(&DATA_OFFSET.to_le_bytes());
        let crc = crc32c::crc32c(&page[..HEADER_CRC_AT]);
        page[HEADER_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// Checks and reads the unchanging part of the header page.
    ///
    /// Magic and version have a checksum of their own: a later version may lay out the rest as it likes,
    /// and a flipped bit in the version is damage, not a newer version.
    pub(crate) fn decode(page: &[u8; HEADER_BYTES]) -> Result<Self, HeaderFault> {
        if page[0..8] != REGION_MAGIC {
            return Err(HeaderFault::NotARegion);
        }
        let version = u32_at(page, 8);
        if u32_at(page, 12) != crc32c::crc32c(&page[0..12]) {
            return Err(HeaderFault::Damaged("checksum of magic and version".to_owned()));
        }
        if version > FORMAT_VERSION {
            return Err(HeaderFault::NewerVersion(version));
        }
        if u32_at(page, HEADER_CRC_AT) != crc32c::crc32c(&page[..HEADER_CRC_AT]) {
            return Err(HeaderFault::Damaged("checksum".to_owned()));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&page[24..40]);
        let header = Self { region_bytes: u64_at(page, 16), uuid };
        // The checksum is right, so a difference here means a writer with another geometry.
        if header.encode() != *page {
            return Err(HeaderFault::Damaged("its table is not where this version puts it".to_owned()));
        }
        if !region_bytes_allowed(header.region_bytes) {
            return Err(HeaderFault::Damaged(format!("impossible size of {} bytes", header.region_bytes)));
        }
        Ok(header)
    }
}

/// Whether a region may have this many bytes.
pub(crate) fn region_bytes_allowed(bytes: u64) -> bool {
    (REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(PAGE_BYTES)
}

/// What an object is for. The region does not interpret it; tools print it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKind(pub u16);

impl ObjectKind {
    /// A submission or completion ring.
    pub const RING: Self = Self(1);
    /// Doorbells, one per cache line.
    pub const DOORBELL: Self = Self(2);
    /// I/O buffers of a pipeline.
    pub const ARENA: Self = Self(3);
    /// The linear memory of an actor.
    pub const ACTOR_MEMORY: Self = Self(4);
    /// Shared state of actors.
    pub const ACTOR_STATE: Self = Self(5);
    /// Page tags.
    pub const PAGE_TAGS: Self = Self(6);
    /// Migration records and checkpoints.
    pub const RECORD: Self = Self(7);
    /// The device's write buffer.
    pub const WRITE_BUFFER: Self = Self(8);
    /// Ownership words.
    pub const OWNER_WORDS: Self = Self(9);
    /// Samples and counters for reports.
    pub const STATISTICS: Self = Self(10);
}

/// A party that can own shared things: a domain or the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Side(pub u8);

impl Side {
    /// No one owns it.
    pub const NOBODY: Self = Self(0);
    /// The host domain.
    pub const HOST: Self = Self(1);
    /// The device domain.
    pub const DEVICE: Self = Self(2);
    /// The supervisor.
    pub const SUPERVISOR: Self = Self(3);
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::NOBODY => f.write_str("nobody"),
            Self::HOST => f.write_str("host"),
            Self::DEVICE => f.write_str("device"),
            Self::SUPERVISOR => f.write_str("supervisor"),
            Self(other) => write!(f, "side {other}"),
        }
    }
}

/// A checked name of an object: printable ASCII, padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName([u8; NAME_BYTES]);

impl ObjectName {
    /// The name, or nothing when it is empty, too long, or not printable ASCII without spaces.
    pub fn parse(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.len() > NAME_BYTES || !bytes.iter().all(u8::is_ascii_graphic) {
            return None;
        }
        let mut padded = [0; NAME_BYTES];
        padded[..bytes.len()].copy_from_slice(bytes);
        Some(Self(padded))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES);
        std::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }

    fn from_padded(padded: [u8; NAME_BYTES]) -> Option<Self> {
        let end = padded.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES);
        let text = std::str::from_utf8(&padded[..end]).ok()?;
        let name = Self::parse(text)?;
        (name.0 == padded).then_some(name)
    }
}

impl std::fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl std::fmt::Display for ObjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// One object as the table describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its name, unique in the region.
    pub name: ObjectName,
    /// What it is for.
    pub kind: ObjectKind,
    /// The side that the supervisor assigned it to. The owner *at this moment* is an owner word's matter.
    pub owner: Side,
    /// First byte, from the start of the region.
    pub offset: u64,
    /// Length in bytes, as asked for.
    pub bytes: u64,
    /// Number of the allocation that made it: tells an object from a later one in the same place.
    pub serial: u32,
}

/// Words of an entry; the last one commits it.
pub(crate) const ENTRY_WORDS: usize = (ENTRY_BYTES / 8) as usize;

impl Entry {
    /// The eight words of the entry; word 7 holds state, owner and checksum, and is stored last.
    pub(crate) fn encode(&self) -> [u64; ENTRY_WORDS] {
        let mut words = [0; ENTRY_WORDS];
        for (word, bytes) in words.iter_mut().zip(self.name.0.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words[4] = self.offset;
        words[5] = self.bytes;
        words[6] = u64::from(self.kind.0) | u64::from(self.serial) << 32;
        let state = u32::from(STATE_USED) | u32::from(self.owner.0) << 8;
        words[7] = u64::from(state) | u64::from(entry_crc(&words, state)) << 32;
        words
    }

    /// Reads an entry back; nothing when its checksum or a value in it is wrong.
    pub(crate) fn decode(words: &[u64; ENTRY_WORDS]) -> Option<Self> {
        let state = words[7] as u32;
        if (words[7] >> 32) as u32 != entry_crc(words, state) || state as u8 != STATE_USED {
            return None;
        }
        let mut name = [0; NAME_BYTES];
        for (bytes, word) in name.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        let entry = Self {
            name: ObjectName::from_padded(name)?,
            kind: ObjectKind(words[6] as u16),
            owner: Side((state >> 8) as u8),
            offset: words[4],
            bytes: words[5],
            serial: (words[6] >> 32) as u32,
        };
        (entry.encode() == *words).then_some(entry)
    }

    /// End of the space that the object takes, rounded up to a line. Saturates on a nonsensical entry.
    pub fn end(&self) -> u64 {
        let end = self.offset.saturating_add(self.bytes);
        end.checked_next_multiple_of(LINE_BYTES).unwrap_or(u64::MAX)
    }
}

/// Checksum over the seven words of the body and the state.
fn entry_crc(words: &[u64; ENTRY_WORDS], state: u32) -> u32 {
    let mut bytes = [0; ENTRY_WORDS * 8 - 4];
    for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *chunk = word.to_le_bytes();
    }
    bytes[ENTRY_WORDS * 8 - 8..].copy_from_slice(&state.to_le_bytes());
    crc32c::crc32c(&bytes)
}

/// The watermark word: pages from the start of the region that may hold old bytes, and their complement.
pub(crate) fn watermark_encode(bytes: u64) -> u64 {
    let pages = bytes.div_ceil(PAGE_BYTES) as u32;
    u64::from(pages) | u64::from(!pages) << 32
}

/// Bytes below which old content may be; nothing when the word is damaged.
pub(crate) fn watermark_decode(word: u64) -> Option<u64> {
    let pages = word as u32;
    (!pages == (word >> 32) as u32).then_some(u64::from(pages) * PAGE_BYTES)
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&page[at..at + 4]);
    u32::from_le_bytes(bytes)
}

fn u64_at(page: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&page[at..at + 8]);
    u64::from_le_bytes(bytes)
}

const _: () = {
    assert!(TABLE_OFFSET.is_multiple_of(PAGE_BYTES) && DATA_OFFSET.is_multiple_of(PAGE_BYTES));
    assert!(ENTRY_BYTES == LINE_BYTES && ENTRY_BYTES == (NAME_BYTES + 4 * 8) as u64);
    assert!(DATA_OFFSET < REGION_BYTES_MIN);
    assert!(REGION_BYTES_MAX / PAGE_BYTES < u32::MAX as u64);
    assert!(SERIAL_OFFSET + 8 <= PAGE_BYTES && WATERMARK_OFFSET >= HEADER_BYTES as u64);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { region_bytes: 1 << 20, uuid: *b"0123456789abcdef" }
    }

    fn entry() -> Entry {
        Entry {
            name: ObjectName::parse("host/sq0").unwrap(),
            kind: ObjectKind::RING,
            owner: Side::HOST,
            offset: DATA_OFFSET,
            bytes: 4096,
            serial: 7,
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let good = header().encode();
        assert_eq!(Header::decode(&good), Ok(header()));
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            let fault = Header::decode(&bad).expect_err("a flipped bit must be refused");
            let not_a_region = bit < 64;
            assert_eq!(fault == HeaderFault::NotARegion, not_a_region, "bit {bit}: {fault:?}");
        }
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let mut page = header().encode();
        page[8..12].copy_from_slice(&2u32.to_le_bytes());
        let crc = crc32c::crc32c(&page[0..12]);
        page[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Header::decode(&page), Err(HeaderFault::NewerVersion(2)));
    }

    #[test]
    fn every_flipped_bit_of_an_entry_is_noticed() {
        let good = entry().encode();
        assert_eq!(Entry::decode(&good), Some(entry()));
        for bit in 0..ENTRY_BYTES as usize * 8 {
            let mut bad = good;
            bad[bit / 64] ^= 1 << (bit % 64);
            assert_eq!(Entry::decode(&bad), None, "bit {bit}");
        }
    }

    #[test]
    fn names_are_bounded_and_printable() {
        for bad in ["", " ", "a b", "tab\t", "ü", &"x".repeat(33)] {
            assert_eq!(ObjectName::parse(bad), None, "{bad:?}");
        }
        for good in ["a", "actor/lz4#1", &"x".repeat(32)] {
            assert_eq!(ObjectName::parse(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn watermark_survives_or_is_refused() {
        for bytes in [0, 1, 4096, REGION_BYTES_MAX] {
            let word = watermark_encode(bytes);
            assert_eq!(watermark_decode(word), Some(bytes.next_multiple_of(PAGE_BYTES)));
            assert_eq!(watermark_decode(word ^ 1), None);
        }
    }
}
