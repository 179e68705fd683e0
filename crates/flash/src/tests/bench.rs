//! The device that the tests run on.

pub use crate::faulty::{Bench, NandArray, extent};
pub(crate) use crate::rng::Rng;
use crate::*;

/// A small device: two channels, 512 KiB superblocks.
pub const GEOMETRY: Geometry = Geometry {
    channels: 2,
    dies_per_channel: 1,
    planes_per_die: 2,
    blocks_per_plane: 16,
    pages_per_block: 8,
    page_bytes: 4096,
};

pub const TIMING: Timing =
    Timing { read_ns: 40_000, program_ns: 200_000, erase_ns: 2_000_000, channel_bytes_per_second: 800_000_000 };

pub const PARAMS: FtlParams = FtlParams {
    over_provisioning_permille: 70,
    gc_free_superblocks_low: 3,
    gc_free_superblocks_min: 1,
    with_data: true,
    thin: false,
};

pub fn new_bench(geometry: Geometry, params: FtlParams, logical_blocks: u64) -> Bench {
    let ftl = Ftl::new(geometry, TIMING, params, logical_blocks).unwrap();
    Bench::over(ftl, NandArray::new(geometry, 0xff, 1))
}
