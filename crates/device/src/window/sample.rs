//! Hits that are seen. A hit is an access to memory of which nobody hears; so the policies would see misses alone, as
//! if each page were used once.
//!
//! Once a *period*, pages are drawn among the frames, and unmapped in every program that maps them, by the same way as
//! those that leave: each program acknowledges, and what it stored is looked at after that. The page stays in its
//! frame. An access then faults, is answered at once, and is a use that the policy is told of. Of the pages drawn,
//! those that were used within a period are an estimate of the share of all.
//!
//! Invariants:
//! - a page that is drawn keeps its frame and its bytes, and what was stored to it is not forgotten;
//! - who has not acknowledged is granted nothing, because what he stored is looked at when he has; the others are;
//! - a pinned page is not drawn: whoever pins may count on its being mapped.

use std::collections::BTreeMap;

use osier_cache::SplitMix64;
use osier_flash::Nanos;
use serde::Serialize;

use super::fault::{Blocked, Fault, Grant};
use super::leave::ZAP_PAGES_MAX;
use super::planted::Bug;
use super::{Event, Mapped, MapperId, Output, Resident, Window, mappers};

/// How hits are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampling {
    /// Frames that are drawn a period; 0 for no sampling.
    pub pages: u32,
    /// The period.
    pub period_ns: u64,
}

/// What sampling saw. Pages that were drawn and are watched no more: used within a period, not used, or gone before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SampleCounts {
    /// Used.
    pub used: u64,
    /// Not used.
    pub unused: u64,
    /// Left the cache before the period was over, or every program that mapped it ended: they say nothing.
    pub gone: u64,
    /// Uses of pages that were drawn, later ones included: each cost a fault.
    pub faults: u64,
}

impl SampleCounts {
    /// Pages that say something.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.used + self.unused
    }

    /// The share of mapped pages that is used within a period, in millionths, and its standard error; nothing before
    /// the first sample.
    #[must_use]
    pub fn used_ppm(&self) -> Option<(u64, u64)> {
        const MILLION: u128 = 1_000_000;
        let samples = u128::from(self.samples());
        let share = (u128::from(self.used) * MILLION).checked_div(samples)?;
        // With one more of each kind, so that no sample is sure of what it has not seen.
        let (used, all) = (u128::from(self.used) + 1, samples + 2);
        let error = (used * (all - used) * MILLION * MILLION / (all * all * all)).isqrt();
        Some((share as u64, error as u64))
    }
}

/// A page that is watched, or that somebody has not yet unmapped.
#[derive(Clone, Debug)]
struct Trap {
    /// Which one: pages are drawn again.
    serial: u64,
    /// Who has not acknowledged.
    pending: u64,
    is_watched: bool,
    /// Faults of those: they wait until it is known what was stored.
    waiters: Vec<Fault>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sampler {
    sampling: Sampling,
    random: SplitMix64,
    serial: u64,
    /// When pages are drawn next; nothing as long as nobody maps the window.
    next: Option<Nanos>,
    traps: BTreeMap<u64, Trap>,
    pub counts: SampleCounts,
}

impl Sampler {
    pub fn new(sampling: Sampling, seed: u64) -> Sampler {
        Sampler {
            sampling,
            // Another stream than that of the policies, which have the same seed.
            random: SplitMix64::new(seed ^ 0x7361_6d70_6c65_7273),
            serial: 0,
            next: None,
            traps: BTreeMap::new(),
            counts: SampleCounts::default(),
        }
    }

    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// Whether pages are drawn.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.sampling.pages > 0
    }

    /// When pages are drawn next.
    pub fn next(&self) -> u64 {
        self.next.map_or(u64::MAX, |at| at.0)
    }

    /// Whether a page is watched or not yet unmapped.
    pub fn has(&self, page: u64) -> bool {
        !self.traps.is_empty() && self.traps.contains_key(&page)
    }
}

impl<R: Resident> Window<R> {
    /// Somebody maps the window: from now on pages are drawn.
    pub(super) fn begin_sampling(&mut self) {
        let Sampling { pages, period_ns } = self.sampler.sampling;
        if pages > 0 && self.sampler.next.is_none() {
            self.sampler.next = Some(Nanos(self.now.0 + period_ns));
        }
    }

    /// A period is over, or more of them in which nobody looked: pages are drawn once.
    pub(super) fn sample(&mut self) {
        self.sampler.next = None;
        if self.attached == 0 {
            return;
        }
        self.begin_sampling();
        let mut drawn = vec![Vec::new(); self.zaps.len()];
        for _ in 0..self.sampler.sampling.pages {
            // Those of a program that is stopped are not acknowledged: there are never more than of two periods.
            if self.sampler.traps.len() >= 2 * self.sampler.sampling.pages as usize {
                break;
            }
            let frame = self.sampler.random.below(self.mapped.len() as u64) as u32;
            let Some(page) = self.cache.page_in(frame) else { continue };
            // One that was drawn before and not used is drawn again, or the sample would be of used ones alone.
            let Mapped { by, drawn: unmapped, .. } = self.mapped[frame as usize];
            let is_stuck = by & self.silent != 0;
            if by | unmapped == 0 || is_stuck || self.sampler.has(page) {
                continue;
            }
            self.sampler.serial += 1;
            let serial = self.sampler.serial;
            self.sampler.traps.insert(page, Trap { serial, pending: by, is_watched: true, waiters: Vec::new() });
            if by == 0 {
                self.all_unmapped(page);
            }
            mappers(by).for_each(|mapper| drawn[usize::from(mapper.0)].push(page));
        }
        for mapper in mappers(self.attached) {
            for pages in drawn[usize::from(mapper.0)].chunks(ZAP_PAGES_MAX) {
                self.unmap_drawn(mapper, pages);
            }
        }
    }

    fn unmap_drawn(&mut self, mapper: MapperId, pages: &[u64]) {
        self.zaps[usize::from(mapper.0)].ask(self.now, pages, true);
        let is_known =
            |page: &u64| self.cache.resident(*page).is_some_and(|frame| self.mapped[frame as usize].is_dirty);
        let known = pages.iter().rev().fold(0, |known, page| known << 1 | u64::from(is_known(page)));
        self.outputs.push_back(Output::Zap { mapper, pages: pages.to_vec(), known, is_sample: true });
    }

    /// A mapper has unmapped a page that was drawn.
    pub(super) fn drawn_unmapped(&mut self, mapper: MapperId, page: u64, is_dirty: bool) {
        let is_dirty = is_dirty && !self.has_bug(Bug::ForgetSampledDirty);
        let Some(trap) = self.sampler.traps.get_mut(&page) else {
            // It began to leave meanwhile, and is unmapped once more; what was stored before is known now.
            return self.found_dirty(page, is_dirty);
        };
        trap.pending &= !mapper.bit();
        let is_last = trap.pending == 0;
        let waiters = std::mem::take(&mut trap.waiters);
        let (own, others): (Vec<Fault>, Vec<Fault>) = waiters.into_iter().partition(|fault| fault.mapper == mapper);
        trap.waiters = others;
        let Some(frame) = self.cache.resident(page) else { unreachable!("what leaves is not watched") };
        let mapped = &mut self.mapped[frame as usize];
        mapped.by &= !mapper.bit();
        mapped.drawn |= mapper.bit();
        mapped.is_dirty |= is_dirty;
        if is_last {
            self.all_unmapped(page);
        }
        own.iter().for_each(|fault| self.ask_or_block(fault));
    }

    /// A mapper that was to unmap a page has ended.
    pub(super) fn drawn_abandoned(&mut self, mapper: MapperId, page: u64, is_dirty: bool) {
        self.drawn_unmapped(mapper, page, is_dirty);
        if let Some(frame) = self.cache.resident(page) {
            self.mapped[frame as usize].drawn &= !mapper.bit();
        }
    }

    /// Nobody maps a page that was drawn: its period begins.
    fn all_unmapped(&mut self, page: u64) {
        let Some(trap) = self.sampler.traps.get(&page) else { return };
        if trap.is_watched {
            let (at, serial) = (self.now.0 + self.sampler.sampling.period_ns, trap.serial);
            self.push(at, Event::Unused { page, serial });
        } else {
            self.sampler.traps.remove(&page);
        }
    }

    /// The period of a page that was drawn is over.
    pub(super) fn watched_in_vain(&mut self, page: u64, serial: u64) {
        if self.sampler.traps.get(&page).is_some_and(|trap| trap.serial == serial) {
            self.sampler.traps.remove(&page);
            let frame = self.cache.resident(page);
            // Nobody could use it if nobody is left.
            let is_gone = frame.is_none_or(|frame| self.mapped[frame as usize].drawn == 0);
            if is_gone {
                self.sampler.counts.gone += 1;
            } else {
                self.sampler.counts.unused += 1;
            }
        }
    }

    /// A page that leaves is watched no more. Whether faults waited: they are asked again when it has left.
    pub(super) fn forget_drawn(&mut self, page: u64) -> bool {
        if !self.sampler.has(page) {
            return false;
        }
        let Some(trap) = self.sampler.traps.remove(&page) else { return false };
        self.sampler.counts.gone += u64::from(trap.is_watched);
        self.blocked.extend(trap.waiters.iter().map(|fault| Blocked { fault: *fault }));
        !trap.waiters.is_empty()
    }

    /// The faults of a mapper wait no more.
    pub(super) fn forget_waiters(&mut self, mapper: MapperId) {
        for trap in self.sampler.traps.values_mut() {
            trap.waiters.retain(|waiter| waiter.mapper != mapper);
        }
    }

    /// Whether a fault is of a page that was drawn; then it is answered, or waits until its mapper has acknowledged.
    pub(super) fn meets_drawn(&mut self, fault: &Fault) -> bool {
        let Some(frame) = self.cache.resident(fault.page) else { return false };
        let bit = fault.mapper.bit();
        let grants_early = self.has_bug(Bug::GrantBeforeUnmapped);
        if let Some(trap) = self.sampler.traps.get_mut(&fault.page)
            && trap.pending & bit != 0
            && !grants_early
        {
            trap.waiters.push(*fault);
            return true;
        }
        let mapped = &mut self.mapped[frame as usize];
        if mapped.drawn & bit == 0 {
            return false;
        }
        mapped.drawn &= !bit;
        mapped.by |= bit;
        mapped.is_dirty |= fault.is_store;
        self.cache.touch(fault.page);
        self.sampler.counts.faults += 1;
        if let Some(trap) = self.sampler.traps.get_mut(&fault.page) {
            self.sampler.counts.used += u64::from(std::mem::take(&mut trap.is_watched));
            if trap.pending == 0 {
                self.sampler.traps.remove(&fault.page);
            }
        }
        // An access to memory: it crosses no link that is modelled.
        let grant = if fault.is_store { Grant::Writable } else { Grant::Armed };
        self.answer(fault, self.now, grant, true);
        true
    }
}
