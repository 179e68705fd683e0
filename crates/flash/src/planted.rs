//! Known bugs that a test can plant, to prove that its checks would find them.

/// A bug that somebody could have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(any(test, feature = "planted")), allow(dead_code))]
pub enum Bug {
    /// The old copy is erased before the media was synced.
    EraseBeforeSync,
    /// Dead extents are erased although what killed them is not yet programmed.
    EraseBeforeKillerIsDurable,
    /// Collection does not carry trim records along.
    DropTrimRecords,
    /// Recovery takes a payload for whole without looking at its checksum.
    AcceptTornPayloads,
    /// Recovery lets the extent that it meets last win, not the newest.
    IgnoreSequence,
    /// A torn record that recovery left behind is trusted once something later is synced.
    TrustBesideSuspects,
    /// Of an extent and its copy the original stands, even if its superblock is half erased.
    OriginalStands,
    /// Of an extent and its copy the copy stands, even if that leaves nothing to collect into.
    CopyStands,
    /// A superblock is erased while a read of it is under way.
    EraseUnderReader,
    /// A write that comes again after a crash is held to the limit of new ones.
    ReplayCountsAsNew,
    /// Space counts as free once an append has killed what is there, though a crash may bring that back.
    ForgetShadows,
}

impl Bug {
    /// All of them.
    #[cfg(any(test, feature = "planted"))]
    pub const ALL: [Bug; 11] = [
        Bug::EraseBeforeSync,
        Bug::EraseBeforeKillerIsDurable,
        Bug::DropTrimRecords,
        Bug::AcceptTornPayloads,
        Bug::IgnoreSequence,
        Bug::TrustBesideSuspects,
        Bug::OriginalStands,
        Bug::CopyStands,
        Bug::EraseUnderReader,
        Bug::ReplayCountsAsNew,
        Bug::ForgetShadows,
    ];
}
