//! The replay of a trace through a cache where nothing takes time: misses and nothing else.

use crate::cache::{Cache, Op};
use crate::config::CacheConfig;
use crate::error::ConfigError;
use crate::eviction::{Eviction, Visitor, with_policy};
use crate::policies::{Belady, OPTIMUM, next_uses};
use crate::prefetch::NO_PREFETCH;
use crate::stats::Stats;

/// Replays requests through an empty cache. For the policy `belady` the trace is gone through twice.
///
/// # Errors
/// Names the key of the configuration that cannot work, and why.
pub fn replay<I>(config: &CacheConfig, seed: u64, requests: I) -> Result<Stats, ConfigError>
where
    I: Iterator<Item = (u64, Op)> + Clone,
{
    let shape = config.shape()?;
    if config.eviction != OPTIMUM {
        let run = Run { config, requests };
        return with_policy(&config.eviction, shape, &config.eviction_parameters, seed, run)?;
    }
    if config.prefetch != NO_PREFETCH {
        return Err(ConfigError::BeladyBeside("prefetch"));
    }
    if config.write_log.is_some() {
        return Err(ConfigError::BeladyBeside("write_log"));
    }
    if !config.eviction_parameters.is_empty() {
        return Err(ConfigError::BeladyBeside("eviction_parameters"));
    }
    let next = next_uses(requests.clone().map(|(page, _)| page));
    Run { config, requests }.visit(Belady::new(shape, next))
}

struct Run<'a, I> {
    config: &'a CacheConfig,
    requests: I,
}

impl<I: Iterator<Item = (u64, Op)>> Visitor for Run<'_, I> {
    type Output = Result<Stats, ConfigError>;

    fn visit<P: Eviction + 'static>(self, policy: P) -> Self::Output {
        let mut cache = Cache::new(self.config, policy)?;
        for (page, op) in self.requests {
            cache.at_once(page, op);
        }
        Ok(cache.stats())
    }
}
