//! Every sequence of up to four operations on four units, with a loss of power at every point.

use super::common::*;
use super::crash::{Check, Model, TestMedia};
use crate::Nanos;
use crate::array::Shape;
use crate::page::*;

const UNITS: u64 = 4;
const LENGTH: usize = 4;

#[derive(Debug, Clone, Copy)]
enum Operation {
    Write(u64),
    Trim(u64),
    Flush,
    Read(u64),
}

/// A device, what it may read as, and the flushes under way.
#[derive(Clone)]
struct World {
    ftl: PageFtl<TestMedia>,
    model: Model,
    now: Nanos,
    flushes: Vec<(RequestId, Vec<usize>)>,
    waits: Option<RequestId>,
}

#[derive(Debug, Default)]
struct Counts {
    sequences: u64,
    cuts: u64,
}

/// Eight blocks of one plane, of which two are checkpoint areas.
fn eight_blocks(streams: Streams) -> PageFtlConfig {
    let mut ftl = params(8);
    ftl.streams = streams;
    ftl.checkpoint_superblocks = 1;
    config(Shape { blocks_per_plane: 8, ..ONE_DIE }, ftl)
}

impl World {
    /// `writes` overwrites bring it to where collection and checkpoints are under way.
    fn new(config: &PageFtlConfig, writes: u64) -> World {
        let ftl = PageFtl::with_media(config, 1, TestMedia::new(config, 1)).unwrap();
        let model = Model::new(config.ftl.logical_units);
        let mut world = World { ftl, model, now: Nanos::ZERO, flushes: Vec::new(), waits: None };
        for index in 0..writes {
            world.operate(Operation::Write(index * 5 % config.ftl.logical_units));
        }
        world
    }

    fn operate(&mut self, operation: Operation) {
        match operation {
            Operation::Write(lpn) => {
                let payload = self.model.write(lpn);
                let outcome = self.ftl.write(self.now, lpn, 1, payload).unwrap();
                if let Outcome::Waiting(id) = outcome {
                    self.waits = Some(id);
                    while self.waits.is_some() {
                        assert!(self.step(), "{id:?} waits for ever");
                    }
                }
            }
            Operation::Trim(lpn) => {
                self.ftl.trim(self.now, lpn, 1).unwrap();
                self.model.trim(lpn);
            }
            Operation::Flush => {
                let mark = self.model.mark();
                match self.ftl.flush(self.now).unwrap() {
                    Outcome::Done(_) => self.model.flushed(&mark),
                    Outcome::Waiting(id) => self.flushes.push((id, mark)),
                }
            }
            Operation::Read(lpn) => {
                self.ftl.read(self.now, lpn, 1).unwrap();
            }
        }
    }

    /// The next event; whether there was one.
    fn step(&mut self) -> bool {
        let Some(at) = self.ftl.next_event() else { return false };
        self.now = self.now.max(at);
        let mut completed = Vec::new();
        self.ftl.poll(self.now, &mut completed);
        for done in completed {
            if self.waits == Some(done.id) {
                self.waits = None;
            }
            if let Some(index) = self.flushes.iter().position(|&(id, _)| id == done.id) {
                let (_, mark) = self.flushes.remove(index);
                self.model.flushed(&mark);
                for (_, other) in &mut self.flushes {
                    for (other, mark) in other.iter_mut().zip(&mark) {
                        *other = (*other + 1).saturating_sub(*mark).max(1);
                    }
                }
            }
        }
        true
    }

    /// What is left when power is lost now.
    fn cut(&self) -> Check {
        let (ftl, mut model) = (self.ftl.clone(), self.model.clone());
        let config = ftl.config().clone();
        let (ftl, _) = PageFtl::recover(&config, 1, ftl.lose_power()).map_err(|error| error.to_string())?;
        ftl.audit()?;
        model.recovered(&ftl)
    }
}

/// Cuts before, between and after all events that follow.
fn cut_everywhere(world: &World, counts: &mut Counts) -> Check {
    let mut world = world.clone();
    loop {
        counts.cuts += 1;
        world.cut()?;
        if !world.step() {
            return world.model.check_newest(&world.ftl);
        }
    }
}

fn extend(world: &World, sequence: &mut Vec<Operation>, settles: bool, counts: &mut Counts) {
    let each = |operation: fn(u64) -> Operation| (0..UNITS).map(operation);
    let all = each(Operation::Write).chain(each(Operation::Trim)).chain(each(Operation::Read));
    for operation in all.chain([Operation::Flush]) {
        sequence.push(operation);
        let mut next = world.clone();
        next.operate(operation);
        counts.sequences += 1;
        if let Err(error) = cut_everywhere(&next, counts) {
            panic!("{sequence:?}, settled after each: {settles}: {error}");
        }
        if sequence.len() < LENGTH {
            while settles && next.step() {}
            extend(&next, sequence, settles, counts);
        }
        sequence.pop();
    }
}

fn run(streams: Streams, writes: u64, settles: bool) {
    let config = eight_blocks(streams);
    let mut counts = Counts::default();
    extend(&World::new(&config, writes), &mut Vec::new(), settles, &mut counts);
    // 13 operations: 13 + 13^2 + 13^3 + 13^4.
    assert_eq!(counts.sequences, 30_940);
    assert!(counts.cuts > counts.sequences);
}

#[test]
fn every_short_sequence_survives_a_cut_at_every_point_on_a_new_device() {
    run(Streams::Separate, 0, false);
}

#[test]
fn every_short_sequence_survives_a_cut_at_every_point_on_a_used_device() {
    run(Streams::Separate, 37, false);
}

#[test]
fn every_short_sequence_survives_a_cut_at_every_point_when_each_settles() {
    run(Streams::Shared, 53, true);
}
