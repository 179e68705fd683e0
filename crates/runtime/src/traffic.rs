//! What clients asked for, counted in shared words: the host's domain writes them, and anybody who may open the device
//! reads them while traffic runs.
//!
//! The counts begin with the session and go on over a death of the host's domain; a client's begin when it arrives.

use std::sync::atomic::Ordering;

use osier_pmr::Object;

/// Upper bounds of the classes of latency, in nanoseconds; one more class has what took longer.
pub const LATENCY_BOUNDS_NS: [u64; 22] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];
/// Classes of latency.
pub const LATENCY_CLASSES: usize = LATENCY_BOUNDS_NS.len() + 1;
/// Clients that are told of; a device has no more.
pub const CLIENTS_MAX: usize = 256;
/// Bytes of a client's name for itself.
pub const NAME_BYTES: usize = osier_nvme::local::NAME_BYTES_MAX;

/// Words of a kind: commands, failed ones, bytes, nanoseconds, and the classes.
const KIND_WORDS: usize = 4 + LATENCY_CLASSES;
const CLIENTS: usize = KIND_WORDS * Kind::ALL.len();
/// Words of a client: its number (0 is nobody), commands, bytes, and its name.
const CLIENT_WORDS: usize = 3 + NAME_BYTES / 8;
/// Bytes of the object.
pub const TRAFFIC_BYTES: u64 = ((CLIENTS + CLIENTS_MAX * CLIENT_WORDS) * 8) as u64;

/// What is told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Read, Compare, Verify and Get LBA Status; of the last two no bytes go over.
    Read,
    /// Write.
    Write,
    /// Write Zeroes, Dataset Management and Format: no bytes go over.
    Deallocate,
    /// Flush.
    Flush,
}

impl Kind {
    /// In the order of their words.
    pub const ALL: [Kind; 4] = [Kind::Read, Kind::Write, Kind::Deallocate, Kind::Flush];

    /// As metrics spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Deallocate => "deallocate",
            Kind::Flush => "flush",
        }
    }
}

/// What was counted of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Commands that ended, failed ones too.
    pub commands: u64,
    /// Those that failed.
    pub failed: u64,
    /// Bytes of data of those that did not.
    pub bytes: u64,
    /// From fetch to completion, all together, in nanoseconds.
    pub time_ns: u64,
    /// How many took how long ([`LATENCY_BOUNDS_NS`]).
    pub classes: [u64; LATENCY_CLASSES],
}

/// A client that is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attendant {
    /// Its number; no other of this life of the host's domain has it.
    pub id: u64,
    /// What it calls itself.
    pub name: String,
    /// Commands that ended.
    pub commands: u64,
    /// Bytes of their data.
    pub bytes: u64,
}

/// A handle on the words.
pub struct Traffic(Object);

impl Traffic {
    /// A handle on an object of [`TRAFFIC_BYTES`].
    pub fn new(words: Object) -> Traffic {
        assert!(words.len() >= TRAFFIC_BYTES);
        Traffic(words)
    }

    fn get(&self, at: usize) -> u64 {
        self.0.word64(at as u64 * 8).load(Ordering::Relaxed)
    }

    fn set(&self, at: usize, value: u64) {
        self.0.word64(at as u64 * 8).store(value, Ordering::Relaxed);
    }

    /// One writer: no other may have added in between.
    fn add(&self, at: usize, value: u64) {
        self.set(at, self.get(at).wrapping_add(value));
    }

    /// A command has ended, after so long. Of one that failed the bytes do not count.
    pub fn ended(&self, kind: Kind, has_failed: bool, bytes: u64, took_ns: u64) {
        let first = kind as usize * KIND_WORDS;
        self.add(first, 1);
        if has_failed {
            self.add(first + 1, 1);
        } else {
            self.add(first + 2, bytes);
        }
        self.add(first + 3, took_ns);
        self.add(first + 4 + LATENCY_BOUNDS_NS.partition_point(|bound| *bound < took_ns), 1);
    }

    /// What was counted of a kind. Single words are whole; they may be of two moments while traffic runs.
    #[must_use]
    pub fn counts(&self, kind: Kind) -> Counts {
        let first = kind as usize * KIND_WORDS;
        Counts {
            commands: self.get(first),
            failed: self.get(first + 1),
            bytes: self.get(first + 2),
            time_ns: self.get(first + 3),
            classes: std::array::from_fn(|class| self.get(first + 4 + class)),
        }
    }

    /// A client has a place; those beyond [`CLIENTS_MAX`] are not told of.
    pub fn arrived(&self, place: usize, id: u64, name: &str) {
        let Some(first) = client_at(place) else { return };
        let mut bytes = [0; NAME_BYTES];
        let cut = name.floor_char_boundary(NAME_BYTES);
        bytes[..cut].copy_from_slice(&name.as_bytes()[..cut]);
        for (at, word) in (first + 3..).zip(bytes.as_chunks::<8>().0) {
            self.set(at, u64::from_le_bytes(*word));
        }
        self.set(first + 1, 0);
        self.set(first + 2, 0);
        // Last, so that a reader that finds it finds the rest.
        self.0.word64(first as u64 * 8).store(id, Ordering::Release);
    }

    /// A client's command has ended.
    pub fn served(&self, place: usize, bytes: u64) {
        if let Some(first) = client_at(place) {
            self.add(first + 1, 1);
            self.add(first + 2, bytes);
        }
    }

    /// A place is nobody's.
    pub fn left(&self, place: usize) {
        if let Some(first) = client_at(place) {
            self.set(first, 0);
        }
    }

    /// Nobody is attached: the host's domain begins.
    pub fn clear_clients(&self) {
        (0..CLIENTS_MAX).for_each(|place| self.left(place));
    }

    /// Who is attached.
    #[must_use]
    pub fn clients(&self) -> Vec<Attendant> {
        (0..CLIENTS_MAX).filter_map(|place| self.client(place)).collect()
    }

    fn client(&self, place: usize) -> Option<Attendant> {
        let first = client_at(place)?;
        let id = self.0.word64(first as u64 * 8).load(Ordering::Acquire);
        if id == 0 {
            return None;
        }
        let bytes: Vec<u8> = (first + 3..first + CLIENT_WORDS).flat_map(|at| self.get(at).to_le_bytes()).collect();
        let name = String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned();
        Some(Attendant { id, name, commands: self.get(first + 1), bytes: self.get(first + 2) })
    }
}

fn client_at(place: usize) -> Option<usize> {
    (place < CLIENTS_MAX).then(|| CLIENTS + place * CLIENT_WORDS)
}

#[cfg(test)]
mod tests {
    use osier_pmr::{Backing, ObjectKind, Region};

    use super::*;

    fn traffic() -> Traffic {
        let region = Region::create(&Backing::Memfd, 1 << 18, [0; 16]).expect("a region");
        Traffic::new(region.allocate("traffic", ObjectKind::STATISTICS, TRAFFIC_BYTES, 4096).expect("room"))
    }

    #[test]
    fn a_command_counts_for_its_kind_and_in_the_class_of_its_time() {
        let traffic = traffic();
        traffic.ended(Kind::Write, false, 8192, 1_000);
        traffic.ended(Kind::Write, false, 4096, 1_001);
        traffic.ended(Kind::Write, true, 4096, 20_000_000_000);
        let counts = traffic.counts(Kind::Write);
        assert_eq!((counts.commands, counts.failed, counts.bytes), (3, 1, 12288));
        assert_eq!(counts.time_ns, 20_000_002_001);
        assert_eq!((counts.classes[0], counts.classes[1], counts.classes[LATENCY_CLASSES - 1]), (1, 1, 1));
        assert_eq!(counts.classes.iter().sum::<u64>(), counts.commands);
        for other in [Kind::Read, Kind::Deallocate, Kind::Flush] {
            assert_eq!(traffic.counts(other).commands, 0);
        }
    }

    #[test]
    fn a_place_is_a_clients_until_it_leaves() {
        let traffic = traffic();
        traffic.arrived(0, 7, "fio 1234");
        traffic.arrived(255, 8, &"ä".repeat(40));
        traffic.arrived(256, 9, "one too many");
        traffic.served(255, 4096);
        let clients = traffic.clients();
        assert_eq!(clients.iter().map(|client| client.id).collect::<Vec<_>>(), [7, 8]);
        assert_eq!((clients[0].name.as_str(), clients[0].commands), ("fio 1234", 0));
        assert_eq!((clients[1].name.as_str(), clients[1].bytes), ("ä".repeat(24).as_str(), 4096));
        traffic.left(0);
        traffic.arrived(255, 10, "next");
        let clients = traffic.clients();
        assert_eq!(clients, [Attendant { id: 10, name: "next".into(), commands: 0, bytes: 0 }]);
        traffic.clear_clients();
        assert!(traffic.clients().is_empty());
    }
}
