//! Bugs that the tests plant, to prove that they would be found.

crate::planted_bugs! {
    /// Whatever a host answers is right.
    BelieveResponse,
    /// A message of another transaction is taken.
    AnyTransaction,
    /// What both have in common by the exchange goes into no response.
    ForgetKey,
    /// A host that says that it is content is authenticated.
    BelieveSuccess,
    /// A host may ask what it was asked itself.
    AnswerReflection,
    /// A public value that everybody knows the power of is taken.
    AnyPublic,
}
