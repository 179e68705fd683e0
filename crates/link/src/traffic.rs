//! What crossed the link: packets, payload bytes and wire bytes, by direction and by purpose.

use std::ops::{Add, AddAssign};

/// Which way something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the host to the device.
    Downstream,
    /// From the device to the host.
    Upstream,
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::Downstream, Direction::Upstream];

    /// The other one.
    #[inline]
    #[must_use]
    pub const fn opposite(self) -> Direction {
        match self {
            Direction::Downstream => Direction::Upstream,
            Direction::Upstream => Direction::Downstream,
        }
    }
}

/// What bytes were for. A read's requests count with its completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Submission queue tail and completion queue head doorbells.
    Doorbell,
    /// Other registers and memory of the device that the host reads or writes.
    Register,
    /// Submission queue entries.
    CommandFetch,
    /// Lists of physical region pages.
    PrpList,
    /// Segments of scatter gather lists.
    SglSegment,
    /// Data of commands.
    Data,
    /// Completion queue entries.
    Completion,
    /// Message signalled interrupts.
    Interrupt,
    /// Lines that the host reads by CXL.mem.
    CxlRead,
    /// Lines that the host writes by CXL.mem.
    CxlWrite,
    /// Acknowledgements and credits that travel as packets of their own.
    Dllp,
    /// Of flits: headers, checksums, error correction, and slots and bytes left empty.
    Flit,
}

/// How many kinds there are.
const KINDS: usize = 12;

impl Kind {
    /// All of them.
    pub const ALL: [Kind; KINDS] = [
        Kind::Doorbell,
        Kind::Register,
        Kind::CommandFetch,
        Kind::PrpList,
        Kind::SglSegment,
        Kind::Data,
        Kind::Completion,
        Kind::Interrupt,
        Kind::CxlRead,
        Kind::CxlWrite,
        Kind::Dllp,
        Kind::Flit,
    ];

    /// As written in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Doorbell => "doorbell",
            Kind::Register => "register",
            Kind::CommandFetch => "command fetch",
            Kind::PrpList => "PRP list",
            Kind::SglSegment => "SGL segment",
            Kind::Data => "data",
            Kind::Completion => "completion",
            Kind::Interrupt => "interrupt",
            Kind::CxlRead => "CXL.mem read",
            Kind::CxlWrite => "CXL.mem write",
            Kind::Dllp => "flow control",
            Kind::Flit => "flit overhead",
        }
    }
}

/// A number of packets and their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Count {
    /// Transaction layer packets, data link layer packets, CXL.mem messages, or flits.
    pub packets: u64,
    /// Bytes of data in them.
    pub payload_bytes: u64,
    /// Bytes that they take on the wire.
    pub wire_bytes: u64,
}

impl AddAssign for Count {
    #[inline]
    fn add_assign(&mut self, other: Count) {
        self.packets += other.packets;
        self.payload_bytes += other.payload_bytes;
        self.wire_bytes += other.wire_bytes;
    }
}

impl Add for Count {
    type Output = Count;

    fn add(mut self, other: Count) -> Count {
        self += other;
        self
    }
}

/// Counts by direction and kind. Counts are exact and only ever added, so that parts sum to the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Traffic {
    counts: [[Count; KINDS]; 2],
}

impl Traffic {
    /// What one kind took in one direction.
    #[must_use]
    pub fn count(&self, direction: Direction, kind: Kind) -> Count {
        self.counts[direction as usize][kind as usize]
    }

    /// What one kind took in both directions.
    #[must_use]
    pub fn kind(&self, kind: Kind) -> Count {
        self.count(Direction::Downstream, kind) + self.count(Direction::Upstream, kind)
    }

    /// What all kinds took in one direction.
    #[must_use]
    pub fn direction(&self, direction: Direction) -> Count {
        self.counts[direction as usize].iter().fold(Count::default(), |sum, count| sum + *count)
    }

    /// Everything.
    #[must_use]
    pub fn total(&self) -> Count {
        self.direction(Direction::Downstream) + self.direction(Direction::Upstream)
    }

    /// Payload bytes as published measurements of traffic count them: all but interrupts, which go to the
    /// interrupt controller and not to memory. BandSlim's figures fit this count (`docs/link.md`).
    #[must_use]
    pub fn counter_bytes(&self) -> u64 {
        self.total().payload_bytes - self.kind(Kind::Interrupt).payload_bytes
    }

    #[inline]
    pub(crate) fn add(&mut self, direction: Direction, kind: Kind, count: &Count) {
        self.counts[direction as usize][kind as usize] += *count;
    }

    /// Adds the flits of a direction, of so many bytes together: what they have beside what was put into them is
    /// overhead. Everything that was counted is in them.
    pub(crate) fn add_flits(&mut self, direction: Direction, flits: u64, bytes: u64) {
        let filled_bytes = self.direction(direction).wire_bytes;
        let overhead = Count { packets: flits, payload_bytes: 0, wire_bytes: bytes - filled_bytes };
        self.add(direction, Kind::Flit, &overhead);
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        for direction in Direction::ALL {
            for kind in Kind::ALL {
                self.add(direction, kind, &other.count(direction, kind));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_place_of_its_own() {
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
        assert_eq!(Direction::ALL.map(|direction| direction as usize), [0, 1]);
    }
}
