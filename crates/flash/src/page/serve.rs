//! What the host asks for: reads, writes, trims, flushes.

use std::cmp::Reverse;

use super::PageMedia;
use super::ftl::{NONE, PageFtl, Place};
use super::media::TrimRecord;
use super::place::Writer;
use super::planted::PageBug;
use crate::array::{ReadErrors, ReadTime, Wear};
use crate::{BLOCK_BYTES, Nanos};

/// Names a request that waits, in [`PageFtl::poll`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its end is known.
    Done(Done),
    /// It waits; [`PageFtl::poll`] reports its end.
    Waiting(RequestId),
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Status {
    /// As it was asked for.
    #[default]
    Ok,
    /// A unit has more errors than retries and code correct: NVMe's Unrecovered Read Error (02h/81h).
    Uncorrectable,
    /// A write was not taken, or not to its end: the flash has worn out meanwhile. NVMe's Attempted Write
    /// to Read Only Range (01h/82h).
    ReadOnly,
}

/// The end of a request, and what it waited for: the parts add up to `due` less its arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Done {
    /// When. A read's bytes are there; a write's are taken, and safe from a loss of power after the next
    /// flush; a flush's are on the media.
    pub due: Nanos,
    /// How it ended.
    pub status: Status,
    /// A read's wait for its die behind host operations.
    pub wait_host_ns: u64,
    /// A read's wait for its die behind collection.
    pub wait_collection_ns: u64,
    /// A read's wait for its channel.
    pub wait_channel_ns: u64,
    /// Sensing.
    pub array_ns: u64,
    /// Crossing the channel.
    pub transfer_ns: u64,
    /// A read's wait for a page of the map that was not cached.
    pub map_ns: u64,
    /// Sensing again because of bit errors.
    pub retry_ns: u64,
    /// A write's wait for a slot, or for collection to free space; a flush's wait.
    pub wait_space_ns: u64,
}

/// A request that waited and is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completed {
    /// Which one.
    pub id: RequestId,
    /// How it ended.
    pub done: Done,
}

/// Why a request was not taken. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It reaches beyond the logical capacity.
    #[error("units {lpn} to {end} are not all below the capacity of {capacity}; NVMe: LBA Out of Range (00h/80h)")]
    OutOfRange {
        /// First unit.
        lpn: u64,
        /// One past the last unit.
        end: u64,
        /// Logical units.
        capacity: u64,
    },
    /// Too much waits already.
    #[error("too many requests wait; try again after the next event")]
    Busy,
    /// So many blocks have gone bad that the capacity cannot be kept, or a die is dead.
    #[error(
        "the flash is read-only, because it is worn out or a die is dead; NVMe: Attempted Write to Read Only Range (01h/82h)"
    )]
    ReadOnly,
}

/// A write that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    id: RequestId,
    arrived: Nanos,
    lpn: u32,
    left: u32,
    payload: u64,
}

/// A flush that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flush {
    id: RequestId,
    arrived: Nanos,
    sequence: u64,
}

/// A read that waits for a page of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DoneLater {
    pub at: Nanos,
    id: RequestId,
    arrived: Nanos,
    lpn: u32,
    count: u32,
}

/// Most requests that wait at the same time.
const WAITING_MAX: usize = 65_536;

impl<M: PageMedia> PageFtl<M> {
    /// Reads `count` units. What was never written, or was trimmed, takes no time, as does what is still in
    /// memory.
    ///
    /// # Errors
    /// Out of range, or too much waits.
    #[inline]
    pub fn read(&mut self, now: Nanos, lpn: u64, count: u32) -> Result<Outcome, Refused> {
        let lpn = self.check(lpn, count)?;
        self.advance(now);
        if self.map_cache.is_some() {
            let ready = self.load_map_pages(lpn, count);
            if ready > self.now {
                if self.later.len() >= WAITING_MAX {
                    return Err(Refused::Busy);
                }
                let id = self.take_id();
                self.later.push(Reverse(DoneLater { at: ready, id, arrived: self.now, lpn, count }));
                return Ok(Outcome::Waiting(id));
            }
        }
        Ok(Outcome::Done(self.read_units(lpn, count)))
    }

    /// Says that a unit will be asked for, whether there is one or not; changes nothing. The map is larger than what a
    /// processor keeps near: its entry comes while the caller does other things, and a read does not wait for it.
    #[inline]
    pub fn expect(&self, lpn: u64) {
        self.map.prefetch(lpn as usize);
    }

    /// Writes `count` units. `payload` stands for the bytes where the media keeps any.
    ///
    /// # Errors
    /// Out of range, read-only, or too much waits.
    #[inline]
    pub fn write(&mut self, now: Nanos, lpn: u64, count: u32, payload: u64) -> Result<Outcome, Refused> {
        let lpn = self.check(lpn, count)?;
        self.advance(now);
        if self.read_only {
            return Err(Refused::ReadOnly);
        }
        if self.waiting.len() >= WAITING_MAX {
            return Err(Refused::Busy);
        }
        let mut request = Request { id: RequestId(0), arrived: self.now, lpn, left: count, payload };
        let is_done = self.waiting.is_empty() && self.write_units(&mut request);
        self.begin_work();
        if is_done {
            return Ok(Outcome::Done(Done { due: self.now, ..Done::default() }));
        }
        request.id = self.take_id();
        self.waiting.push_back(request);
        // That somebody waits may be what collection waits for.
        self.collector.kick = true;
        self.begin_work();
        self.give_up_if_stuck();
        Ok(Outcome::Waiting(request.id))
    }

    /// Forgets `count` units: they read as zeroes. Takes no time; safe from a loss of power after the next
    /// flush.
    ///
    /// # Errors
    /// Out of range, read-only, or too many trims are not on record yet.
    pub fn trim(&mut self, now: Nanos, lpn: u64, count: u32) -> Result<Done, Refused> {
        let lpn = self.check(lpn, count)?;
        self.advance(now);
        if self.read_only {
            return Err(Refused::ReadOnly);
        }
        if !self.has_room_for_trim() {
            self.save_notes();
            return Err(Refused::Busy);
        }
        self.sequence += 1;
        for lpn in lpn..lpn + count {
            self.kill(lpn, self.sequence);
            self.map.set(lpn, NONE);
            self.lost.remove(&lpn);
        }
        self.counters.units_trimmed += u64::from(count);
        self.change_map_pages(lpn, count);
        self.record_trim(TrimRecord { lpn, count, sequence: self.sequence });
        self.begin_work();
        Ok(Done { due: self.now, ..Done::default() })
    }

    /// Makes everything that was done before survive a loss of power. Ends with [`Status::ReadOnly`] where trims
    /// cannot be put on record any more, after the death of a die.
    ///
    /// # Errors
    /// Too much waits.
    pub fn flush(&mut self, now: Nanos) -> Result<Outcome, Refused> {
        self.advance(now);
        if self.flushes.len() >= WAITING_MAX {
            return Err(Refused::Busy);
        }
        let sequence = self.sequence;
        if self.has_bug(PageBug::FlushWithoutOpenSlots) {
            return Ok(Outcome::Done(Done { due: self.now, ..Done::default() }));
        }
        self.push_out(sequence);
        self.begin_work();
        let is_done = self.durable_sequence() >= sequence || self.has_bug(PageBug::FlushAnsweredEarly);
        if self.config.ftl.checkpoint_superblocks == 0 || is_done {
            return Ok(Outcome::Done(Done { due: self.now, ..Done::default() }));
        }
        let id = self.take_id();
        self.flushes.push_back(Flush { id, arrived: self.now, sequence });
        if self.is_frozen() {
            self.answer_flushes();
        }
        Ok(Outcome::Waiting(id))
    }

    /// Moves time on to `now`, and reports the requests that waited and are done.
    pub fn poll(&mut self, now: Nanos, completed: &mut Vec<Completed>) {
        self.advance(now);
        completed.extend(self.completed.drain(..));
    }

    /// The payload of a unit as a read brings it; `None` when it reads as zeroes or the media keeps none.
    ///
    /// # Errors
    /// When its bytes were lost.
    pub fn payload(&self, lpn: u64) -> Result<Option<u64>, Status> {
        let unit = self.map.get(u32::try_from(lpn).expect("units have numbers of 32 bits"));
        if unit == NONE || !M::KEEPS {
            return Ok(None);
        }
        let slot_units = self.sizes.slot_units;
        let (slot, index) = (unit / slot_units, (unit % slot_units) as usize);
        let found = self.kept_unit(slot, index).ok_or(Status::Uncorrectable)?;
        if found.lpn != lpn as u32 || (found.lost && !self.has_bug(PageBug::ReturnUncorrectable)) {
            return Err(Status::Uncorrectable);
        }
        Ok(Some(found.payload))
    }

    fn check(&self, lpn: u64, count: u32) -> Result<u32, Refused> {
        let capacity = self.config.ftl.logical_units;
        let end = lpn.saturating_add(u64::from(count));
        if end > capacity {
            return Err(Refused::OutOfRange { lpn, end, capacity });
        }
        Ok(lpn as u32)
    }

    fn take_id(&mut self) -> RequestId {
        let id = self.next_request;
        self.next_request.0 += 1;
        id
    }

    /// After a change by the host: collection or a checkpoint may have to begin.
    #[inline]
    fn begin_work(&mut self) {
        if self.collector.kick || self.checkpoints.kick {
            self.collect();
            self.checkpoint();
        }
    }

    /// Writes as many units as there is room for; whether that is all.
    #[inline]
    fn write_units(&mut self, request: &mut Request) -> bool {
        while request.left > 0 {
            let stream = self.host_stream(self.map.get(request.lpn));
            if !self.has_room(stream) || !self.make_map_room(stream) {
                return false;
            }
            if !self.lost.is_empty() {
                self.lost.remove(&request.lpn);
            }
            self.append(stream, request.lpn, Writer::Host { payload: request.payload });
            self.counters.units_written += 1;
            if self.map_cache.is_some() {
                self.change_map_page(request.lpn);
            }
            request.lpn += 1;
            request.left -= 1;
        }
        true
    }

    /// Goes on with writes that wait, in their order.
    pub(crate) fn serve_waiting(&mut self) {
        while let Some(mut request) = self.waiting.pop_front() {
            let is_done = !self.read_only && self.write_units(&mut request);
            self.begin_work();
            if !is_done && !self.read_only {
                self.waiting.push_front(request);
                break;
            }
            let wait_space_ns = self.now.saturating_since(request.arrived);
            let status = if is_done { Status::Ok } else { Status::ReadOnly };
            let done = Done { due: self.now, status, wait_space_ns, ..Done::default() };
            self.completed.push_back(Completed { id: request.id, done });
        }
    }

    pub(crate) fn answer_flushes(&mut self) {
        let durable = self.durable_sequence();
        while let Some(&flush) = self.flushes.front() {
            let is_safe = flush.sequence <= durable;
            if !is_safe {
                self.push_out(flush.sequence);
                if !self.checkpoints.is_stuck() {
                    break;
                }
            }
            self.flushes.pop_front();
            let wait_space_ns = self.now.saturating_since(flush.arrived);
            let status = if is_safe { Status::Ok } else { Status::ReadOnly };
            let done = Done { due: self.now, status, wait_space_ns, ..Done::default() };
            self.completed.push_back(Completed { id: flush.id, done });
        }
    }

    /// A page of the map has arrived for a read.
    pub(crate) fn read_now(&mut self, at: Nanos) {
        while self.later.peek().is_some_and(|Reverse(later)| later.at <= at) {
            let Some(Reverse(later)) = self.later.pop() else { return };
            let mut done = self.read_units(later.lpn, later.count);
            done.map_ns = later.at.saturating_since(later.arrived);
            self.completed.push_back(Completed { id: later.id, done });
        }
    }

    /// Reads units page by page; the slowest page says what was waited for.
    #[inline]
    fn read_units(&mut self, lpn: u32, count: u32) -> Done {
        // One unit that was written, where none was ever lost: most reads.
        if count == 1
            && let unit = self.map.get(lpn)
            && unit != NONE
            && self.lost.is_empty()
            && !M::KEEPS
        {
            self.counters.units_read += 1;
            let done = self.read_page(unit, 1);
            self.counters.reads_uncorrectable += u64::from(done.status == Status::Uncorrectable);
            return done;
        }
        self.read_many(lpn, count)
    }

    fn read_many(&mut self, lpn: u32, count: u32) -> Done {
        self.counters.units_read += u64::from(count);
        let mut slowest = Done { due: self.now, ..Done::default() };
        let mut status = Status::Ok;
        let mut next = lpn;
        while next < lpn + count {
            let unit = self.map.get(next);
            let mut units = 1;
            if unit == NONE {
                next += 1;
                continue;
            }
            // Neighbours in the same page are read with it.
            let page = self.split.page_units.quotient(unit);
            while next + units < lpn + count
                && self.map.has(next + units, unit + units)
                && self.split.page_units.quotient(unit + units) == page
            {
                units += 1;
            }
            let done = self.read_page(unit, units);
            let is_lost = !self.lost.is_empty() && self.lost.range(next..next + units).next().is_some();
            let is_lost =
                is_lost || (M::KEEPS && (next..next + units).any(|lpn| self.payload(u64::from(lpn)).is_err()));
            status = status.max(done.status).max(if is_lost { Status::Uncorrectable } else { Status::Ok });
            if done.due > slowest.due {
                slowest = done;
            }
            next += units;
        }
        self.counters.reads_uncorrectable += u64::from(status == Status::Uncorrectable);
        Done { status, ..slowest }
    }

    #[inline(always)]
    fn read_page(&mut self, unit: u32, units: u32) -> Done {
        let place = self.place(unit);
        if !self.writing.is_empty() && !self.is_programmed(place.superblock, place.row, place.stripe) {
            self.counters.units_read_from_memory += u64::from(units);
            return Done { due: self.now, ..Done::default() };
        }
        if self.is_dead(place.stripe) {
            return Done { due: self.now, status: Status::Uncorrectable, ..Done::default() };
        }
        let errors = self.draw_errors(&place, units);
        let (time, retry_ns) = self.read_array(&place, units, &errors);
        self.counters.pages_read += 1;
        Done {
            due: time.due,
            status: if errors.uncorrectable { Status::Uncorrectable } else { Status::Ok },
            wait_host_ns: time.wait_host_ns,
            wait_collection_ns: time.wait_collection_ns,
            wait_channel_ns: time.wait_channel_ns,
            array_ns: time.array_ns - retry_ns,
            transfer_ns: time.transfer_ns,
            map_ns: 0,
            retry_ns,
            wait_space_ns: 0,
        }
    }

    #[inline]
    pub(crate) fn read_array(&mut self, place: &Place, units: u32, errors: &ReadErrors) -> (ReadTime, u64) {
        let array_ns = self.row_read_ns[place.row as usize] + errors.retry_ns;
        let die = self.stripes[place.stripe as usize].0;
        (self.array.read(self.now, die, array_ns, units * BLOCK_BYTES), errors.retry_ns)
    }

    /// Draws how a read of neighbouring units goes; the unit that takes longest counts.
    #[inline]
    pub(crate) fn draw_errors(&mut self, place: &Place, units: u32) -> ReadErrors {
        if self.has_read_errors { self.draw_worst(place, units) } else { ReadErrors::default() }
    }

    fn draw_worst(&mut self, place: &Place, units: u32) -> ReadErrors {
        let mut worst = ReadErrors::default();
        let superblock = &mut self.superblocks[place.superblock as usize];
        superblock.reads = superblock.reads.saturating_add(1);
        let wear = Wear {
            erases: superblock.erases,
            reads: superblock.reads,
            rest_ns: self.now.0.saturating_sub(superblock.opened_at),
            page_type: place.row % self.config.timing.page_types(),
        };
        for _ in 0..units {
            let drawn = self.config.errors.draw_read(&mut self.rng, &wear);
            worst.uncorrectable |= drawn.uncorrectable;
            worst.retries = worst.retries.max(drawn.retries);
            worst.retry_ns = worst.retry_ns.max(drawn.retry_ns);
        }
        self.counters.read_retries += u64::from(worst.retries);
        worst
    }
}
