//! The control object: the shared words by which the supervisor, the two domains and the command line
//! speak to each other while traffic runs.
//!
//! Every word is an atomic of its own, has one writer at a time, and may be read by anyone. Nothing here is
//! needed to recover data: a fresh control object is made at each start, from the device's own records.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use osier_domain::{ACTORS_MAX, ActorId, STREAMS_MAX, Side, SlotId};
use osier_pmr::Object;

use crate::bootstrap::Placement;
use crate::waits::{ACCOUNT_WORDS, Account};

/// Words of the control object.
const WORDS: usize = 2048;
/// Bytes of the control object.
pub const CONTROL_BYTES: u64 = (WORDS * 8) as u64;
/// Bytes of the log of migrations.
pub const MOVES_BYTES: u64 = (MOVE_RECORDS * 64) as u64;
/// Migrations that the log holds; later ones overwrite the oldest.
pub const MOVE_RECORDS: usize = 16384;

const EPOCH: usize = 0;
const GO: usize = 1;
const STOP: usize = 2;
const PLACEMENT: usize = 3;
const COMMAND: usize = 4;
const COMMAND_ACK: usize = 5;
const COMMAND_RESULT: usize = 6;
const POLICY_OFF: usize = 7;
const PARKED: usize = 8;
const READY: usize = 10;
const ALIVE: usize = 12;
const PID: usize = 14;
const RECOVERED: usize = 16;
const EXPECTED: usize = 18;
const SAMPLE: usize = 32;
const CURSOR: usize = 64;
const DELIVERED: usize = CURSOR + STREAMS_MAX;
const STAMP: usize = 128;
const MOVES_NEXT: usize = STAMP + 8 * ACTORS_MAX;
const STATS: usize = MOVES_NEXT + 8;
const DIGEST: usize = STATS + STATS_WORDS * ACTORS_MAX;
const WINDOW: usize = DIGEST + 2;
const HOLDS: usize = WINDOW + STREAMS_MAX;
/// Words of a bit a slot.
const HOLDS_WORDS: usize = 4;
/// Words of one actor's statistics: four a side.
const STATS_WORDS: usize = 8;
const ACCOUNT: usize = HOLDS + HOLDS_WORDS;
/// Tries to read an account that is being written, which takes some nanoseconds.
const ACCOUNT_TRIES: usize = 8;
const _: () = assert!(DELIVERED + STREAMS_MAX <= STAMP);
const _: () = assert!(ACCOUNT + 1 + ACCOUNT_WORDS <= WORDS);

/// Requests of one stream that can be in flight: the device says of the last so many which were committed.
pub const STREAM_INFLIGHT_MAX: u64 = 64;

/// What the device tells of itself, at each tick of its firmware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Gauge {
    /// Modelled temperature in millidegrees Celsius, offset by 1,000,000 to stay positive.
    Temperature = 0,
    /// Share of the device's cores that the model has busy, in permille.
    Utilisation = 1,
    /// What throttling leaves of the speed, in permille.
    Speed = 2,
    /// Bytes that clients wrote.
    HostBytes = 3,
    /// Bytes that were stored for them.
    StoredBytes = 4,
    /// Requests in the device's domain.
    Pending = 6,
    /// Processor time that the device's process has used, in nanoseconds.
    DeviceCpu = 7,
    /// When the device last said that it has nothing to do, and waits for no time or media; 0 where it has.
    IdleAt = 8,
    /// Share of the host that was busy in the last scheduler epoch, in permille.
    HostBusy = 11,
}

/// What an actor did at one side so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ActorStats {
    /// Input bytes that went through.
    pub bytes: u64,
    /// Nanoseconds that took: of the model on the device, of the processor on the host.
    pub busy_ns: u64,
    /// Calls.
    pub calls: u64,
    /// Calls that failed their request.
    pub failed: u64,
}

/// A handle on the control object and the log of migrations.
#[derive(Clone)]
pub struct Control {
    words: Object,
    moves: Object,
}

/// One move asked for by the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// Its number.
    pub sequence: u64,
    /// Which actor; `None` for every actor.
    pub actor: Option<ActorId>,
    /// Where to; `None` gives placement back to the policy.
    pub to: Option<Side>,
}

/// When each part of one migration happened, in nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MoveTimes {
    /// Who.
    pub actor: u16,
    /// From the host to the device, rather than back.
    pub to_device: bool,
    /// It was moved in the middle of a request.
    pub mid_request: bool,
    /// The destination had something for it to do when it arrived; else a switch ends when something comes.
    pub awaited: bool,
    /// The destination slept in the kernel when the host decided.
    pub asleep: bool,
    /// The host decided.
    pub decided: u64,
    /// The source sent what came from then on to the destination.
    pub routed: u64,
    /// The checkpoint was ready.
    pub ready: u64,
    /// The destination heard of it.
    pub heard: u64,
    /// The destination was active.
    pub active: u64,
    /// The first chunk at the destination was about to run.
    pub first_begun: u64,
    /// The first chunk at the destination had run.
    pub first_served: u64,
}

impl Control {
    /// A handle over the two objects.
    pub fn new(words: Object, moves: Object) -> Control {
        assert!(words.len() >= CONTROL_BYTES && moves.len() >= MOVES_BYTES);
        Control { words, moves }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        self.words.word64(index as u64 * 8)
    }

    fn get(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    fn set(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    /// Rises when a domain has died; whoever lives parks.
    pub fn epoch(&self) -> u64 {
        self.get(EPOCH)
    }

    /// The supervisor begins a recovery.
    pub fn raise_epoch(&self) -> u64 {
        self.word(EPOCH).fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The epoch whose recovery is done: both domains may serve.
    pub fn go(&self) -> u64 {
        self.get(GO)
    }

    /// The supervisor ends a recovery.
    pub fn set_go(&self, epoch: u64) {
        self.set(GO, epoch);
    }

    /// Whether both domains are to end.
    pub fn stopping(&self) -> bool {
        self.get(STOP) != 0
    }

    /// Asks both domains to end.
    pub fn stop(&self) {
        self.set(STOP, 1);
    }

    /// The epoch at which a domain parked: it serves nothing and its published cursors are final.
    pub fn parked(&self, side: Side) -> u64 {
        self.get(PARKED + side as usize)
    }

    /// A domain has parked.
    pub fn set_parked(&self, side: Side, epoch: u64) {
        self.set(PARKED + side as usize, epoch);
    }

    /// The epoch for which a domain is ready to serve.
    pub fn ready(&self, side: Side) -> u64 {
        self.get(READY + side as usize)
    }

    /// A domain is ready to serve.
    pub fn set_ready(&self, side: Side, epoch: u64) {
        self.set(READY + side as usize, epoch);
    }

    /// A domain has taken its actors for an epoch; whether the other has too. Neither serves before both have:
    /// one that moved an actor while the other still asked the records would have the move taken for one that
    /// the death interrupted.
    pub fn recovered(&self, side: Side, epoch: u64) -> bool {
        self.get(RECOVERED + side as usize) == epoch + 1
    }

    /// This domain has taken its actors.
    pub fn set_recovered(&self, side: Side, epoch: u64) {
        self.set(RECOVERED + side as usize, epoch + 1);
    }

    /// Waits until the supervisor has let `epoch` begin (`go`) or both domains have recovered; false when the
    /// epoch has moved on or everything is to stop. `meanwhile` is called again and again.
    pub fn await_epoch(&self, epoch: u64, until: impl Fn(&Control) -> bool, mut meanwhile: impl FnMut()) -> bool {
        while !until(self) {
            if self.stopping() || self.epoch() > epoch {
                return false;
            }
            meanwhile();
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        true
    }

    /// Which domains the kernel reported alive when the present epoch began.
    pub fn alive(&self) -> [bool; 2] {
        [self.get(ALIVE) != 0, self.get(ALIVE + 1) != 0]
    }

    /// The supervisor notes who is alive.
    pub fn set_alive(&self, alive: [bool; 2]) {
        self.set(ALIVE, u64::from(alive[0]));
        self.set(ALIVE + 1, u64::from(alive[1]));
    }

    /// The process of a domain.
    pub fn pid(&self, side: Side) -> u64 {
        self.get(PID + side as usize)
    }

    /// Notes the process of a domain.
    pub fn set_pid(&self, side: Side, pid: u32) {
        self.set(PID + side as usize, u64::from(pid));
    }

    /// The last committed sequence of each stream, as the device publishes it when it parks and starts.
    pub fn cursors(&self) -> [u64; STREAMS_MAX] {
        std::array::from_fn(|stream| self.get(CURSOR + stream))
    }

    /// The device publishes a cursor and which of the 64 sequences up to it were committed: bit *i* stands for
    /// the one *i* before it. A write that the core refused lies below the cursor and was not.
    pub fn set_cursor(&self, stream: usize, sequence: u64, window: u64) {
        self.set(WINDOW + stream, window);
        self.set(CURSOR + stream, sequence);
    }

    /// Whether the device has committed a request, as far as it says: of requests in flight it does, because a
    /// client has at most [`STREAM_INFLIGHT_MAX`] of one stream in flight.
    pub fn is_committed(&self, stream: usize, sequence: u64) -> bool {
        match self.get(CURSOR + stream).checked_sub(sequence) {
            Some(behind @ 0..64) => self.get(WINDOW + stream) >> behind & 1 == 1,
            Some(_) => true,
            None => false,
        }
    }

    /// The last sequence of each stream whose completion the client was given.
    pub fn delivered(&self) -> [u64; STREAMS_MAX] {
        std::array::from_fn(|stream| self.get(DELIVERED + stream))
    }

    /// The host notes a delivery.
    pub fn set_delivered(&self, stream: usize, sequence: u64) {
        self.set(DELIVERED + stream, sequence);
    }

    /// Until when a domain is to expect an actor, and not to sleep.
    pub fn expected(&self, side: Side) -> u64 {
        self.get(EXPECTED + side as usize)
    }

    /// Tells a domain to expect an actor until then.
    pub fn expect(&self, side: Side, until: u64) {
        self.set(EXPECTED + side as usize, until);
    }

    /// Reads a gauge.
    pub fn gauge(&self, gauge: Gauge) -> u64 {
        self.get(SAMPLE + gauge as usize)
    }

    /// Sets a gauge.
    pub fn set_gauge(&self, gauge: Gauge, value: u64) {
        self.word(SAMPLE + gauge as usize).store(value, Ordering::Relaxed);
    }

    /// The modelled temperature, in millidegrees Celsius.
    pub fn temperature_millicelsius(&self) -> i64 {
        self.gauge(Gauge::Temperature) as i64 - 1_000_000
    }

    /// Sets the modelled temperature, in millidegrees Celsius.
    pub fn set_temperature_millicelsius(&self, value: i64) {
        self.set_gauge(Gauge::Temperature, (value + 1_000_000).max(0) as u64);
    }

    /// Where the session's options place the actors, for the command line.
    pub fn placement(&self) -> Placement {
        match self.get(PLACEMENT) {
            1 => Placement::Host,
            2 => Placement::Device,
            _ => Placement::Adaptive,
        }
    }

    /// The supervisor notes where the session's options place the actors.
    pub fn set_placement(&self, placement: Placement) {
        let word = match placement {
            Placement::Adaptive => 0,
            Placement::Host => 1,
            Placement::Device => 2,
        };
        self.set(PLACEMENT, word);
    }

    /// Whether the policy rests because somebody placed actors by hand.
    pub fn policy_off(&self) -> bool {
        self.get(POLICY_OFF) != 0
    }

    /// Lets the policy rest or work.
    pub fn set_policy_off(&self, off: bool) {
        self.set(POLICY_OFF, u64::from(off));
    }

    /// The command line asks for a move; answers the number to wait for, or nothing while another one waits.
    pub fn ask(&self, actor: Option<ActorId>, to: Option<Side>) -> Option<u64> {
        let before = self.get(COMMAND);
        if before >> 32 != self.get(COMMAND_ACK) {
            return None;
        }
        let sequence = (before >> 32) + 1;
        let actor = actor.map_or(0xffff, |a| u64::from(a.0));
        let to = to.map_or(2, |side| side as u64);
        let word = sequence << 32 | actor << 8 | to;
        let asked = self.word(COMMAND).compare_exchange(before, word, Ordering::AcqRel, Ordering::Acquire);
        asked.ok().map(|_| sequence)
    }

    /// The command that has not been answered, if there is one.
    pub fn command(&self) -> Option<Command> {
        let word = self.get(COMMAND);
        let sequence = word >> 32;
        if sequence == self.get(COMMAND_ACK) {
            return None;
        }
        let actor = (word >> 8 & 0xffff) as u16;
        Some(Command {
            sequence,
            actor: (actor != 0xffff).then_some(ActorId(actor)),
            to: Side::from_byte((word & 0xff) as u8),
        })
    }

    /// The host answers a command: 0 done, else how many actors did not arrive in time.
    pub fn answer(&self, sequence: u64, result: u64) {
        self.set(COMMAND_RESULT, result);
        self.set(COMMAND_ACK, sequence);
    }

    /// The answer to a command, once there is one; of one that others have followed since, that it was done.
    pub fn answered(&self, sequence: u64) -> Option<u64> {
        let answered = self.get(COMMAND_ACK);
        (answered >= sequence).then(|| if answered == sequence { self.get(COMMAND_RESULT) } else { 0 })
    }

    fn stats_at(actor: ActorId, side: Side) -> usize {
        STATS + usize::from(actor.0) * STATS_WORDS + side as usize * (STATS_WORDS / 2)
    }

    /// Notes what an actor did at one side so far.
    pub fn set_actor_stats(&self, actor: ActorId, side: Side, stats: &ActorStats) {
        let words = [stats.bytes, stats.busy_ns, stats.calls, stats.failed];
        for (at, word) in (Control::stats_at(actor, side)..).zip(words) {
            self.word(at).store(word, Ordering::Relaxed);
        }
    }

    /// What an actor did at one side so far.
    pub fn actor_stats(&self, actor: ActorId, side: Side) -> ActorStats {
        let word = |at: usize| self.get(Control::stats_at(actor, side) + at);
        ActorStats { bytes: word(0), busy_ns: word(1), calls: word(2), failed: word(3) }
    }

    /// The device notes which slots' requests it has.
    pub fn set_holds(&self, slots: impl Iterator<Item = SlotId>) {
        let mut words = [0u64; HOLDS_WORDS];
        for slot in slots {
            if let Some(word) = words.get_mut(usize::from(slot.0) / 64) {
                *word |= 1 << (slot.0 % 64);
            }
        }
        for (at, word) in (HOLDS..).zip(words) {
            self.set(at, word);
        }
    }

    /// Whether the device had a slot's request when it last said that it was idle.
    pub fn holds(&self, slot: SlotId) -> bool {
        let word = usize::from(slot.0) / 64;
        word < HOLDS_WORDS && self.get(HOLDS + word) >> (slot.0 % 64) & 1 == 1
    }

    /// The device tells where its time went. The first word is odd while the others are written.
    pub fn set_account(&self, account: &Account) {
        let writing = self.get(ACCOUNT) | 1;
        self.set(ACCOUNT, writing);
        fence(Ordering::Release);
        for (at, word) in (ACCOUNT + 1..).zip(account.words()) {
            self.word(at).store(word, Ordering::Relaxed);
        }
        self.set(ACCOUNT, writing + 1);
    }

    /// Where the device's time went; nothing while that is written, or was when the device died.
    pub fn account(&self) -> Option<Account> {
        for _ in 0..ACCOUNT_TRIES {
            let before = self.get(ACCOUNT);
            let words = std::array::from_fn(|index| self.word(ACCOUNT + 1 + index).load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.word(ACCOUNT).load(Ordering::Relaxed) == before {
                return (before > 0).then(|| Account::from_words(words));
            }
        }
        None
    }

    /// Publishes the checksum over all that was stored for the first two streams.
    pub fn set_digest(&self, digest: [u64; 2]) {
        self.set(DIGEST, digest[0]);
        self.set(DIGEST + 1, digest[1]);
    }

    /// The checksum over all that was stored for the first two streams.
    pub fn digest(&self) -> [u64; 2] {
        [self.get(DIGEST), self.get(DIGEST + 1)]
    }

    /// Notes when a part of an actor's present migration happened.
    pub fn stamp(&self, actor: ActorId, part: Stamp, at: u64) {
        self.word(STAMP + 8 * usize::from(actor.0) + part as usize).store(at, Ordering::Release);
    }

    /// When a part of an actor's present migration happened.
    pub fn stamped(&self, actor: ActorId, part: Stamp) -> u64 {
        self.get(STAMP + 8 * usize::from(actor.0) + part as usize)
    }

    /// Notes that the host decided to move an actor, unless it did before and the actor has not arrived since.
    pub fn decide(&self, actor: ActorId, at: u64) {
        if self.stamped(actor, Stamp::Decided) <= self.stamped(actor, Stamp::Active) {
            self.stamp(actor, Stamp::Decided, at);
        }
    }

    /// The destination served: the migration's times go to the log.
    pub fn log_move(&self, actor: ActorId, to: Side) {
        let part = |p: Stamp| self.stamped(actor, p);
        let index = self.word(MOVES_NEXT).fetch_add(1, Ordering::AcqRel) as usize % MOVE_RECORDS;
        let flags = 1 | u64::from(actor.0) << 8 | (to as u64) << 32 | part(Stamp::Found) << 40;
        let words = [
            part(Stamp::Decided),
            part(Stamp::Routed),
            part(Stamp::Ready),
            part(Stamp::Heard),
            part(Stamp::Active),
            part(Stamp::FirstBegun),
            part(Stamp::FirstServed),
        ];
        for (offset, word) in words.into_iter().enumerate() {
            let at = index as u64 * 64 + 8 + offset as u64 * 8;
            self.moves.word64(at).store(word, Ordering::Relaxed);
        }
        self.moves.word64(index as u64 * 64).store(flags, Ordering::Release);
    }

    /// How many migrations were logged.
    pub fn moves(&self) -> u64 {
        self.get(MOVES_NEXT)
    }

    /// The log of migrations from the `first`-th on, as far as it still holds them.
    pub fn move_log(&self, first: u64) -> Vec<MoveTimes> {
        let next = self.moves();
        let first = first.max(next.saturating_sub(MOVE_RECORDS as u64));
        (first..next).filter_map(|number| self.read_move(number as usize % MOVE_RECORDS)).collect()
    }

    fn read_move(&self, index: usize) -> Option<MoveTimes> {
        let at = |offset: u64| self.moves.word64(index as u64 * 64 + offset * 8).load(Ordering::Acquire);
        let flags = at(0);
        (flags & 1 == 1).then(|| MoveTimes {
            actor: (flags >> 8) as u16,
            to_device: flags >> 32 & 1 == 1,
            mid_request: flags >> 40 & FOUND_MID_REQUEST != 0,
            awaited: flags >> 40 & FOUND_AWAITED != 0,
            asleep: flags >> 40 & FOUND_ASLEEP != 0,
            decided: at(1),
            routed: at(2),
            ready: at(3),
            heard: at(4),
            active: at(5),
            first_begun: at(6),
            first_served: at(7),
        })
    }
}

/// Of [`Stamp::Found`]: the actor was in the middle of a request.
pub const FOUND_MID_REQUEST: u64 = 1 << 0;
/// Of [`Stamp::Found`]: it had something to do at once.
pub const FOUND_AWAITED: u64 = 1 << 1;
/// Of [`Stamp::Found`]: the destination slept when the host decided.
pub const FOUND_ASLEEP: u64 = 1 << 2;

/// The parts of a migration that are stamped while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Stamp {
    /// The host decided.
    Decided = 0,
    /// The source sent what came from then on to the destination.
    Routed = 1,
    /// The checkpoint was ready.
    Ready = 2,
    /// The destination heard of it.
    Heard = 3,
    /// The destination was active.
    Active = 4,
    /// The first chunk at the destination was about to run.
    FirstBegun = 5,
    /// The first chunk at the destination had run.
    FirstServed = 6,
    /// Not a time: what the destination found, in the bits `FOUND_*`.
    Found = 7,
}

#[cfg(test)]
mod tests {
    use osier_pmr::{Backing, ObjectKind, Region};

    use super::*;

    fn control() -> (Region, Control) {
        let region = Region::create(&Backing::Memfd, 2 << 20, [0; 16]).unwrap();
        let object = |name, bytes| region.allocate(name, ObjectKind::STATISTICS, bytes, 4096).unwrap();
        let control = Control::new(object("control", CONTROL_BYTES), object("moves", MOVES_BYTES));
        (region, control)
    }

    /// A policy or a command asks for a move again until the actor is there, every epoch: the move's time counts from
    /// the first of these decisions, and a decision after it arrived is another move's.
    #[test]
    fn a_decision_counts_from_the_first_time_until_the_actor_is_there() {
        const DECIDE: bool = true;
        const ARRIVE: bool = false;
        let (_region, control) = control();
        let steps = [
            (DECIDE, 100, 100),
            (DECIDE, 110, 100),
            (DECIDE, 120, 100),
            (ARRIVE, 125, 100),
            (DECIDE, 300, 300),
            (DECIDE, 310, 300),
            (ARRIVE, 350, 300),
            (DECIDE, 400, 400),
        ];
        for (what, at, decided) in steps {
            if what == DECIDE {
                control.decide(ActorId(1), at);
            } else {
                control.stamp(ActorId(1), Stamp::Active, at);
            }
            assert_eq!(control.stamped(ActorId(1), Stamp::Decided), decided, "at {at}");
        }
        assert_eq!(control.stamped(ActorId(0), Stamp::Decided), 0, "another actor's is its own");
        control.log_move(ActorId(1), Side::Device);
        assert_eq!(control.move_log(0)[0].decided, 400);
    }

    #[test]
    fn an_account_is_read_as_it_was_written_or_not_at_all() {
        let (_region, control) = control();
        assert_eq!(control.account(), None, "none was written");
        for number in 1..4u64 {
            let account = Account::from_words(std::array::from_fn(|word| number * 100 + word as u64));
            control.set_account(&account);
            assert_eq!(control.account(), Some(account));
        }
        // A device that died while it wrote; its successor goes on.
        control.set(ACCOUNT, control.get(ACCOUNT) + 1);
        assert_eq!(control.account(), None);
        control.set_account(&Account::default());
        assert_eq!(control.account(), Some(Account::default()));
    }
}
