//! Parameters of the page-mapped FTL, and what they must fulfil.

use serde::{Deserialize, Serialize};

use super::mirror::Mirror;
use crate::array::{ArrayTiming, ConfigError, ErrorParams, Order, Shape};

/// Everything that describes the array and its FTL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageFtlConfig {
    /// The array's shape.
    pub shape: Shape,
    /// In which order a stripe visits the parts of the array.
    pub order: Order,
    /// How long operations take.
    pub timing: ArrayTiming,
    /// How they fail.
    pub errors: ErrorParams,
    /// How the FTL manages space.
    pub ftl: PageFtlParams,
}

/// How the FTL manages space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageFtlParams {
    /// Logical capacity in units of 4 KiB.
    pub logical_units: u64,
    /// Blocks of each plane that replace bad ones; the others form superblocks.
    pub spare_blocks_per_plane: u32,
    /// What is written together.
    pub streams: Streams,
    /// Slots (what one program fills) with host writes that one die may hold, the one that runs included: 1
    /// to 1,024. A write that would begin another waits.
    pub slots_per_die_max: u32,
    /// Garbage collection.
    pub collection: Collection,
    /// Wear levelling.
    pub wear: WearLevelling,
    /// A checkpoint of the map begins when so many superblocks were opened since the last one began; 0
    /// keeps nothing on the media from which a map could be recovered. Recovery reads at most about twice
    /// as many superblocks.
    pub checkpoint_superblocks: u32,
    /// Pages of the map (1,024 entries each) that are cached; 0 keeps the whole map in memory.
    pub map_cache_pages: u32,
}

/// What is written to superblocks of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Streams {
    /// Host writes and relocated data go to one log.
    Shared,
    /// Host writes and relocated data are apart.
    Separate,
    /// Besides, host writes are hot or cold: hot when the unit's last version is in one of the youngest
    /// quarter of the superblocks.
    HotCold,
}

/// Garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collection {
    /// Which superblock is collected.
    pub policy: VictimPolicy,
    /// Superblocks that only collection may take: at least 1.
    pub free_min: u32,
    /// Collection is urgent while no more superblocks than this are free: at least `free_min`. Its
    /// operations then compete with the host's in the order of their arrival.
    pub free_foreground: u32,
    /// Collection runs while no more superblocks than this are free: at least `free_foreground`.
    pub free_background: u32,
    /// Whether the host's operations go before those of collection while it is not urgent.
    pub preemptible: bool,
    /// Slots of the victim that are read at the same time: 1 to 4,096.
    pub moves_max: u32,
}

/// Which superblock is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VictimPolicy {
    /// The one with the fewest valid units, exactly, in constant time.
    Greedy,
    /// The one that was closed first.
    Fifo,
    /// The one with the largest `age * (1 - u) / 2u` (Rosenblum and Ousterhout, 1992), where `u` is the
    /// valid share and age counts superblocks opened since; exact up to 64 candidates, of which more are
    /// drawn at random.
    CostBenefit,
    /// The one with the fewest valid units of so many drawn at random: 1 to 64.
    Choices(u32),
}

/// Wear levelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WearLevelling {
    /// Whether the free superblock with the fewest erases is opened next, instead of the one that has been
    /// free for longest.
    pub dynamic: bool,
    /// When the erases of two superblocks differ by more than this, the one with the fewest is collected,
    /// whatever it holds; 0 never does.
    pub spread_max: u32,
}

/// Candidates that [`VictimPolicy::CostBenefit`] looks at.
pub(crate) const CANDIDATES_MAX: u32 = 64;
/// Entries of one page of the map: 4 KiB of 4 bytes each.
pub(crate) const ENTRIES_PER_MAP_PAGE: u64 = 1024;
/// Most units of one slot: 8 planes of 16 units, so that a slot's units fit into the bits of a number.
const SLOT_UNITS_MAX: u32 = 128;
/// Records of a checkpoint area beyond the map and the bad blocks: two of trims and the root.
const AREA_RECORDS_MORE: u32 = 3;
/// Trims, or blocks that went bad, that one unit of 4 KiB records, 24 bytes each.
pub(crate) const NOTES_PER_UNIT: u32 = 170;

/// Sizes that follow from a configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub stripes: u32,
    pub slot_planes: u32,
    pub slot_units: u32,
    pub slots_per_superblock: u32,
    pub superblock_units: u32,
    pub superblocks: u32,
    /// Superblocks of one of the two checkpoint areas, which come first; 0 without checkpoints.
    pub area_superblocks: u32,
    /// Records of the map in a checkpoint; each takes a slot.
    pub map_slots: u32,
    /// Records of blocks that went bad in a checkpoint, at most.
    pub bad_slots: u32,
    /// Records of one area that there is room for at least, twice.
    pub area_records: u32,
    /// Pages of the map that the log holds (with a cached map).
    pub map_pages: u32,
    pub streams: u32,
}

impl Sizes {
    pub(crate) fn new(config: &PageFtlConfig) -> Sizes {
        let (shape, ftl) = (&config.shape, &config.ftl);
        let slot_planes = if config.timing.multi_plane { shape.planes_per_die } else { 1 };
        let stripes = shape.planes() / slot_planes;
        let slot_units = slot_planes * shape.units_per_page();
        assert!(slot_units <= SLOT_UNITS_MAX, "the shape was validated");
        let slots_per_superblock = stripes * shape.pages_per_block;
        let map_pages = ftl.logical_units.div_ceil(ENTRIES_PER_MAP_PAGE) as u32;
        let cached = ftl.map_cache_pages > 0;
        let entries = ftl.logical_units + if cached { u64::from(map_pages) } else { 0 };
        let map_slots = entries.div_ceil(ENTRIES_PER_MAP_PAGE * u64::from(slot_units)) as u32;
        let superblocks = shape.blocks_per_plane - ftl.spare_blocks_per_plane;
        // Each spare block replaces one, and each superblock is given up once.
        let bad_most = shape.planes() * ftl.spare_blocks_per_plane + superblocks;
        let can_fail = config.errors.program_fail_ppm > 0 || config.errors.erase_fail_ppm > 0;
        let bad_slots = if can_fail { bad_most.div_ceil(NOTES_PER_UNIT * slot_units) } else { 0 };
        let mut sizes = Sizes {
            stripes,
            slot_planes,
            slot_units,
            slots_per_superblock,
            superblock_units: slots_per_superblock * slot_units,
            superblocks,
            area_superblocks: 0,
            map_slots,
            bad_slots,
            area_records: map_slots + bad_slots + AREA_RECORDS_MORE,
            map_pages: if cached { map_pages } else { 0 },
            streams: match ftl.streams {
                Streams::Shared => 1,
                Streams::Separate => 2,
                Streams::HotCold => 3,
            },
        };
        if ftl.checkpoint_superblocks > 0 {
            let mirror = Mirror::new(&shape.stripes(config.order, config.timing.multi_plane), |_| true);
            sizes.area_superblocks = (2 * sizes.area_records).div_ceil(slots_per_superblock);
            // The last group may be cut off.
            while mirror.records(&sizes) < sizes.area_records {
                sizes.area_superblocks += 1;
            }
        }
        sizes
    }

    /// Superblocks of the log.
    pub(crate) fn data_superblocks(&self) -> u32 {
        self.superblocks.saturating_sub(2 * self.area_superblocks)
    }

    /// Logical units for which collection always finds something to gain, with so many superblocks.
    pub(crate) fn logical_units_max(&self, ftl: &PageFtlParams, data_superblocks: u32) -> u64 {
        let closed = data_superblocks.saturating_sub(self.streams + ftl.collection.free_min);
        // Whatever the data, some victim has a slot of garbage. Where slots are programmed half empty, to
        // free copies and for each checkpoint, it must have more than that costs.
        let pads = if self.slot_units == 1 { 0 } else { 1 + u32::from(self.area_superblocks > 0) };
        let garbage = (1 + pads) * self.slot_units;
        let units = u64::from(closed) * u64::from(self.superblock_units.saturating_sub(garbage));
        units.saturating_sub(u64::from(self.map_pages))
    }
}

impl PageFtlConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// Names the first value that cannot work, why, and what would.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.shape.validate()?;
        self.timing.validate()?;
        self.errors.validate(self.timing.page_types())?;
        let ftl = &self.ftl;
        let per_plane = u64::from(self.shape.blocks_per_plane);
        let spare = u64::from(ftl.spare_blocks_per_plane);
        ConfigError::range("ftl.spare_blocks_per_plane", spare, 0, per_plane - 8)?;
        if self.errors.factory_bad_ppm > 0 && spare == 0 {
            let reason = "blocks that are bad from the start need spare ones; give at least 1";
            return Err(ConfigError::new("ftl.spare_blocks_per_plane", 0, reason));
        }
        let free = &ftl.collection;
        let superblocks = per_plane - spare;
        let (min, foreground) = (u64::from(free.free_min), u64::from(free.free_foreground));
        ConfigError::range("ftl.collection.free_min", min, 1, superblocks / 4)?;
        ConfigError::range("ftl.collection.free_foreground", foreground, min, superblocks / 2)?;
        let background = u64::from(free.free_background);
        ConfigError::range("ftl.collection.free_background", background, foreground, superblocks / 2)?;
        ConfigError::range("ftl.collection.moves_max", u64::from(free.moves_max), 1, 4096)?;
        ConfigError::range("ftl.slots_per_die_max", u64::from(ftl.slots_per_die_max), 1, 1024)?;
        if let VictimPolicy::Choices(count) = free.policy {
            ConfigError::range("ftl.collection.policy.choices", u64::from(count), 1, u64::from(CANDIDATES_MAX))?;
        }
        ConfigError::range("ftl.logical_units", ftl.logical_units, 1, self.shape.units())?;
        let map_pages = ftl.logical_units.div_ceil(ENTRIES_PER_MAP_PAGE);
        ConfigError::range("ftl.map_cache_pages", u64::from(ftl.map_cache_pages), 0, map_pages)?;
        self.validate_capacity()
    }

    fn validate_capacity(&self) -> Result<(), ConfigError> {
        let sizes = Sizes::new(self);
        let data = sizes.data_superblocks();
        let fewest = sizes.streams + self.ftl.collection.free_min + 1;
        if data < fewest {
            let reason = format!(
                "of {} superblocks two checkpoint areas take {}, and {} of {} units each would have to do for {} open \
                 ones, {} free ones and data; use more blocks, or fewer spare ones",
                sizes.superblocks,
                2 * sizes.area_superblocks,
                data,
                sizes.superblock_units,
                sizes.streams,
                self.ftl.collection.free_min
            );
            return Err(ConfigError::new("shape.blocks_per_plane", self.shape.blocks_per_plane, reason));
        }
        let most = sizes.logical_units_max(&self.ftl, data);
        if self.ftl.logical_units > most {
            let reason = format!(
                "at most {most} units of 4 KiB leave collection something to gain, with {data} superblocks of {} units \
                 for data; use fewer, or more blocks",
                sizes.superblock_units
            );
            return Err(ConfigError::new("ftl.logical_units", self.ftl.logical_units, reason));
        }
        Ok(())
    }

    /// The most logical units that [`PageFtlConfig::validate`] accepts with everything else as it is.
    ///
    /// The map's own pages depend on the capacity, so that it is searched for.
    #[must_use]
    pub fn logical_units_max(&self) -> u64 {
        let fits = |units: u64| {
            let mut config = self.clone();
            config.ftl.logical_units = units;
            config.ftl.map_cache_pages = config.ftl.map_cache_pages.min(units.div_ceil(ENTRIES_PER_MAP_PAGE) as u32);
            units == 0 || config.validate().is_ok()
        };
        let (mut low, mut high) = (0, self.shape.units() + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        low
    }
}
