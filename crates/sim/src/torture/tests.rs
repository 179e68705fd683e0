//! Many seeds without a flaw, and for every flaw a seed that shows it.

use super::*;

fn told(seeds: std::ops::Range<u64>, params: &TortureParams) -> Story {
    let mut all = Story::default();
    for seed in seeds {
        match run(seed, params) {
            Ok(story) => all.add(&story),
            Err(broken) => panic!("{broken}"),
        }
    }
    all
}

#[test]
fn without_deaths_moves_lose_repeat_and_reorder_nothing() {
    let story = told(0..12, &TortureParams { deaths: false, ..TortureParams::default() });
    assert!(story.moves > 1_000 && story.moves_mid_request > 100, "{story:?}");
    assert!(story.blocks_compared > 5_000 && story.failed > 20, "{story:?}");
}

#[test]
fn deaths_at_every_step_are_survived() {
    let story = told(1_000..1_060, &TortureParams::default());
    for step in Step::ALL {
        assert!(story.deaths_at.contains_key(&step), "nothing died at {step:?}: {story:?}");
    }
    assert!(story.deaths.iter().all(|count| *count > 10), "{story:?}");
    assert!(story.resolutions.iter().all(|count| *count > 0), "kept, back and forward: {story:?}");
}

#[test]
fn the_same_seed_tells_the_same_story() {
    let params = TortureParams::default();
    for seed in 2_000..2_003 {
        assert_eq!(run(seed, &params), run(seed, &params));
    }
}

#[test]
fn every_planted_flaw_is_found() {
    for flaw in Flaw::ALL {
        let params = TortureParams { flaw: Some(flaw), ..TortureParams::default() };
        let found = (0..60).find(|seed| run(*seed, &params).is_err());
        if let Some(seed) = found {
            told(seed..seed + 1, &TortureParams::default());
        }
        assert!(found.is_some(), "{flaw:?} was not found");
    }
}
