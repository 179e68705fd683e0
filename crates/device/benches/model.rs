//! How fast the composed model runs: link, controller, cache and page-mapped flash, in page requests for each second of
//! processor time, and what a modelled page takes of memory. Prints one JSON object for each figure.

use osier_device::model::{Command, Completed, Model, ModelConfig, Op};
use osier_device::{Nanos, Profile, parse_override};
use osier_flash::page::FillPattern;

/// Gigabytes of the devices, and the blocks of a plane that the array of each has.
const DEVICES: [u64; 3] = [1, 64, 1024];
/// Requests of a round, and rounds of each measurement, of which the median counts: other programs on the machine take
/// a share of its memory and of its processors' caches.
const REQUESTS: u64 = 1_000_000;
const ROUNDS: usize = 5;
/// Commands under way.
const DEPTH: usize = 256;
/// Over-provisioning, in thousandths of the raw space: 28 % of the logical.
const OVER_PROVISIONING: &str = "ftl.over_provisioning_permille=219";
/// The fewest reads and writes with collection, in millions, and the most that size may cost.
const READS_MIN: f64 = 2.0;
const WRITES_MIN: f64 = 1.0;
const SCALING_MAX: f64 = 3.0;
const BYTES_MAX: f64 = 10.0;
const PRECONDITION_SECONDS_MAX: f64 = 30.0;

/// Seconds of processor time of this thread: other programs on the machine do not count.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    text.split(' ').next().and_then(|field| field.parse::<f64>().ok()).expect("it is a number") / 1e9
}

fn figure(name: &str, value: f64, unit: &str, bar: &str, pass: bool, note: &str) {
    println!(
        r#"{{"name":"model/{name}","value":{value:.3},"unit":"{unit}","bar":"{bar}","pass":{pass},"note":"{note}"}}"#
    );
}

/// Cylon's array in the size that is asked for, with a gigabyte of cache where it has as much, and a controller that is
/// not what limits.
fn config(gib: u64) -> ModelConfig {
    let sets = [
        "geometry.planes_per_die=4",
        "geometry.page_bytes=16384",
        "geometry.stripe_order=PCWD",
        "timing.multi_plane=true",
        "timing.cache_program=true",
        "timing.channel_bytes_per_second=1600000000",
        "ftl.checkpoint_superblocks=0",
        "ftl.collection.free_min=1",
        "ftl.collection.free_foreground=1",
        "ftl.collection.free_background=2",
        "ftl.slots_per_die_max=4",
        "controller.read_bytes_per_second=100000000000",
        "controller.write_bytes_per_second=100000000000",
        "controller.command_ns=10",
        "link.generation=6",
        "link.cxl_flit=256",
        "cache.eviction=clock",
        OVER_PROVISIONING,
    ];
    let pages = if gib == 1 { "geometry.pages_per_block=16" } else { "geometry.pages_per_block=256" };
    let cache = format!("cache.size.permille={}", if gib == 1024 { 1 } else { 10 });
    let sets = sets.into_iter().chain([pages, &cache]).map(|set| parse_override(set).expect("it has a value"));
    let text = Profile::built_in_text("cylon").expect("it is built in");
    let profile = Profile::parse_with("cylon", text, &sets.collect::<Vec<_>>()).expect("it is sound");
    profile.model(Some(gib << 30)).expect("the array has as much")
}

/// Processor nanoseconds for each request of a page at random: the median of some rounds.
fn measure(model: &mut Model, op: Op, now: &mut Nanos) -> f64 {
    let mut random = 1;
    let mut rounds: [f64; ROUNDS] = std::array::from_fn(|_| round(model, op, now, &mut random));
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// Requests of a page at random, so many under way; processor nanoseconds for each.
fn round(model: &mut Model, op: Op, now: &mut Nanos, random: &mut u64) -> f64 {
    let pages = model.capacity_bytes() / 4096;
    let mut ended: Vec<Completed> = Vec::with_capacity(DEPTH);
    let (mut sent, mut done) = (0, 0);
    let start = processor_seconds();
    while done < REQUESTS {
        while sent < REQUESTS && model.under_way() < DEPTH {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let address = (*random >> 20) % pages * 4096;
            let command = Command { id: sent, op, address, bytes: 4096, tenant: 0 };
            model.submit(*now, command).expect("there is room");
            sent += 1;
        }
        *now = model.poll_next(Nanos::MAX, &mut ended);
        done += ended.len() as u64;
        ended.clear();
    }
    (processor_seconds() - start) * 1e9 / REQUESTS as f64
}

fn main() {
    let mut costs = Vec::new();
    for gib in DEVICES {
        let config = config(gib);
        let start = processor_seconds();
        let mut model = Model::new(&config, 1).expect("the configuration is sound");
        model.precondition(1000, FillPattern::UniformRandom, 1).expect("the device is new");
        let filled = processor_seconds() - start;
        let mut now = Nanos::ZERO;
        let read = measure(&mut model, Op::Read, &mut now);
        let reads = 1e3 / read;
        let note = format!("{gib} GiB, full, 4 KiB at random, {DEPTH} under way");
        let bar = format!(">= {READS_MIN}");
        figure(&format!("read-{gib}g"), reads, "million requests/s", &bar, reads >= READS_MIN, &note);
        let write = measure(&mut model, Op::Write, &mut now);
        let writes = 1e3 / write;
        let waf = model.stats().flash.waf_ppm() as f64 / 1e6;
        let note = format!("{note}, collection running, write amplification {waf:.2}");
        let bar = format!(">= {WRITES_MIN}");
        figure(&format!("write-{gib}g"), writes, "million requests/s", &bar, writes >= WRITES_MIN, &note);
        costs.push((read, write));
        if gib == 1024 {
            let bytes = model.map_bytes() as f64 / (model.capacity_bytes() / 4096) as f64;
            let note = "the flash's maps; a frame of the cache takes 33 bytes and its policy's";
            figure("memory", bytes, "bytes a page of 4 KiB", &format!("<= {BYTES_MAX}"), bytes <= BYTES_MAX, note);
            let (bar, pass) = (format!("<= {PRECONDITION_SECONDS_MAX}"), filled <= PRECONDITION_SECONDS_MAX);
            figure("precondition", filled, "s", &bar, pass, "1 TiB, steady state of random writes");
        }
    }
    let (small, large) = (costs[0], costs[costs.len() - 1]);
    for (what, ratio) in [("read", large.0 / small.0), ("write", large.1 / small.1)] {
        let bar = format!("<= {SCALING_MAX}");
        figure(
            &format!("{what}-scaling"),
            ratio,
            "x",
            &bar,
            ratio <= SCALING_MAX,
            "cost of a request, 1 TiB over 1 GiB",
        );
    }
}
