//! The device as it was left, whatever ended it: the buffer's committed records over the flash's map.
//!
//! The buffer and the media are read apart and must fit each other: the log's numbers go on behind
//! everything that the flash has. Records that the flash has already, or has newer, are not shown from
//! the buffer; all are drained again, and the flash leaves out what it knows.

use super::{
    BufferError, Bytes, Device, DeviceError, DeviceParams, Ftl, Lba, MediaError, Profile, RecordKind, WriteBuffer,
    extent_footprint,
};
use crate::buffer::BufferReport;
use osier_flash::Looked;

/// Reads media bytes: address, and where to put them.
pub(crate) type ReadMedia<'a> = dyn FnMut(u64, &mut [u8]) -> Result<(), MediaError> + 'a;

/// More records than one log can hold and its device can have in flight.
const LOST_SEQUENCES: u64 = 1 << 32;

/// What became of the write buffer in a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferState {
    /// It was read; see the report.
    Kept(BufferReport),
    /// It and the media were as they come: all zeroes and blank. An empty log was made.
    New,
    /// It was not power-fail protected and is gone, as after a power cut: writes that were completed
    /// and not flushed are lost, as promised. An empty log was made.
    Lost,
}

/// What a recovery found.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveryReport {
    /// The write buffer.
    pub buffer: BufferState,
    /// The flash.
    pub flash: osier_flash::RecoveryReport,
}

impl<B: Bytes> Device<B> {
    /// The device as it was left, whatever ended it. `read` reads the media.
    ///
    /// Committed records of the buffer are visible at once and drain again; the flash knows those it
    /// has already. A device that keeps no bytes has nothing to recover from, and is a new one.
    ///
    /// # Errors
    /// Damage that leaves no device, with nothing changed; see [`DeviceError`].
    pub fn recover(
        profile: &Profile,
        params: DeviceParams,
        buffer: B,
        read: &mut ReadMedia<'_>,
    ) -> Result<(Device<B>, RecoveryReport), DeviceError> {
        Device::recover_watched(profile, params, buffer, read, &mut |_| {})
    }

    /// As [`Device::recover`], and tells `watch` what of the media it looks at.
    pub(crate) fn recover_watched(
        profile: &Profile,
        params: DeviceParams,
        buffer: B,
        read: &mut ReadMedia<'_>,
        watch: &mut dyn FnMut(Looked<'_>),
    ) -> Result<(Device<B>, RecoveryReport), DeviceError> {
        if !params.with_data {
            let report = RecoveryReport { buffer: BufferState::New, flash: osier_flash::RecoveryReport::default() };
            return Ok((Device::create(profile, params, buffer)?, report));
        }
        let (ftl_params, blocks) = (profile.ftl_params(true, params.thin), params.logical_blocks);
        let timing = profile.timing();
        let (ftl, flash) = Ftl::recover_watched(params.geometry, timing, ftl_params, blocks, read, watch)?;
        let (mut log, state) = open_buffer(profile, &params, buffer, &flash)?;
        log.raise_sequence(flash.sequence_max + 1);
        let mut device = Device::assemble(profile, params, log, ftl);
        device.adopt_records()?;
        Ok((device, RecoveryReport { buffer: state, flash }))
    }

    /// Enters the records of a recovered log: visible, and to be drained again.
    fn adopt_records(&mut self) -> Result<(), DeviceError> {
        let front = self.log.records().next().map_or(self.log.next_sequence(), |record| record.sequence);
        self.drained.through = front - 1;
        self.drained.programmed = front - 1;
        // What left the buffer was programmed; whether it was synced is known only if that is what a
        // record has to wait for.
        self.drained.synced = if self.profile.persistence.pmr_persistent { front - 1 } else { 0 };
        self.drained.idle = true;
        for record in self.log.records() {
            self.drained.undrained_bytes += record.ring_bytes();
            if record.kind == RecordKind::Pad {
                continue;
            }
            let (slba, blocks) = (record.slba.0, u64::from(record.blocks));
            let inside = slba.checked_add(blocks).is_some_and(|end| end <= self.params.logical_blocks);
            if !inside || blocks == 0 || record.stored_bytes > self.ftl.stored_bytes_max() {
                return Err(DeviceError::RecordOutOfRange {
                    sequence: record.sequence,
                    slba,
                    blocks: record.blocks,
                    logical_blocks: self.params.logical_blocks,
                });
            }
            // The flash may have it already, or newer. Then its copy counts: it is surely whole, and
            // a damaged log may have lost the newer record.
            let is_newer = |block: u64| self.ftl.sequence_at(Lba(block)) < record.sequence;
            let mut at = slba;
            while at < slba + blocks {
                let run = (at..slba + blocks).take_while(|block| is_newer(*block)).count() as u64;
                if run > 0 {
                    self.pending.insert(at, run, record.sequence);
                }
                at += run.max(1);
            }
            self.drained.reserved_bytes += u64::from(extent_footprint(record.stored_bytes));
        }
        self.counters.visible = self.log.next_sequence() - 1;
        self.counters.completed = self.counters.visible;
        Ok(())
    }
}

/// The log in `buffer`, or an empty one where there is none and none was promised.
fn open_buffer<B: Bytes>(
    profile: &Profile,
    params: &DeviceParams,
    buffer: B,
    flash: &osier_flash::RecoveryReport,
) -> Result<(WriteBuffer<B>, BufferState), DeviceError> {
    let newest = flash.sequence_max;
    let protected = profile.persistence.pmr_persistent;
    // Nothing was ever written here, so no promise was ever made.
    if flash.superblocks_written + flash.superblocks_headless == 0 && begins_with_zeroes(&buffer) {
        return Ok((reformat(buffer, params, newest)?, BufferState::New));
    }
    match WriteBuffer::recover(buffer) {
        Ok((log, report)) if log.records().next().is_none() || log.next_sequence() > newest => {
            Ok((log, BufferState::Kept(report)))
        }
        Ok((log, _)) if protected => Err(DeviceError::BufferBehindMedia { buffer: log.next_sequence(), flash: newest }),
        Ok((log, _)) => Ok((reformat(log.into_bytes(), params, newest)?, BufferState::Lost)),
        Err((BufferError::NotALog | BufferError::TailLost, bytes)) if !protected => {
            Ok((reformat(bytes, params, newest)?, BufferState::Lost))
        }
        Err((error, _)) => Err(error.into()),
    }
}

fn begins_with_zeroes(bytes: &impl Bytes) -> bool {
    let mut header = [0; 64];
    let length = bytes.len().min(64) as usize;
    bytes.read(0, &mut header[..length]);
    header.iter().all(|byte| *byte == 0)
}

/// An empty log in place of one that a power cut took. Another salt keeps what is left of the old
/// one from being taken for records of the new: it is drawn from those very leftovers, because numbers
/// of the device alone are the same again when two cuts in a row find the media unchanged. The numbers
/// jump beyond all that the old one can have given out: a program that the cut tore may still be found,
/// and must not look newer.
fn reformat<B: Bytes>(bytes: B, params: &DeviceParams, newest: u64) -> Result<WriteBuffer<B>, BufferError> {
    let first = newest.saturating_add(LOST_SEQUENCES);
    let salt = crc32c::crc32c_append(checksum(&bytes, params.salt), &first.to_le_bytes());
    WriteBuffer::format(bytes, params.streams, first, salt, params.with_data)
}

fn checksum(bytes: &impl Bytes, seed: u32) -> u32 {
    let mut page = [0; 4096];
    let (mut crc, mut at) = (seed, 0);
    while at < bytes.len() {
        let step = (bytes.len() - at).min(4096);
        let part = &mut page[..step as usize];
        bytes.read(at, part);
        crc = crc32c::crc32c_append(crc, part);
        at += step;
    }
    crc
}
