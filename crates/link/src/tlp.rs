//! Transaction layer packets: how a transaction is cut into them, and how long each is.
//!
//! A transaction takes as few packets as the rules allow.

use crate::config::Rules;
use crate::planted::Bug;
use crate::traffic::Count;

/// No request crosses a boundary of this many bytes (Section 2.2.7.1).
pub(crate) const PAGE_BYTES: u32 = 4096;
/// The boundary at which a device may cut completions (Section 2.3.1.1).
const DEVICE_COMPLETION_BOUNDARY_BYTES: u32 = 128;
/// A packet's framing and link checksum outside of flit mode: up to generation 2 STP 1, sequence number 2, LCRC 4
/// and END 1; from generation 3 on the STP token of 4 with the sequence number in it, and LCRC 4 (Section 4.2).
const FRAMING_BYTES: u64 = 8;
/// Header of three dwords: completions, and requests to addresses below 4 GiB.
const SHORT_HEADER_BYTES: u64 = 12;
/// Header of four dwords: requests with addresses of 64 bits.
const LONG_HEADER_BYTES: u64 = 16;
/// ECRC: the digest, in flit mode the trailer.
const ECRC_BYTES: u64 = 4;
/// One dword of orthogonal header content, flit mode only.
const OHC_BYTES: u64 = 4;
/// A data link layer packet: token or symbols 2, content 4, checksum 2.
pub(crate) const DLLP_BYTES: u64 = 8;

/// A part of a transaction that lies in one page. Whole dwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    /// Only a part of its first dword is meant, and then also completions say so.
    ragged_start: bool,
    /// Only a part of its last dword is meant.
    ragged_end: bool,
}

/// The pieces of a transaction, in the order of their addresses.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    address: u64,
    bytes: u64,
    bytes_max: u64,
    cross_pages: bool,
    ragged_start: bool,
    ragged_end: bool,
}

impl Iterator for Pieces {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        if self.bytes == 0 {
            return None;
        }
        let page = u64::from(PAGE_BYTES);
        let to_boundary = if self.cross_pages { page } else { page - self.address % page };
        let bytes = self.bytes.min(self.bytes_max).min(to_boundary);
        self.bytes -= bytes;
        let piece = Piece {
            address: self.address,
            bytes: u32::try_from(bytes).unwrap_or(PAGE_BYTES),
            ragged_start: std::mem::take(&mut self.ragged_start),
            ragged_end: self.ragged_end && self.bytes == 0,
        };
        self.address = self.address.wrapping_add(bytes);
        Some(piece)
    }
}

/// What lies between two such boundaries takes one packet, however they are configured.
pub(crate) const LINE_BYTES: u64 = 64;

impl Rules {
    /// Whether a transaction is of whole dwords within one line: one packet, with all bytes enabled. Most are:
    /// doorbells, commands, completions and interrupts.
    #[inline]
    pub(crate) fn is_in_line(address: u64, bytes: u32) -> bool {
        let bytes = u64::from(bytes);
        bytes > 0 && (address | bytes).is_multiple_of(4) && address % LINE_BYTES + bytes <= LINE_BYTES
    }

    /// As [`Rules::writes`] of what is in a line.
    #[inline]
    pub(crate) fn line_write(&self, address: u64, bytes: u32) -> Count {
        let payload_bytes = u64::from(bytes);
        Count { packets: 1, payload_bytes, wire_bytes: payload_bytes + self.memory_packet_bytes(address) }
    }

    /// As [`Rules::request`] for what is in a line.
    #[inline]
    pub(crate) fn line_request(&self, address: u64) -> Count {
        Count { packets: 1, payload_bytes: 0, wire_bytes: self.memory_packet_bytes(address) }
    }

    /// As [`Rules::host_completions`] for what is in a line.
    #[inline]
    pub(crate) fn line_completion(&self, bytes: u32) -> Count {
        let payload_bytes = u64::from(bytes);
        Count { packets: 1, payload_bytes, wire_bytes: payload_bytes + self.packet_bytes() + SHORT_HEADER_BYTES }
    }

    /// The pages of a transaction.
    #[inline]
    pub(crate) fn pages(&self, address: u64, bytes: u32) -> Pieces {
        self.pieces(address, bytes, PAGE_BYTES)
    }

    /// The parts of a transaction whose read requests go out together: within a page, and no more than half of the
    /// tags, so that the next part is under way when this one is answered.
    #[inline]
    pub(crate) fn request_runs(&self, address: u64, bytes: u32) -> Pieces {
        self.pieces(address, bytes, self.request_run_bytes)
    }

    /// Length is in dwords on the wire (Section 2.2.1): a range is as long as the dwords that it touches.
    #[inline]
    fn pieces(&self, address: u64, bytes: u32, bytes_max: u32) -> Pieces {
        let offset = if self.planted.has(Bug::CountSingleBytes) { 0 } else { address % 4 };
        let end = offset + u64::from(bytes);
        let rounded = if self.planted.has(Bug::CountSingleBytes) { end } else { end.next_multiple_of(4) };
        Pieces {
            address: address - offset,
            bytes: if bytes == 0 { 0 } else { rounded },
            bytes_max: u64::from(bytes_max),
            cross_pages: self.planted.has(Bug::CrossPages),
            ragged_start: !address.is_multiple_of(4),
            ragged_end: !(address % 4 + u64::from(bytes)).is_multiple_of(4),
        }
    }

    /// The packets that ask for a piece.
    #[inline]
    pub(crate) fn request(&self, piece: Piece) -> Count {
        let packets = self.packets(piece, self.config.max_read_request_bytes);
        Count { payload_bytes: 0, wire_bytes: packets.wire_bytes - packets.payload_bytes, ..packets }
    }

    /// The packets that carry a piece as posted writes.
    #[inline]
    pub(crate) fn writes(&self, piece: Piece) -> Count {
        self.packets(piece, self.config.max_payload_bytes)
    }

    /// A piece in packets of at most `bytes_max`, a power of two, each with an address.
    #[inline]
    fn packets(&self, piece: Piece, bytes_max: u32) -> Count {
        let packets = u64::from((piece.bytes + (bytes_max - 1)) >> bytes_max.trailing_zeros());
        let payload_bytes = u64::from(piece.bytes);
        let wire_bytes = payload_bytes + packets * self.memory_packet_bytes(piece.address);
        Count { packets, payload_bytes, wire_bytes: wire_bytes + self.byte_enable_bytes(piece, packets) }
    }

    /// The packets in which the host answers the requests for a piece.
    #[inline]
    pub(crate) fn host_completions(&self, piece: Piece) -> Count {
        let config = &self.config;
        self.completions(piece, config.completion_bytes_max, config.read_completion_boundary_bytes)
    }

    /// The packets in which the device answers the requests for a piece.
    #[inline]
    pub(crate) fn device_completions(&self, piece: Piece) -> Count {
        self.completions(piece, self.config.max_payload_bytes, DEVICE_COMPLETION_BOUNDARY_BYTES)
    }

    #[inline]
    fn completions(&self, piece: Piece, bytes_max: u32, boundary: u32) -> Count {
        // Every request but the last is of full size, a multiple of any boundary: so all begin alike.
        let request = self.config.max_read_request_bytes;
        let beyond = match self.planted.has(Bug::IgnoreReadCompletionBoundary) {
            true => 0,
            false => (piece.address & u64::from(boundary - 1)) as u32,
        };
        let (full, rest) = (piece.bytes >> request.trailing_zeros(), piece.bytes & (request - 1));
        let mut packets = 0;
        if full > 0 {
            packets += full * completions_of(request, beyond, bytes_max);
        }
        if rest > 0 {
            packets += completions_of(rest, beyond, bytes_max);
        }
        let (packets, payload_bytes) = (u64::from(packets), u64::from(piece.bytes));
        let mut wire_bytes = payload_bytes + packets * (self.packet_bytes() + SHORT_HEADER_BYTES);
        // Flit mode: a first byte within its dword takes OHC-A5 (Section 2.2.9.2). Outside, the header has room.
        if self.flit_mode && piece.ragged_start && !self.planted.has(Bug::ForgetByteEnables) {
            wire_bytes += OHC_BYTES;
        }
        Count { packets, payload_bytes, wire_bytes }
    }

    /// What a packet with an address takes beside its payload. Addresses below 4 GiB must be sent as 32 bits
    /// (Section 2.2.4.1).
    #[inline]
    fn memory_packet_bytes(&self, address: u64) -> u64 {
        let short = address <= u64::from(u32::MAX) && !self.planted.has(Bug::AlwaysLongHeaders);
        self.packet_bytes() + if short { SHORT_HEADER_BYTES } else { LONG_HEADER_BYTES }
    }

    /// What any packet takes beside header and payload. In flit mode the flit frames and protects.
    #[inline]
    fn packet_bytes(&self) -> u64 {
        let framing = if self.flit_mode { 0 } else { FRAMING_BYTES };
        framing + if self.config.ecrc { ECRC_BYTES } else { 0 }
    }

    /// OHC-A1, which carries byte enables in flit mode where they are not all set (Section 2.2.5.2): in the first and
    /// the last packet of a piece, which may be one. Outside of flit mode they are in every header.
    #[inline]
    fn byte_enable_bytes(&self, piece: Piece, packets: u64) -> u64 {
        if !self.flit_mode || self.planted.has(Bug::ForgetByteEnables) {
            return 0;
        }
        let ends = u64::from(piece.ragged_start) + u64::from(piece.ragged_end);
        ends.min(packets) * OHC_BYTES
    }
}

/// Completions of one request that begins `beyond` a boundary. One that fits gets one. Else the first ends at the last
/// boundary that it reaches, all but the last are multiples of the boundary, and the last ends where the request does
/// (Section 2.3.1.1). `bytes_max` is a whole number of boundaries, so the first falls short by `beyond`.
fn completions_of(bytes: u32, beyond: u32, bytes_max: u32) -> u32 {
    if bytes <= bytes_max { 1 } else { 1 + (bytes - (bytes_max - beyond)).div_ceil(bytes_max) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CxlFlit, LinkConfig};
    use crate::planted::Planted;

    /// Every place and length in two lines, at the start of a page and at the end of the first 4 GiB, in each mode.
    #[test]
    fn what_is_in_a_line_takes_what_it_takes_as_a_piece() {
        for (generation, cxl_flit, ecrc) in [
            (3, CxlFlit::None, false),
            (4, CxlFlit::Bytes68, true),
            (6, CxlFlit::None, false),
            (6, CxlFlit::Bytes256, true),
        ] {
            let config = LinkConfig {
                generation,
                lanes: 4,
                max_payload_bytes: 128,
                max_read_request_bytes: 128,
                read_completion_boundary_bytes: 64,
                completion_bytes_max: 64,
                ecrc,
                ack_every_packets: 0,
                update_fc_every_packets: 0,
                read_tags: 1,
                one_way_ns: 1,
                host_read_ns: 1,
                device_read_ns: 1,
                cxl_flit,
            };
            let rules = Rules::new(&config, Planted::default());
            let bases = [4 * LINE_BYTES, (1 << 32) - LINE_BYTES, u64::from(PAGE_BYTES) * 7 - LINE_BYTES];
            for (base, offset, bytes) in bases
                .into_iter()
                .flat_map(|base| (0..128).flat_map(move |offset| (1..=65).map(move |bytes| (base, offset, bytes))))
            {
                let (address, context) = (base + offset, format!("{config:?}: {bytes} bytes at {base} + {offset}"));
                let pieces: Vec<Piece> = rules.pages(address, bytes).collect();
                if !Rules::is_in_line(address, bytes) {
                    continue;
                }
                let [piece] = pieces[..] else { panic!("{context}: {pieces:?}") };
                assert_eq!(rules.request_runs(address, bytes).collect::<Vec<_>>(), pieces, "{context}");
                assert_eq!(rules.line_write(address, bytes), rules.writes(piece), "{context}");
                assert_eq!(rules.line_request(address), rules.request(piece), "{context}");
                assert_eq!(rules.line_completion(bytes), rules.host_completions(piece), "{context}");
            }
        }
    }
}
