//! On which processors the window's own threads run: not on the device's, which would stop serving meanwhile.
//!
//! On two processors they then share one with the program. That is where a handler belongs: the thread that faulted
//! waits anyway, and a wake-up from one processor to another takes tens of microseconds in a virtual machine.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use osier_device::window::message::PROCESSOR_AT;

use crate::shared::Shared;

/// The processors of the calling thread, whose own this is.
pub struct Place {
    allowed: Option<libc::cpu_set_t>,
    avoided: u64,
}

impl Place {
    pub fn new() -> Place {
        let mut allowed = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: the pointer is to a live, writable value of the stated size; of its bits any are valid.
        let allowed = unsafe {
            let done = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), allowed.as_mut_ptr()) == 0;
            done.then(|| allowed.assume_init())
        };
        Place { allowed, avoided: 0 }
    }

    /// Leaves the device's processor, if it has moved and there is another one.
    pub fn avoid_device(&mut self, shared: &Shared) {
        let processor = shared.words.word64(PROCESSOR_AT).load(Ordering::Relaxed);
        let Some(mut set) = self.allowed.filter(|_| processor != self.avoided) else { return };
        self.avoided = processor;
        let Some(device) = usize::try_from(processor).ok().and_then(|processor| processor.checked_sub(1)) else {
            return;
        };
        if device >= libc::CPU_SETSIZE as usize {
            return;
        }
        // SAFETY: plain calls with a live value, and a processor that it has room for. A refusal costs time alone.
        unsafe {
            libc::CPU_CLR(device, &mut set);
            if libc::CPU_COUNT(&set) > 0 {
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
            }
        }
    }
}
