//! Figures about what the device did, and the sample that a scheduler sees.

use super::{Bytes, Completion, Device, Nanos};
use osier_flash::FtlStats;

/// Counts that only rise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub raw_bytes_written: u64,
    pub stored_bytes_written: u64,
    pub raw_bytes_read: u64,
    pub blocks_trimmed: u64,
    pub flushes: u64,
    pub syncs: u64,
    pub replays: u64,
    pub waits: u64,
    pub reads_retried: u64,
    pub reads_unrecovered: u64,
    pub superblocks_retired: u64,
    pub commands_ok: u64,
    pub commands_failed: u64,
    /// The newest record committed.
    pub visible: u64,
    /// The newest record answered.
    pub completed: u64,
    pub polls: u64,
}

impl Counters {
    pub(super) fn complete(&mut self, completion: &Completion, through: u64) {
        self.completed = self.completed.max(through);
        if completion.status.is_success() {
            self.commands_ok += 1;
        } else {
            self.commands_failed += 1;
        }
    }
}

/// A snapshot of a device's figures. Counts are since it was made or recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DeviceStats {
    /// Bytes written by users, before the pipeline.
    pub raw_bytes_written: u64,
    /// The same bytes as stored.
    pub stored_bytes_written: u64,
    /// What the pipelines saved; 0 if they added.
    pub saved_bytes: u64,
    /// Logical bytes read.
    pub raw_bytes_read: u64,
    /// Logical blocks trimmed.
    pub blocks_trimmed: u64,
    /// Commands that ended well.
    pub commands_ok: u64,
    /// Commands that ended with another status.
    pub commands_failed: u64,
    /// Flushes that were asked for.
    pub flushes: u64,
    /// Syncs that barriers and the buffer asked the media for.
    pub syncs: u64,
    /// Requests recognised as committed before, and not written again.
    pub replays: u64,
    /// Writes and trims that had to wait for room in the buffer.
    pub waits: u64,
    /// Reads that were looked up anew.
    pub reads_retried: u64,
    /// Reads that failed because bytes did not fit their checksum or could not be read.
    pub reads_unrecovered: u64,
    /// *Visible*: the newest record that reads see.
    pub visible_through: u64,
    /// *Completed*: the newest record whose write was answered.
    pub completed_through: u64,
    /// *Persistent*: the newest record that is known to survive a loss of power.
    pub persistent_through: u64,
    /// Bytes of the buffer that hold records.
    pub buffer_bytes: u64,
    /// Bytes of the buffer that can hold records.
    pub buffer_bytes_max: u64,
    /// Bytes of the buffer that the flash was not handed yet.
    pub undrained_bytes: u64,
    /// Commands in flight.
    pub commands_in_flight: u64,
    /// Temperature.
    pub temperature_millicelsius: i32,
    /// Highest temperature.
    pub temperature_peak_millicelsius: i32,
    /// Present speed, in thousandths.
    pub speed_permille: u32,
    /// Throttle level, 0 unthrottled.
    pub throttle_level: u8,
    /// Changes of the throttle level.
    pub throttle_transitions: u64,
    /// Energy turned into heat, in nanojoules.
    pub energy_nanojoules: u64,
    /// Calls of the device's processor.
    pub compute_calls: u64,
    /// Bytes that they worked on.
    pub compute_bytes: u64,
    /// The flash layer's figures.
    pub flash: FtlStats,
}

impl DeviceStats {
    /// The figures as one JSON object, on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers under names are JSON")
    }
}

/// What a scheduler is told about the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSample {
    /// When.
    pub at: Nanos,
    /// Temperature.
    pub temperature_millicelsius: i32,
    /// Present speed, in thousandths; 0 is shut down.
    pub speed_permille: u32,
    /// Throttle level, 0 unthrottled.
    pub throttle_level: u8,
    /// Share of core time used since the last sample, in thousandths.
    pub compute_permille: u32,
    /// Commands in flight.
    pub commands_in_flight: u32,
    /// Fill level of the write buffer, in thousandths.
    pub buffer_permille: u32,
}

impl<B: Bytes> Device<B> {
    /// The figures as they are now.
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
        let counters = self.counters;
        let (compute_calls, compute_bytes) = self.compute.totals();
        let persistent = if self.profile.persistence.pmr_persistent { counters.visible } else { self.drained.synced };
        DeviceStats {
            raw_bytes_written: counters.raw_bytes_written,
            stored_bytes_written: counters.stored_bytes_written,
            saved_bytes: counters.raw_bytes_written.saturating_sub(counters.stored_bytes_written),
            raw_bytes_read: counters.raw_bytes_read,
            blocks_trimmed: counters.blocks_trimmed,
            commands_ok: counters.commands_ok,
            commands_failed: counters.commands_failed,
            flushes: counters.flushes,
            syncs: counters.syncs,
            replays: counters.replays,
            waits: counters.waits,
            reads_retried: counters.reads_retried,
            reads_unrecovered: counters.reads_unrecovered,
            visible_through: counters.visible,
            completed_through: counters.completed,
            persistent_through: persistent,
            buffer_bytes: self.log.live_bytes(),
            buffer_bytes_max: self.log.ring_bytes(),
            undrained_bytes: self.drained.undrained_bytes,
            commands_in_flight: self.commands_in_flight() as u64,
            temperature_millicelsius: self.thermal.millicelsius(),
            temperature_peak_millicelsius: self.thermal.peak_millicelsius(),
            speed_permille: self.thermal.speed_permille(),
            throttle_level: self.thermal.level(),
            throttle_transitions: self.thermal.transition_count(),
            energy_nanojoules: u64::try_from(self.thermal.energy_picojoules().0 / 1000).unwrap_or(u64::MAX),
            compute_calls,
            compute_bytes,
            flash: self.ftl.stats(),
        }
    }

    /// Nanoseconds of work given to each die so far, by die number.
    pub fn die_busy_ns(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.ftl.die_busy_ns()
    }

    /// What a scheduler is told at `now`. Shares are since the last sample, so one scheduler takes
    /// them.
    pub fn sample(&mut self, now: Nanos) -> DeviceSample {
        self.begin(now);
        let fill = u128::from(self.log.live_bytes()) * 1000 / u128::from(self.log.ring_bytes());
        DeviceSample {
            at: now,
            temperature_millicelsius: self.thermal.millicelsius(),
            speed_permille: self.speed_permille,
            throttle_level: self.thermal.level(),
            compute_permille: self.compute.utilisation_permille(now),
            commands_in_flight: u32::try_from(self.commands_in_flight()).unwrap_or(u32::MAX),
            buffer_permille: u32::try_from(fill).unwrap_or(1000),
        }
    }
}
