//! The two rings between the domains, with their doorbells.
//!
//! Invariant: a ring always has room for what a domain has to send. At once there are in it, or taken out and not yet
//! told of by the consumer:
//!
//! - one message a slot: a request is in one place at a time;
//! - two an actor: `Prepare` and `Adopt`, or `Refuse`. The next migration of an actor in the same direction begins
//!   after the one before was heard of, because the other side has to have the actor to give it back;
//! - less than a quarter of the ring that was taken out ([`Consumer`] tells of it then);
//! - requests to move an actor, which [`Link::offer`] leaves out where they would take what the others need.

use osier_domain::{Domain, Kind, Message, Nanos, Side, Step};
use osier_pmr::{Consumer, DOORBELL_BYTES, Doorbell, Object, Producer, Ring, RingError, SharedLines, ring_bytes};

use crate::machine::Turn;

/// Messages taken from a ring in one turn, so that clients, stages and media get their turn too.
const MESSAGES_PER_TURN: usize = 64;
/// Entries of a ring that stays in a processor's first cache.
const RING_ENTRIES_MIN: usize = 256;
/// Messages of one actor's migration that can be under way in one direction.
const MESSAGES_PER_ACTOR: usize = 2;
/// The part of a ring that a consumer may have taken out without telling the producer.
const UNTOLD_PARTS: usize = 4;

/// Bytes of the object that holds both doorbells.
pub const BELLS_BYTES: u64 = 2 * DOORBELL_BYTES;

/// Messages that have to be sent and can be under way in one direction at once.
fn reserved(slots: u16, actors: usize) -> usize {
    usize::from(slots) + MESSAGES_PER_ACTOR * actors
}

/// Bytes of a ring's object. Half of the ring is for what has to be sent, a quarter for what is not yet told of, a
/// quarter for what is offered.
pub fn ring_object_bytes(slots: u16, actors: usize) -> u64 {
    let entries = (2 * reserved(slots, actors)).next_power_of_two().max(RING_ENTRIES_MIN);
    ring_bytes(entries)
}

fn lines(object: &Object) -> SharedLines {
    SharedLines::new(object, 0, (object.len() / 64) as usize)
}

/// Empties both rings for a new epoch; by the supervisor, while both domains are parked or dead.
pub fn format(rings: &[Object; 2], bells: &Object, epoch: u64) -> Result<(), RingError> {
    for ring in rings {
        Ring::format(lines(ring), epoch)?;
    }
    for index in 0..2 {
        Doorbell::new(bells, index * DOORBELL_BYTES).forget_sleepers();
    }
    Ok(())
}

/// One domain's ends.
pub struct Link {
    tx: Producer<SharedLines>,
    rx: Consumer<SharedLines>,
    tx_bell: Doorbell,
    rx_bell: Doorbell,
    /// Entries that were no messages; each is a defect of the other side.
    malformed: u64,
    depth_max: u64,
    /// Entries of the ring that may be taken when something is only offered.
    offered_below: usize,
}

impl Link {
    /// Takes the ends of `side` for an epoch, of rings made for so many slots and actors. `rings[0]` goes from host
    /// to device.
    pub fn open(
        side: Side,
        rings: &[Object; 2],
        bells: &Object,
        epoch: u64,
        (slots, actors): (u16, usize),
    ) -> Result<Link, RingError> {
        let ring = |index: usize| Ring::open_generation(lines(&rings[index]), epoch);
        let (out, inward) = match side {
            Side::Host => (0, 1),
            Side::Device => (1, 0),
        };
        let tx = ring(out)?.producer();
        let kept = reserved(slots, actors) + tx.capacity() / UNTOLD_PARTS;
        let offered_below = tx.capacity().checked_sub(kept);
        Ok(Link {
            offered_below: offered_below.expect("a ring is made for its slots and actors"),
            tx,
            rx: ring(inward)?.consumer(),
            tx_bell: Doorbell::new(bells, out as u64 * DOORBELL_BYTES),
            rx_bell: Doorbell::new(bells, inward as u64 * DOORBELL_BYTES),
            malformed: 0,
            depth_max: 0,
        })
    }

    /// Sends a message; [`Link::ring`] tells the other side of all that were sent.
    fn send(&mut self, message: &Message) {
        self.tx.push(message.encode()).expect("a ring has room for what has to be sent");
    }

    /// Sends a message that may be left out when the other side is far behind; whoever wants it asks again.
    pub fn offer(&mut self, message: &Message) {
        if self.tx.capacity() - self.tx.free() < self.offered_below {
            self.send(message);
        }
    }

    /// Messages in, at most one chunk of each actor, messages out; whether there was anything to do.
    pub fn exchange(&mut self, now: Nanos, domain: &mut Domain, turn: &mut Turn) -> bool {
        let heard = self.deliver(domain, turn);
        // An actor that was told to leave has left; it does not wait for the others' chunks.
        let sent = heard && self.dispatch(domain);
        let ran = domain.poll(now, turn);
        self.dispatch(domain) || ran || sent || heard
    }

    /// Gives the domain the messages that have come, at most one turn's, up to one that moves an actor: it is sent on
    /// or served before the rest is read. Whether there were any.
    fn deliver(&mut self, domain: &mut Domain, turn: &mut Turn) -> bool {
        for heard in 0..MESSAGES_PER_TURN {
            let Some(message) = self.receive() else {
                if heard == 0 {
                    self.publish();
                }
                return heard > 0;
            };
            if matches!(message.kind, Kind::Complete(_)) {
                turn.machine.passed(Step::CompletionHeard, None);
            }
            domain.receive(message, turn);
            if matches!(message.kind, Kind::Adopt { .. } | Kind::MoveRequest { .. }) {
                break;
            }
        }
        true
    }

    /// Sends what the domain has to say; whether there was anything.
    pub fn dispatch(&mut self, domain: &mut Domain) -> bool {
        let mut sent = false;
        while let Some(message) = domain.take_outgoing() {
            self.send(&message);
            sent = true;
        }
        if sent {
            self.ring();
        }
        sent
    }

    /// Rings the other side's bell.
    pub fn ring(&self) {
        self.tx_bell.ring();
    }

    /// Whether the other side sleeps in the kernel.
    pub fn other_sleeps(&self) -> bool {
        self.tx_bell.sleepers() > 0
    }

    /// The bell that the other side rings.
    pub fn bell(&self) -> &Doorbell {
        &self.rx_bell
    }

    /// The next message, copied once and checked.
    fn receive(&mut self) -> Option<Message> {
        loop {
            let entry = self.rx.pop()?;
            match Message::decode(&entry) {
                Some(message) => return Some(message),
                None => {
                    self.malformed += 1;
                    if self.malformed.is_power_of_two() {
                        tracing::error!(
                            entries = self.malformed,
                            "the ring held what is no message; the request that it was will not end: restart the device"
                        );
                    }
                }
            }
        }
    }

    /// Whether a message waits.
    pub fn has_message(&self) -> bool {
        self.rx.has_entry()
    }

    /// Tells the other side of the room that was made.
    fn publish(&mut self) {
        self.rx.publish();
    }

    /// How many messages lie in the ring to the other side.
    pub fn depth(&mut self) -> u64 {
        let depth = (self.tx.capacity() - self.tx.free()) as u64;
        self.depth_max = self.depth_max.max(depth);
        depth
    }

    /// The most that lay there when it was asked.
    pub fn depth_max(&self) -> u64 {
        self.depth_max
    }
}

#[cfg(test)]
mod tests {
    use osier_domain::message::Request;
    use osier_domain::{ActorId, Descriptor, Opcode, SlotId, Status, StreamId, Tag};
    use osier_pmr::{Backing, ObjectKind, Region};

    use super::*;

    /// The smallest ring, one that the slots fill, the largest, and one where the actors are most of it.
    const MADE_FOR: [(u16, usize); 4] = [(1, 1), (120, 4), (256, osier_domain::ACTORS_MAX), (1, 64)];

    fn message(slot: u16) -> Message {
        let descriptor = Descriptor {
            opcode: Opcode::Flush,
            unit_blocks: 1,
            flags: 0,
            tag: Tag::NONE,
            slot: SlotId(slot),
            units: 0,
            blocks: 0,
            slba: 0,
            output_bytes: 0,
            state_handle: 0,
        };
        let (stream, status) = (StreamId(0), Status::SUCCESS);
        let request = Request { descriptor, stream, sequence: 1, visited: 0, status, fetched: false, output: 0 };
        Message { kind: Kind::Request(request) }
    }

    #[test]
    fn moves_that_are_asked_for_again_and_again_leave_room_for_what_has_to_be_sent() {
        for (slots, actors) in MADE_FOR {
            let region = Region::create(&Backing::Memfd, 4 << 20, [1; 16]).unwrap();
            let bytes = ring_object_bytes(slots, actors);
            let rings = ["a", "b"].map(|name| region.allocate(name, ObjectKind::RING, bytes, 4096).unwrap());
            let bells = region.allocate("bells", ObjectKind::DOORBELL, BELLS_BYTES, 4096).unwrap();
            format(&rings, &bells, 1).unwrap();
            let ends = |side| Link::open(side, &rings, &bells, 1, (slots, actors)).unwrap();
            let (mut host, mut device) = (ends(Side::Host), ends(Side::Device));
            // The consumer has taken as much as it can without telling.
            let untold = host.tx.capacity() / UNTOLD_PARTS - 1;
            for _ in 0..untold {
                host.send(&message(0));
                assert!(device.receive().is_some());
            }
            let ask = Message { kind: Kind::MoveRequest { actor: ActorId(0), to: Side::Host } };
            (0..10_000).for_each(|_| host.offer(&ask));
            assert!((0..reserved(slots, actors)).all(|_| host.tx.push(message(0).encode()).is_ok()), "{slots} slots");
            // And one is let through once the device has caught up.
            while device.receive().is_some() {}
            host.offer(&ask);
            assert!(device.receive().is_some(), "{slots} slots, {actors} actors");
        }
    }
}
