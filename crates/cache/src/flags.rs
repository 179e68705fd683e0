//! The one byte of state that a frame has.

use crate::eviction::Recall;

/// Where a frame is in its life, and what is known of its page.
///
/// ```text
///        taken for a page            fill_done
/// Free ───────────────────► Filling ───────────► Resident
///  ▲ ▲                          │ fill_failed       │ victim, evict
///  │ └──────────────────────────┘                   ▼
///  └──────────────────────────────── drained ── Draining (dirty only)
/// ```
///
/// A resident frame whose page leaves for another one at once goes back to `Filling`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u8);

/// See [`Flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Filling,
    Resident,
    Draining,
}

impl Flags {
    pub const FREE: Flags = Flags(0);
    /// The page's bytes are newer than those below the cache.
    pub const DIRTY: Flags = Flags(1 << 2);
    /// At least one pin is on the page.
    pub const PINNED: Flags = Flags(1 << 3);
    /// A prefetch brought the page, and no request has asked for it yet.
    pub const UNUSED: Flags = Flags(1 << 4);
    /// The policy has the frame.
    pub const RULED: Flags = Flags(1 << 5);
    const STATE: u8 = 3;
    const RECALL_SHIFT: u32 = 6;

    #[inline]
    pub fn filling(recall: Recall) -> Self {
        Self(1 | recall.get() << Self::RECALL_SHIFT)
    }

    #[inline]
    pub fn draining() -> Self {
        Self(3)
    }

    #[inline]
    pub fn state(self) -> State {
        match self.0 & Self::STATE {
            0 => State::Free,
            1 => State::Filling,
            2 => State::Resident,
            _ => State::Draining,
        }
    }

    /// The bytes are there; what the policy remembered has done its service.
    #[inline]
    pub fn make_resident(&mut self) {
        self.0 = (self.0 & !Self::STATE & !(3 << Self::RECALL_SHIFT)) | 2;
    }

    #[inline]
    pub fn recall(self) -> Recall {
        Recall::new(self.0 >> Self::RECALL_SHIFT)
    }

    /// For a new policy, which remembers nothing.
    #[inline]
    pub fn forget_recall(&mut self) {
        self.0 &= !(3 << Self::RECALL_SHIFT);
    }

    #[inline]
    pub fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    #[inline]
    pub fn set(&mut self, flag: Flags) {
        self.0 |= flag.0;
    }

    #[inline]
    pub fn clear(&mut self, flag: Flags) {
        self.0 &= !flag.0;
    }
}

const _: () = assert!(size_of::<Flags>() == 1);
