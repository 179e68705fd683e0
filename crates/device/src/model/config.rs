//! What a model is made of.

use osier_cache::CacheConfig;
use osier_flash::page::PageFtlConfig;
use osier_link::LinkConfig;
use serde::Deserialize;

use crate::window::Sampling;

/// Everything that describes a modelled device. [`crate::Profile::model`] makes one from a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// The flash and its translation layer.
    pub flash: PageFtlConfig,
    /// The way to the host.
    pub link: LinkConfig,
    /// The command processor.
    pub controller: ControllerConfig,
    /// The DRAM cache; without one, everything goes to the flash.
    pub cache: Option<ModelCache>,
    /// How a memory window samples hits.
    pub sampling: Sampling,
}

/// The command processor: a server that takes block commands one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Fixed time of each block command.
    pub command_ns: u64,
    /// Its rate for reads, in bytes of blocks.
    pub read_bytes_per_second: u64,
    /// Its rate for writes, in bytes of blocks.
    pub write_bytes_per_second: u64,
    /// Commands that may be under way at a time, and entries of the NVMe queues: 2 to 65,536.
    pub queue_entries: u32,
    /// How the data of block commands is named.
    pub data_transfer: DataTransfer,
}

/// How the data of block commands is named, and so what crosses the link for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataTransfer {
    /// Physical region pages, of which the bytes of the command are moved.
    Prp,
    /// Physical region pages, which are moved whole.
    PrpPage,
    /// Scatter gather lists, to the byte.
    Sgl,
}

/// The DRAM cache and its memory. Pages have 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCache {
    /// Frames and policies.
    pub cache: CacheConfig,
    /// The memory that the frames are in.
    pub dram: Dram,
    /// Page fills from flash that may be under way at a time; others wait their turn.
    pub fills_max: u32,
    /// Which way block commands go.
    pub block_commands: BlockCommands,
    /// Whether its bytes survive a loss of power, so that a flush need not write them.
    pub survives_power_loss: bool,
}

/// Access to the device's DRAM: a time to the first byte, and the rate of the following ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dram {
    /// Until the first byte of a read.
    pub read_ns: u64,
    /// Until the first byte of a write is taken.
    pub write_ns: u64,
    /// Rate of the bytes.
    pub bytes_per_second: u64,
}

/// Which way block commands go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockCommands {
    /// Through the cache, as loads and stores.
    Through,
    /// To the flash; what the cache has of their pages is looked at, and kept right.
    Around,
}

/// Why there is no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The flash cannot be.
    #[error("flash: {0}")]
    Flash(#[from] osier_flash::array::ConfigError),
    /// The link cannot be.
    #[error(transparent)]
    Link(#[from] osier_link::ConfigError),
    /// The cache cannot be.
    #[error(transparent)]
    Cache(#[from] osier_cache::ConfigError),
    /// Something of how the parts are put together cannot be.
    #[error("{key} is {value}: {reason}")]
    Value {
        /// The key, with its section, as a profile spells it.
        key: &'static str,
        /// What it is.
        value: u64,
        /// Why it cannot be, and what would do.
        reason: String,
    },
}

/// Most commands under way: the largest queue that NVMe allows.
pub const QUEUE_ENTRIES_MAX: u32 = 65_536;
/// Most fills under way.
pub const FILLS_MAX: u32 = 65_536;

impl ModelConfig {
    /// Logical bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.flash.ftl.logical_units * u64::from(osier_flash::BLOCK_BYTES)
    }

    /// Checks how the parts fit together; each part checks itself when it is made.
    ///
    /// # Errors
    /// Names the first value that cannot be.
    pub fn validate(&self) -> Result<(), ModelError> {
        let controller = &self.controller;
        range("controller.queue_entries", controller.queue_entries.into(), 2, QUEUE_ENTRIES_MAX.into())?;
        range("controller.command_ns", controller.command_ns, 0, 1_000_000_000)?;
        range("controller.read_bytes_per_second", controller.read_bytes_per_second, 1_000, 1 << 50)?;
        range("controller.write_bytes_per_second", controller.write_bytes_per_second, 1_000, 1 << 50)?;
        let Some(cache) = &self.cache else { return Ok(()) };
        range("cache.fills_max", cache.fills_max.into(), 1, FILLS_MAX.into())?;
        range("cache.dram.read_ns", cache.dram.read_ns, 0, 1_000_000)?;
        range("cache.dram.write_ns", cache.dram.write_ns, 0, 1_000_000)?;
        range("cache.dram.bytes_per_second", cache.dram.bytes_per_second, 1_000_000, 1 << 50)?;
        let (frames, pages) = (u64::from(cache.cache.frames), self.flash.ftl.logical_units);
        if frames > pages {
            let reason = format!("the cache would have {frames} pages of 4 KiB and the whole device has {pages}");
            return Err(ModelError::Value { key: "cache.size", value: frames, reason });
        }
        let Some(log) = &cache.cache.write_log else { return Ok(()) };
        if cache.block_commands == BlockCommands::Around {
            let reason =
                "a write log has newer lines than flash and pages, so that block commands must go through it; \
                          set cache.block_commands to \"through\""
                    .to_owned();
            return Err(ModelError::Value {
                key: "cache.write_log.lines_per_half",
                value: log.lines_per_half.into(),
                reason,
            });
        }
        Ok(())
    }
}

fn range(key: &'static str, value: u64, min: u64, max: u64) -> Result<(), ModelError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ModelError::Value { key, value, reason: format!("choose a value from {min} to {max}") })
}
