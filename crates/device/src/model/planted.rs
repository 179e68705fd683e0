//! Known bugs that a test can plant, to prove that its checks would find them.

/// A bug that somebody could have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(any(test, feature = "planted")), allow(dead_code))]
pub enum Bug {
    /// A page that leaves dirty is not programmed.
    ForgetDrain,
    /// A request that is merged with a fill ends before the fill.
    MergedEndsEarly,
    /// Sensing is counted twice.
    SenseTwice,
    /// A frame takes new bytes before what was in it is safe.
    FillBeforeDrain,
    /// A flush does not write the dirty pages of the cache.
    FlushWithoutCache,
    /// A flush does not wait for programs that wait.
    FlushWithoutWaiting,
    /// A trimmed page that is dirty is still programmed.
    TrimKeepsDirty,
    /// A block read around the cache does not look for a dirty page.
    ReadPastDirty,
    /// A write-through is only to the cache.
    ForgetWriteThrough,
    /// The completion of a command is not sent over the link.
    CompletionWithoutLink,
}

impl Bug {
    /// All of them.
    #[cfg(any(test, feature = "planted"))]
    pub const ALL: [Bug; 10] = [
        Bug::ForgetDrain,
        Bug::MergedEndsEarly,
        Bug::SenseTwice,
        Bug::FillBeforeDrain,
        Bug::FlushWithoutCache,
        Bug::FlushWithoutWaiting,
        Bug::TrimKeepsDirty,
        Bug::ReadPastDirty,
        Bug::ForgetWriteThrough,
        Bug::CompletionWithoutLink,
    ];
}
