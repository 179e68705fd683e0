//! Log pages.

use std::collections::VecDeque;

use osier_device::Status;

use crate::command::{Command, admin, nvm};
use crate::controller::{Identity, Reach};
use crate::identify::ERRORS_MAX;
use crate::status::{self, INVALID_LOG_PAGE};

/// Bytes of an entry of the error log.
const ERROR_BYTES: usize = 64;
/// Most bytes of one Get Log Page.
pub(crate) const LOG_BYTES_MAX: u64 = 64 << 10;

/// What the device is like now; the transport's answer to SMART. Counts are since the device was made, where it keeps
/// them, or since it was brought up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Degrees above absolute zero, of the model.
    pub temperature_kelvin: u16,
    /// Spare blocks left, of a hundred.
    pub spare_percent: u8,
    /// Below this the spare is too low.
    pub spare_threshold_percent: u8,
    /// Wear: erases of what the profile says that blocks endure, of a hundred; may exceed it.
    pub used_percent: u8,
    /// Bytes read by clients.
    pub read_bytes: u128,
    /// Bytes written by clients.
    pub written_bytes: u128,
    /// Read commands.
    pub reads: u128,
    /// Write commands.
    pub writes: u128,
    /// Milliseconds that the device was busy.
    pub busy_ms: u64,
    /// Times that it was brought up.
    pub power_cycles: u64,
    /// Seconds since it was made.
    pub powered_s: u64,
    /// Times that it went down without a word.
    pub unsafe_shutdowns: u64,
    /// Reads and programs that the media failed.
    pub media_errors: u64,
    /// The temperature is over the profile's throttle.
    pub is_hot: bool,
    /// It takes no writes.
    pub is_read_only: bool,
}

/// Log page identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPage {
    /// 01h: commands that failed.
    Errors,
    /// 02h: SMART / Health Information.
    Health,
    /// 03h: Firmware Slot Information.
    Firmware,
    /// 04h: Changed Attached Namespace List.
    ChangedNamespaces,
    /// 05h: Commands Supported and Effects.
    Effects,
    /// 70h: Discovery.
    Discovery,
}

/// What Get Log Page asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which.
    pub page: LogPage,
    /// From which byte on.
    pub offset: u64,
    /// How many bytes; behind the page's end they are zero.
    pub bytes: u64,
    /// Its event stays masked.
    pub retain: bool,
}

/// Reads a Get Log Page command.
///
/// # Errors
/// The status that it ends with.
pub fn wanted(command: &Command) -> Result<Wanted, Status> {
    let [first, second, low, high, ..] = command.cdw;
    let page = match first & 0xFF {
        0x01 => LogPage::Errors,
        0x02 => LogPage::Health,
        0x03 => LogPage::Firmware,
        0x04 => LogPage::ChangedNamespaces,
        0x05 => LogPage::Effects,
        0x70 => LogPage::Discovery,
        _ => return Err(INVALID_LOG_PAGE),
    };
    // NUMD counts dwords from zero: bits 31:16 of dword 10 below bits 15:0 of dword 11.
    let bytes = (u64::from(first >> 16) | u64::from(second & 0xFFFF) << 16) * 4 + 4;
    let offset = u64::from(low) | u64::from(high) << 32;
    if bytes > LOG_BYTES_MAX || !offset.is_multiple_of(4) {
        return Err(Status::INVALID_FIELD);
    }
    Ok(Wanted { page, offset, bytes, retain: first & 1 << 15 != 0 })
}

/// The part of a page that was asked for; nothing when it begins behind the page's end.
pub fn cut(page: &[u8], wanted: &Wanted) -> Option<Vec<u8>> {
    let from = usize::try_from(wanted.offset).ok().filter(|from| *from <= page.len())?;
    let mut part: Vec<u8> = page[from..].to_vec();
    part.resize(usize::try_from(wanted.bytes).ok()?, 0);
    Some(part)
}

/// A command that failed ("Error Information Log Entry").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Errors so far, this one included.
    pub count: u64,
    /// Its submission queue.
    pub sqid: u16,
    /// Command identifier.
    pub cid: u16,
    /// How it ended.
    pub status: Status,
    /// First block, where it has one.
    pub lba: u64,
    /// Its namespace.
    pub nsid: u32,
}

/// The error log: newest first.
pub fn errors(failures: &VecDeque<Failure>) -> Vec<u8> {
    let mut page = vec![0; ERRORS_MAX * ERROR_BYTES];
    for (entry, failure) in page.chunks_exact_mut(ERROR_BYTES).zip(failures) {
        entry[0..8].copy_from_slice(&failure.count.to_le_bytes());
        entry[8..10].copy_from_slice(&failure.sqid.to_le_bytes());
        entry[10..12].copy_from_slice(&failure.cid.to_le_bytes());
        entry[12..14].copy_from_slice(&(status::field(failure.status) << 1).to_le_bytes());
        // No byte of the command is named as the wrong one.
        entry[14..16].copy_from_slice(&u16::MAX.to_le_bytes());
        entry[16..24].copy_from_slice(&failure.lba.to_le_bytes());
        entry[24..28].copy_from_slice(&failure.nsid.to_le_bytes());
    }
    page
}

/// SMART / Health Information.
pub fn health(health: &Health, errors: u64) -> Vec<u8> {
    let mut page = vec![0; 512];
    let warning = u8::from(health.spare_percent < health.spare_threshold_percent)
        | u8::from(health.is_hot) << 1
        | u8::from(health.is_read_only) << 3;
    page[0] = warning;
    page[1..3].copy_from_slice(&health.temperature_kelvin.to_le_bytes());
    (page[3], page[4], page[5]) = (health.spare_percent, health.spare_threshold_percent, health.used_percent);
    // Data units are thousands of 512 bytes, rounded up.
    let units = |bytes: u128| bytes.div_ceil(512_000);
    let wide = [
        units(health.read_bytes),
        units(health.written_bytes),
        health.reads,
        health.writes,
        u128::from(health.busy_ms / 60_000),
        u128::from(health.power_cycles),
        u128::from(health.powered_s / 3600),
        u128::from(health.unsafe_shutdowns),
        u128::from(health.media_errors),
        u128::from(errors),
    ];
    for (place, value) in page[32..192].chunks_exact_mut(16).zip(wide) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    // Temperature Sensor 1.
    page[200..202].copy_from_slice(&health.temperature_kelvin.to_le_bytes());
    page
}

/// Firmware Slot Information: slot 1 is active.
pub fn firmware(identity: &Identity) -> Vec<u8> {
    let mut page = vec![0; 512];
    page[0] = 1;
    for (place, byte) in page[8..16].iter_mut().zip(identity.firmware.bytes().chain(std::iter::repeat(b' '))) {
        *place = byte;
    }
    page
}

/// Changed namespaces; more than fit would be all of them.
pub fn changed(namespaces: &[u32]) -> Vec<u8> {
    let mut page = vec![0; 4096];
    for (place, nsid) in page.chunks_exact_mut(4).zip(namespaces) {
        place.copy_from_slice(&nsid.to_le_bytes());
    }
    page
}

/// What only controllers by memory have.
pub const MEMORY_COMMANDS: [u8; 5] =
    [admin::DELETE_SQ, admin::CREATE_SQ, admin::DELETE_CQ, admin::CREATE_CQ, admin::GET_LBA_STATUS];

/// Commands Supported and Effects: CSUPP in bit 0, LBCC (content changes) in bit 1.
pub fn effects(reach: Reach) -> Vec<u8> {
    const ADMIN: [u8; 13] = [
        admin::DELETE_SQ,
        admin::CREATE_SQ,
        admin::GET_LOG_PAGE,
        admin::DELETE_CQ,
        admin::CREATE_CQ,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT_REQUEST,
        admin::KEEP_ALIVE,
        admin::FORMAT_NVM,
        admin::GET_LBA_STATUS,
    ];
    const IO: [u8; 7] =
        [nvm::FLUSH, nvm::WRITE, nvm::READ, nvm::COMPARE, nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT, nvm::VERIFY];
    let mut page = vec![0; 4096];
    let has = |opcode: &u8| reach == Reach::Memory || !MEMORY_COMMANDS.contains(opcode);
    for opcode in ADMIN.into_iter().filter(has) {
        page[usize::from(opcode) * 4] = 1 | u8::from(opcode == admin::FORMAT_NVM) << 1;
    }
    for opcode in IO {
        let changes = matches!(opcode, nvm::WRITE | nvm::WRITE_ZEROES | nvm::DATASET_MANAGEMENT);
        page[1024 + usize::from(opcode) * 4] = 1 | u8::from(changes) << 1;
    }
    page
}
