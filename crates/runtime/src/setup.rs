//! The pieces of one device, as each process finds them: the image, the objects of the shared region, the
//! profile, the pipelines.
//!
//! | object | content |
//! | --- | --- |
//! | `control`, `moves` | words and the log of migrations; fresh at each start |
//! | `ring.h2d`, `ring.d2h`, `bells` | messages; emptied at each epoch |
//! | `owners` | owner word and checkpoint of each actor |
//! | `arena` | requests in flight |
//! | `buffer` | the device's write buffer: completed data |
//! | `memory.N`, `state.N` | linear memory and shared state of actor N |
//! | `witness` | of a soak: what its client knows to be written |

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use osier_actor::module::write_whole;
use osier_actor::{
    Arena, CodeCache, Compiler, Config, Engines, KeyRing, Limits, ModuleStore, Parts, Pipelines, Prepared as Code,
    Registry, Runner, Segment, prepare, try_out,
};
use osier_device::record::{Origin, Recorded, Tape};
use osier_device::{Device, DeviceParams, Profile};
use osier_domain::arena::Layout;
use osier_domain::migrate::{self, OwnerState, Phase};
use osier_domain::{ActorId, Checkpoint, Domain, Nanos, OwnerRecord, STREAMS_MAX, Side, Tag};
use osier_image::{Image, Media, MediaKind, Superblock, inspect};
use osier_pmr::{Object, ObjectKind, PmrError, Region, SharedBytes, WaitPolicy, Waiter};
use osier_sched::Class;
use zeroize::Zeroizing;

use crate::board::{Board, board_bytes};
use crate::bootstrap::{Bootstrap, Job, Options, Placement};
use crate::control::{ActorStats, CONTROL_BYTES, Control, Gauge, MOVES_BYTES, STREAM_INFLIGHT_MAX};
use crate::error::RuntimeError;
use crate::link::{self, Link};
use crate::machine::Machine;
use crate::record::{Record, owners_bytes};
use crate::recording::FileSink;
use crate::traffic::{TRAFFIC_BYTES, Traffic};
use crate::workload::{SoakSpec, Witness};

/// Where an image keeps its pipelines as they were written.
pub fn pipelines_path(image: &Path) -> PathBuf {
    image.join("pipelines.toml")
}

/// Where an image keeps every pipeline that it ever had, by the tags of extents.
pub fn registry_path(image: &Path) -> PathBuf {
    image.join("registry.toml")
}

/// Where an image keeps the modules that are not built in.
pub fn modules_path(image: &Path) -> PathBuf {
    image.join("modules")
}

/// Where an image keeps machine code, for this user alone.
fn code_path(image: &Path) -> PathBuf {
    image.join("code")
}

/// The write buffer's bytes in the shared region. Only the device's process touches them.
pub struct BufferBytes(Object);

impl osier_device::Bytes for BufferBytes {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) {
        self.0.bytes().read(offset, out);
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.0.bytes().write(offset, bytes);
    }
}

/// What the flash layer is told of a media error.
pub fn media_error(error: &osier_image::MediaError) -> osier_flash::MediaError {
    if error.is_no_space() { osier_flash::MediaError::NoSpace } else { osier_flash::MediaError::Io }
}

/// What a tenant may use, and what its actors used since their domains began. Pairs are of host and device.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct TenantUsage {
    /// Its name.
    pub tenant: String,
    /// Thousandths of one processor that it gets in each domain, if it is limited.
    pub cpu_permille: Option<u32>,
    /// How many actors it has.
    pub actors: u64,
    /// Bytes of their memories and shared state in the region.
    pub memory_bytes: u64,
    /// Time: of the processor on the host, of the model on the device.
    pub busy_ns: [u64; 2],
    /// Input bytes.
    pub bytes: [u64; 2],
    /// Calls.
    pub calls: u64,
    /// Calls that failed their request.
    pub failed: u64,
}

/// What every process of a device has.
pub struct Setup {
    /// The shared words.
    pub control: Control,
    /// The device's description, scaled as asked.
    pub profile: Profile,
    /// The pipelines.
    pub pipelines: Pipelines,
    /// Where each actor begins.
    pub defaults: Vec<Side>,
    /// What the image is.
    pub superblock: Superblock,
    image: PathBuf,
    region: Region,
    owners: Object,
    rings: [Object; 2],
    bells: Object,
    options: Options,
    incarnation: u64,
    keys: Zeroizing<Vec<u8>>,
    profile_text: String,
}

impl Setup {
    /// The pieces, as a domain's process finds them.
    pub fn open(bootstrap: &Bootstrap) -> Result<Setup, RuntimeError> {
        let found = inspect(&bootstrap.image)?;
        let profile_text = found.profile_text()?;
        let region = Region::open(&osier_image::Layout::new(&bootstrap.image).pmr())?;
        let mut setup = Setup::assemble(&bootstrap.image, found.superblock, &profile_text, region, &bootstrap.options)?;
        setup.incarnation = bootstrap.incarnation;
        setup.keys = bootstrap.keys()?;
        Ok(setup)
    }

    fn assemble(
        image: &Path,
        superblock: Superblock,
        profile_text: &str,
        region: Region,
        options: &Options,
    ) -> Result<Setup, RuntimeError> {
        let profile = Profile::parse(&superblock.profile_name, profile_text)?
            .scaled(options.rate_divisor, options.thermal_time_scale);
        let pipelines = read_pipelines(image)?;
        let object = |name: &str| region.find(name);
        Ok(Setup {
            control: Control::new(object("control")?, object("moves")?),
            owners: object("owners")?,
            rings: [object("ring.h2d")?, object("ring.d2h")?],
            bells: object("bells")?,
            defaults: defaults(&pipelines, options.placement),
            profile,
            pipelines,
            superblock,
            image: image.to_owned(),
            region,
            options: options.clone(),
            incarnation: 0,
            keys: Zeroizing::default(),
            profile_text: profile_text.to_owned(),
        })
    }

    /// A named object.
    pub fn object(&self, name: &str) -> Result<Object, RuntimeError> {
        Ok(self.region.find(name)?)
    }

    /// What the shared region outlives, in words.
    pub fn survival(&self) -> Result<String, RuntimeError> {
        if !self.media_outlive_their_process() {
            return Ok("lasts as long as the device's process: its media are memory, or none".to_owned());
        }
        Ok(self.region.survival()?.to_string())
    }

    /// What clients asked for so far.
    pub fn traffic(&self) -> Result<Traffic, RuntimeError> {
        Ok(Traffic::new(self.object("traffic")?))
    }

    /// The owner record of an actor.
    pub fn record(&self, actor: ActorId) -> Record {
        Record::new(&self.owners, actor)
    }

    /// Who serves an actor; `None` while it is on its way.
    pub fn owner(&self, actor: ActorId) -> Option<Side> {
        migrate::state(&self.record(actor)).filter(|s| s.phase == Phase::Active).map(|s| s.owner)
    }

    /// How the scheduler is to treat an actor.
    pub fn class(&self, actor: ActorId) -> Class {
        match self.pipelines.actor(actor).stage.class {
            osier_actor::pipeline::Class::LatencySensitive => Class::LatencySensitive,
            osier_actor::pipeline::Class::BestEffort => Class::BestEffort,
        }
    }

    /// Whether an actor may be moved: its pipeline does not fix where it is.
    pub fn movable(&self, actor: ActorId) -> bool {
        self.pipelines.actor(actor).stage.placement == osier_actor::pipeline::Placement::Any
    }

    /// What each tenant may use and used so far, in the order of their names.
    pub fn tenants(&self) -> Vec<TenantUsage> {
        let mut tenants: BTreeMap<&str, TenantUsage> = BTreeMap::new();
        for (index, actor) in self.pipelines.actors().iter().enumerate() {
            let tenant = tenants.entry(&actor.tenant).or_insert_with(|| TenantUsage {
                tenant: actor.tenant.clone(),
                cpu_permille: actor.limits.cpu_permille,
                ..TenantUsage::default()
            });
            let objects = [memory_name(index), state_name(index)];
            tenant.memory_bytes +=
                objects.iter().filter_map(|name| self.region.find(name).ok()).map(|o| o.len()).sum::<u64>();
            tenant.actors += 1;
            for side in [Side::Host, Side::Device] {
                let stats = self.control.actor_stats(actor.id, side);
                tenant.busy_ns[side as usize] += stats.busy_ns;
                tenant.bytes[side as usize] += stats.bytes;
                tenant.calls += stats.calls;
                tenant.failed += stats.failed;
            }
        }
        tenants.into_values().collect()
    }

    /// From now on this process ends with an error, should it touch what somebody has cut off the region.
    fn prepare_for_cut(&self) -> Result<(), RuntimeError> {
        let Some(say) = ON_CUT_REGION.get() else { return Ok(()) };
        let path = osier_image::Layout::new(&self.image).pmr();
        // A length that no file has, to find where the length stands.
        let unknown = u64::MAX;
        let (text, code) = say(&RuntimeError::RegionCut { path, stated: self.region.region_bytes(), found: unknown });
        let (before, after) = text.split_once(&unknown.to_string()).unwrap_or((&text, ""));
        Ok(self.region.end_if_cut(before, after, code)?)
    }

    /// Refuses a region whose file somebody made shorter: who touches what is gone dies of SIGBUS.
    pub fn check_region(&self) -> Result<(), RuntimeError> {
        let stated = self.region.region_bytes();
        let length = self.region.as_fd().try_clone_to_owned().and_then(|fd| std::fs::File::from(fd).metadata());
        match length.map(|found| found.len()) {
            Ok(found) if found < stated => {
                let path = osier_image::Layout::new(&self.image).pmr();
                Err(RuntimeError::RegionCut { path, stated, found })
            }
            _ => Ok(()),
        }
    }

    /// Bytes that a domain's process needs for itself (`resident.rs` says what is counted).
    pub fn resident_bytes(&self, side: Side) -> Option<u64> {
        let layout = osier_image::Layout::new(&self.image);
        let left_out = [layout.pmr(), layout.media()];
        // The kernel shows paths without links in them.
        let [image, pmr, media] =
            [&self.image, &left_out[0], &left_out[1]].map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()));
        crate::resident::resident_bytes(self.control.pid(side), &image, &[&pmr, &media])
    }

    /// Blocks of a unit of each pipeline.
    pub fn units_of_pipelines(&self) -> Vec<(Tag, u8)> {
        let of = |p: &osier_domain::Pipeline| {
            let entry = self.pipelines.of_tag(p.tag)?;
            Some((p.tag, (entry.definition.unit_bytes() / osier_flash::BLOCK_BYTES) as u8))
        };
        self.pipelines.plan().pipelines().iter().filter_map(of).collect()
    }

    /// Bytes of a full unit of an actor's pipeline.
    pub fn unit_bytes(&self, actor: ActorId) -> u32 {
        self.pipelines.actor(actor).unit_bytes
    }

    /// A domain's state machine; [`Domain::recover`] puts it to work.
    pub fn domain(&self, side: Side) -> Domain {
        Domain::new(side, self.pipelines.plan().clone(), &self.defaults, &[0; STREAMS_MAX])
    }

    /// A domain's ends of the rings.
    pub fn link(&self, side: Side, epoch: u64) -> Result<Link, RuntimeError> {
        let made_for = (self.pipelines.layout().slots, self.pipelines.actors().len());
        Ok(Link::open(side, &self.rings, &self.bells, epoch, made_for)?)
    }

    /// Empties the rings.
    pub fn format_links(&self, epoch: u64) -> Result<(), RuntimeError> {
        Ok(link::format(&self.rings, &self.bells, epoch)?)
    }

    /// The actors of a domain, with their memories in the shared region.
    pub fn machine(&self, side: Side) -> Result<Machine, RuntimeError> {
        let records: Vec<Record> = (0..self.defaults.len() as u16).map(|a| self.record(ActorId(a))).collect();
        let engines = Engines::new()?;
        let cache = CodeCache::open(code_path(&self.image))?;
        let store = ModuleStore::new(modules_path(&self.image));
        // The supervisor compiled every module before it started this process, in which there is no compiler.
        let code = prepare(&self.pipelines, &store, &cache, &engines, &Compiler::CacheOnly)?;
        let runner = Runner::new(self.parts(side, &code, &engines)?)?;
        let mut machine = Machine::new(side, runner, records, self.control.clone());
        for (engine, actor) in machine.engines.iter_mut().zip(self.pipelines.actors()) {
            *engine = osier_device::Engine::by_name(&actor.stage.engine).unwrap_or(osier_device::Engine::Wasm);
        }
        machine.drain_max_ns = self.profile.compute.chunk_ns_max;
        machine.plan_crash(self.options.crash);
        Ok(machine)
    }

    fn parts<'a>(&'a self, side: Side, code: &'a [Code], engines: &'a Engines) -> Result<Parts<'a>, RuntimeError> {
        let layout = self.pipelines.layout();
        let mut memories = Vec::with_capacity(code.len());
        let mut states = Vec::with_capacity(code.len());
        for (index, each) in code.iter().enumerate() {
            memories.push(self.segment(&memory_name(index))?);
            let stateful = each.state_bytes(&layout) > 0;
            states.push(if stateful { Some(self.segment(&state_name(index))?) } else { None });
        }
        Ok(Parts {
            side,
            pipelines: &self.pipelines,
            prepared: code,
            engines,
            arena: self.segment("arena")?,
            memories,
            states,
            keys: Arc::new(KeyRing::from_bytes(&self.keys).map_err(|e| RuntimeError::Option(e.to_string()))?),
            incarnation: self.incarnation as u32,
            populate: true,
        })
    }

    /// An object as a range of the region's file, for mappings at addresses of our choosing.
    fn segment(&self, name: &str) -> Result<Segment, RuntimeError> {
        let object = self.region.find(name)?;
        let fd = self.region.as_fd().try_clone_to_owned();
        let fd = fd.map_err(|source| RuntimeError::System { what: "duplicate the region's descriptor", source })?;
        Ok(Segment::new(Arc::new(fd), object.offset(), object.len()))
    }

    /// The media of the image.
    pub fn media(&self) -> Result<Arc<dyn Media>, RuntimeError> {
        Ok(inspect(&self.image)?.open_media()?)
    }

    /// The device core, recovered from what the media and the write buffer hold. Its inputs are recorded if somebody
    /// wants that; `goes_on` says that a former process of this session has begun the recording.
    pub fn device(&self, media: &dyn Media, goes_on: bool) -> Result<Recorded<BufferBytes>, RuntimeError> {
        let params = self.device_params();
        let buffer = self.object("buffer")?;
        buffer.prefault()?;
        let buffer = BufferBytes(buffer);
        let mut read = |address: u64, out: &mut [u8]| media.read(address, out).map_err(|e| media_error(&e));
        let (device, report) = match self.tape(goes_on)? {
            Some((origin, tape)) => Recorded::recover(&self.profile, params, buffer, &mut read, &origin, tape)?,
            None => {
                let (device, report) = Device::recover(&self.profile, params, buffer, &mut read)?;
                (device.into(), report)
            }
        };
        tracing::debug!(?report, "the device core is recovered");
        Ok(device)
    }

    /// The recording of the core, if there is to be one. A file that cannot be gone on with does not keep a device
    /// down that is to come up again.
    fn tape(&self, goes_on: bool) -> Result<Option<(Origin, Tape)>, RuntimeError> {
        let Some(to) = &self.options.record_core else { return Ok(None) };
        let (sink, life) = match FileSink::open(to, goes_on) {
            Ok(opened) => opened,
            Err(error) if goes_on => {
                tracing::error!(%error, "the device runs on without a recording of its core");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let origin = Origin {
            profile_name: self.superblock.profile_name.clone(),
            profile_text: self.profile_text.clone(),
            rate_divisor: self.options.rate_divisor,
            thermal_time_scale: self.options.thermal_time_scale,
            life,
        };
        Ok(Some((origin, Tape::new(life, Box::new(sink)))))
    }

    /// Formats the write buffer of a device that never was up, or whose media forget everything with their
    /// process.
    fn format_buffer_if_fresh(&self) -> Result<(), RuntimeError> {
        let object = self.object("buffer")?;
        let mut head = [0u8; 64];
        object.bytes().read(0, &mut head);
        // A log's header is written last, so that one that was cut short is blank too.
        if head == [0; 64] || !self.media_outlive_their_process() {
            Device::create(&self.profile, self.device_params(), BufferBytes(object))?;
        }
        Ok(())
    }

    /// Whether an operation of the media may wait for a disk.
    pub fn media_may_wait(&self) -> bool {
        matches!(self.superblock.media, MediaKind::File | MediaKind::Block(_))
    }

    /// Whether what was programmed is still there when the device's process is not.
    pub fn media_outlive_their_process(&self) -> bool {
        matches!(self.superblock.media, MediaKind::File | MediaKind::Block(_))
    }

    /// Whether what is written is kept anywhere at all.
    pub(crate) fn keeps_bytes(&self) -> bool {
        self.device_params().with_data
    }

    fn device_params(&self) -> DeviceParams {
        device_params(&self.superblock, &self.profile)
    }

    /// Publishes the device's gauges.
    pub fn publish(&self, now: Nanos, device: &mut Recorded<BufferBytes>, domain: &Domain, runner: &Runner) {
        let control = &self.control;
        let sample = device.sample(now);
        control.set_temperature_millicelsius(i64::from(sample.temperature_millicelsius));
        control.set_gauge(Gauge::Utilisation, u64::from(sample.compute_permille));
        control.set_gauge(Gauge::Speed, u64::from(sample.speed_permille));
        control.set_gauge(Gauge::Pending, domain.pending() as u64);
        for actor in 0..self.defaults.len() as u16 {
            let id = ActorId(actor);
            let usage = runner.usage(id);
            let stats = ActorStats {
                bytes: usage.bytes_in,
                busy_ns: domain.stats(id).busy,
                calls: usage.calls,
                failed: usage.failed(),
            };
            control.set_actor_stats(id, Side::Device, &stats);
        }
        let stats = device.stats();
        control.set_gauge(Gauge::HostBytes, stats.raw_bytes_written);
        control.set_gauge(Gauge::StoredBytes, stats.stored_bytes_written);
    }

    /// What the device tells of itself.
    pub fn board(&self) -> Result<Board, RuntimeError> {
        Ok(Board::new(self.object("board")?, self.profile.geometry().dies() as usize))
    }
}

/// What the core of an image's device is made with.
pub fn device_params(superblock: &Superblock, profile: &Profile) -> DeviceParams {
    let mut salt = [0; 4];
    salt.copy_from_slice(&superblock.uuid.0[..4]);
    let with_data = superblock.media != MediaKind::None;
    let params = DeviceParams::new(profile, superblock.logical_blocks);
    DeviceParams { with_data, streams: STREAMS_MAX as u16, salt: u32::from_le_bytes(salt), ..params }
}

/// Says what a program prints for an error and with which code it ends.
type LastWords = Box<dyn Fn(&RuntimeError) -> (String, i32) + Send + Sync>;

static ON_CUT_REGION: OnceLock<LastWords> = OnceLock::new();

/// How this program ends when it touches what somebody has cut off the region of a device that it has up, or looks at:
/// what it prints to standard error, and its exit code. Without it, it dies of SIGBUS, as a domain does, whose
/// supervisor says why.
pub fn on_cut_region(say: impl Fn(&RuntimeError) -> (String, i32) + Send + Sync + 'static) {
    // The first stays: a program has one way to end.
    let _ = ON_CUT_REGION.set(Box::new(say));
}

/// A look at a device that somebody else has up.
pub struct Attached {
    /// Its pieces.
    pub setup: Setup,
}

impl Attached {
    /// Attaches to a running device, without owning it.
    pub fn open(image: &Path) -> Result<Attached, RuntimeError> {
        let found = inspect(image)?;
        if !found.is_owned() {
            return Err(RuntimeError::NotRunning { path: image.to_owned() });
        }
        let profile_text = found.profile_text()?;
        let region = Region::open(&osier_image::Layout::new(image).pmr())?;
        let setup = Setup::assemble(image, found.superblock, &profile_text, region, &Options::default())?;
        setup.prepare_for_cut()?;
        Ok(Attached { setup })
    }
}

/// The pipelines that an image had when it was last brought up.
pub fn read_pipelines(image: &Path) -> Result<Pipelines, RuntimeError> {
    let (registry, config) = read_registry(image)?;
    pipelines_of(image, &registry, &config)
}

fn pipelines_of(image: &Path, registry: &Registry, config: &Config) -> Result<Pipelines, RuntimeError> {
    let refused = |source| RuntimeError::Registry { path: registry_path(image), source };
    registry.pipelines(&config.tenants).map_err(refused)
}

fn read_registry(image: &Path) -> Result<(Registry, Config), RuntimeError> {
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).map_err(|source| RuntimeError::File {
            what: "read the image's pipelines",
            path,
            source,
        })
    };
    let path = pipelines_path(image);
    let text = read(path.clone())?;
    let store = ModuleStore::new(modules_path(image));
    let config = Config::parse(&path.display().to_string(), &text, image, &store)?;
    let path = registry_path(image);
    let registry = Registry::decode(&read(path.clone())?);
    Ok((registry.map_err(|source| RuntimeError::Registry { path, source })?, config))
}

/// What the registry and its pipelines will be with what somebody changed in `pipelines.toml`.
fn adopt_changes(image: &Path) -> Result<(Registry, Pipelines), RuntimeError> {
    let (mut registry, config) = read_registry(image)?;
    for (name, change) in registry.adopt(&config) {
        tracing::debug!(pipeline = %name, ?change, "pipeline taken from pipelines.toml");
    }
    let pipelines = pipelines_of(image, &registry, &config)?;
    Ok((registry, pipelines))
}

/// Puts the registry into the image, if it is another than the one there.
fn write_registry(image: &Path, registry: &Registry) -> Result<(), RuntimeError> {
    let (path, text) = (registry_path(image), registry.encode());
    if std::fs::read(&path).is_ok_and(|present| present == text.as_bytes()) {
        return Ok(());
    }
    write_whole(&path, text.as_bytes()).map_err(|source| RuntimeError::File {
        what: "write the image's pipelines",
        path,
        source,
    })
}

fn defaults(pipelines: &Pipelines, placement: Placement) -> Vec<Side> {
    let side = |actor: &osier_actor::pipeline::ActorDef| match (actor.stage.placement, placement) {
        (osier_actor::pipeline::Placement::Host, _) => Side::Host,
        (osier_actor::pipeline::Placement::Device, _) => Side::Device,
        (osier_actor::pipeline::Placement::Any, Placement::Host) => Side::Host,
        (osier_actor::pipeline::Placement::Any, Placement::Device | Placement::Adaptive) => Side::Device,
    };
    pipelines.actors().iter().map(side).collect()
}

/// What the supervisor holds: the image's lock and the pieces.
pub struct Prepared {
    /// The pieces.
    pub setup: Setup,
    image: Image,
    keys: Zeroizing<Vec<u8>>,
}

impl Prepared {
    /// Takes the image's lock, makes or opens the shared region and every object in it.
    pub fn open(
        path: &Path,
        options: &Options,
        job: &Job,
        program: &(PathBuf, Vec<OsString>),
    ) -> Result<Prepared, RuntimeError> {
        let check = |name: &str, text: &str| Profile::parse(name, text).map(|_| ()).map_err(|e| e.to_string());
        let image = Image::open(path, &check)?;
        if matches!(image.superblock().media, MediaKind::File | MediaKind::Block(_)) {
            // The device's process opens them; what is wrong with them is said here, once.
            image.open_media()?;
        }
        let region_path = image.layout().pmr();
        let region = Region::open(&region_path)?;
        let profile = Profile::parse(&image.superblock().profile_name, image.profile_text())?;
        check_request(options, job, &profile)?;
        let (registry, pipelines) = adopt_changes(path)?;
        let was_up = image.superblock().incarnation.0 > 0;
        let used = if was_up { crate::keys::numbers(&read_pipelines(path)?) } else { BTreeSet::new() };
        let keys = crate::keys::load(&image.layout().keys(), &pipelines, &used)?;
        let code = compile(path, &pipelines, &keys, program)?;
        // When its keys are made and its actors come up: an entry stays for good.
        write_registry(path, &registry)?;
        if let Job::Soak(spec) = job {
            check_soak(spec, &pipelines.layout(), image.superblock().logical_blocks)?;
        }
        ensure_objects(&region, &profile, &pipelines, &code, job)?;
        let setup = Setup::assemble(image.path(), image.superblock().clone(), image.profile_text(), region, options)?;
        setup.prepare_for_cut()?;
        setup.format_buffer_if_fresh()?;
        setup.control.set_placement(options.placement);
        let prepared = Prepared { setup, image, keys };
        prepared.place_actors(options.placement);
        Ok(prepared)
    }

    /// Fixed placement is a promise: actors that another session left elsewhere are put where it says.
    fn place_actors(&self, placement: Placement) {
        for (index, side) in self.setup.defaults.iter().enumerate() {
            let record = self.setup.record(ActorId(index as u16));
            let word = record.load();
            let state = OwnerState::decode(word);
            self.tell_of_record(ActorId(index as u16), word, state);
            let movable = self.setup.movable(ActorId(index as u16));
            let kept = placement == Placement::Adaptive && state.is_some_and(|s| movable || s.owner == *side);
            if !kept {
                let generation = state.map_or(1, |s| s.generation + 1);
                let placed = OwnerState { generation, owner: *side, phase: Phase::Active };
                // Nobody else is up: the image's lock is held and no domain is started yet.
                record.compare_exchange(word, placed.encode());
            }
        }
    }

    /// Says what is wrong with an owner record. Nothing rests on it: an actor without an owner begins where it is
    /// placed, and one in mid-migration goes back to its source and begins from what was committed last.
    fn tell_of_record(&self, actor: ActorId, word: u64, state: Option<OwnerState>) {
        let label = self.setup.pipelines.actor(actor).label();
        match state {
            None if word != 0 => tracing::warn!(actor = %label, "its owner word was damaged; it is placed anew"),
            Some(OwnerState { phase: Phase::Ready { .. }, .. }) => {
                if let Err(error) = Checkpoint::decode(&self.setup.record(actor).read_checkpoint()) {
                    tracing::warn!(actor = %label, %error, "a migration that was under way is taken back");
                }
            }
            _ => {}
        }
    }

    /// A number that no start before had, safe on disk.
    pub fn next_incarnation(&mut self) -> Result<u64, RuntimeError> {
        Ok(self.image.begin_incarnation()?.0)
    }

    /// The image's keys, for a pipe to a domain.
    pub fn keys(&self) -> &[u8] {
        &self.keys
    }

    /// Ends the session: the region is synced as far as its backing can be.
    pub fn close(&self) -> Result<(), RuntimeError> {
        Ok(self.setup.region.sync()?)
    }
}

/// Refuses a soak that does not fit the device.
fn check_soak(spec: &SoakSpec, layout: &Layout, capacity: u64) -> Result<(), RuntimeError> {
    let most = u64::from(layout.slots).min(STREAM_INFLIGHT_MAX);
    if spec.depth as u64 > most {
        let text = format!(
            "{} requests in flight are more than this device takes ({most}: its pipelines have {} slots, and one stream \
             has {STREAM_INFLIGHT_MAX} requests in flight at most); ask for fewer with --depth, or raise slots in its \
             pipelines.toml",
            spec.depth, layout.slots
        );
        return Err(RuntimeError::Option(text));
    }
    let most = layout.request_blocks_max;
    if spec.request_blocks > most {
        let text = format!(
            "requests of {} blocks are longer than the pipelines of this device take ({most}); ask for fewer, or raise \
             request_kib_max in its pipelines.toml",
            spec.request_blocks
        );
        return Err(RuntimeError::Option(text));
    }
    let wanted = spec.groups.saturating_mul(u64::from(spec.request_blocks));
    if wanted > capacity.min(u64::from(u32::MAX)) {
        let text = format!(
            "{} groups of {} blocks are more than the device's {capacity} blocks; ask for fewer groups",
            spec.groups, spec.request_blocks
        );
        return Err(RuntimeError::Option(text));
    }
    Ok(())
}

/// Refuses what a domain would refuse, before one is started.
fn check_request(options: &Options, job: &Job, profile: &Profile) -> Result<(), RuntimeError> {
    let refused = |error: &dyn std::fmt::Display| RuntimeError::Option(error.to_string());
    osier_sched::policy(&options.policy, &profile.scheduler).map_err(|error| refused(&error))?;
    for wait in [&options.host_wait, &options.device_wait] {
        let policy: WaitPolicy = wait.parse().map_err(|error| refused(&error))?;
        Waiter::new(policy).map_err(|error| refused(&error))?;
    }
    if let Job::Files(spec) = job {
        crate::corpus::check(&spec.inputs, spec.input_bytes_max)?;
    }
    if let Some(path) = &options.record {
        // Where the host's process makes it; nothing that is there is lost if this session does not start.
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|source| RuntimeError::Record { path: path.clone(), source })?;
    }
    if let Some(to) = &options.record_core {
        crate::recording::check(&to.path)?;
    }
    Ok(())
}

/// Compiles what is not compiled yet, modules from outside in a process of their own, and tries every actor out.
pub fn compile(
    image: &Path,
    pipelines: &Pipelines,
    keys: &[u8],
    program: &(PathBuf, Vec<OsString>),
) -> Result<Vec<Code>, RuntimeError> {
    let engines = Engines::new()?;
    let cache = CodeCache::open(code_path(image))?;
    let store = ModuleStore::new(modules_path(image));
    let compiler = Compiler::Child { program: &program.0, arguments: &program.1, limits: Limits::default() };
    let code = prepare(pipelines, &store, &cache, &engines, &compiler)?;
    let ring = Arc::new(KeyRing::from_bytes(keys).map_err(|e| RuntimeError::Option(e.to_string()))?);
    match try_out(pipelines, &code, &engines, &ring)?.into_iter().next() {
        Some((_, error)) => Err(error.into()),
        None => Ok(code),
    }
}

fn memory_name(actor: usize) -> String {
    format!("memory.{actor}")
}

fn state_name(actor: usize) -> String {
    format!("state.{actor}")
}

/// Finds each object or makes it. An object of another size is made anew, except for the write buffer, which
/// holds data.
fn ensure_objects(
    region: &Region,
    profile: &Profile,
    pipelines: &Pipelines,
    code: &[Code],
    job: &Job,
) -> Result<(), RuntimeError> {
    let fresh = |name: &str, kind: ObjectKind, bytes: u64| -> Result<Object, RuntimeError> {
        match region.find(name) {
            Ok(object) if object.len() == bytes => Ok(object),
            Ok(_) => {
                region.free(name)?;
                Ok(region.allocate(name, kind, bytes, 4096)?)
            }
            Err(PmrError::NotFound { .. }) => Ok(region.allocate(name, kind, bytes, 4096)?),
            Err(error) => Err(error.into()),
        }
    };
    zero(fresh("control", ObjectKind::STATISTICS, CONTROL_BYTES)?.bytes());
    zero(fresh("moves", ObjectKind::STATISTICS, MOVES_BYTES)?.bytes());
    let dies = profile.geometry().dies() as usize;
    zero(fresh("board", ObjectKind::STATISTICS, board_bytes(dies))?.bytes());
    zero(fresh("traffic", ObjectKind::STATISTICS, TRAFFIC_BYTES)?.bytes());
    for ring in ["ring.h2d", "ring.d2h"] {
        fresh(ring, ObjectKind::RING, link::ring_object_bytes(pipelines.layout().slots, pipelines.actors().len()))?;
    }
    fresh("bells", ObjectKind::DOORBELL, link::BELLS_BYTES)?;
    fresh("owners", ObjectKind::RECORD, owners_bytes(pipelines.actors().len()))?;
    let layout = pipelines.layout();
    fresh("arena", ObjectKind::ARENA, Arena::object_bytes(&layout))?;
    for (index, each) in code.iter().enumerate() {
        fresh(&memory_name(index), ObjectKind::ACTOR_MEMORY, each.memory_bytes(&layout))?;
        if each.state_bytes(&layout) > 0 {
            fresh(&state_name(index), ObjectKind::ACTOR_STATE, each.state_bytes(&layout))?;
        }
    }
    match region.find("buffer") {
        Ok(object) if object.len() != profile.write_buffer.bytes => {
            return Err(RuntimeError::BufferSize { found: object.len(), wanted: profile.write_buffer.bytes });
        }
        Ok(_) => {}
        Err(_) => {
            region.allocate("buffer", ObjectKind::WRITE_BUFFER, profile.write_buffer.bytes, 4096)?;
        }
    }
    if let Job::Soak(spec) = job {
        let bytes = Witness::bytes(spec.groups);
        let left =
            region.find("witness").ok().filter(|left| left.len() == bytes && Witness::new(left.clone()).is_used());
        match (spec.requests, left) {
            (0, None) => return Err(RuntimeError::NoWitness { groups: spec.groups }),
            (0, Some(_)) => {}
            _ => zero(fresh("witness", ObjectKind::STATISTICS, bytes)?.bytes()),
        }
    }
    Ok(())
}

fn zero(bytes: SharedBytes<'_>) {
    bytes.fill(0, bytes.len(), 0);
}
