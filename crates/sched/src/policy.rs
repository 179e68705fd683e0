//! The trait that every policy implements, and the registry by name.

use crate::{Decision, GreedyCost, Pinned, Sample, SchedulerParams, Side, Threshold, Wio};

/// The policy that runs when none is named.
pub const DEFAULT_POLICY: &str = "wio";

/// Decides once an epoch where actors run.
///
/// A policy sees samples and nothing else. It may keep state between epochs; the same samples from
/// its creation on must give the same decisions.
pub trait Policy: Send {
    /// The name it is registered by.
    fn name(&self) -> &'static str;

    /// One epoch: looks at a sample, answers what to do. The times of successive samples never go
    /// back.
    fn decide(&mut self, sample: &Sample) -> Decision;
}

/// One registered policy.
pub struct PolicyInfo {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line for the help text.
    pub summary: &'static str,
    create: fn(&SchedulerParams) -> Box<dyn Policy>,
}

/// Every policy, the default first.
pub const POLICIES: &[PolicyInfo] = &[
    PolicyInfo {
        name: DEFAULT_POLICY,
        summary: "temperature, host load and residency, as WIO does (the default)",
        create: |params| Box::new(Wio::new(params)),
    },
    PolicyInfo {
        name: "pinned-host",
        summary: "everything movable runs on the host",
        create: |params| Box::new(Pinned::new(params, Side::Host)),
    },
    PolicyInfo {
        name: "pinned-device",
        summary: "everything movable runs on the device",
        create: |params| Box::new(Pinned::new(params, Side::Device)),
    },
    PolicyInfo {
        name: "threshold",
        summary: "one temperature, no residency, no band: the naive policy, to compare with",
        create: |params| Box::new(Threshold::new(params)),
    },
    PolicyInfo {
        name: "greedy-cost",
        summary: "the move with the largest drop of a predicted cost of both sides",
        create: |params| Box::new(GreedyCost::new(params)),
    },
];

/// No policy of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no scheduling policy {asked:?}: choose one of {}", names())]
pub struct UnknownPolicy {
    /// What was asked for.
    pub asked: String,
}

/// Creates the policy of this name.
///
/// # Errors
/// [`UnknownPolicy`] names the policies that exist.
pub fn policy(name: &str, params: &SchedulerParams) -> Result<Box<dyn Policy>, UnknownPolicy> {
    match POLICIES.iter().find(|info| info.name == name) {
        Some(info) => Ok((info.create)(params)),
        None => Err(UnknownPolicy { asked: name.to_owned() }),
    }
}

fn names() -> String {
    let names: Vec<&str> = POLICIES.iter().map(|info| info.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn every_registered_name_gives_the_policy_of_that_name() {
        for info in POLICIES {
            assert_eq!(policy(info.name, &testing::params()).unwrap().name(), info.name);
        }
        assert_eq!(POLICIES[0].name, DEFAULT_POLICY);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_list() {
        let refused = policy("best", &testing::params()).err().unwrap();
        let text = refused.to_string();
        assert!(text.contains("\"best\"") && text.contains("wio, pinned-host"), "{text}");
    }
}
