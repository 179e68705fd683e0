//! Every parameter of a profile changes something that a user can see: one that nothing reads would be a promise that
//! is not kept. Each key has another value here; a key without one fails the test, and so does one that has no effect.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fmt::Write as _;

use osier_device::compute::Compute;
use osier_device::model::Model;
use osier_device::profile::{Engine, parse_override};
use osier_device::{CommandId, Completion, Crossing, Device, DeviceParams, Profile, Status, UnitMeta, WriteMeta};
use osier_flash::page::FillPattern;
use osier_flash::{Lba, MediaOpKind, MediaResult, Nanos};
use osier_link::{Kind, Link, Transaction};
use osier_sched::{ActorId, ActorView, Class, DeviceSample, HostSample, Sample, Side, policy};
use osier_sim::run::{FillMethod, Load, Options, Precondition, simulate};
use osier_sim::trace::Remap;
use osier_sim::workload::Workload;

/// What the model in virtual time begins with: a small array that is worn, fails now and then, and has every option on.
const BASE: &[&str] = &[
    "geometry.channels=2",
    "geometry.chips_per_channel=2",
    "geometry.planes_per_die=2",
    "geometry.blocks_per_plane=64",
    "geometry.pages_per_block=64",
    "geometry.page_bytes=16384",
    "timing.read_ns=[40000, 60000, 50000]",
    "timing.program_ns=[200000, 300000, 250000]",
    "timing.channel_bytes_per_second=800000000",
    "timing.multi_plane=true",
    "timing.cache_read=true",
    "timing.cache_program=true",
    "timing.reads_first=true",
    "timing.reads_first_max=4",
    "timing.suspend.program=true",
    "timing.suspend.erase=true",
    "timing.suspend.suspend_ns=5000",
    "timing.suspend.resume_ns=5000",
    "timing.suspend.times_max=2",
    "errors.page_type_permille=[900, 1100, 1000]",
    "errors.rber=[{ erases = 0, errors_e12 = 3500000000 }, { erases = 10, errors_e12 = 3600000000 }]",
    "errors.retries=[{ ns = 60000, rber_permille = 300 }, { ns = 70000, rber_permille = 100 }]",
    "errors.retention_permille_per_day=30",
    "errors.disturb_permille_per_thousand_reads=100",
    "errors.program_fail_ppm=100",
    "errors.erase_fail_ppm=500",
    "errors.factory_bad_ppm=2000",
    "ftl.spare_blocks_per_plane=8",
    "ftl.over_provisioning_permille=300",
    "ftl.checkpoint_superblocks=4",
    "ftl.map_cache_pages=8",
    "ftl.collection.free_min=3",
    "ftl.collection.free_foreground=5",
    "ftl.collection.free_background=7",
    "ftl.collection.moves_max=8",
    "ftl.wear.dynamic=true",
    "ftl.wear.spread_max=1",
    "controller.queue_entries=48",
    "link.read_tags=4",
    "link.ecrc=true",
    "cache.size.bytes=4194304",
    "cache.ways=8",
    "cache.reserve_frames=1",
    "cache.eviction=clock",
    "cache.prefetch=next-n",
    "cache.fills_max=16",
    "cache.write_log.lines_per_half=256",
];

/// Another value of each key that the model in virtual time has, and what is otherwise in its base: a key alone is not
/// there.
const MODEL: &[(&str, &[&str])] = &[
    ("geometry.channels=4", &[]),
    ("geometry.chips_per_channel=1", &[]),
    ("geometry.dies_per_chip=2", &[]),
    ("geometry.planes_per_die=1", &[]),
    ("geometry.blocks_per_plane=72", &[]),
    ("geometry.pages_per_block=63", &[]),
    ("geometry.page_bytes=8192", &[]),
    ("geometry.stripe_order=PWCD", &[]),
    ("timing.read_ns=[40000, 60000, 51000]", &[]),
    ("timing.program_ns=[200000, 300000, 251000]", &[]),
    ("timing.erase_ns=2100000", &[]),
    ("timing.channel_bytes_per_second=700000000", &[]),
    ("timing.multi_plane=false", &[]),
    ("timing.cache_read=false", &[]),
    ("timing.cache_program=false", &[]),
    ("timing.reads_first=false", &["timing.suspend.program=false", "timing.suspend.erase=false"]),
    ("timing.reads_first_max=1", &[]),
    ("timing.suspend.program=false", &[]),
    ("timing.suspend.erase=false", &[]),
    ("timing.suspend.suspend_ns=6000", &[]),
    ("timing.suspend.resume_ns=6000", &[]),
    ("timing.suspend.times_max=1", &[]),
    ("errors.rber=[{ erases = 0, errors_e12 = 3000000000 }]", &[]),
    ("errors.page_type_permille=[900, 1200, 1000]", &[]),
    ("errors.retention_permille_per_day=1000000", &[]),
    ("errors.disturb_permille_per_thousand_reads=900", &[]),
    ("errors.codeword_bytes=2048", &[]),
    ("errors.correctable_bits=42", &[]),
    ("errors.retries=[{ ns = 61000, rber_permille = 300 }, { ns = 70000, rber_permille = 100 }]", &[]),
    ("errors.program_fail_ppm=0", &[]),
    ("errors.erase_fail_ppm=0", &[]),
    ("errors.factory_bad_ppm=10000", &[]),
    ("ftl.over_provisioning_permille=310", &[]),
    ("ftl.spare_blocks_per_plane=9", &[]),
    ("ftl.streams=hot-cold", &[]),
    ("ftl.slots_per_die_max=3", &[]),
    ("ftl.checkpoint_superblocks=6", &[]),
    ("ftl.map_cache_pages=12", &[]),
    ("ftl.collection.policy=fifo", &[]),
    ("ftl.collection.free_min=2", &[]),
    ("ftl.collection.free_foreground=6", &[]),
    ("ftl.collection.free_background=8", &[]),
    ("ftl.collection.preemptible=false", &[]),
    ("ftl.collection.moves_max=16", &[]),
    ("ftl.wear.dynamic=false", &[]),
    ("ftl.wear.spread_max=0", &[]),
    ("controller.read_bytes_per_second=3000000000", &[]),
    ("controller.write_bytes_per_second=900000000", &[]),
    ("controller.command_ns=600", &[]),
    ("controller.queue_entries=32", &[]),
    ("controller.data_transfer=sgl", &[]),
    ("link.generation=4", &[]),
    ("link.lanes=8", &[]),
    ("link.max_payload_bytes=128", &["link.completion_bytes_max=128"]),
    ("link.max_read_request_bytes=256", &[]),
    ("link.completion_bytes_max=128", &[]),
    ("link.ecrc=false", &[]),
    ("link.ack_every_packets=2", &[]),
    ("link.update_fc_every_packets=2", &[]),
    ("link.read_tags=2", &[]),
    ("link.one_way_ns=30", &[]),
    ("link.host_read_ns=350", &[]),
    ("link.device_read_ns=20", &[]),
    ("link.cxl_flit=256", &[]),
    ("cache.size.permille=20", &[]),
    ("cache.ways=16", &[]),
    ("cache.set_index=hash", &[]),
    ("cache.write=through", &["cache.write_log.lines_per_half"]),
    ("cache.reserve_frames=2", &[]),
    ("cache.eviction=lru", &[]),
    ("cache.eviction_parameters.bits=2", &[]),
    ("cache.prefetch=stride", &[]),
    ("cache.prefetch_parameters.degree=4", &[]),
    ("cache.fills_max=4", &[]),
    ("cache.block_commands=around", &["cache.write_log.lines_per_half"]),
    ("cache.survives_power_loss=true", &[]),
    ("cache.dram.read_ns=95", &[]),
    ("cache.dram.write_ns=95", &[]),
    ("cache.dram.bytes_per_second=20000000000", &[]),
    ("cache.write_log.lines_per_half=512", &[]),
];

/// Another value of each key that the core in real time or its scheduler has beside those.
const CORE: &[&str] = &[
    "write_buffer.bytes=2097152",
    "write_buffer.drain_start_permille=400",
    "write_buffer.drain_idle_ns=500000",
    "compute.cores=2",
    "compute.call_ns=1100",
    "compute.chunk_ns_max=40000",
    "compute.engines.lz4_bytes_per_second=900000000",
    "compute.engines.aes_bytes_per_second=2400000000",
    "compute.engines.crc32c_bytes_per_second=7000000000",
    "compute.engines.wasm_bytes_per_second=300000000",
    "thermal.ambient_millicelsius=31000",
    "thermal.resistance_millikelvin_per_watt=1700",
    "thermal.capacitance_millijoule_per_kelvin=81000",
    "power.idle_milliwatts=11000",
    "power.compute_milliwatts_per_core=7000",
    "power.read_nanojoules_per_page=5500",
    "power.program_nanojoules_per_page=16000",
    "power.erase_nanojoules_per_block=70000",
    "power.link_picojoules_per_byte=110",
    "power.controller_picojoules_per_byte=330",
    "throttle.1.enter_millicelsius=91000",
    "throttle.1.exit_millicelsius=79000",
    "throttle.1.speed_permille=300",
    "scheduler.upload_millicelsius=78000",
    "scheduler.offload_below_millicelsius=50000",
    "scheduler.host_cpu_high_permille=700",
    "scheduler.host_cpu_low_permille=300",
    "scheduler.host_headroom_permille=600",
    "scheduler.host_cpu_window_ms=300",
    "scheduler.host_throttle_permille=900",
    "scheduler.min_residency_ms=400",
    "scheduler.moves_per_epoch=2",
    "scheduler.shed_step_permille=90",
    "scheduler.shed_floor_permille=400",
    "scheduler.shed_recover_permille=70",
    "scheduler.shed_span_millikelvin=9000",
    "persistence.pmr_persistent=true",
];

/// Logical blocks of the core's device.
const BLOCKS: u64 = 32_768;

/// Keys that change no result of these two, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("device.name", "a label"),
    ("device.description", "a label"),
    ("throttle.1.name", "a label"),
    ("cache.pinned_pages_max", "below: no workload pins"),
    ("link.read_completion_boundary_bytes", "below: the host's buffers begin on pages"),
    ("scheduler.epoch_ms", "how often the runtime asks the policy"),
    ("window.sample_pages", "of the memory window alone, whose own tests change it"),
    ("window.sample_period_us", "of the memory window alone, whose own tests change it"),
];

const WORKLOAD: &str = r#"
seed = 3

[[job]]
name = "blocks"

[[job.phase]]
requests = 8_000
pattern = { zipf = { theta_permille = 600 } }
mix = { read_permille = 470, write_permille = 500, trim_permille = 20, flush_permille = 10 }
range_bytes = 268_435_456
blocks = [{ bytes = 512, weight = 1 }, { bytes = 4096, weight = 3 }, { bytes = 20_480, weight = 1 }]
arrivals = { closed = { depth = 64 } }

[[job]]
name = "lines"

[[job.phase]]
requests = 8_000
pattern = { strided = { stride_bytes = 1088 } }
mix = { load_permille = 700, store_permille = 300 }
range_bytes = 268_435_456
block_bytes = 64
arrivals = { closed = { depth = 8 } }
"#;

type Setting = (String, toml::Value);

fn settings<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Setting> {
    texts.into_iter().map(|text| parse_override(text).unwrap()).collect()
}

fn profile(set: &[Setting]) -> Result<Profile, String> {
    let text = Profile::built_in_text("cylon").unwrap();
    Profile::parse_with("cylon", text, set).map_err(|error| error.to_string())
}

/// What a run has measured; not what it was told.
fn model_result(set: &[Setting]) -> Result<String, String> {
    let workload = Workload::parse("w", WORKLOAD).unwrap();
    let fill = Precondition { fill_permille: 1000, pattern: FillPattern::UniformRandom, method: FillMethod::Analytic };
    let options = Options { precondition: Some(fill), addresses: Remap::Modulo, ..Options::default() };
    let load = Load::Workload { name: "w", workload: &workload };
    let report = simulate(&profile(set)?, load, &options, &mut ()).map_err(|error| error.to_string())?;
    let mut json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    json.as_object_mut().unwrap().remove("device").unwrap();
    Ok(json.to_string())
}

/// Every key of a profile's text that is a parameter, and the optional ones that are set here.
fn keys() -> BTreeSet<String> {
    fn walk(path: &str, value: &toml::Value, keys: &mut BTreeSet<String>) {
        let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match value {
            toml::Value::Table(table) => table.iter().for_each(|(key, value)| walk(&below(key), value, keys)),
            _ => drop(keys.insert(path.to_owned())),
        }
    }
    let mut document: toml::Table = Profile::built_in_text("cylon").unwrap().parse().unwrap();
    document.remove("calibration");
    let steps = document.remove("throttle").unwrap();
    let mut keys = BTreeSet::new();
    walk("", &toml::Value::Table(document), &mut keys);
    walk("throttle.1", &steps.as_array().unwrap()[0], &mut keys);
    keys.extend(
        ["cache.eviction_parameters.bits", "cache.prefetch_parameters.degree", "cache.write_log.lines_per_half"]
            .map(str::to_owned),
    );
    keys
}

#[test]
fn every_parameter_of_the_model_changes_its_result() {
    let base = settings(BASE.iter().copied());
    let usual = model_result(&base);
    assert_eq!(usual, model_result(&base), "the same again");
    let mut idle = Vec::new();
    for (changed, beside) in MODEL {
        let mut before = base.clone();
        before.retain(|(key, _)| !beside.contains(&key.as_str()));
        before.extend(settings(beside.iter().copied().filter(|text| text.contains('='))));
        let expected = if beside.is_empty() { usual.clone() } else { model_result(&before) };
        let mut after = before;
        after.extend(settings([*changed]));
        match (expected, model_result(&after)) {
            (Ok(before), Ok(after)) if before != after => {}
            (Ok(_), Ok(_)) => idle.push((*changed, "changes nothing".to_owned())),
            (Err(error), _) | (_, Err(error)) => idle.push((*changed, error)),
        }
    }
    assert!(idle.is_empty(), "{idle:#?}");
}

#[test]
fn as_many_pages_are_pinned_as_the_profile_says() {
    let small = settings(BASE.iter().copied().chain(["cache.pinned_pages_max=3"]));
    let mut model = Model::new(&profile(&small).unwrap().model(None).unwrap(), 1).unwrap();
    let mut done = Vec::new();
    for page in 0..4 {
        model.prefetch(Nanos::ZERO, page).unwrap();
    }
    model.poll(Nanos(1_000_000_000), &mut done);
    let pinned = (0..4).filter(|page| model.pin(Nanos(1_000_000_000), *page).is_ok()).count();
    assert_eq!(pinned, 3);
}

#[test]
fn a_read_of_the_hosts_memory_is_cut_where_the_profile_says() {
    let packets = |boundary: &str| {
        let set = settings([&*format!("link.read_completion_boundary_bytes={boundary}")]);
        let read = Transaction::dma_read(Kind::Data, (1 << 40) + 64, 512);
        format!("{:?}", Link::pipelined(&profile(&set).unwrap().link, std::iter::repeat_n(read, 8)))
    };
    assert_ne!(packets("64"), packets("128"));
}

/// A number that is drawn: SplitMix64.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// A write of 64 KiB that does not compress.
fn write(device: &mut Device<Vec<u8>>, now: Nanos, number: u64, slba: u64) {
    let unit = |index: u64| UnitMeta {
        slba: Lba(slba + 4 * index),
        blocks: 4,
        raw_bytes: 16_384,
        stored_bytes: 16_384,
        tag: 0,
    };
    let units: Vec<UnitMeta> = (0..4).map(unit).collect();
    let fua = number.is_multiple_of(61);
    let meta = WriteMeta { stream: 0, stream_sequence: number, fua, crossing: Crossing::Raw };
    device.submit_write(now, CommandId(number), meta, &units, &[&[][..]; 4]);
}

fn compute(into: &mut String, processor: &mut Compute, now: Nanos) {
    for engine in Engine::ALL {
        let due = processor.run(now, None, engine, 100_000);
        write!(into, "{due:?} {} ", processor.chunk_bytes(engine)).unwrap();
    }
}

/// Does what the core has due up to `now`, with media that answer at once.
fn settle(device: &mut Device<Vec<u8>>, now: Nanos, done: &mut Vec<Completion>) {
    for _ in 0..100_000 {
        while let Some(op) = device.next_op() {
            let result = match op.kind {
                MediaOpKind::Read { .. } => MediaResult::Read(Box::default()),
                MediaOpKind::Program { .. } => MediaResult::Programmed(None),
                MediaOpKind::Erase { .. } => MediaResult::Erased,
                MediaOpKind::Sync => MediaResult::Synced,
            };
            device.media_done(now, op.id, result);
        }
        match device.next_event() {
            Some(at) if at <= now => device.poll(at, done),
            _ => return,
        }
    }
    panic!("the core never rests at {now:?}");
}

/// All that the core of a device says while it cools, of work that comes fast, slowly and with pauses.
fn core_result(profile: &Profile) -> String {
    let params = DeviceParams { with_data: false, ..DeviceParams::new(profile, BLOCKS) };
    let scaled = profile.scaled(1, 2_000);
    let mut device = Device::create(&scaled, params, vec![0; profile.write_buffer.bytes as usize]).unwrap();
    device.set_temperature_millicelsius(90_000);
    let (mut said, mut draw, mut done, mut now) = (String::new(), Draw(1), Vec::new(), Nanos(0));
    for number in 1..=12_000_u64 {
        let apart_ns = if number % 500 == 0 { 9_000_000 } else { 200_000 + 800_000 * (number / 500 % 4) };
        now = now.saturating_add(apart_ns);
        settle(&mut device, now, &mut done);
        if number % 3 < 2 {
            write(&mut device, now, number, 16 * draw.below(BLOCKS / 16));
        } else {
            device.submit_read(now, CommandId(number), Lba(draw.below(BLOCKS - 8)), 8, Crossing::Raw);
        }
        if number % 40 == 0 {
            compute(&mut said, device.compute(now), now);
            write!(said, "{:?} ", device.sample(now)).unwrap();
        }
    }
    let (stats, all) = (device.stats(), done.len());
    done.retain(|completion| completion.status == Status::SUCCESS);
    assert!(
        done.len() * 10 > all * 9 && stats.flash.superblocks_erased > 0,
        "{} of {all}: {}",
        done.len(),
        stats.to_json()
    );
    write!(said, "{done:?} {}", stats.to_json()).unwrap();
    said
}

/// What the policy of a profile decides on samples that swing between every threshold.
fn decisions(profile: &Profile) -> String {
    let mut policy = policy("wio", &profile.scheduler).unwrap();
    let (mut said, mut draw) = (String::new(), Draw(2));
    let mut sides = [Side::Host, Side::Device, Side::Host, Side::Device].map(|side| (side, 0_u64));
    let (mut millicelsius, mut cpu) = (60_000_i64, 500_i64);
    for epoch in 1..40_000_u64 {
        let at = Nanos(epoch * 10_000_000);
        millicelsius = (millicelsius + draw.below(2_001) as i64 - 1_000).clamp(40_000, 90_000);
        cpu = (cpu + draw.below(101) as i64 - 50).clamp(0, 1_000);
        let frequency_khz = [1_700_000, 2_400_000, 3_000_000][draw.below(3) as usize];
        let actor = |(id, (side, since)): (usize, &(Side, u64))| ActorView {
            id: ActorId(id as u16),
            side: *side,
            class: if id == 3 { Class::LatencySensitive } else { Class::BestEffort },
            movable: true,
            since: Nanos(*since),
            busy_permille: 50 + 20 * id as u32,
            bytes: 1_000_000,
        };
        let host = HostSample {
            cpu_permille: cpu as u32,
            frequency_khz: Some(frequency_khz),
            frequency_nominal_khz: Some(3_000_000),
            power_milliwatts: None,
            ring_depth: 0,
        };
        let temperature_millicelsius = millicelsius as i32;
        let device =
            DeviceSample { temperature_millicelsius, utilisation_permille: 300, speed_permille: 1_000, ring_depth: 0 };
        let sample = Sample { at, host, device, actors: sides.iter().enumerate().map(actor).collect() };
        let decision = policy.decide(&sample);
        for order in &decision.moves {
            sides[usize::from(order.actor.0)] = (order.to, at.0);
        }
        write!(said, "{decision:?} ").unwrap();
    }
    said
}

#[test]
fn every_parameter_of_the_core_and_of_its_scheduler_changes_what_they_say() {
    let result = |set: &[Setting]| {
        let profile = profile(set).unwrap();
        (core_result(&profile), decisions(&profile))
    };
    let base = settings(["geometry.channels=2", "geometry.chips_per_channel=2", "write_buffer.bytes=4194304"]);
    let usual = result(&base);
    assert!(usual == result(&base), "the same again");
    let of = |changed: &str| {
        let mut set = base.clone();
        set.extend(settings([changed]));
        result(&set)
    };
    let idle: Vec<&str> = CORE.iter().copied().filter(|changed| of(changed) == usual).collect();
    assert!(idle.is_empty(), "these change nothing: {idle:?}");
    // The check can fail.
    assert!(of("link.ack_every_packets=4") == usual);
}

#[test]
fn every_parameter_is_in_one_of_the_lists() {
    let model = MODEL.iter().map(|(changed, _)| *changed);
    let listed = model.chain(CORE.iter().copied()).map(|changed| parse_override(changed).unwrap().0);
    let listed: BTreeSet<String> = listed.chain(ELSEWHERE.iter().map(|(key, _)| (*key).to_owned())).collect();
    assert_eq!(listed, keys());
}
