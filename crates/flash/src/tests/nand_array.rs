//! A NAND array that keeps the rules of NAND, and can lose power.
//!
//! Fault model. An operation that was issued is *pending* until the array carries it out; any pending
//! operation may be carried out next. A program is *volatile* until a `Sync` that was issued after it
//! was answered.
//!
//! - *kill* (the process dies, the media lives): each pending program is wholly done, not done at all,
//!   or cut at an arbitrary byte; each pending erase is done, not done, or done for some pages only.
//!   What was carried out stays.
//! - *power cut*: as a kill, and each volatile program on top of that stays, vanishes, is cut, or has
//!   a run of its bytes replaced by noise. An erase is never volatile longer than until it is carried
//!   out: that is the assumption that the format states.

use super::rng::Rng;
use crate::media::{MediaError, MediaOp, MediaOpKind, MediaResult};
use crate::{Geometry, OpId};

/// Content of an erased byte; both kinds of media exist (NAND reads ones, a hole in a file zeroes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    Erased,
    Volatile,
    Durable,
    /// Cut or half erased: must be erased before it is programmed.
    Dirty,
}

/// The array.
pub struct NandArray {
    geometry: Geometry,
    blank: u8,
    bytes: Vec<u8>,
    pages: Vec<Page>,
    pending: Vec<MediaOp>,
}

impl NandArray {
    pub fn new(geometry: Geometry, blank: u8) -> NandArray {
        let bytes = usize::try_from(geometry.media_bytes()).unwrap();
        let pages = bytes / geometry.page_bytes as usize;
        NandArray { geometry, blank, bytes: vec![blank; bytes], pages: vec![Page::Erased; pages], pending: Vec::new() }
    }

    pub fn issue(&mut self, op: MediaOp) {
        self.pending.push(op);
    }

    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Carries out one pending operation, the oldest or any.
    pub fn carry_out(&mut self, rng: Option<&mut Rng>) -> Option<(OpId, MediaResult)> {
        if self.pending.is_empty() {
            return None;
        }
        let index = rng.map_or(0, |rng| rng.below(self.pending.len() as u64) as usize);
        let op = self.pending.remove(index);
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
                // Only what was answered before the sync was issued is promised, but the FTL issues
                // one only when nothing that it wants covered is pending.
                self.sync();
                MediaResult::Synced
            }
        };
        Some((op.id, result))
    }

    /// As recovery sees it.
    pub fn read_into(&self, address: u64, out: &mut [u8]) -> Result<(), MediaError> {
        let start = usize::try_from(address).unwrap();
        let range = self.bytes.get(start..start + out.len()).ok_or(MediaError::OutOfRange)?;
        out.copy_from_slice(range);
        Ok(())
    }

    /// The process dies.
    pub fn kill(&mut self, rng: &mut Rng) {
        for op in std::mem::take(&mut self.pending) {
            match op.kind {
                MediaOpKind::Program { address, data, .. } => {
                    let data = data.expect("the FTL keeps data");
                    match rng.below(3) {
                        0 => {}
                        1 => self.program(address, &data),
                        _ => {
                            self.program(address, &data);
                            self.cut(address, rng);
                        }
                    }
                }
                MediaOpKind::Erase { address, bytes } => match rng.below(3) {
                    0 => {}
                    1 => self.erase(address, bytes),
                    _ => self.erase_partly(address, bytes, rng),
                },
                MediaOpKind::Read { .. } | MediaOpKind::Sync => {}
            }
        }
    }

    /// The power fails.
    pub fn cut_power(&mut self, rng: &mut Rng) {
        self.kill(rng);
        // Now and then nothing volatile survives, or all of it, besides the mixtures.
        let mode = rng.below(4);
        for page in 0..self.pages.len() {
            if self.pages[page] != Page::Volatile {
                continue;
            }
            let address = (page * self.geometry.page_bytes as usize) as u64;
            match if mode < 2 { mode } else { rng.below(4) } {
                0 => self.vanish(page),
                1 => {}
                2 => self.cut(address, rng),
                _ => self.scramble(address, rng),
            }
        }
        self.sync();
    }

    /// Flips one bit somewhere in a range of the media.
    pub fn flip_bit(&mut self, address: u64, bit: u32) {
        self.bytes[address as usize] ^= 1 << bit;
    }

    fn page_of(&self, address: u64) -> usize {
        (address / u64::from(self.geometry.page_bytes)) as usize
    }

    fn read(&self, address: u64, bytes: u32) -> Box<[u8]> {
        let start = address as usize;
        for page in self.page_of(address)..=self.page_of(address + u64::from(bytes) - 1) {
            assert_ne!(self.pages[page], Page::Erased, "page {page} is read before it is programmed");
        }
        self.bytes[start..start + bytes as usize].into()
    }

    fn program(&mut self, address: u64, data: &[u8]) {
        let page = self.page_of(address);
        assert_eq!(address % u64::from(self.geometry.page_bytes), 0, "pages are programmed whole");
        assert_eq!(data.len(), self.geometry.page_bytes as usize, "pages are programmed whole");
        assert_eq!(self.pages[page], Page::Erased, "page {page} is programmed without an erase");
        self.pages[page] = Page::Volatile;
        self.bytes[address as usize..address as usize + data.len()].copy_from_slice(data);
    }

    fn erase(&mut self, address: u64, bytes: u64) {
        assert_eq!(address % self.geometry.superblock_bytes(), 0);
        assert_eq!(bytes, self.geometry.superblock_bytes());
        for page in self.page_of(address)..self.page_of(address + bytes) {
            self.vanish(page);
        }
    }

    fn erase_partly(&mut self, address: u64, bytes: u64, rng: &mut Rng) {
        for page in self.page_of(address)..self.page_of(address + bytes) {
            if rng.one_in(2) {
                self.vanish(page);
            } else if self.pages[page] != Page::Erased {
                self.pages[page] = Page::Dirty;
            }
        }
    }

    fn sync(&mut self) {
        for page in self.pages.iter_mut().filter(|page| **page == Page::Volatile) {
            *page = Page::Durable;
        }
    }

    fn vanish(&mut self, page: usize) {
        let page_bytes = self.geometry.page_bytes as usize;
        self.pages[page] = Page::Erased;
        self.bytes[page * page_bytes..(page + 1) * page_bytes].fill(self.blank);
    }

    /// Only the first bytes of the page were programmed.
    fn cut(&mut self, address: u64, rng: &mut Rng) {
        let page = self.page_of(address);
        let page_bytes = self.geometry.page_bytes as usize;
        let kept = rng.below(page_bytes as u64) as usize;
        self.pages[page] = Page::Dirty;
        self.bytes[page * page_bytes + kept..(page + 1) * page_bytes].fill(self.blank);
    }

    /// A run of the page's bytes is noise.
    fn scramble(&mut self, address: u64, rng: &mut Rng) {
        let page = self.page_of(address);
        let page_bytes = self.geometry.page_bytes as usize;
        let start = rng.below(page_bytes as u64) as usize;
        let end = start + rng.below((page_bytes - start) as u64) as usize + 1;
        self.pages[page] = Page::Dirty;
        for byte in &mut self.bytes[page * page_bytes + start..page * page_bytes + end.min(page_bytes)] {
            *byte = rng.next() as u8;
        }
    }
}
