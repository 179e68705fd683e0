//! The description of one device: every parameter of every model, from one TOML file.
//!
//! Invariants of a [`Profile`] that came out of [`Profile::parse`]:
//! - every key was given and none is unknown: a value left out would silently be zero somewhere;
//! - every value is possible for the models: no rate is zero, throttle steps rise, and so on, so
//!   the models need no checks of their own;
//! - nothing in it depends on the machine: all values are integers with the unit in the name.
//!
//! The built-in profiles are the files under `profiles/`, compiled in. `docs/profiles.md` explains
//! each key; [`crate::predict`] computes what a profile settles at.

use osier_cache::{CacheConfig, FRAMES_MAX, ParameterValues, SetIndex, WriteLogConfig, WriteMode};
use osier_flash::array::{ArrayTiming, ConfigError, ErrorParams, Order, Shape};
use osier_flash::page::{Collection, PageFtlConfig, PageFtlParams, Streams, WearLevelling};
use osier_flash::{BLOCK_BYTES, Ftl, FtlError, FtlParams, Geometry, GeometryError, Timing, TimingError};
use osier_link::{CxlFlit, CxlMessage, Kind, Link, LinkConfig, Time, Transaction};
use serde::Deserialize;
use std::fmt;
use toml::Value;
use toml::de::{DeTable, DeValue};

mod derive;
mod overrides;

pub use overrides::parse_override;

use crate::model::{BlockCommands, ControllerConfig, DataTransfer, Dram, ModelCache, ModelConfig, ModelError};

/// Names and texts of the built-in profiles.
const BUILT_IN: [(&str, &str); 10] = [
    ("wio", include_str!("../../../profiles/wio.toml")),
    ("smartssd", include_str!("../../../profiles/smartssd.toml")),
    ("scaleflux", include_str!("../../../profiles/scaleflux.toml")),
    ("cylon", include_str!("../../../profiles/cylon.toml")),
    ("cmm-h", include_str!("../../../profiles/cmm-h.toml")),
    ("dockerssd", include_str!("../../../profiles/dockerssd.toml")),
    ("cosmos-openssd", include_str!("../../../profiles/cosmos-openssd.toml")),
    ("willow-pcm", include_str!("../../../profiles/willow-pcm.toml")),
    ("z-nand", include_str!("../../../profiles/z-nand.toml")),
    ("tlc-datacentre", include_str!("../../../profiles/tlc-datacentre.toml")),
];

/// Built-in profiles whose cores run software, so that they and not the write path limit stages on the device.
#[cfg(test)]
pub(crate) const SOFTWARE_CORES: [&str; 3] = ["dockerssd", "cosmos-openssd", "willow-pcm"];

/// Most throttle steps a profile may have.
pub const THROTTLE_STEPS_MAX: usize = 16;
/// Most frames that are drawn a period.
const SAMPLE_PAGES_MAX: u32 = 4096;

/// Fewest superblocks that a shrunk geometry keeps: below this, garbage collection and its
/// reserves have nothing to work with.
const SUPERBLOCKS_MIN: u32 = 16;

/// A device description.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// `[device]`: what it is.
    pub device: DeviceIdentity,
    /// `[geometry]`: the flash array.
    pub geometry: GeometrySection,
    /// `[timing]`: the flash operations.
    pub timing: ArrayTiming,
    /// `[errors]`: how they fail.
    pub errors: ErrorParams,
    /// `[ftl]`: the flash translation layers.
    pub ftl: FtlSection,
    /// `[controller]`: rates of the data path.
    pub controller: Controller,
    /// `[link]`: between host and device.
    pub link: LinkConfig,
    /// `[cache]`: the DRAM cache of the memory face, if there is one.
    pub cache: Option<CacheSection>,
    /// `[window]`: what a memory window does beside its cache; nothing of it if it is not there.
    pub window: Option<WindowSection>,
    /// `[write_buffer]`: size and drain policy.
    pub write_buffer: WriteBuffer,
    /// `[compute]`: cores and engines.
    pub compute: ComputeParams,
    /// `[thermal]`: the resistor-capacitor model.
    pub thermal: ThermalParams,
    /// `[power]`: energy of each operation.
    pub power: Power,
    /// `[[throttle]]`: steps in rising order, possibly none.
    pub throttle: Vec<ThrottleStep>,
    /// `[scheduler]`: thresholds of the placement policy.
    pub scheduler: SchedulerParams,
    /// `[persistence]`: what survives a power cut.
    pub persistence: Persistence,
    /// `[[calibration]]`: what was fitted to a published figure, and so is no prediction of it.
    pub calibration: Vec<Calibration>,
    /// How far [`Profile::scaled`] moved this profile from its file; not a key.
    #[serde(skip)]
    pub scale: Scale,
}

/// `[device]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceIdentity {
    /// Short name, as used on the command line.
    pub name: String,
    /// One line for people.
    pub description: String,
}

/// `[geometry]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeometrySection {
    /// Independent channels.
    pub channels: u32,
    /// Packages on a channel.
    pub chips_per_channel: u32,
    /// Dies of a package.
    pub dies_per_chip: u32,
    /// Planes of a die.
    pub planes_per_die: u32,
    /// Blocks of a plane, spare ones included.
    pub blocks_per_plane: u32,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// In which order a stripe of the page map visits the parts.
    pub stripe_order: Order,
}

impl GeometrySection {
    /// The array of the page map.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape {
            channels: self.channels,
            chips_per_channel: self.chips_per_channel,
            dies_per_chip: self.dies_per_chip,
            planes_per_die: self.planes_per_die,
            blocks_per_plane: self.blocks_per_plane,
            pages_per_block: self.pages_per_block,
            page_bytes: self.page_bytes,
        }
    }
}

/// `[ftl]`, for the log of extents and for the page map. Whether bytes are kept and whether the device is thin belong
/// to a device, not to its profile, and are given when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FtlSection {
    /// Part of the raw space that users never get, in thousandths.
    pub over_provisioning_permille: u32,
    /// Blocks of each plane that replace bad ones.
    pub spare_blocks_per_plane: u32,
    /// What is written together.
    pub streams: Streams,
    /// Slots with host writes that one die may hold.
    pub slots_per_die_max: u32,
    /// Superblocks after which the map is checkpointed; 0 for never.
    pub checkpoint_superblocks: u32,
    /// Pages of the map that are cached; 0 keeps it in memory.
    pub map_cache_pages: u32,
    /// `[ftl.collection]`: garbage collection.
    pub collection: Collection,
    /// `[ftl.wear]`: wear levelling.
    pub wear: WearLevelling,
}

/// `[cache]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSection {
    /// How large it is.
    pub size: CacheSize,
    /// Frames of a set; 0 for fully associative.
    pub ways: u32,
    /// Which set a page belongs to.
    pub set_index: SetIndex,
    /// When written bytes go below.
    pub write: WriteMode,
    /// Frames of each set that are kept free.
    pub reserve_frames: u32,
    /// Most pages that may be pinned.
    pub pinned_pages_max: u32,
    /// Name of the eviction policy.
    pub eviction: String,
    /// Its parameters.
    #[serde(default)]
    pub eviction_parameters: ParameterValues,
    /// Name of the prefetcher, or `none`.
    pub prefetch: String,
    /// Its parameters.
    #[serde(default)]
    pub prefetch_parameters: ParameterValues,
    /// Fills from flash that may be under way.
    pub fills_max: u32,
    /// Which way block commands go.
    pub block_commands: BlockCommands,
    /// Whether it survives a loss of power.
    pub survives_power_loss: bool,
    /// `[cache.dram]`: its memory.
    pub dram: Dram,
    /// `[cache.write_log]`: a log of written lines in front of the pages, if there is one.
    pub write_log: Option<WriteLogSection>,
}

/// How large a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheSize {
    /// In bytes.
    Bytes(u64),
    /// In thousandths of the logical capacity.
    Permille(u32),
}

/// `[cache.write_log]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteLogSection {
    /// Lines of 64 bytes that each half of the log holds.
    pub lines_per_half: u32,
}

/// `[window]`. Nobody hears of a hit; so pages are drawn and unmapped for a while, and their next use is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowSection {
    /// Frames that are drawn a period; 0 for no sampling.
    pub sample_pages: u32,
    /// The period.
    pub sample_period_us: u32,
}

/// The link as the real-time core has it: one rate in each direction, and one latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPath {
    /// Rate of data in each direction.
    pub bytes_per_second: u64,
    /// Latency of one access, there and back.
    pub round_trip_ns: u64,
}

/// `[controller]`. Rates count logical bytes (blocks of 4096), not stored ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Controller {
    /// Reads at full speed.
    pub read_bytes_per_second: u64,
    /// Writes at full speed.
    pub write_bytes_per_second: u64,
    /// Fixed time of each command on the data path.
    pub command_ns: u64,
    /// Commands that may be under way, and entries of the NVMe queues.
    pub queue_entries: u32,
    /// How the data of block commands is named.
    pub data_transfer: DataTransfer,
}

/// `[write_buffer]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteBuffer {
    /// Size of the log's region, its header and tables included.
    pub bytes: u64,
    /// Fill level at which draining to flash starts, in thousandths.
    pub drain_start_permille: u32,
    /// Time without writes after which the rest is drained too.
    pub drain_idle_ns: u64,
}

/// An engine of the device's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Engine {
    /// LZ4 compression and decompression.
    Lz4,
    /// AES-256.
    Aes,
    /// CRC-32C.
    Crc32c,
    /// Anything else: plain WebAssembly on a core.
    Wasm,
}

impl Engine {
    /// All engines.
    pub const ALL: [Engine; 4] = [Engine::Lz4, Engine::Aes, Engine::Crc32c, Engine::Wasm];

    /// The engine's name as in the profile's keys.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Engine::Lz4 => "lz4",
            Engine::Aes => "aes",
            Engine::Crc32c => "crc32c",
            Engine::Wasm => "wasm",
        }
    }

    /// The engine of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Engine> {
        Engine::ALL.into_iter().find(|engine| engine.name() == name)
    }
}

/// `[compute]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeParams {
    /// Cores (lanes) that work at the same time.
    pub cores: u32,
    /// Fixed time of each call of an engine.
    pub call_ns: u64,
    /// Longest time of one chunk at the present speed.
    pub chunk_ns_max: u64,
    /// `[compute.engines]`: rates of one core.
    pub engines: Engines,
}

impl ComputeParams {
    /// Time of one call over `bytes` at full speed, in nanoseconds, rounded up.
    #[must_use]
    pub fn nominal_ns(&self, engine: Engine, bytes: u32) -> u64 {
        self.call_ns + transfer_ns(u64::from(bytes), self.engines.bytes_per_second(engine))
    }
}

/// `[compute.engines]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engines {
    /// LZ4, of input bytes.
    pub lz4_bytes_per_second: u64,
    /// AES-256, of input bytes.
    pub aes_bytes_per_second: u64,
    /// CRC-32C, of input bytes.
    pub crc32c_bytes_per_second: u64,
    /// Plain WebAssembly, of input bytes.
    pub wasm_bytes_per_second: u64,
}

impl Engines {
    /// Rate of `engine` on one core at full speed.
    #[must_use]
    pub fn bytes_per_second(&self, engine: Engine) -> u64 {
        match engine {
            Engine::Lz4 => self.lz4_bytes_per_second,
            Engine::Aes => self.aes_bytes_per_second,
            Engine::Crc32c => self.crc32c_bytes_per_second,
            Engine::Wasm => self.wasm_bytes_per_second,
        }
    }
}

/// `[thermal]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThermalParams {
    /// Temperature of the surroundings.
    pub ambient_millicelsius: i32,
    /// Rise over ambient for each watt.
    pub resistance_millikelvin_per_watt: u64,
    /// Heat for each kelvin.
    pub capacitance_millijoule_per_kelvin: u64,
    /// Factor on dT/dt; set by [`Profile::scaled`], not a key.
    #[serde(skip, default = "one")]
    pub time_scale: u32,
}

fn one() -> u32 {
    1
}

/// `[power]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// Drawn all the time.
    pub idle_milliwatts: u64,
    /// Drawn by a core at work, over an idle one.
    pub compute_milliwatts_per_core: u64,
    /// One flash page read.
    pub read_nanojoules_per_page: u64,
    /// One flash page program.
    pub program_nanojoules_per_page: u64,
    /// One flash block erase.
    pub erase_nanojoules_per_block: u64,
    /// Each byte that crosses the link.
    pub link_picojoules_per_byte: u64,
    /// Each logical byte through the controller.
    pub controller_picojoules_per_byte: u64,
}

/// One `[[throttle]]` step.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThrottleStep {
    /// Name for reports.
    pub name: String,
    /// Entered at or above this temperature.
    pub enter_millicelsius: i32,
    /// Left at or below this temperature.
    pub exit_millicelsius: i32,
    /// Speed of controller and compute in this step, in thousandths; 0 is shut down.
    pub speed_permille: u32,
}

/// `[scheduler]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulerParams {
    /// Length of one scheduler tick.
    pub epoch_ms: u64,
    /// Device temperature above which actors are uploaded to the host.
    pub upload_millicelsius: i32,
    /// Device temperature below which it is cool enough to take actors.
    pub offload_below_millicelsius: i32,
    /// Host CPU share above which actors are offloaded to a cool device.
    pub host_cpu_high_permille: u32,
    /// Host CPU share below which actors return to the host.
    pub host_cpu_low_permille: u32,
    /// Host CPU share below which the host has headroom for an upload.
    pub host_headroom_permille: u32,
    /// The host CPU share is averaged over this time: one epoch's share is a few of the kernel's ticks.
    pub host_cpu_window_ms: u64,
    /// A busy host whose cores run below this share of their nominal frequency is throttled.
    pub host_throttle_permille: u32,
    /// Shortest stay of an actor in one place.
    pub min_residency_ms: u64,
    /// Most moves in one epoch.
    pub moves_per_epoch: u32,
    /// How much of the rate is taken away each epoch at most, while both sides are near their limits.
    pub shed_step_permille: u32,
    /// The rate that shedding never goes below.
    pub shed_floor_permille: u32,
    /// How much of the rate is given back each epoch at most, afterwards.
    pub shed_recover_permille: u32,
    /// How far above the upload temperature the rate is at its floor; in between it falls in proportion.
    pub shed_span_millikelvin: u32,
}

/// `[persistence]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Persistence {
    /// True if the write buffer survives a power cut: a completed write is then persistent.
    pub pmr_persistent: bool,
}

/// One `[[calibration]]` entry.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// What was fitted.
    pub parameter: String,
    /// The published figure that it was fitted to.
    pub figure: String,
}

/// How a profile was scaled; both 1 for a profile as in its file. Reports state it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Every rate was divided by this, every energy per operation or byte multiplied.
    pub rate_divisor: u32,
    /// dT/dt was multiplied by this.
    pub thermal_time: u32,
}

impl Default for Scale {
    fn default() -> Scale {
        Scale { rate_divisor: 1, thermal_time: 1 }
    }
}

/// Why a profile was refused. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The text is not TOML, or a key is unknown, missing or of the wrong type.
    #[error("profile {profile}, line {line}: {message}; correct the file, docs/profiles.md lists every key")]
    Syntax {
        /// Name given to [`Profile::parse`].
        profile: String,
        /// Line of the key, or of the table that lacks it.
        line: usize,
        /// What is wrong with which key.
        message: String,
    },
    /// A value is of the right type but no device can have it.
    #[error("profile {profile}, line {line}: {key} {reason}; correct the value")]
    Impossible {
        /// Name given to [`Profile::parse`].
        profile: String,
        /// Line of the key.
        line: usize,
        /// The key with its tables, for example `throttle.2.speed_permille`.
        key: String,
        /// Why it is not possible.
        reason: String,
    },
    /// A key that was set beside the text is not one, or cannot have that value.
    #[error("setting {key} failed: {reason}; docs/profiles.md lists every key")]
    Override {
        /// The key and the profile.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// No built-in profile has that name.
    #[error("no built-in profile is called {name:?}; choose one of {}, or give the path of a file", BUILT_IN.map(|(known, _)| known).join(", "))]
    UnknownName {
        /// The name asked for.
        name: String,
    },
}

impl Profile {
    /// Parses and checks a profile. `name` stands for it in errors.
    ///
    /// # Errors
    /// [`ProfileError::Syntax`] for text that is not TOML, a missing or unknown key or a wrong
    /// type; [`ProfileError::Impossible`] for a value that the models cannot run with.
    pub fn parse(name: &str, text: &str) -> Result<Profile, ProfileError> {
        Profile::parse_with(name, text, &[])
    }

    /// The same with some keys set to other values: paths as in [`parse_override`].
    ///
    /// # Errors
    /// As [`Profile::parse`]; [`ProfileError::Override`] names a key that is unknown or of the wrong type.
    pub fn parse_with(name: &str, text: &str, overrides: &[(String, Value)]) -> Result<Profile, ProfileError> {
        let mut profile: Profile = toml::from_str(text).map_err(|error| syntax(name, text, &error))?;
        if !overrides.is_empty() {
            profile = overrides::apply(name, text, overrides)?;
        }
        profile.check().map_err(|fault| ProfileError::Impossible {
            profile: name.to_owned(),
            line: line_of_key(text, &fault.key),
            key: fault.key,
            reason: fault.reason,
        })?;
        Ok(profile)
    }

    /// As [`Profile::parse_with`], where no value may be without effect because another key that is set takes its
    /// place: for who shows the values beside the results. Of one name that is set twice the last counts.
    ///
    /// # Errors
    /// As [`Profile::parse_with`]; [`ProfileError::Override`] names a key whose place another one takes.
    pub fn parse_with_all(name: &str, text: &str, overrides: &[(String, Value)]) -> Result<Profile, ProfileError> {
        let profile = Profile::parse_with(name, text, overrides)?;
        overrides::check_all(name, text, overrides)?;
        Ok(profile)
    }

    /// A built-in profile by its name.
    ///
    /// # Errors
    /// [`ProfileError::UnknownName`] for any other name.
    pub fn built_in(name: &str) -> Result<Profile, ProfileError> {
        let text = Profile::built_in_text(name).ok_or_else(|| ProfileError::UnknownName { name: name.to_owned() })?;
        Profile::parse(name, text)
    }

    /// The TOML text of a built-in profile, comments and sources included.
    #[must_use]
    pub fn built_in_text(name: &str) -> Option<&'static str> {
        BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// Names of the built-in profiles.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// The same device at a fraction of its bandwidth and with a faster thermal clock, for
    /// machines that cannot carry the full rate and for people who cannot wait.
    ///
    /// Every rate is divided by `rate_divisor` and every energy per operation and byte multiplied
    /// by it, so the same load *relative to the device* heats it the same. Latencies (command,
    /// call, link, flash operations) and the powers of idling and of a busy core are not touched:
    /// they are per time, not per byte. `thermal_time_scale` multiplies dT/dt alone.
    ///
    /// Scales multiply up; zero counts as one.
    #[must_use]
    pub fn scaled(&self, rate_divisor: u32, thermal_time_scale: u32) -> Profile {
        let (divisor, time) = (rate_divisor.max(1), thermal_time_scale.max(1));
        let mut scaled = self.clone();
        for rate in scaled.rates_mut() {
            *rate = (*rate / u64::from(divisor)).max(1);
        }
        for energy in scaled.energies_mut() {
            *energy = energy.saturating_mul(u64::from(divisor));
        }
        scaled.thermal.time_scale = scaled.thermal.time_scale.saturating_mul(time);
        scaled.scale.rate_divisor = scaled.scale.rate_divisor.saturating_mul(divisor);
        scaled.scale.thermal_time = scaled.scale.thermal_time.saturating_mul(time);
        scaled
    }

    /// The flash layer's parameters for a device of this profile. Without data it models time and
    /// space only; a thin device may promise more logical blocks than fit in the worst case.
    #[must_use]
    pub fn ftl_params(&self, with_data: bool, thin: bool) -> FtlParams {
        FtlParams {
            over_provisioning_permille: self.ftl.over_provisioning_permille,
            gc_free_superblocks_low: self.ftl.collection.free_background,
            gc_free_superblocks_min: self.ftl.collection.free_min,
            with_data,
            thin,
        }
    }

    /// The profile's flash array cut down, in blocks of each plane, to the smallest that promises
    /// `logical_blocks` even if nothing compresses. Channels, dies and pages stay, so the timing
    /// does. A device larger than the profile's array gets the whole array.
    #[must_use]
    pub fn geometry_for(&self, logical_blocks: u64) -> Geometry {
        let (array, params) = (self.geometry(), self.ftl_params(false, false));
        let fits = |blocks_per_plane: u32| {
            let geometry = Geometry { blocks_per_plane, ..array };
            Ftl::logical_blocks_max(&geometry, &params).is_ok_and(|most| most >= logical_blocks)
        };
        let (mut low, mut high) = (SUPERBLOCKS_MIN, array.blocks_per_plane);
        while low < high {
            let middle = low + (high - low) / 2;
            if fits(middle) { high = middle } else { low = middle + 1 }
        }
        Geometry { blocks_per_plane: high, ..array }
    }

    fn rates_mut(&mut self) -> [&mut u64; 7] {
        let engines = &mut self.compute.engines;
        [
            &mut self.controller.read_bytes_per_second,
            &mut self.controller.write_bytes_per_second,
            &mut self.timing.channel_bytes_per_second,
            &mut engines.lz4_bytes_per_second,
            &mut engines.aes_bytes_per_second,
            &mut engines.crc32c_bytes_per_second,
            &mut engines.wasm_bytes_per_second,
        ]
    }

    fn energies_mut(&mut self) -> [&mut u64; 5] {
        [
            &mut self.power.read_nanojoules_per_page,
            &mut self.power.program_nanojoules_per_page,
            &mut self.power.erase_nanojoules_per_block,
            &mut self.power.link_picojoules_per_byte,
            &mut self.power.controller_picojoules_per_byte,
        ]
    }
}

/// Time to move `bytes` at a rate, in nanoseconds, rounded up.
pub(crate) fn transfer_ns(bytes: u64, bytes_per_second: u64) -> u64 {
    let nanoseconds = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_second.max(1)));
    u64::try_from(nanoseconds).unwrap_or(u64::MAX)
}

/// A value that no device can have.
struct Fault {
    key: String,
    reason: String,
}

fn require(held: bool, key: &str, reason: impl fmt::Display) -> Result<(), Fault> {
    if held {
        return Ok(());
    }
    Err(Fault { key: key.to_owned(), reason: reason.to_string() })
}

/// Refuses a value outside `low..=high`, saying why the bound is there.
fn within(key: &str, value: u64, low: u64, high: u64, why: &str) -> Result<(), Fault> {
    require((low..=high).contains(&value), key, format_args!("is {value}, must be {low} to {high}: {why}"))
}

impl Profile {
    fn check(&self) -> Result<(), Fault> {
        require(!self.device.name.is_empty(), "device.name", "is empty: a report needs a name")?;
        self.check_flash()?;
        self.check_data_path()?;
        self.check_cache()?;
        self.check_window()?;
        self.check_compute()?;
        self.check_thermal()?;
        self.check_throttle()?;
        self.check_scheduler()
    }

    /// The flash crate knows what it can run with; its reasons are given under this file's keys.
    fn check_flash(&self) -> Result<(), Fault> {
        let flash = |table: &str, name: &str, reason: String| Fault {
            key: format!("{table}.{name}"),
            reason: format!("was refused: {reason}"),
        };
        let over = u64::from(self.ftl.over_provisioning_permille);
        within(
            "ftl.over_provisioning_permille",
            over,
            10,
            900,
            "less leaves collection nothing, more leaves users nothing",
        )?;
        let map = self.whole_page_map();
        map.validate()
            .map_err(|error| Fault { key: derive::key_of(&error), reason: format!("was refused: {error}") })?;
        let (geometry, timing) = (self.geometry(), self.timing());
        geometry.validate().map_err(|error| {
            let name = match error {
                GeometryError::OutOfRange { name: "dies_per_channel", .. } => "dies_per_chip",
                GeometryError::OutOfRange { name, .. } => name,
                GeometryError::PageNotPowerOfTwo { .. } => "page_bytes",
                GeometryError::SuperblockSize { .. } => "pages_per_block",
            };
            flash("geometry", name, error.to_string())
        })?;
        timing.validate().map_err(|error| {
            let (TimingError::Zero { name } | TimingError::TooLarge { name, .. }) = error;
            flash("timing", name, error.to_string())
        })?;
        self.ftl_params(true, false).validate(&geometry).map_err(|error| match error {
            FtlError::Param { name: "gc_free_superblocks_low", .. } => {
                flash("ftl.collection", "free_background", error.to_string())
            }
            FtlError::Param { name: "gc_free_superblocks_min", .. } => {
                flash("ftl.collection", "free_min", error.to_string())
            }
            FtlError::Param { name, .. } => flash("ftl", name, error.to_string()),
            _ => flash("ftl", "over_provisioning_permille", error.to_string()),
        })
    }

    fn check_data_path(&self) -> Result<(), Fault> {
        rate("controller.read_bytes_per_second", self.controller.read_bytes_per_second)?;
        rate("controller.write_bytes_per_second", self.controller.write_bytes_per_second)?;
        let why = "a fixed time of more than a second is no storage device";
        within("controller.command_ns", self.controller.command_ns, 0, 1_000_000_000, why)?;
        let why = "the bounds of NVMe's queues";
        within("controller.queue_entries", self.controller.queue_entries.into(), 2, 65_536, why)?;
        self.link
            .validate()
            .map_err(|error| Fault { key: format!("link.{}", error.key), reason: format!("was refused: {error}") })?;
        let why = "below this not one request of the largest size fits";
        within("write_buffer.bytes", self.write_buffer.bytes, 1 << 20, 1 << 40, why)?;
        let start = u64::from(self.write_buffer.drain_start_permille);
        let why = "draining must start before the buffer is full";
        within("write_buffer.drain_start_permille", start, 0, 900, why)?;
        let why = "completed writes must reach the flash some day";
        within("write_buffer.drain_idle_ns", self.write_buffer.drain_idle_ns, 1, 1 << 40, why)
    }

    /// How hits are sampled.
    fn check_window(&self) -> Result<(), Fault> {
        let Some(window) = &self.window else { return Ok(()) };
        let reason = "each page that is drawn and used costs a fault";
        within("window.sample_pages", window.sample_pages.into(), 0, SAMPLE_PAGES_MAX.into(), reason)?;
        let reason = "a page that is drawn is watched as long";
        within("window.sample_period_us", window.sample_period_us.into(), 10, 60_000_000, reason)
    }

    /// The cache of the whole device, and whether its policies are there.
    fn check_cache(&self) -> Result<(), Fault> {
        let Some(cache) = &self.cache else { return Ok(()) };
        let fault = |key: &str, reason: String| Fault { key: key.to_owned(), reason: format!("was refused: {reason}") };
        if let CacheSize::Permille(share) = cache.size {
            within("cache.size", share.into(), 1, 1000, "it is a share of the capacity")?;
        }
        let small = osier_cache::Shape { sets: 1, ways: 64, pages_per_set: 64 };
        // What a module can do is seen when it is loaded.
        if !osier_cache::is_module(&cache.eviction) {
            osier_cache::policy(&cache.eviction, small, &cache.eviction_parameters, 0)
                .map_err(|error| fault("cache.eviction", error.to_string()))?;
        }
        osier_cache::prefetcher(&cache.prefetch, &cache.prefetch_parameters)
            .map_err(|error| fault("cache.prefetch", error.to_string()))?;
        self.model(None).map(drop).map_err(|error| match error {
            ModelError::Value { key, .. } => fault(key, error.to_string()),
            ModelError::Cache(osier_cache::ConfigError::Value { key, .. }) => {
                fault(&format!("cache.{key}"), error.to_string())
            }
            other => fault("cache", other.to_string()),
        })
    }

    fn check_compute(&self) -> Result<(), Fault> {
        let compute = &self.compute;
        within("compute.cores", u64::from(compute.cores), 1, 1024, "actors need a core")?;
        let why = "a chunk shorter than this is all overhead, a longer one holds a drain up";
        within("compute.chunk_ns_max", compute.chunk_ns_max, 1_000, 1_000_000_000, why)?;
        let why = "a chunk must have time left for work after the call";
        within("compute.call_ns", compute.call_ns, 0, compute.chunk_ns_max - 1, why)?;
        for engine in Engine::ALL {
            let key = format!("compute.engines.{}_bytes_per_second", engine.name());
            rate(&key, compute.engines.bytes_per_second(engine))?;
        }
        Ok(())
    }

    fn check_thermal(&self) -> Result<(), Fault> {
        let thermal = &self.thermal;
        let ambient = thermal.ambient_millicelsius;
        require(
            (-273_150..=200_000).contains(&ambient),
            "thermal.ambient_millicelsius",
            format_args!("is {ambient}, must lie between absolute zero and 200000"),
        )?;
        let why = "without resistance nothing warms, without capacity everything does at once";
        let resistance = thermal.resistance_millikelvin_per_watt;
        within("thermal.resistance_millikelvin_per_watt", resistance, 1, 1_000_000, why)?;
        let capacitance = thermal.capacitance_millijoule_per_kelvin;
        within("thermal.capacitance_millijoule_per_kelvin", capacitance, 1, 10_000_000, why)?;
        let why = "no device of this kind takes a kilowatt or a joule for one operation";
        let power = &self.power;
        for (key, value) in [
            ("power.idle_milliwatts", power.idle_milliwatts),
            ("power.compute_milliwatts_per_core", power.compute_milliwatts_per_core),
            ("power.link_picojoules_per_byte", power.link_picojoules_per_byte),
            ("power.controller_picojoules_per_byte", power.controller_picojoules_per_byte),
        ] {
            within(key, value, 0, 1_000_000, why)?;
        }
        for (key, value) in [
            ("power.read_nanojoules_per_page", power.read_nanojoules_per_page),
            ("power.program_nanojoules_per_page", power.program_nanojoules_per_page),
            ("power.erase_nanojoules_per_block", power.erase_nanojoules_per_block),
        ] {
            within(key, value, 0, 1_000_000_000, why)?;
        }
        Ok(())
    }

    fn check_throttle(&self) -> Result<(), Fault> {
        let count = self.throttle.len();
        require(count <= THROTTLE_STEPS_MAX, "throttle", "has more than 16 steps")?;
        let mut cooler: Option<&ThrottleStep> = None;
        for (index, step) in self.throttle.iter().enumerate() {
            let key = |name: &str| format!("throttle.{}.{name}", index + 1);
            let (enter, exit) = (step.enter_millicelsius, step.exit_millicelsius);
            require(
                exit < enter,
                &key("exit_millicelsius"),
                format_args!("is {exit}, must be below the step's enter of {enter}"),
            )?;
            require(
                enter > self.thermal.ambient_millicelsius,
                &key("enter_millicelsius"),
                "is not above ambient: the device could never run at full speed",
            )?;
            require(
                exit > self.thermal.ambient_millicelsius,
                &key("exit_millicelsius"),
                "is not above ambient: the device could never cool to it",
            )?;
            let below = cooler.map_or(1000, |cooler| cooler.speed_permille);
            require(
                step.speed_permille < below,
                &key("speed_permille"),
                format_args!("is {}, must be below the {below} of the step before", step.speed_permille),
            )?;
            let warmer = cooler.is_none_or(|cooler| cooler.enter_millicelsius < enter);
            require(warmer, &key("enter_millicelsius"), "must be above that of the step before")?;
            cooler = Some(step);
        }
        Ok(())
    }

    fn check_scheduler(&self) -> Result<(), Fault> {
        let scheduler = &self.scheduler;
        let why = "a tick is between a millisecond and a minute";
        within("scheduler.epoch_ms", scheduler.epoch_ms, 1, 60_000, why)?;
        let (upload, offload) = (scheduler.upload_millicelsius, scheduler.offload_below_millicelsius);
        require(
            offload < upload,
            "scheduler.offload_below_millicelsius",
            format_args!(
                "is {offload}, must be below the upload threshold of {upload}, or actors would swing to and fro"
            ),
        )?;
        let (high, low) = (scheduler.host_cpu_high_permille, scheduler.host_cpu_low_permille);
        within("scheduler.host_cpu_high_permille", u64::from(high), 1, 1000, "it is a share")?;
        let why = "it must be below the high threshold, or actors would swing to and fro";
        let key = "scheduler.host_cpu_low_permille";
        within(key, u64::from(low), 0, u64::from(high) - 1, why)?;
        let headroom = u64::from(scheduler.host_headroom_permille);
        within("scheduler.host_headroom_permille", headroom, 1, 1000, "it is a share")?;
        let window = scheduler.host_cpu_window_ms;
        within("scheduler.host_cpu_window_ms", window, 1, 60_000, "a slower average answers no load")?;
        let throttle = u64::from(scheduler.host_throttle_permille);
        within("scheduler.host_throttle_permille", throttle, 1, 1000, "it is a share of the nominal frequency")?;
        let why = "without a span the rate would fall at once, and above a hundred kelvin not at all";
        within("scheduler.shed_span_millikelvin", u64::from(scheduler.shed_span_millikelvin), 1, 100_000, why)?;
        let why = "shorter than an epoch cannot be kept, longer than an hour is a pin";
        let residency = scheduler.min_residency_ms;
        within("scheduler.min_residency_ms", residency, scheduler.epoch_ms, 3_600_000, why)?;
        let why = "without moves nothing is scheduled";
        within("scheduler.moves_per_epoch", u64::from(scheduler.moves_per_epoch), 1, 256, why)?;
        let why = "it is a share of the rate, and some of it must always pass";
        for (key, value) in [
            ("scheduler.shed_step_permille", scheduler.shed_step_permille),
            ("scheduler.shed_floor_permille", scheduler.shed_floor_permille),
            ("scheduler.shed_recover_permille", scheduler.shed_recover_permille),
        ] {
            within(key, u64::from(value), 1, 1000, why)?;
        }
        Ok(())
    }
}

fn rate(key: &str, value: u64) -> Result<(), Fault> {
    within(key, value, 1_000, 1 << 50, "at a rate of zero nothing is ever due")
}

/// Turns the parser's error into one that names profile, line and key.
fn syntax(name: &str, text: &str, error: &toml::de::Error) -> ProfileError {
    let offset = error.span().map_or(0, |span| span.start);
    // The parser names the missing or unknown key; the table it belongs in follows from where.
    let table = table_at(text, offset);
    let message = match table {
        Some(table) => format!("in [{table}], {}", error.message()),
        None => error.message().to_owned(),
    };
    ProfileError::Syntax { profile: name.to_owned(), line: line_at(text, offset), message }
}

/// The last table header at or before a byte offset of a TOML text.
#[must_use]
pub fn table_at(text: &str, offset: usize) -> Option<&str> {
    let line_end = text[offset..].find('\n').map_or(text.len(), |end| offset + end);
    text[..line_end]
        .lines()
        .rev()
        .find_map(|line| line.trim().strip_prefix('[')?.split(']').next())
        .map(|table| table.trim_start_matches('['))
}

/// The line of a byte offset, from 1.
#[must_use]
pub fn line_at(text: &str, offset: usize) -> usize {
    1 + text[..offset.min(text.len())].matches('\n').count()
}

/// Line of a key such as `throttle.2.speed_permille` in a text that is known to parse. A key that
/// is missing gets the line of the deepest table found.
#[must_use]
pub fn line_of_key(text: &str, key: &str) -> usize {
    let Ok(document) = DeTable::parse(text) else {
        return 1;
    };
    let mut offset = 0;
    let mut table = Some(document.get_ref());
    let mut parts = key.split('.').peekable();
    while let (Some(part), Some(here)) = (parts.next(), table) {
        let Some((found, value)) = here.iter().find(|(name, _)| name.get_ref().as_ref() == part) else {
            break;
        };
        offset = found.span().start;
        table = match value.get_ref() {
            DeValue::Table(inner) => Some(inner),
            DeValue::Array(items) => {
                let index = parts.next().and_then(|part| part.parse::<usize>().ok());
                let item = index.and_then(|index| items.get(index.checked_sub(1)?));
                offset = item.map_or(offset, |item| item.span().start);
                item.and_then(|item| item.get_ref().as_table())
            }
            _ => None,
        };
    }
    line_at(text, offset)
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;
