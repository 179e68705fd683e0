//! What the safe ways to touch shared memory cost, next to the plain ones.

use crate::harness::{Effort, Line, median, pin};
use osier_pmr::{Backing, ObjectKind, OwnerWord, Ownership, PageTags, Region, SharedLines, Side};
use std::hint::black_box;
use std::time::Instant;

const PAGE: usize = 4096;

/// Nanoseconds a call, as the median over series.
fn time(effort: Effort, mut call: impl FnMut()) -> f64 {
    let count = effort.count(200_000);
    let mut series = Vec::new();
    for _ in 0..effort.series() {
        let start = Instant::now();
        (0..count).for_each(|_| call());
        series.push(start.elapsed().as_nanos() as f64 / count as f64);
    }
    median(series)
}

/// Copies of a page; the peer is a plain copy between private buffers.
pub fn copies(effort: Effort) -> anyhow::Result<Vec<Line>> {
    pin(0)?;
    let region = Region::create(&Backing::Memfd, 1 << 20, [0; 16])?;
    let object = region.allocate("page", ObjectKind::ARENA, PAGE as u64, PAGE as u64)?;
    let tags = region.allocate("tags", ObjectKind::PAGE_TAGS, 64, 64)?;
    let tags = PageTags::new(SharedLines::new(&tags, 0, 1));
    let bytes = object.bytes();
    let (source, mut target) = (vec![1u8; PAGE], vec![0u8; PAGE]);
    let plain = time(effort, || black_box(&mut target).copy_from_slice(black_box(&source)));
    let mut lines = Vec::new();
    let mut add = |name: &str, ns| lines.push(Line::new(name, ns, "ns/4KiB").peer("memcpy, private buffers", plain));
    add("pmr.copy.read", time(effort, || bytes.read(0, black_box(&mut target))));
    add("pmr.copy.write", time(effort, || bytes.write(0, black_box(&source))));
    let tagged = time(effort, || {
        let read = tags.read_with(0, 1, || bytes.read(0, black_box(&mut target)));
        black_box(read.is_ok());
    });
    add("pmr.copy.read_tagged", tagged);
    Ok(lines)
}

/// The check of the owner word on each entry into an object.
pub fn owner(effort: Effort) -> anyhow::Result<Vec<Line>> {
    pin(0)?;
    let region = Region::create(&Backing::Memfd, 1 << 20, [0; 16])?;
    let object = region.allocate("owner", ObjectKind::OWNER_WORDS, 64, 64)?;
    let word = OwnerWord::new(object.word64(0));
    word.initialise(Ownership { side: Side::HOST, generation: 1 });
    let ns = time(effort, || {
        black_box(black_box(&word).check(Side::HOST).is_ok());
    });
    Ok(vec![Line::new("pmr.owner.check", ns, "ns")])
}
