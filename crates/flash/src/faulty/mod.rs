//! Media in memory, with the faults that the translation layers claim to survive: what simulations and tests
//! run on.
//!
//! - [`NandArray`]: pages of bytes, under the extent FTL, and [`Bench`], the owner's loop around both;
//! - [`SlotArray`]: slots of units, under the page-mapped FTL.
//!
//! Each draws what a fault leaves from its own seed, and panics when an FTL breaks a rule of NAND: that is a bug
//! of the FTL.

mod bench;
mod pages;
mod slots;

pub use bench::{Bench, BlockRead, extent};
pub use pages::NandArray;
pub use slots::{SlotArray, Tear};
