//! The scheduler's section of a device profile.

/// The `[scheduler]` section of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerParams {
    /// Milliseconds between two samples.
    pub epoch_ms: u64,
    /// At or above this temperature actors are uploaded to the host.
    pub upload_millicelsius: i32,
    /// Below this temperature the device is cool: it may be given work.
    pub offload_below_millicelsius: i32,
    /// At or above this host CPU share actors are offloaded.
    pub host_cpu_high_permille: u32,
    /// Below this host CPU share offloaded actors return to the host.
    pub host_cpu_low_permille: u32,
    /// Host CPU share below which the host has headroom for an upload.
    pub host_headroom_permille: u32,
    /// The host's CPU share is averaged over this time.
    pub host_cpu_window_ms: u32,
    /// A core below this share of its nominal frequency, while busy, is throttled.
    pub host_throttle_permille: u32,
    /// An actor that was placed stays at least this long.
    pub min_residency_ms: u64,
    /// Actors moved at most in one epoch.
    pub moves_per_epoch: u32,
    /// The rate falls by at most this much an epoch while load is shed.
    pub shed_step_permille: u32,
    /// The rate rises by at most this much an epoch afterwards.
    pub shed_recover_permille: u32,
    /// The rate never falls below this.
    pub shed_floor_permille: u32,
    /// So far above the upload temperature the rate is at its floor.
    pub shed_span_millikelvin: u32,
}
