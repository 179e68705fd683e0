//! A controller in shared memory, for programs of the same machine.
//!
//! A client makes a segment of two objects: [`REGISTERS`], which is laid out as a controller's BAR0 is, and [`MEMORY`],
//! which stands in for the client's memory: addresses of queues, PRPs and SGLs are offsets in it. It sends the segment,
//! and an event descriptor for each interrupt, over the device's socket, and hears whether it is welcome. From then on
//! everything is as with a controller behind PCIe, but that a client rings the device's bell after a doorbell, and that
//! an interrupt is only sent when it was asked for ([`armed`]).
//!
//! When the socket closes the device has gone; a client attaches anew, and sends again what had not ended.

use crate::IO_QUEUES_MAX;
use crate::registers;

/// The object with the registers.
pub const REGISTERS: &str = "nvme.registers";
/// The object that stands in for the client's memory.
pub const MEMORY: &str = "nvme.memory";
/// The object, in a region of the device's, with the bell that clients ring.
pub const BELL: &str = "nvme.bell";
/// Bytes of the registers, those of doorbells for every queue included.
pub const REGISTERS_BYTES: u64 =
    (registers::DOORBELLS + 2 * (IO_QUEUES_MAX as u64 + 1) * registers::DOORBELL_BYTES).next_multiple_of(4096);
/// Most interrupts of a client.
pub const VECTORS_MAX: u16 = 7;
/// Most bytes of a client's memory.
pub const MEMORY_BYTES_MAX: u64 = 4 << 30;
/// Where the words are that say which interrupts are wanted: behind the standard's registers.
const ARMED: u64 = 0xF00;

/// The word that says that an interrupt is wanted: the client stores 1 before it looks for completions a last time and
/// sleeps; the device takes it back to 0 when it sends one.
#[must_use]
pub fn armed(vector: u16) -> u64 {
    assert!(vector < VECTORS_MAX);
    ARMED + u64::from(vector) * 4
}

/// What a client says first: what it calls itself, for people who look at the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello(String);

/// Bytes of magic and version.
const MAGIC_BYTES: usize = 8;
const MAGIC: [u8; MAGIC_BYTES] = *b"osnvme\x02\0";
/// Most bytes of a client's name.
pub const NAME_BYTES_MAX: usize = 48;
/// Bytes of a hello: magic, version, and a name that zeroes follow.
pub const HELLO_BYTES: usize = MAGIC_BYTES + NAME_BYTES_MAX;
/// Bytes of a welcome: magic, version, whether it is one, and a text.
pub const WELCOME_BYTES: usize = 512;

impl Hello {
    /// Of a client with that name. What is too long is cut, what cannot be printed is replaced.
    #[must_use]
    pub fn new(name: &str) -> Hello {
        let printable = |c: char| if c.is_control() { '?' } else { c };
        let mut name: String = name.chars().map(printable).collect();
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        Hello(name)
    }

    /// What the client calls itself.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..MAGIC_BYTES].copy_from_slice(&MAGIC);
        bytes[MAGIC_BYTES..][..self.0.len()].copy_from_slice(self.0.as_bytes());
        bytes
    }

    /// Reads one; nothing when it is none of this version.
    #[must_use]
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        let name = bytes.strip_prefix(&MAGIC)?;
        Some(Hello::new(String::from_utf8_lossy(name).trim_end_matches('\0')))
    }
}

/// What a device answers: its name, or why it refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome(pub Result<String, String>);

impl Welcome {
    /// The bytes; a text that is too long is cut.
    #[must_use]
    pub fn encode(&self) -> [u8; WELCOME_BYTES] {
        let mut bytes = [0; WELCOME_BYTES];
        bytes[..MAGIC_BYTES].copy_from_slice(&MAGIC);
        let (is_welcome, text) = match &self.0 {
            Ok(name) => (1, name),
            Err(why) => (0, why),
        };
        bytes[8] = is_welcome;
        let mut length = text.len().min(WELCOME_BYTES - 11);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        bytes[9..11].copy_from_slice(&(length as u16).to_le_bytes());
        bytes[11..11 + length].copy_from_slice(&text.as_bytes()[..length]);
        bytes
    }

    /// Reads a welcome; nothing when it is none of this version.
    #[must_use]
    pub fn decode(bytes: &[u8; WELCOME_BYTES]) -> Option<Welcome> {
        if !bytes.starts_with(&MAGIC) {
            return None;
        }
        let length = usize::from(u16::from_le_bytes([bytes[9], bytes[10]]));
        let text = String::from_utf8(bytes.get(11..11 + length)?.to_vec()).ok()?;
        match bytes[8] {
            1 => Some(Welcome(Ok(text))),
            0 => Some(Welcome(Err(text))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_carries_a_name_that_can_be_printed() {
        for (name, read) in [("nbd d", "nbd d"), ("", ""), ("a\u{1b}[2J\n", "a?[2J?")] {
            let bytes = Hello::new(name).encode();
            assert_eq!(Hello::decode(&bytes).map(|hello| hello.name().to_owned()).as_deref(), Some(read));
        }
        let long = Hello::new(&"ä".repeat(30)).encode();
        assert_eq!(Hello::decode(&long).map(|hello| hello.name().to_owned()), Some("ä".repeat(24)));
        let mut raw = Hello::new("x").encode();
        raw[8..12].copy_from_slice(&[0xff, 0x1b, b'y', 0]);
        assert_eq!(Hello::decode(&raw).map(|hello| hello.name().to_owned()).as_deref(), Some("\u{fffd}?y"));
        raw[6] = 1;
        assert_eq!(Hello::decode(&raw), None, "another version");
    }
}
