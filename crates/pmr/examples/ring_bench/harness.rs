//! What every measurement needs: two pinned processes, percentiles, processor time, and the output line.

use anyhow::{Context, ensure};
use osier_pmr::{Backing, Doorbell, Object, ObjectKind, Region, Ring, SharedLines, ring_bytes};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest that one process waits for the other to start.
const MEETING_LIMIT: Duration = Duration::from_secs(10);

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Enough for figures.
    Full,
    /// Enough to see that it works.
    Quick,
}

impl Effort {
    /// A count for full effort, or a twentieth of it.
    pub fn count(self, full: u64) -> u64 {
        if self == Self::Full { full } else { (full / 20).max(1) }
    }

    /// How many series the median is taken of.
    pub fn series(self) -> usize {
        if self == Self::Full { 9 } else { 1 }
    }
}

/// One measured figure.
pub struct Line {
    pub name: String,
    pub value: Option<f64>,
    pub unit: &'static str,
    pub peer: Option<(String, f64)>,
    /// The most that the value, or the ratio where `bar_on_ratio`, may be.
    pub bar: Option<f64>,
    pub bar_on_ratio: bool,
    pub note: String,
}

impl Line {
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        let (name, value) = (name.into(), Some(value));
        Self { name, value, unit, peer: None, bar: None, bar_on_ratio: false, note: String::new() }
    }

    pub fn peer(mut self, name: impl Into<String>, value: f64) -> Self {
        self.peer = Some((name.into(), value));
        self
    }

    pub fn bar(mut self, most: f64) -> Self {
        self.bar = Some(most);
        self
    }

    pub fn ratio_bar(mut self, most: f64) -> Self {
        (self.bar, self.bar_on_ratio) = (Some(most), true);
        self
    }

    fn ratio(&self) -> Option<f64> {
        Some(self.value? / self.peer.as_ref()?.1)
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = |value: Option<f64>| value.map_or("null".to_owned(), |value| format!("{value:.3}"));
        let peer = self.peer.as_ref().map_or("null".to_owned(), |(name, _)| format!("{name:?}"));
        let judged = if self.bar_on_ratio { self.ratio() } else { self.value };
        let pass = self.bar.map_or("null".to_owned(), |bar| judged.is_some_and(|judged| judged <= bar).to_string());
        write!(f, "{{\"name\":{:?},\"value\":{},\"unit\":{:?}", self.name, number(self.value), self.unit)?;
        write!(f, ",\"peer\":{peer},\"peer_value\":{}", number(self.peer.as_ref().map(|(_, value)| *value)))?;
        write!(f, ",\"ratio\":{},\"bar\":{},\"pass\":{pass}", number(self.ratio()), number(self.bar))?;
        if !self.note.is_empty() {
            write!(f, ",\"note\":{:?}", self.note)?;
        }
        f.write_str("}")
    }
}

/// A region with a ring and a doorbell each way, and words to meet at.
pub struct Stage {
    pub there: Ring<SharedLines>,
    pub back: Ring<SharedLines>,
    pub there_bell: Doorbell,
    pub back_bell: Doorbell,
    pub words: Object,
}

impl Stage {
    pub fn new(capacity: usize) -> anyhow::Result<Self> {
        let region = Region::create(&Backing::Memfd, 1 << 20, [0; 16])?;
        let ring = |name| -> anyhow::Result<Ring<SharedLines>> {
            let object = region.allocate(name, ObjectKind::RING, ring_bytes(capacity), 4096)?;
            object.prefault()?;
            Ok(Ring::format(SharedLines::new(&object, 0, (object.len() / 64) as usize), 1)?)
        };
        let bells = region.allocate("bells", ObjectKind::DOORBELL, 256, 128)?;
        let words = region.allocate("words", ObjectKind::RECORD, 4096, 4096)?;
        words.prefault()?;
        Ok(Self {
            there: ring("there")?,
            back: ring("back")?,
            there_bell: Doorbell::new(&bells, 0),
            back_bell: Doorbell::new(&bells, 128),
            words,
        })
    }

    /// A word of a line of its own, 128 bytes from the next.
    pub fn word(&self, index: u64) -> &AtomicU64 {
        self.words.word64(index * 128)
    }

    /// The word at which both sides meet before they start.
    const MEETING: u64 = 31;

    /// Waits until both processes are here.
    pub fn meet(&self) -> anyhow::Result<()> {
        let word = self.word(Self::MEETING);
        word.fetch_add(1, Ordering::AcqRel);
        let start = Instant::now();
        while word.load(Ordering::Acquire) < 2 {
            ensure!(start.elapsed() < MEETING_LIMIT, "the other process did not come within {MEETING_LIMIT:?}");
            std::hint::spin_loop();
        }
        Ok(())
    }
}

/// Pins the calling thread to one processor.
pub fn pin(processor: usize) -> anyhow::Result<()> {
    // SAFETY: an all-zero set is a valid value of that plain struct.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is live, and processors 0 and 1 are far below its size.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: the set is live and of the size that is stated.
    let pinned = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    ensure!(pinned == 0, "cannot pin to processor {processor}: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Runs `here` on processor 0 and `there` in a child process on processor 1; returns what `here` returned
/// and the child's processor time.
pub fn in_two_processes<T>(
    here: impl FnOnce() -> anyhow::Result<T>,
    there: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<(T, Duration)> {
    // Before the fork, so that the child needs no turn on the parent's processor, which may spin by then.
    pin(1)?;
    // SAFETY: this program has no other thread at this point, so the child may do anything.
    let child = unsafe { libc::fork() };
    ensure!(child >= 0, "cannot fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: a plain call about this process; a child must not outlive a parent that failed.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let done = catch_unwind(AssertUnwindSafe(there));
        let code = match done {
            Ok(Ok(())) => 0,
            Ok(Err(error)) => {
                eprintln!("second process: {error:#}");
                1
            }
            Err(_) => 2,
        };
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    pin(0)?;
    let result = here()?;
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the child is ours and the pointers are to live values.
    let waited = unsafe { libc::wait4(child, &raw mut status, 0, &raw mut usage) };
    ensure!(waited == child && status == 0, "the second process failed with status {status}");
    Ok((result, processor_time(&usage)))
}

/// Processor time of this process so far.
pub fn own_processor_time() -> anyhow::Result<Duration> {
    // SAFETY: an all-zero rusage is a valid value of that plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live value.
    let got = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    ensure!(got == 0, "cannot read processor time: {}", std::io::Error::last_os_error());
    Ok(processor_time(&usage))
}

fn processor_time(usage: &libc::rusage) -> Duration {
    let span = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.cast_unsigned()) + Duration::from_micros(time.tv_usec.cast_unsigned())
    };
    span(usage.ru_utime) + span(usage.ru_stime)
}

/// A percentile of samples, which it sorts.
pub fn percentile(samples: &mut [u64], permille: usize) -> anyhow::Result<f64> {
    samples.sort_unstable();
    let last = samples.len().checked_sub(1).context("no samples")?;
    Ok(samples[last * permille / 1000] as f64)
}

/// The median of a few figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
