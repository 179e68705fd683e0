//! Brings the addresses of a workload into the capacity of a device.

use std::collections::VecDeque;

use super::counts::TraceError;
use super::pages::PageNumbers;
use crate::{Nanos, Op, Pace, Request, Source};

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remap {
    /// Not at all: an address beyond the capacity is an error.
    Refuse,
    /// The address modulo the capacity. Distances within the capacity stay what they are; what lies a capacity apart
    /// falls together.
    Modulo,
    /// Each page gets the next free place when it is first asked for. Nothing falls together, and the pages that are
    /// used lie side by side; pages that were neighbours may not be.
    Compact,
}

impl Remap {
    /// All of them.
    pub const ALL: [Remap; 3] = [Remap::Refuse, Remap::Modulo, Remap::Compact];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Remap::Refuse => "refuse",
            Remap::Modulo => "modulo",
            Remap::Compact => "compact",
        }
    }
}

/// A device that nothing can be mapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a capacity of {capacity_bytes} bytes is not a whole number of pages of {page_bytes}, or none; change it")]
pub struct RemapError {
    capacity_bytes: u64,
    page_bytes: u32,
}

/// A source whose addresses are all within a capacity. A request that does not stay in one piece comes as several, of
/// the same time and tenant.
#[derive(Debug)]
pub struct Remapped<S> {
    source: S,
    remap: Remap,
    capacity_bytes: u64,
    page_bytes: u64,
    numbers: PageNumbers,
    /// Pieces of the last request that are still to come. At most one for each of its pages.
    pieces: VecDeque<Request>,
    taken: u64,
    failed: bool,
}

impl<S: Source> Remapped<S> {
    /// Maps a source to a device of a capacity, which is a whole number of pages.
    ///
    /// # Errors
    /// If it is not.
    pub fn new(source: S, remap: Remap, capacity_bytes: u64, page_bytes: u32) -> Result<Self, RemapError> {
        if page_bytes == 0 || capacity_bytes == 0 || !capacity_bytes.is_multiple_of(page_bytes.into()) {
            return Err(RemapError { capacity_bytes, page_bytes });
        }
        Ok(Remapped {
            source,
            remap,
            capacity_bytes,
            page_bytes: page_bytes.into(),
            numbers: PageNumbers::default(),
            pieces: VecDeque::new(),
            taken: 0,
            failed: false,
        })
    }

    /// The source.
    pub fn get_ref(&self) -> &S {
        &self.source
    }

    fn map(&mut self, request: Request) -> Result<(), TraceError> {
        let fits = |address: u64| address <= self.capacity_bytes - u64::from(request.bytes);
        let wide = u64::from(request.bytes) > self.capacity_bytes;
        let refused = self.remap == Remap::Refuse && (wide || !fits(request.address));
        if request.op == Op::Flush && request.bytes == 0 {
            self.pieces.push_back(Request { address: 0, ..request });
        } else if refused || (wide && self.remap == Remap::Modulo) {
            return Err(TraceError::BeyondCapacity {
                number: self.taken,
                address: request.address,
                bytes: request.bytes,
                capacity_bytes: self.capacity_bytes,
            });
        } else {
            match self.remap {
                Remap::Refuse => self.pieces.push_back(request),
                Remap::Modulo => self.modulo(request),
                Remap::Compact => self.compact(request)?,
            }
        }
        Ok(())
    }

    /// In two pieces where it goes over the end.
    fn modulo(&mut self, request: Request) {
        let address = request.address % self.capacity_bytes;
        let before_end = u32::try_from(self.capacity_bytes - address).unwrap_or(u32::MAX);
        let first = request.bytes.min(before_end);
        self.pieces.push_back(Request { address, bytes: first, ..request });
        if first < request.bytes {
            self.pieces.push_back(Request { address: 0, bytes: request.bytes - first, ..request });
        }
    }

    /// In one piece for each run of pages that lie side by side.
    fn compact(&mut self, request: Request) -> Result<(), TraceError> {
        let pages = self.capacity_bytes / self.page_bytes;
        let mut address = request.address;
        let mut left = request.bytes;
        while left > 0 {
            let in_page = address % self.page_bytes;
            // Less than a page, which is a number of 32 bits.
            let bytes = left.min((self.page_bytes - in_page) as u32);
            let number = self.numbers.number(address / self.page_bytes).map(|(number, _)| number);
            let number = number.filter(|number| *number < pages).ok_or(TraceError::TooManyPages { pages })?;
            let place = number * self.page_bytes + in_page;
            match self.pieces.back_mut() {
                Some(last) if last.address + u64::from(last.bytes) == place => last.bytes += bytes,
                _ => self.pieces.push_back(Request { address: place, bytes, ..request }),
            }
            left -= bytes;
            // Past the last page there is nothing left.
            address = address.wrapping_add(bytes.into());
        }
        Ok(())
    }
}

impl<S: Source> Source for Remapped<S> {
    fn pace(&self) -> Pace {
        self.source.pace()
    }

    fn next(&mut self, now: Nanos) -> Option<Result<Request, TraceError>> {
        if let Some(piece) = self.pieces.pop_front() {
            return Some(Ok(piece));
        }
        if self.failed {
            return None;
        }
        let mapped = match self.source.next(now)? {
            Ok(request) => {
                self.taken += 1;
                self.map(request)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = mapped {
            self.failed = true;
            self.pieces.clear();
            return Some(Err(error));
        }
        self.pieces.pop_front().map(Ok)
    }

    fn len_hint(&self) -> Option<u64> {
        self.source.len_hint()
    }
}
