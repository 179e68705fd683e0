//! The same link, written the long way: packets are built byte by byte, flits slot by slot, the wire is a list of all
//! that was ever sent. It shares no arithmetic with what it checks.

use std::collections::BTreeSet;

use crate::config::{CxlFlit, LinkConfig};
use crate::slots::CxlMessage;
use crate::traffic::{Count, Direction, Kind, Traffic};
use crate::transaction::{Access, Transaction};

/// SplitMix64, for seeded tests.
pub(crate) struct Rng(pub u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// One packet as bytes.
struct Packet {
    direction: Direction,
    payload_bytes: usize,
    bytes: Vec<u8>,
}

/// Builds a packet: header dwords, one dword of orthogonal header content if `extra`, and the payload.
fn packet(config: &LinkConfig, direction: Direction, header_dwords: usize, extra: bool, payload: usize) -> Packet {
    let flit_mode = config.flit_mode();
    let mut bytes = Vec::new();
    match (flit_mode, config.generation) {
        (true, _) => {}
        (false, 1 | 2) => bytes.extend([0xFB, 0, 0]), // STP and the sequence number
        (false, _) => bytes.extend([0x0F; 4]),        // the STP token
    }
    for _ in 0..header_dwords {
        bytes.extend([0x40, 0, 0, 0]);
    }
    if extra && flit_mode {
        bytes.extend([0xA1; 4]);
    }
    bytes.resize(bytes.len() + payload, 0xDA);
    if config.ecrc {
        bytes.extend([0xEC; 4]);
    }
    match (flit_mode, config.generation) {
        (true, _) => {}
        (false, 1 | 2) => bytes.extend([1, 2, 3, 4, 0xFD]), // LCRC and END
        (false, _) => bytes.extend([1, 2, 3, 4]),           // LCRC
    }
    Packet { direction, payload_bytes: payload, bytes }
}

/// The dwords that a range of bytes touches, by address.
fn dwords(address: u64, bytes: u32) -> Vec<u64> {
    let touched: BTreeSet<u64> = (0..u64::from(bytes)).map(|at| (address + at) / 4 * 4).collect();
    touched.into_iter().collect()
}

/// Cuts dwords into parts of at most `bytes_max` that do not cross pages.
fn parts(dwords: &[u64], bytes_max: u32) -> Vec<Vec<u64>> {
    let mut parts: Vec<Vec<u64>> = Vec::new();
    for dword in dwords {
        match parts.last_mut() {
            Some(part) if part.len() * 4 < bytes_max as usize && dword % 4096 != 0 => part.push(*dword),
            _ => parts.push(vec![*dword]),
        }
    }
    parts
}

/// Whether a part's first or last dword is not wanted whole.
fn ragged(part: &[u64], address: u64, bytes: u32) -> bool {
    part[0] < address || part[part.len() - 1] + 4 > address + u64::from(bytes)
}

fn header_dwords(address: u64) -> usize {
    if address < 1 << 32 { 3 } else { 4 }
}

fn write(config: &LinkConfig, direction: Direction, address: u64, bytes: u32, out: &mut Vec<Packet>) {
    for part in parts(&dwords(address, bytes), config.max_payload_bytes) {
        let extra = ragged(&part, address, bytes);
        out.push(packet(config, direction, header_dwords(part[0]), extra, part.len() * 4));
    }
}

/// Lengths of the completions of one request: each the longest that the rules allow.
fn completions(request: &[u64], bytes_max: u32, boundary: u32) -> Vec<usize> {
    let (mut at, end) = (request[0], request[request.len() - 1] + 4);
    let mut lengths = Vec::new();
    while at < end {
        let legal =
            |to: &u64| (*to == end || to.is_multiple_of(u64::from(boundary))) && to - at <= u64::from(bytes_max);
        let to = (at + 4..=end).filter(legal).max().expect("a completion can end at the next boundary");
        lengths.push((to - at) as usize);
        at = to;
    }
    lengths
}

fn read(config: &LinkConfig, by_host: bool, address: u64, bytes: u32, out: &mut Vec<Packet>) {
    let (asks, answers) = match by_host {
        true => (Direction::Downstream, Direction::Upstream),
        false => (Direction::Upstream, Direction::Downstream),
    };
    let (bytes_max, boundary) = match by_host {
        true => (config.max_payload_bytes, 128),
        false => (config.completion_bytes_max, config.read_completion_boundary_bytes),
    };
    for request in parts(&dwords(address, bytes), config.max_read_request_bytes) {
        let extra = ragged(&request, address, bytes);
        out.push(packet(config, asks, header_dwords(request[0]), extra, 0));
        for (index, length) in completions(&request, bytes_max, boundary).into_iter().enumerate() {
            let late_start = index == 0 && request[0] < address;
            out.push(packet(config, answers, 3, late_start, length));
        }
    }
}

/// What transactions take one right after the other.
pub(crate) fn traffic(config: &LinkConfig, transactions: &[Transaction]) -> Traffic {
    let mut traffic = Traffic::default();
    let mut packet_bytes = [0, 0];
    let mut received = [0u64, 0];
    let mut layouts = [Layout::new(config.cxl_flit), Layout::new(config.cxl_flit)];
    for transaction in transactions {
        let mut packets = Vec::new();
        match transaction.access {
            Access::MmioWrite { address, bytes } => write(config, Direction::Downstream, address, bytes, &mut packets),
            Access::DmaWrite { address, bytes } => write(config, Direction::Upstream, address, bytes, &mut packets),
            Access::MmioRead { address, bytes } => read(config, true, address, bytes, &mut packets),
            Access::DmaRead { address, bytes } => read(config, false, address, bytes, &mut packets),
            Access::CxlMem(message) => {
                let direction = message.direction();
                let count = layouts[direction as usize].place(message);
                traffic.add(direction, transaction.kind, &count);
            }
        }
        for packet in packets {
            let wire_bytes = packet.bytes.len() as u64;
            let count = Count { packets: 1, payload_bytes: packet.payload_bytes as u64, wire_bytes };
            traffic.add(packet.direction, transaction.kind, &count);
            packet_bytes[packet.direction as usize] += packet.bytes.len();
            received[packet.direction as usize] += 1;
        }
    }
    flow_control(config, received, &mut packet_bytes, &mut traffic);
    for direction in Direction::ALL {
        overhead(config, direction, packet_bytes[direction as usize], &layouts[direction as usize], &mut traffic);
    }
    traffic
}

fn flow_control(config: &LinkConfig, received: [u64; 2], packet_bytes: &mut [usize; 2], traffic: &mut Traffic) {
    if config.flit_mode() {
        return;
    }
    for direction in Direction::ALL {
        let mut dllps = 0;
        for number in 1..=received[direction as usize] {
            for every in [config.ack_every_packets, config.update_fc_every_packets] {
                dllps += u64::from(every > 0 && number.is_multiple_of(u64::from(every)));
            }
        }
        let back = direction.opposite();
        traffic.add(back, Kind::Dllp, &Count { packets: dllps, payload_bytes: 0, wire_bytes: dllps * 8 });
        packet_bytes[back as usize] += dllps as usize * 8;
    }
}

/// Fills flits one byte after the other and counts what they have beside that.
fn overhead(config: &LinkConfig, direction: Direction, packet_bytes: usize, layout: &Layout, traffic: &mut Traffic) {
    let (size, room) = match (config.flit_mode(), config.cxl_flit) {
        (true, _) => (256, 236),
        (false, CxlFlit::Bytes68) => (68, 64),
        _ => (0, usize::MAX),
    };
    let flits = if size > 0 { vec![0u8; packet_bytes].chunks(room).count() as u64 } else { 0 };
    let rest = if size > 0 { flits * size - packet_bytes as u64 } else { 0 };
    traffic.add(direction, Kind::Flit, &Count { packets: flits, payload_bytes: 0, wire_bytes: rest });
    let (flits, wire_bytes) = (layout.flits.len() as u64, layout.empty_bytes());
    traffic.add(direction, Kind::Flit, &Count { packets: flits, payload_bytes: 0, wire_bytes });
}

/// What a slot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Slot {
    Empty,
    Messages(Vec<CxlMessage>),
    /// Data of the message with this number.
    Data(usize),
}

/// CXL.mem flits, slot by slot.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    flit: CxlFlit,
    flits: Vec<Vec<Slot>>,
    messages: usize,
}

impl Layout {
    pub(crate) fn new(flit: CxlFlit) -> Layout {
        Layout { flit, flits: Vec::new(), messages: 0 }
    }

    fn slots(&self) -> usize {
        if self.flit == CxlFlit::Bytes68 { 4 } else { 15 }
    }

    fn slot_bytes(&self, flit: &[Slot], slot: usize) -> u64 {
        match (slot, self.flit, &flit[slot]) {
            (0, CxlFlit::Bytes68, Slot::Messages(_)) => 12,
            (0, _, Slot::Messages(_)) => 14,
            _ => 16,
        }
    }

    fn empty_bytes(&self) -> u64 {
        let size = if self.flit == CxlFlit::Bytes68 { 68 } else { 256 };
        let used = |flit: &Vec<Slot>| -> u64 {
            (0..flit.len()).filter(|slot| flit[*slot] != Slot::Empty).map(|slot| self.slot_bytes(flit, slot)).sum()
        };
        self.flits.iter().map(|flit| size - used(flit)).sum()
    }

    /// Most messages of a kind in the window of slots that the limit is for.
    fn limit(&self, message: CxlMessage) -> usize {
        use CxlMessage::{PartialWriteData, ReadData, Request, WriteData, WriteDone};
        match (self.flit, message) {
            (CxlFlit::Bytes68, Request | WriteDone) => 2,
            (CxlFlit::Bytes68, _) => 1,
            (_, Request) => 4,
            (_, WriteData | PartialWriteData) => 2,
            (_, WriteDone) => 6,
            (_, ReadData) => 3,
        }
    }

    fn same_channel(a: CxlMessage, b: CxlMessage) -> bool {
        let writes = [CxlMessage::WriteData, CxlMessage::PartialWriteData];
        a == b || writes.contains(&a) && writes.contains(&b)
    }

    /// Whether every window of two groups (68: every flit) keeps to the limit of each message.
    fn within_limits(&self) -> bool {
        let group_ends = |slot: usize| slot % 4 == 3 || slot + 1 == self.slots();
        // Groups in the order of the wire, over the ends of flits.
        let mut groups: Vec<Vec<CxlMessage>> = vec![Vec::new()];
        for flit in &self.flits {
            for (slot, content) in flit.iter().enumerate() {
                if let (Slot::Messages(messages), Some(group)) = (content, groups.last_mut()) {
                    group.extend(messages);
                }
                if group_ends(slot) {
                    groups.push(Vec::new());
                }
            }
        }
        let width = if self.flit == CxlFlit::Bytes68 { 1 } else { 2 };
        groups.windows(width).all(|window| {
            let all: Vec<CxlMessage> = window.concat();
            CxlMessage::ALL.iter().all(|message| {
                all.iter().filter(|other| Layout::same_channel(**other, *message)).count() <= self.limit(*message)
            })
        })
    }

    /// Messages that one slot can hold together.
    fn fits_slot(&self, slot: usize, messages: &[CxlMessage]) -> bool {
        use CxlMessage::{ReadData, WriteDone};
        let done = messages.iter().filter(|message| **message == WriteDone).count();
        let others: Vec<_> = messages.iter().filter(|message| **message != WriteDone).collect();
        let done_max = match (self.flit, slot, others.as_slice()) {
            (CxlFlit::Bytes68, _, []) => 2,
            (CxlFlit::Bytes68, 0, [ReadData]) => 1,
            (CxlFlit::Bytes68, _, [ReadData]) => 2,
            (CxlFlit::Bytes256, 0, []) => 2,
            (CxlFlit::Bytes256, _, []) => 3,
            (CxlFlit::Bytes256Pbr, _, []) => 2,
            (_, _, [_]) => 0,
            _ => return false,
        };
        done <= done_max
    }

    /// Tries to add a message's header to a slot of the last flit.
    fn try_header(&mut self, slot: usize, message: CxlMessage) -> bool {
        let Some(last) = self.flits.len().checked_sub(1) else { return false };
        let before = self.flits[last][slot].clone();
        let mut messages = match &before {
            Slot::Empty => Vec::new(),
            Slot::Messages(messages) => messages.clone(),
            Slot::Data(_) => return false,
        };
        messages.push(message);
        if !self.fits_slot(slot, &messages) {
            return false;
        }
        self.flits[last][slot] = Slot::Messages(messages);
        let fine = self.within_limits();
        if !fine {
            self.flits[last][slot] = before;
        }
        fine
    }

    /// The first generic slot of the last flit with nothing in it nor after it.
    fn tail(&self) -> usize {
        let last = self.flits.last().map_or(&[][..], Vec::as_slice);
        (1..last.len()).rev().find(|slot| last[*slot] != Slot::Empty).map_or(1, |slot| slot + 1)
    }

    /// The last flit has left, whatever is in it.
    pub(crate) fn begin_flit(&mut self) {
        self.flits.push(vec![Slot::Empty; self.slots()]);
    }

    pub(crate) fn flits(&self) -> u64 {
        self.flits.len() as u64
    }

    /// Whether the layout keeps the rules of CXL sections 4.2.5 and 4.3.4.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !self.within_limits() {
            return Err("too many messages in a window".to_owned());
        }
        let mut numbers = Vec::new();
        for flit in &self.flits {
            let all_data = flit.iter().all(|slot| matches!(slot, Slot::Data(_)));
            if matches!(flit[0], Slot::Data(_)) && !(all_data && self.flit == CxlFlit::Bytes68) {
                return Err(format!("data in the header slot: {flit:?}"));
            }
            numbers.extend(
                flit.iter().filter_map(|slot| if let Slot::Data(number) = slot { Some(*number) } else { None }),
            );
        }
        if numbers.is_sorted() { Ok(()) } else { Err("data of messages is interleaved".to_owned()) }
    }

    /// Places a message and says what its slots take.
    pub(crate) fn place(&mut self, message: CxlMessage) -> Count {
        let before = self.filled();
        if !self.place_header(message) {
            self.begin_flit();
            assert!(self.place_header(message), "an empty flit takes any message");
        }
        let chunks = match message {
            CxlMessage::Request | CxlMessage::WriteDone => 0,
            CxlMessage::WriteData | CxlMessage::ReadData => 4,
            CxlMessage::PartialWriteData => 5,
        };
        self.place_data(chunks);
        self.messages += 1;
        let payload_bytes = if chunks > 0 { 64 } else { 0 };
        Count { packets: 1, payload_bytes, wire_bytes: self.filled() - before }
    }

    fn filled(&self) -> u64 {
        let size = if self.flit == CxlFlit::Bytes68 { 68 } else { 256 };
        self.flits.len() as u64 * size - self.empty_bytes()
    }

    fn place_header(&mut self, message: CxlMessage) -> bool {
        let Some(last) = self.flits.last() else { return false };
        let shares = |slot: &usize| matches!(last[*slot], Slot::Messages(_)) && message == CxlMessage::WriteDone;
        // The latest slot that has room for one more response, then slots with nothing in them.
        let begun: Vec<usize> = (0..last.len()).filter(shares).collect();
        let empty_header = (last[0] == Slot::Empty).then_some(0);
        let candidates: Vec<usize> =
            begun.into_iter().rev().chain(empty_header).chain(self.tail()..last.len()).collect();
        candidates.into_iter().any(|slot| self.try_header(slot, message))
    }

    fn place_data(&mut self, mut chunks: usize) {
        let number = self.messages;
        loop {
            let tail = self.tail();
            let Some(last) = self.flits.last_mut() else { return };
            for slot in last.iter_mut().skip(tail) {
                if chunks > 0 {
                    *slot = Slot::Data(number);
                    chunks -= 1;
                }
            }
            if chunks == 0 {
                return;
            }
            self.begin_flit();
            if self.flit == CxlFlit::Bytes68 && chunks > 3 {
                if let Some(last) = self.flits.last_mut() {
                    *last = vec![Slot::Data(number); 4];
                }
                chunks -= 4;
                if chunks == 0 {
                    return;
                }
                self.begin_flit();
            }
        }
    }
}

/// A wire that remembers everything: reservations as spans of picoseconds.
#[derive(Default)]
pub(crate) struct Spans(Vec<(u64, u64)>);

impl Spans {
    /// The earliest start from `from` on at which `picos` are free, which are then taken.
    pub(crate) fn reserve(&mut self, from: u64, picos: u64) -> u64 {
        let free = |start: u64| self.0.iter().all(|(begin, end)| start + picos <= *begin || *end <= start);
        let ends = self.0.iter().map(|(_, end)| *end).filter(|end| *end >= from);
        let start = std::iter::once(from).chain(ends).filter(|start| free(*start)).min().expect("after all is free");
        self.0.push((start, start + picos));
        start
    }
}
