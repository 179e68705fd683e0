//! What can go wrong that is not a bug.

use crate::eviction::POLICIES;
use crate::prefetch::PREFETCHERS;

/// No policy of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} {asked:?}: choose one of {known}")]
pub struct UnknownPolicy {
    /// Which kind was asked for.
    what: &'static str,
    /// What was asked for.
    asked: String,
    /// What there is.
    known: String,
}

impl UnknownPolicy {
    pub(crate) fn eviction(asked: &str) -> Self {
        let known: Vec<&str> = POLICIES.iter().map(|info| info.name).collect();
        Self { what: "eviction policy", asked: asked.to_owned(), known: known.join(", ") }
    }

    pub(crate) fn prefetch(asked: &str) -> Self {
        let known: Vec<&str> = PREFETCHERS.iter().map(|info| info.name).collect();
        Self { what: "prefetcher", asked: asked.to_owned(), known: format!("none, {}", known.join(", ")) }
    }
}

/// A parameter that a policy cannot take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// The policy has none of this name.
    #[error("`{policy}` has no parameter `{key}`; {}", listed(.known))]
    Unknown {
        /// The policy.
        policy: &'static str,
        /// The key that was given.
        key: String,
        /// Those that it has.
        known: Vec<&'static str>,
    },
    /// The value cannot work.
    #[error("parameter `{name}` of `{policy}` is {value}, which is outside {min}..={max}; it is: {about}")]
    OutOfRange {
        /// The policy.
        policy: &'static str,
        /// The parameter.
        name: &'static str,
        /// What was given.
        value: u64,
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
        /// What the parameter means.
        about: &'static str,
    },
}

fn listed(known: &[&str]) -> String {
    if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) }
}

/// A policy that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// There is none of this name.
    #[error(transparent)]
    Unknown(#[from] UnknownPolicy),
    /// It cannot work with these parameters.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The word is not NAME:KEY=NUMBER,...
    #[error("`{pair}` of the policy {word} is not KEY=NUMBER")]
    Word {
        /// What was given.
        word: String,
        /// What is wrong in it.
        pair: String,
    },
}

/// A cache that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value cannot work.
    #[error("cache: `{key}` is {value}; {reason}")]
    Value {
        /// The key.
        key: &'static str,
        /// What was given.
        value: u64,
        /// What is wrong with it, and what would do.
        reason: String,
    },
    /// The eviction policy or the prefetcher cannot be made.
    #[error("cache: {0}")]
    Policy(#[from] PolicyError),
    /// A write log was asked for, and with it what leaves it nothing to hold.
    #[error("cache: `write` is `through`, which leaves a `write_log` nothing to hold; use `back`, or no log")]
    ThroughWithLog,
    /// Belady's optimum was asked for where the future is not known.
    #[error("cache: `belady` needs to know every request beforehand; it works only in the replay of a trace")]
    NoFuture,
    /// Belady's optimum was asked for together with what it does not allow for.
    #[error("cache: `belady` is the bound for caches without `{0}`; leave that out, or choose another policy")]
    BeladyBeside(&'static str),
}

/// A replay without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The cache cannot be made.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The policy failed, so what was counted is not its result.
    #[error("the eviction policy failed within the first {requests} requests: {reason}")]
    Policy {
        /// Requests that had been made when it was seen.
        requests: u64,
        /// What it did.
        reason: String,
    },
}

/// A command about one page that could not be carried out. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The page is not in the cache.
    #[error("page {page} is not in the cache: prefetch it first")]
    NotResident {
        /// The page.
        page: u64,
    },
    /// The page is on its way into the cache.
    #[error("page {page} is being read into the cache: try again when that is done")]
    Filling {
        /// The page.
        page: u64,
    },
    /// The page is pinned.
    #[error("page {page} is pinned {pins} times: unpin it first")]
    Pinned {
        /// The page.
        page: u64,
        /// Pins on it.
        pins: u32,
    },
    /// The page is not pinned.
    #[error("page {page} is not pinned")]
    NotPinned {
        /// The page.
        page: u64,
    },
    /// As many pages are pinned as may be.
    #[error("page {page} cannot be pinned: {max} pages are, which is the limit `pinned_pages_max`; unpin one")]
    PinLimit {
        /// The page.
        page: u64,
        /// The limit.
        max: u32,
    },
    /// A pin would leave a set without a frame for other pages.
    #[error("page {page} cannot be pinned: all but one of the usable frames of its set are; unpin one of them")]
    SetPinned {
        /// The page.
        page: u64,
    },
    /// A page has as many pins as can be counted.
    #[error("page {page} cannot be pinned again: it has {pins} pins, the most that are counted")]
    PinCount {
        /// The page.
        page: u64,
        /// Pins on it.
        pins: u32,
    },
    /// Stores were found out about afterwards, but the write log has to see each one.
    #[error("page {page} cannot be marked dirty: with a write log every store has to come as a request")]
    LogNeedsStores {
        /// The page.
        page: u64,
    },
}
