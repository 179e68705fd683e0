//! The eviction policies, one a file. `docs/how-to-cache-policy.md` adds one.

mod arc;
mod belady;
mod clock;
mod fifo;
mod lru;
mod random;
mod s3_fifo;
mod sieve;

pub use arc::Arc;
pub use belady::{Belady, OPTIMUM, next_uses};
pub use clock::Clock;
pub use fifo::{Fifo, Lifo};
pub use lru::{Lru, Mru};
pub use random::Random;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
