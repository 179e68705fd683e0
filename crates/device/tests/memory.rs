//! What a large device that is hardly used takes of the machine's memory. A test of its own in its process, so that
//! nothing else takes any meanwhile.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use osier_device::model::{Command, Model, Op};
use osier_device::{Nanos, Profile};

/// Most bytes that may be taken: what has the size of a superblock or of the cache, and not what has the size of a
/// page.
const TAKEN_MAX: u64 = 256 << 20;

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn maps_of_gigabytes_take_no_memory_until_they_are_used() {
    let config = Profile::built_in("smartssd").unwrap().model(None).unwrap();
    let before = resident_bytes();
    let mut model = Model::new(&config, 1).unwrap();
    let mut completed = Vec::new();
    for id in 0..1_000 {
        let op = if id % 2 == 0 { Op::Write } else { Op::Read };
        // Over all of the device.
        let address = id * 9_973 % 1_000 * (config.capacity_bytes() / 1_000 / 4096 * 4096);
        model.submit(Nanos(id * 100_000), Command { id, op, address, bytes: 4096, tenant: 0 }).unwrap();
    }
    while model.under_way() > 0 {
        model.poll_next(Nanos::MAX, &mut completed);
    }
    let taken = resident_bytes().saturating_sub(before);
    assert!(model.map_bytes() > 7 << 30, "{} bytes of maps", model.map_bytes());
    assert!(taken < TAKEN_MAX, "{} bytes of maps, {taken} of memory", model.map_bytes());
}
