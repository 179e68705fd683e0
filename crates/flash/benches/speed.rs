//! How fast the FTL runs in virtual time, timing only, and how fast recovery scans.
//!
//! One JSON object a line for each figure.

use std::time::Instant;

use osier_flash::*;

const GEOMETRY: Geometry = Geometry {
    channels: 8,
    dies_per_channel: 4,
    planes_per_die: 2,
    blocks_per_plane: 64,
    pages_per_block: 64,
    page_bytes: 16_384,
};
const TIMING: Timing =
    Timing { read_ns: 40_000, program_ns: 200_000, erase_ns: 2_000_000, channel_bytes_per_second: 1_200_000_000 };
const PARAMS: FtlParams = FtlParams {
    over_provisioning_permille: 70,
    gc_free_superblocks_low: 4,
    gc_free_superblocks_min: 2,
    with_data: false,
    thin: false,
};
/// Logical blocks of the figures with collection: 90% of the most that fit.
const FULL_PERCENT: u64 = 90;

/// What one run did.
struct Run {
    seconds: f64,
    stats: FtlStats,
}

/// Answers every operation and moves time to the next event.
fn advance(ftl: &mut Ftl, now: &mut Nanos, events: &mut Vec<FtlEvent>, media: &mut Option<Vec<u8>>) {
    while let Some(op) = ftl.next_op() {
        let result = match op.kind {
            MediaOpKind::Read { address, bytes } => MediaResult::Read(match media {
                Some(media) => media[address as usize..address as usize + bytes as usize].into(),
                None => Box::default(),
            }),
            MediaOpKind::Program { address, data, .. } => {
                if let (Some(media), Some(data)) = (media.as_mut(), &data) {
                    media[address as usize..address as usize + data.len()].copy_from_slice(data);
                }
                MediaResult::Programmed(data)
            }
            MediaOpKind::Erase { .. } => MediaResult::Erased,
            MediaOpKind::Sync => MediaResult::Synced,
        };
        ftl.media_done(*now, op.id, result);
    }
    if let Some(at) = ftl.next_event() {
        *now = at.max(*now);
    }
    ftl.poll(*now, events);
    events.clear();
}

fn extent(slba: u64, blocks: u16, stored_bytes: u32, sequence: u64, checksum: u32) -> Extent {
    Extent {
        slba: Lba(slba),
        blocks,
        raw_bytes: u32::from(blocks) * BLOCK_BYTES,
        stored_bytes,
        tag: 0,
        checksum,
        sequence,
        kind: ExtentKind::Data,
    }
}

/// Writes `count` extents of `blocks` blocks, at random or one after the other.
fn write(
    ftl: &mut Ftl,
    count: u64,
    blocks: u16,
    at_random: bool,
    mut media: Option<Vec<u8>>,
) -> (Run, Option<Vec<u8>>) {
    let slots = ftl.logical_blocks() / u64::from(blocks);
    let payload = vec![0x5a; blocks as usize * BLOCK_BYTES as usize];
    let checksum = crc32c::crc32c(&payload);
    let (mut now, mut events, mut random) = (Nanos::ZERO, Vec::new(), 1_u64);
    let start = Instant::now();
    for sequence in 1..=count {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let slot = if at_random && sequence > slots { (random >> 33) % slots } else { sequence % slots };
        let one = extent(slot * u64::from(blocks), blocks, payload.len() as u32, sequence, checksum);
        let payload = media.is_some().then_some(payload.as_slice());
        while ftl.append(now, &one, payload) == Err(Backpressure::Busy) {
            advance(ftl, &mut now, &mut events, &mut media);
        }
    }
    ftl.close_page(now);
    (Run { seconds: start.elapsed().as_secs_f64(), stats: ftl.stats() }, media)
}

fn figure(name: &str, value: f64, unit: &str, bar: Option<(f64, &str)>, note: &str) {
    let bar = bar.map_or(String::new(), |(least, text)| format!(r#","bar":"{text}","pass":{}"#, value >= least));
    println!(r#"{{"name":"{name}","value":{value:.3},"unit":"{unit}"{bar},"note":"{note}"}}"#);
}

fn timing_only(name: &str, blocks: u16, at_random: bool, bar: Option<(f64, &str)>) {
    let logical = Ftl::logical_blocks_max(&GEOMETRY, &PARAMS).expect("the geometry is sound") * FULL_PERCENT / 100;
    let mut ftl = Ftl::new(GEOMETRY, TIMING, PARAMS, logical).expect("the blocks fit");
    let (run, _) = write(&mut ftl, 12_000_000 / u64::from(blocks), blocks, at_random, None);
    let rate = run.stats.pages_programmed as f64 / run.seconds / 1e6;
    let waf = run.stats.waf_permille() as f64 / 1000.0;
    let note = format!("{} programs of 16 KiB, write amplification {waf:.2}", run.stats.pages_programmed);
    figure(name, rate, "million programs/s", bar, &note);
}

fn recovery() {
    let geometry = Geometry { blocks_per_plane: 16, ..GEOMETRY };
    let params = FtlParams { with_data: true, gc_free_superblocks_low: 3, gc_free_superblocks_min: 1, ..PARAMS };
    let logical = Ftl::logical_blocks_max(&geometry, &params).expect("the geometry is sound");
    let mut ftl = Ftl::new(geometry, TIMING, params, logical).expect("the blocks fit");
    let media = vec![0; geometry.media_bytes() as usize];
    let (run, media) = write(&mut ftl, logical + logical / 4, 1, true, Some(media));
    let rate = run.stats.programmed_bytes as f64 / run.seconds / 1e9;
    figure("flash/write-with-data", rate, "GB/s programmed", None, "4 KiB extents, checksums of headers, copies");
    let media = media.expect("the run keeps data");
    let start = Instant::now();
    let mut read = |address: u64, out: &mut [u8]| {
        out.copy_from_slice(&media[address as usize..address as usize + out.len()]);
        Ok(())
    };
    let (_, report) = Ftl::recover(geometry, TIMING, params, logical, &mut read).expect("recovers");
    let seconds = start.elapsed().as_secs_f64();
    let gib = geometry.media_bytes() as f64 / f64::from(1 << 30);
    let note = format!("{} extents of 4 KiB, {} bytes checked", report.extents_seen, report.payload_bytes_checked);
    figure("flash/recovery", seconds / gib, "s/GiB of media", None, &note);
}

fn main() {
    timing_only("flash/timing-only-sequential", 4, false, Some((2.0, ">= 2")));
    timing_only("flash/timing-only-sequential-64k", 16, false, Some((2.0, ">= 2")));
    timing_only("flash/timing-only-random-collected", 4, true, None);
    recovery();
}
