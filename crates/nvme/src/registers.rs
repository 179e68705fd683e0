//! Controller properties ("Controller Properties"): where they are, and what their fields are.

use crate::QUEUE_ENTRIES_MAX;

/// Controller Capabilities, 8 bytes.
pub const CAP: u64 = 0x00;
/// Version.
pub const VS: u64 = 0x08;
/// Controller Configuration.
pub const CC: u64 = 0x14;
/// Controller Status.
pub const CSTS: u64 = 0x1C;
/// Admin Queue Attributes.
pub const AQA: u64 = 0x24;
/// Admin Submission Queue Base Address, 8 bytes.
pub const ASQ: u64 = 0x28;
/// Admin Completion Queue Base Address, 8 bytes.
pub const ACQ: u64 = 0x30;
/// The first doorbell.
pub const DOORBELLS: u64 = 0x1000;
/// CAP.DSTRD: bytes from one doorbell to the next are 4 shifted by this, so each has a cache line.
const DOORBELL_STRIDE_LOG2: u64 = 4;
/// Bytes from one doorbell to the next.
pub const DOORBELL_BYTES: u64 = 4 << DOORBELL_STRIDE_LOG2;

/// VS: 2.0.0.
pub const VERSION: u32 = 2 << 16;
/// CC.EN.
pub const CC_EN: u32 = 1;
/// CC.SHN, bits 15:14: shut down.
pub const CC_SHN: u32 = 0b11 << 14;
/// CC.IOSQES and CC.IOCQES: entries of 64 and 16 bytes.
pub const CC_ENTRIES: u32 = 6 << 16 | 4 << 20;
/// All of CC that says how queues look: CSS (6:4), MPS (10:7), AMS (13:11), IOSQES (19:16), IOCQES (23:20).
const CC_SHAPE: u32 = 0x00FF_3FF0;
/// CSTS.RDY.
pub const CSTS_RDY: u32 = 1;
/// CSTS.CFS: a fatal error; only a reset helps.
pub const CSTS_CFS: u32 = 1 << 1;
/// CSTS.SHST, bits 3:2: shut down.
pub const CSTS_SHST_COMPLETE: u32 = 0b10 << 2;

/// CAP: MQES, contiguous queues required (16), 10 s to become ready (31:24, in halves of a second), the stride of
/// doorbells (35:32), the NVM command set (37), pages of 4096 bytes (51:48, 55:52).
#[must_use]
pub fn capabilities() -> u64 {
    u64::from(QUEUE_ENTRIES_MAX - 1) | 1 << 16 | 20 << 24 | DOORBELL_STRIDE_LOG2 << 32 | 1 << 37
}

/// The same of a controller over a fabric, whose queues have so many entries at most: there are no doorbells.
#[must_use]
pub fn over_fabric(entries_max: u16) -> u64 {
    u64::from(entries_max - 1) | 1 << 16 | 20 << 24 | 1 << 37
}

/// Whether a controller can be enabled with this configuration: the NVM command set, pages of 4096 bytes, round robin.
/// Entry sizes may be left zero until there are queues for I/O, and most hosts set them at once.
#[must_use]
pub fn is_configurable(cc: u32) -> bool {
    let shape = cc & CC_SHAPE;
    shape == CC_ENTRIES || shape == 0
}

/// The doorbell of a submission queue's tail.
#[must_use]
pub fn tail_doorbell(queue: u16) -> u64 {
    DOORBELLS + 2 * u64::from(queue) * DOORBELL_BYTES
}

/// The doorbell of a completion queue's head.
#[must_use]
pub fn head_doorbell(queue: u16) -> u64 {
    tail_doorbell(queue) + DOORBELL_BYTES
}
