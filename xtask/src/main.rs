//! Source checks and other chores of the project.
fn main() {}
