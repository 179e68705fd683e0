//! The command line and the daemon.
fn main() {}
