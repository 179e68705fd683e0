//! The world around a device under test: media that a power cut tears, a buffer whose process can die
//! at any byte, and a driver of virtual time.
//!
//! Fault model, which is what the device claims to survive:
//! - *kill*: the process is gone. The buffer is as its last store left it, the last store cut short.
//!   Media operations that were carried out stay; of those that were issued and not carried out, each
//!   is done, left out or cut short.
//! - *power cut*: as a kill, and of what was programmed or erased since the last sync, each change is
//!   there, missing or torn. A buffer that is not protected is lost: zeroes, rubbish, or by luck there.

use std::cell::Cell;
use std::rc::Rc;

use super::super::*;
use crate::profile::GeometrySection;

/// A small generator (xorshift64*): a failure names the seed, and the seed is the whole test.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
    pub fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// Bytes whose process dies after so many more bytes are stored.
#[derive(Clone, Debug)]
pub struct Mortal {
    pub bytes: Vec<u8>,
    pub left: Rc<Cell<u64>>,
}

impl Mortal {
    pub fn new(bytes: Vec<u8>) -> Mortal {
        Mortal { bytes, left: Rc::new(Cell::new(u64::MAX)) }
    }
}

impl Bytes for Mortal {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        Bytes::read(&self.bytes, offset, into);
    }
    fn write(&mut self, offset: u64, from: &[u8]) {
        let length = self.left.get().min(from.len() as u64);
        self.left.set(self.left.get() - length);
        Bytes::write(&mut self.bytes, offset, &from[..length as usize]);
    }
}

/// A change of the media that no sync covers yet.
#[derive(Debug)]
struct Change {
    address: u64,
    bytes: Vec<u8>,
}

/// The media.
#[derive(Debug)]
pub struct Media {
    /// What a read gives.
    pub bytes: Vec<u8>,
    /// What a power cut surely leaves.
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

impl Media {
    pub fn new(length: u64) -> Media {
        Media { bytes: vec![0; length as usize], durable: vec![0; length as usize], unsynced: Vec::new() }
    }

    fn change(&mut self, address: u64, bytes: Vec<u8>) {
        write_at(&mut self.bytes, address, &bytes);
        self.unsynced.push(Change { address, bytes });
    }

    /// Makes the first `changes` unsynced changes durable.
    fn sync(&mut self, changes: usize) {
        for change in self.unsynced.drain(..changes.min(self.unsynced.len())) {
            write_at(&mut self.durable, change.address, &change.bytes);
        }
    }

    fn power_cut(&mut self, draw: &mut Draw) {
        let changes = std::mem::take(&mut self.unsynced);
        for change in changes {
            match draw.below(3) {
                0 => write_at(&mut self.durable, change.address, &change.bytes),
                1 => {}
                _ => {
                    for (sector, bytes) in change.bytes.chunks(512).enumerate() {
                        if draw.one_in(2) {
                            write_at(&mut self.durable, change.address + sector as u64 * 512, bytes);
                        }
                    }
                }
            }
        }
        self.bytes.clone_from(&self.durable);
    }
}

fn write_at(bytes: &mut [u8], address: u64, from: &[u8]) {
    bytes[address as usize..address as usize + from.len()].copy_from_slice(from);
}

/// What is left of a device.
pub struct Remains {
    pub buffer: Vec<u8>,
    pub media: Media,
}

/// A device with its surroundings.
pub struct Bench {
    pub device: Device<Mortal>,
    pub media: Media,
    pub left: Rc<Cell<u64>>,
    pub now: Nanos,
    /// Operations taken and not carried out, and for syncs what they cover.
    taken: Vec<(MediaOp, usize)>,
    pub ended: Vec<Completion>,
}

impl Bench {
    pub fn create(profile: &Profile, params: DeviceParams, buffer_bytes: usize) -> Bench {
        let buffer = Mortal::new(vec![0; buffer_bytes]);
        let left = Rc::clone(&buffer.left);
        let media = Media::new(params.geometry.media_bytes());
        let device = Device::create(profile, params, buffer).expect("a device is made");
        Bench { device, media, left, now: Nanos(0), taken: Vec::new(), ended: Vec::new() }
    }

    pub fn recover(
        profile: &Profile,
        params: DeviceParams,
        remains: Remains,
    ) -> Result<(Bench, RecoveryReport), DeviceError> {
        let buffer = Mortal::new(remains.buffer);
        let left = Rc::clone(&buffer.left);
        let media = remains.media;
        let (device, report) = Device::recover(profile, params, buffer, &mut |address, into| {
            into.copy_from_slice(&media.bytes[address as usize..][..<[u8]>::len(into)]);
            Ok(())
        })?;
        Ok((Bench { device, media, left, now: Nanos(0), taken: Vec::new(), ended: Vec::new() }, report))
    }

    /// Whether the process has died in a store.
    pub fn is_dead(&self) -> bool {
        self.left.get() == 0
    }

    /// Takes operations from the device, if it still lives.
    pub fn take(&mut self) {
        if self.is_dead() {
            return;
        }
        while let Some(op) = self.device.next_op() {
            self.taken.push((op, self.media.unsynced.len()));
        }
    }

    /// Carries out one of the operations taken, any of them.
    pub fn carry_out(&mut self, draw: &mut Draw) -> bool {
        if self.taken.is_empty() || self.is_dead() {
            return false;
        }
        let (op, covers) = self.taken.swap_remove(draw.below(self.taken.len() as u64) as usize);
        let result = self.perform(op.kind, covers);
        self.device.media_done(self.now, op.id, result);
        true
    }

    /// Lets the media refuse the first operation of a kind, if one was taken.
    pub fn fail_first(&mut self, error: MediaError, is_kind: impl Fn(&MediaOpKind) -> bool) -> bool {
        let Some(index) = self.taken.iter().position(|(op, _)| is_kind(&op.kind)) else { return false };
        let (op, _) = self.taken.remove(index);
        self.device.media_done(self.now, op.id, MediaResult::Failed(error));
        true
    }

    fn perform(&mut self, kind: MediaOpKind, covers: usize) -> MediaResult {
        match kind {
            MediaOpKind::Read { address, bytes } => {
                MediaResult::Read(self.media.bytes[address as usize..][..bytes as usize].into())
            }
            MediaOpKind::Program { address, data, .. } => {
                self.media.change(address, data.as_deref().unwrap_or_default().to_vec());
                MediaResult::Programmed(data)
            }
            MediaOpKind::Erase { address, bytes } => {
                self.media.change(address, vec![0xff; bytes as usize]);
                MediaResult::Erased
            }
            MediaOpKind::Sync => {
                self.media.sync(covers);
                // What the syncs still to come cover has moved forward.
                for (_, other) in &mut self.taken {
                    *other = other.saturating_sub(covers);
                }
                MediaResult::Synced
            }
        }
    }

    /// Polls, unless the process died in what came before.
    pub fn poll(&mut self) {
        if self.is_dead() {
            return;
        }
        let mut ended = Vec::new();
        self.device.poll(self.now, &mut ended);
        if !self.is_dead() {
            self.ended.extend(ended);
        }
        self.take();
    }

    /// Lets virtual time pass to the next event.
    pub fn advance(&mut self) -> bool {
        let Some(next) = self.device.next_event() else { return false };
        self.now = self.now.max(next);
        self.poll();
        true
    }

    /// Runs until nothing is left to happen.
    pub fn settle(&mut self) {
        let mut draw = Draw::new(1);
        self.take();
        for _ in 0..1_000_000 {
            self.poll();
            while self.carry_out(&mut draw) {}
            if !self.advance() && self.taken.is_empty() {
                return;
            }
        }
        panic!("the device never comes to rest: next event {:?} at {:?}", self.device.next_event(), self.now);
    }

    /// Ends the process.
    pub fn kill(mut self, draw: &mut Draw) -> Remains {
        for (op, _) in std::mem::take(&mut self.taken) {
            let (address, bytes) = match op.kind {
                MediaOpKind::Program { address, data, .. } => (address, data.unwrap_or_default().into_vec()),
                MediaOpKind::Erase { address, bytes } => (address, vec![0xff; bytes as usize]),
                MediaOpKind::Read { .. } | MediaOpKind::Sync => continue,
            };
            let done = match draw.below(3) {
                0 => bytes.len(),
                1 => 0,
                _ => draw.below(bytes.len() as u64) as usize,
            };
            self.media.change(address, bytes[..done].to_vec());
        }
        Remains { buffer: self.device.into_buffer().bytes, media: self.media }
    }

    /// Takes the power away.
    pub fn power_cut(self, draw: &mut Draw) -> Remains {
        let protected = self.device.profile().persistence.pmr_persistent;
        let mut remains = self.kill(draw);
        remains.media.power_cut(draw);
        if !protected {
            match draw.below(4) {
                0 => remains.buffer.fill(0),
                1 => remains.buffer.iter_mut().for_each(|byte| *byte = draw.next() as u8),
                2 => {
                    for page in remains.buffer.chunks_mut(4096) {
                        if draw.one_in(3) {
                            page.fill(0);
                        }
                    }
                }
                _ => {}
            }
        }
        remains
    }
}

/// A profile cut down to a device of two MiB whose every limit is near.
pub fn small_profile(protected: bool) -> Profile {
    let mut profile = Profile::built_in("smartssd").expect("built in");
    profile.geometry = GeometrySection {
        channels: 2,
        chips_per_channel: 1,
        dies_per_chip: 1,
        planes_per_die: 1,
        blocks_per_plane: 16,
        pages_per_block: 16,
        page_bytes: 4096,
        ..profile.geometry
    };
    profile.ftl.over_provisioning_permille = 100;
    profile.persistence.pmr_persistent = protected;
    profile
}

/// Parameters of a device of `logical_blocks` on the whole array of `profile`.
pub fn params(profile: &Profile, logical_blocks: u64) -> DeviceParams {
    DeviceParams {
        geometry: profile.geometry(),
        logical_blocks,
        with_data: true,
        thin: true,
        verify: true,
        streams: 4,
        salt: 99,
    }
}
