//! What sessions over a stream of bytes have in common, whatever protocol they speak: bytes that are not understood
//! yet, what is to be sent, and buffers that are used again.

mod input;
mod outbox;
mod pool;

pub use input::Input;
pub use outbox::{HEAD_BYTES_MAX, Head, Outbox, Part};
pub use pool::Pool;
