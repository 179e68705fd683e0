//! What the tests of this module share: a client's side of the protocol written a second time from its
//! document, and a generator of whole conversations.

mod fuzz;
mod grammar;
mod property;
pub mod replies;
#[path = "../../../../nvme/src/stream/testing.rs"]
pub mod stream;

use osier_nvme::stream::Duplex;
