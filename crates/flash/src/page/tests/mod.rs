//! Tests of the page-mapped FTL.

mod amplification;
mod common;
mod crash;
mod model;
mod sequences;
