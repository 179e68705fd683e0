//! A device of actors alone, for tests and benchmarks: both domains' runners over the same shared objects,
//! and a driver that takes requests through the stages, moving each actor whenever it is told to.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses its part of it")]

use std::path::Path;
use std::sync::Arc;

use osier_actor::compile::CompileError;
use osier_actor::pipeline::{Change, ConfigError};
use osier_actor::prepare::PrepareError;
use osier_actor::{
    Arena, CodeCache, Compiler, Config, Engines, KeyRing, ModuleStore, Parts, Pipelines, Prepared, Registry, Runner,
    Segment, prepare, try_out,
};
use osier_domain::arena::{Buffer, Unit};
use osier_domain::message::{FLAG_QUERY, Opcode, Request};
use osier_domain::migrate::GLOBALS_MAX;
use osier_domain::{
    ActorId, BLOCK_BYTES, Call, Descriptor, Outcome, OwnerState, STREAMS_MAX, Side, SlotId, Status, StreamId, Tag,
};

/// What a pipeline put out: one for each unit, as the device would store it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    pub slba: u64,
    pub raw_bytes: u32,
    pub tag: u32,
    pub bytes: Vec<u8>,
}

/// Shared objects and pipelines; runners are made over them.
pub struct Device {
    pub pipelines: Pipelines,
    pub prepared: Vec<Prepared>,
    pub engines: Engines,
    pub arena: Segment,
    pub memories: Vec<Segment>,
    pub states: Vec<Option<Segment>>,
    pub keys: Arc<KeyRing>,
    pub directory: tempfile::TempDir,
}

#[derive(Debug)]
pub enum Refused {
    Config(ConfigError),
    Prepare(PrepareError),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::Config(e) => e.fmt(f),
            Refused::Prepare(e) => e.fmt(f),
        }
    }
}

pub fn keys() -> Arc<KeyRing> {
    let mut keys = KeyRing::new();
    keys.insert(1, [0x11; 32].into());
    keys.insert(2, [0x22; 32].into());
    Arc::new(keys)
}

/// Reads, checks and compiles the pipelines in `text`, whose modules lie in `directory`.
pub fn load(text: &str, directory: &Path) -> Result<(Pipelines, Vec<Prepared>, Engines), Refused> {
    let store = ModuleStore::new(directory.join("modules"));
    let config = Config::parse("pipelines.toml", text, directory, &store).map_err(Refused::Config)?;
    let mut registry = Registry::new();
    for (_, change) in registry.adopt(&config) {
        assert_eq!(change, Change::Added);
    }
    let registry = Registry::decode(&registry.encode()).unwrap();
    let pipelines = registry.pipelines(&config.tenants).unwrap();
    let engines = Engines::new().unwrap();
    let prepared = prepare(&pipelines, &store, &cache(), &engines, &Compiler::InProcess).map_err(Refused::Prepare)?;
    if let Some((_, error)) = try_out(&pipelines, &prepared, &engines, &keys()).unwrap().pop() {
        return Err(Refused::Prepare(error));
    }
    Ok((pipelines, prepared, engines))
}

impl Device {
    /// A device of the pipelines in `text`; `modules` are files that it may name, as WAT or binary.
    pub fn new(text: &str, modules: &[(&str, &[u8])]) -> Result<Device, Refused> {
        let directory = tempfile::tempdir().unwrap();
        for (name, module) in modules {
            let bytes = wat::parse_bytes(module).map_or_else(|_| module.to_vec(), |b| b.into_owned());
            std::fs::write(directory.path().join(name), bytes).unwrap();
        }
        let (pipelines, prepared, engines) = load(text, directory.path())?;
        let layout = pipelines.layout();
        let arena = Segment::anonymous(c"arena", Arena::object_bytes(&layout)).unwrap();
        let object = |bytes| Segment::anonymous(c"actor", bytes).unwrap();
        let memories = prepared.iter().map(|p| object(p.memory_bytes(&layout))).collect();
        let states = prepared.iter().map(|p| (p.state_bytes(&layout) > 0).then(|| object(p.state_bytes(&layout))));
        let states = states.collect();
        Ok(Device { pipelines, prepared, engines, arena, memories, states, keys: keys(), directory })
    }

    pub fn runner(&self, side: Side) -> Runner {
        self.runner_of(side, 1)
    }

    pub fn runner_of(&self, side: Side, incarnation: u32) -> Runner {
        let parts = Parts {
            side,
            pipelines: &self.pipelines,
            prepared: &self.prepared,
            engines: &self.engines,
            arena: self.arena.clone(),
            memories: self.memories.clone(),
            states: self.states.clone(),
            keys: self.keys.clone(),
            incarnation,
            populate: false,
        };
        Runner::new(parts).unwrap()
    }

    pub fn tag(&self, pipeline: &str) -> Tag {
        Tag(self.pipelines.current(pipeline).unwrap().tag)
    }

    pub fn unit_blocks(&self, pipeline: &str) -> u8 {
        (self.pipelines.current(pipeline).unwrap().definition.unit_kib / 4) as u8
    }
}

/// One cache for all tests of a build: compiling dominates otherwise.
pub fn cache() -> CodeCache {
    let program = std::env::current_exe().unwrap();
    let path = program.parent().unwrap().join("osier-code");
    match CodeCache::open(&path) {
        Ok(cache) => cache,
        Err(CompileError::Cache { problem, .. }) => panic!("{}: {problem}", path.display()),
        Err(other) => panic!("{other}"),
    }
}

/// The device's runner in another process.
pub trait Remote {
    /// Runs a chunk there; `None` if that process is dead.
    fn run(&mut self, call: &Call, owner_word: u64) -> Option<Outcome>;
    fn export(&mut self, actor: ActorId) -> [u64; GLOBALS_MAX];
    fn import(&mut self, actor: ActorId, globals: &[u64; GLOBALS_MAX]);
}

/// What a request ends with when the process that ran it died; no device says this.
pub const DIED: Status = Status(0xdead);

/// Both domains over one device, in one process unless there is a remote one.
pub struct Pair {
    pub remote: Option<Box<dyn Remote>>,
    pub device: Device,
    pub runners: [Runner; 2],
    pub owners: Vec<Side>,
    /// Moves an actor to the other side before a chunk when this says so.
    pub moves: Box<dyn FnMut(&Call) -> bool>,
    pub moved: u64,
    pub budget: u32,
}

impl Pair {
    pub fn new(text: &str, modules: &[(&str, &[u8])]) -> Pair {
        Pair::over(Device::new(text, modules).unwrap_or_else(|e| panic!("{e}")))
    }

    pub fn over(device: Device) -> Pair {
        let mut runners = [device.runner(Side::Host), device.runner(Side::Device)];
        let count = device.pipelines.actors().len();
        for index in 0..count {
            runners[1].reset(ActorId(index as u16), &[0; STREAMS_MAX]);
        }
        let owners = vec![Side::Device; count];
        Pair { remote: None, device, runners, owners, moves: Box::new(|_| false), moved: 0, budget: u32::MAX }
    }

    pub fn owner(&mut self, actor: ActorId) -> &mut Runner {
        &mut self.runners[self.owners[usize::from(actor.0)] as usize]
    }

    pub fn move_actor(&mut self, actor: ActorId) {
        let from = self.owners[usize::from(actor.0)];
        let globals = match (&mut self.remote, from) {
            (Some(remote), Side::Device) => remote.export(actor),
            _ => self.owner(actor).export(actor),
        };
        self.owners[usize::from(actor.0)] = from.other();
        match (&mut self.remote, from) {
            (Some(remote), Side::Host) => remote.import(actor, &globals),
            _ => self.owner(actor).import(actor, &globals),
        }
        self.moved += 1;
    }

    /// One request through all of its stages, chunk by chunk.
    fn stages(&mut self, request: &mut Request) -> Result<(), Status> {
        let direction = request.descriptor.direction();
        let plan = self.device.pipelines.plan().clone();
        while let Some(actor) = plan.stage(request.descriptor.tag, direction, request.visited) {
            request.visited += 1;
            let position = plan.position(request.descriptor.tag, actor).unwrap();
            let query_only = plan.pipeline(request.descriptor.tag).unwrap().query & 1 << position != 0;
            let query = request.descriptor.opcode == Opcode::Read && request.descriptor.flags & FLAG_QUERY != 0;
            if request.descriptor.skips(position) || query_only && !query {
                continue;
            }
            for unit in 0..request.descriptor.units {
                self.unit(request, actor, unit)?;
            }
        }
        Ok(())
    }

    fn unit(&mut self, request: &Request, actor: ActorId, unit: u16) -> Result<(), Status> {
        let mut call = Call {
            actor,
            direction: request.descriptor.direction(),
            slot: request.descriptor.slot,
            unit,
            units: request.descriptor.units,
            resume: false,
            budget_bytes: self.budget,
            tag: request.descriptor.tag,
            stream: request.stream,
            sequence: request.sequence,
        };
        loop {
            if (self.moves)(&call) {
                self.move_actor(actor);
            }
            let side = self.owners[usize::from(actor.0)];
            let word = OwnerState::first(side).encode();
            let outcome = match (&mut self.remote, side) {
                (Some(remote), Side::Device) => remote.run(&call, word).ok_or(DIED)?,
                _ => self.owner(actor).run(&call, word),
            };
            match outcome {
                Outcome::Done { .. } => return Ok(()),
                Outcome::Yielded { bytes } => assert!(bytes > 0),
                Outcome::Failed(status) => return Err(status),
            }
            call.resume = true;
        }
    }

    pub fn write(
        &mut self,
        pipeline: &str,
        flags: u16,
        (stream, sequence): (u16, u64),
        slba: u64,
        data: &[u8],
    ) -> Result<Vec<Extent>, Status> {
        let slot = SlotId((sequence % u64::from(self.device.pipelines.layout().slots)) as u16);
        let unit_blocks = self.device.unit_blocks(pipeline);
        let arena = self.runners[0].arena().clone();
        let blocks = data.len() as u32 / BLOCK_BYTES;
        assert_eq!(data.len() as u32 % BLOCK_BYTES, 0);
        let units = blocks.div_ceil(u32::from(unit_blocks)) as u16;
        let descriptor = Descriptor {
            opcode: Opcode::Write,
            unit_blocks,
            flags,
            tag: self.device.tag(pipeline),
            slot,
            units,
            blocks,
            slba,
            output_bytes: 0,
            state_handle: 0,
        };
        arena.write_raw(slot, 0, data);
        arena.begin(slot);
        for index in 0..units {
            let first = u32::from(index) * u32::from(unit_blocks);
            let count = (blocks - first).min(u32::from(unit_blocks));
            let unit = Unit {
                slba: slba + u64::from(first),
                version: 0,
                bytes: count * BLOCK_BYTES,
                raw_bytes: count * BLOCK_BYTES,
                tag: descriptor.stored_tag().0,
                request_block: first,
                skip_blocks: 0,
                blocks: count as u16,
                buffer: Buffer::Raw,
            };
            arena.set_unit(slot, index, &unit);
        }
        let mut request = Request {
            descriptor,
            stream: StreamId(stream),
            sequence,
            visited: 0,
            status: Status::SUCCESS,
            fetched: false,
            output: 0,
        };
        self.stages(&mut request)?;
        let extents = (0..units).map(|index| {
            let unit = arena.unit(slot, index).unwrap();
            let mut bytes = vec![0; unit.bytes as usize];
            arena.read_unit(slot, index, &unit, 0, &mut bytes);
            Extent { slba: unit.slba, raw_bytes: unit.raw_bytes, tag: unit.tag, bytes }
        });
        Ok(extents.collect())
    }

    /// Reads pieces of extents: extent, blocks left out, blocks wanted.
    pub fn read_pieces(&mut self, flags: u16, pieces: &[(&Extent, u16, u16)]) -> Result<Vec<u8>, Status> {
        let slot = SlotId(0);
        let arena = self.runners[0].arena().clone();
        arena.begin(slot);
        let mut blocks = 0;
        for (index, (extent, skip, wanted)) in pieces.iter().enumerate() {
            let unit = Unit {
                slba: extent.slba,
                version: 7,
                bytes: extent.bytes.len() as u32,
                raw_bytes: extent.raw_bytes,
                tag: extent.tag,
                request_block: blocks,
                skip_blocks: *skip,
                blocks: *wanted,
                buffer: Buffer::A,
            };
            arena.set_unit(slot, index as u16, &unit);
            arena.write_unit(slot, index as u16, Buffer::A, blocks, &extent.bytes);
            blocks += u32::from(*wanted);
        }
        let descriptor = Descriptor {
            opcode: Opcode::Read,
            unit_blocks: 1,
            flags,
            tag: Tag(1),
            slot,
            units: pieces.len() as u16,
            blocks,
            slba: 0,
            output_bytes: arena.layout().raw_bytes(),
            state_handle: 0,
        };
        let mut request = Request {
            descriptor,
            stream: StreamId(15),
            sequence: 1,
            visited: 0,
            status: Status::SUCCESS,
            fetched: true,
            output: 0,
        };
        // Each group is another tag, of which there are as many as units at most.
        while let Some(tag) = self.runners[0].next_tag(&request) {
            assert!(self.runners[0].knows(tag));
            request.descriptor.tag = tag;
            request.visited = 0;
            self.stages(&mut request)?;
        }
        let length = self.runners[0].deliver(&request)?;
        let mut out = vec![0; length as usize];
        arena.read_raw(slot, 0, &mut out);
        Ok(out)
    }

    pub fn read(&mut self, flags: u16, extents: &[Extent]) -> Result<Vec<u8>, Status> {
        let pieces: Vec<_> = extents.iter().map(|e| (e, 0, (e.raw_bytes / BLOCK_BYTES) as u16)).collect();
        self.read_pieces(flags, &pieces)
    }
}

/// A small generator: every run of a test is the same, and a failure prints the seed.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Text as logs have it, padded to whole blocks by spaces; or noise.
    pub fn data(&mut self, blocks: u32, noise: bool) -> Vec<u8> {
        let length = (blocks * BLOCK_BYTES) as usize;
        let mut out = Vec::with_capacity(length + 128);
        while out.len() < length {
            if noise {
                out.extend_from_slice(&self.next().to_le_bytes());
            } else {
                let level = ["info", "warn", "error"][self.below(3) as usize];
                let line = format!(
                    "{{\"time\":{},\"level\":\"{level}\",\"code\":{},\"text\":\"request {} took {} us\"}}\n",
                    1_700_000_000 + self.below(100_000),
                    self.below(600),
                    self.next() % 10_000,
                    self.below(900)
                );
                out.extend_from_slice(line.as_bytes());
            }
        }
        out.truncate(length);
        out
    }
}

pub const FULL: &str = r#"
[[pipeline]]
name = "full"
unit_kib = 16
request_kib_max = 128
slots = 8
[[pipeline.stage]]
actor = "running-hash"
[[pipeline.stage]]
actor = "lz4"
optional = true
[[pipeline.stage]]
actor = "aes256-gcm-siv"
key = 1
[[pipeline.stage]]
actor = "crc32c"
"#;
