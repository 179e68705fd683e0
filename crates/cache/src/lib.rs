//! The device's DRAM cache: eviction and prefetch policies, pins, and a log of written lines. Pure: no I/O, no clock,
//! no chance but a seed; it holds no bytes.
//!
//! Where to start:
//!
//! - [`Cache`]: which page is in which frame; a request at a time, or [`replay`] for a whole trace;
//! - [`Eviction`] and [`Prefetch`]: what a policy is; [`POLICIES`] and [`PREFETCHERS`] list them. One file adds one:
//!   `docs/how-to-cache-policy.md`;
//! - [`WriteLog`]: written lines in front of the pages;
//! - [`CacheConfig`]: the section `[cache]` of a profile.
//!
//! The miss counts of FIFO, LRU, CLOCK, S3-FIFO, SIEVE, ARC and Belady's optimum are those of libCacheSim 0.3.5 to
//! the request; where that differs from a paper, the policy's file says how.
//!
//! ```
//! use osier_cache::{CacheConfig, Op, SetIndex, WriteMode, replay};
//!
//! let config = CacheConfig {
//!     frames: 100, ways: 100, set_index: SetIndex::Modulo, write: WriteMode::Back,
//!     reserve_frames: 0, pinned_pages_max: 0,
//!     eviction: "sieve".into(), eviction_parameters: Default::default(),
//!     prefetch: "none".into(), prefetch_parameters: Default::default(), write_log: None,
//! };
//! let trace = (0..10_000_u64).map(|request| (request * request % 257, Op::READ));
//! let stats = replay(&config, 0, trace)?;
//! assert_eq!(stats.hits + stats.misses, 10_000);
//! # Ok::<(), osier_cache::ReplayError>(())
//! ```
#![forbid(unsafe_code)]

mod cache;
mod config;
mod error;
mod eviction;
mod flags;
mod ghost;
mod list;
mod page_map;
mod planted;
mod policies;
mod prefetch;
mod random;
mod replay;
mod stats;
mod table;
mod write_log;

pub use cache::{Cache, Evicted, Fill, Op, Outcome, PolicyFault, Prefetched, Presence, Wait};
pub use config::{CacheConfig, FRAMES_MAX, LINES_PER_PAGE_MAX, SetIndex, WriteLogConfig, WriteMode};
pub use error::{CommandError, ConfigError, ParameterError, PolicyError, ReplayError, UnknownPolicy};
pub use eviction::{
    Eviction, Frames, Named, POLICIES, Parameter, ParameterValues, Parameters, PolicyInfo, Recall, Shape, Visitor,
    check_policy, is_module, parse_policy, policy, with_policy,
};
pub use page_map::PageMap;
#[cfg(any(test, feature = "planted"))]
pub use planted::Bug;
pub use policies::{Arc, Belady, Clock, Fifo, Lifo, Lru, Mru, OPTIMUM, Random, S3Fifo, Sieve, next_uses};
pub use prefetch::{
    BestOffset, DEGREE_MAX, NO_PREFETCH, NextN, PREFETCHERS, Prefetch, PrefetcherInfo, Seen, Stride, prefetcher,
};
pub use random::SplitMix64;
pub use replay::{replay, replay_with};
pub use stats::Stats;
pub use write_log::{ALL_LINES, Compaction, LogSlot, LogStats, WriteLog};
