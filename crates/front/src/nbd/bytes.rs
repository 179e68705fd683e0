//! Any range of bytes, over a volume of whole blocks.
//!
//! A request becomes operations on the volume, in stages: first those that read the blocks which it changes in part,
//! then those that do what is asked, then a flush where a deallocation is to be persistent. A stage begins when all
//! operations of the one before have ended.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::lock::{Hold, Lane, RangeLock};
use super::planted::{self, Bug};
use super::session::{Answer, Command, Failure, Info, Payload, Request};
use super::slab::Slab;
use super::span::Span;
use super::wire::Errno;
use crate::volume::{BLOCK_BYTES, Ended, Extent, Operation, Outcome, RANGE_BLOCKS_MAX, Volume, VolumeError};
use osier_nvme::stream::Pool;

/// Blocks of one read that brings something into the device's cache: its bytes are of no use here.
const CACHE_PIECE_BLOCKS: u64 = 32;

/// A volume, as the connection of one client uses it.
pub struct Bytes {
    volume: Box<dyn Volume>,
    lane: Lane,
    piece_blocks: u64,
    tasks: Slab<Task>,
    /// Tasks with operations to begin, in order.
    runnable: VecDeque<u32>,
    /// Tasks that wait for their turn to write.
    waiting: Vec<u32>,
    /// An operation for which there was no room.
    refused: Option<(u64, Operation)>,
    ended: Vec<Ended>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    ReadEdges,
    Main,
    Flush,
}

/// A block that is changed in part.
struct Edge {
    block: u64,
    buffer: Vec<u8>,
}

enum Work {
    Read { payload: Payload, holes: Vec<bool> },
    Cache(Span),
    Write { payload: Payload, fua: bool },
    WriteZeroes { span: Span, edges: Vec<Edge>, may_deallocate: bool, fua: bool },
    Trim { blocks: Span, fua: bool },
    Flush,
    Allocation { span: Span, extents: Vec<Extent> },
}

/// A request under way.
struct Task {
    token: u32,
    work: Work,
    stage: Stage,
    /// Operations of this stage: all, begun, under way.
    operations: u64,
    begun: u64,
    under_way: u64,
    hold: Option<Hold>,
    failure: Option<Failure>,
}

impl Bytes {
    /// # Errors
    /// When the system has no more descriptors.
    pub fn new(volume: Box<dyn Volume>, lock: &Arc<RangeLock>) -> io::Result<Bytes> {
        let piece_blocks = u64::from(volume.transfer_blocks_max());
        assert!(piece_blocks > 0, "a volume that transfers nothing");
        Ok(Bytes {
            volume,
            lane: Lane::new(lock)?,
            piece_blocks,
            tasks: Slab::new(),
            runnable: VecDeque::new(),
            waiting: Vec::new(),
            refused: None,
            ended: Vec::new(),
        })
    }

    /// What clients are told of it.
    #[must_use]
    pub fn info(&self) -> Info {
        Info { blocks: self.volume.blocks(), is_read_only: self.volume.is_read_only(), piece_blocks: self.piece_blocks }
    }

    /// Takes a request.
    pub fn begin(&mut self, request: Request, pool: &mut Pool) {
        let (work, hold) = self.work(request.command, pool);
        let is_granted = hold.as_ref().is_none_or(|hold| self.lane.is_granted(hold));
        let mut task = Task {
            token: request.token,
            work,
            stage: Stage::ReadEdges,
            operations: 0,
            begun: 0,
            under_way: 0,
            hold,
            failure: None,
        };
        task.enter(Stage::ReadEdges, self.piece_blocks);
        let index = self.tasks.insert(task);
        if is_granted {
            self.runnable.push_back(index);
        } else {
            self.waiting.push(index);
        }
    }

    /// What is to be done, and the leave for it.
    fn work(&self, command: Command, pool: &mut Pool) -> (Work, Option<Hold>) {
        let hold = |span: Span| {
            let blocks = span.block()..span.end_block();
            if !span.is_aligned() && planted::has(Bug::PatchAtOnce) {
                return None;
            }
            Some(if span.is_aligned() { self.lane.write(blocks) } else { self.lane.patch(blocks) })
        };
        match command {
            Command::Read(span) => {
                (Work::Read { payload: Payload::new(span, self.piece_blocks, pool), holes: Vec::new() }, None)
            }
            Command::Cache(span) => (Work::Cache(span), None),
            Command::Write { payload, fua } => {
                let hold = hold(payload.span);
                (Work::Write { payload, fua }, hold)
            }
            Command::WriteZeroes { span, may_deallocate, fua } => {
                let edge = |block| Edge { block, buffer: pool.take(BLOCK_BYTES) };
                let edges = span.edges().map(edge).collect();
                (Work::WriteZeroes { span, edges, may_deallocate, fua }, hold(span))
            }
            Command::Trim { span, fua } => {
                // A block that is trimmed in part keeps all of its bytes.
                let blocks = whole(span);
                let hold = (blocks.length > 0).then(|| hold(blocks)).flatten();
                (Work::Trim { blocks, fua }, hold)
            }
            Command::Flush => (Work::Flush, None),
            Command::BlockStatus(span) => (Work::Allocation { span, extents: Vec::new() }, None),
        }
    }

    /// Begins and ends what it can; appends answers to `answers`.
    pub fn advance(&mut self, pool: &mut Pool, answers: &mut Vec<(u32, Answer)>) {
        self.grant();
        loop {
            self.submit(pool, answers);
            let mut ended = std::mem::take(&mut self.ended);
            self.volume.reap(&mut ended);
            let has_ended = !ended.is_empty();
            for ended in ended.drain(..) {
                self.operation_ended(ended, pool, answers);
            }
            self.ended = ended;
            // Without an end, there is room for nothing more; without work, there is nothing to begin.
            if !has_ended || (self.refused.is_none() && self.runnable.is_empty()) {
                return;
            }
        }
    }

    fn grant(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        self.lane.clear();
        let (lane, tasks, runnable) = (&self.lane, &mut self.tasks, &mut self.runnable);
        self.waiting.retain(|&index| {
            let hold = tasks.get_mut(index).and_then(|task| task.hold.as_ref());
            let is_granted = hold.is_none_or(|hold| lane.is_granted(hold));
            if is_granted {
                runnable.push_back(index);
            }
            !is_granted
        });
    }

    fn submit(&mut self, pool: &mut Pool, answers: &mut Vec<(u32, Answer)>) {
        if let Some((token, operation)) = self.refused.take()
            && let Err(operation) = self.volume.submit(token, operation)
        {
            self.refused = Some((token, operation));
            return;
        }
        while let Some(&index) = self.runnable.front() {
            let Some(task) = self.tasks.get_mut(index) else { break };
            while task.begun < task.operations && task.failure.is_none() {
                let token = u64::from(index) << 32 | task.begun;
                let operation = task.operation(task.begun, self.piece_blocks, pool);
                task.begun += 1;
                task.under_way += 1;
                if let Err(operation) = self.volume.submit(token, operation) {
                    self.refused = Some((token, operation));
                    return;
                }
            }
            self.runnable.pop_front();
            self.stage_ended(index, pool, answers);
        }
    }

    fn operation_ended(&mut self, ended: Ended, pool: &mut Pool, answers: &mut Vec<(u32, Answer)>) {
        let (index, operation) = ((ended.token >> 32) as u32, ended.token & u64::from(u32::MAX));
        let Some(task) = self.tasks.get_mut(index) else { panic!("the volume ended what was not begun") };
        task.under_way -= 1;
        match ended.outcome {
            Ok(outcome) => task.ended(operation, outcome, pool),
            Err(error) => task.failed(operation, error, self.piece_blocks),
        }
        // A task that still has operations to begin is looked at when it has begun them.
        if task.begun == task.operations || task.failure.is_some() {
            self.stage_ended(index, pool, answers);
        }
    }

    /// Goes on with a task that has nothing more to begin, when all that it began has ended.
    fn stage_ended(&mut self, index: u32, pool: &mut Pool, answers: &mut Vec<(u32, Answer)>) {
        let Some(task) = self.tasks.get_mut(index) else { return };
        if task.under_way > 0 {
            return;
        }
        if task.failure.is_none() && task.next_stage(self.piece_blocks) {
            self.runnable.push_back(index);
            return;
        }
        let Some(task) = self.tasks.take(index) else { return };
        if task.failure.is_some() {
            // It may still be in line to begin the rest.
            self.runnable.retain(|&other| other != index);
        }
        if let Some(hold) = task.hold {
            self.lane.end(hold);
        }
        let answer = task.failure.map_or_else(|| task.work.answer(pool), Answer::Failed);
        answers.push((task.token, answer));
    }

    /// Whether requests are under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.tasks.len() > 0
    }

    /// Readable when the volume has ended something since [`Bytes::arm`].
    #[must_use]
    pub fn event(&self) -> BorrowedFd<'_> {
        self.volume.event()
    }

    /// Readable when another connection made room for a write; of those that wait for it only.
    #[must_use]
    pub fn turn_event(&self) -> Option<BorrowedFd<'_>> {
        (!self.waiting.is_empty()).then(|| self.lane.event())
    }

    /// To be called before waiting; false when it would be wrong to wait.
    pub fn arm(&mut self) -> bool {
        self.volume.arm()
    }
}

/// The part of a span that is whole blocks.
fn whole(span: Span) -> Span {
    let (first, end) = span.whole_blocks();
    Span::new(first * BLOCK_BYTES as u64, (end - first) * BLOCK_BYTES as u64)
}

impl Task {
    fn enter(&mut self, stage: Stage, piece_blocks: u64) {
        self.stage = stage;
        self.begun = 0;
        self.operations = match (stage, &self.work) {
            (Stage::ReadEdges, Work::Write { payload, .. }) => payload.span.edges().count() as u64,
            (Stage::ReadEdges, Work::WriteZeroes { edges, .. }) => edges.len() as u64,
            (Stage::Main, Work::Read { payload, .. } | Work::Write { payload, .. }) => {
                payload.span.pieces(piece_blocks)
            }
            (Stage::Main, Work::Cache(span)) => span.pieces(CACHE_PIECE_BLOCKS.min(piece_blocks)),
            (Stage::Main, Work::WriteZeroes { span, edges, .. }) => {
                edges.len() as u64 + whole(*span).pieces(RANGE_BLOCKS_MAX)
            }
            (Stage::Main, Work::Trim { blocks, .. }) => blocks.pieces(RANGE_BLOCKS_MAX),
            (Stage::Main, Work::Flush | Work::Allocation { .. }) | (Stage::Flush, Work::Trim { fua: true, .. }) => 1,
            (Stage::ReadEdges | Stage::Flush, _) => 0,
        };
        assert!(self.operations <= u64::from(u32::MAX));
    }

    /// Whether there is another stage.
    fn next_stage(&mut self, piece_blocks: u64) -> bool {
        while let Some(stage) = match self.stage {
            Stage::ReadEdges => Some(Stage::Main),
            Stage::Main => Some(Stage::Flush),
            Stage::Flush => None,
        } {
            self.enter(stage, piece_blocks);
            if self.operations > 0 {
                return true;
            }
        }
        false
    }

    fn operation(&mut self, index: u64, piece_blocks: u64, pool: &mut Pool) -> Operation {
        let piece = index as usize;
        match (self.stage, &mut self.work) {
            (Stage::Flush, _) | (_, Work::Flush) => Operation::Flush,
            (Stage::ReadEdges, Work::WriteZeroes { edges, .. }) => {
                Operation::Read { block: edges[piece].block, buffer: std::mem::take(&mut edges[piece].buffer) }
            }
            (Stage::ReadEdges, Work::Write { payload, .. }) => {
                let block = payload.span.edges().nth(piece).unwrap_or_default();
                Operation::Read { block, buffer: pool.take(BLOCK_BYTES) }
            }
            (_, Work::Read { payload, .. }) => {
                let (block, _) = payload.span.piece(piece_blocks, index);
                Operation::Read { block, buffer: std::mem::take(&mut payload.pieces[piece]) }
            }
            (_, Work::Write { payload, fua }) => {
                let (block, _) = payload.span.piece(piece_blocks, index);
                Operation::Write { block, data: std::mem::take(&mut payload.pieces[piece]), fua: *fua }
            }
            (_, Work::Cache(span)) => {
                let (block, blocks) = span.piece(CACHE_PIECE_BLOCKS.min(piece_blocks), index);
                Operation::Read { block, buffer: pool.take(blocks as usize * BLOCK_BYTES) }
            }
            (_, Work::WriteZeroes { edges, fua, .. }) if piece < edges.len() => {
                let Edge { block, buffer } = &mut edges[piece];
                Operation::Write { block: *block, data: std::mem::take(buffer), fua: *fua }
            }
            (_, Work::WriteZeroes { span, edges, may_deallocate, fua }) => {
                let (block, blocks) = whole(*span).piece(RANGE_BLOCKS_MAX, index - edges.len() as u64);
                Operation::WriteZeroes { block, blocks, may_deallocate: *may_deallocate, fua: *fua }
            }
            (_, Work::Trim { blocks, .. }) => {
                let (block, blocks) = blocks.piece(RANGE_BLOCKS_MAX, index);
                Operation::Deallocate { block, blocks }
            }
            (_, Work::Allocation { span, .. }) => {
                Operation::Allocation { block: span.block(), blocks: span.blocks().min(RANGE_BLOCKS_MAX) }
            }
        }
    }

    fn ended(&mut self, index: u64, outcome: Outcome, pool: &mut Pool) {
        let piece = index as usize;
        match (outcome, self.stage, &mut self.work) {
            (Outcome::Buffer { buffer, .. }, Stage::ReadEdges, Work::Write { payload, .. }) => {
                keep_edge(payload, piece, &buffer);
                pool.give(buffer);
            }
            (Outcome::Buffer { mut buffer, .. }, Stage::ReadEdges, Work::WriteZeroes { span, edges, .. }) => {
                buffer[span.within(edges[piece].block)].fill(0);
                edges[piece].buffer = buffer;
            }
            (Outcome::Buffer { buffer, is_hole }, _, Work::Read { payload, holes }) => {
                payload.pieces[piece] = buffer;
                if is_hole {
                    holes.resize(payload.pieces.len(), false);
                    holes[piece] = true;
                }
            }
            (Outcome::Buffer { buffer, .. }, _, _) => pool.give(buffer),
            (Outcome::Extents(found), _, Work::Allocation { extents, .. }) => *extents = found,
            (Outcome::Extents(_) | Outcome::Done, _, _) => {}
        }
    }

    fn failed(&mut self, index: u64, error: VolumeError, piece_blocks: u64) {
        if self.failure.is_some() {
            return;
        }
        let at = |span: Span, piece_blocks| {
            let (block, _) = span.piece(piece_blocks, index);
            Some((block * BLOCK_BYTES as u64).max(span.offset))
        };
        let offset = match (self.stage, &self.work) {
            (Stage::Main, Work::Read { payload, .. } | Work::Write { payload, .. }) => at(payload.span, piece_blocks),
            (Stage::Main, Work::Cache(span)) => at(*span, CACHE_PIECE_BLOCKS.min(piece_blocks)),
            (Stage::Main, Work::Trim { blocks, .. }) => at(*blocks, RANGE_BLOCKS_MAX),
            _ => None,
        };
        let writes = matches!(self.work, Work::Write { .. } | Work::WriteZeroes { .. });
        self.failure = Some(failure(error, writes, offset));
    }
}

/// "Error values" of the protocol for what a volume says.
fn failure(error: VolumeError, writes: bool, offset: Option<u64>) -> Failure {
    let (error, text) = match error {
        VolumeError::Media => (Errno::Io, "the media failed; the device's log names the blocks"),
        VolumeError::OutOfRange if writes => (Errno::NoSpace, "beyond the end of the namespace"),
        VolumeError::OutOfRange => (Errno::Invalid, "beyond the end of the namespace"),
        VolumeError::CapacityExceeded => (Errno::NoSpace, "the device is full; trim what is needed no longer"),
        VolumeError::WriteProtected => (Errno::NotPermitted, "the namespace is write-protected"),
        VolumeError::ShutDown => (Errno::ShutDown, "the device is shut down"),
    };
    Failure { error, offset, text }
}

/// Puts what was in a block before around what a client writes there.
fn keep_edge(payload: &mut Payload, edge: usize, before: &[u8]) {
    let Some(block) = payload.span.edges().nth(edge) else { return };
    let new = payload.span.within(block);
    let is_first = block == payload.span.block();
    let piece = if is_first { payload.pieces.first_mut() } else { payload.pieces.last_mut() };
    let Some(piece) = piece else { return };
    let at = if is_first { 0 } else { piece.len() - BLOCK_BYTES };
    let block = &mut piece[at..at + BLOCK_BYTES];
    block[..new.start].copy_from_slice(&before[..new.start]);
    if !planted::has(Bug::LoseTail) {
        block[new.end..].copy_from_slice(&before[new.end..]);
    }
}

impl Work {
    fn answer(self, pool: &mut Pool) -> Answer {
        match self {
            Work::Read { payload, holes } => Answer::Data { payload, holes },
            Work::Allocation { span, extents } => Answer::Extents(extents_within(span, &extents)),
            Work::WriteZeroes { edges, .. } => {
                edges.into_iter().for_each(|edge| pool.give(edge.buffer));
                Answer::Done
            }
            Work::Cache(_) | Work::Write { .. } | Work::Trim { .. } | Work::Flush => Answer::Done,
        }
    }
}

/// Extents of blocks, from the span's first one on, as bytes of the span; neighbours that are alike become one.
fn extents_within(span: Span, extents: &[Extent]) -> Vec<(u64, bool)> {
    let mut within: Vec<(u64, bool)> = Vec::with_capacity(extents.len());
    let (mut at, mut end) = (span.offset, span.block() * BLOCK_BYTES as u64);
    for extent in extents {
        end = (end + extent.blocks * BLOCK_BYTES as u64).min(span.end());
        match within.last_mut() {
            _ if end == at => {}
            Some((length, is_hole)) if *is_hole == extent.is_hole => *length += end - at,
            _ => within.push((end - at, extent.is_hole)),
        }
        at = end;
    }
    assert!(!within.is_empty(), "a volume that knows no extent");
    within
}

#[cfg(test)]
#[path = "bytes_tests.rs"]
mod tests;
