//! What a discovery controller tells ("Discovery Log Page").

use super::ADMIN_ENTRIES_MIN;

/// The subsystem of every discovery controller ("NVMe Qualified Names").
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Bytes of the page's header, and of each entry.
const ENTRY_BYTES: usize = 1024;
/// TRTYPE 3h: TCP.
const TRTYPE_TCP: u8 = 3;
/// SUBTYPE 2h: a subsystem with controllers for I/O; 3h: the discovery subsystem that one is in.
const SUBTYPE_NVM: u8 = 2;
const SUBTYPE_CURRENT_DISCOVERY: u8 = 3;
/// TREQ: a secure channel is not required (bits 1:0, 10b), flow control may be disabled (bit 2).
const TREQ: u8 = 0b110;

/// Where a host has reached the target by TCP, so that it can say it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// The address, in its usual text; of 255 bytes at most.
    pub address: String,
    /// Whether it is one of IPv6.
    pub is_ipv6: bool,
    /// The port.
    pub port: u16,
}

/// The page: the subsystem, and the discovery subsystem itself, at one portal.
pub fn page(subsystem: &str, portal: &Portal) -> Vec<u8> {
    let records = [(SUBTYPE_NVM, subsystem), (SUBTYPE_CURRENT_DISCOVERY, DISCOVERY_NQN)];
    let mut page = vec![0; ENTRY_BYTES * (1 + records.len())];
    // GENCTR, NUMREC; RECFMT is zero.
    page[0..8].copy_from_slice(&1_u64.to_le_bytes());
    page[8..16].copy_from_slice(&(records.len() as u64).to_le_bytes());
    for (entry, (kind, name)) in page[ENTRY_BYTES..].chunks_exact_mut(ENTRY_BYTES).zip(records) {
        // ADRFAM: 1 for IPv4, 2 for IPv6.
        entry[..4].copy_from_slice(&[TRTYPE_TCP, if portal.is_ipv6 { 2 } else { 1 }, kind, TREQ]);
        entry[4..6].copy_from_slice(&1_u16.to_le_bytes()); // PORTID
        entry[6..8].copy_from_slice(&u16::MAX.to_le_bytes()); // CNTLID: dynamic
        entry[8..10].copy_from_slice(&ADMIN_ENTRIES_MIN.to_le_bytes()); // ASQSZ
        text(&mut entry[32..64], &portal.port.to_string()); // TRSVCID
        entry[256..256 + name.len()].copy_from_slice(name.as_bytes()); // SUBNQN
        text(&mut entry[512..768], &portal.address); // TRADDR
        // TSAS: SECTYPE, byte 768, is zero: no TLS.
    }
    page
}

/// Text is padded with spaces.
fn text(field: &mut [u8], text: &str) {
    field.fill(b' ');
    let text = &text[..text.len().min(field.len())];
    field[..text.len()].copy_from_slice(text.as_bytes());
}
