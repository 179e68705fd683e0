//! The replay of a trace through a cache where nothing takes time: misses and nothing else.

use crate::cache::{Cache, Op};
use crate::config::CacheConfig;
use crate::error::{ConfigError, ReplayError};
use crate::eviction::{Eviction, Visitor, with_policy};
use crate::policies::{Belady, OPTIMUM, next_uses};
use crate::prefetch::NO_PREFETCH;
use crate::stats::Stats;

/// After so many requests it is looked whether the policy failed.
const REQUESTS_A_LOOK: u64 = 1 << 16;

/// Replays requests through an empty cache. For the policy `belady` the trace is gone through twice.
///
/// # Errors
/// Names the key of the configuration that cannot work, and why; or what the policy did wrong.
pub fn replay<I>(config: &CacheConfig, seed: u64, requests: I) -> Result<Stats, ReplayError>
where
    I: Iterator<Item = (u64, Op)> + Clone,
{
    let shape = config.shape()?;
    if config.eviction != OPTIMUM {
        let run = Run { config, requests };
        let run = with_policy(&config.eviction, shape, &config.eviction_parameters, seed, run);
        return run.map_err(ConfigError::from)?;
    }
    if config.prefetch != NO_PREFETCH {
        return Err(ConfigError::BeladyBeside("prefetch").into());
    }
    if config.write_log.is_some() {
        return Err(ConfigError::BeladyBeside("write_log").into());
    }
    if !config.eviction_parameters.is_empty() {
        return Err(ConfigError::BeladyBeside("eviction_parameters").into());
    }
    let next = next_uses(requests.clone().map(|(page, _)| page));
    replay_with(config, Belady::new(shape, next), requests)
}

/// The same with a policy that was made for [`CacheConfig::shape`]; the configuration's own is not looked at.
///
/// # Errors
/// As [`replay`].
pub fn replay_with<P, I>(config: &CacheConfig, policy: P, mut requests: I) -> Result<Stats, ReplayError>
where
    P: Eviction,
    I: Iterator<Item = (u64, Op)>,
{
    let mut cache = Cache::new(config, policy)?;
    let mut done = 0;
    loop {
        let mut made = 0;
        for (page, op) in requests.by_ref().take(REQUESTS_A_LOOK as usize) {
            cache.at_once(page, op);
            made += 1;
        }
        done += made;
        if let Some(reason) = cache.policy_failure() {
            return Err(ReplayError::Policy { requests: done, reason });
        }
        if made < REQUESTS_A_LOOK {
            return Ok(cache.stats());
        }
    }
}

struct Run<'a, I> {
    config: &'a CacheConfig,
    requests: I,
}

impl<I: Iterator<Item = (u64, Op)>> Visitor for Run<'_, I> {
    type Output = Result<Stats, ReplayError>;

    fn visit<P: Eviction + 'static>(self, policy: P) -> Self::Output {
        replay_with(self.config, policy, self.requests)
    }
}
