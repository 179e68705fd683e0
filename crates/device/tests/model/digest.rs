//! Digests of long runs: every completion with its time and causes, every count, every die. What only makes the model
//! faster changes none of them. Who changes the model itself puts the printed lines into `digests.txt`, and says in the
//! commit what changed them.

use osier_device::model::{Command, Completed, Model, ModelConfig, Op};
use osier_device::{Nanos, Profile, parse_override};
use osier_flash::page::FillPattern;

use crate::run::{Random, drawn};

const PAGE: u64 = 4096;
/// Commands of each run.
const COMMANDS: u64 = 2_000;
/// Drawn configurations.
const DRAWN: u64 = 32;

/// FNV-1a, by words of 64 bits instead of bytes, each folded, so that its upper bits reach the lower ones.
struct Digest(u64);

impl Digest {
    fn new() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3);
        self.0 ^= self.0 >> 29;
    }

    fn add_end(&mut self, end: &Completed) {
        [end.id, end.arrived.0, end.at.0, end.outcome as u64, end.met as u64]
            .into_iter()
            .for_each(|word| self.add(word));
        end.causes.parts().into_iter().for_each(|word| self.add(word));
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// Pages, block by block: 3 reads to 1 write.
    Pages,
    /// Pages, only written.
    Writes,
    /// Lines, loaded and stored.
    Lines,
    /// All of it, in any length, with trims and flushes.
    Mixed,
}

impl Load {
    fn command(self, random: &mut Random, id: u64, capacity: u64) -> Command {
        let (op, bytes, grain) = match self {
            Load::Pages => ([Op::Read, Op::Read, Op::Read, Op::Write][random.below(4) as usize], 4096, PAGE),
            Load::Writes => (Op::Write, 4096, PAGE),
            Load::Lines => ([Op::Load, Op::Store][random.below(2) as usize], 64, 64),
            Load::Mixed => match random.below(24) {
                0..8 => (Op::Read, 512 << random.below(9), 512),
                8..15 => (Op::Write, 512 << random.below(7), 512),
                15..18 => (Op::Load, 1 + random.below(200) as u32, 8),
                18..22 => (Op::Store, 1 + random.below(200) as u32, 8),
                22 => (Op::Trim, 4 * 4096, PAGE),
                _ => (Op::Flush, 0, PAGE),
            },
        };
        // A tenth of the device takes half of the accesses.
        let range = if random.below(2) == 0 { capacity / 10 } else { capacity };
        let address = random.below(range / grain) * grain;
        Command { id, op, address: address.min(capacity - u64::from(bytes)), bytes, tenant: 0 }
    }
}

/// Runs a model: so many under way where `depth` is above 0, else as they come.
fn run(config: &ModelConfig, load: Load, depth: usize, seed: u64) -> u64 {
    let mut model = Model::new(config, seed).unwrap();
    model.precondition(1000, FillPattern::UniformRandom, seed).unwrap();
    let (mut random, mut digest, mut now, mut next) = (Random::new(seed), Digest::new(), 0, 0);
    let (mut ended, capacity): (Vec<Completed>, _) = (Vec::new(), model.capacity_bytes());
    loop {
        while next < COMMANDS && (depth == 0 || model.under_way() < depth) {
            let command = load.command(&mut random, next, capacity);
            if depth == 0 {
                now += if random.below(40) == 0 { random.below(100_000) } else { random.below(2_000) };
            }
            while model.submit(Nanos(now), command).is_err() {
                now = model.next_event().unwrap().0.max(now);
                model.poll(Nanos(now), &mut ended);
            }
            next += 1;
        }
        let Some(at) = model.next_event() else { break };
        now = at.0.max(now);
        model.poll(Nanos(now), &mut ended);
        ended.drain(..).for_each(|end| digest.add_end(&end));
    }
    let mut stats = model.stats();
    // How often the cache was asked in vain is how the model works, not what it says.
    stats.cache.iter_mut().for_each(|cache| cache.waits = 0);
    format!("{stats:?}").bytes().for_each(|byte| digest.add(byte.into()));
    model.die_busy_ns().chain(model.channel_busy_ns()).for_each(|busy_ns| digest.add(busy_ns));
    digest.0
}

/// A built-in profile with a few dies.
fn small(name: &str, sets: &[&str]) -> ModelConfig {
    let few = ["geometry.channels=2", "geometry.chips_per_channel=2", "geometry.pages_per_block=24"];
    let sets: Vec<_> = few.iter().chain(sets).map(|set| parse_override(set).unwrap()).collect();
    let profile = Profile::parse_with(name, Profile::built_in_text(name).unwrap(), &sets).unwrap();
    let capacities = (0..8).map(|shift| (24 << 20) << shift);
    let model = |bytes| profile.model(Some(bytes)).ok();
    capacities
        .into_iter()
        .find_map(model)
        .unwrap_or_else(|| panic!("{name}: {:?}", profile.model(Some(64 << 20)).err()))
}

fn digests() -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |name: &str, config: &ModelConfig, load: Load, depth: usize| {
        lines.push(format!("{name} {load:?} {depth} {:016x}", run(config, load, depth, lines.len() as u64)));
    };
    let sixth = ["link.generation=6", "link.cxl_flit=\"256\"", "cache.eviction=clock", "cache.prefetch=next-n"];
    for name in Profile::built_in_names() {
        let config = small(name, &[]);
        add(name, &config, Load::Pages, 64);
        add(name, &config, Load::Writes, 200);
        add(name, &config, Load::Lines, 0);
        add(name, &config, Load::Mixed, 0);
    }
    let config = small("cylon", &sixth);
    for load in [Load::Pages, Load::Writes, Load::Lines, Load::Mixed] {
        add("flits", &config, load, 256);
        add("flits", &config, load, 0);
    }
    for seed in 0..DRAWN {
        let mut random = Random::new(seed + 1_000_000);
        let config = std::iter::repeat_with(|| drawn(&mut random)).flatten().next().unwrap();
        add(&format!("drawn-{seed}"), &config, Load::Mixed, [0, 1, 32, 200][seed as usize % 4]);
    }
    lines
}

#[test]
fn long_runs_are_the_same_to_the_nanosecond() {
    let (seen, expected) = (digests(), include_str!("digests.txt"));
    let changed: Vec<&String> = seen.iter().filter(|line| !expected.lines().any(|known| known == *line)).collect();
    assert!(
        changed.is_empty() && expected.lines().count() == seen.len(),
        "changed: {changed:#?}\nall:\n{}",
        seen.join("\n")
    );
}
