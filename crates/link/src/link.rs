//! Transactions in time: when each is due, and what it took.

use crate::config::{ConfigError, LinkConfig, Rules};
use crate::flit::{PacketFlits, Placed};
use crate::planted::{Bug, Planted};
use crate::slots::{CxlMessage, Format, SlotFlits};
use crate::time::Time;
use crate::timeline::Timeline;
use crate::tlp::DLLP_BYTES;
use crate::traffic::{Count, Direction, Kind, Traffic};
use crate::transaction::{Access, Transaction};

/// When a transaction is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Its first side has sent all of it: a posted write costs the sender no more, a read waits on.
    pub sent: Time,
    /// Its bytes are where they were wanted: a write's at the other side, a read's back at its own.
    pub at: Time,
}

/// A link in time. Each direction sends one thing at a time; flits are filled with whatever waits when they leave.
///
/// Posted writes of one direction arrive in the order in which they were given, and so do CXL.mem messages; completions
/// and writes may pass each other. Not modelled: transmission errors and replays, lack of receive credits, ordered sets
/// and the alignment of packets to lanes.
#[derive(Clone, Debug)]
pub struct Link {
    rules: Rules,
    /// Format of CXL.mem flits and the time of one.
    format: Option<(Format, u64)>,
    /// Without time everything is sent at once, so that flits are as full as can be.
    timed: bool,
    now: Time,
    wires: [Wire; 2],
    traffic: Traffic,
    /// When each tag of the device is free again; requests take them in turn.
    tags: Vec<Time>,
    next_tag: usize,
}

/// One direction.
#[derive(Clone, Debug)]
struct Wire {
    timeline: Timeline,
    packets: PacketFlits,
    /// When the open flit of packets leaves.
    packet_flit_at: Time,
    /// When the last posted write had left, or when its last flit leaves.
    posted_at: Time,
    slots: Option<SlotFlits>,
    /// When the open flit of slots leaves.
    slot_flit_at: Time,
    /// Packets received that were neither acknowledged nor paid back.
    unacknowledged: u64,
    uncredited: u64,
}

impl Due {
    /// When both are over.
    fn later(self, other: Due) -> Due {
        Due { sent: self.sent.max(other.sent), at: self.at.max(other.at) }
    }
}

impl Link {
    /// An idle link.
    ///
    /// # Errors
    /// When the configuration cannot be.
    pub fn new(config: &LinkConfig) -> Result<Link, ConfigError> {
        config.validate()?;
        Ok(Link::with(config, true, Planted::default()))
    }

    /// What transactions take when they follow each other so closely that no flit leaves before it is full.
    ///
    /// # Errors
    /// When the configuration cannot be.
    ///
    /// # Panics
    /// On a CXL message when the configuration has no CXL flits.
    pub fn pipelined(
        config: &LinkConfig,
        transactions: impl IntoIterator<Item = Transaction>,
    ) -> Result<Traffic, ConfigError> {
        config.validate()?;
        let mut link = Link::with(config, false, Planted::default());
        for transaction in transactions {
            link.transfer(Time::ZERO, transaction);
        }
        Ok(link.traffic)
    }

    /// What transactions take when each finds the link idle: each has its flits for itself.
    ///
    /// # Errors
    /// When the configuration cannot be.
    ///
    /// # Panics
    /// On a CXL message when the configuration has no CXL flits.
    pub fn isolated(
        config: &LinkConfig,
        transactions: impl IntoIterator<Item = Transaction>,
    ) -> Result<Traffic, ConfigError> {
        let mut sum = Traffic::default();
        for transaction in transactions {
            sum += Link::pipelined(config, [transaction])?;
        }
        Ok(sum)
    }

    pub(crate) fn with(config: &LinkConfig, timed: bool, planted: Planted) -> Link {
        let rules = Rules::new(config, planted);
        let format = Format::of(config.cxl_flit).map(|format| (format, rules.wire_picos(format.flit_bytes)));
        // A direction of plain packets sends nothing shorter than a data link layer packet, others whole flits.
        let packet_picos = if rules.flit_picos > 0 { rules.flit_picos } else { rules.wire_picos(DLLP_BYTES) };
        let shortest_picos = format.map_or(packet_picos, |(_, slot_flit_picos)| slot_flit_picos.min(packet_picos));
        let wire = Wire {
            timeline: Timeline::new(shortest_picos),
            packets: PacketFlits::default(),
            packet_flit_at: Time::ZERO,
            posted_at: Time::ZERO,
            slots: format.map(|(format, _)| SlotFlits::new(format, planted)),
            slot_flit_at: Time::ZERO,
            unacknowledged: 0,
            uncredited: 0,
        };
        let tags = vec![Time::ZERO; config.read_tags as usize];
        let wires = [wire.clone(), wire];
        Link { rules, format, timed, now: Time::ZERO, wires, traffic: Traffic::default(), tags, next_tag: 0 }
    }

    /// Begins a transaction at `now` and says when it is over. `now` must not fall from call to call; an earlier one
    /// is taken for the latest there was.
    ///
    /// # Panics
    /// On a CXL message when the configuration has no CXL flits: [`LinkConfig::cxl_flit`] is to be asked first.
    #[inline]
    pub fn transfer(&mut self, now: Time, transaction: Transaction) -> Due {
        let now = self.move_to(now);
        let kind = transaction.kind;
        match transaction.access {
            Access::MmioWrite { address, bytes } => self.write(now, Direction::Downstream, kind, address, bytes),
            Access::DmaWrite { address, bytes } => self.write(now, Direction::Upstream, kind, address, bytes),
            Access::MmioRead { address, bytes } => self.read_device(now, kind, address, bytes),
            Access::DmaRead { address, bytes } => self.read_host(now, kind, address, bytes),
            Access::CxlMem(message) => self.message(now, kind, message),
        }
    }

    /// The first half of an [`Access::MmioRead`] whose answer takes the device its own time: the requests. They are
    /// there at [`Due::at`]. `now` as in [`Link::transfer`].
    pub fn ask_device(&mut self, now: Time, kind: Kind, address: u64, bytes: u32) -> Due {
        let now = self.move_to(now);
        let mut due = Due { sent: now, at: now };
        for page in self.rules.pages(address, bytes) {
            let sent = self.send(Direction::Downstream, now, kind, self.rules.request(page));
            due = due.later(Due { sent, at: sent.plus_nanos(self.rules.config.one_way_ns) });
        }
        due
    }

    /// The second half: the completions.
    pub fn answer_host(&mut self, now: Time, kind: Kind, address: u64, bytes: u32) -> Due {
        let now = self.move_to(now);
        let mut due = Due { sent: now, at: now };
        for page in self.rules.pages(address, bytes) {
            let sent = self.send(Direction::Upstream, now, kind, self.rules.device_completions(page));
            due = due.later(Due { sent, at: sent.plus_nanos(self.rules.config.one_way_ns) });
        }
        due
    }

    #[inline]
    fn move_to(&mut self, now: Time) -> Time {
        if now > self.now {
            self.now = now;
            for wire in &mut self.wires {
                wire.timeline.forget_before(now);
            }
        }
        self.now
    }

    /// What crossed so far.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Time that a direction was or will be taken by what was asked so far, in picoseconds.
    #[must_use]
    pub fn busy_picos(&self, direction: Direction) -> u128 {
        self.wires[direction as usize].timeline.busy_picos()
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &LinkConfig {
        &self.rules.config
    }

    #[inline]
    fn write(&mut self, now: Time, direction: Direction, kind: Kind, address: u64, bytes: u32) -> Due {
        if Rules::is_in_line(address, bytes) {
            return self.post(now, direction, kind, self.rules.line_write(address, bytes));
        }
        self.write_pieces(now, direction, kind, address, bytes)
    }

    fn write_pieces(&mut self, now: Time, direction: Direction, kind: Kind, address: u64, bytes: u32) -> Due {
        let mut due = Due { sent: now, at: now };
        for piece in self.rules.pages(address, bytes) {
            due = self.post(now, direction, kind, self.rules.writes(piece));
        }
        due
    }

    fn post(&mut self, now: Time, direction: Direction, kind: Kind, count: Count) -> Due {
        // A posted write never passes another (Section 2.4.1), not even by a gap that is too short for that one.
        let behind = self.wires[direction as usize].posted_at;
        let from = if self.rules.planted.has(Bug::PassPostedWrites) { now } else { now.max(behind) };
        let sent = self.send(direction, from, kind, count);
        // In flits, what follows may be in the same one.
        self.wires[direction as usize].posted_at = sent.minus_picos(self.rules.flit_picos);
        Due { sent, at: sent.plus_nanos(self.rules.config.one_way_ns) }
    }

    fn read_host(&mut self, now: Time, kind: Kind, address: u64, bytes: u32) -> Due {
        if Rules::is_in_line(address, bytes) {
            let (asked, answer) = (self.rules.line_request(address), self.rules.line_completion(bytes));
            return self.read_with_tags(now, kind, asked, answer);
        }
        let mut due = Due { sent: now, at: now };
        for piece in self.rules.request_runs(address, bytes) {
            let (asked, answer) = (self.rules.request(piece), self.rules.host_completions(piece));
            due = due.later(self.read_with_tags(now, kind, asked, answer));
        }
        due
    }

    fn read_with_tags(&mut self, now: Time, kind: Kind, asked: Count, answer: Count) -> Due {
        let tags = usize::try_from(asked.packets).unwrap_or(usize::MAX);
        let from = self.tags_free_at(tags).max(now);
        let due = self.read(from, Direction::Upstream, kind, asked, answer, self.rules.config.host_read_ns);
        self.use_tags(tags, due.at);
        due
    }

    fn read_device(&mut self, now: Time, kind: Kind, address: u64, bytes: u32) -> Due {
        let wait_ns = self.rules.config.device_read_ns;
        let mut due = Due { sent: now, at: now };
        for page in self.rules.pages(address, bytes) {
            let (asked, answer) = (self.rules.request(page), self.rules.device_completions(page));
            due = due.later(self.read(now, Direction::Downstream, kind, asked, answer, wait_ns));
        }
        due
    }

    /// Read requests that go out together, and their completions back to back once the first is answered, which takes
    /// `wait_ns` on the other side. No completion waits for its request, as those before it are longer than requests.
    #[inline]
    fn read(&mut self, from: Time, direction: Direction, kind: Kind, asked: Count, answer: Count, wait_ns: u64) -> Due {
        let one_way_ns = self.rules.config.one_way_ns;
        let sent = self.send(direction, from, kind, asked);
        let first_sent = sent.minus_picos(self.picos_after_first(asked));
        let answered = first_sent.plus_nanos(one_way_ns + wait_ns);
        let back = self.send(direction.opposite(), answered, kind, answer);
        Due { sent, at: back.plus_nanos(one_way_ns) }
    }

    /// How long before the last of several packets the first has left. In flits they leave together, or nearly so.
    fn picos_after_first(&self, count: Count) -> u64 {
        if count.packets <= 1 || self.rules.carrier.flit_bytes > 0 {
            return 0;
        }
        // Outside of flit mode the requests for a piece are all of one length.
        let (bytes, packets) = (count.wire_bytes as u32, count.packets as u32);
        self.rules.wire_picos(u64::from(bytes - bytes / packets))
    }

    /// When the next `count` tags are free.
    fn tags_free_at(&self, count: usize) -> Time {
        if self.rules.planted.has(Bug::IgnoreTags) {
            return Time::ZERO;
        }
        if count == 1 {
            return self.tags[self.next_tag];
        }
        let in_turn = self.tags[self.next_tag..].iter().chain(&self.tags);
        in_turn.take(count).fold(Time::ZERO, |latest, free| latest.max(*free))
    }

    fn use_tags(&mut self, count: usize, until: Time) {
        for _ in 0..count {
            self.tags[self.next_tag] = until;
            self.next_tag = if self.next_tag + 1 == self.tags.len() { 0 } else { self.next_tag + 1 };
        }
    }

    /// Packets, and what flow control they cause the other way. Returns when the last byte has left.
    #[inline]
    fn send(&mut self, direction: Direction, from: Time, kind: Kind, count: Count) -> Time {
        // In flit mode acknowledgements and credits are a part of every flit.
        if self.rules.flit_mode {
            return self.put_in_flits(direction, from, kind, count);
        }
        let sent = self.put(direction, from, kind, count);
        let dllps = self.dllps_owed(direction, count.packets);
        if dllps > 0 {
            let count = Count { packets: dllps, payload_bytes: 0, wire_bytes: dllps * DLLP_BYTES };
            let received = sent.plus_nanos(self.rules.config.one_way_ns);
            self.put(direction.opposite(), received, Kind::Dllp, count);
        }
        sent
    }

    fn dllps_owed(&mut self, direction: Direction, packets: u64) -> u64 {
        let owed = |pending: &mut u64, every: u32| {
            if every == 0 {
                return 0;
            }
            let (sum, every) = (*pending + packets, u64::from(every));
            // Most packets owe nothing, and a division is the dearest thing here.
            let owed = if sum < every { 0 } else { sum / every };
            *pending = sum - owed * every;
            owed
        };
        let (config, wire) = (&self.rules.config, &mut self.wires[direction as usize]);
        owed(&mut wire.unacknowledged, config.ack_every_packets)
            + owed(&mut wire.uncredited, config.update_fc_every_packets)
    }

    fn put(&mut self, direction: Direction, from: Time, kind: Kind, count: Count) -> Time {
        if self.rules.carrier.flit_bytes > 0 {
            return self.put_in_flits(direction, from, kind, count);
        }
        self.traffic.add(direction, kind, count);
        if !self.timed {
            return from;
        }
        let picos = self.rules.wire_picos(count.wire_bytes);
        let timeline = &mut self.wires[direction as usize].timeline;
        timeline.reserve(from, picos, self.rules.planted).plus_picos(picos)
    }

    fn put_in_flits(&mut self, direction: Direction, from: Time, kind: Kind, count: Count) -> Time {
        let carrier = self.rules.carrier;
        let (flit_picos, wire) = (self.rules.flit_picos, &mut self.wires[direction as usize]);
        let open_at = wire.packets.has_room().then_some(wire.packet_flit_at);
        let join = may_join(&wire.timeline, open_at, from, flit_picos, self.timed, self.rules.planted);
        let placed = wire.packets.place(count.wire_bytes, carrier.packet_bytes, join);
        if self.timed {
            wire.packet_flit_at =
                flit_at(&mut wire.timeline, wire.packet_flit_at, from, placed, flit_picos, self.rules.planted);
        }
        let leaves = wire.packet_flit_at;
        self.traffic.add_in_flits(direction, kind, count, placed, carrier.flit_bytes);
        leaves.plus_picos(flit_picos)
    }

    fn message(&mut self, now: Time, kind: Kind, message: CxlMessage) -> Due {
        let direction = message.direction();
        let wire = &mut self.wires[direction as usize];
        let (Some((format, flit_picos)), Some(slots)) = (self.format, &mut wire.slots) else {
            panic!("a CXL.mem message on a link whose cxl_flit is none");
        };
        // Messages keep their order: what is left of one comes in the flits right after its header.
        let from = now.max(wire.slot_flit_at);
        let join = !self.timed || now <= wire.slot_flit_at || self.rules.planted.has(Bug::JoinDepartedFlits);
        let placed = slots.place(message, join);
        if self.timed {
            wire.slot_flit_at =
                flit_at(&mut wire.timeline, wire.slot_flit_at, from, placed, flit_picos, self.rules.planted);
        }
        let sent = wire.slot_flit_at.plus_picos(flit_picos);
        let count = Count { packets: 1, payload_bytes: message.payload_bytes(), wire_bytes: placed.filled_bytes };
        self.traffic.add_in_flits(direction, kind, count, placed, format.flit_bytes);
        Due { sent, at: sent.plus_nanos(self.rules.config.one_way_ns) }
    }
}

/// Whether something that is ready at `from` goes into the open flit: that has not left, and a flit of its own would
/// not leave earlier.
#[inline]
fn may_join(
    timeline: &Timeline,
    open_at: Option<Time>,
    from: Time,
    flit_picos: u64,
    timed: bool,
    planted: Planted,
) -> bool {
    let Some(at) = open_at else { return false };
    !timed || planted.has(Bug::JoinDepartedFlits) || (from <= at && at <= timeline.first_fit(from, flit_picos))
}

/// When the last flit of something leaves, which is the open one from now on. A receiver looks at a flit when it has
/// checked it, so a message is there with its last flit.
#[inline]
fn flit_at(
    timeline: &mut Timeline,
    open_at: Time,
    from: Time,
    placed: Placed,
    flit_picos: u64,
    planted: Planted,
) -> Time {
    match placed.flits {
        0 => open_at,
        flits => timeline.reserve(from, flits * flit_picos, planted).plus_picos((flits - 1) * flit_picos),
    }
}
