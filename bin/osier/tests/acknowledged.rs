//! What a client of a front end was told is persistent is there, whoever is killed: the front end, the host's domain or
//! the device's.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
mod served;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use osier_client::Ask;
use served::*;

const BLOCK: usize = 4096;
/// Blocks that a client writes to.
const BLOCKS: usize = 512;
/// Clients at a time.
const CLIENTS: usize = 2;
/// Deaths here; the long run has seeds instead.
const DEATHS: u64 = 20;

/// Writes blocks that say what they are, and makes each write persistent: `b` is said before one, `e` when it was
/// acknowledged. It ends with its connection.
const WRITER: &str = r#"
import os, random, struct, sys
seed, first, version = (int(word) for word in os.environ["WRITER"].split())
draw = random.Random(seed)
h.connect_uri(os.environ["NBD_URI"])
def say(*words):
    print(*words, flush=True)
while True:
    blocks = draw.randrange(1, 9)
    block = first + draw.randrange(512 - blocks)
    data = b"".join(struct.pack("<QQ", (block + at) << 32 | version, 0) * 256 for at in range(blocks))
    say("b", block, blocks, version)
    try:
        if draw.random() < 0.5:
            h.pwrite(data, block * 4096, nbd.CMD_FLAG_FUA)
        else:
            h.pwrite(data, block * 4096)
            h.flush()
    except nbd.Error:
        sys.exit(0)
    say("e", block, blocks, version)
    version += 1
"#;

/// What may be in a block.
#[derive(Clone, Default)]
struct Known {
    /// The last version that was acknowledged.
    acknowledged: u64,
    /// Later ones, of which nobody knows.
    begun: Vec<u64>,
}

/// What clients said.
struct Said {
    blocks: Vec<Known>,
    acknowledged: u64,
    version: u64,
}

impl Said {
    fn hear(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let what = words.next();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or_else(|| panic!("{line}"));
        let (block, blocks, version) = (number() as usize, number() as usize, number());
        self.version = self.version.max(version);
        for known in &mut self.blocks[block..block + blocks] {
            if what == Some("b") {
                known.begun.push(version);
            } else {
                *known = Known { acknowledged: version, begun: Vec::new() };
            }
        }
        self.acknowledged += u64::from(what == Some("e"));
    }
}

/// `nbdsh` with the script, and who hears it.
struct Writer {
    process: Child,
    hears: Option<std::thread::JoinHandle<()>>,
}

impl Writer {
    fn start(uri: &str, seed: u64, number: usize, said: &Arc<Mutex<Said>>) -> Writer {
        let version = said.lock().unwrap().version + 1;
        let mut process = Command::new("nbdsh")
            .args(["-c", WRITER])
            // nbdsh takes the first python3, and its module belongs to the system's.
            .env("PATH", "/usr/bin:/bin")
            .env("NBD_URI", uri)
            .env("WRITER", format!("{} {} {version}", seed * CLIENTS as u64 + number as u64, number * BLOCKS))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut words = BufReader::new(process.stdout.take().unwrap());
        let said = Arc::clone(said);
        let hear = move || {
            let mut line = String::new();
            // One that was killed has not said what it began to say.
            while words.read_line(&mut line).is_ok_and(|_| line.ends_with('\n')) {
                said.lock().unwrap().hear(&line);
                line.clear();
            }
        };
        Writer { process, hears: Some(std::thread::spawn(hear)) }
    }

    /// Ends it in the middle of what it does, if it has not ended by itself.
    fn end(mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        self.hears.take().unwrap().join().unwrap();
    }
}

/// `osier nbd` before the device; killed with this.
struct Server {
    process: Child,
    uri: String,
}

impl Server {
    fn start(served: &Served) -> Server {
        let socket = served.home.path().join("nbd");
        drop(served.queue(1, BLOCK as u32));
        let mut command = osier(&served.home, &["nbd", "d", "--unix", socket.to_str().unwrap()]);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut words = BufReader::new(process.stderr.take().unwrap());
        words.read_line(&mut line).unwrap();
        assert!(line.contains("nbd+unix"), "{line}");
        std::thread::spawn(move || words.lines().for_each(drop));
        Server { process, uri: format!("nbd+unix:///?socket={}", socket.display()) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn await_acknowledged(said: &Mutex<Said>, served: &Served, more: u64) {
    let (until, from) = (Instant::now() + LIMIT, said.lock().unwrap().acknowledged);
    while said.lock().unwrap().acknowledged < from + more {
        assert!(Instant::now() < until, "nothing is acknowledged; {}", served.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every block has a version that it may have, which is known from then on.
fn check(served: &Served, said: &mut Said, round: u64) {
    let mut queue = served.queue(1, BLOCK as u32);
    for (block, known) in said.blocks.iter_mut().enumerate() {
        let slot = queue.take().unwrap();
        queue.submit(slot, &Ask::Read { block: block as u64, blocks: 1 });
        queue.ring();
        let (slot, status) = queue.wait(LIMIT).unwrap();
        assert!(status.is_success(), "{status}");
        let mut bytes = vec![0; BLOCK];
        queue.buffer(slot).read(0, &mut bytes);
        queue.release(slot);
        let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let whole = bytes.chunks_exact(16).all(|part| part[..8] == word.to_le_bytes() && part[8..] == [0; 8]);
        let (found, version) = ((word >> 32) as usize, word & u64::from(u32::MAX));
        let is_known = version == known.acknowledged || known.begun.contains(&version);
        let acknowledged = known.acknowledged;
        assert!(
            whole && is_known && (version == 0 || found == block),
            "round {round}, block {block}: version {version} of block {found}, acknowledged {acknowledged}"
        );
        *known = Known { acknowledged: version, begun: Vec::new() };
    }
}

#[test]
fn what_nbd_acknowledged_as_persistent_is_there_whoever_is_killed() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let got = Command::new("scripts/nbd-peers").current_dir(root).output().unwrap();
    if !got.status.success() {
        return common::skipped(String::from_utf8_lossy(&got.stderr).trim_end());
    }
    let seed = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, last) = (seed("OSIER_SEED_FIRST").unwrap_or(1), seed("OSIER_SEED_LAST").unwrap_or(DEATHS));
    let mut served = Served::new(&[]);
    let blocks = vec![Known::default(); BLOCKS * CLIENTS];
    let said = Arc::new(Mutex::new(Said { blocks, acknowledged: 0, version: 0 }));
    let mut server = Server::start(&served);
    for round in first..=last {
        let writers: Vec<Writer> =
            (0..CLIENTS).map(|number| Writer::start(&server.uri, round, number, &said)).collect();
        // Somewhere among the writes, another place each time.
        await_acknowledged(&said, &served, 10 + round * 7919 % 150);
        let domains = served.children();
        match round % 3 {
            0 => {
                server.process.kill().unwrap();
                server.process.wait().unwrap();
                server = Server::start(&served);
            }
            victim => {
                signal(domains[victim as usize - 1], "KILL");
                // They wait, as who comes now does, and go on without an error.
                let info = Command::new("nbdinfo").args(["--size", &server.uri]).output().unwrap();
                let why = String::from_utf8_lossy(&info.stderr);
                assert!(info.status.success(), "round {round}: {why}; {}", served.log());
                await_acknowledged(&said, &served, 20);
            }
        }
        writers.into_iter().for_each(Writer::end);
        check(&served, &mut said.lock().unwrap(), round);
        // Domains that die more often within a minute are not started again.
        if (round + 1 - first).is_multiple_of(DEATHS) && round < last {
            drop(server);
            served.stop();
            served.start();
            server = Server::start(&served);
        }
    }
    let acknowledged = said.lock().unwrap().acknowledged;
    let deaths = last - first + 1;
    println!("{{\"deaths\": {deaths}, \"acknowledged\": {acknowledged}, \"lost\": 0}}");
}
