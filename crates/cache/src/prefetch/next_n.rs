//! The pages that follow.

use super::{DEGREE_MAX, Named, Prefetch, Seen};
use crate::eviction::{Parameter, Parameters};

/// After a miss, the next pages.
#[derive(Debug)]
pub struct NextN {
    degree: u64,
    tagged: bool,
}

impl Named for NextN {
    const NAME: &'static str = "next-n";
    const SUMMARY: &'static str = "after a miss, the next pages";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter {
            name: "degree",
            default: 8,
            min: 1,
            max: DEGREE_MAX,
            about: "how many pages (8 is the most that Cylon tries, Figures 10 and 12)",
        },
        Parameter {
            name: "tagged",
            default: 0,
            min: 0,
            max: 1,
            about: "1: also after the first hit on a prefetched page (tagged prefetch; Smith, Computing Surveys 1982)",
        },
    ];

    fn new(parameters: &Parameters) -> Self {
        Self { degree: parameters.get("degree"), tagged: parameters.get("tagged") == 1 }
    }
}

impl Prefetch for NextN {
    fn requested(&mut self, page: u64, seen: Seen, wanted: &mut Vec<u64>) {
        if seen == Seen::Miss || (self.tagged && seen == Seen::FirstHit) {
            wanted.extend((1..=self.degree).map_while(|ahead| page.checked_add(ahead)));
        }
    }
}
