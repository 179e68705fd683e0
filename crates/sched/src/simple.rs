//! The policies to compare with: pinned to one side, and the naive threshold.

use crate::{Decision, Move, Moves, Policy, RATE_UNLIMITED_PERMILLE, Reason, Sample, SchedulerParams, Side};

/// Keeps every movable actor on one side.
///
/// An actor that stands on the other side is moved once, at the profile's pace, so that a run may
/// start from any placement.
pub struct Pinned {
    side: Side,
    moves_per_epoch: usize,
}

impl Pinned {
    /// Pins to `side`.
    #[must_use]
    pub fn new(params: &SchedulerParams, side: Side) -> Pinned {
        Pinned { side, moves_per_epoch: params.moves_per_epoch as usize }
    }
}

impl Policy for Pinned {
    fn name(&self) -> &'static str {
        match self.side {
            Side::Host => "pinned-host",
            Side::Device => "pinned-device",
        }
    }

    fn decide(&mut self, sample: &Sample) -> Decision {
        all_to(sample, self.side, self.moves_per_epoch, Reason::Pinned)
    }
}

/// One temperature decides, for all actors at once: above it everything runs on the host, below it
/// everything runs on the device.
///
/// It knows neither a band nor residency nor the host's load, so it swings as fast as the
/// temperature crosses its threshold. It is here to show what those rules are worth.
pub struct Threshold {
    upload_millicelsius: i32,
}

impl Threshold {
    /// Decides at the profile's upload temperature.
    #[must_use]
    pub fn new(params: &SchedulerParams) -> Threshold {
        Threshold { upload_millicelsius: params.upload_millicelsius }
    }
}

impl Policy for Threshold {
    fn name(&self) -> &'static str {
        "threshold"
    }

    fn decide(&mut self, sample: &Sample) -> Decision {
        if sample.device.temperature_millicelsius >= self.upload_millicelsius {
            all_to(sample, Side::Host, Moves::CAPACITY, Reason::DeviceHot)
        } else {
            all_to(sample, Side::Device, Moves::CAPACITY, Reason::DeviceCooled)
        }
    }
}

fn all_to(sample: &Sample, to: Side, moves_max: usize, reason: Reason) -> Decision {
    let away = sample.actors.iter().filter(|actor| actor.movable && actor.side != to);
    let mut moves = Moves::none();
    for actor in away.take(moves_max) {
        moves.push(Move { actor: actor.id, to });
    }
    let reason = if moves.as_slice().is_empty() { Reason::Steady } else { reason };
    Decision { moves, rate_permille: RATE_UNLIMITED_PERMILLE, reason }
}
