//! A lock that whoever forks holds across it, and that the child can let go.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
pub struct Locked<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is used by whoever holds the lock, one thread at a time.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    pub const fn new(value: T) -> Locked<T> {
        Locked { is_held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) {
        while self.is_held.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Whoever holds it may wait for a page.
            std::thread::yield_now();
        }
    }

    pub fn unlock(&self) {
        self.is_held.store(false, Ordering::Release);
    }

    /// Does something with the value alone.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.lock();
        // SAFETY: the lock is held, and nothing in here asks for it again.
        let result = f(unsafe { &mut *self.value.get() });
        self.unlock();
        result
    }

    /// The same, for whoever holds the lock.
    ///
    /// # Safety
    /// The calling thread has locked it.
    pub unsafe fn with_held<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the caller's promise.
        f(unsafe { &mut *self.value.get() })
    }
}
