//! The two rings between the domains, with their doorbells.

use osier_domain::{Domain, Kind, Message, Nanos, Side, Step};
use osier_pmr::{Consumer, DOORBELL_BYTES, Doorbell, Object, Producer, Ring, RingError, SharedLines, ring_bytes};

use crate::machine::Turn;

/// Messages taken from a ring in one turn, so that clients, stages and media get their turn too.
const MESSAGES_PER_TURN: usize = 64;
/// Entries of a ring that stays in a processor's first cache.
const RING_ENTRIES_MIN: usize = 256;
/// Messages of migrations that can be under way at once, beside one a slot.
const CONTROL_MESSAGES: usize = 2 * osier_domain::ACTORS_MAX;

/// Bytes of the object that holds both doorbells.
pub const BELLS_BYTES: u64 = 2 * DOORBELL_BYTES;

/// Bytes of a ring's object: room for more messages than can be under way with so many slots, so that a full
/// ring is a bug.
pub fn ring_object_bytes(slots: u16) -> u64 {
    let entries = (usize::from(slots) + CONTROL_MESSAGES).next_power_of_two().max(RING_ENTRIES_MIN);
    ring_bytes(entries) as u64
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
}

impl Link {
    /// Takes the ends of `side` for an epoch. `rings[0]` goes from host to device.
    pub fn open(side: Side, rings: &[Object; 2], bells: &Object, epoch: u64) -> Result<Link, RingError> {
        let ring = |index: usize| Ring::open_generation(lines(&rings[index]), epoch);
        let (out, inward) = match side {
            Side::Host => (0, 1),
            Side::Device => (1, 0),
        };
        Ok(Link {
            tx: ring(out)?.producer(),
            rx: ring(inward)?.consumer(),
            tx_bell: Doorbell::new(bells, out as u64 * DOORBELL_BYTES),
            rx_bell: Doorbell::new(bells, inward as u64 * DOORBELL_BYTES),
            malformed: 0,
            depth_max: 0,
        })
    }

    /// Sends a message; [`Link::ring`] tells the other side of all that were sent.
    fn send(&mut self, message: &Message) {
        self.tx.push(message.encode()).expect("a ring holds more than can be under way");
    }

    /// Sends a message that may be left out when the other side is far behind; whoever wants it asks again.
    pub fn offer(&mut self, message: &Message) {
        if self.tx.free() > self.tx.capacity() / 2 {
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
