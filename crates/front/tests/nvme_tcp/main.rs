//! The NVMe/TCP target over real sockets, with a host of the tests' own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod gated;
mod host;
mod serving;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;

use common::export;
use common::memory::Disk;
use host::{Host, Terms};
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
        let mut config = Config::at(([127, 0, 0, 1], 0).into());
        change(&mut config);
        Rig { server: Server::start(export(&disk, late), config).unwrap(), disk }
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
