//! Bugs that the tests plant, one at a time, to prove that they would be found.

/// A bug that somebody could have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A range may reach one byte beyond the end.
    ReachBeyondEnd,
    /// The payload of a write that is refused is taken for requests.
    KeepRefusedPayload,
    /// A write is refused before its payload has come.
    AnswerEarly,
    /// What follows a hole is said to lie where the hole does.
    MisplaceHole,
    /// A read that is to come in one piece comes in several.
    CutUncut,
    /// More requests are taken than were agreed on.
    TakeWithoutBound,
    /// The bytes after a write that ends inside a block are lost.
    LoseTail,
    /// A patch does not wait for its turn.
    PatchAtOnce,
    /// A patch does not wait for writes that only count themselves.
    IgnoreCounted,
    /// A request is answered to whoever asked first.
    AnswerFirst,
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
