//! One program that maps the window, as the device sees it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use osier_device::Nanos;
use osier_device::window::histogram::{Histogram, Measure};
use osier_device::window::message::{
    Ask, FIGURES, FIGURES_AT, Figures, HELPS_AT, LANE_BYTES, LANES, LANES_USED_AT, PAGE_TABLES_BYTES, PROCESSOR_AT,
    PageTables, RING_ENTRIES, Reply, SAMPLING_AT, ToMapper, Words,
};
use osier_device::window::{MapperId, ZAP_PAGES_MAX};
use osier_pmr::words::Lines;
use osier_pmr::{
    Consumer, DOORBELL_BYTES, Doorbell, Object, ObjectKind, PmrError, Producer, Region, Ring, RingError, SharedLines,
    pass, ring_bytes,
};

use super::pagemap::PageMap;
use super::{SamplingCost, clock, has_ended};

/// `SO_PEERPIDFD` of Linux's `socket.h`, which the libc crate lacks.
const SO_PEERPIDFD: libc::c_int = 77;

/// Ends of commands that wait for a program to read them. Zaps that wait need no bound: there are only so many pages.
const UNREAD_ENDS_MAX: usize = 8 * RING_ENTRIES;

/// Why a program could not attach.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachError {
    #[error(transparent)]
    Segment(#[from] PmrError),
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("cannot watch the program's process: {0}")]
    Watch(#[from] io::Error),
}

/// Pages that the program was asked to unmap.
#[derive(Clone, Copy, Debug)]
struct Zapped {
    pages: [u64; ZAP_PAGES_MAX],
    count: usize,
    /// A bit for each page that is known to be dirty, and, up to `looked`, for each that was found so.
    dirty: u64,
    looked: usize,
}

/// See the module.
pub(super) struct Mapper {
    pub id: MapperId,
    since: Nanos,
    /// The process that attached.
    pub pid: i32,
    /// It does not unmap what it was asked to, and that was said.
    pub is_silent: bool,
    /// It said so, died, or said what nobody says in order.
    pub has_left: bool,
    lanes: SharedLines,
    /// The number of the latest fault of each lane.
    seen: [u64; LANES],
    /// When that was taken.
    taken_ns: [u64; LANES],
    /// A bit for each lane whose fault is not answered.
    asked: u64,
    words: Object,
    /// How long its faults took, as it counts them.
    timing: Object,
    to_device: Consumer<SharedLines>,
    to_mapper: Producer<SharedLines>,
    /// Entries that the ring had no room for.
    backlog: VecDeque<ToMapper>,
    /// Of these, the ends of commands.
    unread_ends: usize,
    has_sent: bool,
    /// What it was asked to unmap, in order; the first so many it has.
    zapped: VecDeque<Zapped>,
    acknowledged: usize,
    /// Its page tables, once it has passed them on.
    page_map: Option<PageMap>,
    /// It has said that they do not tell what it stores to.
    pub is_untracked: bool,
    /// It has acknowledged something since the device last looked around: it unmaps without being woken.
    pub is_unmapping: bool,
    bell: Doorbell,
    socket: UnixStream,
    pidfd: OwnedFd,
}

fn ring(region: &Region, name: &str) -> Result<Ring<SharedLines>, AttachError> {
    let bytes = ring_bytes(RING_ENTRIES);
    let object = region.allocate(name, ObjectKind::RING, bytes, 128)?;
    Ok(Ring::format(SharedLines::new(&object, 0, (bytes / 64) as usize), 1)?)
}

impl Mapper {
    /// Lays the segment out.
    pub fn new(id: MapperId, region: &Region, socket: UnixStream) -> Result<Mapper, AttachError> {
        let lanes = region.allocate("lanes", ObjectKind::RING, LANES as u64 * LANE_BYTES, 128)?;
        let bell = region.allocate("bell", ObjectKind::DOORBELL, DOORBELL_BYTES, 128)?;
        let words = region.allocate("words", ObjectKind::STATISTICS, 256, 128)?;
        let timing = region.allocate("timing", ObjectKind::STATISTICS, Measure::BYTES, 128)?;
        let (pidfd, pid) = peer_process(&socket)?;
        Ok(Mapper {
            id,
            since: clock(),
            pid,
            is_silent: false,
            has_left: false,
            lanes: SharedLines::new(&lanes, 0, LANES * 2),
            seen: [0; LANES],
            taken_ns: [0; LANES],
            asked: 0,
            words,
            timing,
            to_device: ring(region, "to-device")?.consumer(),
            to_mapper: ring(region, "to-mapper")?.producer(),
            backlog: VecDeque::new(),
            unread_ends: 0,
            has_sent: false,
            zapped: VecDeque::new(),
            acknowledged: 0,
            page_map: None,
            is_untracked: false,
            is_unmapping: false,
            bell: Doorbell::new(&bell, 0),
            pidfd,
            socket,
        })
    }

    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Whether its process has ended.
    pub fn is_dead(&self) -> bool {
        has_ended(&self.pidfd)
    }

    /// It said what nobody says in order: nothing that it says is believed any more.
    pub fn fail(&mut self, why: &str) {
        tracing::warn!(mapper = self.id.0, why, "a program that maps the window is detached");
        self.has_left = true;
    }

    /// Lanes that were ever used; the program says so before it uses one.
    fn lanes_used(&self) -> usize {
        (self.words.word64(LANES_USED_AT).load(Ordering::Acquire) as usize).min(LANES)
    }

    fn new_fault(&self, lane: usize) -> Option<u64> {
        let number = self.lanes.line(lane * 2)[0].load(Ordering::Acquire);
        (number != self.seen[lane] && self.asked >> lane & 1 == 0).then_some(number)
    }

    /// Whether it has said something.
    pub fn has_message(&self) -> bool {
        (0..self.lanes_used()).any(|lane| self.new_fault(lane).is_some()) || self.to_device.has_entry()
    }

    /// A fault that has not been taken.
    pub fn next_fault(&mut self, now: Nanos) -> Option<(u16, Ask)> {
        let (lane, number) = (0..self.lanes_used()).find_map(|lane| Some((lane, self.new_fault(lane)?)))?;
        let mut words = [0; 8];
        self.lanes.load_rest(lane * 2, &mut words);
        (self.seen[lane], self.taken_ns[lane]) = (number, now.0);
        self.asked |= 1 << lane;
        Some((lane as u16, Ask::decode(&words)))
    }

    /// An entry of its ring.
    pub fn next_entry(&mut self) -> Option<Words> {
        self.to_device.pop()
    }

    /// Takes its page tables, if it has just passed them on. Until it does, and if it never does, what it unmaps counts
    /// as dirty. Whether it has just said that it always will.
    pub fn take_page_map(&mut self) -> bool {
        let mut bytes = [0; PAGE_TABLES_BYTES];
        if self.page_map.is_some() || self.is_untracked {
            return false;
        }
        let Ok((PAGE_TABLES_BYTES, files)) = pass::receive(&self.socket, &mut bytes) else { return false };
        let tables = PageTables::decode(bytes);
        self.page_map = files.into_iter().next().zip(tables).and_then(|(file, tables)| PageMap::new(file, tables));
        self.is_untracked = self.page_map.is_none();
        self.is_untracked
    }

    /// Asks it to unmap pages; those whose bit is set in `known` are dirty.
    pub fn zap(&mut self, pages: &[u64], known: u64, is_sample: bool) {
        let mut all = [0; ZAP_PAGES_MAX];
        all[..pages.len()].copy_from_slice(pages);
        self.zapped.push_back(Zapped { pages: all, count: pages.len(), dirty: known, looked: 0 });
        self.send(&ToMapper::Zap { count: pages.len(), pages: all, is_sample });
    }

    /// It has unmapped the oldest pages that it had not; `false` if there are none.
    pub fn acknowledge(&mut self) -> bool {
        self.is_unmapping = true;
        self.acknowledged += 1;
        self.acknowledged <= self.zapped.len()
    }

    /// Whether pages that it has unmapped have not been looked at.
    pub fn has_unlooked(&self) -> bool {
        self.acknowledged > 0
    }

    /// Looks at a page that it has unmapped. With the last of those that went together, which of them are dirty.
    /// `is_changed` compares a page's bytes with those that it came with.
    pub fn look(&mut self, is_changed: impl Fn(u64) -> bool) -> Option<u64> {
        if self.acknowledged == 0 {
            return None;
        }
        let zapped = self.zapped.front_mut()?;
        while zapped.looked < zapped.count {
            let index = zapped.looked;
            zapped.looked += 1;
            if zapped.dirty >> index & 1 == 0 {
                let page = zapped.pages[index];
                let was_stored_to = |map: &PageMap| map.was_written(page) || (map.has_to_compare() && is_changed(page));
                let is_dirty = self.page_map.as_ref().is_none_or(was_stored_to);
                zapped.dirty |= u64::from(is_dirty) << index;
                break;
            }
        }
        if zapped.looked < zapped.count {
            return None;
        }
        self.acknowledged -= 1;
        self.zapped.pop_front().map(|zapped| zapped.dirty)
    }

    /// When the device took the fault of a lane.
    pub fn taken_ns(&self, lane: u16) -> u64 {
        self.taken_ns[usize::from(lane)]
    }

    /// Answers the fault of a lane.
    pub fn answer(&mut self, lane: u16, reply: &Reply) {
        let lane = usize::from(lane);
        let line = lane * 2 + 1;
        self.lanes.store_rest(line, &reply.encode());
        self.asked &= !(1 << lane);
        self.lanes.line(line)[0].store(self.seen[lane], Ordering::Release);
    }

    /// Sends an entry; it arrives with [`Mapper::flush`] at the latest.
    pub fn send(&mut self, message: &ToMapper) {
        self.has_sent = true;
        if !self.backlog.is_empty() || self.to_mapper.push(message.encode()).is_err() {
            self.backlog.push_back(message.clone());
            self.unread_ends += usize::from(is_end(message));
        }
        if self.unread_ends > UNREAD_ENDS_MAX && !self.has_left {
            self.fail("it sends commands and never reads how they ended");
        }
    }

    /// Wakes the program if something was sent that does not wait for its next fault.
    pub fn flush(&mut self, is_urgent: bool) {
        while let Some(message) = self.backlog.front() {
            if self.to_mapper.push(message.encode()).is_err() {
                break;
            }
            self.unread_ends -= usize::from(is_end(message));
            self.backlog.pop_front();
        }
        if self.has_sent && (is_urgent || self.words.word64(HELPS_AT).load(Ordering::Relaxed) == 0) {
            self.has_sent = false;
            self.bell.ring();
        }
    }

    /// What samples have cost the program so far, as it says, and how long it has been there.
    pub fn sampling(&self, now: Nanos) -> SamplingCost {
        let ns = self.words.word64(SAMPLING_AT).load(Ordering::Relaxed);
        SamplingCost { ns, program_ns: now.0.saturating_sub(self.since.0) }
    }

    /// Writes the figures where the program reads them.
    pub fn publish(&mut self, figures: &Figures) {
        // SAFETY: a plain call.
        let processor = unsafe { libc::sched_getcpu() };
        self.words.word64(PROCESSOR_AT).store(u64::try_from(processor + 1).unwrap_or(0), Ordering::Relaxed);
        const { assert!(FIGURES_AT + FIGURES as u64 * 8 <= HELPS_AT) };
        for (index, word) in (0..).zip(figures.encode()) {
            self.words.word64(FIGURES_AT + index * 8).store(word, Ordering::Relaxed);
        }
    }

    /// How long its faults took, as it says.
    pub fn timing(&self, measure: Measure) -> Histogram {
        Histogram::read(|index| self.timing.word64(measure.offset() + index * 8).load(Ordering::Relaxed))
    }
}

fn is_end(message: &ToMapper) -> bool {
    matches!(message, ToMapper::Done { .. })
}

/// A value of a socket that says who is at its other end.
fn peer<T>(socket: &UnixStream, option: libc::c_int, mut value: T) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: both pointers are to live, writable values of the stated length.
    let got = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length)
    };
    if got == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// The process at the other end of a socket, and its number.
fn peer_process(socket: &UnixStream) -> io::Result<(OwnedFd, i32)> {
    let libc::ucred { pid, .. } = peer(socket, libc::SO_PEERCRED, libc::ucred { pid: 0, uid: 0, gid: 0 })?;
    let fd = match peer::<libc::c_int>(socket, SO_PEERPIDFD, -1) {
        Ok(fd) => fd,
        // Before Linux 6.5 by its number, which the kernel does not give to another while the socket's creator lives.
        // SAFETY: a plain call.
        Err(_) => unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32 },
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok((unsafe { OwnedFd::from_raw_fd(fd) }, pid))
}
