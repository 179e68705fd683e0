//! How fast the FTLs run in virtual time, timing only, how fast recovery scans, and what a terabyte costs.
//!
//! One JSON object a line for each figure.

use std::time::Instant;

use osier_flash::array::*;
use osier_flash::page::*;
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

/// Devices with a page map: gigabytes, pages of a block that make 21 superblocks and more of each, and the bars for
/// reads and writes in millions. Where the maps do not fit into the processor's cache, each request waits for memory.
const PAGE_MAP_DEVICES: [(u64, u32, f64, f64); 3] = [(1, 16, 5.0, 2.5), (64, 256, 2.0, 1.0), (1024, 256, 2.0, 1.0)];
/// Over-provisioning of them, in percent.
const OVER_PROVISIONING_PERCENT: u64 = 28;
/// Requests of each measurement.
const REQUESTS: u64 = 10_000_000;

/// 8 channels of 8 dies of 4 planes: a terabyte of TLC in 1,315 blocks a plane.
fn page_map_config(gib: u64, pages_per_block: u32) -> PageFtlConfig {
    let units = gib << 18;
    let superblock_units = 256 * u64::from(pages_per_block) * 4;
    let blocks = (units * (100 + OVER_PROVISIONING_PERCENT)).div_ceil(100 * superblock_units) as u32 + 4;
    PageFtlConfig {
        shape: Shape {
            channels: 8,
            chips_per_channel: 8,
            dies_per_chip: 1,
            planes_per_die: 4,
            blocks_per_plane: blocks,
            pages_per_block,
            page_bytes: 16_384,
        },
        order: "PCWD".parse().expect("it is a permutation"),
        timing: ArrayTiming {
            read_ns: vec![40_000, 50_000, 60_000],
            program_ns: vec![400_000, 600_000, 800_000],
            erase_ns: 3_000_000,
            channel_bytes_per_second: 1_600_000_000,
            multi_plane: true,
            cache_read: false,
            cache_program: true,
            reads_first: true,
            reads_first_max: 100,
            suspend: Suspend { program: true, erase: true, suspend_ns: 5_000, resume_ns: 5_000, times_max: 10 },
        },
        errors: ErrorParams::none(3),
        ftl: PageFtlParams {
            logical_units: units,
            spare_blocks_per_plane: 0,
            streams: Streams::Separate,
            slots_per_die_max: 4,
            collection: Collection {
                policy: VictimPolicy::Greedy,
                free_min: 1,
                free_foreground: 1,
                free_background: 2,
                preemptible: true,
                moves_max: 128,
            },
            wear: WearLevelling { dynamic: true, spread_max: 0 },
            checkpoint_superblocks: 0,
            map_cache_pages: 0,
        },
    }
}

/// Seconds of processor time of this thread: other programs on the machine do not count.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    text.split(' ').next().and_then(|field| field.parse::<f64>().ok()).expect("it is a number") / 1e9
}

fn next_random(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// Reads at random, a little below what the dies can do; seconds for all.
fn read_at_random(ftl: &mut PageFtl, now: &mut Nanos, units: u64) -> f64 {
    let mut random = 1;
    let start = processor_seconds();
    for _ in 0..REQUESTS {
        let lpn = next_random(&mut random) % units;
        ftl.read(*now, lpn, 1).expect("it is in range");
        *now = now.saturating_add(1_000);
    }
    processor_seconds() - start
}

/// Writes at random as fast as the device takes them; seconds for all, and write amplification.
fn write_at_random(ftl: &mut PageFtl, now: &mut Nanos, units: u64) -> (f64, f64) {
    let (mut random, mut completed) = (2, Vec::new());
    let before = ftl.stats();
    let start = processor_seconds();
    for _ in 0..REQUESTS {
        let lpn = next_random(&mut random) % units;
        let mut waits = matches!(ftl.write(*now, lpn, 1, 0), Ok(Outcome::Waiting(_)));
        while waits {
            *now = ftl.next_event().expect("a write that waits is waited for").max(*now);
            ftl.poll(*now, &mut completed);
            waits = completed.is_empty();
            completed.clear();
        }
    }
    let seconds = processor_seconds() - start;
    let after = ftl.stats();
    let programmed = after.bytes_programmed - before.bytes_programmed;
    (seconds, programmed as f64 / (after.bytes_written - before.bytes_written) as f64)
}

fn page_map() {
    let mut costs = Vec::new();
    for (gib, pages_per_block, reads_min, writes_min) in PAGE_MAP_DEVICES {
        let config = page_map_config(gib, pages_per_block);
        let units = config.ftl.logical_units;
        let start = processor_seconds();
        let mut ftl = PageFtl::new(&config, 1).expect("the configuration is sound");
        ftl.precondition(1000, FillPattern::UniformRandom, 1).expect("the device is new");
        let filled = processor_seconds() - start;
        let mut now = Nanos::ZERO;
        let read = read_at_random(&mut ftl, &mut now, units);
        let (written, waf) = write_at_random(&mut ftl, &mut now, units);
        costs.push((read, written));
        let millions = |seconds: f64| REQUESTS as f64 / seconds / 1e6;
        let note = format!("{gib} GiB, full; MQSim's published 34 to 56 thousand requests/s are of its whole device");
        let name = format!("flash/page-map-read-{gib}g");
        figure(&name, millions(read), "million reads/s", Some((reads_min, &format!(">= {reads_min}"))), &note);
        let note = format!("{gib} GiB, full, collection running, write amplification {waf:.2}");
        let name = format!("flash/page-map-write-{gib}g");
        figure(&name, millions(written), "million writes/s", Some((writes_min, &format!(">= {writes_min}"))), &note);
        if gib == 1024 {
            let bytes = ftl.map_bytes() as f64 / units as f64;
            at_most("flash/page-map-memory", bytes, "bytes a unit of 4 KiB", 10.0, "both maps, 1 TiB");
            at_most("flash/page-map-precondition", filled, "s", 30.0, "1 TiB, steady state of random writes");
        }
    }
    let (small, large) = (costs[0], costs[costs.len() - 1]);
    at_most("flash/page-map-read-scaling", large.0 / small.0, "x", 3.0, "cost of a read, 1 TiB over 1 GiB");
    at_most("flash/page-map-write-scaling", large.1 / small.1, "x", 3.0, "cost of a write, 1 TiB over 1 GiB");
}

fn at_most(name: &str, value: f64, unit: &str, most: f64, note: &str) {
    let pass = value <= most;
    println!(
        r#"{{"name":"{name}","value":{value:.3},"unit":"{unit}","bar":"<= {most}","pass":{pass},"note":"{note}"}}"#
    );
}

fn main() {
    timing_only("flash/timing-only-sequential", 4, false, Some((2.0, ">= 2")));
    timing_only("flash/timing-only-sequential-64k", 16, false, Some((2.0, ">= 2")));
    timing_only("flash/timing-only-random-collected", 4, true, None);
    recovery();
    page_map();
}
