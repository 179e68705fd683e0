//! Victims are unmapped everywhere, and written to the flash if they are dirty.
//!
//! A mapper that has not acknowledged for [`SILENT_NS`] is *silent*: stopped, most probably. Its pages stay where they
//! are until it goes on, for nobody else can unmap them; but no fill waits for a frame of theirs as long as there is
//! another.

use std::collections::VecDeque;

use osier_flash::Nanos;
use osier_flash::page::{Outcome, Refused, Status};

use super::planted::Bug;
use super::{Effect, MAPPERS_MAX, Mapped, MapperId, Misuse, Output, PageBytes, Resident, StoreError, Window};

/// Most pages of one [`Output::Zap`]: as many as a message has room for.
pub const ZAP_PAGES_MAX: usize = 7;

/// How long after a page found no room on the flash it is tried again: somebody has to make some.
const SAVE_AGAIN_NS: u64 = 50_000_000;

/// Who has not acknowledged for so long is not counted on: a program that runs takes microseconds, and a few
/// milliseconds where it is woken late. To be wrong costs a fill that is begun again.
pub const SILENT_NS: u64 = 50_000_000;

/// A page that is leaving.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    /// Who still maps it, as far as is known.
    by: u64,
    is_dirty: bool,
    is_unmapped: bool,
    /// The copy of the flash that it has the bytes of, if it is clean.
    copy: Option<u64>,
    /// The frame whose fill waits for it.
    frame: Option<u32>,
    /// The command that evicts it.
    command: Option<u64>,
}

/// What one mapper has to unmap.
#[derive(Clone, Debug, Default)]
pub(super) struct Zaps {
    /// Not asked for yet.
    pending: Vec<u64>,
    /// Asked for and not acknowledged, in order.
    asked: VecDeque<Asked>,
    /// When the first of these was asked for, or the one before it acknowledged.
    since: Nanos,
}

/// Pages that go together, to leave or for a sample.
#[derive(Clone, Debug)]
struct Asked {
    pages: Vec<u64>,
    is_sample: bool,
}

impl Zaps {
    pub(super) fn ask(&mut self, now: Nanos, pages: &[u64], is_sample: bool) {
        if self.asked.is_empty() {
            self.since = now;
        }
        self.asked.push_back(Asked { pages: pages.to_vec(), is_sample });
    }
}

impl<R: Resident> Window<R> {
    /// A page has lost its frame, to that of a fill if there is one.
    pub(super) fn leave(&mut self, page: u64, was: Mapped, frame: Option<u32>, command: Option<u64>) {
        let cell = self.cell(page);
        self.map[cell] -= 1;
        let Mapped { by, is_dirty, copy, .. } = was;
        self.leaving.insert(page, Leaving { by, is_dirty, is_unmapped: false, copy, frame, command });
        let somebody_waits = self.forget_drawn(page);
        if was.by == 0 {
            return self.unmapped(page);
        }
        for mapper in mappers(was.by) {
            self.zaps[usize::from(mapper.0)].pending.push(page);
            if self.zaps[usize::from(mapper.0)].pending.len() >= self.reserve.batch as usize {
                self.send_zaps(mapper);
            }
        }
        if somebody_waits {
            self.send_all_zaps();
        }
    }

    fn send_zaps(&mut self, mapper: MapperId) {
        let zaps = &mut self.zaps[usize::from(mapper.0)];
        let pending = std::mem::take(&mut zaps.pending);
        for pages in pending.chunks(ZAP_PAGES_MAX) {
            self.counts.zaps += pages.len() as u64;
            zaps.ask(self.now, pages, false);
            let is_known = |page: &u64| self.leaving.get(page).is_some_and(|leaving| leaving.is_dirty);
            let known = pages.iter().rev().fold(0, |known, page| known << 1 | u64::from(is_known(page)));
            self.outputs.push_back(Output::Zap { mapper, pages: pages.to_vec(), known, is_sample: false });
        }
    }

    /// Somebody waits for a frame or for a page that is leaving: nothing is held back.
    pub(super) fn send_all_zaps(&mut self) {
        for mapper in mappers(self.attached) {
            self.send_zaps(mapper);
        }
    }

    /// A mapper has unmapped the pages of its oldest [`Output::Zap`], and then found those dirty whose bit is set, the
    /// first page's lowest.
    ///
    /// # Errors
    /// When it had nothing to unmap.
    pub fn zapped(&mut self, now: Nanos, mapper: MapperId, dirty: u64) -> Result<(), Misuse> {
        self.advance(now);
        let zaps = self.zaps.get_mut(usize::from(mapper.0)).ok_or(Misuse::NotAttached(mapper))?;
        let Asked { pages, is_sample } = zaps.asked.pop_front().ok_or(Misuse::NothingToZap(mapper))?;
        zaps.since = self.now;
        self.silent &= !mapper.bit();
        for (index, page) in pages.into_iter().enumerate() {
            let is_dirty = dirty >> index & 1 == 1;
            if is_sample {
                self.drawn_unmapped(mapper, page, is_dirty);
            } else {
                self.acknowledged(mapper, page, is_dirty);
            }
        }
        self.retry_blocked();
        Ok(())
    }

    /// Whether a page that somebody has unmapped has the bytes that it came with, by their checksum: for whoever cannot
    /// be sure to know of each store.
    #[must_use]
    pub fn is_as_it_came(&self, page: u64, bytes: &PageBytes) -> bool {
        let copy = match (self.leaving.get(&page), self.cache.resident(page)) {
            (Some(leaving), _) => leaving.copy,
            (None, Some(frame)) => self.mapped[frame as usize].copy,
            (None, None) => return false,
        };
        match copy {
            Some(copy) => crc32c::crc32c(bytes) == self.ftl.media().checksum(copy),
            None => bytes.iter().all(|byte| *byte == 0),
        }
    }

    fn acknowledged(&mut self, mapper: MapperId, page: u64, is_dirty: bool) {
        let (overwrites, early) = (self.has_bug(Bug::LastMapperDecides), self.has_bug(Bug::LeaveAtFirstAck));
        let forgets = self.has_bug(Bug::ForgetDirty);
        // Only of a planted bug a page may have left before.
        let Some(leaving) = self.leaving.get_mut(&page).filter(|leaving| !leaving.is_unmapped) else { return };
        leaving.by &= !mapper.bit();
        leaving.is_dirty = (leaving.is_dirty && !overwrites) || (is_dirty && !forgets);
        if leaving.by == 0 || early {
            self.unmapped(page);
        }
    }

    /// A mapper is gone: what it was to unmap is unmapped, and counts as dirty.
    pub(super) fn abandon_zaps(&mut self, mapper: MapperId) {
        let zaps = std::mem::take(&mut self.zaps[usize::from(mapper.0)]);
        self.silent &= !mapper.bit();
        let is_dirty = !self.has_bug(Bug::DeadMappersPagesAreClean);
        for Asked { pages, is_sample } in
            zaps.asked.into_iter().chain([Asked { pages: zaps.pending, is_sample: false }])
        {
            for page in pages {
                if is_sample {
                    self.drawn_abandoned(mapper, page, is_dirty);
                } else {
                    self.acknowledged(mapper, page, is_dirty);
                }
            }
        }
    }

    /// A page was stored to before it began to leave.
    pub(super) fn found_dirty(&mut self, page: u64, is_dirty: bool) {
        if let Some(leaving) = self.leaving.get_mut(&page).filter(|leaving| !leaving.is_unmapped) {
            leaving.is_dirty |= is_dirty;
        }
    }

    /// When the next mapper becomes silent, if somebody waits for frames meanwhile.
    pub(super) fn next_silence(&self) -> u64 {
        if self.zaps.iter().all(|zaps| zaps.asked.is_empty()) || !self.is_waited_for() {
            return u64::MAX;
        }
        let talking = mappers(self.attached & !self.silent).map(|mapper| &self.zaps[usize::from(mapper.0)]);
        talking.filter(|zaps| !zaps.asked.is_empty()).map(|zaps| zaps.since.0 + SILENT_NS).min().unwrap_or(u64::MAX)
    }

    /// Whether a mapper becomes silent by `now`.
    pub(super) fn finds_silence(&self, now: Nanos) -> bool {
        let mut talking = mappers(self.attached & !self.silent).map(|mapper| &self.zaps[usize::from(mapper.0)]);
        talking.any(|zaps| !zaps.asked.is_empty() && now.0 >= zaps.since.0 + SILENT_NS)
    }

    /// Finds mappers that have become silent; fills that wait for a frame of theirs are begun again elsewhere.
    pub(super) fn look_for_silence(&mut self) {
        for mapper in mappers(self.attached & !self.silent) {
            let zaps = &self.zaps[usize::from(mapper.0)];
            if zaps.asked.is_empty() || self.now.0 < zaps.since.0 + SILENT_NS || self.has_bug(Bug::AwaitTheSilent) {
                continue;
            }
            self.silent |= mapper.bit();
            let waits = |leaving: &Leaving| leaving.frame.filter(|_| leaving.by & mapper.bit() != 0);
            let stuck: Vec<(u64, u32)> =
                self.leaving.iter().filter_map(|(page, leaving)| Some((*page, waits(leaving)?))).collect();
            for (page, frame) in stuck {
                if self.give_up(frame)
                    && let Some(leaving) = self.leaving.get_mut(&page)
                {
                    leaving.frame = None;
                }
            }
        }
    }

    /// Whether a page is mapped by somebody who does not answer.
    pub(super) fn is_stuck(&self, mapped: &Mapped) -> bool {
        mapped.by & self.silent != 0
    }

    /// Nobody maps a page that is leaving.
    fn unmapped(&mut self, page: u64) {
        let Some(leaving) = self.leaving.get_mut(&page) else { unreachable!("the page is leaving") };
        leaving.is_unmapped = true;
        if leaving.is_dirty {
            return self.unsaved.push_back(page);
        }
        let copy = leaving.copy;
        self.counts.left += 1;
        self.vacate(page, copy);
        self.drained(page);
    }

    /// Nobody needs a page's place any more, which has the bytes of this copy.
    fn vacate(&mut self, page: u64, copy: Option<u64>) {
        self.trace.note(Effect::Left { page, copy });
        self.resident.left(page, copy);
    }

    /// Takes the oldest dirty page that has been unmapped to the flash; whether there was one, and room for it.
    pub(super) fn save_next(&mut self) -> bool {
        if self.stalled.as_ref().is_some_and(|(at, _)| self.now < *at) {
            return false;
        }
        let Some(page) = self.unsaved.front().copied() else { return false };
        let copy = match self.save(page) {
            Ok(copy) => copy,
            Err(_) if self.has_bug(Bug::ForgetUnsaved) => {
                self.unsaved.pop_front();
                self.vacate(page, None);
                self.drained(page);
                return true;
            }
            Err(error) => {
                self.stalled = Some((Nanos(self.now.0 + SAVE_AGAIN_NS), error));
                return false;
            }
        };
        self.stalled = None;
        self.unsaved.pop_front();
        self.counts.left += 1;
        self.counts.left_dirty += 1;
        self.vacate(page, Some(copy));
        if !self.unwritten.is_empty() || !self.write(page, copy) {
            self.unwritten.push_back((page, copy));
        }
        if self.retry {
            self.retry_blocked();
        }
        true
    }

    /// Takes a copy of a page's bytes for the flash.
    fn save(&mut self, page: u64) -> Result<u64, StoreError> {
        let old = if self.has_bug(Bug::KeepOldCopy) { self.ftl.payload(page).ok().flatten() } else { None };
        let old = old.and_then(|copy| self.ftl.media().read(copy, &mut self.room).map(|(bytes, _)| *bytes));
        let resident = &mut self.resident;
        let saved = self.ftl.media_mut().save(|bytes| match old {
            Some(old) => *bytes = old,
            None => resident.save(page, bytes),
        });
        self.trace.note(match saved {
            Ok(copy) => Effect::Saved { page, copy, checksum: self.ftl.media().checksum(copy) },
            Err(_) => Effect::NotSaved { page },
        });
        saved
    }

    /// Hands a page to the flash; `false` when too many wait there.
    fn write(&mut self, page: u64, copy: u64) -> bool {
        match self.ftl.write(self.now, page, 1, copy) {
            Ok(Outcome::Done(_)) => self.written(page, Status::Ok),
            Ok(Outcome::Waiting(id)) => _ = self.writes.insert(id, page),
            Err(Refused::Busy) => return false,
            Err(Refused::ReadOnly) => {
                self.ftl.media_mut().forget(copy);
                self.written(page, Status::ReadOnly);
            }
            Err(refused @ Refused::OutOfRange { .. }) => panic!("pages in the cache are in range: {refused}"),
        }
        true
    }

    pub(super) fn write_queue(&mut self) {
        while let Some((page, copy)) = self.unwritten.front().copied() {
            if !self.write(page, copy) {
                break;
            }
            self.unwritten.pop_front();
        }
    }

    /// The flash has the bytes of a page, or will never take them.
    pub(super) fn written(&mut self, page: u64, status: Status) {
        if status == Status::Ok {
            self.dropped.remove(&page);
        } else {
            self.counts.dropped += 1;
            if !self.has_bug(Bug::ForgetRefused) {
                self.dropped.insert(page);
            }
        }
        self.drained(page);
    }

    /// A page has left for good: its newest bytes are below the cache.
    fn drained(&mut self, page: u64) {
        let Some(leaving) = self.leaving.remove(&page) else { unreachable!("the page was leaving") };
        self.cache.drained(page);
        self.retry = true;
        if let Some(frame) = leaving.frame {
            self.frame_left(frame);
        }
        if let Some(command) = leaving.command {
            self.command_page_left(command);
        }
    }
}

pub(super) fn mappers(bits: u64) -> impl Iterator<Item = MapperId> {
    (0..MAPPERS_MAX as u8).map(MapperId).filter(move |mapper| bits & mapper.bit() != 0)
}
