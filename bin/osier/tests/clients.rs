//! Programs of the same machine as NVMe clients of a device that is served, and NBD before them: what they wrote is
//! there, whoever dies.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
mod served;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use osier_client::{Ask, Queue, QueueError, Slot};
use osier_device::Status;
use served::*;

const BLOCK: usize = 4096;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }
}

/// A block's bytes, by its address and version; version 0 is zeroes.
fn pattern(block: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    if version > 0 {
        for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
            // Half of each block compresses.
            let value = if index % 2 == 0 { block << 32 | version } else { 0 };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

/// Waits for the next command to end; goes on with another life of the device where this one has ended.
fn reap(queue: &mut Queue) -> (Slot, Status) {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(ended) = queue.reap() {
            return ended;
        }
        assert!(Instant::now() < until, "{} commands do not end", queue.outstanding());
        if queue.has_lost_device() {
            queue.recover(LIMIT).unwrap();
        }
        std::thread::yield_now();
    }
}

/// What a client knows to be in each block, while commands are under way. No two that are under way touch one block.
struct Model {
    versions: Vec<u64>,
    busy: Vec<bool>,
    next: u64,
    out: BTreeMap<usize, (Ask, u64)>,
    checked: u64,
}

impl Model {
    fn new(blocks: u64) -> Model {
        let count = blocks as usize;
        Model { versions: vec![0; count], busy: vec![false; count], next: 1, out: BTreeMap::new(), checked: 0 }
    }

    fn range(ask: &Ask) -> std::ops::Range<usize> {
        let (block, blocks) = match *ask {
            Ask::Read { block, blocks } | Ask::Write { block, blocks, .. } => (block, u64::from(blocks)),
            Ask::WriteZeroes { block, blocks, .. }
            | Ask::Deallocate { block, blocks }
            | Ask::Allocation { block, blocks } => (block, blocks),
            Ask::Flush => (0, 0),
        };
        block as usize..(block + blocks) as usize
    }

    /// Begins a random command, if its blocks are idle.
    fn begin(&mut self, queue: &mut Queue, slot: Slot, random: &mut Random) -> bool {
        let most = queue.transfer_bytes() / BLOCK as u64;
        let blocks = 1 + if random.below(4) == 0 { random.below(most) } else { random.below(4) };
        let block = random.below(self.versions.len() as u64 - blocks);
        let fua = random.below(8) == 0;
        let ask = match random.below(11) {
            0..4 => Ask::Read { block, blocks: blocks as u32 },
            4..7 => Ask::Write { block, blocks: blocks as u32, fua },
            7 => Ask::WriteZeroes { block, blocks, deallocate: random.below(2) == 0, fua },
            8 => Ask::Deallocate { block, blocks },
            9 => Ask::Allocation { block, blocks },
            _ => Ask::Flush,
        };
        let range = Model::range(&ask);
        if self.busy[range.clone()].iter().any(|busy| *busy) {
            return false;
        }
        if matches!(ask, Ask::Write { .. }) {
            for (at, block) in range.clone().enumerate() {
                queue.buffer(slot).write((at * BLOCK) as u64, &pattern(block as u64, self.next));
            }
        }
        self.busy[range].fill(true);
        queue.submit(slot, &ask);
        self.out.insert(slot.index(), (ask, self.next));
        self.next += 1;
        true
    }

    fn end(&mut self, queue: &Queue, slot: Slot, status: Status) {
        let (ask, version) = self.out.remove(&slot.index()).unwrap();
        assert_eq!(status, Status::SUCCESS, "{ask:?}");
        let range = Model::range(&ask);
        self.busy[range.clone()].fill(false);
        match ask {
            Ask::Read { .. } => {
                for (at, block) in range.enumerate() {
                    let mut bytes = vec![0; BLOCK];
                    queue.buffer(slot).read((at * BLOCK) as u64, &mut bytes);
                    let expected = pattern(block as u64, self.versions[block]);
                    assert!(bytes == expected, "block {block} is not version {}", self.versions[block]);
                    self.checked += 1;
                }
            }
            Ask::Write { .. } => self.versions[range].fill(version),
            Ask::WriteZeroes { .. } | Ask::Deallocate { .. } => self.versions[range].fill(0),
            Ask::Allocation { block, blocks } => {
                let (found, is_cut) = queue.allocated(slot);
                assert!(!is_cut, "{blocks} blocks have fewer than 255 parts");
                let found: Vec<u64> = found.iter().flat_map(|part| part.slba..part.slba + part.blocks).collect();
                let written = (block..block + blocks).filter(|block| self.versions[*block as usize] != 0);
                assert_eq!(found, written.collect::<Vec<_>>());
            }
            Ask::Flush => {}
        }
    }

    /// So many random commands, as many at a time as the queue has places.
    fn run(&mut self, queue: &mut Queue, random: &mut Random, commands: u64, mut between: impl FnMut(u64)) {
        let mut begun = 0;
        loop {
            while begun < commands {
                let Some(slot) = queue.take() else { break };
                if !self.begin(queue, slot, random) {
                    queue.release(slot);
                    break;
                }
                begun += 1;
                between(begun);
            }
            queue.ring();
            if self.out.is_empty() {
                if begun == commands {
                    return;
                }
                continue;
            }
            let (slot, status) = reap(queue);
            self.end(queue, slot, status);
            queue.release(slot);
        }
    }

    /// Every block is what it has to be.
    fn check(&mut self, queue: &mut Queue) {
        let most = (queue.transfer_bytes() / BLOCK as u64) as usize;
        let slot = queue.take().unwrap();
        for from in (0..self.versions.len()).step_by(most) {
            let blocks = most.min(self.versions.len() - from) as u32;
            let ask = Ask::Read { block: from as u64, blocks };
            queue.submit(slot, &ask);
            queue.ring();
            self.out.insert(slot.index(), (ask, 0));
            let (slot, status) = reap(queue);
            self.end(queue, slot, status);
        }
        queue.release(slot);
    }
}

#[test]
fn what_a_client_wrote_it_reads_back_in_this_life_and_the_next() {
    let mut served = Served::new(&[]);
    let mut queue = served.queue(16, 1 << 20);
    let info = queue.namespace().clone();
    assert_eq!(info.blocks, (64 << 20) / BLOCK as u64);
    // The profile of a device that is made without one says that its region survives a loss of power.
    assert!(!info.has_volatile_cache && !info.is_read_only);
    let (mut model, mut random) = (Model::new(2048), Random(1));
    model.run(&mut queue, &mut random, 3000, |_| {});
    model.check(&mut queue);
    assert!(model.checked > 4096, "{} blocks were compared", model.checked);
    drop(queue);
    served.stop();
    served.start();
    model.check(&mut served.queue(4, 256 << 10));
}

#[test]
fn no_death_loses_or_repeats_what_a_client_asked_for() {
    let served = Served::new(&[]);
    let mut queue = served.queue(16, 128 << 10);
    let (mut model, mut random) = (Model::new(1024), Random(2));
    let mut deaths = 0;
    // Device and host in turn, while commands are under way.
    model.run(&mut queue, &mut random, 4000, |begun| {
        if begun % 700 == 350 {
            let domains = served.children();
            if domains.len() == 2 {
                signal(domains[deaths % 2], "KILL");
                deaths += 1;
            }
        }
    });
    assert!(deaths >= 4, "{deaths} deaths");
    model.check(&mut queue);
}

#[test]
fn the_next_client_is_not_overtaken_by_what_a_dead_one_had_begun() {
    let served = Served::new(&[]);
    for round in 1..=30_u64 {
        // One that goes with writes under way...
        let mut first = served.queue(32, 4096);
        for block in 0..32 {
            let slot = first.take().unwrap();
            first.buffer(slot).write(0, &pattern(block, 2 * round));
            first.submit(slot, &Ask::Write { block, blocks: 1, fua: false });
        }
        first.ring();
        drop(first);
        // ... and one that writes the same blocks.
        let mut second = served.queue(32, 4096);
        for block in 0..32 {
            let slot = second.take().unwrap();
            second.buffer(slot).write(0, &pattern(block, 2 * round + 1));
            second.submit(slot, &Ask::Write { block, blocks: 1, fua: false });
        }
        second.ring();
        while second.outstanding() > 0 {
            let (slot, status) = reap(&mut second);
            assert_eq!(status, Status::SUCCESS);
            second.release(slot);
        }
        for block in 0..32 {
            let slot = second.take().unwrap();
            second.submit(slot, &Ask::Read { block, blocks: 1 });
            second.ring();
            let (slot, _) = reap(&mut second);
            let mut bytes = vec![0; BLOCK];
            second.buffer(slot).read(0, &mut bytes);
            assert!(bytes == pattern(block, 2 * round + 1), "round {round}, block {block}");
            second.release(slot);
        }
    }
}

#[test]
fn several_clients_at_a_time_and_one_that_sleeps_until_its_event() {
    let served = Served::new(&["--pipeline", "none"]);
    std::thread::scope(|scope| {
        for part in 0..3_u64 {
            let served = &served;
            scope.spawn(move || {
                let mut queue = served.queue(4, 4096);
                for version in 1..=200 {
                    let (block, slot) = (part * 100 + version % 10, queue.take().unwrap());
                    queue.buffer(slot).write(0, &pattern(block, version));
                    queue.submit(slot, &Ask::Write { block, blocks: 1, fua: false });
                    queue.ring();
                    assert_eq!(queue.wait(LIMIT), Some((slot, Status::SUCCESS)));
                    queue.submit(slot, &Ask::Read { block, blocks: 1 });
                    queue.ring();
                    assert_eq!(queue.wait(LIMIT), Some((slot, Status::SUCCESS)));
                    let mut bytes = vec![0; BLOCK];
                    queue.buffer(slot).read(0, &mut bytes);
                    assert!(bytes == pattern(block, version));
                    queue.release(slot);
                }
            });
        }
    });
}

#[test]
fn what_cannot_be_is_answered_with_the_standards_status_and_changes_nothing() {
    let mut served = Served::new(&[]);
    let mut queue = served.queue(2, 8192);
    let blocks = queue.namespace().blocks;
    let ask = |queue: &mut Queue, ask: Ask| {
        let slot = queue.take().unwrap();
        queue.submit(slot, &ask);
        queue.ring();
        let (slot, status) = reap(queue);
        queue.release(slot);
        status
    };
    for bad in [
        Ask::Read { block: blocks, blocks: 1 },
        Ask::Write { block: blocks - 1, blocks: 2, fua: false },
        Ask::Deallocate { block: 1, blocks },
        Ask::WriteZeroes { block: u64::MAX, blocks: 1, deallocate: true, fua: false },
    ] {
        assert_eq!(ask(&mut queue, bad), Status::LBA_OUT_OF_RANGE, "{bad:?}");
    }
    assert_eq!(ask(&mut queue, Ask::Flush), Status::SUCCESS);
    let shape = Queue::attach(&served.socket(), 0, 4096);
    assert!(matches!(shape, Err(QueueError::Shape { .. })));
    drop(queue);
    served.stop();
    let gone = Queue::attach(&served.socket(), 1, 4096).err().unwrap().to_string();
    assert!(gone.contains("osier serve"), "{gone}");
    served.options = vec!["--read-only".to_owned()];
    served.start();
    let mut queue = served.queue(2, 8192);
    assert!(queue.namespace().is_read_only);
    assert_eq!(ask(&mut queue, Ask::Write { block: 0, blocks: 1, fua: false }), Status(0x020), "write protected");
    assert_eq!(ask(&mut queue, Ask::Read { block: 0, blocks: 1 }), Status::SUCCESS);
}

#[test]
fn strangers_at_the_socket_harm_nobody() {
    let served = Served::new(&[]);
    let mut queue = served.queue(2, 4096);
    for words in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"osnvme\x02\0", b"x", b"osnvme\x01\0"] {
        let mut stranger = UnixStream::connect(served.socket()).unwrap();
        stranger.set_read_timeout(Some(LIMIT)).unwrap();
        stranger.write_all(words).unwrap();
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(text.contains("version") || text.contains("segment"), "{text:?}");
    }
    let silent = UnixStream::connect(served.socket()).unwrap();
    let slot = queue.take().unwrap();
    queue.submit(slot, &Ask::Flush);
    queue.ring();
    assert_eq!(reap(&mut queue).1, Status::SUCCESS);
    drop(silent);
    assert!(Path::new(&served.socket()).exists());
}

/// `osier nbd` before a device; ended with the test.
struct Nbd {
    process: Child,
    uri: String,
}

impl Nbd {
    fn start(served: &Served) -> Nbd {
        let socket = served.home.path().join("nbd");
        // So that a client that comes now finds it.
        drop(served.queue(1, 4096));
        let mut command = osier(&served.home, &["nbd", "d", "--unix", socket.to_str().unwrap()]);
        let process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut nbd = Nbd { process, uri: format!("nbd+unix:///?socket={}", socket.display()) };
        let mut said = String::new();
        BufReader::new(nbd.process.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("nbd+unix"), "{said}");
        nbd
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        signal(self.process.id(), "INT");
        let _ = self.process.wait();
    }
}

/// A client of NBD, or a word that it is not there.
fn client(name: &str) -> Option<Command> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let got = Command::new("scripts/nbd-peers").current_dir(root).output().unwrap();
    if !got.status.success() {
        common::skipped(String::from_utf8_lossy(&got.stderr).trim_end());
        return None;
    }
    let mut command = Command::new("timeout");
    command.args(["300", name]);
    Some(command)
}

fn succeed(command: &mut Command) -> String {
    let out = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{command:?}: {}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

#[test]
fn a_device_is_a_network_block_device_for_programs_that_everybody_has() {
    let Some(mut nbdcopy) = client("nbdcopy") else { return };
    let served = Served::new(&[]);
    let nbd = Nbd::start(&served);
    let (from, to) = (served.home.path().join("from"), served.home.path().join("to"));
    let mut random = Random(3);
    let noise: Vec<u8> = (0..(24 << 20) + 777).map(|_| random.below(256) as u8).collect();
    std::fs::write(&from, &noise).unwrap();
    succeed(nbdcopy.arg(&from).arg(&nbd.uri));
    succeed(client("nbdcopy").unwrap().arg(&nbd.uri).arg(&to));
    let copied = std::fs::read(&to).unwrap();
    assert!(copied.len() == 64 << 20 && copied[..noise.len()] == noise);
    assert!(copied[noise.len()..].iter().all(|byte| *byte == 0));
    // What was never written is known to be a hole without looking at it.
    let map = succeed(client("nbdinfo").unwrap().args(["--map", &nbd.uri]));
    let parts: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let (data, rest) = (noise.len().next_multiple_of(BLOCK), (64 << 20) - noise.len().next_multiple_of(BLOCK));
    let (data, rest) = (data.to_string(), rest.to_string());
    assert_eq!(parts, [vec!["0", &data, "0", "data"], vec![&data, &rest, "3", "hole,zero"]]);
    // A disk image of QEMU's, with what it says of itself.
    let image = served.home.path().join("image.qcow2");
    succeed(client("qemu-img").unwrap().args(["convert", "-O", "qcow2", &nbd.uri]).arg(&image));
    succeed(client("qemu-img").unwrap().arg("check").arg(&image));
    succeed(client("qemu-img").unwrap().args(["compare", &nbd.uri]).arg(&image));
}

#[test]
fn clients_of_nbd_wait_while_a_domain_that_died_comes_back() {
    let Some(mut fio) = client("fio") else { return };
    let served = Served::new(&[]);
    let nbd = Nbd::start(&served);
    let uri = format!("--uri={}", nbd.uri);
    fio.args(["--name=x", "--ioengine=nbd", "--rw=randwrite", "--bs=4k-64k", "--size=32M", "--io_size=64M"]);
    fio.args(["--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--fsync=64"]);
    fio.args(["--output-format=terse", &uri]);
    let running = std::thread::spawn(move || succeed(&mut fio));
    let mut deaths = 0;
    while !running.is_finished() {
        std::thread::sleep(Duration::from_millis(400));
        let domains = served.children();
        if deaths < 8 && domains.len() == 2 && !running.is_finished() {
            signal(domains[deaths % 2], "KILL");
            deaths += 1;
        }
    }
    running.join().unwrap();
    assert!(deaths >= 2, "{deaths} deaths while fio ran");
}
