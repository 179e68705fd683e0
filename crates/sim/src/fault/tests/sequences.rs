//! Every sequence of up to four operations on four units of a device of eight blocks, with a loss of power at
//! every point, and each of what that may leave: the operations under way dropped, torn, or whole.
//!
//! No symmetry is used. Swapping two units gives a sequence that behaves alike on a new device only: on a used one
//! they lie in different slots.

use osier_flash::Nanos;
use osier_flash::array::{ArrayTiming, ErrorParams, Shape, Suspend};
use osier_flash::faulty::{SlotArray, Tear};
use osier_flash::page::{
    Collection, Outcome, PageFtl, PageFtlConfig, PageFtlParams, RequestId, Streams, VictimPolicy, WearLevelling,
};

use crate::Rng;
use crate::fault::Check;
use crate::fault::reference::{Content, Reference};

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
struct Device {
    ftl: PageFtl<SlotArray>,
    reference: Reference,
    now: Nanos,
    flushes: Vec<(RequestId, u64)>,
}

#[derive(Debug, Default)]
struct Counts {
    sequences: u64,
    cuts: u64,
}

/// Eight blocks of one plane, of which two are checkpoint areas.
fn eight_blocks(streams: Streams) -> PageFtlConfig {
    PageFtlConfig {
        shape: Shape {
            channels: 1,
            chips_per_channel: 1,
            dies_per_chip: 1,
            planes_per_die: 1,
            blocks_per_plane: 8,
            pages_per_block: 8,
            page_bytes: 4096,
        },
        order: "PCWD".parse().unwrap(),
        timing: ArrayTiming {
            read_ns: vec![40_000],
            program_ns: vec![200_000],
            erase_ns: 2_000_000,
            channel_bytes_per_second: 1_200_000_000,
            multi_plane: false,
            cache_read: false,
            cache_program: false,
            reads_first: true,
            reads_first_max: 100,
            suspend: Suspend { program: true, erase: true, suspend_ns: 5_000, resume_ns: 5_000, times_max: 10 },
        },
        errors: ErrorParams::none(1),
        ftl: PageFtlParams {
            logical_units: 20,
            spare_blocks_per_plane: 0,
            streams,
            slots_per_die_max: 4,
            collection: Collection {
                policy: VictimPolicy::Greedy,
                free_min: 1,
                free_foreground: 2,
                free_background: 2,
                preemptible: true,
                moves_max: 16,
            },
            wear: WearLevelling { dynamic: true, spread_max: 0 },
            checkpoint_superblocks: 1,
            map_cache_pages: 0,
        },
    }
}

impl Device {
    /// `writes` overwrites bring it to where collection and checkpoints are under way.
    fn new(config: &PageFtlConfig, writes: u64) -> Device {
        let ftl = PageFtl::with_media(config, 1, SlotArray::new(config, 1)).unwrap();
        let reference = Reference::new(config.ftl.logical_units);
        let mut device = Device { ftl, reference, now: Nanos::ZERO, flushes: Vec::new() };
        for index in 0..writes {
            device.operate(Operation::Write(index * 5 % config.ftl.logical_units));
        }
        device
    }

    fn operate(&mut self, operation: Operation) {
        match operation {
            Operation::Write(lpn) => {
                let sequence = self.reference.next_sequence(1);
                let payload = lpn << 40 | sequence;
                self.reference.put(lpn, sequence, Content::Payload(payload));
                if let Outcome::Waiting(id) = self.ftl.write(self.now, lpn, 1, payload).unwrap() {
                    while !self.step().expect("the write waits for ever").contains(&id) {}
                }
            }
            Operation::Trim(lpn) => {
                self.ftl.trim(self.now, lpn, 1).unwrap();
                let sequence = self.reference.next_sequence(1);
                self.reference.put(lpn, sequence, Content::Nothing);
            }
            Operation::Flush => {
                let covers = self.reference.sequence();
                match self.ftl.flush(self.now).unwrap() {
                    Outcome::Done(_) => self.reference.persist(covers),
                    Outcome::Waiting(id) => self.flushes.push((id, covers)),
                }
            }
            Operation::Read(lpn) => {
                self.ftl.read(self.now, lpn, 1).unwrap();
            }
        }
    }

    /// The next event, if there is one, and what it completes.
    fn step(&mut self) -> Option<Vec<RequestId>> {
        self.now = self.now.max(self.ftl.next_event()?);
        let mut completed = Vec::new();
        self.ftl.poll(self.now, &mut completed);
        let completed: Vec<RequestId> = completed.iter().map(|done| done.id).collect();
        for &(_, covers) in self.flushes.iter().filter(|(id, _)| completed.contains(id)) {
            self.reference.persist(covers);
        }
        self.flushes.retain(|(id, _)| !completed.contains(id));
        Some(completed)
    }

    fn seen(ftl: &PageFtl<SlotArray>, lpn: u64) -> Content {
        match ftl.payload(lpn) {
            Ok(None) => Content::Nothing,
            Ok(Some(payload)) => Content::Payload(payload),
            Err(_) => Content::Lost,
        }
    }

    /// What is left when power is lost now.
    fn cut(&self, tear: Tear) -> Check {
        let (mut ftl, mut reference) = (self.ftl.clone(), self.reference.clone());
        ftl.media_mut().tear = tear;
        let config = ftl.config().clone();
        let (ftl, _) = PageFtl::recover(&config, 1, ftl.lose_power()).map_err(|error| error.to_string())?;
        ftl.audit()?;
        (0..config.ftl.logical_units)
            .try_for_each(|lpn| reference.check_recovered(lpn, Device::seen(&ftl, lpn), 0, true, |_| false))
    }
}

/// Cuts before, between and after all events that follow.
fn cut_everywhere(device: &Device, counts: &mut Counts) -> Check {
    let mut device = device.clone();
    loop {
        for tear in [Tear::Dropped, Tear::Torn, Tear::Whole] {
            counts.cuts += 1;
            device.cut(tear).map_err(|error| format!("at {}, {tear:?}: {error}", device.now))?;
        }
        if device.step().is_none() {
            return (0..UNITS)
                .try_for_each(|lpn| device.reference.check_newest(lpn, Device::seen(&device.ftl, lpn), |_| false));
        }
    }
}

fn extend(device: &Device, sequence: &mut Vec<Operation>, settles: bool, counts: &mut Counts) {
    let each = |operation: fn(u64) -> Operation| (0..UNITS).map(operation);
    let all = each(Operation::Write).chain(each(Operation::Trim)).chain(each(Operation::Read));
    for operation in all.chain([Operation::Flush]) {
        sequence.push(operation);
        let mut next = device.clone();
        next.operate(operation);
        counts.sequences += 1;
        if let Err(error) = cut_everywhere(&next, counts) {
            panic!("{sequence:?}, settled after each: {settles}: {error}");
        }
        if sequence.len() < LENGTH {
            while settles && next.step().is_some() {}
            extend(&next, sequence, settles, counts);
        }
        sequence.pop();
    }
}

fn run(streams: Streams, writes: u64, settles: bool) {
    let config = eight_blocks(streams);
    let mut counts = Counts::default();
    extend(&Device::new(&config, writes), &mut Vec::new(), settles, &mut counts);
    println!("{counts:?}");
    // 13 operations: 13 + 13^2 + 13^3 + 13^4.
    assert_eq!(counts.sequences, 30_940);
    assert!(counts.cuts > 3 * counts.sequences);
}

/// A full device whose power is lost in the middle of every collection, again and again.
#[test]
fn a_full_device_that_is_cut_off_in_every_collection_still_takes_writes() {
    let mut dropped = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed).fork();
        let mut config = eight_blocks(Streams::Separate);
        (config.shape.blocks_per_plane, config.shape.channels) = (12, 1 + seed as u32 % 3);
        let free = &mut config.ftl.collection;
        (free.free_foreground, free.free_background) = (1, 1);
        config.ftl.checkpoint_superblocks = 2;
        config.ftl.logical_units = config.logical_units_max();
        let mut device = Device::new(&config, 0);
        for round in 0..100 {
            let victims = device.ftl.stats().victims;
            for _ in 0..1_000 {
                device.operate(Operation::Write(rng.below(config.ftl.logical_units)));
                if device.ftl.stats().victims > victims {
                    break;
                }
            }
            for _ in 0..rng.below(12) {
                device.step();
            }
            let (ftl, report) = PageFtl::recover(&config, seed, device.ftl.lose_power()).unwrap();
            dropped += report.copies_dropped;
            ftl.audit().unwrap();
            device.ftl = ftl;
            device.ftl.advance(device.now);
            for lpn in 0..config.ftl.logical_units {
                let seen = Device::seen(&device.ftl, lpn);
                let checked = device.reference.check_recovered(lpn, seen, 0, true, |_| false);
                checked.unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            }
        }
    }
    assert!(dropped > 0, "no cut left too little space for the copies to stand");
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
