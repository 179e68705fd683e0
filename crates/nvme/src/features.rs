//! Features: what a client may ask of the controller and change.

use osier_device::Status;

use crate::controller::{Identity, Reach};
use crate::identify;
use crate::status::{FEATURE_NOT_CHANGEABLE, FEATURE_NOT_SAVEABLE};

/// Feature identifiers.
mod id {
    pub const ARBITRATION: u8 = 0x01;
    pub const POWER_MANAGEMENT: u8 = 0x02;
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    pub const ERROR_RECOVERY: u8 = 0x05;
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    pub const WRITE_ATOMICITY: u8 = 0x0A;
    pub const ASYNC_EVENT_CONFIGURATION: u8 = 0x0B;
    pub const KEEP_ALIVE_TIMER: u8 = 0x0F;
}

/// Bit 31 of dword 10 of Set Features: keep it over a reset.
const SAVE: u32 = 1 << 31;
/// No temperature has this, so nothing is over it.
const NO_THRESHOLD: u16 = u16::MAX;

/// The features of one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// Writes may be answered before they are persistent (WCE).
    pub write_cache: bool,
    /// Over and under temperature thresholds, of sensor 1 and the composite alike.
    pub over_kelvin: u16,
    /// See above.
    pub under_kelvin: u16,
    /// The events that are wanted.
    pub events: u32,
    /// Milliseconds without a word after which a connection is dead; zero for never.
    pub keep_alive_ms: u32,
    default_over_kelvin: u16,
    has_cache: bool,
    is_discovery: bool,
    io_queues_max: u16,
}

/// What Set Features has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// Dword 0 of the completion.
    pub result: u32,
}

impl Features {
    /// As they are after a reset.
    #[must_use]
    pub fn new(identity: &Identity) -> Features {
        Features {
            write_cache: identity.volatile_cache,
            over_kelvin: over_kelvin(identity),
            under_kelvin: 0,
            events: 0,
            keep_alive_ms: 0,
            default_over_kelvin: over_kelvin(identity),
            has_cache: identity.volatile_cache,
            is_discovery: identity.reach == Reach::Discovery,
            io_queues_max: identity.io_queues_max,
        }
    }

    /// Get Features: bits 7:0 of dword 10 say which, bits 10:8 which of its values.
    ///
    /// # Errors
    /// The status that the command ends with.
    pub fn get(&self, dword10: u32, dword11: u32) -> Result<u32, Status> {
        let feature = dword10 as u8;
        match dword10 >> 8 & 0b111 {
            0 => self.value(feature, dword11),
            // The default; what is saved is the default, as nothing can be saved.
            1 | 2 => Features { keep_alive_ms: 0, ..self.defaults() }.value(feature, dword11),
            // Supported capabilities: changeable in bit 2.
            3 => self.value(feature, dword11).map(|_| u32::from(is_changeable(feature)) << 2),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn defaults(&self) -> Features {
        Features {
            write_cache: self.has_cache,
            over_kelvin: self.default_over_kelvin,
            under_kelvin: 0,
            events: 0,
            keep_alive_ms: 0,
            ..self.clone()
        }
    }

    fn value(&self, feature: u8, dword11: u32) -> Result<u32, Status> {
        Ok(match feature {
            id::ASYNC_EVENT_CONFIGURATION => self.events,
            id::KEEP_ALIVE_TIMER => self.keep_alive_ms,
            _ if self.is_discovery => return Err(Status::INVALID_FIELD),
            // AB: no limit.
            id::ARBITRATION => 0b111,
            id::POWER_MANAGEMENT | id::ERROR_RECOVERY | id::INTERRUPT_COALESCING | id::WRITE_ATOMICITY => 0,
            id::TEMPERATURE_THRESHOLD => match threshold(dword11)? {
                Threshold::Over => u32::from(self.over_kelvin),
                Threshold::Under => u32::from(self.under_kelvin),
                Threshold::Absent => u32::from(NO_THRESHOLD),
            },
            id::VOLATILE_WRITE_CACHE if self.has_cache => u32::from(self.write_cache),
            id::NUMBER_OF_QUEUES => identify::queues_granted(u32::MAX, self.io_queues_max),
            _ => return Err(Status::INVALID_FIELD),
        })
    }

    /// Set Features.
    ///
    /// # Errors
    /// The status that the command ends with; nothing is changed then.
    pub fn set(&mut self, dword10: u32, dword11: u32) -> Result<Set, Status> {
        let feature = dword10 as u8;
        let current = self.value(feature, dword11)?;
        if dword10 & SAVE != 0 {
            return Err(FEATURE_NOT_SAVEABLE);
        }
        let mut result = 0;
        match feature {
            id::VOLATILE_WRITE_CACHE => self.write_cache = dword11 & 1 != 0,
            id::ASYNC_EVENT_CONFIGURATION => self.events = dword11,
            id::KEEP_ALIVE_TIMER => self.keep_alive_ms = dword11,
            id::TEMPERATURE_THRESHOLD => match threshold(dword11)? {
                Threshold::Over => self.over_kelvin = dword11 as u16,
                Threshold::Under => self.under_kelvin = dword11 as u16,
                Threshold::Absent => return Err(Status::INVALID_FIELD),
            },
            // FFFFh is no number of queues, since they count from zero.
            id::NUMBER_OF_QUEUES if dword11 & 0xFFFF == 0xFFFF || dword11 >> 16 == 0xFFFF => {
                return Err(Status::INVALID_FIELD);
            }
            id::NUMBER_OF_QUEUES => result = identify::queues_granted(dword11, self.io_queues_max),
            _ if dword11 == current => {}
            _ => return Err(FEATURE_NOT_CHANGEABLE),
        }
        Ok(Set { result })
    }
}

/// Where a profile does not throttle, nothing is too hot.
fn over_kelvin(identity: &Identity) -> u16 {
    if identity.warning_kelvin == 0 { NO_THRESHOLD } else { identity.warning_kelvin }
}

fn is_changeable(feature: u8) -> bool {
    matches!(
        feature,
        id::VOLATILE_WRITE_CACHE
            | id::ASYNC_EVENT_CONFIGURATION
            | id::KEEP_ALIVE_TIMER
            | id::TEMPERATURE_THRESHOLD
            | id::NUMBER_OF_QUEUES
    )
}

enum Threshold {
    Over,
    Under,
    /// Of a sensor that there is not.
    Absent,
}

/// TMPSEL in bits 19:16 (0 composite, 1 the one sensor, Fh all), THSEL in bits 21:20.
fn threshold(dword11: u32) -> Result<Threshold, Status> {
    let is_there = matches!(dword11 >> 16 & 0xF, 0 | 1 | 0xF);
    match dword11 >> 20 & 0b11 {
        0 | 1 if !is_there => Ok(Threshold::Absent),
        0 => Ok(Threshold::Over),
        1 => Ok(Threshold::Under),
        _ => Err(Status::INVALID_FIELD),
    }
}
