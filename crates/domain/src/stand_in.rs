//! Stands in until the device crate has these.
/// Time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);
/// NVMe status: type in bits 8.., code in bits 0..8.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status(pub u16);
impl Status {
    /// Success.
    pub const SUCCESS: Status = Status(0);
    /// An actor failed.
    pub const ACTOR_FAILED: Status = Status(0x7c0);
    /// An actor trapped.
    pub const ACTOR_TRAPPED: Status = Status(0x7c1);
    /// An actor used up its time.
    pub const ACTOR_TIMEOUT: Status = Status(0x7c2);
    /// Bytes are not what they should be.
    pub const INTEGRITY: Status = Status(0x7c3);
    /// Whether it is success.
    pub fn is_success(self) -> bool {
        self == Status::SUCCESS
    }
}
/// Bytes of a logical block.
pub const BLOCK_BYTES: u32 = 4096;
