//! What tests of servers over sockets share.

pub mod memory;

use std::sync::Arc;

use memory::{Disk, MemoryExport};
use osier_front::volume::{self, Export};

/// A disk as an export. `late`: the seed of volumes that end requests in another order.
pub fn export(disk: &Arc<Disk>, late: Option<u64>) -> Arc<dyn Export> {
    Arc::new(MemoryExport { late, ..MemoryExport::new("memory", disk) })
}

/// Bytes that are all different enough.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut draw = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..length).map(|_| draw()).collect()
}
