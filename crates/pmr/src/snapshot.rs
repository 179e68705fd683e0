//! A region looked at from outside: read from its file, never mapped, never written.
//!
//! It is for who checks a region that nobody is using. Of one in use the table can be looked at, since it
//! changes only when a device is brought up; what lies in the objects changes at any time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{PmrError, Result};
use crate::layout::{DATA_OFFSET, Entry, Header};
use crate::region::{io_error, not_opened, parse_name, read_header};
use crate::table::{Finding, Table, Words};

/// A region's file, opened for reading alone.
#[derive(Debug)]
pub struct Snapshot {
    file: File,
    on: String,
    header: Header,
    /// Everything before the objects' bytes, as it was when the region was opened.
    front: Vec<u8>,
}

impl Snapshot {
    /// Opens the region in a file. A file with holes is taken as it is: they read as zeroes.
    ///
    /// # Errors
    /// As [`crate::Region::open`], but `NoSpace`.
    pub fn open(path: &Path) -> Result<Self> {
        let on = path.display().to_string();
        let file = File::open(path).map_err(|source| not_opened(&on, source))?;
        let header = read_header(&file, &on)?;
        let mut front = vec![0; DATA_OFFSET as usize];
        file.read_exact_at(&mut front, 0).map_err(|source| io_error("read the table of", &on, source))?;
        Ok(Self { file, on, header, front })
    }

    /// What the region says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Verifies the table of objects; empty when all is well.
    pub fn check(&self) -> Vec<Finding> {
        self.table().check()
    }

    /// All objects, by offset.
    pub fn list(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.table().entries().map(|(_, entry)| entry).collect();
        entries.sort_by_key(|entry| entry.offset);
        entries
    }

    /// Finds an object by name.
    ///
    /// # Errors
    /// `NotFound`, `BadName`, or `DamagedTable` when its entry leaves the region.
    pub fn find(&self, name: &str) -> Result<Entry> {
        let found = self.table().find(parse_name(name)?);
        let (_, entry) = found.ok_or_else(|| PmrError::NotFound { on: self.on.clone(), name: name.to_owned() })?;
        match self.table().in_range(&entry) {
            true => Ok(entry),
            false => Err(PmrError::DamagedTable { on: self.on.clone(), count: 1 }),
        }
    }

    /// Copies bytes of an object out, from `offset` of it on.
    ///
    /// # Errors
    /// What the system refused.
    ///
    /// # Panics
    /// When the range is not within the object.
    pub fn read(&self, object: &Entry, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(into.len() as u64);
        assert!(end.is_some_and(|end| end <= object.bytes), "a range of object {}", object.name);
        self.file
            .read_exact_at(into, object.offset + offset)
            .map_err(|source| io_error("read an object of", &self.on, source))
    }

    fn table(&self) -> Table<&Self> {
        Table { medium: self, region_bytes: self.header.region_bytes }
    }
}

impl Words for &Snapshot {
    fn load(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.front[offset as usize..][..8]);
        u64::from_le_bytes(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{ENTRY_BYTES, TABLE_OFFSET};
    use crate::{Backing, ObjectKind, Region};

    fn region(dir: &Path) -> (std::path::PathBuf, Region) {
        let path = dir.join("pmr");
        let region = Region::create(&Backing::File(path.clone()), 1 << 20, [7; 16]).unwrap();
        let object = region.allocate("first", ObjectKind::RECORD, 100, 64).unwrap();
        object.bytes().write(3, b"seen from outside");
        (path, region)
    }

    #[test]
    fn what_a_region_holds_is_seen_from_outside_and_nothing_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, region) = region(dir.path());
        let before = std::fs::read(&path).unwrap();
        let seen = Snapshot::open(&path).unwrap();
        assert_eq!((seen.header().uuid, seen.header().region_bytes), ([7; 16], 1 << 20));
        assert_eq!((seen.list(), seen.check()), (region.list(), region.check()));
        let mut bytes = [0; 17];
        seen.read(&seen.find("first").unwrap(), 3, &mut bytes).unwrap();
        assert_eq!(&bytes, b"seen from outside");
        assert!(matches!(seen.find("second"), Err(PmrError::NotFound { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn every_flipped_bit_of_a_used_entry_is_found_from_outside() {
        let dir = tempfile::tempdir().unwrap();
        let (path, region) = region(dir.path());
        drop(region);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        // The state and checksum word of an entry in use is not zero, whichever bit of the entry is flipped.
        for bit in 0..ENTRY_BYTES * 8 {
            let (at, mask) = (TABLE_OFFSET + bit / 8, 1 << (bit % 8));
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ mask], at).unwrap();
            assert_eq!(Snapshot::open(&path).unwrap().check(), [Finding::DamagedEntry { slot: 0 }], "bit {bit}");
            file.write_all_at(&byte, at).unwrap();
        }
    }
}
