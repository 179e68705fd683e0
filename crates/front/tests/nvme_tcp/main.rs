//! The NVMe/TCP target over real sockets, with a host of the tests' own.

#![allow(clippy::unwrap_used)]

mod faults;
mod gated;
mod host;
#[path = "../nbd/memory.rs"]
mod memory;
mod serving;
mod wire;

use osier_front::volume;

use std::net::SocketAddr;
use std::sync::Arc;

use host::{Host, Terms};
use memory::{Disk, MemoryExport};
use osier_front::nvme_tcp::{Config, Server};

const BLOCK: usize = 4096;

/// A target over memory.
struct Rig {
    disk: Arc<Disk>,
    server: Server,
}

impl Rig {
    fn new(blocks: u64) -> Rig {
        Rig::with(Disk::new(blocks), None, |_| {})
    }

    /// `late`: the seed of volumes that end requests in another order.
    fn with(disk: Disk, late: Option<u64>, change: impl FnOnce(&mut Config)) -> Rig {
        let disk = Arc::new(disk);
        let export = MemoryExport { late, ..MemoryExport::new("memory", &disk) };
        let mut config = Config::at(([127, 0, 0, 1], 0).into());
        change(&mut config);
        Rig { server: Server::start(Arc::new(export), config).unwrap(), disk }
    }

    fn address(&self) -> SocketAddr {
        self.server.tcp().unwrap()
    }

    fn admin(&self) -> (Host, u16) {
        Host::admin(self.address(), Terms::default(), self.server.nqn())
    }

    fn io(&self, qid: u16, controller: u16) -> Host {
        Host::io(self.address(), Terms::default(), qid, controller, self.server.nqn())
    }
}

/// Bytes that are all different enough.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut draw = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..length).map(|_| draw()).collect()
}
