//! Chains drawn at random, right and wrong, against what was drawn; and those that a guest could hope to do harm with.

use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};

use super::super::config::{ID_BYTES, SEGMENT_BYTES_MAX, SEGMENTS_MAX};
use super::*;

const MEMORY_BYTES: u64 = 1 << 20;
const TABLE: u64 = 0x1000;
const INDIRECT: u64 = 0x4000;
/// Where buffers are drawn, behind all tables.
const BUFFERS: u64 = 0x10000;
const QUEUE: u16 = 64;
const BLOCKS: u64 = 1000;
const NEXT: u16 = VRING_DESC_F_NEXT as u16;
const WRITE: u16 = VRING_DESC_F_WRITE as u16;
const IS_INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;

fn memory() -> Memory {
    Memory::from_ranges(&[(GuestAddress(0), MEMORY_BYTES as usize)]).unwrap()
}

fn shape() -> Shape {
    Shape {
        blocks: BLOCKS,
        is_read_only: false,
        has_volatile_cache: true,
        transfer_blocks_max: 32,
        queues: 1,
        id: [b'd'; ID_BYTES],
    }
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Puts buffers into a table, one behind the other.
fn table(memory: &Memory, at: u64, buffers: &[(Segment, bool)]) {
    for (place, (segment, is_written)) in buffers.iter().enumerate() {
        let flags = if *is_written { WRITE } else { 0 } | if place + 1 < buffers.len() { NEXT } else { 0 };
        let descriptor = Descriptor::new(segment.address, segment.bytes, flags, place as u16 + 1);
        memory.write_obj(descriptor, GuestAddress(at + 16 * place as u64)).unwrap();
    }
}

/// Cuts `bytes` bytes of memory, which lie together from an address on, into as many buffers as are drawn.
fn cut(draw: &mut Draw, address: u64, bytes: u64, is_written: bool, into: &mut Vec<(Segment, bool)>) {
    let mut at = 0;
    while at < bytes {
        let length = if draw.chance(40) { bytes - at } else { 1 + draw.below(bytes - at) };
        into.push((Segment { address: address + at, bytes: length as u32 }, is_written));
        at += length;
    }
}

/// A request as it was drawn, and what has to be read out of its chain.
struct Drawn {
    readable: Vec<u8>,
    writable_bytes: u64,
    expected: Ask,
}

fn refused(status: u32) -> Ask {
    Ask::Refused(status as u8)
}

fn drawn(draw: &mut Draw) -> Drawn {
    let kinds = [VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, 4, 8, 11, 13, 99];
    let kind = kinds[draw.below(kinds.len() as u64) as usize];
    // Mostly whole blocks of the disk.
    let sector = match draw.below(10) {
        0 => draw.below(BLOCKS * 8 + 16),
        1 => u64::MAX - draw.below(100),
        _ => 8 * draw.below(BLOCKS),
    };
    let data_bytes = if draw.chance(85) { 4096 * draw.below(8) } else { draw.below(10_000) };
    let mut readable = Vec::new();
    readable.extend(kind.to_le_bytes());
    readable.extend((draw.below(1 << 32) as u32).to_le_bytes());
    readable.extend(sector.to_le_bytes());
    let is_whole = sector.is_multiple_of(8)
        && data_bytes.is_multiple_of(4096)
        && sector.checked_add(data_bytes / 512).is_some_and(|end| end <= BLOCKS * 8);
    let (ioerr, unsupp) = (refused(VIRTIO_BLK_S_IOERR), refused(VIRTIO_BLK_S_UNSUPP));
    let mut writable_bytes = 1;
    let expected = match kind {
        VIRTIO_BLK_T_IN => {
            writable_bytes += data_bytes;
            if is_whole { Ask::Read { block: sector / 8 } } else { ioerr }
        }
        VIRTIO_BLK_T_OUT => {
            readable.extend((0..data_bytes).map(|at| at as u8));
            if is_whole { Ask::Write { block: sector / 8 } } else { ioerr }
        }
        VIRTIO_BLK_T_FLUSH => Ask::Flush,
        VIRTIO_BLK_T_GET_ID => {
            writable_bytes += 20;
            Ask::Id
        }
        VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
            return drawn_ranges(draw, kind, readable);
        }
        _ => unsupp,
    };
    Drawn { readable, writable_bytes, expected }
}

fn drawn_ranges(draw: &mut Draw, kind: u32, mut readable: Vec<u8>) -> Drawn {
    let count = draw.below(u64::from(RANGES_MAX) + 3);
    let (mut ranges, mut refusal) = (Vec::new(), None);
    for _ in 0..count {
        let block = draw.below(BLOCKS);
        let blocks = if draw.chance(95) { draw.below(BLOCKS - block + 1) } else { draw.below(BLOCKS * 2) };
        let (odd, flags) = (u32::from(draw.chance(2)), if draw.chance(95) { draw.below(2) } else { draw.below(9) });
        readable.extend((block * 8).to_le_bytes());
        readable.extend((blocks as u32 * 8 + odd).to_le_bytes());
        readable.extend((flags as u32).to_le_bytes());
        let allowed = u64::from(kind == VIRTIO_BLK_T_WRITE_ZEROES);
        if flags & !allowed != 0 {
            refusal.get_or_insert(refused(VIRTIO_BLK_S_UNSUPP));
        } else if odd > 0 || block + blocks > BLOCKS {
            refusal.get_or_insert(refused(VIRTIO_BLK_S_IOERR));
        } else if blocks > 0 {
            ranges.push(Range { block, blocks, may_deallocate: flags == 1 });
        }
    }
    if count == 0 || count > u64::from(RANGES_MAX) {
        refusal = Some(refused(VIRTIO_BLK_S_IOERR));
    }
    let asked = if kind == VIRTIO_BLK_T_DISCARD { Ask::Discard(ranges) } else { Ask::WriteZeroes(ranges) };
    Drawn { readable, writable_bytes: 1, expected: refusal.unwrap_or(asked) }
}

/// Where what the device writes is drawn.
const WRITABLE: u64 = BUFFERS + (MEMORY_BYTES - BUFFERS) / 2;

/// Puts a request into memory, cut into buffers, in the table or in an indirect one.
fn place(memory: &Memory, draw: &mut Draw, drawn: &Drawn) {
    memory.write_slice(&drawn.readable, GuestAddress(BUFFERS)).unwrap();
    let mut buffers = Vec::new();
    cut(draw, BUFFERS, drawn.readable.len() as u64, false, &mut buffers);
    cut(draw, WRITABLE, drawn.writable_bytes, true, &mut buffers);
    if draw.chance(50) && buffers.len() <= usize::from(QUEUE) {
        table(memory, TABLE, &buffers);
    } else {
        table(memory, INDIRECT, &buffers);
        let descriptor = Descriptor::new(INDIRECT, 16 * buffers.len() as u32, IS_INDIRECT, 0);
        memory.write_obj(descriptor, GuestAddress(TABLE)).unwrap();
    }
}

/// However a request is cut into buffers, directly or through an indirect table, it is read as it was drawn.
#[test]
fn every_framing_of_a_request_is_read_as_it_was_drawn() {
    let (memory, shape) = (memory(), shape());
    for seed in 0..60_000 {
        let draw = &mut Draw(seed);
        let drawn = drawn(draw);
        place(&memory, draw, &drawn);
        let Drawn { readable, writable_bytes, expected } = drawn;
        let chain = Chain::walk(&memory, TABLE, QUEUE, 0).unwrap_or_else(|why| panic!("seed {seed}: {why:?}"));
        let request = Request::parse(&memory, chain, &shape);
        assert_eq!(request.ask, expected, "seed {seed}");
        assert_eq!(request.status, Some(WRITABLE + writable_bytes - 1), "seed {seed}");
        let mut data = vec![0; bytes_of(&request.data) as usize];
        assert!(Cursor::new(&request.data).read(&memory, &mut data), "seed {seed}");
        match request.ask {
            Ask::Write { .. } => assert_eq!(data, readable[HEADER_BYTES..], "seed {seed}"),
            _ => assert_eq!(data.len() as u64, writable_bytes - 1, "seed {seed}"),
        }
    }
}

/// Changes a word of a table, or a byte of a header or a list of ranges, to something that could do harm.
fn spoil(memory: &Memory, draw: &mut Draw) {
    let descriptor = if draw.chance(50) { TABLE } else { INDIRECT } + 16 * draw.below(4);
    match draw.below(5) {
        0 => {
            let addresses = [u64::MAX, MEMORY_BYTES - 1, MEMORY_BYTES, 1 << 63, INDIRECT, BUFFERS + draw.below(8192)];
            let address = addresses[draw.below(addresses.len() as u64) as usize];
            memory.write_obj(address, GuestAddress(descriptor)).unwrap();
        }
        1 => {
            let lengths = [0, 1, 15, 4096, 1 << 20, u32::MAX, draw.below(1 << 17) as u32];
            let length = lengths[draw.below(lengths.len() as u64) as usize];
            memory.write_obj(length, GuestAddress(descriptor + 8)).unwrap();
        }
        2 => memory.write_obj(draw.below(9) as u16, GuestAddress(descriptor + 12)).unwrap(),
        3 => memory.write_obj(draw.below(70) as u16, GuestAddress(descriptor + 14)).unwrap(),
        _ => {
            let reach = if draw.chance(50) { 16 } else { 64 };
            let at = GuestAddress(BUFFERS + draw.below(reach));
            memory.write_obj(draw.below(256) as u8, at).unwrap();
        }
    }
}

/// Requests that are right but for a few words: whatever comes of them is bounded, within the disk, and whole.
#[test]
fn no_chain_makes_more_of_a_request_than_it_may() {
    let (memory, shape) = (memory(), shape());
    let mut seen = [0_u64; 3];
    for seed in 0..100_000 {
        let draw = &mut Draw(seed ^ 0x5eed);
        let drawn = drawn(draw);
        place(&memory, draw, &drawn);
        (0..=draw.below(3)).for_each(|_| spoil(&memory, draw));
        let Ok(chain) = Chain::walk(&memory, TABLE, QUEUE, 0) else {
            seen[0] += 1;
            continue;
        };
        let request = Request::parse(&memory, chain, &shape);
        if matches!(request.ask, Ask::Refused(_)) {
            seen[1] += 1;
            continue;
        }
        seen[2] += 1;
        assert!(request.status.is_some(), "seed {seed}: it is done, and cannot be answered");
        let bytes = bytes_of(&request.data);
        match &request.ask {
            Ask::Read { block } | Ask::Write { block } => {
                assert!(bytes.is_multiple_of(4096) && bytes <= REQUEST_BYTES_MAX, "seed {seed}");
                assert!(block + bytes / 4096 <= BLOCKS, "seed {seed}");
            }
            Ask::Discard(ranges) | Ask::WriteZeroes(ranges) => {
                assert!(ranges.len() <= RANGES_MAX as usize, "seed {seed}");
                assert!(ranges.iter().all(|range| range.block + range.blocks <= BLOCKS), "seed {seed}");
            }
            _ => {}
        }
    }
    assert!(seen.iter().all(|count| *count > 1000), "what is drawn reaches all of it: {seen:?}");
}

fn walk_of(memory: &Memory, descriptors: &[Descriptor]) -> Result<Chain, Malformed> {
    for (place, descriptor) in descriptors.iter().enumerate() {
        memory.write_obj(*descriptor, GuestAddress(TABLE + 16 * place as u64)).unwrap();
    }
    Chain::walk(memory, TABLE, QUEUE, 0)
}

#[test]
fn a_chain_that_is_none_is_said_to_be_none() {
    let memory = memory();
    let d = |address, bytes, flags, next| Descriptor::new(address, bytes, flags, next);
    let walk = |descriptors: &[Descriptor]| walk_of(&memory, descriptors);
    assert_eq!(walk(&[d(BUFFERS, 16, NEXT, 1), d(BUFFERS, 16, NEXT, 0)]), Err(Malformed::Endless));
    assert_eq!(walk(&[d(BUFFERS, 16, NEXT, QUEUE)]), Err(Malformed::Index));
    assert_eq!(Chain::walk(&memory, TABLE, QUEUE, QUEUE), Err(Malformed::Index));
    assert_eq!(Chain::walk(&memory, MEMORY_BYTES - 8, QUEUE, 0), Err(Malformed::Address));
    assert_eq!(Chain::walk(&memory, u64::MAX - 8, QUEUE, 1), Err(Malformed::Address));
    assert_eq!(walk(&[d(u64::MAX, 2, 0, 0)]), Err(Malformed::Address));
    assert_eq!(walk(&[d(BUFFERS, 16, WRITE | NEXT, 1), d(BUFFERS, 16, 0, 0)]), Err(Malformed::Order));
    // Indirect tables: with another behind it, of no descriptor, of a part of one, of too many, outside, nested.
    assert_eq!(walk(&[d(INDIRECT, 16, IS_INDIRECT | NEXT, 1)]), Err(Malformed::Indirect));
    for bytes in [0, 15, 16 * (INDIRECT_MAX as u32 + 1), u32::MAX] {
        assert_eq!(walk(&[d(INDIRECT, bytes, IS_INDIRECT, 0)]), Err(Malformed::Indirect));
    }
    assert_eq!(walk(&[d(MEMORY_BYTES - 16, 32, IS_INDIRECT, 0)]), Err(Malformed::Address));
    memory.write_obj(d(INDIRECT, 16, IS_INDIRECT, 0), GuestAddress(INDIRECT)).unwrap();
    assert_eq!(walk(&[d(INDIRECT, 16, IS_INDIRECT, 0)]), Err(Malformed::Indirect));
    memory.write_obj(d(BUFFERS, 16, NEXT, 0), GuestAddress(INDIRECT)).unwrap();
    assert_eq!(walk(&[d(INDIRECT, 16, IS_INDIRECT, 0)]), Err(Malformed::Endless));
    memory.write_obj(d(BUFFERS, 16, NEXT, 2), GuestAddress(INDIRECT)).unwrap();
    assert_eq!(walk(&[d(INDIRECT, 32, IS_INDIRECT, 0)]), Err(Malformed::Index));
}

#[test]
fn what_is_beyond_the_limits_of_the_disk_is_refused() {
    let memory = memory();
    let header = |kind: u32, sector: u64| {
        memory.write_obj(kind, GuestAddress(BUFFERS)).unwrap();
        memory.write_obj(sector, GuestAddress(BUFFERS + 8)).unwrap();
    };
    let chain = |writable: &[u32]| Chain {
        readable: vec![Segment { address: BUFFERS, bytes: 16 }],
        writable: writable.iter().map(|bytes| Segment { address: BUFFERS + 4096, bytes: *bytes }).collect(),
    };
    let large = Shape { blocks: 1 << 40, ..shape() };
    let mut most = vec![SEGMENT_BYTES_MAX; SEGMENTS_MAX as usize];
    header(VIRTIO_BLK_T_IN, 0);
    most.push(1);
    assert_eq!(Request::parse(&memory, chain(&most), &large).ask, Ask::Read { block: 0 });
    most[0] += 4096;
    assert_eq!(Request::parse(&memory, chain(&most), &large).ask, IOERR);
    // Nothing that writes is for a disk that is read only; it may still be flushed.
    let read_only = Shape { is_read_only: true, ..shape() };
    for kind in [VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES] {
        header(kind, 0);
        assert_eq!(Request::parse(&memory, chain(&[1]), &read_only).ask, IOERR);
    }
    header(VIRTIO_BLK_T_FLUSH, 0);
    assert_eq!(Request::parse(&memory, chain(&[1]), &read_only).ask, Ask::Flush);
    // No room for a status, no header, and a header that is not in memory.
    assert_eq!(Request::parse(&memory, chain(&[]), &shape()).status, None);
    let short = Chain { readable: vec![Segment { address: BUFFERS, bytes: 15 }], ..chain(&[1]) };
    assert_eq!(Request::parse(&memory, short, &shape()).ask, IOERR);
    let outside = Chain { readable: vec![Segment { address: MEMORY_BYTES, bytes: 16 }], ..chain(&[1]) };
    assert_eq!(Request::parse(&memory, outside, &shape()).ask, IOERR);
}
