//! One virtqueue: a thread that takes requests from the available ring, does them on a volume of its own, and puts
//! them into the used ring.
//!
//! Invariants:
//! 1. What was taken ends once, in the used ring; or the process ends, and then it is still marked as under way, or
//!    nothing behind it has ended ([`Ring::publish`]).
//! 2. A request that the volume has lost with its device is done again from its beginning on another volume: the
//!    guest waits and sees no error, for as long as the device is away.
//! 3. A ring that is not one any more ([`Ring::break_down`]) is not looked at again; what was taken from it ends.
//! 4. Requests under way are as many as the queue has descriptors, and none is taken while those have [`BYTES_MAX`].

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use osier_nvme::stream::Pool;
use virtio_bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::config::{ID_BYTES, Shape};
use super::inflight::Inflight;
use super::request::{Ask, Chain, Cursor, Memory, Request, bytes_of};
use crate::sys::{self, Wait, Waker};
use crate::volume::{BLOCK_BYTES, Ended, Export, Operation, Outcome, Volume, VolumeError};

/// Bytes of data that are under way before no more requests are taken.
const BYTES_MAX: u64 = 16 << 20;
/// Between two looks for a device that is not there.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two lines in the log that it is not there.
const SAYS_AGAIN: Duration = Duration::from_secs(10);

const OK: u8 = VIRTIO_BLK_S_OK as u8;
const IOERR: u8 = VIRTIO_BLK_S_IOERR as u8;

/// How a ring is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// When what is under way has ended, or then: a front end that comes back has the rest done again.
    Finish(Instant),
    /// At once: nobody hears of what is under way.
    Leave,
}

/// What changes while a ring runs.
pub struct Control {
    pub memory: Arc<Memory>,
    /// Tells the driver of what was used.
    pub call: Option<Arc<OwnedFd>>,
    /// Tells the front end that the ring is none.
    pub error: Option<Arc<OwnedFd>>,
    pub is_enabled: bool,
    pub end: Option<End>,
}

/// What a ring's thread and the connection share.
pub struct Shared {
    control: Mutex<Control>,
    waker: Waker,
}

impl Shared {
    pub fn new(control: Control) -> std::io::Result<Shared> {
        Ok(Shared { control: Mutex::new(control), waker: Waker::new()? })
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something, and lets the ring see it.
    pub fn change(&self, change: impl FnOnce(&mut Control)) {
        change(&mut self.lock());
        self.waker.wake();
    }
}

/// Adds one to an eventfd. It fails only when somebody has to read it anyway, or when it is none.
pub fn notify(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// What a ring begins with.
pub struct Setup {
    pub index: u16,
    pub shared: Arc<Shared>,
    pub export: Arc<dyn Export>,
    pub shape: Arc<Shape>,
    /// Whether each write is to be persistent when it ends.
    pub is_writethrough: bool,
    /// Ready, with the place in the available ring from which on nothing was taken.
    pub queue: Queue,
    /// Does not wait when it is read.
    pub kick: OwnedFd,
    pub inflight: Option<Inflight>,
}

/// A request under way.
struct Task {
    request: Request,
    /// Where its data is, whatever is mapped by now.
    memory: Arc<Memory>,
    /// Operations that have not ended.
    left: usize,
    status: u8,
    /// What was read.
    pieces: Vec<Vec<u8>>,
    /// It has ended, with so many bytes written.
    written: Option<u32>,
}

/// See the module.
pub struct Ring {
    index: u16,
    shared: Arc<Shared>,
    export: Arc<dyn Export>,
    shape: Arc<Shape>,
    is_writethrough: bool,
    queue: Queue,
    kick: Option<OwnedFd>,
    inflight: Option<Inflight>,
    memory: Arc<Memory>,
    volume: Option<Box<dyn Volume>>,
    /// By their first descriptor.
    tasks: Vec<Option<Task>>,
    /// Those that are not in the used ring, in the order in which they were taken.
    order: VecDeque<u16>,
    /// Bytes of their data.
    bytes: u64,
    backlog: VecDeque<(u64, Operation)>,
    pool: Pool,
    ended: Vec<Ended>,
    /// Requests were put into the used ring, and the driver was not told yet.
    has_used: bool,
    is_broken: bool,
    /// The next try to open a volume, and the next time that it may be said that there is none.
    tries: Instant,
    says: Instant,
}

impl Ring {
    pub fn new(setup: Setup) -> Ring {
        let Setup { index, shared, export, shape, is_writethrough, queue, kick, inflight } = setup;
        let memory = Arc::clone(&shared.lock().memory);
        let tasks = (0..queue.size()).map(|_| None).collect();
        let now = Instant::now();
        Ring {
            index,
            shared,
            export,
            shape,
            is_writethrough,
            queue,
            kick: Some(kick),
            inflight,
            memory,
            volume: None,
            tasks,
            order: VecDeque::new(),
            bytes: 0,
            backlog: VecDeque::new(),
            pool: Pool::default(),
            ended: Vec::new(),
            has_used: true,
            is_broken: false,
            tries: now,
            says: now,
        }
    }

    /// Runs until it is to end; the place in the available ring from which on a front end has to go on.
    pub fn run(mut self) -> u16 {
        self.resume();
        loop {
            let (end, is_enabled) = {
                let control = self.shared.lock();
                if !Arc::ptr_eq(&self.memory, &control.memory) {
                    self.memory = Arc::clone(&control.memory);
                }
                (control.end, control.is_enabled)
            };
            match end {
                Some(End::Leave) => break,
                Some(End::Finish(_)) if self.order.is_empty() => break,
                Some(End::Finish(until)) if Instant::now() >= until => break,
                _ => {}
            }
            let may_take = is_enabled && end.is_none();
            if may_take {
                self.take();
            }
            self.advance();
            self.tell();
            self.wait(may_take, end.is_some());
        }
        // Without memory for what is under way, what was taken and has not ended is taken again: it is the last.
        if self.inflight.is_some() { self.queue.next_avail() } else { self.queue.next_used() }
    }

    /// Begins again what was under way when a process before this one died.
    fn resume(&mut self) {
        let Ok(used) = self.queue.used_idx(&*self.memory, Ordering::Acquire) else {
            return self.break_down("its used ring is not there");
        };
        self.queue.set_next_used(used.0);
        let Some(inflight) = &mut self.inflight else { return };
        let heads = inflight.recover(used.0);
        // Whatever was taken is either used or under way (vhost-user, "Inflight I/O tracking").
        self.queue.set_next_avail(used.0.wrapping_add(heads.len() as u16));
        if !heads.is_empty() {
            tracing::info!(ring = self.index, requests = heads.len(), "requests are begun again");
        }
        heads.into_iter().for_each(|head| self.begin(head));
    }

    /// Takes what is available.
    fn take(&mut self) {
        while !self.is_broken && self.bytes < BYTES_MAX {
            let memory = Arc::clone(&self.memory);
            let next = match self.queue.iter(&*memory) {
                Ok(mut available) => available.next().map(|chain| chain.head_index()),
                Err(_) => return self.break_down("its available ring has an index that cannot be"),
            };
            let Some(head) = next else {
                match self.queue.enable_notification(&*memory) {
                    Ok(true) => continue,
                    Ok(false) => return,
                    Err(_) => return self.break_down("its used ring is not there"),
                }
            };
            match self.tasks.get(usize::from(head)) {
                None => return self.break_down("a request begins beyond the descriptors"),
                Some(Some(_)) => return self.break_down("a request is available that is under way"),
                Some(None) => {}
            }
            if let Some(inflight) = &mut self.inflight {
                inflight.begin(head);
            }
            self.begin(head);
        }
    }

    /// The driver breaks the rules of the ring itself: nobody can say what it wants.
    fn break_down(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_broken, true) {
            tracing::warn!(ring = self.index, "a virtqueue is not served until its driver begins anew: {why}");
            if let Some(error) = &self.shared.lock().error {
                notify(error);
            }
        }
    }

    /// Begins a request.
    fn begin(&mut self, head: u16) {
        let walked = Chain::walk(&self.memory, self.queue.desc_table(), self.queue.size(), head);
        let request = match walked {
            Ok(chain) => Request::parse(&self.memory, chain, &self.shape),
            Err(why) => {
                tracing::debug!(ring = self.index, ?why, "a chain of descriptors is none");
                Request { ask: Ask::Refused(IOERR), data: Vec::new(), status: None }
            }
        };
        self.bytes += bytes_of_task(&request);
        let memory = Arc::clone(&self.memory);
        let task = Task { request, memory, left: 0, status: OK, pieces: Vec::new(), written: None };
        self.order.push_back(head);
        self.start(head, task);
    }

    /// Puts a request's operations into the backlog, or ends it when it has none.
    fn start(&mut self, head: u16, mut task: Task) {
        self.submit_all(head, &mut task);
        let is_over = task.left == 0;
        self.tasks[usize::from(head)] = Some(task);
        if is_over {
            self.end_task(head);
        }
    }

    fn submit_all(&mut self, head: u16, task: &mut Task) {
        let fua = self.is_writethrough;
        let piece_bytes = self.shape.transfer_blocks_max as usize * BLOCK_BYTES;
        let data_bytes = bytes_of(&task.request.data) as usize;
        let mut submit = |piece: usize, operation| {
            self.backlog.push_back((u64::from(head) | (piece as u64) << 32, operation));
            piece + 1
        };
        match &task.request.ask {
            Ask::Read { block } => {
                let pieces = data_bytes.div_ceil(piece_bytes);
                for piece in 0..pieces {
                    let at = piece * piece_bytes;
                    let buffer = self.pool.take(piece_bytes.min(data_bytes - at));
                    task.left = submit(piece, Operation::Read { block: block + (at / BLOCK_BYTES) as u64, buffer });
                }
                task.pieces.resize_with(pieces, Vec::new);
            }
            Ask::Write { block } => {
                let mut from = Cursor::new(&task.request.data);
                let mut written = Vec::with_capacity(data_bytes.div_ceil(piece_bytes));
                for at in (0..data_bytes).step_by(piece_bytes) {
                    let mut data = self.pool.take(piece_bytes.min(data_bytes - at));
                    if !from.read(&task.memory, &mut data) {
                        task.status = IOERR;
                        return;
                    }
                    written.push(Operation::Write { block: block + (at / BLOCK_BYTES) as u64, data, fua });
                }
                for (piece, operation) in written.into_iter().enumerate() {
                    task.left = submit(piece, operation);
                }
            }
            Ask::Flush => task.left = submit(0, Operation::Flush),
            Ask::Discard(ranges) => {
                for (piece, range) in ranges.iter().enumerate() {
                    task.left = submit(piece, Operation::Deallocate { block: range.block, blocks: range.blocks });
                }
            }
            Ask::WriteZeroes(ranges) => {
                for (piece, range) in ranges.iter().enumerate() {
                    let (block, blocks, may_deallocate) = (range.block, range.blocks, range.may_deallocate);
                    let operation = Operation::WriteZeroes { block, blocks, may_deallocate, fua };
                    task.left = submit(piece, operation);
                }
            }
            Ask::Id => task.pieces = vec![self.shape.id[..ID_BYTES.min(data_bytes)].to_vec()],
            Ask::Refused(status) => task.status = *status,
        }
    }

    /// Goes on with the volume, if there is one.
    fn advance(&mut self) {
        if self.order.is_empty() {
            return;
        }
        self.open();
        while let Some(volume) = &mut self.volume {
            while let Some((token, operation)) = self.backlog.pop_front() {
                if let Err(operation) = volume.submit(token, operation) {
                    self.backlog.push_front((token, operation));
                    break;
                }
            }
            let mut ended = std::mem::take(&mut self.ended);
            volume.reap(&mut ended);
            let has_ended = !ended.is_empty();
            let mut is_lost = false;
            for Ended { token, outcome } in ended.drain(..) {
                is_lost |= self.operation_ended(token, outcome);
            }
            self.ended = ended;
            // The device has been away for too long for the volume, not for the guest.
            if is_lost {
                self.volume = None;
            }
            if !has_ended || self.backlog.is_empty() {
                return;
            }
        }
    }

    /// Opens a volume if there is none, now and then.
    fn open(&mut self) {
        let now = Instant::now();
        if self.volume.is_some() || now < self.tries {
            return;
        }
        match self.export.open() {
            Ok(volume) => {
                self.volume = Some(volume);
                // What had been under way on the one before, or waited for this one.
                self.backlog.clear();
                for head in self.order.clone() {
                    let place = usize::from(head);
                    let waits = self.tasks[place].as_ref().is_some_and(|task| task.written.is_none());
                    if waits && let Some(mut task) = self.tasks[place].take() {
                        (task.left, task.status) = (0, OK);
                        self.start(head, task);
                    }
                }
            }
            Err(why) => {
                self.tries = now + PAUSE;
                if now >= self.says {
                    self.says = now + SAYS_AGAIN;
                    tracing::warn!(ring = self.index, %why, "a guest waits for the device");
                }
            }
        }
    }

    /// Whether the volume is lost.
    fn operation_ended(&mut self, token: u64, outcome: Result<Outcome, VolumeError>) -> bool {
        let (head, piece) = (token as u16, (token >> 32) as usize);
        let Some(task) = self.tasks.get_mut(usize::from(head)).and_then(Option::as_mut) else { return false };
        match outcome {
            Ok(Outcome::Buffer { buffer, .. }) => match task.pieces.get_mut(piece) {
                Some(place) => *place = buffer,
                None => self.pool.give(buffer),
            },
            Ok(Outcome::Done | Outcome::Extents(_)) => {}
            Err(VolumeError::ShutDown) => return true,
            Err(_) => task.status = IOERR,
        }
        task.left -= 1;
        if task.left == 0 {
            self.end_task(head);
        }
        false
    }

    /// Everything of a request has ended: the guest's memory gets what was read, and the status.
    fn end_task(&mut self, head: u16) {
        let Some(task) = self.tasks.get_mut(usize::from(head)).and_then(Option::as_mut) else { return };
        let mut written = 0;
        let mut to = Cursor::new(&task.request.data);
        for buffer in task.pieces.drain(..) {
            // A cursor that has failed once is not where it should be.
            if task.status == OK && !to.write(&task.memory, &buffer) {
                task.status = IOERR;
            }
            written += buffer.len() as u64;
            self.pool.give(buffer);
        }
        let room = match task.request.ask {
            Ask::Write { .. } => 0,
            _ => bytes_of(&task.request.data),
        };
        let Some(status) = task.request.status else { return self.publish(head, 0) };
        if task.memory.write_obj(task.status, GuestAddress(status)).is_err() {
            return self.publish(head, 0);
        }
        // The bytes that are written from the first on (2.7.8.2): the status is the last one.
        let length = match task.status {
            OK if written == room => written + 1,
            OK => written,
            _ if room == 0 => 1,
            _ => 0,
        };
        self.publish(head, u32::try_from(length).unwrap_or(u32::MAX));
    }

    /// Puts a request into the used ring. Without memory for what is under way a front end knows of a death only how
    /// many were used, so they are used in the order in which they were taken.
    fn publish(&mut self, head: u16, length: u32) {
        let Some(task) = self.tasks.get_mut(usize::from(head)).and_then(Option::as_mut) else { return };
        task.written = Some(length);
        if self.inflight.is_some() {
            self.order.retain(|other| *other != head);
            return self.use_up(head);
        }
        while let Some(&first) = self.order.front() {
            let is_over = self.tasks[usize::from(first)].as_ref().is_some_and(|task| task.written.is_some());
            if !is_over {
                return;
            }
            self.order.pop_front();
            self.use_up(first);
        }
    }

    fn use_up(&mut self, head: u16) {
        let Some(task) = self.tasks[usize::from(head)].take() else { return };
        self.bytes -= bytes_of_task(&task.request);
        if let Some(inflight) = &self.inflight {
            inflight.ending(head);
        }
        if self.queue.add_used(&*self.memory, head, task.written.unwrap_or(0)).is_err() {
            return self.break_down("its used ring is not there");
        }
        if let Some(inflight) = &self.inflight {
            inflight.ended(head, self.queue.next_used());
        }
        self.has_used = true;
    }

    /// Tells the driver of what was used, if it wants to know.
    fn tell(&mut self) {
        if !std::mem::take(&mut self.has_used) {
            return;
        }
        if self.queue.needs_notification(&*self.memory).unwrap_or(true)
            && let Some(call) = &self.shared.lock().call
        {
            notify(call);
        }
    }

    /// Waits until there is something to do.
    fn wait(&mut self, may_take: bool, ends: bool) {
        let mut milliseconds = None;
        let mut waits = Vec::with_capacity(3);
        waits.push(Wait { fd: self.shared.waker.as_fd(), to_read: true, to_write: false });
        let takes = may_take && !self.is_broken && self.bytes < BYTES_MAX;
        if let Some(kick) = self.kick.as_ref().filter(|_| takes) {
            waits.push(Wait { fd: kick.as_fd(), to_read: true, to_write: false });
        }
        let is_busy = !self.order.is_empty();
        match &mut self.volume {
            Some(volume) if is_busy => {
                if !volume.arm() {
                    return;
                }
                waits.push(Wait { fd: volume.event(), to_read: true, to_write: false });
            }
            None if is_busy => milliseconds = Some(PAUSE.as_millis() as u32),
            _ => {}
        }
        if ends {
            // It may have to end before anything else happens.
            milliseconds = Some(PAUSE.as_millis() as u32);
        }
        if let Err(error) = sys::wait(&waits, milliseconds) {
            tracing::error!(ring = self.index, %error, "a virtqueue cannot wait; trying again");
            std::thread::sleep(PAUSE);
        }
        drop(waits);
        self.shared.waker.clear();
        self.read_kick();
    }

    fn read_kick(&mut self) {
        let Some(kick) = &self.kick else { return };
        let mut count = [0_u8; 8];
        match rustix::io::read(kick, &mut count) {
            Ok(0) => {}
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            Err(_) => {}
        }
        // What ends or fails is no eventfd, and would be ready for ever.
        self.kick = None;
        self.break_down("what should wake it is no eventfd");
    }
}

/// Bytes that a request counts with.
fn bytes_of_task(request: &Request) -> u64 {
    match request.ask {
        Ask::Read { .. } | Ask::Write { .. } => bytes_of(&request.data),
        _ => 0,
    }
}
