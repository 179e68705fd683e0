//! Conversations by the hundred thousand with a session: what comes back is what the standard says, and nothing that a
//! host sends does more harm than to itself.

mod fuzz;
#[path = "../../../../front/tests/nvme_tcp/wire.rs"]
pub mod wire;
