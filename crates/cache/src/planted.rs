//! Known bugs that a test can plant, to prove that its checks would find them.

/// A bug that somebody could have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(any(test, feature = "planted")), allow(dead_code))]
pub enum Bug {
    /// A dirty page leaves as a clean one.
    LoseDirty,
    /// A write that is merged with a fill does not make the page dirty.
    ForgetMergedWrite,
    /// A page comes in again before what left dirty is drained.
    ReadWhileDraining,
    /// A pinned page stays in the policy's hands.
    EvictPinned,
    /// A page that comes in is not merged with its lines in the log.
    SkipLogMerge,
    /// A page is compacted while it is on its way into the cache, or the other way round.
    FillWhileCompacting,
}

impl Bug {
    /// All of them.
    #[cfg(any(test, feature = "planted"))]
    pub const ALL: [Bug; 6] = [
        Bug::LoseDirty,
        Bug::ForgetMergedWrite,
        Bug::ReadWhileDraining,
        Bug::EvictPinned,
        Bug::SkipLogMerge,
        Bug::FillWhileCompacting,
    ];
}
