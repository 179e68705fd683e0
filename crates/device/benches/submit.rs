//! How fast the core itself is: writes submitted and completed a second, in virtual time without data.
//! Prints one JSON object for each size.

use std::time::{Duration, Instant};

use osier_device::{
    CommandId, Completion, Device, DeviceParams, Lba, MediaOpKind, MediaResult, Nanos, NoBytes, Profile, UnitMeta,
    WriteMeta,
};

/// Logical blocks of the device: one GiB.
const BLOCKS: u64 = (1 << 30) / 4096;
/// The fewest writes a second that are promised.
const RATE_MIN: f64 = 500_000.0;
/// Writes in flight.
const DEPTH: u64 = 32;

struct Run {
    device: Device<NoBytes>,
    now: Nanos,
    number: u64,
    ended: Vec<Completion>,
}

impl Run {
    fn submit(&mut self, blocks: u16) {
        let slba = Lba(self.number * u64::from(blocks) % BLOCKS);
        let raw_bytes = u32::from(blocks) * 4096;
        let unit = UnitMeta { slba, blocks, raw_bytes, stored_bytes: raw_bytes, tag: 0 };
        self.number += 1;
        self.device.submit_write(self.now, CommandId(self.number), WriteMeta::default(), &[unit], &[&[]]);
    }

    /// Carries out every operation at once: what is measured is the core.
    fn carry_out(&mut self) {
        while let Some(op) = self.device.next_op() {
            let result = match op.kind {
                MediaOpKind::Read { .. } => MediaResult::Read(Box::default()),
                MediaOpKind::Program { .. } => MediaResult::Programmed(None),
                MediaOpKind::Erase { .. } => MediaResult::Erased,
                MediaOpKind::Sync => MediaResult::Synced,
            };
            self.device.media_done(self.now, op.id, result);
        }
    }

    fn step(&mut self, blocks: u16) -> u64 {
        self.now = self.device.next_event().unwrap_or(self.now).max(self.now);
        self.device.poll(self.now, &mut self.ended);
        let ended = self.ended.len() as u64;
        self.ended.clear();
        (0..ended).for_each(|_| self.submit(blocks));
        self.carry_out();
        ended
    }
}

fn main() {
    for blocks in [1, 4, 16] {
        // No throttling: the pace of the core is measured, not that of the model.
        let mut profile = Profile::built_in("wio").expect("a built-in profile is valid");
        profile.throttle.clear();
        let buffer = NoBytes { len: profile.write_buffer.bytes };
        let params = DeviceParams { with_data: false, ..DeviceParams::new(&profile, BLOCKS) };
        let device = Device::create(&profile, params, buffer).expect("a device is made");
        let mut run = Run { device, now: Nanos(0), number: 0, ended: Vec::new() };
        (0..DEPTH).for_each(|_| run.submit(blocks));
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(2) {
            (0..1_000).for_each(|_| count += run.step(blocks));
        }
        let rate = count as f64 / start.elapsed().as_secs_f64();
        let stats = run.device.stats();
        let (kib, pass) = (u32::from(blocks) * 4, rate >= RATE_MIN);
        let ahead = run.now.0 as f64 / 1e9 / start.elapsed().as_secs_f64();
        let erased = stats.flash.superblocks_erased;
        print!("{{\"name\":\"device/submit-{kib}k\",\"value\":{rate:.0},\"unit\":\"writes/s\"");
        print!(",\"bar\":\">= {RATE_MIN}\",\"pass\":{pass}");
        println!(",\"note\":\"{ahead:.2} s of device time a second, {erased} superblocks erased\"}}");
    }
}
