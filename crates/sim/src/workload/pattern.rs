//! Where the requests of a phase go.

use super::config::{Pattern, Phase};
use super::draw::{Zipf, below, normal, pareto, pareto_exponent};
use super::permutation::Permutation;
use crate::Rng;

/// The places of a phase, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Places {
    rng: Rng,
    offset_bytes: u64,
    range_bytes: u64,
    align: u64,
    slots: u64,
    walk: Walk,
}

/// A pattern and where it is.
#[derive(Clone, Debug)]
enum Walk {
    Sequential { next: u64 },
    Strided { next: u64, stride_bytes: u64 },
    Uniform,
    Zipf { zipf: Zipf, order: Option<Permutation> },
    Normal { mean: f64, deviation: f64 },
    Pareto { exponent: f64 },
    Hotspot { access_permille: u64, hot: u64 },
    Chase { next: u64, order: Permutation },
}

impl Places {
    pub(super) fn new(phase: &Phase, mut rng: Rng) -> Self {
        let slots = phase.slots();
        let share = |permille: u32| slots as f64 * f64::from(permille) / 1000.0;
        let walk = match phase.pattern {
            Pattern::Sequential => Walk::Sequential { next: 0 },
            Pattern::Strided { stride_bytes } => Walk::Strided { next: 0, stride_bytes },
            Pattern::Uniform => Walk::Uniform,
            Pattern::Zipf { theta_permille, scatter } => {
                let order = scatter.then(|| Permutation::new(slots, rng.next()));
                Walk::Zipf { zipf: Zipf::new(slots, theta_permille), order }
            }
            Pattern::Normal { mean_permille, deviation_permille } => {
                Walk::Normal { mean: share(mean_permille), deviation: share(deviation_permille) }
            }
            Pattern::Pareto { skew_permille } => Walk::Pareto { exponent: pareto_exponent(skew_permille) },
            Pattern::Hotspot { access_permille, space_permille } => {
                let hot = u128::from(slots) * u128::from(space_permille) / 1000;
                // Both parts have a slot.
                Walk::Hotspot { access_permille: access_permille.into(), hot: (hot as u64).clamp(1, slots - 1) }
            }
            Pattern::Chase => Walk::Chase { next: 0, order: Permutation::new(slots, rng.next()) },
        };
        Places {
            rng,
            offset_bytes: phase.offset_bytes,
            range_bytes: phase.range_bytes,
            align: phase.align(),
            slots,
            walk,
        }
    }

    /// The address of the next request, which has this size.
    pub(super) fn next(&mut self, bytes: u32) -> u64 {
        let (rng, slots, bytes) = (&mut self.rng, self.slots, u64::from(bytes));
        let slot = match &mut self.walk {
            Walk::Sequential { next } => {
                let place = wrapped(*next, bytes, self.range_bytes);
                *next = (place + bytes).next_multiple_of(self.align);
                return self.offset_bytes + place;
            }
            Walk::Strided { next, stride_bytes } => {
                let place = wrapped(*next, bytes, self.range_bytes);
                *next = place + *stride_bytes;
                return self.offset_bytes + place;
            }
            Walk::Uniform => below(rng, slots),
            Walk::Zipf { zipf, order } => {
                let rank = zipf.draw(rng);
                order.map_or(rank, |order| order.apply(rank))
            }
            Walk::Normal { mean, deviation } => normal(rng, slots, *mean, *deviation),
            Walk::Pareto { exponent } => pareto(rng, slots, *exponent),
            Walk::Hotspot { access_permille, hot } => {
                if below(rng, 1000) < *access_permille {
                    below(rng, *hot)
                } else {
                    *hot + below(rng, slots - *hot)
                }
            }
            Walk::Chase { next, order } => {
                let slot = order.apply(*next);
                *next = (*next + 1) % slots;
                slot
            }
        };
        self.offset_bytes + slot * self.align
    }
}

/// A place at which `bytes` still fit into the range: this one, or its beginning.
fn wrapped(place: u64, bytes: u64, range_bytes: u64) -> u64 {
    if place + bytes <= range_bytes { place } else { 0 }
}
