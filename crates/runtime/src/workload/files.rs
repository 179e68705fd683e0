//! Real files, written in whole passes over and over, then read back and held against their SHA-256.

use std::path::PathBuf;

use osier_domain::message::Request;
use osier_domain::{Nanos, Opcode, STREAMS_MAX, StreamId, Tag};
use osier_flash::BLOCK_BYTES;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Port, Tally, Workload};
use crate::client::{Ask, Done};
use crate::corpus::Corpus;
use osier_actor::Arena;

/// What to write and for how long.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesSpec {
    /// Files and directories.
    pub inputs: Vec<PathBuf>,
    /// Bytes of input at most.
    pub input_bytes_max: u64,
    /// How long to write; the pass that runs then is ended early, but the first pass is always whole.
    pub write_ns: u64,
    /// Requests in flight.
    pub depth: usize,
    /// Blocks a request.
    pub request_blocks: u32,
    /// The pipeline's tag.
    pub tag: u32,
    /// Whether to read everything back at the end.
    pub verify: bool,
}

const WRITES: StreamId = StreamId(0);
const READS: StreamId = StreamId(1);
const CONTROL: StreamId = StreamId(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Write,
    DrainWrites,
    Flush,
    Read,
    Done,
}

/// The workload.
pub struct Files {
    spec: FilesSpec,
    corpus: Corpus,
    stage: Stage,
    /// Next block to offer in this pass.
    cursor: u64,
    /// Blocks of the file space that a request ever covered: the whole of it after the first pass.
    first_pass_done: bool,
    started: Option<Nanos>,
    inflight: usize,
    flushed: bool,
    tally: Tally,
    piece: usize,
    piece_left: u64,
    hasher: Sha256,
    buffer: Vec<u8>,
    /// Files whose SHA-256 read back right.
    files_right: u64,
}

impl Files {
    /// A workload over input that has been read.
    pub fn new(spec: FilesSpec, corpus: Corpus, delivered: &[u64; STREAMS_MAX]) -> Files {
        let first = corpus.pieces.first().map_or(0, |p| p.bytes);
        Files {
            tally: Tally::new(delivered, true),
            spec,
            corpus,
            stage: Stage::Write,
            cursor: 0,
            first_pass_done: false,
            started: None,
            inflight: 0,
            flushed: false,
            piece: 0,
            piece_left: first,
            hasher: Sha256::new(),
            buffer: Vec::new(),
            files_right: 0,
        }
    }

    fn blocks_at(&self, cursor: u64) -> u32 {
        (self.corpus.blocks() - cursor).min(u64::from(self.spec.request_blocks)) as u32
    }

    fn write_next(&mut self, port: &mut dyn Port) -> bool {
        let blocks = self.blocks_at(self.cursor);
        let start = (self.cursor * u64::from(BLOCK_BYTES)) as usize;
        let data = &self.corpus.bytes[start..start + blocks as usize * BLOCK_BYTES as usize];
        let ask = Ask::Write { slba: self.cursor, data, tag: Tag(self.spec.tag), flags: 0 };
        if port.submit(WRITES, ask).is_none() {
            return false;
        }
        self.inflight += 1;
        self.cursor += u64::from(blocks);
        if self.cursor == self.corpus.blocks() {
            self.cursor = 0;
            self.first_pass_done = true;
        }
        true
    }

    fn read_next(&mut self, port: &mut dyn Port) -> bool {
        if self.cursor == self.corpus.blocks() {
            return false;
        }
        let blocks = self.blocks_at(self.cursor);
        let submitted = port.submit(READS, Ask::Read { slba: self.cursor, blocks, flags: 0 }).is_some();
        if submitted {
            self.inflight += 1;
            self.cursor += u64::from(blocks);
        }
        submitted
    }

    /// The blocks of one read, in the order of the stream, into the digests of the files that they belong to.
    fn digest(&mut self, slba: u64, blocks: u32) {
        let mut at = 0usize;
        let end = blocks as usize * BLOCK_BYTES as usize;
        let source = (slba * u64::from(BLOCK_BYTES)) as usize;
        for (offset, block) in self.buffer[..end].chunks(BLOCK_BYTES as usize).enumerate() {
            let original = &self.corpus.bytes[source + offset * BLOCK_BYTES as usize..][..BLOCK_BYTES as usize];
            if block == original {
                self.tally.verified_blocks += 1;
            } else {
                let number = slba + offset as u64;
                self.tally.wrong(|| format!("block {number} is not what was written"));
            }
        }
        while at < end && self.piece < self.corpus.pieces.len() {
            let take = self.piece_left.min((end - at) as u64) as usize;
            self.hasher.update(&self.buffer[at..at + take]);
            self.piece_left -= take as u64;
            at += take;
            if self.piece_left == 0 {
                at = at.next_multiple_of(BLOCK_BYTES as usize);
                self.end_piece();
            }
        }
    }

    fn end_piece(&mut self) {
        let piece = &self.corpus.pieces[self.piece];
        let digest: [u8; 32] = std::mem::take(&mut self.hasher).finalize().into();
        if digest == piece.sha256 {
            self.files_right += 1;
        } else {
            let path = piece.path.display().to_string();
            self.tally.wrong(|| format!("the SHA-256 of {path} is not that of its original"));
        }
        self.piece += 1;
        self.piece_left = self.corpus.pieces.get(self.piece).map_or(0, |p| p.bytes);
    }

    fn step(&mut self, now: Nanos) {
        let elapsed = self.started.map_or(0, |s| now.0 - s.0);
        self.stage = match self.stage {
            Stage::Write if elapsed >= self.spec.write_ns && self.first_pass_done => Stage::DrainWrites,
            Stage::DrainWrites if self.inflight == 0 => {
                // A barrier takes as long as the write buffer is full; it is no gap in the traffic.
                self.tally.end_span();
                Stage::Flush
            }
            Stage::Flush if self.flushed && self.inflight == 0 => {
                self.cursor = 0;
                if self.spec.verify { Stage::Read } else { Stage::Done }
            }
            Stage::Read if self.cursor == self.corpus.blocks() && self.inflight == 0 => Stage::Done,
            same => same,
        };
    }
}

impl Workload for Files {
    fn offer(&mut self, now: Nanos, port: &mut dyn Port) -> bool {
        self.started.get_or_insert(now);
        self.step(now);
        if self.inflight >= self.spec.depth || !port.has_room() {
            return false;
        }
        match self.stage {
            Stage::Write => self.write_next(port),
            Stage::Read => self.read_next(port),
            Stage::Flush if !self.flushed => {
                self.flushed = port.submit(CONTROL, Ask::Flush).is_some();
                self.inflight += usize::from(self.flushed);
                self.flushed
            }
            _ => false,
        }
    }

    fn inherited(&mut self, _: &Request) {
        self.inflight += 1;
    }

    fn completed(&mut self, now: Nanos, done: &Done, arena: &Arena) {
        self.inflight -= 1;
        self.tally.count(now, done);
        let descriptor = &done.request.descriptor;
        let bytes = u64::from(descriptor.blocks) * u64::from(BLOCK_BYTES);
        if !done.request.status.is_success() {
            return;
        }
        match descriptor.opcode {
            Opcode::Write | Opcode::Passthrough => {
                self.tally.written_bytes += bytes;
                self.tally.write_latency.saturating_record(done.latency.0);
            }
            // One that a former life of the host asked for belongs to no file that this one reads back.
            Opcode::Read if self.stage == Stage::Read => {
                self.tally.read_bytes += bytes;
                self.tally.read_latency.saturating_record(done.latency.0);
                self.buffer.resize(bytes as usize, 0);
                arena.read_raw(descriptor.slot, 0, &mut self.buffer);
                self.digest(descriptor.slba, descriptor.blocks);
            }
            Opcode::Read | Opcode::Trim | Opcode::Flush | Opcode::Allocation => {}
        }
    }

    fn finished(&self) -> bool {
        self.stage == Stage::Done
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn phase(&self) -> &'static str {
        match self.stage {
            Stage::Write => "write",
            Stage::DrainWrites | Stage::Flush => "flush",
            Stage::Read => "read back",
            Stage::Done => "done",
        }
    }

    fn files(&self) -> (u64, u64) {
        (self.files_right, self.corpus.pieces.len() as u64)
    }

    fn notice(&self) -> Option<String> {
        let (left_out, limit) = (self.corpus.left_out, self.spec.input_bytes_max >> 20);
        (left_out > 0)
            .then(|| format!("{left_out} files of the inputs are left out: {limit} MiB are taken, and they do not fit"))
    }

    fn input_bytes(&self) -> u64 {
        self.corpus.pieces.iter().map(|p| p.bytes).sum()
    }

    fn progress_permille(&self) -> u64 {
        let blocks = self.corpus.blocks().max(1);
        match self.stage {
            Stage::Write => {
                self.tally.last_completion.saturating_sub(self.started.map_or(0, |s| s.0)) * 1000
                    / self.spec.write_ns.max(1)
            }
            Stage::DrainWrites | Stage::Flush => 1000,
            Stage::Read => self.cursor * 1000 / blocks,
            Stage::Done => 1000,
        }
        .min(1000)
    }
}
