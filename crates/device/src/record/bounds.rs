//! What a recording may ask for. Its checksums hold whatever somebody wrote into it, and a few bytes can name much
//! memory: a core of terabytes, payloads that are only their lengths. So each is counted before it is made.

use std::collections::BTreeMap;

use osier_flash::{Ftl, Lba};

use super::input::Unit;
use super::stand_in::{STAND_IN_BYTES_MIN, stand_in};
use crate::core::{COMMANDS_MAX, CommandId, Device, DeviceParams};
use crate::profile::Profile;

/// Why a record is not given to the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No device records such a thing.
    Damaged(String),
    /// The replay would need so many bytes of memory.
    Memory(u64),
}

/// Bytes of memory of a core, at most: its map and its write buffer.
pub(super) fn core_bytes(profile: &Profile, params: &DeviceParams, buffer_bytes: u64) -> Result<u64, Refusal> {
    let damaged = |text: String| Err(Refusal::Damaged(text));
    if let Err(error) = params.geometry.validate() {
        return damaged(format!("a core that cannot be: {error}"));
    }
    let (media, most) = (params.geometry.media_bytes(), profile.geometry().media_bytes());
    if media > most {
        return damaged(format!("media of {media} bytes, where the recorded profile has {most}"));
    }
    if buffer_bytes > profile.write_buffer.bytes {
        let most = profile.write_buffer.bytes;
        return damaged(format!("a write buffer of {buffer_bytes} bytes, where the recorded profile has {most}"));
    }
    let map_bytes = params.logical_blocks.saturating_mul(Ftl::MAP_BYTES_PER_BLOCK);
    Ok(map_bytes.saturating_add(buffer_bytes))
}

/// The bytes that commands under way keep in memory. A command that the core refuses keeps none.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    by_command: BTreeMap<CommandId, u64>,
    bytes: u64,
    pub bytes_max: u64,
}

impl UnderWay {
    pub fn new(bytes_max: u64) -> UnderWay {
        UnderWay { bytes_max, ..UnderWay::default() }
    }

    /// One more command may be given to the core.
    pub fn has_room<B: crate::Bytes>(&self, device: &Device<B>) -> Result<(), Refusal> {
        if device.commands_in_flight() < COMMANDS_MAX {
            return Ok(());
        }
        Err(Refusal::Damaged(format!("{COMMANDS_MAX} commands are under way, and one more comes")))
    }

    /// The payloads of a write, or what stands in for them.
    pub fn payloads<B: crate::Bytes>(
        &mut self,
        device: &Device<B>,
        id: u64,
        units: &[Unit],
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        self.has_room(device)?;
        let bytes = units.iter().map(|unit| u64::from(unit.stored_bytes)).sum();
        // What does not fit into the write buffer the core refuses by its length, and looks at no payload.
        if !device.params().with_data || bytes > device.buffer().request_bytes_max() {
            return Ok(vec![Vec::new(); units.len()]);
        }
        self.begins(CommandId(id), bytes)?;
        units.iter().map(payload_of).collect()
    }

    /// A read is given to the core.
    pub fn read<B: crate::Bytes>(
        &mut self,
        device: &Device<B>,
        id: u64,
        slba: u64,
        blocks: u32,
    ) -> Result<(), Refusal> {
        self.has_room(device)?;
        if !device.params().with_data || device.refuses_read(Lba(slba), blocks) {
            return Ok(());
        }
        self.begins(CommandId(id), u64::from(blocks) * u64::from(device.stored_bytes_max()))
    }

    fn begins(&mut self, id: CommandId, bytes: u64) -> Result<(), Refusal> {
        let wanted = self.bytes.saturating_add(bytes);
        if wanted > self.bytes_max {
            return Err(Refusal::Memory(wanted));
        }
        self.bytes = wanted;
        *self.by_command.entry(id).or_default() += bytes;
        Ok(())
    }

    pub fn ended(&mut self, id: CommandId) {
        self.bytes -= self.by_command.remove(&id).unwrap_or(0);
    }
}

fn payload_of(unit: &Unit) -> Result<Vec<u8>, Refusal> {
    if unit.stored_bytes >= STAND_IN_BYTES_MIN {
        return Ok(stand_in(unit.stored_bytes, unit.checksum));
    }
    let fits = unit.bytes.0.len() == unit.stored_bytes as usize;
    if fits { Ok(unit.bytes.0.clone()) } else { Err(Refusal::Damaged("a short payload is not there".to_owned())) }
}
