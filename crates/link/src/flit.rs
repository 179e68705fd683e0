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

/// Flits that so many bytes fill, the last of them perhaps in part.
#[inline]
pub(crate) fn flits_of(bytes: u64, flit_capacity: u64) -> u64 {
    // Most packets need no more than one, and a division is the dearest thing here.
    if bytes <= flit_capacity { u64::from(bytes > 0) } else { bytes.div_ceil(flit_capacity) }
}

impl PacketFlits {
    /// New flits were filled, and the last of them still takes so much.
    #[inline]
    pub(crate) fn begin(&mut self, room_bytes: u64) {
        self.room_bytes = room_bytes;
    }

    /// Puts `bytes` of packets into the open flit, if it takes all of them; says whether it did.
    #[inline]
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.room_bytes;
        if fits {
            self.room_bytes -= bytes;
        }
        fits
    }

    /// Appends `bytes` of packets to the open flit, and what it does not take to new ones, which are counted.
    pub(crate) fn join(&mut self, bytes: u64, flit_capacity: u64) -> u64 {
        let joined = bytes.min(self.room_bytes);
        let rest = bytes - joined;
        let flits = flits_of(rest, flit_capacity);
        self.room_bytes = if flits > 0 { flits * flit_capacity - rest } else { self.room_bytes - joined };
        flits
    }

    /// Whether the open flit takes anything more.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.room_bytes > 0
    }
}
