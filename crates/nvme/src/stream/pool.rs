//! Buffers that are used again, so that a connection in steady state neither asks the allocator for memory nor clears
//! any.

/// Buffers kept, and bytes in them.
const BUFFERS_MAX: usize = 256;
const BYTES_MAX: usize = 8 << 20;
/// How many of those used last are looked at for one that is large enough.
const LOOKED_AT_MAX: usize = 8;

/// The spare buffers of one connection. What is in them is of the same export, and is overwritten before it is sent.
#[derive(Default)]
pub struct Pool {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Pool {
    /// A buffer of `length` bytes, whatever is in them.
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        let first = self.buffers.len().saturating_sub(LOOKED_AT_MAX);
        let Some(found) = self.buffers[first..].iter().rposition(|buffer| buffer.capacity() >= length) else {
            return vec![0; length];
        };
        let mut buffer = self.buffers.swap_remove(first + found);
        self.bytes -= buffer.capacity();
        buffer.resize(length, 0);
        buffer
    }

    /// Keeps a buffer for later, or lets it go when there are enough.
    pub fn give(&mut self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity > 0 && self.buffers.len() < BUFFERS_MAX && self.bytes + capacity <= BYTES_MAX {
            self.bytes += capacity;
            self.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_and_what_is_kept_is_bounded() {
        let mut pool = Pool::default();
        let buffer = pool.take(4096);
        let address = buffer.as_ptr();
        pool.give(buffer);
        let again = pool.take(4096);
        assert_eq!(again.as_ptr(), address);
        for _ in 0..3 * BUFFERS_MAX {
            pool.give(vec![0; BYTES_MAX / 16]);
        }
        assert_eq!(pool.buffers.len(), 16);
        assert_eq!(pool.take(100).len(), 100);
    }
}
