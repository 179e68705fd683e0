//! What dedicated engines do in the paper, at native speed: CRC-32C, AES-256-GCM-SIV, LZ4, record search.
//!
//! Answers are those of `docs/abi.md` section 4: a length, or minus a failure code. Keys come from outside
//! the shared region, are wiped when dropped, and are neither printed nor logged.

use std::collections::BTreeMap;

use aes_gcm_siv::aead::{AeadInPlace, KeyInit};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use zeroize::Zeroizing;

use crate::abi::code;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// What sealing adds, in bytes.
pub const SEAL_BYTES: usize = HEAD_BYTES + TAG_BYTES;
const HEAD_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const SEAL_VERSION: u8 = 1;
/// Sequences that fit the nonce's 42 bits.
const SEQUENCE_MAX: u64 = (1 << 42) - 1;
/// Units that fit its 6 bits.
const UNIT_MAX: u16 = 63;
const _: () = assert!(osier_domain::arena::UNITS_MAX as u16 == UNIT_MAX + 1);

struct Key {
    bytes: Zeroizing<[u8; KEY_BYTES]>,
    cipher: Aes256GcmSiv,
}

/// The keys of a device, by id.
#[derive(Default)]
pub struct KeyRing {
    keys: BTreeMap<u16, Key>,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.keys.keys()).finish()
    }
}

/// A list of keys that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the list of keys handed to this process is damaged; start the device anew")]
pub struct KeyListError;

impl KeyRing {
    /// No keys.
    pub fn new() -> KeyRing {
        KeyRing::default()
    }

    /// Adds a key, or replaces the one of this id.
    pub fn insert(&mut self, id: u16, bytes: Zeroizing<[u8; KEY_BYTES]>) {
        let cipher = Aes256GcmSiv::new((&*bytes).into());
        self.keys.insert(id, Key { bytes, cipher });
    }

    /// Whether there is a key of this id.
    pub fn has(&self, id: u16) -> bool {
        self.keys.contains_key(&id)
    }

    /// The ids.
    pub fn ids(&self) -> impl Iterator<Item = u16> + '_ {
        self.keys.keys().copied()
    }

    /// The keys as bytes, for a pipe to the other domain: 34 bytes a key, id first, little endian. Never to be
    /// written to the shared region or to a file.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(self.keys.len() * (2 + KEY_BYTES)));
        for (id, key) in &self.keys {
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&key.bytes[..]);
        }
        out
    }

    /// Reads what [`KeyRing::to_bytes`] made.
    ///
    /// # Errors
    /// [`KeyListError`] if the length is not that of whole keys.
    pub fn from_bytes(bytes: &[u8]) -> Result<KeyRing, KeyListError> {
        let (keys, rest) = bytes.as_chunks::<{ 2 + KEY_BYTES }>();
        if !rest.is_empty() {
            return Err(KeyListError);
        }
        let mut ring = KeyRing::new();
        for key in keys {
            let mut secret = Zeroizing::new([0u8; KEY_BYTES]);
            secret.copy_from_slice(&key[2..]);
            ring.insert(u16::from_le_bytes([key[0], key[1]]), secret);
        }
        Ok(ring)
    }
}

/// What is bound to a sealed unit besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// First logical block of the extent.
    pub slba: u64,
    /// Its length in blocks before the first stage.
    pub blocks: u32,
    /// Its length in bytes before the first stage.
    pub raw_bytes: u32,
    /// How it was written.
    pub tag: u32,
}

/// What makes a nonce unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NonceParts {
    /// Counted up in the image at each start of a device.
    pub incarnation: u32,
    /// The stream.
    pub stream: u16,
    /// The request's place in it.
    pub sequence: u64,
    /// Which unit of the request.
    pub unit: u16,
}

impl NonceParts {
    fn encode(&self) -> Option<[u8; 12]> {
        if self.sequence > SEQUENCE_MAX || self.unit > UNIT_MAX {
            return None;
        }
        let mut out = [0u8; 12];
        out[0..4].copy_from_slice(&self.incarnation.to_le_bytes());
        out[4..6].copy_from_slice(&self.stream.to_le_bytes());
        out[6..12].copy_from_slice(&(self.sequence << 6 | u64::from(self.unit)).to_le_bytes()[..6]);
        Some(out)
    }
}

fn associated(binding: &Binding, head: &[u8]) -> [u8; 24] {
    let mut out = [0u8; 24];
    out[0..8].copy_from_slice(&binding.slba.to_le_bytes());
    out[8..12].copy_from_slice(&binding.blocks.to_le_bytes());
    out[12..16].copy_from_slice(&binding.raw_bytes.to_le_bytes());
    out[16..20].copy_from_slice(&binding.tag.to_le_bytes());
    out[20..24].copy_from_slice(&head[..4]);
    out
}

/// Seals `input` into `out` with key `id`: the layout of `docs/abi.md` section 4.3.
///
/// # Errors
/// A failure code: [`code::NO_ROOM`], [`code::CONFIGURATION`] without the key.
pub fn seal(
    keys: &KeyRing,
    id: u16,
    binding: &Binding,
    nonce: &NonceParts,
    input: &[u8],
    out: &mut [u8],
) -> Result<usize, i32> {
    let key = keys.keys.get(&id).ok_or(code::CONFIGURATION)?;
    let total = input.len() + SEAL_BYTES;
    let out = out.get_mut(..total).ok_or(code::NO_ROOM)?;
    let nonce = nonce.encode().ok_or(code::OTHER)?;
    let (head, rest) = out.split_at_mut(HEAD_BYTES);
    head[..4].copy_from_slice(&[SEAL_VERSION, 0, id.to_le_bytes()[0], id.to_le_bytes()[1]]);
    head[4..].copy_from_slice(&nonce);
    let (text, tag) = rest.split_at_mut(input.len());
    copy_back_to_front(input, text);
    let associated = associated(binding, head);
    let made = key.cipher.encrypt_in_place_detached(Nonce::from_slice(&nonce), &associated, text);
    tag.copy_from_slice(&made.map_err(|_| code::OTHER)?);
    Ok(total)
}

/// Copies a text, its end first. A text that lies whole pages and a header away is copied to a little above its own
/// place in a page: front to back, each load would meet the store before it in the low bits of its address, by which
/// processors tell whether the one has to wait for the other (Intel's optimization manual, 4-KByte memory aliasing).
fn copy_back_to_front(from: &[u8], to: &mut [u8]) {
    const PIECE_BYTES: usize = 256;
    for (from, to) in from.rchunks(PIECE_BYTES).zip(to.rchunks_mut(PIECE_BYTES)) {
        to.copy_from_slice(from);
    }
}

/// Opens what [`seal`] made. On failure `out` holds nothing of the text.
///
/// # Errors
/// A failure code: [`code::MALFORMED`], [`code::NO_ROOM`], [`code::INTEGRITY`], [`code::CONFIGURATION`] without
/// the key.
pub fn open(keys: &KeyRing, binding: &Binding, input: &[u8], out: &mut [u8]) -> Result<usize, i32> {
    if input.len() < SEAL_BYTES || input[0] != SEAL_VERSION || input[1] != 0 {
        return Err(code::MALFORMED);
    }
    let (head, rest) = input.split_at(HEAD_BYTES);
    let key = keys.keys.get(&u16::from_le_bytes([head[2], head[3]])).ok_or(code::CONFIGURATION)?;
    let (text, tag) = rest.split_at(rest.len() - TAG_BYTES);
    let out = out.get_mut(..text.len()).ok_or(code::NO_ROOM)?;
    out.copy_from_slice(text);
    let associated = associated(binding, head);
    let nonce = Nonce::from_slice(&head[4..]);
    let opened = key.cipher.decrypt_in_place_detached(nonce, &associated, out, tag.into());
    if opened.is_err() {
        out.fill(0);
        return Err(code::INTEGRITY);
    }
    Ok(text.len())
}

/// CRC-32C of `bytes`, going on from `seed`.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

/// One LZ4 block. `scratch` is room of any length that is kept for the next call.
///
/// # Errors
/// [`code::NO_ROOM`].
pub fn lz4_compress(input: &[u8], out: &mut [u8], scratch: &mut Vec<u8>) -> Result<usize, i32> {
    let worst = lz4_flex::block::get_maximum_output_size(input.len());
    if out.len() >= worst {
        return lz4_flex::block::compress_into(input, out).map_err(|_| code::NO_ROOM);
    }
    // The encoder asks for room for its worst case, whatever comes out.
    scratch.resize(worst.max(scratch.len()), 0);
    let length = lz4_flex::block::compress_into(input, scratch).map_err(|_| code::NO_ROOM)?;
    out.get_mut(..length).ok_or(code::NO_ROOM)?.copy_from_slice(&scratch[..length]);
    Ok(length)
}

/// Undoes [`lz4_compress`].
///
/// # Errors
/// [`code::MALFORMED`] or [`code::NO_ROOM`].
pub fn lz4_decompress(input: &[u8], out: &mut [u8]) -> Result<usize, i32> {
    use lz4_flex::block::DecompressError;
    lz4_flex::block::decompress_into(input, out).map_err(|error| match error {
        DecompressError::OutputTooSmall { .. } => code::NO_ROOM,
        _ => code::MALFORMED,
    })
}

/// The offset of the first newline at or after `from`, the length if there is none, -1 behind the end.
pub fn record_next(bytes: &[u8], from: u32) -> i64 {
    let from = from as usize;
    if from >= bytes.len() {
        return -1;
    }
    let found = memchr::memchr(b'\n', &bytes[from..]).map_or(bytes.len(), |at| from + at);
    found as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> KeyRing {
        let mut ring = KeyRing::new();
        ring.insert(3, Zeroizing::new([7; KEY_BYTES]));
        ring.insert(4, Zeroizing::new([8; KEY_BYTES]));
        ring
    }

    const BINDING: Binding = Binding { slba: 9, blocks: 1, raw_bytes: 4096, tag: 0x0100_0001 };
    const NONCE: NonceParts = NonceParts { incarnation: 1, stream: 2, sequence: 3, unit: 4 };

    #[test]
    fn what_is_sealed_opens_only_as_it_was_sealed() {
        let ring = ring();
        let (mut sealed, mut opened) = ([0u8; 200], [0u8; 200]);
        let length = seal(&ring, 3, &BINDING, &NONCE, b"the text", &mut sealed).unwrap();
        assert_eq!(length, 8 + SEAL_BYTES);
        let sealed = &sealed[..length];
        assert_eq!(&sealed[..16], &[1, 0, 3, 0, 1, 0, 0, 0, 2, 0, 3 << 6 | 4, 0, 0, 0, 0, 0]);
        assert_eq!(open(&ring, &BINDING, sealed, &mut opened), Ok(8));
        assert_eq!(&opened[..8], b"the text");
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            let mut out = [0u8; 200];
            assert!(open(&ring, &BINDING, &bad, &mut out).is_err(), "bit {bit}");
            assert_eq!(out, [0u8; 200], "nothing of a forgery shows");
        }
        let elsewhere = [
            Binding { slba: 10, ..BINDING },
            Binding { blocks: 2, ..BINDING },
            Binding { raw_bytes: 4095, ..BINDING },
            Binding { tag: 1, ..BINDING },
        ];
        for binding in elsewhere {
            assert_eq!(open(&ring, &binding, sealed, &mut opened), Err(code::INTEGRITY));
        }
    }

    #[test]
    fn sealing_fails_as_the_page_says() {
        let ring = ring();
        let mut out = [0u8; 40];
        assert_eq!(seal(&ring, 3, &BINDING, &NONCE, b"123456789", &mut out), Err(code::NO_ROOM));
        assert_eq!(seal(&ring, 9, &BINDING, &NONCE, b"1", &mut out), Err(code::CONFIGURATION));
        let late = NonceParts { sequence: 1 << 42, ..NONCE };
        assert_eq!(seal(&ring, 3, &BINDING, &late, b"1", &mut out), Err(code::OTHER));
        assert_eq!(open(&ring, &BINDING, &[1; 31], &mut out), Err(code::MALFORMED));
        assert_eq!(open(&ring, &BINDING, &[1; 90], &mut out), Err(code::MALFORMED));
    }

    #[test]
    fn every_write_has_a_nonce_of_its_own() {
        let mut seen = std::collections::BTreeSet::new();
        for incarnation in 0..3 {
            for stream in [0, 1, 15] {
                for sequence in [1, 2, 64, 65, SEQUENCE_MAX] {
                    for unit in 0..=UNIT_MAX {
                        let parts = NonceParts { incarnation, stream, sequence, unit };
                        assert!(seen.insert(parts.encode().unwrap()), "{parts:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn keys_travel_and_do_not_print() {
        let ring = ring();
        let copy = KeyRing::from_bytes(&ring.to_bytes()).unwrap();
        assert_eq!(copy.to_bytes(), ring.to_bytes());
        assert_eq!(KeyRing::from_bytes(&[0; 35]).unwrap_err(), KeyListError);
        assert_eq!(format!("{ring:?}"), "{3, 4}");
    }

    #[test]
    fn lz4_blocks_come_back_also_with_little_room() {
        let text = b"abcabcabcabcabcabcabcabcabcabcabcabcabcabc".repeat(20);
        let (mut out, mut back, mut scratch) = ([0u8; 100], vec![0u8; text.len()], Vec::new());
        let length = lz4_compress(&text, &mut out, &mut scratch).unwrap();
        assert_eq!(lz4_decompress(&out[..length], &mut back), Ok(text.len()));
        assert_eq!(back, text);
        assert_eq!(lz4_decompress(&out[..length], &mut back[1..]), Err(code::NO_ROOM));
        assert_eq!(lz4_compress(&text, &mut out[..5], &mut scratch), Err(code::NO_ROOM));
        assert!(lz4_decompress(&[0xff; 9], &mut back).is_err());
    }

    #[test]
    fn records_end_at_newlines() {
        assert_eq!(record_next(b"ab\ncd", 0), 2);
        assert_eq!(record_next(b"ab\ncd", 2), 2);
        assert_eq!(record_next(b"ab\ncd", 3), 5);
        assert_eq!(record_next(b"ab\ncd", 5), -1);
        assert_eq!(record_next(b"", 0), -1);
    }
}
