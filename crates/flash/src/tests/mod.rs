//! Tests of the whole FTL over a modelled NAND array.

mod basics;
mod bench;
mod nand_array;
mod rng;
