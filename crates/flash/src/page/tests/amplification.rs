//! Write amplification against the closed form.

use super::common::*;
use crate::Nanos;
use crate::array::Shape;
use crate::page::space::SuperblockState;
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

/// More is to be free than there can be: every policy stops when no candidate has garbage left.
#[test]
fn idle_collection_ends_when_nothing_is_left_to_gain() {
    for policy in [VictimPolicy::Greedy, VictimPolicy::Fifo, VictimPolicy::CostBenefit, VictimPolicy::Choices(3)] {
        let logical = 36;
        let mut ftl_params = params(logical);
        ftl_params.collection.policy = policy;
        ftl_params.collection.free_background = 8;
        let mut ftl = PageFtl::new(&config(ONE_DIE, ftl_params), 1).unwrap();
        let (mut now, mut rng) = (Nanos::ZERO, Rng::new(1));
        for write_number in 0..400 {
            let lpn = if write_number < logical { write_number } else { rng.below(logical) };
            write(&mut ftl, &mut now, lpn, 0);
        }
        let mut events = 0;
        while let Some(at) = ftl.next_event() {
            ftl.advance(at);
            events += 1;
            assert!(events < 10_000, "{policy:?} goes on for ever");
        }
        let closed = ftl.superblocks.iter().filter(|superblock| superblock.state == SuperblockState::Closed);
        let garbage: u32 = closed.map(|superblock| ftl.sizes.superblock_units - superblock.valid).sum();
        assert_eq!(garbage, 0, "{policy:?} stopped too early");
        ftl.audit().unwrap();
    }
}
