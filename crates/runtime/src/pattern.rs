//! Blocks whose every byte follows from their address and version, so that a reader needs no copy to tell
//! whether it got the right ones.
//!
//! A block is text-like (about 2:1 under LZ4) so that compression has work to do, and begins with its
//! address and version in clear, so that a wrong block says which one it is.

use osier_flash::BLOCK_BYTES;

const WORDS: [&[u8; 8]; 16] = [
    b"channel ",
    b"die 0001",
    b"planes 4",
    b" program",
    b" erase..",
    b"pageread",
    b"mapping ",
    b"garbage ",
    b"collect ",
    b"wear lev",
    b"eviction",
    b"flit 68B",
    b"payload ",
    b"doorbell",
    b"complete",
    b"\n\t0x0000",
];

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Fills one block.
///
/// # Panics
/// When `out` is not one block long.
pub fn fill(block: u64, version: u64, out: &mut [u8]) {
    assert_eq!(out.len(), BLOCK_BYTES as usize);
    let mut state = mix(block ^ mix(version));
    let words = out.as_chunks_mut::<8>().0;
    // Of every three words one is random: less would compress better than real data does.
    for three in words.chunks_mut(3) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let random = mix(state);
        for (index, word) in three.iter_mut().enumerate() {
            *word = if index == 0 { random.to_le_bytes() } else { *WORDS[(random >> (4 * index)) as usize % 16] };
        }
    }
    words[0] = block.to_le_bytes();
    words[1] = version.to_le_bytes();
}

/// What a block that was read says it is: its address and version, if all its bytes agree; zeroes say version 0.
pub fn identify(block: &[u8]) -> Option<(u64, u64)> {
    let word = |index: usize| Some(u64::from_le_bytes(*block.as_chunks::<8>().0.get(index)?));
    let (address, version) = (word(0)?, word(1)?);
    if version == 0 && block.iter().all(|b| *b == 0) {
        return Some((address, 0));
    }
    let mut expected = vec![0u8; BLOCK_BYTES as usize];
    fill(address, version, &mut expected);
    (expected == block).then_some((address, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_identifies_itself_and_no_flipped_bit_passes() {
        let mut block = vec![0u8; BLOCK_BYTES as usize];
        fill(77, 3, &mut block);
        assert_eq!(identify(&block), Some((77, 3)));
        for at in (0..block.len()).step_by(61) {
            block[at] ^= 1;
            assert_eq!(identify(&block), None, "byte {at}");
            block[at] ^= 1;
        }
        assert_eq!(identify(&vec![0u8; BLOCK_BYTES as usize]), Some((0, 0)));
    }
}
