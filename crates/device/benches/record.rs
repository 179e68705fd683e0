//! What recording the core costs: random writes of 4 KiB with their bytes, without a recording, with one that goes to
//! memory, and the replay of that. Prints one JSON object for each figure.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use osier_device::record::{
    BLOCK_HEADER_BYTES, Figures, Next, Origin, Recorded, Replay, Sink, Tape, Urgency, read_block,
};
use osier_device::{
    CommandId, Completion, Device, DeviceParams, Lba, MediaOpKind, MediaResult, Nanos, Profile, UnitMeta, WriteMeta,
};

/// Logical blocks of the device: 256 MiB, so that the flash collects.
const BLOCKS: u64 = (256 << 20) / 4096;
/// Writes in flight.
const DEPTH: u64 = 32;
/// How long each rate is measured.
const MEASURED: Duration = Duration::from_secs(3);

#[derive(Clone, Default)]
struct Kept(Rc<RefCell<Vec<u8>>>);

impl Sink for Kept {
    fn block(&mut self, block: Vec<u8>, _: Urgency) -> Result<(), String> {
        self.0.borrow_mut().extend_from_slice(&block);
        Ok(())
    }
}

struct Run {
    device: Recorded<Vec<u8>>,
    media: Vec<u8>,
    now: Nanos,
    number: u64,
    ended: Vec<Completion>,
    payload: Vec<u8>,
}

impl Run {
    fn new(recorded: Option<Kept>) -> Run {
        let text = Profile::built_in_text("wio").expect("built in");
        let profile = Profile::parse("wio", text).expect("a built-in profile is valid");
        let params = DeviceParams { thin: true, ..DeviceParams::new(&profile, BLOCKS) };
        let media = vec![0; params.geometry.media_bytes() as usize];
        let buffer = vec![0; profile.write_buffer.bytes as usize];
        let device = match recorded {
            None => Device::create(&profile, params, buffer).expect("a device is made").into(),
            Some(kept) => {
                let origin = Origin {
                    profile_name: "wio".to_owned(),
                    profile_text: text.to_owned(),
                    rate_divisor: 1,
                    thermal_time_scale: 1,
                    life: 0,
                };
                let tape = Tape::new(0, Box::new(kept));
                Recorded::create(&profile, params, buffer, &origin, tape).expect("a device is made")
            }
        };
        let payload = (0..4096_u32).map(|at| (at * 7) as u8).collect();
        Run { device, media, now: Nanos(0), number: 0, ended: Vec::new(), payload }
    }

    fn submit(&mut self) {
        self.number += 1;
        // A multiplicative hash for a place: the writes are spread, and the same in every run.
        let slba = Lba((self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % BLOCKS);
        let unit = UnitMeta { slba, blocks: 1, raw_bytes: 4096, stored_bytes: 4096, tag: 0 };
        let meta = WriteMeta::default();
        self.device.submit_write(self.now, CommandId(self.number), meta, &[unit], &[&self.payload]);
    }

    fn carry_out(&mut self) {
        while let Some(op) = self.device.next_op() {
            let result = match op.kind {
                MediaOpKind::Read { address, bytes } => {
                    MediaResult::Read(self.media[address as usize..][..bytes as usize].into())
                }
                MediaOpKind::Program { address, data, .. } => {
                    let bytes = data.as_deref().unwrap_or_default();
                    self.media[address as usize..][..bytes.len()].copy_from_slice(bytes);
                    MediaResult::Programmed(data)
                }
                MediaOpKind::Erase { .. } => MediaResult::Erased,
                MediaOpKind::Sync => MediaResult::Synced,
            };
            self.device.media_done(self.now, op.id, result);
        }
    }

    fn step(&mut self) -> u64 {
        self.now = self.device.next_event().unwrap_or(self.now).max(self.now);
        self.device.poll(self.now, &mut self.ended);
        let ended = self.ended.len() as u64;
        self.ended.clear();
        (0..ended).for_each(|_| self.submit());
        self.carry_out();
        ended
    }

    /// Writes a second.
    fn rate(&mut self) -> f64 {
        (0..DEPTH).for_each(|_| self.submit());
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < MEASURED {
            (0..1_000).for_each(|_| count += self.step());
        }
        count as f64 / start.elapsed().as_secs_f64()
    }
}

fn main() {
    let without = Run::new(None).rate();
    let kept = Kept::default();
    let mut run = Run::new(Some(kept.clone()));
    let with = run.rate();
    let device_seconds = run.now.0 as f64 / 1e9;
    run.device.end_recording();
    let file = kept.0.borrow();
    let bytes_each = file.len() as f64 / run.number as f64;
    let mut replay = Replay::new(u64::MAX);
    let (mut from, mut at, start) = (file.as_slice(), 0, Instant::now());
    while let Next::Block(header, records) = read_block(&mut from, at).expect("a sound recording") {
        replay.block(at, &header, &records).expect("the replay is the same");
        at += BLOCK_HEADER_BYTES as u64 + u64::from(header.bytes);
    }
    let replayed = run.number as f64 / start.elapsed().as_secs_f64();
    replay.finish();
    assert_eq!(
        replay.lives()[0].statistics,
        Some(Figures::Device(run.device.stats())),
        "the replay has the same figures"
    );
    println!("{{\"name\":\"record/off\",\"value\":{without:.0},\"unit\":\"writes/s\"}}");
    print!("{{\"name\":\"record/on\",\"value\":{with:.0},\"unit\":\"writes/s\",\"ratio\":{:.3}", with / without);
    print!(",\"peer\":\"without\",\"peer_value\":{without:.0}");
    println!(",\"note\":\"{bytes_each:.0} bytes recorded a write of 4 KiB\"}}");
    print!("{{\"name\":\"record/replay\",\"value\":{replayed:.0},\"unit\":\"writes/s\"");
    println!(",\"note\":\"{device_seconds:.2} s of device time\"}}");
}
