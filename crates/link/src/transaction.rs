//! What can cross the link.

use crate::slots::CxlMessage;
use crate::traffic::Kind;

/// Where message signalled interrupts go on x86-64: below 4 GiB, so their header is the short one.
const INTERRUPT_ADDRESS: u64 = 0xFEE0_0000;

/// Bytes of a doorbell: a dword (NVMe over PCIe Transport Specification).
const DOORBELL_BYTES: u32 = 4;

/// Data of an interrupt (Section 6.1.4: the message data is a dword).
const INTERRUPT_BYTES: u32 = 4;

/// Something that crosses the link, and what for.
///
/// Only an address's alignment and whether it is below 4 GiB change what is counted. One of no bytes is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// What is done.
    pub access: Access,
    /// What it is counted as.
    pub kind: Kind,
}

/// An access to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The host writes to the device. Posted: nothing comes back.
    MmioWrite {
        /// First byte, in the device's memory space.
        address: u64,
        /// Length.
        bytes: u32,
    },
    /// The host reads from the device and waits for its completions.
    MmioRead {
        /// First byte, in the device's memory space.
        address: u64,
        /// Length.
        bytes: u32,
    },
    /// The device writes to the host's memory. Posted: nothing comes back.
    DmaWrite {
        /// First byte, in the host's memory.
        address: u64,
        /// Length.
        bytes: u32,
    },
    /// The device reads from the host's memory and waits for the completions.
    DmaRead {
        /// First byte, in the host's memory.
        address: u64,
        /// Length.
        bytes: u32,
    },
    /// One CXL.mem message, one way. What answers it is a transaction of its own: when it is sent is up to the
    /// device, not to the link.
    CxlMem(CxlMessage),
}

impl Transaction {
    /// The host rings the doorbell at `address`.
    #[must_use]
    pub const fn doorbell(address: u64) -> Transaction {
        Transaction { access: Access::MmioWrite { address, bytes: DOORBELL_BYTES }, kind: Kind::Doorbell }
    }

    /// The device interrupts the host by MSI or MSI-X.
    #[must_use]
    pub const fn interrupt() -> Transaction {
        Transaction {
            access: Access::DmaWrite { address: INTERRUPT_ADDRESS, bytes: INTERRUPT_BYTES },
            kind: Kind::Interrupt,
        }
    }

    /// The device reads `bytes` of the host's memory for `kind`.
    #[must_use]
    pub const fn dma_read(kind: Kind, address: u64, bytes: u32) -> Transaction {
        Transaction { access: Access::DmaRead { address, bytes }, kind }
    }

    /// The device writes `bytes` of the host's memory for `kind`.
    #[must_use]
    pub const fn dma_write(kind: Kind, address: u64, bytes: u32) -> Transaction {
        Transaction { access: Access::DmaWrite { address, bytes }, kind }
    }

    /// The host reads a register.
    #[must_use]
    pub const fn register_read(address: u64, bytes: u32) -> Transaction {
        Transaction { access: Access::MmioRead { address, bytes }, kind: Kind::Register }
    }

    /// The host writes a register, or memory of the device through a window that is not CXL.
    #[must_use]
    pub const fn register_write(address: u64, bytes: u32) -> Transaction {
        Transaction { access: Access::MmioWrite { address, bytes }, kind: Kind::Register }
    }

    /// A message of a CXL.mem read or write, counted as the one or the other.
    #[must_use]
    pub const fn cxl(message: CxlMessage) -> Transaction {
        Transaction { access: Access::CxlMem(message), kind: message.kind() }
    }

    /// Both messages of a line of 64 bytes that the host reads: a fill.
    #[must_use]
    pub const fn cxl_read() -> [Transaction; 2] {
        [Transaction::cxl(CxlMessage::Request), Transaction::cxl(CxlMessage::ReadData)]
    }

    /// Both messages of a line of 64 bytes that the host writes: an eviction.
    #[must_use]
    pub const fn cxl_write() -> [Transaction; 2] {
        [Transaction::cxl(CxlMessage::WriteData), Transaction::cxl(CxlMessage::WriteDone)]
    }
}
