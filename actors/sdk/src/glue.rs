//! What [`export!`](crate::export) expands to: the border between the ABI's numbers and [`Actor`].
//!
//! Invariants: an instance is entered by one thread at a time and never from within itself, for no import of the ABI
//! calls back; what a unit was begun with is kept here in linear memory, so that it moves with the actor.
#![cfg_attr(not(target_family = "wasm"), allow(dead_code))]

use core::cell::UnsafeCell;

use crate::{Actor, Chunk, Direction, Failure, Params, Progress, host};

/// An actor in linear memory, with the unit that it is in the middle of.
pub struct Guest<A>(UnsafeCell<Instance<A>>);

struct Instance<A> {
    actor: A,
    direction: Direction,
    /// `input, in_len, output, out_cap` of the unit that was yielded; all zero when there is none.
    unit: [usize; 4],
}

// SAFETY: WebAssembly modules of this ABI have no threads, so nothing is ever shared between two.
#[cfg(target_family = "wasm")]
unsafe impl<A> Sync for Guest<A> {}

impl<A> Guest<A> {
    /// An actor that is in the middle of nothing.
    pub const fn new(actor: A) -> Guest<A> {
        Guest(UnsafeCell::new(Instance { actor, direction: Direction::Forward, unit: [0; 4] }))
    }
}

const NO_UNIT: [usize; 4] = [0; 4];

/// `Done`, `Yielded` or `Failed` as section 2.2 of the ABI encodes them.
pub fn encode(result: Result<Progress, Failure>) -> i64 {
    match result {
        Ok(Progress::Done(length)) => length as i64,
        Ok(Progress::Yielded(consumed)) => -1 - ((consumed as i64) << 8),
        Err(failure) => -2 - ((failure as i64) << 8),
    }
}

/// `osier_init`.
pub fn init<A: Actor>(guest: &Guest<A>) -> i32 {
    // SAFETY: the host enters an instance once at a time and imports do not call back, so this is the only reference.
    let instance = unsafe { &mut *guest.0.get() };
    let mut room = [0u8; Params::BYTES_MAX];
    let length = host::params(&mut room);
    let Some(text) = room.get(..length) else { return -(Failure::Configuration as i32) };
    match instance.actor.init(&Params::new(text)) {
        Ok(()) => 0,
        Err(failure) => -(failure as i32),
    }
}

/// `osier_forward` and `osier_inverse`: what was suspended is void.
pub fn begin<A: Actor>(guest: &Guest<A>, direction: Direction, unit: [usize; 4], budget: u32) -> i64 {
    // SAFETY: as in `init`.
    let instance = unsafe { &mut *guest.0.get() };
    (instance.direction, instance.unit) = (direction, unit);
    work(instance, budget, false)
}

/// `osier_resume`.
pub fn resume<A: Actor>(guest: &Guest<A>, budget: u32) -> i64 {
    // SAFETY: as in `init`.
    let instance = unsafe { &mut *guest.0.get() };
    if instance.unit == NO_UNIT {
        host::log(host::Level::Error, &[b"osier_resume was called with nothing to resume"]);
        return encode(Err(Failure::Other));
    }
    work(instance, budget, true)
}

fn work<A: Actor>(instance: &mut Instance<A>, budget: u32, resumed: bool) -> i64 {
    let [input, in_len, output, out_cap] = instance.unit;
    // SAFETY: sections 2.1 and 2.4 of the ABI: both ranges lie in linear memory, outside what the module itself uses,
    // do not overlap, and stay until the unit is done; the host does not touch them during the call.
    let (input, output) = unsafe {
        (
            core::slice::from_raw_parts(core::ptr::with_exposed_provenance(input), in_len),
            core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(output), out_cap),
        )
    };
    let chunk = Chunk { input, output, budget: budget as usize, resumed };
    let result = match instance.direction {
        Direction::Forward => instance.actor.forward(chunk),
        Direction::Inverse => instance.actor.inverse(chunk),
    };
    if !matches!(result, Ok(Progress::Yielded(_))) {
        instance.unit = NO_UNIT;
    }
    encode(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_encoded_as_the_abi_says() {
        assert_eq!(encode(Ok(Progress::Done(4101))), 4101);
        assert_eq!(encode(Ok(Progress::Yielded(0x1234))), -(1 + (0x1234 << 8)));
        assert_eq!(encode(Err(Failure::Integrity)), -(2 + (3 << 8)));
        assert_eq!(encode(Ok(Progress::Yielded(0xffff_ffff))), -(1 + (0xffff_ffff << 8)));
    }
}
