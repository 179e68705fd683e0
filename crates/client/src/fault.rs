//! A fault from its beginning to the page being mapped, in the thread that faulted.

use std::time::Duration;

use osier_device::window::Grant;
use osier_device::window::message::Ask;

use crate::evict::help;
use crate::shared::{Shared, clock_ns};

/// Spins before the processor is given to others, about 20 microseconds: an answer takes one or two.
const SPINS: u32 = 2_000;
/// A wait that is longer sleeps, but for its end, which is spun: sleeps end late by up to that much.
const SLEEP_MARGIN_NS: u64 = 80_000;

/// With so much time left until a page may be mapped, other pages are unmapped meanwhile.
const HELP_NS: u64 = 25_000;

/// Pages that are mapped with one that faulted, at most: enough for the largest degree that the published emulator
/// prefetches by, twice.
pub const MORE_MAX: u8 = 16;

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The access can be tried again.
    Again,
    /// The device has lost the page, or has none there.
    Lost,
}

/// Waits until the monotonic clock has come so far.
pub fn wait_until(due_ns: u64) {
    loop {
        let left = due_ns.saturating_sub(clock_ns());
        if left == 0 {
            return;
        }
        if left > 2 * SLEEP_MARGIN_NS {
            sleep(Duration::from_nanos(left - SLEEP_MARGIN_NS));
        } else {
            std::hint::spin_loop();
        }
    }
}

fn sleep(time: Duration) {
    let time = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    // SAFETY: the time is a live value; an early end means that the caller looks again.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

/// Gives way a little more the longer a wait lasts.
pub fn pause(spins: &mut u32) {
    *spins = spins.saturating_add(1);
    if *spins < SPINS {
        std::hint::spin_loop();
    } else if *spins < 2 * SPINS {
        std::thread::yield_now();
    } else {
        sleep(Duration::from_micros(20));
    }
}

/// Brings a page in for the thread that touched it. May be called in a signal handler.
pub fn resolve(shared: &Shared, page: u64, is_store: bool) -> Ended {
    let at_ns = clock_ns();
    let mut spins = 0;
    let lane = loop {
        if let Some(lane) = shared.take_lane() {
            break lane;
        }
        if !shared.is_live() {
            return Ended::Again;
        }
        pause(&mut spins);
    };
    shared.ask(lane, &Ask { page, is_store, at_ns, more_max: shared.more_max(page) });
    let mut spins = 0;
    let reply = loop {
        if let Some(reply) = shared.answer(lane) {
            break reply;
        }
        if !shared.is_live() {
            // The lane is left as it is: the device is dead, and nobody will use it again.
            return Ended::Again;
        }
        pause(&mut spins);
    };
    let mut ended = Ended::Again;
    match reply.grant {
        Grant::Writable | Grant::Armed => {
            if reply.due_ns.saturating_sub(clock_ns()) > HELP_NS {
                help(shared, Some(page));
            }
            wait_until(reply.due_ns);
            let map_ns = clock_ns();
            if shared.map(page, &reply) {
                shared.delivered(at_ns, &reply, map_ns);
            }
        }
        Grant::Lost | Grant::NoSuchPage => ended = Ended::Lost,
    }
    shared.give_lane(lane);
    help(shared, None);
    ended
}
