//! What a file system is, as plainly as it can be said.

use std::collections::{BTreeMap, BTreeSet};

use osier_fs::{Errno, ROOT, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};

pub const BLOCK: usize = 4096;

/// A file, directory or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub mode: u32,
    pub owner: u32,
    pub links: u32,
    pub bytes: Vec<u8>,
    /// Blocks that were written.
    pub written: BTreeSet<usize>,
    pub entries: BTreeMap<Vec<u8>, u64>,
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    pub parent: u64,
}

impl Node {
    fn new(mode: u32, parent: u64) -> Node {
        Node {
            mode,
            owner: 0,
            links: if mode & S_IFMT == S_IFDIR { 2 } else { 1 },
            bytes: Vec::new(),
            written: BTreeSet::new(),
            entries: BTreeMap::new(),
            attributes: BTreeMap::new(),
            parent,
        }
    }

    pub fn is_directory(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    pub fn is_regular(&self) -> bool {
        self.mode & S_IFMT == S_IFREG
    }
}

/// All of them by their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    pub nodes: BTreeMap<u64, Node>,
    /// Those without a name that somebody holds.
    pub held: BTreeSet<u64>,
}

impl Model {
    pub fn new() -> Model {
        Model { nodes: BTreeMap::from([(ROOT, Node::new(S_IFDIR | 0o755, ROOT))]), held: BTreeSet::new() }
    }

    fn directory(&self, number: u64) -> Result<&Node, Errno> {
        let node = self.nodes.get(&number).ok_or(Errno::NOENT)?;
        match () {
            () if !node.is_directory() => Err(Errno::NOTDIR),
            () if node.links == 0 => Err(Errno::NOENT),
            () => Ok(node),
        }
    }

    fn file(&mut self, number: u64) -> Result<&mut Node, Errno> {
        let node = self.nodes.get_mut(&number).ok_or(Errno::NOENT)?;
        match () {
            () if node.is_regular() => Ok(node),
            () if node.is_directory() => Err(Errno::ISDIR),
            () => Err(Errno::INVAL),
        }
    }

    fn node(&mut self, number: u64) -> &mut Node {
        self.nodes.get_mut(&number).unwrap()
    }

    pub fn can_create(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        if self.directory(parent)?.entries.contains_key(name) { Err(Errno::EXIST) } else { Ok(()) }
    }

    pub fn create(&mut self, parent: u64, name: &[u8], number: u64, mode: u32, target: &[u8]) {
        let mut node = Node::new(mode, parent);
        if mode & S_IFMT == S_IFLNK {
            node.bytes = target.to_vec();
        }
        self.nodes.insert(number, node);
        let directory = self.node(parent);
        directory.entries.insert(name.to_vec(), number);
        directory.links += u32::from(mode & S_IFMT == S_IFDIR);
    }

    pub fn link(&mut self, number: u64, parent: u64, name: &[u8]) -> Result<(), Errno> {
        self.directory(parent)?;
        let node = self.nodes.get(&number).ok_or(Errno::NOENT)?;
        match () {
            () if node.is_directory() => return Err(Errno::PERM),
            () if node.links == 0 => return Err(Errno::NOENT),
            () => self.can_create(parent, name)?,
        }
        self.node(number).links += 1;
        self.node(parent).entries.insert(name.to_vec(), number);
        Ok(())
    }

    fn drop_name(&mut self, number: u64) {
        let node = self.node(number);
        node.links = if node.is_directory() { 0 } else { node.links - 1 };
        self.reap(number);
    }

    pub fn reap(&mut self, number: u64) {
        if self.nodes.get(&number).is_some_and(|node| node.links == 0) && !self.held.contains(&number) {
            self.nodes.remove(&number);
        }
    }

    pub fn remove(&mut self, parent: u64, name: &[u8], is_directory: bool) -> Result<(), Errno> {
        let number = *self.directory(parent)?.entries.get(name).ok_or(Errno::NOENT)?;
        let node = &self.nodes[&number];
        match (is_directory, node.is_directory()) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) if !node.entries.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.node(parent).entries.remove(name);
        self.node(parent).links -= u32::from(is_directory);
        self.drop_name(number);
        Ok(())
    }

    fn is_within(&self, mut directory: u64, ancestor: u64) -> bool {
        while directory != ROOT && directory != ancestor {
            directory = self.nodes[&directory].parent;
        }
        directory == ancestor
    }

    pub fn exchange(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> Result<(), Errno> {
        let first = *self.directory(from.0)?.entries.get(from.1).ok_or(Errno::NOENT)?;
        let second = *self.directory(to.0)?.entries.get(to.1).ok_or(Errno::NOENT)?;
        if first == second {
            return Ok(());
        }
        let is_directory = |model: &Model, number| model.nodes[&number].is_directory();
        if is_directory(self, first) && self.is_within(to.0, first)
            || is_directory(self, second) && self.is_within(from.0, second)
        {
            return Err(Errno::INVAL);
        }
        for (number, old, new) in [(first, from.0, to), (second, to.0, from)] {
            let links = u32::from(is_directory(self, number));
            self.node(old).links -= links;
            self.node(new.0).links += links;
            self.node(new.0).entries.insert(new.1.to_vec(), number);
            self.node(number).parent = new.0;
        }
        Ok(())
    }

    pub fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), may_replace: bool) -> Result<(), Errno> {
        let number = *self.directory(from.0)?.entries.get(from.1).ok_or(Errno::NOENT)?;
        let there = self.directory(to.0)?.entries.get(to.1).copied();
        match there {
            Some(_) if !may_replace => return Err(Errno::EXIST),
            Some(there) if there == number => return Ok(()),
            _ => {}
        }
        let is_directory = self.nodes[&number].is_directory();
        if is_directory && self.is_within(to.0, number) {
            return Err(Errno::INVAL);
        }
        if let Some(there) = there {
            match (is_directory, self.nodes[&there].is_directory()) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !self.nodes[&there].entries.is_empty() => return Err(Errno::NOTEMPTY),
                (_, was_directory) => self.node(to.0).links -= u32::from(was_directory),
            }
            self.drop_name(there);
        }
        self.node(from.0).entries.remove(from.1);
        self.node(to.0).entries.insert(to.1.to_vec(), number);
        self.node(from.0).links -= u32::from(is_directory);
        self.node(to.0).links += u32::from(is_directory);
        self.node(number).parent = to.0;
        Ok(())
    }

    pub fn write(&mut self, number: u64, offset: usize, bytes: &[u8]) -> Result<(), Errno> {
        let node = self.file(number)?;
        let end = offset + bytes.len();
        if end > node.bytes.len() && !bytes.is_empty() {
            node.bytes.resize(end, 0);
        }
        if !bytes.is_empty() {
            node.bytes[offset..end].copy_from_slice(bytes);
            node.written.extend(offset / BLOCK..end.div_ceil(BLOCK));
        }
        Ok(())
    }

    pub fn resize(&mut self, number: u64, size: usize) -> Result<(), Errno> {
        let node = self.file(number)?;
        if size < node.bytes.len() {
            node.written.retain(|block| *block < size.div_ceil(BLOCK));
        }
        node.bytes.resize(size, 0);
        Ok(())
    }

    /// Zeroes, with blocks or without.
    pub fn clear(&mut self, number: u64, offset: usize, length: usize, grows: bool) -> Result<(), Errno> {
        let node = self.file(number)?;
        let end = offset + length;
        if grows && end > node.bytes.len() {
            node.bytes.resize(end, 0);
        }
        let size = node.bytes.len();
        node.bytes[offset.min(size)..end.min(size)].fill(0);
        node.written.retain(|block| *block < offset.div_ceil(BLOCK) || *block >= end / BLOCK);
        Ok(())
    }

    /// Blocks, but no bytes.
    pub fn reserve(&mut self, number: u64, end: usize, grows: bool) -> Result<(), Errno> {
        let node = self.file(number)?;
        if grows && end > node.bytes.len() {
            node.bytes.resize(end, 0);
        }
        Ok(())
    }

    /// The next data or hole.
    pub fn seek(&mut self, number: u64, offset: usize, is_data: bool) -> Result<usize, Errno> {
        let node = self.file(number)?;
        let size = node.bytes.len();
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let found = (offset / BLOCK..size.div_ceil(BLOCK)).find(|block| node.written.contains(block) == is_data);
        match found {
            Some(block) => Ok((block * BLOCK).max(offset)),
            None if is_data => Err(Errno::NXIO),
            None => Ok(size),
        }
    }
}
