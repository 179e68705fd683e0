//! Write an eviction policy for Osier's DRAM cache in Rust.
//!
//! A policy implements [`Policy`] and names itself to [`export!`]:
//!
//! ```ignore
//! #![cfg_attr(target_family = "wasm", no_std)]
//! use osier_policy_sdk::{Frames, Parameters, Policy, Shape, Vec, vec};
//!
//! struct Lifo(Vec<Vec<u32>>);
//!
//! impl Policy for Lifo {
//!     fn new(shape: Shape, _: &Parameters, _seed: u64) -> Result<Self, &'static str> {
//!         Ok(Lifo(vec![Vec::new(); shape.sets as usize]))
//!     }
//!     fn inserted(&mut self, set: u32, frame: u32, _page: u64, _recall: u8) {
//!         self.0[set as usize].push(frame);
//!     }
//!     fn victim(&mut self, set: u32, _recall: u8, _frames: &Frames) -> Option<u32> {
//!         self.0[set as usize].pop()
//!     }
//!     fn removed(&mut self, set: u32, frame: u32) {
//!         self.0[set as usize].retain(|known| *known != frame);
//!     }
//! }
//!
//! osier_policy_sdk::export!(Lifo);
//! ```
//!
//! `docs/abi-cache-policy.md` says what each call means, `docs/how-to-cache-policy.md` goes through it step by step,
//! and `actors/policies/clean-first` is there to be copied. Compiled for anything but WebAssembly a policy is a plain
//! type, so its own tests are plain `cargo test`.
//!
//! In a module memory is never given back: make what is needed in [`Policy::new`], and let nothing grow after it.
#![cfg_attr(target_family = "wasm", no_std)]

extern crate alloc;

#[cfg(target_family = "wasm")]
mod heap;
mod host;

#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod glue;

pub use alloc::boxed::Box;
pub use alloc::collections::VecDeque;
pub use alloc::vec;
pub use alloc::vec::Vec;

pub use host::{Frames, Parameters, log};

/// The version of the ABI that modules built with this crate speak.
pub const POLICY_ABI_VERSION: i32 = 1;

/// The frames that a policy rules over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of sets; 1 is fully associative.
    pub sets: u32,
    /// Frames of a set. Set `s` has the frames `s * ways` to `s * ways + ways - 1`.
    pub ways: u32,
    /// Pages that a set holds once it is full: `ways` less the frames that are kept free.
    pub pages_per_set: u32,
}

impl Shape {
    /// All frames.
    pub fn frames(&self) -> u32 {
        self.sets * self.ways
    }

    /// The set of a frame.
    pub fn set_of(&self, frame: u32) -> u32 {
        if self.sets == 1 { 0 } else { frame / self.ways }
    }
}

/// Decides which page leaves. Works in each set by itself; the same calls must give the same answers.
pub trait Policy: Sized {
    /// A policy with no page. `seed` is for those that draw numbers.
    ///
    /// # Errors
    /// A text refuses the configuration, and is shown to the user.
    fn new(shape: Shape, parameters: &Parameters, seed: u64) -> Result<Self, &'static str>;

    /// `page` is not in the cache and is about to come in: wanted by a request if `demanded`, else by a prefetch. What
    /// the policy remembers of it, 0 to 3, comes back in `victim` and `inserted`. Called only if it is exported:
    /// `export!(Name; incoming)`.
    fn incoming(&mut self, set: u32, page: u64, demanded: bool) -> u8 {
        let _ = (set, page, demanded);
        0
    }

    /// `page` is now in `frame`, which the policy is given.
    fn inserted(&mut self, set: u32, frame: u32, page: u64, recall: u8);

    /// A page that the policy has was used.
    fn touched(&mut self, set: u32, frame: u32) {
        let _ = (set, frame);
    }

    /// Names the frame of `set` whose page leaves, and gives it up; nothing if it has none there.
    fn victim(&mut self, set: u32, recall: u8, frames: &Frames) -> Option<u32>;

    /// `frame` leaves the policy's hands for another reason: its page was pinned or evicted by command.
    fn removed(&mut self, set: u32, frame: u32);
}

/// Exports a policy. Add `; incoming` if it wants to hear of pages before they come in.
#[macro_export]
macro_rules! export {
    ($policy:ty $(; $what:ident)?) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            static POLICY: $crate::glue::Guest<$policy> = $crate::glue::Guest::new();

            #[unsafe(no_mangle)]
            extern "C" fn osier_policy_abi() -> i32 {
                $crate::POLICY_ABI_VERSION
            }

            #[unsafe(no_mangle)]
            extern "C" fn osier_policy_new(sets: u32, ways: u32, pages_per_set: u32, seed: u64) -> i32 {
                POLICY.make($crate::Shape { sets, ways, pages_per_set }, seed)
            }

            #[unsafe(no_mangle)]
            extern "C" fn osier_policy_events(count: u32) {
                POLICY.events(count);
            }

            #[unsafe(no_mangle)]
            extern "C" fn osier_policy_victim(count: u32, set: u32, recall: u32) -> i32 {
                POLICY.victim(count, set, recall)
            }

            $($crate::export!(@ $what);)?
        };
    };
    (@ incoming) => {
        #[unsafe(no_mangle)]
        extern "C" fn osier_policy_incoming(count: u32, set: u32, page: u64, demanded: u32) -> i32 {
            POLICY.incoming(count, set, page, demanded)
        }
    };
}

/// Says where, so that the host can; then traps.
#[cfg(target_family = "wasm")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    if let Some(location) = info.location() {
        host::log_panic(location.file(), location.line());
    }
    core::arch::wasm32::unreachable()
}
