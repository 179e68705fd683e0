//! The store's region as `redb` sees it: bytes with a length.
//!
//! redb asks for three things (its design document, "Assumptions about underlying media"): that one byte is written
//! wholly or not at all, that what was written before `sync_data` is persistent after it, and that a write harms no
//! bytes beside its own. What it writes is collected here and given to the device at a sync, all of it at once, so that
//! a commit waits for the device once and not for each of its pages.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::blocks::{BLOCK_BYTES, Blocks};
use crate::layout::{Geometry, STORE_LENGTH, STORE_START};

/// Most bytes that wait for a sync.
const PENDING_BYTES_MAX: usize = 8 << 20;

pub(crate) struct Backend {
    blocks: Arc<dyn Blocks>,
    bytes_max: u64,
    state: Mutex<Pending>,
}

/// What the device does not have yet.
#[derive(Default)]
struct Pending {
    length: u64,
    /// Whole blocks of the region, by their number.
    blocks: BTreeMap<u64, Box<[u8]>>,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

impl Backend {
    /// The region as it is.
    pub fn open(blocks: Arc<dyn Blocks>, geometry: &Geometry) -> io::Result<Backend> {
        let mut record = vec![0; BLOCK_BYTES];
        blocks.read(STORE_LENGTH, &mut record)?;
        let length = decode_length(&record).filter(|length| *length <= geometry.store_bytes());
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the store's length is damaged");
        let state = Mutex::new(Pending { length: length.ok_or_else(damaged)?, blocks: BTreeMap::new() });
        Ok(Backend { blocks, bytes_max: geometry.store_bytes(), state })
    }

    /// An empty region.
    pub fn create(blocks: Arc<dyn Blocks>, geometry: &Geometry) -> io::Result<Backend> {
        blocks.write(STORE_LENGTH, &encode_length(0))?;
        blocks.flush()?;
        Ok(Backend { blocks, bytes_max: geometry.store_bytes(), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, Pending> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the device what waits.
    fn write_pending(&self, state: &mut Pending) -> io::Result<()> {
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for (block, bytes) in &state.blocks {
            match runs.last_mut() {
                Some((first, run)) if *first + (run.len() / BLOCK_BYTES) as u64 == STORE_START + block => {
                    run.extend_from_slice(bytes);
                }
                _ => runs.push((STORE_START + block, bytes.to_vec())),
            }
        }
        let ranges: Vec<(u64, &[u8])> = runs.iter().map(|(block, bytes)| (*block, &bytes[..])).collect();
        self.blocks.write_all(&ranges)?;
        state.blocks.clear();
        Ok(())
    }
}

fn encode_length(length: u64) -> Vec<u8> {
    let mut block = length.to_le_bytes().to_vec();
    block.extend(crc32c::crc32c(&block).to_le_bytes());
    block.resize(BLOCK_BYTES, 0);
    block
}

fn decode_length(block: &[u8]) -> Option<u64> {
    let (length, rest) = block.split_first_chunk::<8>()?;
    let (sum, _) = rest.split_first_chunk::<4>()?;
    (crc32c::crc32c(length) == u32::from_le_bytes(*sum)).then_some(u64::from_le_bytes(*length))
}

/// The blocks that a range of bytes touches, and of each the range within it and within the bytes.
fn pieces(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>, std::ops::Range<usize>)> {
    let (mut at, mut done) = (offset, 0);
    std::iter::from_fn(move || {
        let start = (at % BLOCK_BYTES as u64) as usize;
        let length = (BLOCK_BYTES - start).min(bytes - done);
        let piece = (at / BLOCK_BYTES as u64, start..start + length, done..done + length);
        (at, done) = (at + length as u64, done + length);
        (length > 0).then_some(piece)
    })
}

fn beyond_the_end() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the store")
}

impl redb::StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > state.length) {
            return Err(beyond_the_end());
        }
        let first = offset / BLOCK_BYTES as u64;
        let is_whole = offset.is_multiple_of(BLOCK_BYTES as u64) && out.len().is_multiple_of(BLOCK_BYTES);
        let end = (offset + out.len() as u64).div_ceil(BLOCK_BYTES as u64);
        if is_whole && state.blocks.range(first..end).next().is_none() {
            // Nobody writes what redb reads meanwhile: that is its own rule for its pages.
            drop(state);
            return self.blocks.read(STORE_START + first, out);
        }
        let mut block = vec![0; BLOCK_BYTES];
        for (number, within, part) in pieces(offset, out.len()) {
            match state.blocks.get(&number) {
                Some(bytes) => out[part].copy_from_slice(&bytes[within]),
                None => {
                    self.blocks.read(STORE_START + number, &mut block)?;
                    out[part].copy_from_slice(&block[within]);
                }
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        if len > self.bytes_max {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the store's region is full"));
        }
        self.write_pending(&mut state)?;
        let (from, to) = (state.length.div_ceil(BLOCK_BYTES as u64), len.div_ceil(BLOCK_BYTES as u64));
        if to > from {
            self.blocks.zero(STORE_START + from, to - from)?;
        }
        // What is new must read as zeroes once the length says that it is there.
        self.blocks.flush()?;
        self.blocks.write(STORE_LENGTH, &encode_length(len))?;
        self.blocks.flush()?;
        state.length = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        self.write_pending(&mut state)?;
        drop(state);
        self.blocks.flush()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > state.length) {
            return Err(beyond_the_end());
        }
        for (number, within, part) in pieces(offset, data.len()) {
            let mut block = match state.blocks.remove(&number) {
                Some(block) => block,
                None => {
                    let mut block = vec![0; BLOCK_BYTES].into_boxed_slice();
                    if within.len() < BLOCK_BYTES {
                        self.blocks.read(STORE_START + number, &mut block)?;
                    }
                    block
                }
            };
            block[within].copy_from_slice(&data[part]);
            state.blocks.insert(number, block);
        }
        if state.blocks.len() * BLOCK_BYTES > PENDING_BYTES_MAX {
            self.write_pending(&mut state)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use redb::StorageBackend;

    use super::*;
    use crate::blocks::MemoryBlocks;

    #[test]
    fn bytes_are_read_back_before_and_after_a_sync_wherever_they_begin() {
        let geometry = Geometry::new(8192, [0; 16]).unwrap();
        let blocks: Arc<dyn Blocks> = Arc::new(MemoryBlocks::new(8192));
        let backend = Backend::create(Arc::clone(&blocks), &geometry).unwrap();
        backend.set_len(100_000).unwrap();
        let mut model = vec![0_u8; 100_000];
        let mut seed = 1_u64;
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (seed >> 33) as usize % below
        };
        for step in 0..2_000 {
            let (at, length) = (draw(90_000), draw(10_000));
            if step % 3 == 0 {
                model[at..at + length].fill(step as u8);
                backend.write(at as u64, &vec![step as u8; length]).unwrap();
            }
            let mut read = vec![0; length];
            backend.read(at as u64, &mut read).unwrap();
            assert!(read == model[at..at + length], "step {step}");
            if step % 50 == 0 {
                backend.sync_data().unwrap();
            }
        }
        backend.sync_data().unwrap();
        let again = Backend::open(blocks, &geometry).unwrap();
        assert_eq!(again.len().unwrap(), 100_000);
        let mut read = vec![0; 100_000];
        again.read(0, &mut read).unwrap();
        assert!(read == model);
        assert!(again.read(99_999, &mut [0; 2]).is_err() && again.write(u64::MAX, &[0]).is_err());
        assert!(again.set_len(geometry.store_bytes() + 1).is_err());
    }
}
