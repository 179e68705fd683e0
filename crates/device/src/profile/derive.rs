//! What follows from a profile: nothing is stated in it twice.

use super::{
    BLOCK_BYTES, CacheConfig, CacheSection, CacheSize, ConfigError, ControllerConfig, CxlFlit, CxlMessage, FRAMES_MAX,
    Geometry, Kind, Link, LinkConfig, LinkPath, ModelCache, ModelConfig, ModelError, PageFtlConfig, PageFtlParams,
    Profile, Time, Timing, Transaction, WriteLogConfig,
};
use osier_link::Direction;

use crate::window::Sampling;

/// Bytes of a line of the host's cache.
const LINE_BYTES: u32 = 64;
/// Fewest blocks of a plane that a shrunk page map is tried with.
const BLOCKS_MIN: u32 = 8;
/// Bytes of the stream whose rate stands for the link's.
const STREAM_BYTES: u32 = 1 << 20;

impl Profile {
    /// The flash array of the log of extents.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        let of = &self.geometry;
        Geometry {
            channels: of.channels,
            dies_per_channel: of.chips_per_channel.saturating_mul(of.dies_per_chip),
            planes_per_die: of.planes_per_die,
            blocks_per_plane: of.blocks_per_plane,
            pages_per_block: of.pages_per_block,
            page_bytes: of.page_bytes,
        }
    }

    /// The flash operations of the log of extents: of several page types, the mean.
    #[must_use]
    pub fn timing(&self) -> Timing {
        let mean = |ns: &[u64]| {
            let sum: u128 = ns.iter().map(|&ns| u128::from(ns)).sum();
            u64::try_from(sum / (ns.len() as u128).max(1)).unwrap_or(u64::MAX)
        };
        Timing {
            read_ns: mean(&self.timing.read_ns),
            program_ns: mean(&self.timing.program_ns),
            erase_ns: self.timing.erase_ns,
            channel_bytes_per_second: self.timing.channel_bytes_per_second,
        }
    }

    /// The link as the real-time core has it.
    ///
    /// The rate is that of a long stream of data towards the host, in bytes of data over the time that the wire is
    /// taken: lines of CXL.mem where the link has them, else writes of the host's memory by the device in packets of
    /// the largest size. The latency is that of one load of a line on an idle link, `device_read_ns` included.
    #[must_use]
    pub fn link_path(&self) -> LinkPath {
        let rate = stream_rate(&self.link) / u64::from(self.scale.rate_divisor.max(1));
        LinkPath { bytes_per_second: rate.max(1), round_trip_ns: load_ns(&self.link) }
    }

    /// Logical bytes of the whole device with a page map.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.units_of(self.geometry.blocks_per_plane) * u64::from(BLOCK_BYTES)
    }

    /// Logical units that so many blocks of each plane leave users.
    fn units_of(&self, blocks_per_plane: u32) -> u64 {
        let mut shape = self.geometry.shape();
        shape.blocks_per_plane = blocks_per_plane;
        let share = u64::from(1000_u32.saturating_sub(self.ftl.over_provisioning_permille));
        shape.units() / 1000 * share + shape.units() % 1000 * share / 1000
    }

    /// The page map over so many blocks of each plane; spare blocks and the cached part of the map shrink along.
    fn page_map(&self, blocks_per_plane: u32, logical_units: u64) -> PageFtlConfig {
        let all = self.geometry.blocks_per_plane.max(1);
        let part = |whole: u32| {
            let part = (u64::from(whole) * u64::from(blocks_per_plane)).div_ceil(all.into());
            u32::try_from(part).unwrap_or(whole)
        };
        let mut shape = self.geometry.shape();
        shape.blocks_per_plane = blocks_per_plane;
        PageFtlConfig {
            shape,
            order: self.geometry.stripe_order,
            timing: self.timing.clone(),
            errors: self.errors.clone(),
            ftl: PageFtlParams {
                logical_units,
                spare_blocks_per_plane: part(self.ftl.spare_blocks_per_plane),
                streams: self.ftl.streams,
                slots_per_die_max: self.ftl.slots_per_die_max,
                collection: self.ftl.collection,
                wear: self.ftl.wear,
                checkpoint_superblocks: self.ftl.checkpoint_superblocks,
                map_cache_pages: part(self.ftl.map_cache_pages),
            },
        }
    }

    /// The page map over the whole array.
    pub(super) fn whole_page_map(&self) -> PageFtlConfig {
        let blocks = self.geometry.blocks_per_plane;
        self.page_map(blocks, self.units_of(blocks))
    }

    /// The page map with the fewest blocks of each plane that leave users so many units.
    fn page_map_for(&self, units: u64) -> Result<PageFtlConfig, ModelError> {
        let fits = |blocks: u32| self.units_of(blocks) >= units && self.page_map(blocks, units).validate().is_ok();
        let (mut low, mut high) = (BLOCKS_MIN, self.geometry.blocks_per_plane);
        while low < high {
            let middle = low + (high - low) / 2;
            if fits(middle) { high = middle } else { low = middle + 1 }
        }
        let map = self.page_map(high, units);
        map.validate()?;
        Ok(map)
    }

    /// The model of a device of this profile: of the whole array, or created smaller with fewer blocks of each plane.
    ///
    /// # Errors
    /// When the capacity is more than the array has, or something does not fit it: the cache, for one.
    ///
    /// # Panics
    /// When the profile is scaled: in virtual time there is nothing to gain by that.
    pub fn model(&self, capacity_bytes: Option<u64>) -> Result<ModelConfig, ModelError> {
        assert_eq!(self.scale, super::Scale::default(), "a model is made of a profile as it is in its file");
        let flash = match capacity_bytes {
            None => self.whole_page_map(),
            Some(bytes) => {
                let (unit, most) = (u64::from(BLOCK_BYTES), self.capacity_bytes());
                if bytes < unit || bytes > most {
                    let reason = format!("profile {} has {unit} to {most} bytes", self.device.name);
                    return Err(ModelError::Value { key: "capacity", value: bytes, reason });
                }
                self.page_map_for(bytes / unit)?
            }
        };
        let cache = self.cache.as_ref().map(|cache| cache.for_pages(flash.ftl.logical_units)).transpose()?;
        let sampling = self.window.map_or(Sampling::default(), |window| Sampling {
            pages: window.sample_pages,
            period_ns: u64::from(window.sample_period_us) * 1000,
        });
        let (link, controller) = (self.link.clone(), self.controller_config());
        let config = ModelConfig { flash, link, controller, cache, sampling };
        config.validate()?;
        Ok(config)
    }

    fn controller_config(&self) -> ControllerConfig {
        let controller = &self.controller;
        ControllerConfig {
            command_ns: controller.command_ns,
            read_bytes_per_second: controller.read_bytes_per_second,
            write_bytes_per_second: controller.write_bytes_per_second,
            queue_entries: controller.queue_entries,
            data_transfer: controller.data_transfer,
        }
    }
}

impl CacheSection {
    /// The cache of a device of so many pages.
    fn for_pages(&self, pages: u64) -> Result<ModelCache, ModelError> {
        let wanted = match self.size {
            CacheSize::Bytes(bytes) => bytes / u64::from(BLOCK_BYTES),
            CacheSize::Permille(share) => (u128::from(pages) * u128::from(share) / 1000) as u64,
        };
        let ways = if self.ways == 0 { wanted } else { self.ways.into() };
        let frames = wanted.checked_div(ways).unwrap_or(0) * ways;
        let refuse = |value, reason| Err(ModelError::Value { key: "cache.size", value, reason });
        if frames > pages {
            let reason = format!(
                "so many pages of 4 KiB are more than the device's {pages}; make the cache smaller or the device larger"
            );
            return refuse(frames, reason);
        }
        if frames == 0 || frames > u64::from(FRAMES_MAX) {
            let reason = format!(
                "the device's {pages} pages of 4 KiB give a cache of {wanted} pages in sets of {ways}: at least one set \
                 and at most {FRAMES_MAX} pages are possible"
            );
            return refuse(wanted, reason);
        }
        let cache = CacheConfig {
            frames: frames as u32,
            ways: ways as u32,
            set_index: self.set_index,
            write: self.write,
            reserve_frames: self.reserve_frames,
            pinned_pages_max: self.pinned_pages_max,
            eviction: self.eviction.clone(),
            eviction_parameters: self.eviction_parameters.clone(),
            prefetch: self.prefetch.clone(),
            prefetch_parameters: self.prefetch_parameters.clone(),
            write_log: self.write_log.map(|log| WriteLogConfig {
                lines_per_page: BLOCK_BYTES / LINE_BYTES,
                lines_per_half: log.lines_per_half,
            }),
        };
        cache.shape()?;
        Ok(ModelCache {
            cache,
            dram: self.dram,
            fills_max: self.fills_max,
            block_commands: self.block_commands,
            survives_power_loss: self.survives_power_loss,
        })
    }
}

fn stream_rate(link: &LinkConfig) -> u64 {
    let lines = STREAM_BYTES / LINE_BYTES;
    let traffic = if link.cxl_flit == CxlFlit::None {
        let page =
            |index: u32| Transaction::dma_write(Kind::Data, (1 << 40) + u64::from(index * BLOCK_BYTES), BLOCK_BYTES);
        Link::pipelined(link, (0..STREAM_BYTES / BLOCK_BYTES).map(page))
    } else {
        Link::pipelined(link, (0..lines).map(|_| Transaction::cxl(CxlMessage::ReadData)))
    };
    // A link that was refused has no rate; the check of the profile says why.
    let wire_bytes = traffic.map_or(0, |traffic| traffic.direction(Direction::Upstream).wire_bytes);
    let picos = u128::from(link.wire_picos(wire_bytes)).max(1);
    u64::try_from(u128::from(STREAM_BYTES) * 1_000_000_000_000 / picos).unwrap_or(u64::MAX)
}

fn load_ns(config: &LinkConfig) -> u64 {
    let Ok(mut link) = Link::new(config) else { return 0 };
    if config.cxl_flit == CxlFlit::None {
        return link.transfer(Time::ZERO, Transaction::register_read(1 << 40, LINE_BYTES)).at.nanos_ceil();
    }
    let asked = link.transfer(Time::ZERO, Transaction::cxl(CxlMessage::Request)).at;
    let answered = asked.plus_nanos(config.device_read_ns);
    link.transfer(answered, Transaction::cxl(CxlMessage::ReadData)).at.nanos_ceil()
}

/// A key of the flash's configuration as the profile spells it.
pub(super) fn key_of(error: &ConfigError) -> String {
    match error.key {
        "ftl.logical_units" => "ftl.over_provisioning_permille".to_owned(),
        "order" => "geometry.stripe_order".to_owned(),
        key => key.strip_prefix("shape.").map_or_else(|| key.to_owned(), |name| format!("geometry.{name}")),
    }
}
