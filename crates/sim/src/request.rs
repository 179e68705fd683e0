//! What a workload asks of the device, one request after the other.
//!
//! A [`Source`] gives requests; a driver says when. There are two ways to pace a source ([`Pace`]): in an open loop the
//! requests have arrival times of their own, in a closed one the next comes when an earlier one has completed, and only
//! the driver knows when that is. So time comes in with every call, and no source keeps a clock.

use osier_device::model::Op;

use crate::Nanos;
use crate::trace::TraceError;

/// One request. Which pages it touches, the caller works out from `address` and `bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it arrives. Zero is the beginning of the workload.
    pub at: Nanos,
    /// Its first byte.
    pub address: u64,
    /// How many bytes; zero for a flush alone. `address + bytes` does not overflow.
    pub bytes: u32,
    /// Whose it is: a job of a workload, a disk of a trace.
    pub tenant: u16,
    /// What it does.
    pub op: Op,
}

/// When a driver takes the next request from a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As soon as time has come to the arrival of the last one. Arrivals never go back.
    Open,
    /// As soon as fewer than `depth` of those taken have not completed. It is never zero.
    Closed {
        /// Most requests under way.
        depth: u32,
    },
}

/// What gives requests.
pub trait Source {
    /// How the next request is to be taken.
    fn pace(&self) -> Pace;

    /// The next request, or nothing at the end. `now` is the time at which it is taken: in a closed loop, when there
    /// was room for it. It does not arrive before. After an error there is nothing more, and what came before it is
    /// not the whole.
    fn next(&mut self, now: Nanos) -> Option<Result<Request, TraceError>>;

    /// How many requests there will be in all, as far as it is known, for a progress bar.
    fn len_hint(&self) -> Option<u64> {
        None
    }
}

impl<S: Source + ?Sized> Source for &mut S {
    fn pace(&self) -> Pace {
        (**self).pace()
    }

    fn next(&mut self, now: Nanos) -> Option<Result<Request, TraceError>> {
        (**self).next(now)
    }

    fn len_hint(&self) -> Option<u64> {
        (**self).len_hint()
    }
}
