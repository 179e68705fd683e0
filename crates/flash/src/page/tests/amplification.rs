//! Write amplification against the closed form.

use super::common::*;
use crate::Nanos;
use crate::array::Shape;
use crate::page::*;
use crate::rng::Rng;

const SHAPE: Shape = Shape { blocks_per_plane: 512, pages_per_block: 64, ..ONE_DIE };

/// `A = a / (a + W0(-a e^-a))`, where `a` is the usable over the logical capacity and `W0` is Lambert's
/// function: the oldest superblock was overwritten `a / A` times the logical capacity ago.
fn closed_form(a: f64) -> f64 {
    // With v = -W0(-a e^-a) / a, its valid share, that is v = e^(-a (1 - v)) and A = 1 / (1 - v).
    let mut valid = 0.5_f64;
    for _ in 0..10_000 {
        valid = (-a * (1.0 - valid)).exp();
    }
    1.0 / (1.0 - valid)
}

/// Write amplification in the steady state, measured after everything was overwritten several times.
fn simulate(policy: VictimPolicy, streams: Streams, over_provisioning_percent: u64, seed: u64) -> (f64, f64) {
    let superblocks = 512 - 4;
    let logical = superblocks * 64 * 100 / (100 + over_provisioning_percent);
    let mut ftl_params = params(logical);
    ftl_params.streams = streams;
    ftl_params.collection.policy = policy;
    // As many superblocks are free, however fast the host is.
    ftl_params.collection.free_min = 2;
    let mut ftl = PageFtl::new(&config(SHAPE, ftl_params), seed).unwrap();
    let (mut now, mut rng) = (Nanos::ZERO, Rng::new(seed));
    for lpn in 0..logical {
        write(&mut ftl, &mut now, lpn, 0);
    }
    let mut overwrite = |count: u64| {
        let before = ftl.stats();
        for _ in 0..count {
            write(&mut ftl, &mut now, rng.below(logical), 0);
        }
        let after = ftl.stats();
        (after.bytes_programmed - before.bytes_programmed) as f64 / (after.bytes_written - before.bytes_written) as f64
    };
    overwrite(3 * logical);
    let found = overwrite(5 * logical);
    ftl.audit().unwrap();
    let usable = f64::from(ftl.superblocks_usable()) * 64.0;
    (found, closed_form(usable / logical as f64))
}

#[test]
fn fifo_cleaning_of_one_log_has_the_write_amplification_of_the_closed_form() {
    for percent in [7, 15, 28, 50] {
        let (found, exact) = simulate(VictimPolicy::Fifo, Streams::Shared, percent, 1);
        let (greedy, _) = simulate(VictimPolicy::Greedy, Streams::Shared, percent, 1);
        assert!((found / exact - 1.0).abs() < 0.02, "{percent}%: {found} against {exact}");
        assert!(greedy <= found, "{percent}%: greedy {greedy}, FIFO {found}");
    }
}
