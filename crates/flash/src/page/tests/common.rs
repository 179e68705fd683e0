//! Configurations and drivers that the tests share.

use crate::Nanos;
use crate::array::*;
use crate::page::*;

/// Datasheet-like times of a TLC part (`docs/flash.md` has the sources).
pub fn timing() -> ArrayTiming {
    ArrayTiming {
        read_ns: vec![40_000, 50_000, 60_000],
        program_ns: vec![200_000, 400_000, 600_000],
        erase_ns: 2_000_000,
        channel_bytes_per_second: 1_200_000_000,
        multi_plane: true,
        cache_read: false,
        cache_program: false,
        reads_first: true,
        reads_first_max: 100,
        suspend: Suspend { program: true, erase: true, suspend_ns: 5_000, resume_ns: 5_000, times_max: 10 },
    }
}

pub fn params(logical_units: u64) -> PageFtlParams {
    PageFtlParams {
        logical_units,
        spare_blocks_per_plane: 0,
        streams: Streams::Separate,
        slots_per_die_max: 4,
        collection: Collection {
            policy: VictimPolicy::Greedy,
            free_min: 1,
            free_foreground: 2,
            free_background: 2,
            preemptible: true,
            moves_max: 16,
        },
        wear: WearLevelling { dynamic: true, spread_max: 0 },
        checkpoint_superblocks: 0,
        map_cache_pages: 0,
    }
}

pub fn config(shape: Shape, ftl: PageFtlParams) -> PageFtlConfig {
    let timing = timing();
    let errors = ErrorParams::none(timing.page_types());
    PageFtlConfig { shape, order: "PCWD".parse().unwrap(), timing, errors, ftl }
}

/// One die with one plane: nothing but the log.
pub const ONE_DIE: Shape = Shape {
    channels: 1,
    chips_per_channel: 1,
    dies_per_chip: 1,
    planes_per_die: 1,
    blocks_per_plane: 16,
    pages_per_block: 4,
    page_bytes: 4096,
};

/// Writes one unit and waits until it is taken.
pub fn write<M: PageMedia>(ftl: &mut PageFtl<M>, now: &mut Nanos, lpn: u64, payload: u64) {
    let outcome = ftl.write(*now, lpn, 1, payload).unwrap();
    wait(ftl, now, outcome);
}

/// Moves time on until a request is done.
pub fn wait<M: PageMedia>(ftl: &mut PageFtl<M>, now: &mut Nanos, outcome: Outcome) -> Done {
    let id = match outcome {
        Outcome::Done(done) => return done,
        Outcome::Waiting(id) => id,
    };
    let mut completed = Vec::new();
    for _ in 0..1_000_000 {
        *now = ftl.next_event().expect("a request that waits is waited for").max(*now);
        ftl.poll(*now, &mut completed);
        if let Some(found) = completed.iter().find(|completed| completed.id == id) {
            return found.done;
        }
    }
    panic!("{id:?} waits for ever: {:?}", ftl.stats());
}
