//! Random writes and reads of self-describing blocks, while actors are moved and domains are killed.
//!
//! What the client knows to be written outlives the client: the *witness*, an object in the shared region,
//! holds for every group of blocks the version last submitted and the version last completed. A read has to
//! find the completed one or, after a death, the submitted one; anything else is a lost, a torn or a
//! resurrected write.

use std::sync::atomic::{AtomicU64, Ordering};

use osier_domain::message::Request;
use osier_domain::{Nanos, Opcode, STREAMS_MAX, StreamId, Tag};
use osier_flash::BLOCK_BYTES;
use osier_pmr::Object;
use serde::{Deserialize, Serialize};

use super::{Port, Tally, Workload};
use crate::client::{Ask, Done};
use crate::pattern;
use osier_actor::Arena;

/// What to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoakSpec {
    /// Draws everything.
    pub seed: u64,
    /// Requests in all, over every life of the host. None: what the soak before left is read back.
    pub requests: u64,
    /// Requests in flight.
    pub depth: usize,
    /// Blocks a request.
    pub request_blocks: u32,
    /// Groups of that many blocks that are written.
    pub groups: u64,
    /// Of each 1000 requests so many are reads.
    pub reads_permille: u64,
    /// The pipeline's tag.
    pub tag: u32,
    /// Whether every group is read at the end.
    pub verify: bool,
    /// Go on beyond `requests` until so many migrations have been made.
    pub until_moves: u64,
}

const WRITES: StreamId = StreamId(0);
const READS: StreamId = StreamId(1);
const CONTROL: StreamId = StreamId(2);
const HEADER_WORDS: u64 = 8;

/// What outlives the client.
#[derive(Clone)]
pub struct Witness {
    object: Object,
}

impl Witness {
    /// Bytes for so many groups.
    pub fn bytes(groups: u64) -> u64 {
        (HEADER_WORDS + 2 * groups) * 8
    }

    /// A witness over an object of [`Witness::bytes`].
    pub fn new(object: Object) -> Witness {
        Witness { object }
    }

    /// Whether a soak has used it.
    pub fn is_used(&self) -> bool {
        self.offered().load(Ordering::Relaxed) > 0
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        self.object.word64(index * 8)
    }

    /// Requests offered so far, over every life of the host.
    fn offered(&self) -> &AtomicU64 {
        self.word(0)
    }

    fn submitted(&self, group: u64) -> &AtomicU64 {
        self.word(HEADER_WORDS + 2 * group)
    }

    fn completed(&self, group: u64) -> &AtomicU64 {
        self.word(HEADER_WORDS + 2 * group + 1)
    }
}

/// The workload.
pub struct Soak {
    spec: SoakSpec,
    witness: Witness,
    busy: Vec<bool>,
    inflight: usize,
    flushed: bool,
    /// What a former soak left was deallocated.
    trimmed: bool,
    trimming: bool,
    /// Enough requests were offered and enough migrations made.
    enough: bool,
    /// Next group of the closing check.
    check: u64,
    tally: Tally,
    data: Vec<u8>,
}

fn draw(seed: u64, number: u64) -> u64 {
    let mut z = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl Soak {
    /// A workload that goes on where the witness says.
    pub fn new(spec: SoakSpec, witness: Witness, delivered: &[u64; STREAMS_MAX]) -> Soak {
        Soak {
            busy: vec![false; spec.groups as usize],
            tally: Tally::new(delivered, true),
            inflight: 0,
            flushed: false,
            trimmed: false,
            trimming: false,
            enough: false,
            check: 0,
            data: vec![0; (spec.request_blocks * BLOCK_BYTES) as usize],
            spec,
            witness,
        }
    }

    fn group_of(&self, slba: u64) -> u64 {
        slba / u64::from(self.spec.request_blocks)
    }

    fn next_request(&mut self, port: &mut dyn Port) -> bool {
        let number = self.witness.offered().load(Ordering::Relaxed);
        if self.trimming {
            return false;
        }
        if number == 0 && !self.trimmed {
            return self.trim(port);
        }
        self.enough |= number >= self.spec.requests && port.moves() >= self.spec.until_moves;
        if self.enough {
            return self.check_next(port);
        }
        let random = draw(self.spec.seed, number);
        let group = random % self.spec.groups;
        if self.busy[group as usize] {
            return false;
        }
        let read = random >> 40 & 0x3ff < self.spec.reads_permille * 1024 / 1000;
        let submitted = if read { self.read(group, port) } else { self.write(group, number + 1, port) };
        if submitted {
            self.witness.offered().store(number + 1, Ordering::Relaxed);
        }
        submitted
    }

    /// Every group begins unwritten, whatever the device held before.
    fn trim(&mut self, port: &mut dyn Port) -> bool {
        let blocks = (self.spec.groups * u64::from(self.spec.request_blocks)) as u32;
        self.trimmed = self.inflight == 0 && port.submit(CONTROL, Ask::Trim { slba: 0, blocks }).is_some();
        self.inflight += usize::from(self.trimmed);
        // Nothing else may be under way while blocks go away.
        self.trimming = self.trimmed;
        self.trimmed
    }

    fn check_next(&mut self, port: &mut dyn Port) -> bool {
        if !self.flushed {
            if self.inflight == 0 && port.submit(CONTROL, Ask::Flush).is_some() {
                self.flushed = true;
                self.inflight += 1;
                return true;
            }
            return false;
        }
        if !self.spec.verify || self.check == self.spec.groups || self.busy[self.check as usize] {
            return false;
        }
        let submitted = self.read(self.check, port);
        self.check += u64::from(submitted);
        submitted
    }

    fn read(&mut self, group: u64, port: &mut dyn Port) -> bool {
        let blocks = self.spec.request_blocks;
        let submitted = port.submit(READS, Ask::Read { slba: group * u64::from(blocks), blocks, flags: 0 }).is_some();
        self.begin(group, submitted)
    }

    fn write(&mut self, group: u64, version: u64, port: &mut dyn Port) -> bool {
        let slba = group * u64::from(self.spec.request_blocks);
        for (block, out) in self.data.chunks_mut(BLOCK_BYTES as usize).enumerate() {
            pattern::fill(slba + block as u64, version, out);
        }
        self.witness.submitted(group).store(version, Ordering::Release);
        let ask = Ask::Write { slba, data: &self.data, tag: Tag(self.spec.tag), flags: 0 };
        let submitted = port.submit(WRITES, ask).is_some();
        self.begin(group, submitted)
    }

    fn begin(&mut self, group: u64, submitted: bool) -> bool {
        if submitted {
            self.busy[group as usize] = true;
            self.inflight += 1;
        }
        submitted
    }

    /// Every block of a group has to be of one version, and of a version that may be there.
    fn check_group(&mut self, group: u64, slba: u64) {
        let (completed, submitted) = (
            self.witness.completed(group).load(Ordering::Acquire),
            self.witness.submitted(group).load(Ordering::Acquire),
        );
        let mut versions = Vec::new();
        for (index, block) in self.data.chunks(BLOCK_BYTES as usize).enumerate() {
            let expected = slba + index as u64;
            match pattern::identify(block) {
                Some((address, version)) if address == expected || version == 0 => versions.push(version),
                Some((address, _)) => self.tally.wrong(|| format!("block {expected} holds block {address}")),
                None => self.tally.wrong(|| format!("block {expected} holds bytes that were never written")),
            }
        }
        let first = versions.first().copied().unwrap_or(u64::MAX);
        if versions.iter().any(|v| *v != first) {
            self.tally.wrong(|| format!("group {group} is torn: versions {versions:?}"));
        } else if first == completed || first == submitted {
            self.tally.verified_blocks += versions.len() as u64;
            // After a death the client learns here which of the two it is; the other one may never come back.
            self.witness.completed(group).store(first, Ordering::Release);
            self.witness.submitted(group).store(first, Ordering::Release);
        } else if !versions.is_empty() {
            self.tally.wrong(|| {
                format!("group {group} has version {first}, not {completed} (completed) or {submitted} (submitted)")
            });
        }
    }
}

impl Workload for Soak {
    fn offer(&mut self, _now: Nanos, port: &mut dyn Port) -> bool {
        self.inflight < self.spec.depth && port.has_room() && self.next_request(port)
    }

    fn inherited(&mut self, request: &Request) {
        let group = self.group_of(request.descriptor.slba);
        self.trimming |= request.descriptor.opcode == Opcode::Trim;
        if matches!(request.descriptor.opcode, Opcode::Write | Opcode::Passthrough | Opcode::Read)
            && group < self.spec.groups
        {
            self.busy[group as usize] = true;
        }
        self.inflight += 1;
    }

    fn completed(&mut self, now: Nanos, done: &Done, arena: &Arena) {
        self.inflight -= 1;
        self.tally.count(now, done);
        let descriptor = &done.request.descriptor;
        let group = self.group_of(descriptor.slba);
        let bytes = u64::from(descriptor.blocks) * u64::from(BLOCK_BYTES);
        if matches!(descriptor.opcode, Opcode::Flush | Opcode::Trim | Opcode::Allocation) {
            self.trimming = false;
            return;
        }
        // One that a soak over more groups left is none of this one's.
        let Some(busy) = self.busy.get_mut(group as usize) else { return };
        *busy = false;
        if !done.request.status.is_success() {
            return;
        }
        match descriptor.opcode {
            Opcode::Write | Opcode::Passthrough => {
                self.tally.written_bytes += bytes;
                self.tally.write_latency.saturating_record(done.latency.0);
                let version = self.witness.submitted(group).load(Ordering::Acquire);
                self.witness.completed(group).store(version, Ordering::Release);
            }
            Opcode::Read => {
                self.tally.read_bytes += bytes;
                self.tally.read_latency.saturating_record(done.latency.0);
                arena.read_raw(descriptor.slot, 0, &mut self.data);
                self.check_group(group, descriptor.slba);
            }
            Opcode::Trim | Opcode::Flush | Opcode::Allocation => {}
        }
    }

    fn finished(&self) -> bool {
        let checked = !self.spec.verify || self.check == self.spec.groups;
        self.enough && self.flushed && checked && self.inflight == 0
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn phase(&self) -> &'static str {
        if self.enough { "read back" } else { "traffic" }
    }

    fn progress_permille(&self) -> u64 {
        (self.witness.offered().load(Ordering::Relaxed) * 1000 / self.spec.requests.max(1)).min(1000)
    }
}
