//! Directories: names, links, renaming.

use rustix::io::Errno;

use crate::blocks::BLOCK_BYTES;
use crate::record::{Entry, Inode, S_IFDIR, S_IFLNK, S_IFMT, S_ISGID, Time, key, key_with, key2, kind, last_number};
use crate::state::State;
use crate::system::{FileSystem, ROOT, STEP};

/// Most bytes of a name.
pub const NAME_MAX: usize = 255;
/// Most bytes of a symbolic link's target.
pub const TARGET_MAX: usize = 4095;
/// Most names of a file.
pub const LINKS_MAX: u32 = 65_000;
/// A directory's first cookie of an entry; `.` and `..` are before it.
const FIRST_COOKIE: u64 = 3;
/// Directories one within the other that a rename looks through.
const DEPTH_MAX: usize = 1 << 20;
/// Extents that are freed in one step.
const REAP_EXTENTS: usize = 1024;

/// What is to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewNode<'a> {
    /// Type and permissions.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group, unless the directory's is inherited.
    pub gid: u32,
    /// Which device, if it is one.
    pub rdev: u32,
    /// A symbolic link's target.
    pub target: &'a [u8],
}

/// What becomes of a name that is there when another is renamed to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It is replaced.
    Replace,
    /// It is left alone, and the rename refused.
    Keep,
    /// It becomes the other's name; it has to be there.
    Exchange,
}

fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        [] | b"." | b".." => Err(Errno::INVAL),
        _ if name.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
        _ if name.iter().any(|byte| matches!(byte, 0 | b'/')) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

impl State {
    fn entry(&self, parent: u64, name: &[u8]) -> Result<Option<Entry>, Errno> {
        let value = self.store.get(&key_with(b'D', parent, name))?;
        value.map(|value| Entry::decode_by_name(name, &value)).transpose()
    }

    fn existing(&self, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        check_name(name)?;
        self.directory(parent)?;
        self.entry(parent, name)?.ok_or(Errno::NOENT)
    }

    fn put_entry(&mut self, parent: u64, entry: &Entry) -> Result<(), Errno> {
        self.store.put(key_with(b'D', parent, &entry.name), entry.encode_by_name())?;
        self.store.put(key2(b'L', parent, entry.cookie), entry.encode_by_cookie())
    }

    fn remove_entry(&mut self, parent: u64, entry: &Entry) -> Result<(), Errno> {
        self.store.delete(&key_with(b'D', parent, &entry.name))?;
        self.store.delete(&key2(b'L', parent, entry.cookie))
    }

    /// Gives a directory a new entry.
    fn add_entry(&mut self, parent: u64, name: &[u8], inode: u64, mode: u32) -> Result<(), Errno> {
        let mut directory = self.inode(parent)?;
        let entry = Entry { cookie: directory.cookie, inode, kind: kind(mode), name: name.to_vec() };
        directory.cookie += 1;
        self.put_inode(parent, &directory)?;
        self.put_entry(parent, &entry)
    }

    /// A directory's content has changed, and how many directories are in it.
    fn touch(&mut self, directory: u64, now: Time, more: i32) -> Result<(), Errno> {
        let mut inode = self.inode(directory)?;
        (inode.mtime, inode.ctime) = (now, now);
        inode.nlink = inode.nlink.checked_add_signed(more).ok_or(Errno::MLINK)?;
        self.is_essential(directory);
        self.put_inode(directory, &inode)
    }

    fn is_empty_directory(&self, inode: u64) -> Result<bool, Errno> {
        Ok(self.store.range(&key2(b'L', inode, 0), &key(b'L', inode + 1), 1)?.is_empty())
    }

    /// A file has a name less; a directory has none any more.
    fn drop_name(&mut self, number: u64, now: Time) -> Result<(), Errno> {
        let mut inode = self.inode(number)?;
        inode.nlink = if inode.is_directory() { 0 } else { inode.nlink.checked_sub(1).ok_or(Errno::IO)? };
        inode.ctime = now;
        if inode.nlink == 0 {
            self.store.put(key(b'O', number), Vec::new())?;
        }
        self.is_essential(number);
        self.put_inode(number, &inode)
    }

    fn create(&mut self, parent: u64, name: &[u8], node: &NewNode<'_>, now: Time) -> Result<(u64, Inode), Errno> {
        check_name(name)?;
        let directory = self.directory(parent)?;
        if self.entry(parent, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        self.need_room(name.len() * 2 + node.target.len())?;
        let is_directory = node.mode & S_IFMT == S_IFDIR;
        let is_inherited = directory.mode & S_ISGID != 0;
        let number = self.next_inode;
        self.next_inode += 1;
        self.inodes += 1;
        let inode = Inode {
            mode: if is_inherited && is_directory { node.mode | S_ISGID } else { node.mode },
            uid: node.uid,
            gid: if is_inherited { directory.gid } else { node.gid },
            nlink: if is_directory { 2 } else { 1 },
            rdev: node.rdev,
            size: if is_directory { BLOCK_BYTES as u64 } else { node.target.len() as u64 },
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            parent: if is_directory { parent } else { 0 },
            cookie: if is_directory { FIRST_COOKIE } else { 0 },
        };
        self.put_inode(number, &inode)?;
        if node.mode & S_IFMT == S_IFLNK {
            self.store.put(key(b'Y', number), node.target.to_vec())?;
        }
        self.add_entry(parent, name, number, inode.mode)?;
        self.touch(parent, now, i32::from(is_directory))?;
        self.is_essential(number);
        Ok((number, inode))
    }

    /// Removes a name; what it named.
    fn remove(&mut self, parent: u64, name: &[u8], is_directory: bool, now: Time) -> Result<u64, Errno> {
        let entry = self.existing(parent, name)?;
        let inode = self.inode(entry.inode)?;
        match (is_directory, inode.is_directory()) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) if !self.is_empty_directory(entry.inode)? => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.remove_entry(parent, &entry)?;
        self.touch(parent, now, -i32::from(is_directory))?;
        self.drop_name(entry.inode, now)?;
        Ok(entry.inode)
    }

    /// Whether a directory is another one or lies in it.
    fn is_within(&self, directory: u64, ancestor: u64) -> Result<bool, Errno> {
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            match at {
                _ if at == ancestor => return Ok(true),
                ROOT => return Ok(false),
                _ => at = self.inode(at)?.parent,
            }
        }
        Err(Errno::LOOP)
    }

    /// What was renamed has another parent, and has changed.
    fn moved(&mut self, number: u64, parent: u64, now: Time) -> Result<(), Errno> {
        let mut inode = self.inode(number)?;
        inode.ctime = now;
        if inode.is_directory() {
            inode.parent = parent;
        }
        self.is_essential(number);
        self.put_inode(number, &inode)
    }

    fn exchange(&mut self, (from, first): (u64, Entry), (to, second): (u64, Entry), now: Time) -> Result<(), Errno> {
        let is_directory = |entry: &Entry| i32::from(entry.kind == kind(S_IFDIR));
        for (number, parent) in [(first.inode, to), (second.inode, from)] {
            let is_loop = self.inode(number)?.is_directory() && self.is_within(parent, number)?;
            if is_loop {
                return Err(Errno::INVAL);
            }
        }
        let more = is_directory(&second) - is_directory(&first);
        self.put_entry(from, &Entry { inode: second.inode, kind: second.kind, ..first.clone() })?;
        self.put_entry(to, &Entry { inode: first.inode, kind: first.kind, ..second.clone() })?;
        self.moved(first.inode, to, now)?;
        self.moved(second.inode, from, now)?;
        let more = if from == to { 0 } else { more };
        self.touch(from, now, more)?;
        self.touch(to, now, -more)
    }

    /// Renames; what has lost a name by it.
    fn rename(
        &mut self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        existing: Existing,
        now: Time,
    ) -> Result<Option<u64>, Errno> {
        check_name(to.1)?;
        let entry = self.existing(from.0, from.1)?;
        self.directory(to.0)?;
        self.need_room(to.1.len() * 2)?;
        let target = self.entry(to.0, to.1)?;
        match (&target, existing) {
            (Some(_), Existing::Keep) => return Err(Errno::EXIST),
            (None, Existing::Exchange) => return Err(Errno::NOENT),
            // Two names of one file: nothing is done (POSIX, rename()).
            (Some(target), _) if target.inode == entry.inode => return Ok(None),
            (Some(target), Existing::Exchange) => {
                self.exchange((from.0, entry), (to.0, target.clone()), now)?;
                return Ok(None);
            }
            _ => {}
        }
        let inode = self.inode(entry.inode)?;
        let is_directory = inode.is_directory();
        if is_directory && self.is_within(to.0, entry.inode)? {
            return Err(Errno::INVAL);
        }
        let mut more = i32::from(is_directory);
        if let Some(target) = &target {
            match (is_directory, self.inode(target.inode)?.is_directory()) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !self.is_empty_directory(target.inode)? => return Err(Errno::NOTEMPTY),
                (_, was_directory) => more -= i32::from(was_directory),
            }
            self.drop_name(target.inode, now)?;
            self.put_entry(to.0, &Entry { inode: entry.inode, kind: entry.kind, ..target.clone() })?;
        } else {
            self.add_entry(to.0, to.1, entry.inode, inode.mode)?;
        }
        self.remove_entry(from.0, &entry)?;
        self.moved(entry.inode, to.0, now)?;
        self.touch(from.0, now, -i32::from(is_directory))?;
        self.touch(to.0, now, more)?;
        Ok(target.map(|target| target.inode))
    }

    /// Frees a part of what has no name; whether that was all.
    fn reap_step(&mut self, number: u64) -> Result<bool, Errno> {
        let mut inode = self.inode(number)?;
        let extents = self.extents(number, 0, u64::MAX, REAP_EXTENTS)?;
        if let (Some(first), Some(last)) = (extents.first(), extents.last()) {
            inode.blocks = self.punch(number, first.file_block, last.end(), inode.blocks)?;
            // Of what is left nobody may see a part.
            self.put_inode(number, &inode)?;
        }
        if extents.len() == REAP_EXTENTS {
            return Ok(false);
        }
        for (key, _) in self.attributes_of(number)? {
            self.store.delete(&key)?;
        }
        for table in *b"YIO" {
            self.store.delete(&key(table, number))?;
        }
        self.inodes = self.inodes.checked_sub(1).ok_or(Errno::IO)?;
        Ok(true)
    }
}

impl FileSystem {
    /// Finds a name. The caller holds the inode then, once more, until it says [`FileSystem::forget`].
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`, `EIO`.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<(u64, Inode), Errno> {
        let state = self.state();
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if !state.inode(parent)?.is_directory() {
            return Err(Errno::NOTDIR);
        }
        let entry = state.entry(parent, name)?.ok_or(Errno::NOENT)?;
        let inode = state.inode(entry.inode)?;
        // With the state held nobody can remove it in between.
        *self.held().entry(entry.inode).or_default() += 1;
        Ok((entry.inode, inode))
    }

    /// Makes something with a name. The caller holds it, as after [`FileSystem::lookup`].
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` when the directory has been removed, `ENOTDIR`, `ENAMETOOLONG`, `EINVAL` for what is no name,
    /// `ENOSPC`, `EIO`.
    pub fn create(&self, parent: u64, name: &[u8], node: &NewNode<'_>, now: Time) -> Result<(u64, Inode), Errno> {
        if node.target.len() > TARGET_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        self.change(|state| {
            let made = state.create(parent, name, node, now)?;
            *self.held().entry(made.0).or_default() += 1;
            Ok(made)
        })
    }

    /// Gives a file another name. The caller holds it once more.
    ///
    /// # Errors
    /// As of [`FileSystem::create`]; `EPERM` for directories, `EMLINK`.
    pub fn link(&self, number: u64, parent: u64, name: &[u8], now: Time) -> Result<Inode, Errno> {
        self.change(|state| {
            check_name(name)?;
            state.directory(parent)?;
            state.need_room(name.len() * 2)?;
            let mut inode = state.inode(number)?;
            match () {
                () if inode.is_directory() => return Err(Errno::PERM),
                () if inode.nlink == 0 => return Err(Errno::NOENT),
                () if inode.nlink >= LINKS_MAX => return Err(Errno::MLINK),
                () if state.entry(parent, name)?.is_some() => return Err(Errno::EXIST),
                () => {}
            }
            inode.nlink += 1;
            inode.ctime = now;
            state.put_inode(number, &inode)?;
            state.add_entry(parent, name, number, inode.mode)?;
            state.touch(parent, now, 0)?;
            state.is_essential(number);
            *self.held().entry(number).or_default() += 1;
            Ok(inode)
        })
    }

    /// Removes the name of what is no directory. What has no name is freed when nobody holds it.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `ENOTDIR`, `EIO`.
    pub fn unlink(&self, parent: u64, name: &[u8], now: Time) -> Result<(), Errno> {
        let number = self.change(|state| state.remove(parent, name, false, now))?;
        self.reap_unless_held(number)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EIO`.
    pub fn rmdir(&self, parent: u64, name: &[u8], now: Time) -> Result<(), Errno> {
        let number = self.change(|state| state.remove(parent, name, true, now))?;
        self.reap_unless_held(number)
    }

    /// Gives what has one name another one, in one step.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `ENOTDIR`, `EISDIR`, `ENOTEMPTY`, `EINVAL` for a directory into itself, `ENOSPC`, `EIO`.
    pub fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), existing: Existing, now: Time) -> Result<(), Errno> {
        match self.change(|state| state.rename(from, to, existing, now))? {
            Some(number) => self.reap_unless_held(number),
            None => Ok(()),
        }
    }

    /// Entries of a directory behind a cookie, in the order of their making, at most `limit`; cookie 0 is before `.`.
    ///
    /// What is there all the time is given once, whatever else is made and removed meanwhile.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOENT`, `EIO`.
    pub fn entries(&self, number: u64, after: u64, limit: usize) -> Result<Vec<Entry>, Errno> {
        let state = self.state();
        let inode = state.inode(number)?;
        if !inode.is_directory() {
            return Err(Errno::NOTDIR);
        }
        let dot = |cookie, inode, name: &[u8]| Entry { cookie, inode, kind: kind(S_IFDIR), name: name.to_vec() };
        let dots = [dot(1, number, b"."), dot(2, inode.parent, b"..")];
        let mut entries: Vec<Entry> = dots.into_iter().filter(|entry| entry.cookie > after).take(limit).collect();
        let first = after.saturating_add(1).max(FIRST_COOKIE);
        let end = key(b'L', number + 1);
        for (key, value) in state.store.range(&key2(b'L', number, first), &end, limit - entries.len())? {
            entries.push(Entry::decode_by_cookie(last_number(&key)?, &value)?);
        }
        Ok(entries)
    }

    /// A symbolic link's target.
    ///
    /// # Errors
    /// `EINVAL` when it is none, `ENOENT`, `EIO`.
    pub fn target(&self, number: u64) -> Result<Vec<u8>, Errno> {
        let state = self.state();
        state.inode(number)?;
        state.store.get(&key(b'Y', number))?.ok_or(Errno::INVAL)
    }

    /// The caller holds an inode `times` less.
    pub fn forget(&self, number: u64, times: u64) {
        let is_last = {
            let mut held = self.held();
            let Some(count) = held.get_mut(&number) else { return };
            *count = count.saturating_sub(times);
            let is_last = *count == 0;
            if is_last {
                held.remove(&number);
            }
            is_last
        };
        if is_last && let Err(error) = self.reap_unless_held(number) {
            tracing::warn!(%error, number, "what has no name is freed at the next mount");
        }
    }

    /// Frees what nobody can reach any more.
    fn reap_unless_held(&self, number: u64) -> Result<(), Errno> {
        let is_orphan = |state: &State| Ok(state.store.get(&key(b'O', number))?.is_some());
        if !is_orphan(&self.state())? || self.held().contains_key(&number) {
            return Ok(());
        }
        loop {
            let _alone = self.stripe(number).write();
            // Another thread may have forgotten it at the same time.
            let is_done = self.change(|state| Ok(!is_orphan(state)? || state.reap_step(number)?))?;
            if is_done {
                return Ok(());
            }
        }
    }

    /// Frees what a former life left without a name.
    pub(crate) fn reap_all(&self) -> Result<(), Errno> {
        let mut low = b"O".to_vec();
        loop {
            let orphans = self.state().store.range(&low, b"P", STEP)?;
            let Some((last, _)) = orphans.last() else { return Ok(()) };
            low = [&last[..], &[0]].concat();
            for (found, _) in orphans {
                let number = last_number(&found)?;
                let is_one = |state: &State| state.inode(number).is_ok_and(|inode| inode.nlink == 0);
                if found == key(b'O', number) && is_one(&self.state()) {
                    self.reap_unless_held(number)?;
                } else {
                    tracing::error!(number, "what has a name is to be freed, and is left; `osier fsck` says more");
                }
            }
        }
    }
}
