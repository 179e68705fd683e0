//! Tests of the page-mapped FTL.

mod amplification;
pub(crate) mod common;
mod model;
