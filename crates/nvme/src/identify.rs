//! What the controller says of itself and of its namespaces: the structures of Identify.

use crate::TRANSFER_PAGES_LOG2;
use crate::command::{COMMAND_BYTES, COMPLETION_BYTES};
use crate::controller::{Identity, Namespace, Reach};
use crate::fabrics::{CAPSULE_DATA_BYTES, KEEP_ALIVE_UNIT_MS, QUEUE_ENTRIES_MAX};
use crate::registers::VERSION;

/// Bytes of every structure that Identify answers with.
pub const IDENTIFY_BYTES: usize = 4096;
/// Blocks of a namespace are 2 to the power of this (LBADS).
const BLOCK_LOG2: u8 = 12;
/// Asynchronous event requests that are held, and commands to abort, less one (AERL, ACL).
pub(crate) const EVENTS_MAX: usize = 4;
/// Entries of the error log, less one (ELPE).
pub(crate) const ERRORS_MAX: usize = 64;
/// Most namespaces (NN).
pub(crate) const NAMESPACES_MAX: u32 = 64;

/// A structure that is filled in by offset.
struct Page([u8; IDENTIFY_BYTES]);

impl Page {
    fn zero() -> Page {
        Page([0; IDENTIFY_BYTES])
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) -> &mut Page {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn byte(&mut self, offset: usize, value: u8) -> &mut Page {
        self.put(offset, &[value])
    }

    fn word(&mut self, offset: usize, value: u16) -> &mut Page {
        self.put(offset, &value.to_le_bytes())
    }

    fn dword(&mut self, offset: usize, value: u32) -> &mut Page {
        self.put(offset, &value.to_le_bytes())
    }

    fn qword(&mut self, offset: usize, value: u64) -> &mut Page {
        self.put(offset, &value.to_le_bytes())
    }

    /// Text of a fixed length, padded with spaces; what is no printable ASCII becomes a question mark.
    fn text(&mut self, offset: usize, bytes: usize, text: &str) -> &mut Page {
        let printable = |c: char| if c.is_ascii_graphic() || c == ' ' { c as u8 } else { b'?' };
        let padded = text.chars().map(printable).chain(std::iter::repeat(b' '));
        for (place, byte) in self.0[offset..offset + bytes].iter_mut().zip(padded) {
            *place = byte;
        }
        self
    }

    fn done(&mut self) -> Vec<u8> {
        self.0.to_vec()
    }
}

/// Identify Controller (CNS 01h).
pub fn controller(identity: &Identity) -> Vec<u8> {
    let mut page = Page::zero();
    page.text(4, 20, &identity.serial) // SN
        .text(24, 40, &identity.model) // MN
        .text(64, 8, &identity.firmware) // FR
        .byte(77, TRANSFER_PAGES_LOG2) // MDTS
        .word(78, identity.controller) // CNTLID
        .dword(80, VERSION) // VER
        .dword(92, 1 << 8) // OAES: namespace attribute notices
        .byte(111, 1) // CNTRLTYPE: I/O controller
        .word(256, 1 << 9 | 1 << 1) // OACS: Get LBA Status, Format NVM
        .byte(258, EVENTS_MAX as u8 - 1) // ACL
        .byte(259, EVENTS_MAX as u8 - 1) // AERL
        .byte(260, 1 << 1 | 1) // FRMW: one slot, read only
        .byte(261, 1 << 2 | 1 << 1) // LPA: commands supported and effects, extended data
        .byte(262, ERRORS_MAX as u8 - 1) // ELPE
        .word(266, identity.warning_kelvin) // WCTEMP
        .word(268, identity.critical_kelvin) // CCTEMP
        .byte(512, 0x66) // SQES: 64 bytes
        .byte(513, 0x44) // CQES: 16 bytes
        .word(514, 1024) // MAXCMD
        .dword(516, NAMESPACES_MAX) // NN
        .word(520, ONCS)
        .byte(524, 1 << 1) // FNA: formats are of one namespace; FUSES at 522 is zero
        .byte(525, u8::from(identity.volatile_cache) | 0b10 << 1) // VWC: and Flush of all namespaces is not supported
        .word(526, 0) // AWUN: one block
        .word(528, 0) // AWUPF
        .dword(536, 1) // SGLS: supported, without alignment
        .put(768, identity.subsystem.as_bytes()) // SUBNQN
        .word(2048, 100); // PSD0.MP: 1 W, in hundredths
    match identity.reach {
        Reach::Memory => {}
        Reach::Fabric => over_fabric(&mut page),
        Reach::Discovery => {
            over_fabric(&mut page);
            // CNTRLTYPE: discovery controller. It has no namespaces, and nothing to be done with them.
            page.byte(111, 2).dword(92, 0).word(256, 0).dword(516, 0).word(520, 0).byte(524, 0).byte(525, 0);
        }
    }
    page.done()
}

/// What is different over a fabric, and what only is there.
fn over_fabric(page: &mut Page) {
    // Sizes of capsules are in units of 16 bytes.
    let capsule = (COMMAND_BYTES + CAPSULE_DATA_BYTES) as u32 / 16;
    page.byte(76, 1 << 1) // CMIC: the subsystem may have several controllers
        .word(256, 1 << 1) // OACS: Format NVM
        .dword(96, 1) // CTRATT: host identifiers of 128 bits
        .word(320, (KEEP_ALIVE_UNIT_MS / 100) as u16) // KAS, in units of 100 ms
        .word(514, QUEUE_ENTRIES_MAX) // MAXCMD
        .dword(536, 1 | 1 << 20 | 1 << 21) // SGLS: and by offset in the capsule, and Transport SGL Data Blocks
        .dword(1792, capsule) // IOCCSZ
        .dword(1796, COMPLETION_BYTES as u32 / 16) // IORCSZ
        .word(1800, 0) // ICDOFF: data begin behind the command
        .byte(1802, 0) // FCATT: controllers are made when a host connects
        .byte(1803, 1) // MSDBD: one descriptor
        .word(1804, 1); // OFCS: Disconnect
}

/// Compare, Dataset Management, Write Zeroes, Verify.
const ONCS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 7;

/// Identify Namespace (CNS 00h); all zero for one that is not attached.
pub fn namespace(namespace: Option<&Namespace>, reach: Reach) -> Vec<u8> {
    let mut page = Page::zero();
    let Some(namespace) = namespace else { return page.done() };
    page.qword(0, namespace.blocks) // NSZE
        .qword(8, namespace.blocks) // NCAP
        .qword(16, namespace.used_blocks.min(namespace.blocks)) // NUSE
        .byte(24, u8::from(namespace.is_thin)) // NSFEAT: thin provisioning
        .byte(30, u8::from(reach == Reach::Fabric)) // NMIC: several controllers have it
        .byte(33, 1 << 3 | 0b001) // DLFEAT: deallocated blocks read as zeroes, Write Zeroes may deallocate
        .byte(99, u8::from(namespace.is_read_only)) // NSATTR
        .put(104, &namespace.nguid) // NGUID
        .dword(128, u32::from(BLOCK_LOG2) << 16); // LBAF0: LBADS in bits 23:16
    page.done()
}

/// Active namespaces (CNS 02h), or all (10h): identifiers above `after`, ascending.
pub fn namespace_list(namespaces: &[Namespace], after: u32) -> Vec<u8> {
    let mut page = Page::zero();
    for (index, namespace) in namespaces.iter().filter(|n| n.nsid > after).take(IDENTIFY_BYTES / 4).enumerate() {
        page.dword(index * 4, namespace.nsid);
    }
    page.done()
}

/// Namespace Identification Descriptors (CNS 03h): NGUID and command set.
pub fn descriptors(namespace: &Namespace) -> Vec<u8> {
    let mut page = Page::zero();
    // NIDT 2h, 16 bytes: NGUID. NIDT 4h, one byte: the command set identifier, 0 for NVM.
    page.put(0, &[2, 16, 0, 0]).put(4, &namespace.nguid).put(20, &[4, 1, 0, 0]);
    page.done()
}

/// Controllers of the subsystem (CNS 13h, and 12h of those that a namespace is attached to): this one, if it is not
/// below `from`.
pub fn controller_list(controller: u16, from: u16) -> Vec<u8> {
    let mut page = Page::zero();
    if controller >= from {
        page.word(0, 1).word(2, controller);
    }
    page.done()
}

/// Number of Queues: what Set Features grants of what was asked, both counted from zero.
pub fn queues_granted(asked: u32, io_queues_max: u16) -> u32 {
    let most = u32::from(io_queues_max) - 1;
    (asked & 0xFFFF).min(most) | (asked >> 16).min(most) << 16
}
