//! How it becomes known which pages were stored to, by what the kernel has for it.
//!
//! A page that was mapped for loads is protected against stores. The first store takes the protection off, and when
//! the page is unmapped the kernel leaves a mark in its place if it is still on. The device reads the marks. So the
//! protection itself is the note: no store can come before it, and none can be lost between a note and a store.

use osier_device::window::message::Marks;

/// What takes the protection off a page at its first store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreTracking {
    /// The kernel: nobody hears of it (Linux 6.7).
    Asynchronous,
    /// Whoever resolves faults, of which such a store is one (Linux 6.4, x86-64).
    Faults,
    /// The same where the kernel protects a page only after it has mapped it (Linux 5.19, x86-64). What another thread
    /// stores in between leaves the mark; so the device compares the bytes of a page that has one with the flash's.
    FaultsLate,
    /// Nothing: every page that leaves counts as dirty.
    Nothing,
}

impl StoreTracking {
    /// From the best on.
    pub(crate) const ALL: [StoreTracking; 4] =
        [StoreTracking::Asynchronous, StoreTracking::Faults, StoreTracking::FaultsLate, StoreTracking::Nothing];

    /// Whether a store to a protected page is a fault.
    pub(crate) fn faults(self) -> bool {
        matches!(self, StoreTracking::Faults | StoreTracking::FaultsLate)
    }

    /// What the device is told.
    pub(crate) fn marks(self) -> Marks {
        match self {
            StoreTracking::Asynchronous => Marks::Scanned,
            StoreTracking::Faults => Marks::Read,
            StoreTracking::FaultsLate => Marks::ReadAndCompared,
            StoreTracking::Nothing => Marks::None,
        }
    }

    /// What it needs, and since when Linux has it.
    pub(crate) fn needs(self) -> (&'static str, &'static str) {
        match self {
            StoreTracking::Asynchronous => ("asynchronous write protection of shared memory", "6.7"),
            StoreTracking::Faults => ("pages that are mapped write-protected in one call", "6.4 on x86-64"),
            StoreTracking::FaultsLate => ("write protection of shared memory", "5.19 on x86-64"),
            StoreTracking::Nothing => ("nothing", "5.14"),
        }
    }
}
