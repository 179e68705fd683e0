//! Known bugs that a test can plant, to prove that its checks would find them.

/// A bug that somebody could have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) enum Bug {
    /// Requests and writes run over boundaries of 4 KiB.
    CrossPages,
    /// Completions end anywhere, not on the read completion boundary.
    IgnoreReadCompletionBoundary,
    /// Payload is counted to the byte, where the wire carries dwords.
    CountSingleBytes,
    /// Addresses below 4 GiB get the long header.
    AlwaysLongHeaders,
    /// Byte enables cost nothing in flit mode.
    ForgetByteEnables,
    /// A flit's tail is used again by a packet that comes after the flit has left.
    JoinDepartedFlits,
    /// Data goes into header slots.
    DataInHeaderSlot,
    /// A flit takes as many messages as it has slots.
    IgnoreMessageLimits,
    /// A gap on the wire is given away twice.
    KeepUsedGaps,
    /// A read does not wait for a free tag.
    IgnoreTags,
    /// A posted write takes a gap before another that was given earlier.
    PassPostedWrites,
}

impl Bug {
    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Bug; 11] = [
        Bug::CrossPages,
        Bug::IgnoreReadCompletionBoundary,
        Bug::CountSingleBytes,
        Bug::AlwaysLongHeaders,
        Bug::ForgetByteEnables,
        Bug::JoinDepartedFlits,
        Bug::DataInHeaderSlot,
        Bug::IgnoreMessageLimits,
        Bug::KeepUsedGaps,
        Bug::IgnoreTags,
        Bug::PassPostedWrites,
    ];
}

/// The bug that is planted, if any; outside of tests there is none, and the compiler knows it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Planted {
    #[cfg(test)]
    bug: Option<Bug>,
}

impl Planted {
    #[cfg(test)]
    pub(crate) fn bug(bug: Bug) -> Planted {
        Planted { bug: Some(bug) }
    }

    #[cfg(test)]
    pub(crate) fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    #[cfg(not(test))]
    #[inline]
    pub(crate) const fn has(self, _: Bug) -> bool {
        false
    }
}
