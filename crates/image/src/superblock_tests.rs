//! Tests of the superblock: no damage is taken for an image, and no image for another.

use proptest::prelude::*;

use super::*;

fn sample() -> Superblock {
    Superblock {
        uuid: Uuid([7; 16]),
        incarnation: Incarnation(41),
        media: MediaKind::Block(PathBuf::from("/dev/disk/by-id/example")),
        media_bytes: 1 << 30,
        pmr_bytes: 1 << 24,
        logical_blocks: 200_000,
        created_unix_seconds: 1_900_000_000,
        profile_name: "cxl-ssd".to_owned(),
        profile_bytes: 4321,
        profile_crc: 0xdead_beef,
    }
}

fn file_of(superblock: &Superblock) -> Vec<u8> {
    [superblock.encode(0), superblock.encode(1)].concat()
}

/// Repairs the checksum, so that a test gets past it to the fields.
fn seal(copy: &mut [u8]) {
    let crc = crc32c::crc32c(&copy[..CRC_AT]);
    copy[CRC_AT..COPY_BYTES].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn every_field_lies_where_the_format_document_says() {
    let bytes = sample().encode(1);
    assert_eq!(&bytes[0..8], b"OSIERIMG");
    assert_eq!(&bytes[8..16], &[1, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(&bytes[16..32], &[7; 16]);
    assert_eq!(&bytes[32..40], &41u64.to_le_bytes());
    assert_eq!(&bytes[40..48], &(1u64 << 30).to_le_bytes());
    assert_eq!(&bytes[48..56], &(1u64 << 24).to_le_bytes());
    assert_eq!(&bytes[56..64], &200_000u64.to_le_bytes());
    assert_eq!(&bytes[64..72], &1_900_000_000u64.to_le_bytes());
    assert_eq!(&bytes[72..76], &2u32.to_le_bytes());
    assert_eq!(&bytes[76..80], &4321u32.to_le_bytes());
    assert_eq!(&bytes[80..84], &0xdead_beefu32.to_le_bytes());
    assert_eq!(&bytes[84..92], &[7, 0, 0, 0, 23, 0, 0, 0]);
    assert_eq!(&bytes[96..103], b"cxl-ssd");
    assert_eq!(&bytes[160..183], b"/dev/disk/by-id/example");
    assert!(bytes[183..4092].iter().all(|b| *b == 0));
    // A changed number here means a changed format, and asks for a new version.
    assert_eq!(get_u32(&bytes, CRC_AT), 0x9243de06);
}

#[test]
fn of_two_sound_copies_the_one_with_the_higher_incarnation_is_current() {
    let old = sample();
    let new = Superblock { incarnation: Incarnation(42), ..sample() };
    for (first, second) in [(&old, &new), (&new, &old)] {
        let reading = Superblock::read(&[first.encode(0), second.encode(1)].concat()).unwrap();
        assert_eq!(reading.superblock, new);
        assert_eq!(reading.damaged_copy(), None);
    }
}

#[test]
fn every_single_flipped_bit_leaves_the_image_what_it_was() {
    let sound = file_of(&sample());
    let mut bytes = sound.clone();
    for bit in 0..SUPERBLOCK_BYTES * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let reading = Superblock::read(&bytes).unwrap();
        assert_eq!(reading.superblock, sample(), "bit {bit}");
        assert_eq!(reading.damaged_copy(), Some(bit / 8 / COPY_BYTES), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert_eq!(bytes, sound);
}

#[test]
fn a_file_cut_off_anywhere_is_the_same_image_or_none() {
    let bytes = file_of(&sample());
    for length in 0..SUPERBLOCK_BYTES {
        match Superblock::read(&bytes[..length]) {
            Ok(reading) => assert_eq!((reading.superblock, length >= COPY_BYTES), (sample(), true)),
            Err(_) => assert!(length < COPY_BYTES, "{length}"),
        }
    }
}

#[test]
fn a_newer_format_is_told_from_damage_by_its_checksum() {
    let mut newer = sample().encode(1);
    newer[VERSION_AT] = 2;
    let damaged = [sample().encode(0), newer].concat();
    assert_eq!(Superblock::read(&damaged).unwrap().damaged_copy(), Some(1));
    // The newer format may use every reserved byte: only magic, version and checksum are fixed.
    newer[RESERVED_B_AT..CRC_AT].fill(0x55);
    seal(&mut newer);
    let file = [sample().encode(0), newer].concat();
    assert_eq!(Superblock::read(&file), Err(ReadFault::Newer(2)));
}

#[test]
fn copies_of_two_images_are_neither() {
    let other = Superblock { logical_blocks: 9, ..sample() };
    let file = [sample().encode(0), other.encode(1)].concat();
    assert_eq!(Superblock::read(&file), Err(ReadFault::Disagree));
    let swapped = [sample().encode(1), sample().encode(0)].concat();
    assert!(matches!(Superblock::read(&swapped), Err(ReadFault::BothDamaged(_))));
}

fn any_superblock() -> impl Strategy<Value = Superblock> {
    let media = prop_oneof![
        Just(MediaKind::File),
        Just(MediaKind::Memory),
        Just(MediaKind::None),
        "/[a-z/.]{0,1023}".prop_map(|path| MediaKind::Block(PathBuf::from(path))),
    ];
    let sizes = (1..=u64::MAX, 1..=u64::MAX, 1..=u64::MAX);
    let rest = (any::<[u8; 16]>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>());
    (media, sizes, rest, "[a-zé]{1,32}").prop_map(|(media, sizes, rest, profile_name)| Superblock {
        uuid: Uuid(rest.0),
        incarnation: Incarnation(rest.1),
        media,
        media_bytes: sizes.0,
        pmr_bytes: sizes.1,
        logical_blocks: sizes.2,
        created_unix_seconds: rest.2,
        profile_name,
        profile_bytes: rest.3,
        profile_crc: rest.4,
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(superblock in any_superblock()) {
        let reading = Superblock::read(&file_of(&superblock)).unwrap();
        prop_assert_eq!(reading.superblock, superblock);
        prop_assert_eq!(reading.faults, [None, None]);
    }

    #[test]
    fn scattered_damage_never_gives_another_image(
        hits in prop::collection::vec((0..SUPERBLOCK_BYTES, any::<u8>()), 1..64),
    ) {
        let mut bytes = file_of(&sample());
        for (at, value) in hits {
            bytes[at] = value;
        }
        match Superblock::read(&bytes) {
            Ok(reading) => prop_assert_eq!(reading.superblock, sample()),
            Err(fault) => prop_assert!(!matches!(fault, ReadFault::Newer(_) | ReadFault::Disagree)),
        }
    }

    /// An attacker can compute a checksum, so the fields behind it are checked as strictly: what decodes
    /// is exactly what would be written.
    #[test]
    fn with_a_right_checksum_only_what_would_be_written_is_read(
        hits in prop::collection::vec((0..RESERVED_B_AT + 8, any::<u8>()), 1..8),
    ) {
        let mut copy = sample().encode(0);
        for (at, value) in hits {
            copy[at] = value;
        }
        seal(&mut copy);
        if let Ok(superblock) = Superblock::decode(&copy, 0) {
            prop_assert_eq!(superblock.encode(0), copy);
        }
    }

    #[test]
    fn arbitrary_bytes_are_no_superblock(bytes in prop::collection::vec(any::<u8>(), 0..2 * SUPERBLOCK_BYTES)) {
        prop_assert_eq!(Superblock::read(&bytes), Err(ReadFault::NotASuperblock));
    }
}
