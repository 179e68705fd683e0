//! Drawn configurations and workloads, and what has to hold of every run.

use std::collections::BTreeMap;

use osier_device::model::{Bug, Command, Completed, Met, Model, ModelConfig, ModelStats, Op, Outcome};
use osier_device::{Nanos, Profile, parse_override};
use osier_flash::page::FillPattern;

const PAGE: u64 = 4096;

/// Numbers from a seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Cylon with 8 dies on 2 channels and superblocks of 1 MiB, with keys set.
pub fn profile(sets: &[&str]) -> Profile {
    let small = [
        "geometry.channels=2",
        "geometry.chips_per_channel=4",
        "geometry.pages_per_block=32",
        "geometry.blocks_per_plane=512",
    ];
    let sets: Vec<_> = small.iter().chain(sets).map(|set| parse_override(set).unwrap()).collect();
    Profile::parse_with("cylon", Profile::built_in_text("cylon").unwrap(), &sets).unwrap()
}

/// Polls until nothing is under way.
pub fn finish(model: &mut Model, ended: &mut Vec<Completed>) {
    while let Some(at) = model.next_event() {
        model.poll(at, ended);
    }
}

/// Drives a model.
pub struct Run {
    pub random: Random,
    next_id: u64,
}

impl Run {
    pub fn new(seed: u64) -> Run {
        Run { random: Random::new(seed), next_id: 0 }
    }

    /// Keeps so many commands under way until so many have ended.
    pub fn closed_loop(
        &mut self,
        model: &mut Model,
        depth: usize,
        count: usize,
        mut next: impl FnMut(&mut Random) -> (Op, u64, u32),
    ) -> Vec<Completed> {
        let (mut ended, mut now) = (Vec::with_capacity(count), Nanos(0));
        while ended.len() < count {
            while model.under_way() < depth && (self.next_id as usize) < count {
                let (op, address, bytes) = next(&mut self.random);
                self.next_id += 1;
                model.submit(now, Command { id: self.next_id, op, address, bytes, tenant: 0 }).unwrap();
            }
            now = model.next_event().expect("commands are under way").max(now);
            model.poll(now, &mut ended);
        }
        ended
    }
}

/// A configuration, if it can be.
pub fn drawn(random: &mut Random) -> Option<ModelConfig> {
    let flags = |random: &mut Random| random.one_of(&["true", "false"]);
    let log = random.below(4) == 0;
    let mut sets = vec![
        format!("cache.size.permille={}", [5, 20, 100, 500][random.below(4) as usize]),
        format!("cache.ways={}", random.one_of(&["0", "0", "4", "16"])),
        format!("cache.set_index={}", random.one_of(&["modulo", "hash"])),
        format!("cache.write={}", if log { "back" } else { random.one_of(&["back", "back", "through"]) }),
        format!("cache.reserve_frames={}", random.below(3)),
        format!("cache.eviction={}", random.one_of(&["fifo", "lru", "clock", "s3-fifo", "sieve", "arc", "random"])),
        format!("cache.prefetch={}", random.one_of(&["none", "none", "next-n", "stride", "best-offset"])),
        format!("cache.fills_max={}", [1, 4, 64][random.below(3) as usize]),
        format!("cache.block_commands={}", if log { "through" } else { random.one_of(&["through", "around"]) }),
        format!("cache.survives_power_loss={}", random.below(8) == 0),
        format!("timing.reads_first={}", flags(random)),
        format!("timing.cache_read={}", flags(random)),
        format!("timing.channel_bytes_per_second={}", random.one_of(&["1000000000000", "400000000"])),
        format!("ftl.map_cache_pages={}", random.one_of(&["0", "0", "300"])),
        format!("ftl.slots_per_die_max={}", random.one_of(&["1", "2", "8"])),
        format!("ftl.streams={}", random.one_of(&["shared", "separate", "hot-cold"])),
        format!("controller.data_transfer={}", random.one_of(&["prp", "prp-page", "sgl"])),
        format!("link.cxl_flit=\"{}\"", random.one_of(&["none", "68", "256"])),
    ];
    if log {
        sets.push(format!("cache.write_log.lines_per_half={}", [64, 500][random.below(2) as usize]));
    }
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let small = ["geometry.channels=2", "geometry.chips_per_channel=4", "geometry.pages_per_block=32"];
    let sets: Vec<_> = small.iter().chain(&sets).map(|set| parse_override(set).unwrap()).collect();
    let profile = Profile::parse_with("cylon", Profile::built_in_text("cylon").unwrap(), &sets).ok()?;
    let mut config = profile.model(Some(16 << 20)).ok()?;
    if random.below(8) == 0 {
        config.cache = None;
    }
    Some(config)
}

/// What is known from outside.
#[derive(Default)]
struct Known {
    /// Commands under way.
    under_way: BTreeMap<u64, Command>,
    /// Programs that had been asked for when a flush came.
    flushes: BTreeMap<u64, u64>,
}

/// Runs what a seed draws; says what does not hold.
pub fn check_run(seed: u64, bug: Option<Bug>) -> Result<ModelStats, String> {
    let mut random = Random::new(seed);
    let config = loop {
        if let Some(config) = drawn(&mut random) {
            break config;
        }
    };
    let mut model = Model::new(&config, seed).map_err(|error| error.to_string())?;
    if random.below(2) == 0 {
        model.precondition(1000, FillPattern::UniformRandom, seed).map_err(|error| error.to_string())?;
    }
    if let Some(bug) = bug {
        model.plant(bug);
    }
    let hot = [8, 64, 512, 4096][random.below(4) as usize];
    let mix = [Op::Read, Op::Write, Op::Load, Op::Store, Op::Store, Op::Flush, Op::Trim];
    let (mut now, mut known, mut ended) = (0, Known::default(), Vec::new());
    for id in 0..400 {
        now += if random.below(4) == 0 { random.below(200_000) } else { random.below(500) };
        let kinds = if random.below(4) == 0 { 7 } else { 5 };
        let op = mix[random.below(kinds) as usize];
        let page = random.below(hot) * (4096 / hot);
        let (offset, bytes) = match op {
            Op::Load | Op::Store => (random.below(64) * 64, 1 + random.below(128) as u32),
            Op::Flush => (0, 0),
            Op::Trim => (0, 4 * 4096),
            Op::Read | Op::Write => (random.below(2) * 512, [512, 4096, 8192, 20_000][random.below(4) as usize]),
        };
        let address = (page * PAGE + offset).min((16 << 20) - u64::from(bytes));
        let command = Command { id, op, address, bytes, tenant: 0 };
        while model.submit(Nanos(now), command).is_err() {
            now = model.next_event().ok_or("nothing is under way, and the model is full")?.0.max(now);
            model.poll(Nanos(now), &mut ended);
        }
        known.under_way.insert(id, command);
        if op == Op::Flush {
            known.flushes.insert(id, programs(&model.stats()));
        }
        // Step by step, so that each end is looked at when it happens.
        while let Some(at) = model.next_event().filter(|at| at.0 <= now) {
            model.poll(at, &mut ended);
            check_flushed(&model, &config, &known, &ended)?;
        }
    }
    while let Some(at) = model.next_event() {
        model.poll(at, &mut ended);
        check_flushed(&model, &config, &known, &ended)?;
    }
    now = ended.iter().map(|end| end.at.0).max().unwrap_or(now).max(now);
    check_ended(&config, &mut known, &mut ended)?;
    if !known.under_way.is_empty() {
        return Err(format!("{} commands never ended", known.under_way.len()));
    }
    check_end(&mut model, &config, now)
}

/// Programs that were asked for.
fn programs(stats: &ModelStats) -> u64 {
    let counts = &stats.counts;
    counts.pages_drained + counts.pages_written + counts.pages_flushed + counts.pages_compacted
}

/// When a flush ends, the flash has every program that had been asked for when it came.
fn check_flushed(model: &Model, config: &ModelConfig, known: &Known, ended: &[Completed]) -> Result<(), String> {
    let asked = ended.last().and_then(|end| known.flushes.get(&end.id));
    let survives = config.cache.as_ref().is_some_and(|cache| cache.survives_power_loss);
    let Some(asked) = asked.filter(|_| !survives) else { return Ok(()) };
    let taken = model.stats().flash.units_written;
    if taken < *asked {
        return Err(format!("a flush ended with {taken} of {asked} programs in the flash"));
    }
    Ok(())
}

fn check_ended(config: &ModelConfig, known: &mut Known, ended: &mut Vec<Completed>) -> Result<(), String> {
    for end in ended.drain(..) {
        let Some(command) = known.under_way.remove(&end.id) else { return Err(format!("{} ended twice", end.id)) };
        let latency = end.at.0 - end.arrived.0;
        if end.causes.total() != latency {
            return Err(format!(
                "{command:?}: causes of {latency} ns add up to {}: {:?}",
                end.causes.total(),
                end.causes
            ));
        }
        if end.outcome != Outcome::Ok {
            return Err(format!("{command:?} ended as {:?}", end.outcome));
        }
        // Nothing is there before it crossed both ways; through a window a store is not answered.
        let ways = if command.op == Op::Store && config.link.cxl_flit == osier_link::CxlFlit::None { 1 } else { 2 };
        if end.causes.link < ways * config.link.one_way_ns {
            return Err(format!("{command:?} was faster than the link: {:?}", end.causes));
        }
        let block = !matches!(command.op, Op::Load | Op::Store);
        // Doorbell, fetch there and back, and the completion.
        if block && end.causes.link < 4 * config.link.one_way_ns + config.link.host_read_ns {
            return Err(format!("{command:?} was faster than its doorbell, fetch and completion: {:?}", end.causes));
        }
        if end.met == Met::Merged && config.cache.is_some() && command.op == Op::Load {
            let waited = end.causes.total() - end.causes.link - end.causes.controller - end.causes.dram;
            if waited == 0 {
                return Err(format!("{command:?} was merged and waited for nothing: {:?}", end.causes));
            }
        }
    }
    Ok(())
}

/// What all that was counted says together, and that a flush leaves nothing to write.
fn check_end(model: &mut Model, config: &ModelConfig, now: u64) -> Result<ModelStats, String> {
    let stats = model.stats();
    let (written, map) = (stats.flash.units_written, stats.flash.map_units_written);
    if written != programs(&stats) {
        return Err(format!("{written} units written ({map} of the map), and asked for: {:?}", stats.counts));
    }
    if let Some(cache) = &stats.cache {
        let left = stats.counts.pages_drained + stats.counts.pages_dropped;
        if cache.evicted_dirty != left {
            return Err(format!("{} pages left dirty, {left} were programmed or trimmed", cache.evicted_dirty));
        }
    }
    let Some(cache) = config.cache.as_ref().filter(|cache| !cache.survives_power_loss) else { return Ok(stats) };
    let mut ended = Vec::new();
    // A store that the flush has to cover, and then nothing is dirty any more.
    for (id, op, bytes) in [(1, Op::Store, 64), (2, Op::Flush, 0)] {
        let command = Command { id, op, address: 0, bytes, tenant: 0 };
        model.submit(Nanos(now + id * 10_000_000), command).map_err(|refused| refused.to_string())?;
        finish(model, &mut ended);
    }
    let flushed = model.stats();
    let below = |stats: &ModelStats| programs(stats) + stats.counts.pages_dropped;
    if below(&flushed) == below(&stats) {
        return Err("a store and a flush wrote nothing below".to_owned());
    }
    if cache.cache.write_log.is_some() {
        return Ok(flushed);
    }
    for page in 0..4096 {
        let _ = model.evict(Nanos(now + 30_000_000), page);
    }
    finish(model, &mut ended);
    let evicted = model.stats();
    if evicted.counts.pages_drained != flushed.counts.pages_drained {
        return Err("pages were dirty after a flush".to_owned());
    }
    Ok(evicted)
}
