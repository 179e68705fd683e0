//! Tests of the page-mapped FTL.

mod amplification;
mod common;
mod model;
