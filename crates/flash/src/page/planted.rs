//! Known bugs that a test can plant, to prove that its checks would find them.

/// A bug that somebody could have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(any(test, feature = "planted")), allow(dead_code))]
pub enum PageBug {
    /// A flush is answered before the open slots are programmed.
    FlushWithoutOpenSlots,
    /// A flush is answered when its programs were queued.
    FlushAnsweredEarly,
    /// A flush does not wait for trims.
    FlushWithoutTrims,
    /// A victim is erased before its copies are programmed.
    EraseBeforeCopies,
    /// A victim is erased before what killed its units is on the media.
    EraseBeforeKillers,
    /// Collection leaves the last unit of each slot behind.
    MoveOneUnitShort,
    /// Collection moves units that are dead, too.
    MoveDeadUnits,
    /// A checkpoint is sealed before the writes that it maps are programmed.
    SealBeforeWrites,
    /// A checkpoint does not carry the trims since it began.
    SealWithoutTrims,
    /// Recovery takes the older of two whole checkpoints.
    StaleCheckpoint,
    /// Recovery believes a checkpoint without its root.
    CheckpointWithoutRoot,
    /// Recovery lets the copy that it meets last win, not the newest.
    IgnoreSequence,
    /// Recovery does not read superblocks that were open when the checkpoint began.
    ScanWithoutOpen,
    /// Recovery starts one slot too late in superblocks that were open when the checkpoint began.
    ScanOneSlotLate,
    /// Sequence numbers start anew after recovery.
    SequenceRestarts,
    /// The superblock after the victim is erased.
    EraseWrongVictim,
    /// An erase goes to the stripe after the one that was meant.
    EraseNextStripe,
    /// A trim is not put on record.
    ForgetTrim,
    /// Bytes are returned although the code could not correct them.
    ReturnUncorrectable,
    /// A copy of a unit that cannot be corrected passes as good.
    MoveForgetsLoss,
    /// After the death of a die no checkpoint says so.
    ForgetDeath,
    /// Recovery goes on in a superblock of which nothing is valid, though its erase may have begun.
    ReopenEmpty,
    /// Of an original and its copy recovery takes the one in the younger superblock, whoever wrote it.
    OriginalStands,
    /// A slot behind one that failed counts as programmed before that one is programmed again.
    OvertakeFailed,
    /// Recovery reads only the first copy of what a checkpoint area holds.
    FirstCopyOnly,
    /// Both copies of what a checkpoint area holds lie on one die.
    CopiesOnOneDie,
    /// Recovery forgets the blocks that are on record as bad.
    ForgetBadBlocks,
    /// Recovery does not look which spare blocks hold pages.
    ForgetStandIns,
    /// A checkpoint during whose root a die died does not count, though recovery takes it, and no other follows where
    /// there is no room for two copies.
    UnsealedRoot,
    /// A checkpoint area is erased while a note for it is in flight.
    EraseUnderNotes,
    /// Recovery goes on in a superblock of which slots may lie on a dead die.
    ReopenBesideDeath,
}

impl PageBug {
    /// All of them.
    #[cfg(any(test, feature = "planted"))]
    pub const ALL: [PageBug; 31] = [
        PageBug::FlushWithoutOpenSlots,
        PageBug::FlushAnsweredEarly,
        PageBug::FlushWithoutTrims,
        PageBug::EraseBeforeCopies,
        PageBug::EraseBeforeKillers,
        PageBug::MoveOneUnitShort,
        PageBug::MoveDeadUnits,
        PageBug::SealBeforeWrites,
        PageBug::SealWithoutTrims,
        PageBug::StaleCheckpoint,
        PageBug::CheckpointWithoutRoot,
        PageBug::IgnoreSequence,
        PageBug::ScanWithoutOpen,
        PageBug::ScanOneSlotLate,
        PageBug::SequenceRestarts,
        PageBug::EraseWrongVictim,
        PageBug::EraseNextStripe,
        PageBug::ForgetTrim,
        PageBug::ReturnUncorrectable,
        PageBug::MoveForgetsLoss,
        PageBug::ForgetDeath,
        PageBug::ReopenEmpty,
        PageBug::OriginalStands,
        PageBug::OvertakeFailed,
        PageBug::FirstCopyOnly,
        PageBug::CopiesOnOneDie,
        PageBug::ForgetBadBlocks,
        PageBug::ForgetStandIns,
        PageBug::UnsealedRoot,
        PageBug::EraseUnderNotes,
        PageBug::ReopenBesideDeath,
    ];
}
