//! Flits that carry packets: a stream of bytes cut into equal parts.

/// What was put on the wire for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Placed {
    /// Flits that were begun; the last of them is open. With none, everything went into the open one.
    pub(crate) flits: u64,
    /// Bytes of flits that are now filled.
    pub(crate) filled_bytes: u64,
}

/// The packets of one direction. Packets follow each other without gap and run over into the next flit.
/// What is left of a flit that departs is filled with NOP packets (Section 2.2.1.2).
#[derive(Clone, Debug, Default)]
pub(crate) struct PacketFlits {
    /// Bytes that the open flit still takes.
    room_bytes: u64,
}

impl PacketFlits {
    /// Appends `bytes` of packets, to the open flit first if they may `join` it.
    #[inline]
    pub(crate) fn place(&mut self, bytes: u64, flit_capacity: u64, join: bool) -> Placed {
        let joined = if join { bytes.min(self.room_bytes) } else { 0 };
        let rest = bytes - joined;
        // Most packets need no more than one, and a division is the dearest thing here.
        let flits = if rest <= flit_capacity { u64::from(rest > 0) } else { rest.div_ceil(flit_capacity) };
        self.room_bytes = if flits > 0 { flits * flit_capacity - rest } else { self.room_bytes - joined };
        Placed { flits, filled_bytes: bytes }
    }

    /// Whether the open flit takes anything more.
    pub(crate) fn has_room(&self) -> bool {
        self.room_bytes > 0
    }
}
