//! What every test program shares that may have to leave something out.

use std::fmt::Display;
use std::io::Write;

/// Says that something is not tested here, and why.
pub fn skipped(why: impl Display) {
    // Not by `println` or `eprintln`, which a test that passes does not show.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}
