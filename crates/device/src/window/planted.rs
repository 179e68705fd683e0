//! Known bugs that a test can plant, to prove that its checks would find them.

/// A bug that somebody could have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(any(test, feature = "planted")), allow(dead_code))]
pub enum Bug {
    /// A page that a mapper found dirty leaves as a clean one.
    ForgetDirty,
    /// Of several mappers only the last to acknowledge says whether a page is dirty.
    LastMapperDecides,
    /// A page has left when the first of its mappers has acknowledged.
    LeaveAtFirstAck,
    /// The pages of a mapper that died are taken for clean.
    DeadMappersPagesAreClean,
    /// A page is answered before what was in its frame has left.
    AnswerBeforeLeft,
    /// A page that is written to the flash takes the bytes of the write before.
    KeepOldCopy,
    /// A damaged page of the flash is handed out.
    ReadDamaged,
    /// A page that the flash refused comes back with its older bytes.
    ForgetRefused,
    /// A page is mapped with one that faulted while it is still on its way.
    AheadTooEarly,
    /// A page that the store has no room for is taken for saved.
    ForgetUnsaved,
    /// What was stored to a page before it was drawn for a sample is forgotten.
    ForgetSampledDirty,
    /// A page that was drawn is granted to who has not yet acknowledged that it is unmapped.
    GrantBeforeUnmapped,
    /// A page whose mapping vanished is armed anew, which hides what was stored to it.
    ArmAgain,
    /// A command goes through all its pages before anything else is done.
    RangeInOneGo,
    /// What a mapper had pinned stays pinned when it has gone.
    KeepPinsOfTheGone,
    /// A fault waits for its frame however long a stopped mapper keeps it.
    AwaitTheSilent,
}

impl Bug {
    /// All of them.
    #[cfg(any(test, feature = "planted"))]
    pub const ALL: [Bug; 16] = [
        Bug::ForgetDirty,
        Bug::LastMapperDecides,
        Bug::LeaveAtFirstAck,
        Bug::DeadMappersPagesAreClean,
        Bug::AnswerBeforeLeft,
        Bug::KeepOldCopy,
        Bug::ReadDamaged,
        Bug::ForgetRefused,
        Bug::AheadTooEarly,
        Bug::ForgetUnsaved,
        Bug::ForgetSampledDirty,
        Bug::GrantBeforeUnmapped,
        Bug::ArmAgain,
        Bug::RangeInOneGo,
        Bug::KeepPinsOfTheGone,
        Bug::AwaitTheSilent,
    ];
}
