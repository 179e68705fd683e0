//! Looks at a whole file system and says what is wrong with it. Nothing is repaired.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use crate::record::{
    COUNTERS, Counters, Entry, Extent, Inode, LOGGED, S_IFDIR, S_IFLNK, S_IFMT, key, key_with, key2, kind, last_number,
};
use crate::space::CHUNK_BLOCKS;
use crate::state::State;
use crate::system::{FileSystem, ROOT, STEP};

/// Most things that a report names.
const FAULTS_MAX: usize = 1000;

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Inodes.
    pub inodes: u64,
    /// Directories' entries.
    pub entries: u64,
    /// Extents.
    pub extents: u64,
    /// Blocks that files have.
    pub blocks: u64,
    /// What is wrong; empty when all is well. The first thousand.
    pub faults: Vec<String>,
}

/// What is known of an inode from elsewhere than itself.
#[derive(Default)]
struct Found {
    names: u32,
    directories: u32,
    parents: Vec<u64>,
    blocks: u64,
    target_bytes: Option<u64>,
    is_orphan: bool,
}

struct Check<'a> {
    state: &'a State,
    report: Report,
    inodes: BTreeMap<u64, Inode>,
    found: BTreeMap<u64, Found>,
    /// What files have, by its first block on the device.
    owned: BTreeMap<u64, (u64, u64)>,
    live_bytes: u64,
}

/// Checks a mounted file system as it is, changes included that are not committed. Nothing may change meanwhile.
///
/// # Errors
/// `EIO` when it cannot be read.
pub fn check(system: &FileSystem) -> Result<Report, Errno> {
    let mut state = system.state_mut();
    state.begin();
    state.put_totals();
    let mut check = Check {
        state: &state,
        report: Report::default(),
        inodes: BTreeMap::new(),
        found: BTreeMap::new(),
        owned: BTreeMap::new(),
        live_bytes: 0,
    };
    check.read()?;
    check.compare_inodes();
    check.compare_tree();
    check.compare_space()?;
    check.compare_counters()?;
    Ok(check.report)
}

impl Check<'_> {
    fn fault(&mut self, text: String) {
        if self.report.faults.len() < FAULTS_MAX {
            self.report.faults.push(text);
        }
    }

    fn found(&mut self, number: u64) -> &mut Found {
        self.found.entry(number).or_default()
    }

    /// Reads every record once.
    fn read(&mut self) -> Result<(), Errno> {
        let mut low = Vec::new();
        loop {
            let pairs = self.state.store.range(&low, &[0xff], STEP)?;
            let Some((last, _)) = pairs.last() else { return Ok(()) };
            low = last.clone();
            low.push(0);
            for (key, value) in &pairs {
                if key[0] != b'B' && key != COUNTERS && key != LOGGED {
                    self.live_bytes += (key.len() + value.len()) as u64;
                }
                if self.record(key, value).is_err() {
                    self.fault(format!("a record cannot be read: {}", String::from_utf8_lossy(key).escape_debug()));
                }
            }
        }
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        if key == COUNTERS || key == LOGGED {
            return Ok(());
        }
        let number = last_number(key.get(..9).ok_or(Errno::IO)?)?;
        let rest = &key[9..];
        match key[0] {
            b'I' => drop(self.inodes.insert(number, Inode::decode(value)?)),
            b'D' => self.entry(number, &Entry::decode_by_name(rest, value)?)?,
            b'L' => self.entry_by_cookie(number, &Entry::decode_by_cookie(last_number(key)?, value)?)?,
            b'E' => self.extent(number, &Extent::decode(last_number(key)?, value)?),
            b'Y' => self.found(number).target_bytes = Some(value.len() as u64),
            b'O' => self.found(number).is_orphan = true,
            b'X' => drop(self.found(number)),
            b'B' if number < self.state.space.chunks() => {}
            _ => return Err(Errno::IO),
        }
        Ok(())
    }

    fn entry(&mut self, directory: u64, entry: &Entry) -> Result<(), Errno> {
        self.report.entries += 1;
        let found = self.found(entry.inode);
        found.names += 1;
        found.parents.push(directory);
        let key = key2(b'L', directory, entry.cookie);
        if self.state.store.get(&key)? != Some(entry.encode_by_cookie()) {
            self.fault(format!("entry {:?} of directory {directory} is not in its order", entry.name.escape_ascii()));
        }
        Ok(())
    }

    fn entry_by_cookie(&mut self, directory: u64, entry: &Entry) -> Result<(), Errno> {
        if entry.kind == kind(S_IFDIR) {
            self.found(directory).directories += 1;
        }
        let key = key_with(b'D', directory, &entry.name);
        if self.state.store.get(&key)? != Some(entry.encode_by_name()) {
            self.fault(format!("cookie {} of directory {directory} is of no entry", entry.cookie));
        }
        let is_kind = self.state.inode(entry.inode).is_ok_and(|inode| kind(inode.mode) == entry.kind);
        let is_below = self.state.inode(directory).is_ok_and(|inode| entry.cookie < inode.cookie);
        if !is_kind || !is_below {
            self.fault(format!("cookie {} of directory {directory} is not what its inode is", entry.cookie));
        }
        Ok(())
    }

    fn extent(&mut self, number: u64, extent: &Extent) {
        self.report.extents += 1;
        self.report.blocks += extent.blocks;
        let found = self.found(number);
        found.blocks += extent.blocks;
        if self.owned.insert(extent.block, (extent.blocks, number)).is_some() || extent.blocks == 0 {
            self.fault(format!("block {} belongs to inode {number} and to another", extent.block));
        }
    }

    fn compare_inodes(&mut self) {
        self.report.inodes = self.inodes.len() as u64;
        let inodes = std::mem::take(&mut self.inodes);
        for (number, inode) in &inodes {
            let found = self.found.remove(number).unwrap_or_default();
            let mut fault = |text: &str| self.fault(format!("inode {number}: {text}"));
            let nlink = match (inode.is_directory(), found.names, *number) {
                (true, 0, ROOT) | (true, 1, 2..) => 2 + found.directories,
                (true, ..) => 0,
                (false, names, _) => names,
            };
            if inode.nlink != nlink {
                fault(&format!("it has {} links and should have {nlink}", inode.nlink));
            }
            if (nlink == 0) != found.is_orphan {
                fault("it has no name, and nobody knows of it, or it has one and should not");
            }
            if inode.blocks != found.blocks {
                fault(&format!("it has {} blocks and should have {}", found.blocks, inode.blocks));
            }
            if inode.is_directory() && nlink > 0 && *number != ROOT && found.parents != [inode.parent] {
                fault("it is in another directory than it says");
            }
            let is_link = inode.mode & S_IFMT == S_IFLNK;
            if is_link != found.target_bytes.is_some() || found.target_bytes.is_some_and(|bytes| bytes != inode.size) {
                fault("its target is not as long as it says");
            }
            if !inode.is_regular() && found.blocks > 0 {
                fault("it is no regular file and has blocks");
            }
        }
        let nobodys: Vec<u64> = self.found.keys().copied().collect();
        for number in nobodys {
            self.fault(format!("inode {number} does not exist and is named"));
        }
        self.inodes = inodes;
    }

    /// Every directory's parents lead to the root.
    fn compare_tree(&mut self) {
        let mut good = BTreeSet::from([ROOT]);
        let directories: Vec<u64> = self
            .inodes
            .iter()
            .filter(|(_, inode)| inode.is_directory() && inode.nlink > 0)
            .map(|(number, _)| *number)
            .collect();
        for number in directories {
            let (mut path, mut at) = (BTreeSet::new(), number);
            while !good.contains(&at) && path.insert(at) {
                at = self.inodes.get(&at).map_or(0, |inode| inode.parent);
            }
            if good.contains(&at) {
                good.append(&mut path);
            } else {
                self.fault(format!("directory {number} does not lead to the root"));
            }
        }
    }

    /// The map of free blocks says exactly what files have.
    fn compare_space(&mut self) -> Result<(), Errno> {
        let mut expected = vec![vec![0_u8; (CHUNK_BLOCKS / 8) as usize]; self.state.space.chunks() as usize];
        let owned = std::mem::take(&mut self.owned);
        let mut end = 0;
        for (block, (blocks, number)) in owned {
            if block < end {
                self.fault(format!("block {block} belongs to inode {number} and to another"));
            }
            end = block + blocks;
            for block in block..end {
                let Some(chunk) = expected.get_mut((block / CHUNK_BLOCKS) as usize) else {
                    self.fault(format!("inode {number} has block {block}, which does not exist"));
                    break;
                };
                chunk[(block % CHUNK_BLOCKS / 8) as usize] |= 1 << (block % 8);
            }
        }
        for (chunk, bytes) in expected.iter().enumerate() {
            let there = self.state.store.get(&key(b'B', chunk as u64))?;
            let is_same = match there {
                Some(there) => there == *bytes,
                None => bytes.iter().all(|byte| *byte == 0),
            };
            if !is_same {
                self.fault(format!("the map of free blocks is wrong in chunk {chunk}"));
            }
        }
        Ok(())
    }

    fn compare_counters(&mut self) -> Result<(), Errno> {
        let bytes = self.state.store.get(COUNTERS)?.unwrap_or_default();
        let there = Counters::decode(&bytes)?;
        let last = self.inodes.keys().next_back().copied().unwrap_or(0);
        if (there.inodes, there.live_bytes) != (self.inodes.len() as u64, self.live_bytes) || there.next_inode <= last {
            let (inodes, bytes) = (self.inodes.len(), self.live_bytes);
            self.fault(format!("there are {inodes} inodes in {bytes} bytes up to {last}, and counted are {there:?}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attributes::Changes;
    use crate::blocks::{BLOCK_BYTES, Blocks, MemoryBlocks};
    use crate::data::WriteEffects;
    use crate::names::NewNode;
    use crate::record::{S_IFREG, Time};

    const NOW: Time = Time { seconds: 1, nanoseconds: 0 };

    /// A directory (2) with a file of two blocks (3) in it, a symbolic link (4), and a file without a name (5).
    fn system() -> (FileSystem, Arc<dyn Blocks>) {
        let blocks: Arc<dyn Blocks> = Arc::new(MemoryBlocks::new(4096));
        let system = FileSystem::format(Arc::clone(&blocks), [1; 16], (0, 0), NOW).unwrap();
        let make = |parent, name: &[u8], mode, target| {
            system.create(parent, name, &NewNode { mode, uid: 0, gid: 0, rdev: 0, target }, NOW).unwrap().0
        };
        assert_eq!(make(ROOT, b"directory", S_IFDIR | 0o755, b""), 2);
        assert_eq!(make(2, b"file", S_IFREG | 0o644, b""), 3);
        assert_eq!(make(ROOT, b"link", S_IFLNK | 0o777, b"directory"), 4);
        assert_eq!(make(ROOT, b"gone", S_IFREG | 0o644, b""), 5);
        let effects = WriteEffects { now: Some(NOW), is_unprivileged: false };
        for number in [3, 5] {
            system.write(number, 0, &[7; 2 * BLOCK_BYTES], effects).unwrap();
        }
        system.unlink(ROOT, b"gone", NOW).unwrap();
        (system, blocks)
    }

    fn faults(system: &FileSystem) -> Vec<String> {
        check(system).unwrap().faults
    }

    type Damage = (&'static str, Vec<u8>, fn(&State) -> Option<Vec<u8>>);

    fn inode(state: &State, number: u64, change: fn(&mut Inode)) -> Option<Vec<u8>> {
        let mut inode = state.inode(number).unwrap();
        change(&mut inode);
        Some(inode.encode())
    }

    fn damages() -> Vec<Damage> {
        vec![
            ("links", key(b'I', 3), |state| inode(state, 3, |inode| inode.nlink = 2)),
            ("blocks", key(b'I', 3), |state| inode(state, 3, |inode| inode.blocks = 1)),
            ("a parent", key(b'I', 2), |state| inode(state, 2, |inode| inode.parent = 2)),
            ("a type", key(b'I', 3), |state| inode(state, 3, |inode| inode.mode = S_IFDIR)),
            ("a next cookie", key(b'I', 2), |state| inode(state, 2, |inode| inode.cookie = 0)),
            ("no inode", key(b'I', 3), |_| None),
            ("half an inode", key(b'I', 3), |_| Some(vec![1; 50])),
            ("no entry", key_with(b'D', 2, b"file"), |_| None),
            ("no entry by its cookie", key2(b'L', 2, 3), |_| None),
            ("no target", key(b'Y', 4), |_| None),
            ("no word of the nameless", key(b'O', 5), |_| None),
            ("a word of what has a name", key(b'O', 3), |_| Some(Vec::new())),
            ("a word of nothing", b"Obad key and more".to_vec(), |_| Some(Vec::new())),
            ("blocks that do not exist", key2(b'E', 3, 9), |_| {
                Some(Extent { file_block: 9, block: 1 << 50, blocks: 2, is_written: true }.encode())
            }),
            ("blocks of the store", key2(b'E', 3, 0), |_| {
                Some(Extent { file_block: 0, block: 9, blocks: 2, is_written: true }.encode())
            }),
            ("another's blocks", key2(b'E', 3, 0), |state| state.store.get(&key2(b'E', 5, 0)).unwrap()),
            ("an empty extent", key2(b'E', 3, 9), |_| Some(vec![0; 17])),
            ("a map without its blocks", key(b'B', 0), |_| Some(vec![0; 512])),
            ("a key of no kind", b"Q12345678".to_vec(), |_| Some(Vec::new())),
        ]
    }

    #[test]
    fn damage_of_each_kind_is_found_and_neither_a_panic_nor_a_hang() {
        assert_eq!(faults(&system().0), Vec::<String>::new());
        for (what, key, change) in damages() {
            let (system, blocks) = system();
            system.commit().unwrap();
            {
                let mut state = system.state_mut();
                state.begin();
                let value = change(&state);
                state.store.plant(&key, value);
                state.sequence += 1;
            }
            assert!(!faults(&system).is_empty(), "{what} is not found");
            system.commit().unwrap();
            drop(system);
            let Ok(system) = FileSystem::mount(blocks) else { continue };
            assert!(!faults(&system).is_empty(), "{what} is not found after a mount");
            // Whatever they answer.
            let _ = system.set_attributes(3, &Changes { size: Some(0), ..Changes::default() }, NOW);
            let _ = system.unlink(2, b"file", NOW);
            let _ = system.rmdir(ROOT, b"directory", NOW);
            let _ = system.unlink(ROOT, b"link", NOW);
            let _ = system.commit();
            let _ = check(&system);
        }
    }
}
