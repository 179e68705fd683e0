//! What a policy answers: moves, a rate, and the reason.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ACTORS_MAX, ActorId, Sample, Side};

/// The rate that limits nothing.
pub const RATE_UNLIMITED_PERMILLE: u32 = 1000;

/// One actor to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which actor.
    pub actor: ActorId,
    /// Where to.
    pub to: Side,
}

/// The moves of one decision: a list of at most [`Moves::CAPACITY`], first move first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves(Vec<Move>);

impl Moves {
    /// The most moves in one decision: every actor that a device can hold, once.
    pub const CAPACITY: usize = ACTORS_MAX;

    /// No moves.
    #[must_use]
    pub const fn none() -> Moves {
        Moves(Vec::new())
    }

    /// Adds a move, unless the list is full. Returns whether it was added.
    pub fn push(&mut self, one: Move) -> bool {
        let room = self.0.len() < Self::CAPACITY;
        if room {
            self.0.push(one);
        }
        room
    }

    /// The moves, first move first.
    #[must_use]
    pub fn as_slice(&self) -> &[Move] {
        &self.0
    }
}

impl<'a> IntoIterator for &'a Moves {
    type Item = &'a Move;
    type IntoIter = std::slice::Iter<'a, Move>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// Why a decision is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Nothing asks for a change.
    Steady,
    /// A change is due, but every actor that it needs was placed too short a time ago.
    Resident,
    /// A change is due, but no actor may be moved that way.
    NothingToMove,
    /// The device is hot and the host has headroom: actors go to the host.
    DeviceHot,
    /// The device has cooled: actors that heat drove away return to it.
    DeviceCooled,
    /// The host is busy and the device is cool: actors go to the device.
    HostBusy,
    /// The host has time again: actors that its load drove away return to it.
    HostIdle,
    /// The host is throttled: even latency-sensitive actors go to the device.
    HostThrottled,
    /// A latency-sensitive actor returns to the host, where it belongs.
    LatencySensitive,
    /// Both sides are near their limits: the rate is lowered, or held low.
    Shed,
    /// The rate rises again.
    Recover,
    /// The policy keeps everything on one side.
    Pinned,
    /// The predicted cost is lower after the move.
    Cost,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Steady => "steady",
            Reason::Resident => "waiting for residency",
            Reason::NothingToMove => "nothing to move",
            Reason::DeviceHot => "device hot",
            Reason::DeviceCooled => "device cooled",
            Reason::HostBusy => "host busy",
            Reason::HostIdle => "host idle",
            Reason::HostThrottled => "host throttled",
            Reason::LatencySensitive => "latency-sensitive belongs on the host",
            Reason::Shed => "both near their limits: rate lowered",
            Reason::Recover => "rate recovering",
            Reason::Pinned => "pinned",
            Reason::Cost => "lower predicted cost",
        })
    }
}

/// What to do in this epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The actors to move.
    pub moves: Moves,
    /// The share of the full rate at which requests are let in: [`RATE_UNLIMITED_PERMILLE`] limits
    /// nothing. Whoever carries it out paces requests; to let them in for a part of every epoch only
    /// does nothing while those in flight keep the device busy for longer.
    pub rate_permille: u32,
    /// The rule that decided.
    pub reason: Reason,
}

/// Why a decision may not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
    /// A move names an actor that the sample does not hold.
    #[error("policy {policy} moves actor {}, which the sample does not hold: the move is ignored", actor.0)]
    UnknownActor {
        /// The policy.
        policy: &'static str,
        /// The actor.
        actor: ActorId,
    },
    /// A move names an actor that may not be moved now.
    #[error("policy {policy} moves actor {}, which is pinned or already being moved: the move is ignored", actor.0)]
    NotMovable {
        /// The policy.
        policy: &'static str,
        /// The actor.
        actor: ActorId,
    },
    /// A move leads where the actor is.
    #[error("policy {policy} moves actor {} to the {side}, where it is already: the move is ignored", actor.0)]
    AlreadyThere {
        /// The policy.
        policy: &'static str,
        /// The actor.
        actor: ActorId,
        /// Where it is.
        side: Side,
    },
    /// A rate outside of its range.
    #[error("policy {policy} sets the rate to {rate_permille} permille: a rate is 1 to 1000")]
    Rate {
        /// The policy.
        policy: &'static str,
        /// The rate.
        rate_permille: u32,
    },
}

impl Decision {
    /// No change and no limit.
    #[must_use]
    pub const fn steady() -> Decision {
        Decision { moves: Moves::none(), rate_permille: RATE_UNLIMITED_PERMILLE, reason: Reason::Steady }
    }

    /// Checks a decision against the sample that it was made from. Policies may be written by
    /// others, so whoever carries a decision out asks first.
    ///
    /// # Errors
    /// The first rule that the decision breaks.
    pub fn check(&self, policy: &'static str, sample: &Sample) -> Result<(), DecisionError> {
        let rate_permille = self.rate_permille;
        if rate_permille == 0 || rate_permille > RATE_UNLIMITED_PERMILLE {
            return Err(DecisionError::Rate { policy, rate_permille });
        }
        for one in &self.moves {
            let actor = one.actor;
            let Some(view) = sample.actor(actor) else {
                return Err(DecisionError::UnknownActor { policy, actor });
            };
            if !view.movable {
                return Err(DecisionError::NotMovable { policy, actor });
            }
            if view.side == one.to {
                return Err(DecisionError::AlreadyThere { policy, actor, side: one.to });
            }
        }
        Ok(())
    }
}
