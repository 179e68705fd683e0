//! Bugs that the tests plant, to prove that they would be found.

crate::planted_bugs! {
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
