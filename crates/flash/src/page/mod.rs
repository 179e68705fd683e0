//! A page-mapped flash translation layer for terabytes of modelled capacity, in virtual time.
//!
//! - [`PageFtlConfig`]: every parameter;
//! - [`PageFtl`]: reads, writes, trims and flushes, and what each waited for;
//! - [`PageMedia`]: what lies on the media, for runs that keep data; [`NoMedia`] for those that do not;
//! - [`PageFtl::recover`]: the map from what is on the media.
//!
//! In prose: `docs/flash.md`.

mod audit;
mod bad;
mod checkpoint;
mod collect;
mod config;
mod death;
mod fill;
mod ftl;
mod mapcache;
mod media;
mod mirror;
mod place;
mod planted;
mod recover;
mod serve;
mod space;
mod stats;
#[cfg(test)]
mod tests;
mod units;
mod victim;

pub(crate) use config::Sizes;
pub use config::{Collection, PageFtlConfig, PageFtlParams, Streams, VictimPolicy, WearLevelling};
pub use fill::FillPattern;
pub use ftl::PageFtl;
pub use media::{BadBlock, NoMedia, PageMedia, Record, Root, SlotState, TrimRecord, Unit};
#[cfg(any(test, feature = "planted"))]
pub use planted::PageBug;
pub use recover::PageRecovery;
pub use serve::{Completed, Done, Outcome, Refused, RequestId, Status};
pub use stats::PageFtlStats;
