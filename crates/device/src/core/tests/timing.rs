//! When things are due, and what a load settles at, in virtual time without data.

use std::collections::BTreeSet;

use super::super::*;
use crate::buffer::NoBytes;
use crate::predict::{Placement, Workload};

fn parts(profile: &Profile) -> (DeviceParams, NoBytes) {
    let params = DeviceParams { with_data: false, ..DeviceParams::new(profile, (1 << 30) / 4096) };
    (params, NoBytes { len: profile.write_buffer.bytes })
}

fn device(profile: &Profile) -> Device<NoBytes> {
    let (params, buffer) = parts(profile);
    Device::create(profile, params, buffer).expect("a device is made")
}

fn unit(number: u64, stored_permille: u32) -> UnitMeta {
    let slba = Lba(number * 16 % ((1 << 30) / 4096));
    UnitMeta { slba, blocks: 16, raw_bytes: 65_536, stored_bytes: 65_536 * stored_permille / 1000, tag: 0 }
}

/// Carries out every operation at once: the model alone decides when it is over.
fn carry_out(device: &mut Device<NoBytes>, now: Nanos) {
    while let Some(op) = device.next_op() {
        let result = match op.kind {
            MediaOpKind::Read { .. } => MediaResult::Read(Box::default()),
            MediaOpKind::Program { .. } => MediaResult::Programmed(None),
            MediaOpKind::Erase { .. } => MediaResult::Erased,
            MediaOpKind::Sync => MediaResult::Synced,
        };
        device.media_done(now, op.id, result);
    }
}

/// Keeps 64 writes in flight, each through the stages of the workload first.
struct Load {
    device: Device<NoBytes>,
    placement: Placement,
    workload: Workload,
    /// When the present stage of a request is through, its number, and the next stage.
    staged: BTreeSet<(Nanos, u64, usize)>,
    number: u64,
    now: Nanos,
    bytes: u64,
    log: u32,
}

impl Load {
    fn new(profile: &Profile, placement: Placement, workload: Workload) -> Load {
        Load::over(device(profile), placement, workload)
    }

    fn over(device: Device<NoBytes>, placement: Placement, workload: Workload) -> Load {
        let mut load =
            Load { device, placement, workload, staged: BTreeSet::new(), number: 0, now: Nanos(0), bytes: 0, log: 0 };
        (0..64).for_each(|_| load.start());
        load
    }

    fn start(&mut self) {
        self.number += 1;
        self.go_on(self.number, 0);
    }

    /// The next stage of a request on the device's cores, or the write itself.
    fn go_on(&mut self, number: u64, stage: usize) {
        let next = self.workload.stages.get(stage).filter(|_| self.placement == Placement::Device);
        if let Some(next) = next {
            let share = if next.input == Crossing::Raw { 1000 } else { self.workload.stored_permille };
            let due = self.device.compute(self.now).run(self.now, None, next.engine, 65_536 * share / 1000);
            self.staged.insert((due.expect("not shut down"), number, stage + 1));
            return;
        }
        let meta = WriteMeta { crossing: self.placement.crossing(), ..WriteMeta::default() };
        let unit = unit(number, self.workload.stored_permille);
        self.device.submit_write(self.now, CommandId(number), meta, &[unit], &[&[]]);
    }

    /// Runs until a time and returns the bytes whose writes ended.
    fn run(&mut self, until: Nanos) -> u64 {
        let mut ended = Vec::new();
        let before = self.bytes;
        loop {
            let staged = self.staged.first().map(|(at, ..)| *at);
            let next = [staged, self.device.next_event()].into_iter().flatten().min();
            let next = next.expect("requests are in flight");
            if next > until {
                return self.bytes - before;
            }
            self.now = self.now.max(next);
            while let Some(entry) = self.staged.first().copied().filter(|(at, ..)| *at <= self.now) {
                self.staged.remove(&entry);
                self.go_on(entry.1, entry.2);
            }
            carry_out(&mut self.device, self.now);
            self.device.poll(self.now, &mut ended);
            carry_out(&mut self.device, self.now);
            for completion in ended.drain(..) {
                assert_eq!(completion.status, Status::SUCCESS);
                self.bytes += 65_536;
                self.log = crc32c::crc32c_append(self.log, &completion.id.0.to_le_bytes());
                self.log = crc32c::crc32c_append(self.log, &completion.due.0.to_le_bytes());
                self.start();
            }
        }
    }
}

#[test]
fn a_single_write_is_due_after_the_slower_of_link_and_controller() {
    let profile = Profile::built_in("wio").expect("built in");
    let mut device = device(&profile);
    device.submit_write(Nanos(1_000), CommandId(1), WriteMeta::default(), &[unit(0, 1000)], &[&[]]);
    let controller = 500 + (65_536u64 * 1_000_000_000).div_ceil(3_543_348_019);
    assert_eq!(device.next_event(), Some(Nanos(1_000 + controller + 750)));
    // The next one queues behind it.
    device.submit_write(Nanos(1_000), CommandId(2), WriteMeta::default(), &[unit(1, 1000)], &[&[]]);
    let mut ended = Vec::new();
    device.poll(Nanos(1_000 + 2 * controller + 749), &mut ended);
    assert_eq!(ended.len(), 1);
    device.poll(Nanos(1_000 + 2 * controller + 750), &mut ended);
    assert_eq!(ended.len(), 2);
    assert_eq!(ended[1].due, Nanos(1_000 + 2 * controller + 750));
}

#[test]
fn a_read_from_flash_takes_the_array_and_then_the_data_path() {
    let profile = Profile::built_in("wio").expect("built in");
    let mut device = device(&profile);
    device.submit_write(Nanos(0), CommandId(1), WriteMeta::default(), &[unit(0, 1000)], &[&[]]);
    let mut ended = Vec::new();
    let mut now = Nanos(0);
    while let Some(next) = device.next_event() {
        now = next;
        device.poll(now, &mut ended);
        carry_out(&mut device, now);
    }
    assert_eq!(device.stats().undrained_bytes, 0);
    device.submit_read(now, CommandId(2), Lba(0), 16, Crossing::Raw);
    let begin = now;
    carry_out(&mut device, now);
    while ended.len() < 2 {
        now = device.next_event().expect("the read ends");
        device.poll(now, &mut ended);
    }
    let path = 500 + (65_536u64 * 1_000_000_000).div_ceil(3_328_599_654) + 750;
    let array = profile.timing().read_ns;
    let took = ended[1].due.saturating_since(begin);
    // Five pages over five channels: one array time, one page's transfer, the data path.
    let transfer = (16_384u64 * 1_000_000_000).div_ceil(profile.timing().channel_bytes_per_second);
    assert!((array + path..=array + path + transfer).contains(&took), "{took}");
}

/// What the profile predicts is what the device does: rate and temperature, host and device.
#[test]
fn sustained_writes_settle_at_the_predicted_rate_and_temperature() {
    for name in Profile::built_in_names() {
        // Fifty times slower and two hundred times hotter in time, so that minutes take a second.
        let profile = Profile::built_in(name).expect("built in").scaled(50, 200);
        let has_engines = !crate::profile::SOFTWARE_CORES.contains(&name);
        for placement in [Some(Placement::Host), has_engines.then_some(Placement::Device)].into_iter().flatten() {
            let workload = Workload::pipeline(600);
            let predicted = profile.steady_state_of(placement, &workload);
            let mut load = Load::new(&profile, placement, workload);
            load.run(Nanos::from_millis(5_000));
            let rate = load.run(Nanos::from_millis(8_000)) / 3;
            let apart = rate.abs_diff(predicted.write_bytes_per_second);
            assert!(apart * 100 <= rate * 3, "{name} {placement:?}: {rate} and {predicted:?}");
            let millicelsius = load.device.temperature_millicelsius();
            let apart = millicelsius.abs_diff(predicted.millicelsius);
            assert!(apart <= 1_500, "{name} {placement:?}: {millicelsius} and {predicted:?}");
            assert_eq!(load.device.stats().speed_permille, predicted.speed_permille);
        }
    }
}

#[test]
fn the_same_run_twice_is_the_same_to_the_nanosecond() {
    let run = || {
        let profile = Profile::built_in("smartssd").expect("built in").scaled(10, 500);
        let mut load = Load::new(&profile, Placement::Device, Workload::pipeline(700));
        load.run(Nanos::from_millis(600));
        (load.log, load.bytes, load.device.stats())
    };
    assert_eq!(run(), run());
}

/// There is nothing to recover from, and nothing is looked at.
#[test]
fn a_device_that_keeps_no_bytes_comes_up_as_a_new_one() {
    let profile = Profile::built_in("smartssd").expect("built in").scaled(10, 500);
    let (params, buffer) = parts(&profile);
    let mut read = |_: u64, _: &mut [u8]| -> Result<(), MediaError> { panic!("it has no media") };
    let (recovered, report) = Device::recover(&profile, params, buffer, &mut read).expect("it comes up");
    assert_eq!(report.buffer, BufferState::New);
    let run = |device| {
        let mut load = Load::over(device, Placement::Device, Workload::pipeline(700));
        load.run(Nanos::from_millis(100));
        assert!(load.bytes > 0);
        (load.log, load.bytes, load.device.stats())
    };
    assert_eq!(run(recovered), run(device(&profile)));
}

#[test]
fn samples_show_load_and_speed() {
    let profile = Profile::built_in("smartssd").expect("built in").scaled(50, 200);
    let mut load = Load::new(&profile, Placement::Device, Workload::pipeline(1000));
    load.device.sample(Nanos(0));
    load.run(Nanos::from_millis(100));
    let sample = load.device.sample(load.now);
    assert!((600..=1000).contains(&sample.compute_permille), "{sample:?}");
    assert_eq!((sample.speed_permille, sample.throttle_level), (1000, 0));
    assert!(sample.commands_in_flight > 0 && sample.buffer_permille > 0, "{sample:?}");
    load.run(Nanos::from_millis(4_000));
    let sample = load.device.sample(load.now);
    assert_eq!((sample.speed_permille, sample.throttle_level), (500, 1), "{sample:?}");
}
