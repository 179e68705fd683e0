//! Bugs that the tests plant, one at a time, to prove that they would be found.

/// A bug that somebody could have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Data with a wrong digest are taken.
    BelieveData,
    /// A header with a wrong digest is taken.
    BelieveHeader,
    /// The data of a command that is refused are taken for PDUs.
    KeepRefusedData,
    /// Data may begin anywhere.
    AnyOffset,
    /// Data with another tag are taken.
    AnyTag,
    /// A digest goes over the data of one piece alone.
    DigestOnePiece,
    /// More commands are taken than the queue has entries.
    TakeWithoutBound,
    /// A read ends with its data although the host wants to hear of the head.
    AlwaysSucceed,
}

#[cfg(test)]
impl Bug {
    pub const ALL: [Bug; 8] = [
        Bug::BelieveData,
        Bug::BelieveHeader,
        Bug::KeepRefusedData,
        Bug::AnyOffset,
        Bug::AnyTag,
        Bug::DigestOnePiece,
        Bug::TakeWithoutBound,
        Bug::AlwaysSucceed,
    ];
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in this thread, in place of the one before.
#[cfg(test)]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether a bug is planted.
#[cfg(test)]
pub fn has(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// No bug is.
#[cfg(not(test))]
pub const fn has(_: Bug) -> bool {
    false
}
