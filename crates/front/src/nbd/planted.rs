//! Bugs that the tests plant, to prove that they would be found.

osier_nvme::planted_bugs! {
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
    /// Options are answered before TLS is there.
    ServeBeforeTls,
    /// A request is answered to whoever asked first.
    AnswerFirst,
}
