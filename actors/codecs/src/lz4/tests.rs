use super::*;
use proptest::prelude::*;

fn compress(input: &[u8], budgets: &[usize]) -> Option<Vec<u8>> {
    let mut output = vec![0xaa; input.len() + 512];
    let mut codec = Compressor::new();
    codec.begin();
    let (mut before, mut turn) = (0, 0);
    loop {
        let budget = budgets[turn % budgets.len()];
        turn += 1;
        match codec.step(input, &mut output, budget) {
            Ok(Step::Done(length)) => return Some(output[..length].to_vec()),
            Ok(Step::Yielded(consumed)) => {
                assert!(consumed > before && consumed <= input.len(), "{before} {consumed}");
                before = consumed;
            }
            Err(error) => {
                assert_eq!(error, CodecError::NoRoom);
                return None;
            }
        }
    }
}

fn decompress(block: &[u8], capacity: usize, budgets: &[usize]) -> Result<Vec<u8>, CodecError> {
    let mut output = vec![0x55; capacity];
    let mut codec = Decompressor::new();
    let (mut before, mut turn) = (0, 0);
    loop {
        let budget = budgets[turn % budgets.len()];
        turn += 1;
        match codec.step(block, &mut output, budget)? {
            Step::Done(length) => return Ok(output[..length].to_vec()),
            Step::Yielded(consumed) => {
                assert!(consumed > before && consumed < block.len(), "{before} {consumed}");
                before = consumed;
            }
        }
    }
}

/// Another implementation says the same of a block, which may be damaged: what it holds, or that it is none.
fn as_another_reads(block: &[u8], capacity: usize, budgets: &[usize]) -> Result<(), String> {
    let (ours, theirs) = (decompress(block, capacity, budgets), lz4_flex::block::decompress(block, capacity));
    let same = ours.as_ref().ok() == theirs.as_ref().ok();
    if same { Ok(()) } else { Err(format!("{ours:?} and {theirs:?} of {block:?}")) }
}

/// Bytes as real data has them: words from a small set, runs, noise.
fn realistic(max: usize) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => "[a-e ]{1,12}".prop_map(String::into_bytes),
        2 => (any::<u8>(), 1usize..600).prop_map(|(byte, times)| vec![byte; times]),
        1 => proptest::collection::vec(any::<u8>(), 1..80),
        1 => (proptest::collection::vec(any::<u8>(), 1..9), 1usize..60).prop_map(|(word, times)| word.repeat(times)),
    ];
    proptest::collection::vec(piece, 0..80).prop_map(move |pieces| {
        let mut all = pieces.concat();
        all.truncate(max);
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn another_implementation_reads_what_we_write(input in realistic(70_000), budget in 1usize..9000) {
        if let Some(block) = compress(&input, &[budget]) {
            prop_assert!(block.len() <= input.len());
            prop_assert_eq!(&lz4_flex::block::decompress(&block, input.len()).unwrap(), &input);
            prop_assert_eq!(&decompress(&block, input.len(), &[budget]).unwrap(), &input);
            prop_assert_eq!(&decompress(&block, input.len() + 512, &[budget]).unwrap(), &input);
        }
    }

    #[test]
    fn we_read_what_another_implementation_writes(
        input in realistic(70_000),
        budget in 1usize..9000,
        slack in 0usize..64,
    ) {
        let block = lz4_flex::block::compress(&input);
        prop_assert_eq!(&decompress(&block, input.len() + slack, &[budget]).unwrap(), &input);
    }

    #[test]
    fn steps_do_not_change_the_output(
        input in realistic(20_000),
        budgets in proptest::collection::vec(1usize..3000, 1..6),
    ) {
        prop_assert_eq!(compress(&input, &budgets), compress(&input, &[usize::MAX]));
    }

    #[test]
    fn too_little_room_is_an_error(input in realistic(5_000), short in 1usize..40) {
        prop_assume!(input.len() >= short);
        let block = lz4_flex::block::compress(&input);
        prop_assert_eq!(decompress(&block, input.len() - short, &[usize::MAX]), Err(CodecError::NoRoom));
    }

    #[test]
    fn damage_never_panics(
        input in realistic(5_000),
        at in any::<prop::sample::Index>(),
        flip in 1u8..=255,
        cut in any::<prop::sample::Index>(),
    ) {
        let mut block = lz4_flex::block::compress(&input);
        let index = at.index(block.len());
        block[index] ^= flip;
        block.truncate(cut.index(block.len()) + 1);
        prop_assert_eq!(as_another_reads(&block, input.len() + 64, &[333]), Ok(()));
    }

    #[test]
    fn noise_never_panics(block in proptest::collection::vec(any::<u8>(), 0..300), budget in 1usize..50) {
        prop_assert_eq!(as_another_reads(&block, 2_000, &[budget]), Ok(()));
    }
}

#[test]
fn noise_is_left_alone() {
    let mut state = 1u64;
    let noise: Vec<u8> = (0..65_536)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    assert_eq!(compress(&noise, &[4096]), None);
}

#[test]
fn positions_beyond_64_kib_are_right() {
    let mut input = b"the quick brown fox jumps over the lazy dog. ".repeat(20);
    input.extend((0..66_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 & 0x3f));
    input.extend(b"the quick brown fox jumps over the lazy dog. ".repeat(20));
    let block = compress(&input, &[usize::MAX]).expect("it compresses");
    assert_eq!(lz4_flex::block::decompress(&block, input.len()).unwrap(), input);
    assert_eq!(decompress(&block, input.len(), &[1000]).unwrap(), input);
}

#[test]
fn every_short_length() {
    for length in 0..600 {
        let input = vec![b'x'; length];
        match compress(&input, &[7]) {
            Some(block) => assert_eq!(lz4_flex::block::decompress(&block, length).unwrap(), input),
            None => assert!(length < 64, "a run of {length} has to compress"),
        }
        let block = lz4_flex::block::compress(&input);
        assert_eq!(decompress(&block, length, &[3]).unwrap(), input);
    }
}

/// Lines as logs have them: short matches from the line before, and few literals.
fn records(bytes: usize) -> Vec<u8> {
    let line = |i: u64| {
        let noise = (i + 1).wrapping_mul(6_364_136_223_846_793_005);
        let [code, took] = [noise >> 40, noise >> 20].map(|n| n % 1000);
        format!("{{\"time\":{},\"code\":{code},\"text\":\"request {i} took {took} us\"}}\n", 1_700_000_000 + i)
    };
    (0..).map(line).flat_map(String::into_bytes).take(bytes).collect()
}

/// Texts in which sequences of every form occur.
fn texts() -> Vec<Vec<u8>> {
    let noise = |n: u32| (n.wrapping_mul(2_654_435_761) >> 23) as u8;
    let periods: Vec<u8> = (1..20).flat_map(|p: u32| (0..60).map(move |i| noise(i % p + 7 * p))).collect();
    let runs: Vec<u8> =
        (1..12).flat_map(|i: u32| (0..9 * i).map(move |j| noise(i * 100 + j)).chain([b'x'; 40])).collect();
    vec![records(1_000), include_bytes!("../lz4.rs")[..1_000].to_vec(), periods, runs]
}

/// The other implementation guards every byte, so what it agrees with lies within the input and the output.
#[test]
fn every_truncation_and_every_flipped_bit_is_read_as_another_implementation_reads_it() {
    for text in texts() {
        for block in [compress(&text, &[usize::MAX]).expect("it compresses"), lz4_flex::block::compress(&text)] {
            for length in 0..block.len() {
                as_another_reads(&block[..length], text.len() + 64, &[usize::MAX]).unwrap();
            }
            for bit in 0..block.len() * 8 {
                let mut bad = block.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                for budget in [usize::MAX, 200] {
                    as_another_reads(&bad, text.len() + 64, &[budget]).unwrap();
                }
            }
        }
    }
}

#[test]
fn every_short_match_comes_back() {
    for offset in 1..70 {
        for length in 4..70 {
            for behind in [0, 100] {
                let mut text: Vec<u8> =
                    (0..offset as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
                // A token, literals, a match, and literals to the end.
                let mut block = vec![(offset.min(15) << 4 | (length - 4).min(15)) as u8];
                put_length_of(&mut block, offset);
                block.extend(&text);
                block.extend((offset as u16).to_le_bytes());
                put_length_of(&mut block, length - 4);
                (0..length).for_each(|i| text.push(text[i]));
                block.push(15 << 4);
                put_length_of(&mut block, 15 + behind);
                let tail: Vec<u8> = (0..15 + behind as u32).map(|i| i as u8).collect();
                block.extend(&tail);
                text.extend(&tail);
                for slack in [0, 90] {
                    assert_eq!(
                        decompress(&block, text.len() + slack, &[usize::MAX]),
                        Ok(text.clone()),
                        "{offset} {length}"
                    );
                }
            }
        }
    }
}

fn put_length_of(block: &mut Vec<u8>, length: usize) {
    if let Some(rest) = length.checked_sub(15) {
        block.extend(std::iter::repeat_n(255, rest / 255));
        block.push((rest % 255) as u8);
    }
}

/// Runs a compressor in steps and lets `damage` change it at each yield, as a move that loses something would.
fn compress_damaged(input: &[u8], damage: impl Fn(&mut Compressor)) -> Option<Vec<u8>> {
    let mut output = vec![0; input.len()];
    let mut codec = Compressor::new();
    loop {
        match codec.step(input, &mut output, 300) {
            Ok(Step::Done(length)) => return Some(output[..length].to_vec()),
            Ok(Step::Yielded(_)) => damage(&mut codec),
            Err(_) => return None,
        }
    }
}

/// The checks above can fail: each part of the state is needed.
#[test]
fn what_a_move_must_not_lose() {
    let input: Vec<u8> = include_bytes!("../lz4.rs").to_vec();
    let whole = compress(&input, &[usize::MAX]);
    assert_eq!(compress_damaged(&input, |_| {}), whole);
    let moved = compress_damaged(&input, |codec| *codec = codec.clone());
    assert_eq!(moved, whole);
    assert_ne!(compress_damaged(&input, |codec| codec.table.fill(0)), whole);
    assert_ne!(compress_damaged(&input, |codec| codec.anchor = codec.position), whole);
    assert_ne!(compress_damaged(&input, |codec| codec.written = codec.written.saturating_sub(1)), whole);
    let noise: Vec<u8> = (0..3_000u32).flat_map(|i| (i.wrapping_mul(2_654_435_761) >> 9).to_le_bytes()).collect();
    let mixed = [&input[..2_000], &noise[..4_000], &input[..2_000]].concat();
    let whole = compress(&mixed, &[usize::MAX]);
    assert!(whole.is_some());
    assert_ne!(compress_damaged(&mixed, |codec| codec.misses = 0), whole);
}
