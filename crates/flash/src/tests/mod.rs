//! Tests of the whole FTL over a modelled NAND array.

mod basics;
mod bench;
mod crash;
mod damage;
