//! Bytes in place of a payload: as many, and with the same CRC-32C.
//!
//! The core looks at a payload in two ways only, at its length and at whether its CRC-32C is the one stated. So a
//! recording need not have the payloads, which are the user's data.

/// Fewest bytes that can be given any CRC: those of shorter payloads are recorded.
pub(crate) const STAND_IN_BYTES_MIN: u32 = 4;

/// What the bytes are but for the last four. Neither ones nor zeroes: those look like pages that were never written.
const FILLER: u8 = 0xa5;
/// The polynomial of CRC-32C, least bit first (RFC 3720, appendix B.4).
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A payload of `stored_bytes` whose CRC-32C is `checksum`.
///
/// # Panics
/// If it is too short for that: a bug of the caller.
pub(crate) fn stand_in(stored_bytes: u32, checksum: u32) -> Vec<u8> {
    assert!(stored_bytes >= STAND_IN_BYTES_MIN, "{stored_bytes} bytes have not every CRC");
    let mut bytes = vec![FILLER; stored_bytes as usize];
    let last = bytes.len() - 4;
    // Four bytes b take the register from r to T(r ^ b), where T is 32 steps with zeroes; each step can be undone.
    let register = !crc32c::crc32c(&bytes[..last]);
    let wanted =
        (0..32).fold(
            !checksum,
            |register, _| {
                if register >> 31 == 1 { (register ^ POLYNOMIAL) << 1 | 1 } else { register << 1 }
            },
        );
    bytes[last..].copy_from_slice(&(register ^ wanted).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stand_in_has_its_length_and_its_checksum() {
        for stored_bytes in [4, 5, 63, 64, 4096, 65_535] {
            for checksum in [0, 1, 0xffff_ffff, 0x8000_0000, 0xdead_beef] {
                let bytes = stand_in(stored_bytes, checksum);
                assert_eq!((bytes.len(), crc32c::crc32c(&bytes)), (stored_bytes as usize, checksum));
            }
        }
    }
}
