//! A NAND array that keeps the rules of NAND, and can lose power.
//!
//! Fault model. An operation that was issued is *pending* until the array carries it out; any pending
//! operation may be carried out next. A page is *volatile* from the moment that a program or an erase
//! changed it until a `Sync` is carried out that was issued later.
//!
//! - *kill* (the process dies, the media lives): each pending program is wholly done, not done at all,
//!   or cut at an arbitrary byte; each pending erase is done, not done, or done for some pages only.
//!   What was carried out stays.
//! - *power cut*: a kill, and on top of that each volatile page stays, falls back to what was there at
//!   the last sync (so an erase comes undone, too), is cut at an arbitrary byte, or has a run of its
//!   bytes replaced by noise.
//! - *dead die*: from then on every read, program and erase that touches it fails, in recovery, too.

use crate::media::{MediaError, MediaOp, MediaOpKind, MediaResult};
use crate::rng::Rng;
use crate::{Geometry, OpId};

#[derive(Debug, Clone, Copy)]
struct Page {
    /// Whether it may be programmed.
    is_erased: bool,
    /// When it was last changed, if that is not synced yet.
    changed: Option<u64>,
}

/// The array.
#[derive(Debug, Clone)]
pub struct NandArray {
    geometry: Geometry,
    /// What an erased byte reads as: NAND reads ones, a hole in a file zeroes.
    blank: u8,
    bytes: Vec<u8>,
    /// The bytes as of the last sync.
    durable: Vec<u8>,
    pages: Vec<Page>,
    /// Operations and the tick of their issue.
    pending: Vec<(u64, MediaOp)>,
    tick: u64,
    /// Whether a page that was never programmed may be read, as after a crash.
    was_cut: bool,
    is_dead: Vec<bool>,
    rng: Rng,
}

impl NandArray {
    /// An erased array.
    ///
    /// # Panics
    /// When the array does not fit into memory.
    #[must_use]
    pub fn new(geometry: Geometry, blank: u8, seed: u64) -> NandArray {
        let bytes = usize::try_from(geometry.media_bytes()).expect("a small device");
        NandArray {
            geometry,
            blank,
            bytes: vec![blank; bytes],
            durable: vec![blank; bytes],
            pages: vec![Page { is_erased: true, changed: None }; bytes / geometry.page_bytes as usize],
            pending: Vec::new(),
            tick: 0,
            was_cut: false,
            is_dead: vec![false; geometry.dies() as usize],
            rng: Rng::new(seed),
        }
    }

    /// Takes an operation.
    pub fn issue(&mut self, op: MediaOp) {
        self.tick += 1;
        self.pending.push((self.tick, op));
    }

    /// Carries out one pending operation, the oldest or any.
    ///
    /// # Panics
    /// When the operation breaks a rule of NAND.
    pub fn carry_out(&mut self, in_any_order: bool) -> Option<(OpId, MediaResult)> {
        if self.pending.is_empty() {
            return None;
        }
        self.tick += 1;
        let index = if in_any_order {
            let index = self.rng.below(self.pending.len() as u64) as usize;
            // Reads are late more often than not, so that others overtake them.
            let is_read = matches!(self.pending[index].1.kind, MediaOpKind::Read { .. });
            if is_read { self.rng.below(self.pending.len() as u64) as usize } else { index }
        } else {
            0
        };
        let (issued, op) = self.pending.remove(index);
        if self.touches_dead_die(&op.kind) {
            return Some((op.id, MediaResult::Failed(MediaError::Io)));
        }
        let result = match op.kind {
            MediaOpKind::Read { address, bytes } => MediaResult::Read(self.read(address, bytes)),
            MediaOpKind::Program { address, bytes, data } => {
                let data = data.expect("the FTL keeps data");
                assert_eq!(data.len(), bytes as usize);
                self.program(address, &data);
                MediaResult::Programmed(Some(data))
            }
            MediaOpKind::Erase { address, bytes } => {
                self.erase(address, bytes);
                MediaResult::Erased
            }
            MediaOpKind::Sync => {
                self.sync(issued);
                MediaResult::Synced
            }
        };
        Some((op.id, result))
    }

    fn touches_dead_die(&self, op: &MediaOpKind) -> bool {
        match *op {
            MediaOpKind::Read { address, bytes } | MediaOpKind::Program { address, bytes, .. } => {
                self.is_on_dead_die(address, u64::from(bytes))
            }
            MediaOpKind::Erase { address, bytes } => self.is_on_dead_die(address, bytes),
            MediaOpKind::Sync => false,
        }
    }

    /// Whether any of these bytes lie on a die that is dead.
    #[must_use]
    pub fn is_on_dead_die(&self, address: u64, bytes: u64) -> bool {
        let pages = self.page_of(address)..=self.page_of(address + bytes.max(1) - 1);
        self.is_dead.contains(&true) && pages.into_iter().any(|page| self.is_dead[self.die_of(page)])
    }

    fn die_of(&self, page: usize) -> usize {
        let in_superblock = page % self.geometry.pages_per_superblock() as usize;
        self.geometry.place(in_superblock as u32).die as usize
    }

    /// A die stops answering, for good.
    pub fn lose_die(&mut self, die: u32) {
        self.is_dead[die as usize] = true;
    }

    /// As recovery sees it.
    ///
    /// # Errors
    /// Beyond the end, or on a dead die.
    pub fn read_into(&self, address: u64, out: &mut [u8]) -> Result<(), MediaError> {
        if self.is_on_dead_die(address, out.len() as u64) {
            return Err(MediaError::Io);
        }
        let start = address as usize;
        let range = self.bytes.get(start..start + out.len()).ok_or(MediaError::OutOfRange)?;
        out.copy_from_slice(range);
        Ok(())
    }

    /// The process dies.
    ///
    /// # Panics
    /// When a pending operation breaks a rule of NAND.
    pub fn kill(&mut self) {
        self.was_cut = true;
        for (_, op) in std::mem::take(&mut self.pending) {
            if self.touches_dead_die(&op.kind) {
                continue;
            }
            match op.kind {
                MediaOpKind::Program { address, data, .. } => {
                    let data = data.expect("the FTL keeps data");
                    match self.rng.below(3) {
                        0 => {}
                        1 => self.program(address, &data),
                        _ => {
                            self.program(address, &data);
                            self.cut(self.page_of(address));
                        }
                    }
                }
                MediaOpKind::Erase { address, bytes } => match self.rng.below(3) {
                    0 => {}
                    1 => self.erase(address, bytes),
                    _ => self.erase_partly(address, bytes),
                },
                MediaOpKind::Read { .. } | MediaOpKind::Sync => {}
            }
        }
    }

    /// The power fails.
    pub fn cut_power(&mut self) {
        self.kill();
        // Now and then all of the volatile pages survive, or none, besides the mixtures.
        let mode = self.rng.below(4);
        for page in 0..self.pages.len() {
            if self.pages[page].changed.is_none() {
                continue;
            }
            match if mode < 2 { mode } else { self.rng.below(4) } {
                0 => self.fall_back(page),
                1 => {}
                2 => self.cut(page),
                _ => self.scramble(page),
            }
        }
        self.sync(u64::MAX);
    }

    /// Flips one bit of the media.
    pub fn flip_bit(&mut self, address: u64, bit: u32) {
        self.bytes[address as usize] ^= 1 << bit;
    }

    /// Overwrites a range of the media with noise.
    pub fn corrupt(&mut self, address: u64, bytes: u64) {
        for byte in &mut self.bytes[address as usize..(address + bytes) as usize] {
            *byte = self.rng.next() as u8;
        }
    }

    /// Puts bytes onto the media, whatever its rules.
    pub fn overwrite(&mut self, address: u64, bytes: &[u8]) {
        self.bytes[address as usize..address as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn page_of(&self, address: u64) -> usize {
        (address / u64::from(self.geometry.page_bytes)) as usize
    }

    fn range(&self, page: usize) -> std::ops::Range<usize> {
        let page_bytes = self.geometry.page_bytes as usize;
        page * page_bytes..(page + 1) * page_bytes
    }

    fn read(&self, address: u64, bytes: u32) -> Box<[u8]> {
        let start = address as usize;
        for page in self.page_of(address)..=self.page_of(address + u64::from(bytes) - 1) {
            let is_erased = self.pages[page].is_erased;
            assert!(!is_erased || self.was_cut, "page {page} is read before it is programmed");
        }
        self.bytes[start..start + bytes as usize].into()
    }

    fn program(&mut self, address: u64, data: &[u8]) {
        let page = self.page_of(address);
        assert_eq!(address % u64::from(self.geometry.page_bytes), 0, "pages are programmed whole");
        assert_eq!(data.len(), self.geometry.page_bytes as usize, "pages are programmed whole");
        assert!(self.pages[page].is_erased, "page {page} is programmed without an erase");
        self.pages[page] = Page { is_erased: false, changed: Some(self.tick) };
        let range = self.range(page);
        self.bytes[range].copy_from_slice(data);
    }

    fn erase(&mut self, address: u64, bytes: u64) {
        assert_eq!(address % self.geometry.superblock_bytes(), 0);
        assert_eq!(bytes, self.geometry.superblock_bytes());
        for page in self.page_of(address)..self.page_of(address + bytes) {
            self.erase_page(page);
        }
    }

    fn erase_partly(&mut self, address: u64, bytes: u64) {
        for page in self.page_of(address)..self.page_of(address + bytes) {
            if self.rng.one_in(2) {
                self.erase_page(page);
            } else {
                // Not wholly erased: no page of the block may be programmed before the next erase.
                self.pages[page].is_erased = false;
            }
        }
    }

    fn erase_page(&mut self, page: usize) {
        if self.pages[page].is_erased && self.pages[page].changed.is_none() {
            return;
        }
        self.pages[page] = Page { is_erased: true, changed: Some(self.tick) };
        let range = self.range(page);
        self.bytes[range].fill(self.blank);
    }

    fn sync(&mut self, issued: u64) {
        for page in 0..self.pages.len() {
            if self.pages[page].changed.is_some_and(|changed| changed < issued) {
                self.pages[page].changed = None;
                let range = self.range(page);
                self.durable[range.clone()].copy_from_slice(&self.bytes[range]);
            }
        }
    }

    fn fall_back(&mut self, page: usize) {
        let range = self.range(page);
        self.bytes[range.clone()].copy_from_slice(&self.durable[range]);
        self.pages[page].is_erased = false;
    }

    /// Only the first bytes of the page were changed.
    fn cut(&mut self, page: usize) {
        let range = self.range(page);
        let kept = range.start + self.rng.below(range.len() as u64) as usize;
        self.bytes[kept..range.end].copy_from_slice(&self.durable[kept..range.end]);
        self.pages[page].is_erased = false;
    }

    /// A run of the page's bytes is noise.
    fn scramble(&mut self, page: usize) {
        let range = self.range(page);
        let start = range.start + self.rng.below(range.len() as u64) as usize;
        let end = start + self.rng.below((range.end - start) as u64) as usize + 1;
        self.corrupt(start as u64, (end - start) as u64);
        self.pages[page].is_erased = false;
    }
}
