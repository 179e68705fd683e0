//! Durations of the array's operations, and what its parts can do.

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Timing of the array. Every value comes from the profile; none is zero by default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArrayTiming {
    /// Array time of a page read (tR) in nanoseconds, one value for each bit of a cell, lowest page first:
    /// row `r` of a block is of type `r % bits`. One value for SLC, two for MLC, three for TLC, four for QLC.
    pub read_ns: Vec<u64>,
    /// Array time of a program (tPROG) in nanoseconds, by page type as `read_ns`.
    pub program_ns: Vec<u64>,
    /// Time of a block erase (tBERS) in nanoseconds.
    pub erase_ns: u64,
    /// Bytes that one channel moves in a second.
    pub channel_bytes_per_second: u64,
    /// Whether the planes of a die program one row and erase their blocks together.
    pub multi_plane: bool,
    /// Whether a die senses the next page while the last one crosses the channel.
    pub cache_read: bool,
    /// Whether the next page crosses the channel while the die programs.
    pub cache_program: bool,
    /// Whether a read goes before programs and erases that wait for its die.
    pub reads_first: bool,
    /// After so many reads went before it, the operation that waits longest goes next: 1 to 65,535. Not
    /// used when reads do not go first.
    pub reads_first_max: u32,
    /// What a read may interrupt.
    pub suspend: Suspend,
}

/// Suspension of running operations by reads. Needs `reads_first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suspend {
    /// Whether a program is suspended.
    pub program: bool,
    /// Whether an erase is suspended.
    pub erase: bool,
    /// Time until the die is ready for the read, in nanoseconds.
    pub suspend_ns: u64,
    /// Time until the operation goes on after the last read, in nanoseconds.
    pub resume_ns: u64,
    /// How often one operation may be suspended: 1 to 1,000. Afterwards reads wait for its end.
    pub times_max: u32,
}

/// Longest accepted operation: ten seconds.
const OPERATION_NS_MAX: u64 = 10_000_000_000;
/// Fastest accepted channel: a terabyte a second.
const CHANNEL_BYTES_PER_SECOND_MAX: u64 = 1_000_000_000_000;
/// Most bits of a cell.
const PAGE_TYPES_MAX: usize = 4;

impl ArrayTiming {
    /// Checks every value.
    ///
    /// # Errors
    /// Names the first value that cannot be true.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let bits = self.read_ns.len();
        if bits == 0 || bits > PAGE_TYPES_MAX {
            let reason = "give one value for each bit of a cell, 1 to 4";
            return Err(ConfigError::new("timing.read_ns", format!("{:?}", self.read_ns), reason));
        }
        if self.program_ns.len() != bits {
            let reason = format!("give as many values as read_ns has, {bits}");
            return Err(ConfigError::new("timing.program_ns", format!("{:?}", self.program_ns), reason));
        }
        for &ns in &self.read_ns {
            ConfigError::range("timing.read_ns", ns, 1, OPERATION_NS_MAX)?;
        }
        for &ns in &self.program_ns {
            ConfigError::range("timing.program_ns", ns, 1, OPERATION_NS_MAX)?;
        }
        ConfigError::range("timing.erase_ns", self.erase_ns, 1, OPERATION_NS_MAX)?;
        let rate = self.channel_bytes_per_second;
        ConfigError::range("timing.channel_bytes_per_second", rate, 1, CHANNEL_BYTES_PER_SECOND_MAX)?;
        ConfigError::range("timing.reads_first_max", u64::from(self.reads_first_max), 1, 65_535)?;
        let suspend = &self.suspend;
        if (suspend.program || suspend.erase) && !self.reads_first {
            let reason = "a read that does not go first suspends nothing; set timing.reads_first or switch this off";
            let key = if suspend.program { "timing.suspend.program" } else { "timing.suspend.erase" };
            return Err(ConfigError::new(key, true, reason));
        }
        ConfigError::range("timing.suspend.suspend_ns", suspend.suspend_ns, 1, OPERATION_NS_MAX)?;
        ConfigError::range("timing.suspend.resume_ns", suspend.resume_ns, 1, OPERATION_NS_MAX)?;
        ConfigError::range("timing.suspend.times_max", u64::from(suspend.times_max), 1, 1_000)
    }

    /// Page types, which is bits of a cell.
    #[must_use]
    pub fn page_types(&self) -> u32 {
        self.read_ns.len() as u32
    }

    /// Time in which `bytes` cross a channel, rounded up to whole nanoseconds.
    #[must_use]
    pub fn transfer_ns(&self, bytes: u32) -> u64 {
        (u64::from(bytes) * 1_000_000_000).div_ceil(self.channel_bytes_per_second)
    }
}
