//! A thread that resolves the faults of all others, or those of a part of the window: what system calls and unmodified
//! code need.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use osier_device::window::Grant;
use osier_device::window::message::Ask;

use crate::evict::help;
use crate::fault::pause;
use crate::place::Place;
use crate::shared::{ASLEEP, AWAKE, FREEZING, FROZEN, Shared, clock_ns};
use crate::uffd::Trap;
use crate::window::FaultMode;

/// A fault under way.
struct Pending {
    lane: usize,
    page: u64,
    at_ns: u64,
}

/// Resolves faults of a part until the window closes or the device dies.
pub fn run(shared: &Shared, part: usize) {
    let mut traps = [Trap { address: 0, is_store: false, is_protected: false }; 16];
    let mut waiting: Vec<Trap> = Vec::new();
    let mut pending: Vec<Pending> = Vec::new();
    let mut spins = 0;
    let mut place = Place::new();
    let gate = &shared.gates[part];
    while shared.is_live() {
        if pending.is_empty() && is_to_stop(shared, gate) {
            continue;
        }
        place.avoid_device(shared);
        let got = shared.uffd.read(part, &mut traps);
        waiting.extend_from_slice(&traps[..got]);
        let before = pending.len();
        if gate.load(Ordering::Relaxed) == AWAKE {
            begin(shared, &mut waiting, &mut pending);
        }
        let begun = pending.len();
        pending.retain(|fault| !finish(shared, fault));
        if begun > before || pending.len() < begun {
            spins = 0;
            continue;
        }
        if shared.mode == FaultMode::Spinning && pending.is_empty() {
            help(shared, None);
            // Where it shares a processor with the program, that has to run for anything to happen.
            std::thread::yield_now();
        } else if shared.mode == FaultMode::Sleeping && pending.is_empty() {
            sleep(shared, part);
        } else if shared.mode == FaultMode::Sleeping {
            pause(&mut spins);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Stops as long as the window is frozen; whether it was.
fn is_to_stop(shared: &Shared, gate: &AtomicU32) -> bool {
    // Whoever froze the window while this thread slept leaves it so.
    let _ = gate.compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Relaxed);
    if gate.load(Ordering::Acquire) == AWAKE {
        return false;
    }
    let _ = gate.compare_exchange(FREEZING, FROZEN, Ordering::AcqRel, Ordering::Relaxed);
    let mut spins = 0;
    while gate.load(Ordering::Acquire) == FROZEN && shared.is_live() {
        pause(&mut spins);
    }
    true
}

fn begin(shared: &Shared, waiting: &mut Vec<Trap>, pending: &mut Vec<Pending>) {
    while let Some(trap) = waiting.pop() {
        let Some(page) = shared.page_at(trap.address) else { continue };
        if trap.is_protected {
            shared.uffd.allow_stores(shared.address_of(page));
            continue;
        }
        let Some(lane) = shared.take_lane() else {
            waiting.push(trap);
            return;
        };
        let at_ns = clock_ns();
        shared.note_touched(page);
        shared.ask(lane, &Ask { page, is_store: trap.is_store, at_ns, more_max: shared.more_max(page) });
        pending.push(Pending { lane, page, at_ns });
    }
}

/// Maps the page of a fault if it is time; whether it is over.
fn finish(shared: &Shared, fault: &Pending) -> bool {
    let Some(reply) = shared.answer(fault.lane) else { return false };
    match reply.grant {
        Grant::Writable | Grant::Armed => {
            let map_ns = clock_ns();
            if map_ns < reply.due_ns {
                return false;
            }
            if shared.map(fault.page, &reply) {
                shared.delivered(fault.at_ns, &reply, map_ns);
            }
        }
        Grant::Lost | Grant::NoSuchPage => {
            if !shared.uffd.poison(shared.address_of(fault.page)) {
                shared.say("the device cannot read a page, and this kernel cannot say so to the program: it ends");
                std::process::abort();
            }
        }
    }
    shared.give_lane(fault.lane);
    true
}

/// Sleeps until there is a fault, or the window closes.
fn sleep(shared: &Shared, part: usize) {
    // A window that is to be frozen is not slept over.
    if shared.gates[part].compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [entry(shared.uffd.raw(part)), entry(shared.stop.as_raw_fd())];
    // SAFETY: live entries of the stated number.
    unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
}
