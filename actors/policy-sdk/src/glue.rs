//! What [`export!`](crate::export) expands to: the border between the ABI's numbers and [`Policy`].
//!
//! Invariant: an instance is entered by one thread at a time and never from within itself, for no import calls back.

use core::cell::UnsafeCell;

use crate::{Frames, Parameters, Policy, Shape, log};

/// Most events that come at once.
const EVENTS_MAX: usize = 1024;

/// One event, as the host writes it.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
struct Event {
    frame: u32,
    kind: u8,
    recall: u8,
    zero: u16,
    page: u64,
}

const _: () = assert!(size_of::<Event>() == 16);

const INSERTED: u8 = 0;
const TOUCHED: u8 = 1;

/// Where the host puts events. Apart from the policy, because a static of zeros takes no room in the module.
struct Room(UnsafeCell<[Event; EVENTS_MAX]>);

// SAFETY: WebAssembly modules of this ABI have no threads, so nothing is ever shared between two.
unsafe impl Sync for Room {}

static ROOM: Room = Room(UnsafeCell::new([Event { frame: 0, kind: 0, recall: 0, zero: 0, page: 0 }; EVENTS_MAX]));

/// A policy, once the host has made it.
pub struct Guest<P>(UnsafeCell<Option<(P, Shape)>>);

// SAFETY: WebAssembly modules of this ABI have no threads, so nothing is ever shared between two.
unsafe impl<P> Sync for Guest<P> {}

impl<P: Policy> Default for Guest<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Policy> Guest<P> {
    /// No policy yet.
    pub const fn new() -> Guest<P> {
        Guest(UnsafeCell::new(None))
    }

    #[allow(clippy::mut_from_ref, reason = "the host enters once at a time")]
    fn made(&self) -> &mut Option<(P, Shape)> {
        // SAFETY: the host enters an instance once at a time and no import calls back, so this is the only reference.
        unsafe { &mut *self.0.get() }
    }

    /// `osier_policy_new`.
    pub fn make(&self, shape: Shape, seed: u64) -> i32 {
        match P::new(shape, &Parameters::default(), seed) {
            Ok(policy) => {
                *self.made() = Some((policy, shape));
                ROOM.0.get().expose_provenance() as i32
            }
            Err(refusal) => {
                log(refusal);
                -1
            }
        }
    }

    /// `osier_policy_events`.
    pub fn events(&self, count: u32) {
        told(self.made(), count);
    }

    /// `osier_policy_victim`.
    pub fn victim(&self, count: u32, set: u32, recall: u32) -> i32 {
        let victim = told(self.made(), count).victim(set, recall as u8, &Frames::default());
        victim.map_or(-1, u32::cast_signed)
    }

    /// `osier_policy_incoming`.
    pub fn incoming(&self, count: u32, set: u32, page: u64, demanded: u32) -> i32 {
        told(self.made(), count).incoming(set, page, demanded != 0).into()
    }
}

/// The policy, once it has seen the events.
#[inline(always)]
fn told<P: Policy>(made: &mut Option<(P, Shape)>, count: u32) -> &mut P {
    let Some((policy, shape)) = made else { panic!("the host makes a policy before it asks it") };
    // SAFETY: the host writes here between calls alone.
    let events = unsafe { &*ROOM.0.get() };
    for event in &events[..count as usize] {
        let set = shape.set_of(event.frame);
        match event.kind {
            INSERTED => policy.inserted(set, event.frame, event.page, event.recall),
            TOUCHED => policy.touched(set, event.frame),
            _ => policy.removed(set, event.frame),
        }
    }
    policy
}
