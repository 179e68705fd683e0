//! Transactions in time: when each is due, and what it took.

use crate::config::{ConfigError, LinkConfig, Rules};
use crate::flit::{PacketFlits, flits_of};
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
///
/// Times inside are picoseconds since the epoch, in 64 bits, as are those of the timelines. They end after 213 days:
/// long before that the epoch is moved up to the present.
#[derive(Clone, Debug)]
pub struct Link {
    rules: Rules,
    /// Of the times that are kept here.
    epoch_ns: u64,
    /// Format of CXL.mem flits and the time of one.
    format: Option<(Format, u64)>,
    /// Without time everything is sent at once, so that flits are as full as can be.
    timed: bool,
    now: u64,
    wires: [Wire; 2],
    /// All but the flits.
    traffic: Traffic,
    /// When each tag of the device is free again; requests take them in turn.
    tags: Vec<u64>,
    next_tag: usize,
}

/// One direction.
#[derive(Clone, Debug)]
struct Wire {
    timeline: Timeline,
    packets: PacketFlits,
    /// When the open flit of packets leaves.
    packet_flit_at: u64,
    /// When the last posted write had left, or when its last flit leaves.
    posted_at: u64,
    slots: Option<SlotFlits>,
    /// When the open flit of slots leaves.
    slot_flit_at: u64,
    /// Flits of packets and of slots so far.
    packet_flits: u64,
    slot_flits: u64,
    /// Packets received that were neither acknowledged nor paid back.
    unacknowledged: u64,
    uncredited: u64,
}

/// As [`Due`], since the epoch.
#[derive(Clone, Copy, Debug)]
struct Over {
    sent: u64,
    at: u64,
}

impl Over {
    /// When both are over.
    #[inline]
    fn later(self, other: Over) -> Over {
        Over { sent: self.sent.max(other.sent), at: self.at.max(other.at) }
    }
}

/// A transaction whose packets were counted beforehand ([`Link::prepare`]).
#[derive(Clone, Copy, Debug)]
pub struct Prepared {
    kind: Kind,
    parts: Parts,
}

#[derive(Clone, Copy, Debug)]
enum Parts {
    /// A posted write in one piece.
    Write { direction: Direction, burst: Burst },
    /// A read of the host's memory in one piece.
    ReadHost { asked: Burst, answer: Burst },
    /// Anything else is taken apart when it is sent.
    Other(Access),
}

/// Transactions that are begun together ([`Link::prepare_all`]).
#[derive(Clone, Debug)]
pub struct PreparedAll {
    each: Box<[Prepared]>,
    /// Posted writes in flits: which way, and the packets of all.
    whole: Option<(Direction, Burst)>,
}

/// Packets that are sent together, and what they take where they join no flit that is open.
#[derive(Clone, Copy, Debug)]
struct Burst {
    count: Count,
    /// Time on the wire, of whole flits where there are any.
    picos: u64,
    flits: u64,
    /// Bytes that the last of these still takes.
    room_bytes: u64,
}

/// The epoch moves when the present is so far from it: half of what 64 bits hold.
const EPOCH_NS_MAX: u64 = u64::MAX / 2 / 1000;

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
        Ok(link.traffic())
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
            packet_flit_at: 0,
            posted_at: 0,
            slots: format.map(|(format, _)| SlotFlits::new(format, planted)),
            slot_flit_at: 0,
            packet_flits: 0,
            slot_flits: 0,
            unacknowledged: 0,
            uncredited: 0,
        };
        let tags = vec![0; config.read_tags as usize];
        let wires = [wire.clone(), wire];
        let traffic = Traffic::default();
        Link { rules, epoch_ns: 0, format, timed, now: 0, wires, traffic, tags, next_tag: 0 }
    }

    /// Begins a transaction at `now` and says when it is over. `now` must not fall from call to call; an earlier one
    /// is taken for the latest there was.
    ///
    /// # Panics
    /// On a CXL message when the configuration has no CXL flits: [`LinkConfig::cxl_flit`] is to be asked first.
    #[inline]
    pub fn transfer(&mut self, now: Time, transaction: Transaction) -> Due {
        let now = self.move_to_time(now);
        let over = self.access(now, transaction.kind, transaction.access);
        self.due(over)
    }

    /// Counts the packets of a transaction beforehand, for who begins many that only differ in addresses that are
    /// aligned alike and lie on the same side of 4 GiB.
    #[must_use]
    pub fn prepare(&self, transaction: Transaction) -> Prepared {
        let Transaction { access, kind } = transaction;
        let parts = match access {
            Access::MmioWrite { address, bytes } => self.prepare_write(Direction::Downstream, access, address, bytes),
            Access::DmaWrite { address, bytes } => self.prepare_write(Direction::Upstream, access, address, bytes),
            Access::DmaRead { address, bytes } => {
                let mut pieces = self.rules.request_runs(address, bytes);
                match (pieces.next(), pieces.next()) {
                    (Some(piece), None) => Parts::ReadHost {
                        asked: self.burst(self.rules.request(piece)),
                        answer: self.burst(self.rules.host_completions(piece)),
                    },
                    _ => Parts::Other(access),
                }
            }
            Access::MmioRead { .. } | Access::CxlMem(_) => Parts::Other(access),
        };
        Prepared { kind, parts }
    }

    fn prepare_write(&self, direction: Direction, access: Access, address: u64, bytes: u32) -> Parts {
        let mut pieces = self.rules.pages(address, bytes);
        match (pieces.next(), pieces.next()) {
            (Some(piece), None) => Parts::Write { direction, burst: self.burst(self.rules.writes(piece)) },
            _ => Parts::Other(access),
        }
    }

    /// Begins a transaction as [`Link::transfer`] does, in whole nanoseconds: [`Due::at`], rounded up.
    ///
    /// # Panics
    /// As [`Link::transfer`].
    pub fn begin(&mut self, now_ns: u64, prepared: &Prepared) -> u64 {
        let now = self.move_to(now_ns);
        let kind = prepared.kind;
        let over = match &prepared.parts {
            Parts::Write { direction, burst } => self.post(now, *direction, kind, burst),
            Parts::ReadHost { asked, answer } => self.read_with_tags(now, kind, asked, answer),
            Parts::Other(access) => self.access(now, kind, *access),
        };
        self.nanos_ceil(over.at)
    }

    /// Prepares transactions that are begun together. Posted writes of one direction follow each other without a gap:
    /// in flits all of them are as one.
    #[must_use]
    pub fn prepare_all(&self, transactions: &[Transaction]) -> PreparedAll {
        let each: Vec<Prepared> = transactions.iter().map(|transaction| self.prepare(*transaction)).collect();
        let mut count = Count::default();
        let mut towards = None;
        let are_writes = each.iter().all(|prepared| match &prepared.parts {
            Parts::Write { direction, burst } => {
                count += burst.count;
                *towards.get_or_insert(*direction) == *direction
            }
            _ => false,
        });
        let together = are_writes && self.rules.flit_mode;
        let whole = towards.filter(|_| together).map(|direction| (direction, self.burst(count)));
        PreparedAll { each: each.into(), whole }
    }

    /// Begins transactions in their order, as [`Link::begin`] would one after the other: the end of the last.
    ///
    /// # Panics
    /// As [`Link::transfer`].
    pub fn begin_all(&mut self, now_ns: u64, all: &PreparedAll) -> u64 {
        if let Some((direction, whole)) = &all.whole
            && self.wires[*direction as usize].timeline.has_no_gap()
        {
            let now = self.move_to(now_ns);
            for prepared in &all.each {
                if let Parts::Write { burst, .. } = &prepared.parts {
                    self.traffic.add(*direction, prepared.kind, &burst.count);
                }
            }
            let from = now.max(self.wires[*direction as usize].posted_at);
            let sent = self.fill_flits(*direction, from, whole);
            self.wires[*direction as usize].posted_at = sent.saturating_sub(self.rules.flit_picos);
            return self.nanos_ceil(self.one_way(sent).at);
        }
        all.each.iter().fold(now_ns, |_, prepared| self.begin(now_ns, prepared))
    }

    /// In whole nanoseconds since the beginning of time, rounded up.
    #[inline]
    fn nanos_ceil(&self, at: u64) -> u64 {
        self.epoch_ns.saturating_add(at.saturating_add(999) / 1000)
    }

    fn access(&mut self, now: u64, kind: Kind, access: Access) -> Over {
        match access {
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
        let now = self.move_to_time(now);
        let mut over = Over { sent: now, at: now };
        for page in self.rules.pages(address, bytes) {
            let sent = self.send(Direction::Downstream, now, kind, &self.burst(self.rules.request(page)));
            over = over.later(self.one_way(sent));
        }
        self.due(over)
    }

    /// The second half: the completions.
    pub fn answer_host(&mut self, now: Time, kind: Kind, address: u64, bytes: u32) -> Due {
        let now = self.move_to_time(now);
        let mut over = Over { sent: now, at: now };
        for page in self.rules.pages(address, bytes) {
            let sent = self.send(Direction::Upstream, now, kind, &self.burst(self.rules.device_completions(page)));
            over = over.later(self.one_way(sent));
        }
        self.due(over)
    }

    fn due(&self, over: Over) -> Due {
        let time = |picos| Time::from_nanos(self.epoch_ns).plus_picos(picos);
        Due { sent: time(over.sent), at: time(over.at) }
    }

    /// What has left at `sent` is on the other side after its way.
    #[inline]
    fn one_way(&self, sent: u64) -> Over {
        Over { sent, at: sent.saturating_add(self.rules.one_way_picos) }
    }

    fn move_to_time(&mut self, now: Time) -> u64 {
        let epoch = Time::from_nanos(self.epoch_ns);
        if now.picos_since(epoch) > u128::from(EPOCH_NS_MAX) * 1000 {
            self.move_epoch(now.nanos_floor());
        }
        let since = now.picos_since(Time::from_nanos(self.epoch_ns));
        self.move_to_picos(u64::try_from(since).unwrap_or(u64::MAX))
    }

    #[inline]
    fn move_to(&mut self, now_ns: u64) -> u64 {
        if now_ns.saturating_sub(self.epoch_ns) > EPOCH_NS_MAX {
            self.move_epoch(now_ns);
        }
        self.move_to_picos(now_ns.saturating_sub(self.epoch_ns) * 1000)
    }

    #[inline]
    fn move_to_picos(&mut self, now: u64) -> u64 {
        self.now = self.now.max(now);
        self.now
    }

    /// What is kept of times is put right for an epoch just before `now_ns`. Nothing begins before that any more, so
    /// all times before it are alike; but none of them may become the present.
    #[cold]
    fn move_epoch(&mut self, now_ns: u64) {
        let epoch_ns = now_ns - 1;
        let picos = (epoch_ns - self.epoch_ns).saturating_mul(1000);
        self.epoch_ns = epoch_ns;
        let times = self.wires.iter_mut().flat_map(|wire| {
            wire.timeline.move_epoch(picos);
            [&mut wire.packet_flit_at, &mut wire.posted_at, &mut wire.slot_flit_at]
        });
        for time in times.chain(&mut self.tags).chain([&mut self.now]) {
            *time = time.saturating_sub(picos);
        }
    }

    /// What crossed so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let mut traffic = self.traffic;
        if self.rules.carrier.flit_bytes > 0 {
            let slot_flit_bytes = self.format.map_or(0, |(format, _)| format.flit_bytes);
            for (direction, wire) in Direction::ALL.into_iter().zip(&self.wires) {
                let bytes = wire.packet_flits * self.rules.carrier.flit_bytes + wire.slot_flits * slot_flit_bytes;
                traffic.add_flits(direction, wire.packet_flits + wire.slot_flits, bytes);
            }
        }
        traffic
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
    fn write(&mut self, now: u64, direction: Direction, kind: Kind, address: u64, bytes: u32) -> Over {
        if Rules::is_in_line(address, bytes) {
            return self.post(now, direction, kind, &self.burst(self.rules.line_write(address, bytes)));
        }
        self.write_pieces(now, direction, kind, address, bytes)
    }

    fn write_pieces(&mut self, now: u64, direction: Direction, kind: Kind, address: u64, bytes: u32) -> Over {
        let mut over = Over { sent: now, at: now };
        for piece in self.rules.pages(address, bytes) {
            over = self.post(now, direction, kind, &self.burst(self.rules.writes(piece)));
        }
        over
    }

    #[inline(always)]
    fn post(&mut self, now: u64, direction: Direction, kind: Kind, burst: &Burst) -> Over {
        // A posted write never passes another (Section 2.4.1), not even by a gap that is too short for that one.
        let behind = self.wires[direction as usize].posted_at;
        let from = if self.rules.planted.has(Bug::PassPostedWrites) { now } else { now.max(behind) };
        let sent = self.send(direction, from, kind, burst);
        // In flits, what follows may be in the same one.
        self.wires[direction as usize].posted_at = sent.saturating_sub(self.rules.flit_picos);
        self.one_way(sent)
    }

    fn read_host(&mut self, now: u64, kind: Kind, address: u64, bytes: u32) -> Over {
        if Rules::is_in_line(address, bytes) {
            let (asked, answer) = (self.rules.line_request(address), self.rules.line_completion(bytes));
            return self.read_with_tags(now, kind, &self.burst(asked), &self.burst(answer));
        }
        let mut over = Over { sent: now, at: now };
        for piece in self.rules.request_runs(address, bytes) {
            let (asked, answer) = (self.rules.request(piece), self.rules.host_completions(piece));
            over = over.later(self.read_with_tags(now, kind, &self.burst(asked), &self.burst(answer)));
        }
        over
    }

    #[inline(always)]
    fn read_with_tags(&mut self, now: u64, kind: Kind, asked: &Burst, answer: &Burst) -> Over {
        let tags = usize::try_from(asked.count.packets).unwrap_or(usize::MAX);
        let from = self.tags_free_at(tags).max(now);
        let over = self.read(from, Direction::Upstream, kind, asked, answer, self.rules.host_read_picos);
        self.use_tags(tags, over.at);
        over
    }

    fn read_device(&mut self, now: u64, kind: Kind, address: u64, bytes: u32) -> Over {
        let wait_picos = self.rules.config.device_read_ns * 1000;
        let mut over = Over { sent: now, at: now };
        for page in self.rules.pages(address, bytes) {
            let (asked, answer) =
                (self.burst(self.rules.request(page)), self.burst(self.rules.device_completions(page)));
            over = over.later(self.read(now, Direction::Downstream, kind, &asked, &answer, wait_picos));
        }
        over
    }

    /// Read requests that go out together, and their completions back to back once the first is answered, which takes
    /// `wait_picos` on the other side. No completion waits for its request: those before it are longer than requests.
    #[inline]
    fn read(
        &mut self,
        from: u64,
        direction: Direction,
        kind: Kind,
        asked: &Burst,
        answer: &Burst,
        wait_picos: u64,
    ) -> Over {
        let sent = self.send(direction, from, kind, asked);
        let first_sent = sent.saturating_sub(self.picos_after_first(&asked.count));
        let answered = self.one_way(first_sent).at.saturating_add(wait_picos);
        let back = self.send(direction.opposite(), answered, kind, answer);
        Over { sent, at: self.one_way(back).at }
    }

    /// How long before the last of several packets the first has left. In flits they leave together, or nearly so.
    #[inline]
    fn picos_after_first(&self, count: &Count) -> u64 {
        if count.packets <= 1 || self.rules.carrier.flit_bytes > 0 {
            return 0;
        }
        // Outside of flit mode the requests for a piece are all of one length.
        let (bytes, packets) = (count.wire_bytes as u32, count.packets as u32);
        self.rules.wire_picos(u64::from(bytes - bytes / packets))
    }

    /// When the next `count` tags are free.
    #[inline]
    fn tags_free_at(&self, count: usize) -> u64 {
        if self.rules.planted.has(Bug::IgnoreTags) {
            return 0;
        }
        if count == 1 {
            return self.tags[self.next_tag];
        }
        let in_turn = self.tags[self.next_tag..].iter().chain(&self.tags);
        in_turn.take(count).fold(0, |latest, free| latest.max(*free))
    }

    #[inline]
    fn use_tags(&mut self, count: usize, until: u64) {
        for _ in 0..count {
            self.tags[self.next_tag] = until;
            self.next_tag = if self.next_tag + 1 == self.tags.len() { 0 } else { self.next_tag + 1 };
        }
    }

    /// What packets take.
    #[inline]
    fn burst(&self, count: Count) -> Burst {
        let capacity = self.rules.carrier.packet_bytes;
        if capacity == 0 {
            return Burst { count, picos: self.rules.wire_picos(count.wire_bytes), flits: 0, room_bytes: 0 };
        }
        let flits = flits_of(count.wire_bytes, capacity);
        let room_bytes = flits * capacity - count.wire_bytes;
        Burst { count, picos: flits * self.rules.flit_picos, flits, room_bytes }
    }

    /// Packets, and what flow control they cause the other way. Returns when the last byte has left.
    #[inline(always)]
    fn send(&mut self, direction: Direction, from: u64, kind: Kind, burst: &Burst) -> u64 {
        // In flit mode acknowledgements and credits are a part of every flit.
        if self.rules.flit_mode {
            return self.put_in_flits(direction, from, kind, burst);
        }
        self.send_with_dllps(direction, from, kind, burst)
    }

    fn send_with_dllps(&mut self, direction: Direction, from: u64, kind: Kind, burst: &Burst) -> u64 {
        let sent = self.put(direction, from, kind, burst);
        let dllps = self.dllps_owed(direction, burst.count.packets);
        if dllps > 0 {
            let count = Count { packets: dllps, payload_bytes: 0, wire_bytes: dllps * DLLP_BYTES };
            let received = self.one_way(sent).at;
            self.put(direction.opposite(), received, Kind::Dllp, &self.burst(count));
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

    fn put(&mut self, direction: Direction, from: u64, kind: Kind, burst: &Burst) -> u64 {
        if self.rules.carrier.flit_bytes > 0 {
            return self.put_in_flits(direction, from, kind, burst);
        }
        self.traffic.add(direction, kind, &burst.count);
        if !self.timed {
            return from;
        }
        let timeline = &mut self.wires[direction as usize].timeline;
        timeline.reserve(self.now, from, burst.picos, self.rules.planted).saturating_add(burst.picos)
    }

    #[inline(always)]
    fn put_in_flits(&mut self, direction: Direction, from: u64, kind: Kind, burst: &Burst) -> u64 {
        self.traffic.add(direction, kind, &burst.count);
        self.fill_flits(direction, from, burst)
    }

    #[inline(always)]
    fn fill_flits(&mut self, direction: Direction, from: u64, burst: &Burst) -> u64 {
        let (rules, wire) = (&self.rules, &mut self.wires[direction as usize]);
        if wire.packets.has_room() && (!self.timed || may_join(wire, from, rules)) {
            if wire.packets.take(burst.count.wire_bytes) {
                return wire.packet_flit_at.saturating_add(rules.flit_picos);
            }
            return self.join_flit(direction, from, burst.count.wire_bytes);
        }
        wire.packets.begin(burst.room_bytes);
        wire.packet_flits += burst.flits;
        if !self.timed {
            return rules.flit_picos;
        }
        let start = wire.timeline.reserve(self.now, from, burst.picos, rules.planted);
        let sent = start.saturating_add(burst.picos);
        wire.packet_flit_at = sent.saturating_sub(rules.flit_picos);
        sent
    }

    /// Packets go into the open flit, and what it does not take into new ones.
    #[inline(never)]
    fn join_flit(&mut self, direction: Direction, from: u64, bytes: u64) -> u64 {
        let (rules, wire) = (&self.rules, &mut self.wires[direction as usize]);
        let flits = wire.packets.join(bytes, rules.carrier.packet_bytes);
        wire.packet_flits += flits;
        if self.timed && flits > 0 {
            wire.packet_flit_at = wire.last_of(flits, self.now, from, rules.flit_picos, rules.planted);
        }
        wire.packet_flit_at.saturating_add(rules.flit_picos)
    }

    fn message(&mut self, now: u64, kind: Kind, message: CxlMessage) -> Over {
        let direction = message.direction();
        let wire = &mut self.wires[direction as usize];
        let (Some((_, flit_picos)), Some(slots)) = (self.format, &mut wire.slots) else {
            panic!("a CXL.mem message on a link whose cxl_flit is none");
        };
        // Messages keep their order: what is left of one comes in the flits right after its header.
        let from = now.max(wire.slot_flit_at);
        let join = !self.timed || now <= wire.slot_flit_at || self.rules.planted.has(Bug::JoinDepartedFlits);
        let placed = slots.place(message, join);
        wire.slot_flits += placed.flits;
        if self.timed && placed.flits > 0 {
            wire.slot_flit_at = wire.last_of(placed.flits, self.now, from, flit_picos, self.rules.planted);
        }
        let sent = wire.slot_flit_at.saturating_add(flit_picos);
        let count = Count { packets: 1, payload_bytes: message.payload_bytes(), wire_bytes: placed.filled_bytes };
        self.traffic.add(direction, kind, &count);
        self.one_way(sent)
    }
}

impl Wire {
    /// When the last of so many new flits leaves, which is the open one from now on. A receiver looks at a flit when it
    /// has checked it, so a message is there with its last flit.
    #[inline]
    fn last_of(&mut self, flits: u64, now: u64, from: u64, flit_picos: u64, planted: Planted) -> u64 {
        self.timeline.reserve(now, from, flits * flit_picos, planted).saturating_add((flits - 1) * flit_picos)
    }
}

/// Whether something that is ready at `from` goes into the open flit of packets: that has not left, and a flit of its
/// own would not leave earlier.
#[inline]
fn may_join(wire: &Wire, from: u64, rules: &Rules) -> bool {
    let at = wire.packet_flit_at;
    rules.planted.has(Bug::JoinDepartedFlits) || (from <= at && at <= wire.timeline.first_fit(from, rules.flit_picos))
}
