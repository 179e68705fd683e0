//! The trait that every prefetcher implements, and the registry by name.
//!
//! A prefetcher sees requests and the ends of fills, and names pages to bring in. It decides nothing: the cache
//! leaves out those that are there, and the device those beyond its end or its means.

mod best_offset;
mod next_n;
mod stride;

use crate::error::{PolicyError, UnknownPolicy};
use crate::eviction::{Parameter, ParameterValues, Parameters};

pub use best_offset::BestOffset;
pub use next_n::NextN;
pub use stride::Stride;

/// Most pages that one request may make a prefetcher name.
pub const DEGREE_MAX: u64 = 64;
/// The name that stands for no prefetcher.
pub const NO_PREFETCH: &str = "none";

/// How a request met the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The page was not there, or still on its way.
    Miss,
    /// It was there, by a prefetch that nobody had asked for yet.
    FirstHit,
    /// It was there.
    Hit,
}

/// Names pages to bring in before they are asked for.
///
/// The same calls from its creation on must give the same answers.
pub trait Prefetch: Send {
    /// A request for `page`. Adds what to bring in to `wanted`, soonest first, at most [`DEGREE_MAX`] pages.
    fn requested(&mut self, page: u64, seen: Seen, wanted: &mut Vec<u64>);

    /// The bytes of `page` have arrived: for a prefetch that nobody has asked for yet, or for a request.
    fn filled(&mut self, page: u64, prefetched: bool) {
        let _ = (page, prefetched);
    }
}

/// A prefetcher of this crate: it has a name and is made from parameters.
trait Named: Prefetch + Sized + 'static {
    const NAME: &'static str;
    const SUMMARY: &'static str;
    const PARAMETERS: &'static [Parameter];

    fn new(parameters: &Parameters) -> Self;

    const INFO: PrefetcherInfo = PrefetcherInfo {
        name: Self::NAME,
        summary: Self::SUMMARY,
        parameters: Self::PARAMETERS,
        create: |given| Ok(Box::new(Self::new(&Parameters::resolve(Self::NAME, Self::PARAMETERS, given)?))),
    };
}

/// One registered prefetcher.
pub struct PrefetcherInfo {
    /// Its name.
    pub name: &'static str,
    /// One line for the help text.
    pub summary: &'static str,
    /// What it understands.
    pub parameters: &'static [Parameter],
    create: fn(&ParameterValues) -> Result<Box<dyn Prefetch>, PolicyError>,
}

/// Every prefetcher.
pub const PREFETCHERS: &[PrefetcherInfo] = &[NextN::INFO, Stride::INFO, BestOffset::INFO];

/// Makes the prefetcher of this name; nothing for `none`.
///
/// # Errors
/// A name that is not registered, or a parameter that it does not have or cannot have.
pub fn prefetcher(name: &str, given: &ParameterValues) -> Result<Option<Box<dyn Prefetch>>, PolicyError> {
    if name == NO_PREFETCH {
        Parameters::resolve(NO_PREFETCH, &[], given)?;
        return Ok(None);
    }
    match PREFETCHERS.iter().find(|info| info.name == name) {
        Some(info) => (info.create)(given).map(Some),
        None => Err(UnknownPolicy::prefetch(name).into()),
    }
}
