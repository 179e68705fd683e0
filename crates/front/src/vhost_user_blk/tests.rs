//! A front end and a driver in one, over memory of their own, against volumes that end requests in any order, that are
//! lost with their device, and back ends that end at any time and are followed by others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use vhost::vhost_user::VhostUserBackendReqHandlerMut;
use vhost::vhost_user::message::{
    VhostUserInflight, VhostUserMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags,
};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_S_IOERR};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, FileOffset, GuestAddress};

use super::backend::Backend;
use super::config::Shape;
use super::request::Memory;
use super::ring::End;
use super::{Config, ServeError, Server};
use crate::memory::{Disk, MemoryExport};
use crate::sys::{self, Wait};
use crate::volume::{About, BLOCK_BYTES, Ended, Export, Operation, Volume, VolumeError};

const BLOCKS: u64 = 64;
const QUEUE: u16 = 64;
/// A request has a header, data and a status, each with a descriptor.
const SLOTS: u16 = QUEUE / 3;
const MEMORY_BYTES: u64 = 1 << 20;
/// The front end has the guest's memory at another place than the guest.
const USER: u64 = 0x7f00_0000_0000;
const TABLE: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const HEADERS: u64 = 0x4000;
const DATA: u64 = 0x1_0000;
const DATA_BYTES: u64 = 0x8000;
/// After so long it is a hang.
const LIMIT: Duration = Duration::from_secs(60);

struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

/// What a request under way does to its blocks.
#[derive(Clone)]
struct Doing {
    kind: u32,
    block: u64,
    blocks: u64,
    fill: u8,
}

/// A driver of one queue, and the front end that sets it up.
struct Machine {
    file: File,
    memory: Memory,
    inflight: Option<(VhostUserInflight, File)>,
    kick: OwnedFd,
    call: OwnedFd,
    error: OwnedFd,
    features: u64,
    available: u16,
    used: u16,
    doing: BTreeMap<u16, Doing>,
    /// The heads in the order in which they were made available.
    order: Vec<u16>,
    is_in_order: bool,
    /// What each block holds.
    model: Vec<u8>,
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

fn file_of(fd: &OwnedFd) -> Option<File> {
    Some(File::from(fd.try_clone().unwrap()))
}

fn is_readable(fd: &OwnedFd, milliseconds: u32) -> bool {
    sys::wait(&[Wait { fd: fd.as_fd(), to_read: true, to_write: false }], Some(milliseconds)).unwrap();
    rustix::io::read(fd, &mut [0_u8; 8]).is_ok()
}

impl Machine {
    fn new(more_features: u64) -> Machine {
        let file = tempfile::tempfile().unwrap();
        file.set_len(MEMORY_BYTES).unwrap();
        let at = FileOffset::new(file.try_clone().unwrap(), 0);
        let memory = Memory::from_ranges_with_files([(GuestAddress(0), MEMORY_BYTES as usize, Some(at))]).unwrap();
        Machine {
            file,
            memory,
            inflight: None,
            kick: event(),
            call: event(),
            error: event(),
            features: VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() | 1 << 32 | more_features,
            available: 0,
            used: 0,
            doing: BTreeMap::new(),
            order: Vec::new(),
            is_in_order: false,
            model: vec![0; BLOCKS as usize],
        }
    }

    /// Sets a back end up, as QEMU does: with the used ring's index as the place from which on it goes on.
    fn connect(&mut self, export: &Arc<dyn Export>, with_inflight: bool) -> Backend {
        let volume = loop {
            match export.open() {
                Ok(volume) => break volume,
                Err(_) => std::thread::yield_now(),
            }
        };
        let shape = Arc::new(Shape::of(&*volume, "disk", 2));
        drop(volume);
        let mut backend = Backend::new(Arc::clone(export), shape);
        if with_inflight {
            if self.inflight.is_none() {
                self.inflight = Some(backend.get_inflight_fd(&VhostUserInflight::new(0, 0, 2, QUEUE)).unwrap());
            }
            let (area, file) = self.inflight.as_ref().unwrap();
            backend.set_inflight_fd(area, file.try_clone().unwrap()).unwrap();
        }
        self.is_in_order = !with_inflight;
        backend.set_features(self.features).unwrap();
        let region = VhostUserMemoryRegion::new(0, MEMORY_BYTES, USER, 0);
        backend.set_mem_table(&[region], vec![self.file.try_clone().unwrap()], None).unwrap();
        backend.set_vring_num(0, u32::from(QUEUE)).unwrap();
        backend.set_vring_base(0, u32::from(self.used_idx())).unwrap();
        let flags = VhostUserVringAddrFlags::empty();
        backend.set_vring_addr(0, flags, USER + TABLE, USER + USED, USER + AVAILABLE, 0).unwrap();
        backend.set_vring_err(0, file_of(&self.error)).unwrap();
        backend.set_vring_kick(0, file_of(&self.kick)).unwrap();
        backend.set_vring_call(0, file_of(&self.call)).unwrap();
        backend.set_vring_enable(0, true).unwrap();
        backend
    }

    fn used_idx(&self) -> u16 {
        self.memory.load(GuestAddress(USED + 2), Ordering::Acquire).unwrap()
    }

    fn header_at(head: u16) -> GuestAddress {
        GuestAddress(HEADERS + u64::from(head / 3) * 64)
    }

    fn data_at(head: u16) -> GuestAddress {
        GuestAddress(DATA + u64::from(head / 3) * DATA_BYTES)
    }

    /// Makes a request available; the driver tells of it.
    fn submit(&mut self, head: u16, doing: Doing) {
        let Doing { kind, block, blocks, fill } = doing;
        let (mut sector, mut bytes, mut is_written) = (block * 8, (blocks as usize * BLOCK_BYTES) as u32, true);
        match kind {
            1 => {
                let data = vec![fill; bytes as usize];
                self.memory.write_slice(&data, Machine::data_at(head)).unwrap();
                is_written = false;
            }
            13 => {
                self.memory.write_obj(block * 8, Machine::data_at(head)).unwrap();
                self.memory.write_obj(blocks * 8, Machine::data_at(head).plus(8)).unwrap();
                (sector, bytes, is_written) = (0, 16, false);
            }
            4 => bytes = 0,
            _ => {}
        }
        self.memory.write_obj(u64::from(kind), Machine::header_at(head)).unwrap();
        self.memory.write_obj(sector, Machine::header_at(head).plus(8)).unwrap();
        self.memory.write_obj(0xee_u8, Machine::header_at(head).plus(16)).unwrap();
        let status = Machine::header_at(head).plus(16);
        let parts = [
            Descriptor::new(Machine::header_at(head).0, 16, 1, head + 1),
            Descriptor::new(Machine::data_at(head).0, bytes, 1 | if is_written { 2 } else { 0 }, head + 2),
            Descriptor::new(status.0, 1, 2, 0),
        ];
        for (place, descriptor) in parts.into_iter().enumerate() {
            let at = TABLE + 16 * (u64::from(head) + place as u64);
            self.memory.write_obj(descriptor, GuestAddress(at)).unwrap();
        }
        self.doing.insert(head, doing);
        self.order.push(head);
        self.make_available(head);
    }

    fn make_available(&mut self, head: u16) {
        let at = AVAILABLE + 4 + 2 * u64::from(self.available % QUEUE);
        self.memory.write_obj(head, GuestAddress(at)).unwrap();
        self.available = self.available.wrapping_add(1);
        self.memory.store(self.available, GuestAddress(AVAILABLE + 2), Ordering::Release).unwrap();
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).unwrap();
    }

    /// What has been used since the last look: heads and lengths.
    fn look(&mut self) -> Vec<(u16, u32)> {
        let mut ended = Vec::new();
        while self.used != self.used_idx() {
            let at = USED + 4 + 8 * u64::from(self.used % QUEUE);
            let head: u32 = self.memory.read_obj(GuestAddress(at)).unwrap();
            let length: u32 = self.memory.read_obj(GuestAddress(at + 4)).unwrap();
            ended.push((head as u16, length));
            self.used = self.used.wrapping_add(1);
            // The next one is to be told of (2.7.7.2).
            let event = AVAILABLE + 4 + 2 * u64::from(QUEUE);
            self.memory.store(self.used, GuestAddress(event), Ordering::SeqCst).unwrap();
        }
        ended
    }

    /// Waits for something to be used, woken by nothing but the interrupt.
    fn wait(&mut self) -> Vec<(u16, u32)> {
        let until = Instant::now() + LIMIT;
        loop {
            let ended = self.look();
            if !ended.is_empty() {
                return ended;
            }
            assert!(Instant::now() < until, "{} requests hang", self.doing.len());
            is_readable(&self.call, 10_000);
        }
    }

    /// A request has to be one that is under way, and has to have done what it was to do.
    fn check(&mut self, head: u16, length: u32) {
        let doing = self.doing.remove(&head).expect("what is used was under way");
        let place = self.order.iter().position(|other| *other == head).unwrap();
        assert!(!self.is_in_order || place == 0, "used in the order in which they were taken");
        self.order.remove(place);
        let status: u8 = self.memory.read_obj(Machine::header_at(head).plus(16)).unwrap();
        assert_eq!(status, 0);
        let blocks = doing.block as usize..(doing.block + doing.blocks) as usize;
        let bytes = doing.blocks as usize * BLOCK_BYTES;
        match doing.kind {
            0 => {
                let mut data = vec![0; bytes];
                self.memory.read_slice(&mut data, Machine::data_at(head)).unwrap();
                for (block, expected) in data.chunks(BLOCK_BYTES).zip(&self.model[blocks]) {
                    assert!(block.iter().all(|byte| byte == expected), "a block is not what was written there");
                }
                assert_eq!(length as usize, bytes + 1);
            }
            1 => self.model[blocks].fill(doing.fill),
            13 => self.model[blocks].fill(0),
            _ => {}
        }
        assert!(doing.kind == 0 || length == 1);
    }

    /// Makes a drawn request available, if there is room and its blocks are free.
    fn submit_drawn(&mut self, draw: &mut Draw) {
        let head = draw.below(u64::from(SLOTS)) as u16 * 3;
        let kind = [0, 0, 1, 1, 1, 4, 13][draw.below(7) as usize];
        let block = draw.below(BLOCKS);
        let blocks = if kind == 4 { 0 } else { 1 + draw.below((BLOCKS - block).min(8)) };
        let wanted: BTreeSet<u64> = (block..block + blocks).collect();
        let is_free = |doing: &Doing| !(doing.block..doing.block + doing.blocks).any(|block| wanted.contains(&block));
        if !self.doing.contains_key(&head) && self.doing.values().all(is_free) {
            self.submit(head, Doing { kind, block, blocks, fill: draw.below(256) as u8 });
        }
    }
}

/// An address a few bytes further.
trait Further {
    fn plus(self, bytes: u64) -> GuestAddress;
}

impl Further for GuestAddress {
    fn plus(self, bytes: u64) -> GuestAddress {
        GuestAddress(self.0 + bytes)
    }
}

const FLUSH: u64 = 1 << VIRTIO_BLK_F_FLUSH;
const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;

/// Nothing of a back end that has gone may still be done: a device sees to that.
fn settle(disk: &Arc<Disk>) {
    let until = Instant::now() + LIMIT;
    while Arc::strong_count(disk) > 2 {
        assert!(Instant::now() < until, "operations of a volume that is gone go on");
        std::thread::yield_now();
    }
}

/// Back ends come and go in the middle of requests; each request ends once, and every byte is what was written.
fn run_with_deaths(seed: u64, with_inflight: bool) {
    let draw = &mut Draw(seed);
    let disk = Arc::new(Disk::new(BLOCKS));
    let export = MemoryExport { late: Some(seed), transfer_blocks_max: 3, ..MemoryExport::new("d", &disk) };
    let export: Arc<dyn Export> = Arc::new(export);
    let mut machine = Machine::new(FLUSH | if draw.below(2) == 0 { EVENT_IDX } else { 0 });
    for life in 0..6 {
        let mut backend = machine.connect(&export, with_inflight);
        for _ in 0..150 {
            if draw.below(3) > 0 || machine.doing.is_empty() {
                machine.submit_drawn(draw);
            } else {
                machine.wait().into_iter().for_each(|(head, length)| machine.check(head, length));
            }
        }
        if life == 5 {
            while !machine.doing.is_empty() {
                machine.wait().into_iter().for_each(|(head, length)| machine.check(head, length));
            }
        } else if draw.below(4) == 0 {
            // Stopped in order: what is under way ends, and nothing else is taken.
            let base = backend.get_vring_base(0).unwrap().num;
            assert_eq!(base as u16, machine.used_idx(), "seed {seed}");
        }
        backend.end(End::Leave);
        settle(&disk);
        machine.look().into_iter().for_each(|(head, length)| machine.check(head, length));
    }
    assert!(!is_readable(&machine.error, 0), "seed {seed}: a ring has broken down");
}

#[test]
fn every_request_ends_once_whenever_the_back_end_dies() {
    (0..25).for_each(|seed| run_with_deaths(seed, true));
}

#[test]
fn every_request_ends_once_too_without_memory_for_what_is_under_way() {
    (100..125).for_each(|seed| run_with_deaths(seed, false));
}

/// An export whose volumes are lost after a few operations, and which cannot be opened now and then.
struct Mortal {
    inner: MemoryExport,
    opens: AtomicU64,
}

struct MortalVolume {
    inner: Box<dyn Volume>,
    left: u64,
}

impl Export for Mortal {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn open(&self) -> Result<Box<dyn Volume>, String> {
        let opens = self.opens.fetch_add(1, Ordering::Relaxed);
        if opens % 3 == 1 {
            return Err("the device is away".to_owned());
        }
        Ok(Box::new(MortalVolume { inner: self.inner.open()?, left: 20 + opens % 7 }))
    }
}

impl Volume for MortalVolume {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn about(&self) -> About {
        self.inner.about()
    }

    fn transfer_blocks_max(&self) -> u32 {
        self.inner.transfer_blocks_max()
    }

    fn submit(&mut self, token: u64, operation: Operation) -> Result<(), Operation> {
        self.left = self.left.saturating_sub(1);
        self.inner.submit(token, operation)
    }

    fn reap(&mut self, ended: &mut Vec<Ended>) {
        let before = ended.len();
        self.inner.reap(ended);
        if self.left == 0 {
            ended[before..].iter_mut().for_each(|ended| ended.outcome = Err(VolumeError::ShutDown));
        }
    }

    fn event(&self) -> std::os::fd::BorrowedFd<'_> {
        self.inner.event()
    }

    fn arm(&mut self) -> bool {
        self.inner.arm()
    }
}

#[test]
fn a_guest_sees_no_error_when_the_device_is_lost_and_comes_back() {
    let disk = Arc::new(Disk::new(BLOCKS));
    let inner = MemoryExport { transfer_blocks_max: 3, ..MemoryExport::new("d", &disk) };
    let export: Arc<dyn Export> = Arc::new(Mortal { inner, opens: AtomicU64::new(0) });
    let (draw, mut machine) = (&mut Draw(7), Machine::new(FLUSH | EVENT_IDX));
    let mut backend = machine.connect(&export, true);
    for _ in 0..400 {
        machine.submit_drawn(draw);
        if machine.doing.len() > 3 {
            machine.wait().into_iter().for_each(|(head, length)| machine.check(head, length));
        }
    }
    while !machine.doing.is_empty() {
        machine.wait().into_iter().for_each(|(head, length)| machine.check(head, length));
    }
    backend.end(End::Leave);
}

fn plain() -> (Arc<Disk>, Arc<dyn Export>) {
    let disk = Arc::new(Disk::new(BLOCKS));
    let export: Arc<dyn Export> = Arc::new(MemoryExport::new("d", &disk));
    (disk, export)
}

#[test]
fn without_flush_each_write_is_persistent_when_it_ends() {
    for (features, fua_writes) in [(0, 1), (FLUSH, 0)] {
        let (disk, export) = plain();
        let mut machine = Machine::new(features);
        let mut backend = machine.connect(&export, true);
        machine.submit(0, Doing { kind: 1, block: 3, blocks: 2, fill: 9 });
        machine.wait().into_iter().for_each(|(head, length)| machine.check(head, length));
        assert_eq!(disk.fua_writes.load(Ordering::Relaxed), fua_writes);
        backend.end(End::Leave);
    }
}

/// A chain that is none, and a request that is refused, are used; what is behind them is done.
#[test]
fn what_is_malformed_is_given_back_and_the_rest_goes_on() {
    let (_, export) = plain();
    let mut machine = Machine::new(FLUSH);
    let mut backend = machine.connect(&export, true);
    machine.memory.write_obj(Descriptor::new(HEADERS, 16, 1, 30), GuestAddress(TABLE + 16 * 30)).unwrap();
    machine.make_available(30);
    assert_eq!(machine.wait(), [(30, 0)]);
    // Beyond the end.
    machine.submit(3, Doing { kind: 0, block: BLOCKS, blocks: 1, fill: 0 });
    assert_eq!(machine.wait(), [(3, 0)]);
    let status: u8 = machine.memory.read_obj(Machine::header_at(3).plus(16)).unwrap();
    assert_eq!(u32::from(status), VIRTIO_BLK_S_IOERR);
    machine.doing.clear();
    machine.order.clear();
    machine.submit(6, Doing { kind: 1, block: 0, blocks: 8, fill: 1 });
    machine.wait().into_iter().for_each(|(head, length)| machine.check(head, length));
    backend.end(End::Leave);
}

/// A driver that breaks the rules of the ring itself is served no more, the front end is told, and nothing hangs.
#[test]
fn a_ring_that_is_none_is_left_alone_until_it_is_set_up_anew() {
    type Harm = fn(&mut Machine);
    let harms: [Harm; 4] = [
        |machine| {
            machine.available = machine.available.wrapping_add(QUEUE + 5);
            machine.make_available(0);
        },
        |machine| machine.make_available(QUEUE),
        |machine| machine.make_available(u16::MAX),
        |machine| machine.kick = event(),
    ];
    for (number, harm) in harms.into_iter().enumerate() {
        let (_, export) = plain();
        let mut machine = Machine::new(FLUSH);
        if number == 3 {
            // A pipe whose other end is closed is ready for ever.
            let (reader, _) = std::io::pipe().unwrap();
            machine.kick = reader.into();
        }
        let mut backend = machine.connect(&export, true);
        harm(&mut machine);
        assert!(is_readable(&machine.error, 10_000), "harm {number}");
        let began = Instant::now();
        backend.get_vring_base(0).unwrap();
        assert!(began.elapsed() < Duration::from_secs(5), "harm {number}");
        backend.end(End::Leave);
    }
}

#[test]
fn what_a_front_end_gets_wrong_is_refused() {
    let (_, export) = plain();
    let mut machine = Machine::new(FLUSH);
    let mut backend = machine.connect(&export, true);
    let whole = |backend: &mut Backend, region| {
        backend.set_mem_table(&[region], vec![machine.file.try_clone().unwrap()], None).is_ok()
    };
    assert!(!whole(&mut backend, VhostUserMemoryRegion::new(0, MEMORY_BYTES, USER, 4096)), "a file that is too short");
    assert!(!whole(&mut backend, VhostUserMemoryRegion::new(u64::MAX - 4095, 8192, USER, 0)));
    assert!(backend.set_vring_num(0, 64).is_err(), "it runs");
    for size in [0, 3, 2048, 65536 + 64] {
        assert!(backend.set_vring_num(1, size).is_err(), "{size}");
    }
    assert!(backend.set_vring_num(2, 64).is_err(), "there is no such queue");
    assert!(backend.set_features(1 << 40).is_err());
    assert!(backend.get_config(250, 7, vhost::vhost_user::message::VhostUserConfigFlags::WRITABLE).is_err());
    assert!(backend.set_vring_kick(1, file_of(&machine.kick)).is_err(), "it has no addresses");
    let flags = VhostUserVringAddrFlags::empty;
    backend.set_vring_num(1, 64).unwrap();
    for (table, used) in [(TABLE + 1, USED), (TABLE, MEMORY_BYTES - 8), (TABLE, USED + 2)] {
        backend.set_vring_addr(1, flags(), USER + table, USER + used, USER + AVAILABLE, 0).unwrap();
        assert!(backend.set_vring_kick(1, file_of(&machine.kick)).is_err(), "{table:#x} {used:#x}");
    }
    backend.set_vring_addr(1, flags(), TABLE, USER + USED, USER + AVAILABLE, 0).unwrap();
    assert!(backend.set_vring_kick(1, file_of(&machine.kick)).is_err(), "an address that nobody has");
    let area = |bytes, queues, size| VhostUserInflight::new(bytes, 0, queues, size);
    for (bytes, queues, size) in [(1 << 20, 3, 64), (1 << 20, 0, 64), (1 << 20, 1, 2048), (64, 2, 64)] {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        assert!(backend.set_inflight_fd(&area(bytes, queues, size), file).is_err(), "{bytes} {queues} {size}");
    }
    let short = tempfile::tempfile().unwrap();
    assert!(backend.set_inflight_fd(&area(1 << 20, 1, 64), short).is_err(), "a file that is too short");
    backend.end(End::Leave);
}

/// The header of a message without a body: its number, version 1, no bytes.
fn message(number: u32) -> Vec<u8> {
    [number, 1, 0].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Whether the back end answers what features it has.
fn is_answered(stream: &mut UnixStream) -> bool {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&message(1)).is_ok() && stream.read_exact(&mut [0; 20]).is_ok()
}

#[test]
fn one_front_end_at_a_time_is_served_and_one_that_talks_nonsense_is_sent_away() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("disk");
    let start = |queues| Server::start(plain().1, Config { socket: socket.clone(), queues });
    assert!(matches!(start(0), Err(ServeError::Queues(0))));
    assert!(matches!(start(65), Err(ServeError::Queues(65))));
    // What a process that was killed left behind.
    drop(UnixListener::bind(&socket).unwrap());
    let server = start(4).unwrap();
    assert!(matches!(start(4), Err(ServeError::Listen(_))), "one that is in use");
    let mut first = UnixStream::connect(&socket).unwrap();
    assert!(is_answered(&mut first));
    assert!(!is_answered(&mut UnixStream::connect(&socket).unwrap()), "a second one");
    assert!(is_answered(&mut first));
    drop(first);
    let draw = &mut Draw(3);
    for _ in 0..300 {
        // As soon as the one before has gone.
        let until = Instant::now() + LIMIT;
        let mut stream = loop {
            let mut stream = UnixStream::connect(&socket).unwrap();
            if is_answered(&mut stream) {
                break stream;
            }
            assert!(Instant::now() < until, "nobody is served any more");
        };
        let mut bytes = message(draw.below(45) as u32);
        let length = draw.below(64) as usize;
        if draw.below(2) == 0 {
            bytes[4..12].copy_from_slice(&[1_u32, length as u32].map(u32::to_ne_bytes).concat());
        }
        bytes.extend((0..length).map(|_| draw.below(256) as u8));
        // It may have closed the connection by then.
        let _ = stream.write_all(&bytes);
    }
    let began = Instant::now();
    server.stop();
    assert!(began.elapsed() < Duration::from_secs(5) && !socket.exists());
}
