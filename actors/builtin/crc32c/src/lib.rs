//! Adds a CRC-32C to every unit that is written, and verifies and strips it when it is read.
//!
//! The checksum covers the unit's address (the first logical block of its extent, u64) and its bytes, so that an
//! extent that comes back for another address is found out. It is four bytes, little endian, behind the unit. The
//! arithmetic of the bytes is an intrinsic of the host; in plain WebAssembly it would be some thirty times slower. That
//! of the address is done here, for it takes less time than the way to the host. Takes no parameters.
#![cfg_attr(target_family = "wasm", no_std)]
#![forbid(unsafe_code)]

use osier_actor_sdk::{Actor, Chunk, Failure, Level, Progress, host};

/// Bytes that the checksum adds.
pub const TRAILER_BYTES: usize = 4;

/// The generator of CRC-32C, its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A CRC is linear: that of an address is that of zero, and what each half byte adds to it. For each half byte, the
/// lowest first, what each of its values adds.
static ADDS: [[u32; 16]; 16] = {
    let mut table = [[0; 16]; 16];
    let mut index = 0;
    while index < 256 {
        let (place, value) = (index / 16, index % 16);
        table[place][value] = crc_bit_by_bit((value as u64) << (4 * place)) ^ crc_bit_by_bit(0);
        index += 1;
    }
    table
};

/// The slow way, for the table.
const fn crc_bit_by_bit(address: u64) -> u32 {
    let (mut state, mut bit) = (u32::MAX, 0);
    while bit < 64 {
        let odd = (state ^ (address >> bit) as u32) & 1;
        state = (state >> 1) ^ (odd * POLYNOMIAL);
        bit += 1;
    }
    !state
}

/// CRC-32C of an address, little endian.
fn crc_of_address(address: u64) -> u32 {
    let (low, high) = ADDS.split_at(8);
    let half = |word: u32, adds: &[[u32; 16]]| {
        adds.iter().zip((0..).step_by(4)).fold(0, |crc, (adds, shift)| crc ^ adds[(word >> shift) as usize & 15])
    };
    let crc = const { crc_bit_by_bit(0) } ^ half(address as u32, low);
    // Devices have fewer blocks than that.
    if address >> 32 == 0 { crc } else { crc ^ half((address >> 32) as u32, high) }
}

/// The actor, and how far it is in a unit.
#[derive(Debug, Default)]
pub struct Checksum {
    done: usize,
    crc: u32,
}

impl Checksum {
    /// The actor in the middle of nothing.
    pub const fn new() -> Checksum {
        Checksum { done: 0, crc: 0 }
    }

    /// Sums and copies the next `budget` bytes; true when `content` is through.
    fn advance(&mut self, content: &[u8], output: &mut [u8], budget: usize, resumed: bool) -> Result<bool, Failure> {
        if !resumed {
            (self.done, self.crc) = (0, crc_of_address(host::slba()));
        }
        let end = content.len().min(self.done.saturating_add(budget));
        let piece = content.get(self.done..end).ok_or(Failure::Other)?;
        let room = output.get_mut(self.done..end).ok_or(Failure::NoRoom)?;
        // The sum first: it waits for the bytes less than a copy does, and then they are near.
        self.crc = host::crc32c(self.crc, piece);
        room.copy_from_slice(piece);
        self.done = end;
        Ok(end == content.len())
    }
}

impl Actor for Checksum {
    fn forward(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        if !self.advance(chunk.input, chunk.output, chunk.budget, chunk.resumed)? {
            return Ok(Progress::Yielded(self.done));
        }
        let end = self.done + TRAILER_BYTES;
        chunk.output.get_mut(self.done..end).ok_or(Failure::NoRoom)?.copy_from_slice(&self.crc.to_le_bytes());
        Ok(Progress::Done(end))
    }

    fn inverse(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        let (content, trailer) = chunk.input.split_last_chunk::<TRAILER_BYTES>().ok_or(Failure::Malformed)?;
        if !self.advance(content, chunk.output, chunk.budget, chunk.resumed)? {
            return Ok(Progress::Yielded(self.done));
        }
        if self.crc != u32::from_le_bytes(*trailer) {
            host::log(Level::Error, &[b"the checksum of a unit is wrong: it was changed, or is another address's"]);
            return Err(Failure::Integrity);
        }
        Ok(Progress::Done(content.len()))
    }
}

osier_actor_sdk::export!(Checksum: Checksum::new(); forward, inverse, resume);

#[cfg(test)]
mod tests {
    use super::*;
    use osier_actor_sdk::testing::{Host, Unit};

    #[test]
    fn there_and_back_in_any_steps() {
        let host = Host::default();
        let input: Vec<u8> = (0..65_536u32).map(|i| ((i * i) >> 7) as u8).collect();
        let unit = Unit { slba: 77, raw_bytes: input.len(), ..Unit::default() };
        let mut expected = input.clone();
        let crc = crc32c::crc32c_append(crc32c::crc32c(&77u64.to_le_bytes()), &input);
        expected.extend(crc.to_le_bytes());
        for budget in [1000, 4096, 65_536, usize::MAX] {
            let sealed = host.write(&mut Checksum::new(), unit, &input, budget).unwrap();
            assert_eq!(sealed, expected);
            assert_eq!(host.read(&mut Checksum::new(), unit, &sealed, budget).unwrap(), input);
        }
    }

    /// The bits by themselves tell for every address.
    #[test]
    fn the_table_says_what_the_arithmetic_says() {
        let addresses = (0..64).map(|bit| 1u64 << bit).chain([0, 77, u64::MAX, 0x0123_4567_89ab_cdef]);
        for address in addresses {
            assert_eq!(crc_of_address(address), crc32c::crc32c(&address.to_le_bytes()), "{address:#x}");
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let (host, unit) = (Host::default(), Unit::default());
        let sealed = host.write(&mut Checksum::new(), unit, b"some bytes", 4).unwrap();
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(host.read(&mut Checksum::new(), unit, &damaged, 4), Err(Failure::Integrity));
        }
        let moved = Unit { slba: 1, ..unit };
        assert_eq!(host.read(&mut Checksum::new(), moved, &sealed, 4), Err(Failure::Integrity));
        assert_eq!(host.read(&mut Checksum::new(), unit, &sealed[..3], 4), Err(Failure::Malformed));
    }
}
