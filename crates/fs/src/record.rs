//! The store's keys and values as bytes.
//!
//! Keys sort as the file system walks them: numbers are big-endian. Values are little-endian.
//!
//! | key | value |
//! | --- | --- |
//! | `S` | [`Counters`] |
//! | `J` | the sequence number of the last record of the log that the store has |
//! | `I` inode | [`Inode`] |
//! | `D` directory, name | cookie, inode, kind: an entry by its name |
//! | `L` directory, cookie | inode, kind, name: the same entry in the order of reading |
//! | `E` inode, file's block | [`Extent`] |
//! | `X` inode, name | an extended attribute's value |
//! | `Y` inode | a symbolic link's target |
//! | `O` inode | nothing: the inode has no name and is to be freed when nobody holds it |
//! | `B` chunk | 512 bytes: which of 4096 blocks belong to a file |

use rustix::io::Errno;

/// A file's type, in its mode.
pub const S_IFMT: u32 = 0o170_000;
/// A directory.
pub const S_IFDIR: u32 = 0o040_000;
/// A regular file.
pub const S_IFREG: u32 = 0o100_000;
/// A symbolic link.
pub const S_IFLNK: u32 = 0o120_000;
/// Set user on execution.
pub const S_ISUID: u32 = 0o4000;
/// Set group on execution; of a directory: its group is inherited.
pub const S_ISGID: u32 = 0o2000;
/// The group may execute.
pub const S_IXGRP: u32 = 0o010;

/// An instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Since 1970, negative before.
    pub seconds: i64,
    /// Less than 10^9, forward from `seconds`.
    pub nanoseconds: u32,
}

/// What is known of a file, whatever its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// Type and permissions.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Names; of a directory 2 and one for each directory in it, 0 when it is removed.
    pub nlink: u32,
    /// Which device it is, if it is one.
    pub rdev: u32,
    /// Bytes; of a symbolic link the length of its target.
    pub size: u64,
    /// Blocks of 4096 bytes that it has.
    pub blocks: u64,
    /// Of the last access.
    pub atime: Time,
    /// Of the last change of its content.
    pub mtime: Time,
    /// Of the last change of this.
    pub ctime: Time,
    /// Of its making.
    pub crtime: Time,
    /// A directory's parent, the root's is itself; otherwise 0.
    pub parent: u64,
    /// A directory's next cookie; otherwise 0.
    pub cookie: u64,
}

const INODE_BYTES: usize = 5 * 4 + 4 * 8 + 4 * 12;

impl Inode {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        self.mode & S_IFMT == S_IFREG
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(INODE_BYTES);
        for word in [self.mode, self.uid, self.gid, self.nlink, self.rdev] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [self.size, self.blocks, self.parent, self.cookie] {
            bytes.extend(word.to_le_bytes());
        }
        for time in [self.atime, self.mtime, self.ctime, self.crtime] {
            bytes.extend(time.seconds.to_le_bytes());
            bytes.extend(time.nanoseconds.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Inode, Errno> {
        let mut from = Reader(bytes);
        let [mode, uid, gid, nlink, rdev] = [from.u32()?, from.u32()?, from.u32()?, from.u32()?, from.u32()?];
        let [size, blocks, parent, cookie] = [from.u64()?, from.u64()?, from.u64()?, from.u64()?];
        let [atime, mtime, ctime, crtime] = [from.time()?, from.time()?, from.time()?, from.time()?];
        from.end()?;
        Ok(Inode { mode, uid, gid, nlink, rdev, size, blocks, atime, mtime, ctime, crtime, parent, cookie })
    }
}

/// A directory's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The place of reading; above 2, because those are `.` and `..`.
    pub cookie: u64,
    /// What it names.
    pub inode: u64,
    /// The type's bits of its mode, in bits 3:0.
    pub kind: u8,
    /// Its name.
    pub name: Vec<u8>,
}

/// The type's bits of a mode as an entry has them.
#[must_use]
pub fn kind(mode: u32) -> u8 {
    ((mode & S_IFMT) >> 12) as u8
}

impl Entry {
    pub(crate) fn encode_by_name(&self) -> Vec<u8> {
        let mut bytes = self.cookie.to_le_bytes().to_vec();
        bytes.extend(self.inode.to_le_bytes());
        bytes.push(self.kind);
        bytes
    }

    pub(crate) fn decode_by_name(name: &[u8], value: &[u8]) -> Result<Entry, Errno> {
        let mut from = Reader(value);
        let (cookie, inode, kind) = (from.u64()?, from.u64()?, from.u8()?);
        from.end()?;
        Ok(Entry { cookie, inode, kind, name: name.to_vec() })
    }

    pub(crate) fn encode_by_cookie(&self) -> Vec<u8> {
        let mut bytes = self.inode.to_le_bytes().to_vec();
        bytes.push(self.kind);
        bytes.extend(&self.name);
        bytes
    }

    pub(crate) fn decode_by_cookie(cookie: u64, value: &[u8]) -> Result<Entry, Errno> {
        let mut from = Reader(value);
        let (inode, kind) = (from.u64()?, from.u8()?);
        Ok(Entry { cookie, inode, kind, name: from.0.to_vec() })
    }
}

/// Consecutive blocks of a file that are consecutive on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first of the file.
    pub file_block: u64,
    /// The first on the device.
    pub block: u64,
    /// How many.
    pub blocks: u64,
    /// They hold what was written; others read as zeroes.
    pub is_written: bool,
}

impl Extent {
    /// The file's first block behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.file_block + self.blocks
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.block.to_le_bytes().to_vec();
        bytes.extend(self.blocks.to_le_bytes());
        bytes.push(u8::from(self.is_written));
        bytes
    }

    pub(crate) fn decode(file_block: u64, value: &[u8]) -> Result<Extent, Errno> {
        let mut from = Reader(value);
        let (block, blocks, is_written) = (from.u64()?, from.u64()?, from.u8()? != 0);
        from.end()?;
        let is_one = blocks > 0 && file_block.checked_add(blocks).is_some() && block.checked_add(blocks).is_some();
        is_one.then_some(Extent { file_block, block, blocks, is_written }).ok_or(Errno::IO)
    }
}

/// What is counted of the whole file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    /// The next inode's number; none is used twice.
    pub next_inode: u64,
    /// Inodes that there are.
    pub inodes: u64,
    /// Bytes of all keys and values but this one's, the log's and the chunks'.
    pub live_bytes: u64,
}

impl Counters {
    pub fn encode(&self) -> Vec<u8> {
        [self.next_inode, self.inodes, self.live_bytes].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub fn decode(bytes: &[u8]) -> Result<Counters, Errno> {
        let mut from = Reader(bytes);
        let counters = Counters { next_inode: from.u64()?, inodes: from.u64()?, live_bytes: from.u64()? };
        from.end()?;
        Ok(counters)
    }
}

/// The key of [`Counters`].
pub(crate) const COUNTERS: &[u8] = b"S";
/// The key of the log's last record.
pub(crate) const LOGGED: &[u8] = b"J";

/// A key of one number.
pub(crate) fn key(table: u8, number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(9);
    bytes.push(table);
    bytes.extend(number.to_be_bytes());
    bytes
}

/// A key of a number and more.
pub(crate) fn key_with(table: u8, number: u64, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(9 + rest.len());
    bytes.push(table);
    bytes.extend(number.to_be_bytes());
    bytes.extend(rest);
    bytes
}

/// A key of two numbers.
pub(crate) fn key2(table: u8, first: u64, second: u64) -> Vec<u8> {
    key_with(table, first, &second.to_be_bytes())
}

/// The last number of a key.
pub(crate) fn last_number(key: &[u8]) -> Result<u64, Errno> {
    let at = key.len().checked_sub(8).ok_or(Errno::IO)?;
    Ok(u64::from_be_bytes(key[at..].try_into().map_err(|_| Errno::IO)?))
}

/// Takes values apart; what is too short or too long is damage.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8, Errno> {
        self.take::<1>().map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_le_bytes)
    }

    fn time(&mut self) -> Result<Time, Errno> {
        Ok(Time { seconds: self.take().map(i64::from_le_bytes)?, nanoseconds: self.u32()? })
    }

    fn end(&self) -> Result<(), Errno> {
        if self.0.is_empty() { Ok(()) } else { Err(Errno::IO) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written_and_no_other_length_is_one() {
        let time = |seconds| Time { seconds, nanoseconds: 999_999_999 };
        let inode = Inode {
            mode: 0o100_644,
            uid: 1,
            gid: u32::MAX,
            nlink: 3,
            rdev: 4,
            size: u64::MAX,
            blocks: 6,
            atime: time(-7),
            mtime: time(8),
            ctime: time(i64::MAX),
            crtime: time(i64::MIN),
            parent: 9,
            cookie: 10,
        };
        let bytes = inode.encode();
        assert_eq!((bytes.len(), Inode::decode(&bytes)), (INODE_BYTES, Ok(inode)));
        assert_eq!(Inode::decode(&bytes[1..]), Err(Errno::IO));
        assert_eq!(Inode::decode(&[&bytes[..], &[0]].concat()), Err(Errno::IO));
        let entry = Entry { cookie: 3, inode: 1 << 40, kind: 8, name: b"a name".to_vec() };
        assert_eq!(Entry::decode_by_name(b"a name", &entry.encode_by_name()), Ok(entry.clone()));
        assert_eq!(Entry::decode_by_cookie(3, &entry.encode_by_cookie()), Ok(entry));
        let extent = Extent { file_block: 1, block: 2, blocks: 3, is_written: true };
        assert_eq!(Extent::decode(1, &extent.encode()), Ok(extent));
        assert_eq!(Extent::decode(u64::MAX - 2, &extent.encode()), Err(Errno::IO));
        assert_eq!(Extent::decode(1, &Extent { blocks: 0, ..extent }.encode()), Err(Errno::IO));
        assert_eq!(last_number(&key2(b'E', 1, 77)), Ok(77));
    }
}
