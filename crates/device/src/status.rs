//! NVMe status: the value a completed command carries.
//!
//! A status is a value of the standard, not an error of this program: it travels in the completion
//! and the caller decides. The number is the status field without phase, CRD, More and DNR bits:
//! status code type (3 bits) above status code (8 bits), as in NVM Express Base Specification 2.0c
//! section 3.3.3.2.1 (figures "Generic Command Status Values", "Media and Data Integrity Error
//! Values") and NVM Command Set Specification 1.0c section 3.1.3. Type 7h is vendor specific.

use std::fmt;

/// NVMe status field: `SCT << 8 | SC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[must_use]
pub struct Status(pub u16);

impl Status {
    /// SCT 0h SC 00h: the command completed without error.
    pub const SUCCESS: Status = Status(0x000);
    /// SCT 0h SC 02h: a field of the command has a value the device does not take.
    pub const INVALID_FIELD: Status = Status(0x002);
    /// SCT 0h SC 06h: the device failed in a way that is not the command's fault.
    pub const INTERNAL_ERROR: Status = Status(0x006);
    /// SCT 0h SC 80h: the range ends beyond the last logical block.
    pub const LBA_OUT_OF_RANGE: Status = Status(0x080);
    /// SCT 0h SC 81h: the media has no room left for what the command writes; reads go on.
    pub const CAPACITY_EXCEEDED: Status = Status(0x081);
    /// SCT 0h SC 82h: the namespace cannot be reached now; the command may be sent again.
    pub const NAMESPACE_NOT_READY: Status = Status(0x082);
    /// SCT 2h SC 80h: the bytes could not be programmed.
    pub const WRITE_FAULT: Status = Status(0x280);
    /// SCT 2h SC 81h: the bytes could not be read back as they were written.
    pub const UNRECOVERED_READ_ERROR: Status = Status(0x281);
    /// SCT 7h SC C0h: an actor of the pipeline refused or failed the request.
    pub const ACTOR_FAILED: Status = Status(0x7C0);
    /// SCT 7h SC C1h: an actor trapped (WebAssembly trap).
    pub const ACTOR_TRAPPED: Status = Status(0x7C1);
    /// SCT 7h SC C2h: an actor used up its budget of time.
    pub const ACTOR_TIMEOUT: Status = Status(0x7C2);
    /// SCT 7h SC C3h: a checksum or authentication tag of the pipeline did not match.
    pub const INTEGRITY: Status = Status(0x7C3);
    /// SCT 7h SC C4h: the device shut its data path down for heat; it answers again once it cooled.
    pub const THERMAL_SHUTDOWN: Status = Status(0x7C4);

    /// Status code type, bits 10:8.
    #[must_use]
    pub fn code_type(self) -> u8 {
        // Three bits are left after the shift, so the value fits.
        (self.0 >> 8 & 0x7) as u8
    }

    /// Status code, bits 7:0.
    #[must_use]
    pub fn code(self) -> u8 {
        (self.0 & 0xFF) as u8
    }

    /// True for [`Status::SUCCESS`].
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Status::SUCCESS
    }

    /// What the status means, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Status::SUCCESS => "success",
            Status::INVALID_FIELD => "invalid field in command",
            Status::INTERNAL_ERROR => "internal error",
            Status::LBA_OUT_OF_RANGE => "LBA out of range",
            Status::CAPACITY_EXCEEDED => "capacity exceeded",
            Status::NAMESPACE_NOT_READY => "namespace not ready",
            Status::WRITE_FAULT => "write fault",
            Status::UNRECOVERED_READ_ERROR => "unrecovered read error",
            Status::ACTOR_FAILED => "actor failed the request",
            Status::ACTOR_TRAPPED => "actor trapped",
            Status::ACTOR_TIMEOUT => "actor exceeded its time budget",
            Status::INTEGRITY => "integrity check of the pipeline failed",
            Status::THERMAL_SHUTDOWN => "thermal shutdown, device is cooling",
            _ => "unknown status",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SCT {:X}h, SC {:02X}h)", self.words(), self.code_type(), self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_the_nvme_layout() {
        let status = Status::UNRECOVERED_READ_ERROR;
        assert_eq!((status.code_type(), status.code()), (2, 0x81));
        assert_eq!(status.to_string(), "unrecovered read error (SCT 2h, SC 81h)");
        assert!(Status::SUCCESS.is_success() && !status.is_success());
        assert_eq!(Status::THERMAL_SHUTDOWN.code_type(), 7);
    }

    #[test]
    fn an_unknown_status_shows_its_number() {
        assert_eq!(Status(0x1FE).to_string(), "unknown status (SCT 1h, SC FEh)");
    }
}
