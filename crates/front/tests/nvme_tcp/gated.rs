//! A volume that holds its connection's thread as long as a gate is shut, as a device that stays away may.

use std::os::fd::BorrowedFd;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use osier_front::nvme_tcp::{Config, Server};
use osier_front::volume::{About, Ended, Export, Operation, Volume};

use super::BLOCK;
use super::common::memory::{Disk, MemoryExport};
use super::common::noise;
use super::host::{HOST, Host, Sqe, Terms, connect_data};

#[derive(Default)]
struct Gate {
    /// Whether it is shut, and how many have come to it.
    state: Mutex<(bool, u32)>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        *self.state.lock().unwrap() = (is_shut, 0);
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |(is_shut, _)| *is_shut).unwrap());
    }

    /// Waits until somebody has come to it since it was set.
    fn await_somebody(&self) {
        let limit = Duration::from_secs(60);
        let nobody = |state: &mut (bool, u32)| state.1 == 0;
        let (_state, waited) = self.changed.wait_timeout_while(self.state.lock().unwrap(), limit, nobody).unwrap();
        assert!(!waited.timed_out(), "nobody comes to the gate");
    }
}

/// Opens the gate when a test fails, so that the server can end.
struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

struct Gated {
    volume: Box<dyn Volume>,
    gate: Arc<Gate>,
}

impl Volume for Gated {
    fn blocks(&self) -> u64 {
        self.volume.blocks()
    }

    fn is_read_only(&self) -> bool {
        self.volume.is_read_only()
    }

    fn about(&self) -> About {
        self.volume.about()
    }

    fn transfer_blocks_max(&self) -> u32 {
        self.volume.transfer_blocks_max()
    }

    fn submit(&mut self, token: u64, operation: Operation) -> Result<(), Operation> {
        self.gate.pass();
        self.volume.submit(token, operation)
    }

    fn reap(&mut self, ended: &mut Vec<Ended>) {
        self.volume.reap(ended);
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.volume.event()
    }

    fn arm(&mut self) -> bool {
        self.volume.arm()
    }
}

struct GatedExport {
    export: MemoryExport,
    gate: Arc<Gate>,
}

impl Export for GatedExport {
    fn name(&self) -> &str {
        self.export.name()
    }

    fn open(&self) -> Result<Box<dyn Volume>, String> {
        Ok(Box::new(Gated { volume: self.export.open()?, gate: Arc::clone(&self.gate) }))
    }
}

/// A write that its host has given up must not be carried out behind what the host writes when it has connected anew.
#[test]
fn a_host_is_let_in_when_what_it_lost_has_left() {
    let (disk, gate) = (Arc::new(Disk::new(1)), Arc::new(Gate::default()));
    let export = GatedExport { export: MemoryExport::new("memory", &disk), gate: Arc::clone(&gate) };
    let server = Server::start(Arc::new(export), Config::at(([127, 0, 0, 1], 0).into())).unwrap();
    let _opens = Opens(Arc::clone(&gate));
    let (address, name) = (server.tcp().unwrap(), server.nqn().to_owned());
    let [old, new] = [1, 2].map(|seed| noise(BLOCK, seed));

    let (admin, controller) = Host::admin(address, Terms::default(), &name);
    let mut io = Host::io(address, Terms::default(), 1, controller, &name);
    gate.set(true);
    io.submit(Sqe::blocks(1, 1, 0, 1).inside(BLOCK as u32), &old);
    gate.await_somebody();
    // In one go, so that the admin queue's thread has not noticed either when the host is back.
    drop((admin, io));

    let (sender, receiver) = channel();
    let back = std::thread::spawn(move || {
        let mut admin = Host::dial(address, Terms::default());
        let cqe = admin.connect(0, &connect_data(0xFFFF, &name, HOST));
        sender.send(cqe.status).unwrap();
        assert_eq!(cqe.status, 0);
        admin.enable();
        let mut io = Host::io(address, Terms::default(), 1, cqe.result as u16, &name);
        assert_eq!(io.run(Sqe::blocks(1, 0, 0, 1).inside(BLOCK as u32), &new).0.status, 0);
        new
    });
    assert!(receiver.recv_timeout(Duration::from_secs(1)).is_err(), "it is let in");
    gate.set(false);
    assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(0));
    let new = back.join().unwrap();
    assert!(*disk.bytes.read().unwrap() == new, "what was written last is there");
}
