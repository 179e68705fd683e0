//! What the bare machine does with two processes on the processors of the domains that do nothing else: the peers of
//! the bars, and how much of a figure is the machine's.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use osier_pmr::{Backing, Doorbell, Object, ObjectKind, Region, WaitPolicy, Waiter};
use osier_runtime::clock;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::{Failure, share};

/// Round trips of the ping-pong.
const ROUNDS: u64 = 1_000_000;
/// Spells of the machine that are measured, and the time between two of them: as many as moves, and as often.
const SPELLS: u64 = 10_000;
const SPELL_EVERY_NS: u64 = 100_000;
/// For how long gaps are counted, and from what length on.
const GAPS_SECONDS: u64 = 2;
const GAP_NS: u64 = 5_000;
/// Wakes of a sleeper, and how long it is left to sleep before each.
const WAKES: u64 = 5_000;
const SLEEP_NS: u64 = 100_000;

/// Where things lie in the shared object: each on cache lines of its own.
const BALL_AT: u64 = 0;
const BELL_AT: u64 = 1024;
const WAKE_AT: u64 = 2048;
const WOKEN_AT: u64 = 3072;
const OBJECT_BYTES: u64 = 4096;
/// Tells the other process to end.
const END: u64 = u64::MAX;

/// The figures.
pub struct Bare {
    /// The 99.9th percentile of a round trip over one cache line.
    pub ping_pong_ns: u64,
    /// How long a ping-pong of 5, and of 50, microseconds really takes, begun as often as moves are: p99 and p99.9.
    pub spells: [(u64, [u64; 2]); 2],
    /// How often a second the machine takes the processor from a loop that does nothing but read the clock, for 5
    /// microseconds and more.
    pub gaps_per_second: u64,
    /// From the ring to the first instruction of a process that slept: p50 and p99.
    pub wake_ns: [u64; 2],
}

/// Measures; `program echo PATH` and `program sleeper PATH` are the other process.
pub fn measure(home: &Path, program: &Path) -> Result<Bare, Failure> {
    let path = home.join("line");
    let region = Region::create(&Backing::File(path.clone()), 1 << 20, [0; 16])?;
    let shared = region.allocate("line", ObjectKind::STATISTICS, OBJECT_BYTES, OBJECT_BYTES)?;
    let peer = |role: &str| Command::new(program).arg(role).arg(&path).spawn();
    pin(0)?;
    let mut game = PingPong { ball: shared.word64(BALL_AT), round: 0 };
    let mut echo = peer("echo")?;
    let ping_pong_ns = round_trips(&mut game);
    let spells = [5_000, 50_000].map(|spell_ns| (spell_ns, spells(&mut game, spell_ns)));
    game.ball.store(END, Ordering::Release);
    echo.wait()?;
    let gaps_per_second = gaps();
    let wake_ns = wakes(&shared, peer("sleeper")?)?;
    unpin()?;
    Ok(Bare { ping_pong_ns, spells, gaps_per_second, wake_ns })
}

struct PingPong<'a> {
    ball: &'a AtomicU64,
    round: u64,
}

impl PingPong<'_> {
    fn round_trip(&mut self) {
        self.ball.store(2 * self.round + 1, Ordering::Release);
        while self.ball.load(Ordering::Acquire) != 2 * self.round + 2 {
            std::hint::spin_loop();
        }
        self.round += 1;
    }
}

fn round_trips(game: &mut PingPong) -> u64 {
    // The first rounds wait for the other process to start.
    (0..ROUNDS / 10).for_each(|_| game.round_trip());
    let times = (0..ROUNDS).map(|_| {
        let begin = clock::now().0;
        game.round_trip();
        clock::now().0 - begin
    });
    let mut times: Vec<u64> = times.collect();
    times.sort_unstable();
    share(&times, 0.999)
}

fn spells(game: &mut PingPong, spell_ns: u64) -> [u64; 2] {
    let times = (0..SPELLS).map(|_| {
        spin(SPELL_EVERY_NS);
        let begin = clock::now().0;
        while clock::now().0 < begin + spell_ns {
            game.round_trip();
        }
        clock::now().0 - begin
    });
    let mut times: Vec<u64> = times.collect();
    times.sort_unstable();
    [0.99, 0.999].map(|part| share(&times, part))
}

fn gaps() -> u64 {
    let begin = clock::now().0;
    let (mut before, mut gaps) = (begin, 0);
    while before < begin + GAPS_SECONDS * 1_000_000_000 {
        let now = clock::now().0;
        gaps += u64::from(now - before >= GAP_NS);
        before = now;
    }
    gaps / GAPS_SECONDS
}

fn wakes(shared: &Object, mut sleeper: Child) -> Result<[u64; 2], Failure> {
    let bell = Doorbell::new(shared, BELL_AT);
    let (wake, woken) = (shared.word64(WAKE_AT), shared.word64(WOKEN_AT));
    let mut times = Vec::with_capacity(WAKES as usize);
    for number in 1..=WAKES {
        while bell.sleepers() == 0 {
            std::hint::spin_loop();
        }
        spin(SLEEP_NS);
        let begin = clock::now().0;
        wake.store(number, Ordering::Release);
        bell.ring();
        while woken.load(Ordering::Acquire) < begin {
            std::hint::spin_loop();
        }
        times.push(woken.load(Ordering::Acquire) - begin);
    }
    wake.store(END, Ordering::Release);
    bell.ring();
    sleeper.wait()?;
    times.sort_unstable();
    Ok([0.5, 0.99].map(|part| share(&times, part)))
}

fn spin(ns: u64) {
    let begin = clock::now().0;
    while clock::now().0 < begin + ns {
        std::hint::spin_loop();
    }
}

/// The other end of the ping-pong.
pub fn echo(path: &Path) -> Result<(), Failure> {
    let region = Region::open(path)?;
    let shared = region.find("line")?;
    let ball = shared.word64(BALL_AT);
    pin(1)?;
    loop {
        match ball.load(Ordering::Acquire) {
            END => return Ok(()),
            served if served % 2 == 1 => ball.store(served + 1, Ordering::Release),
            _ => std::hint::spin_loop(),
        }
    }
}

/// Sleeps until it is woken, and says when it was.
pub fn sleeper(path: &Path) -> Result<(), Failure> {
    let region = Region::open(path)?;
    let shared = region.find("line")?;
    let bell = Doorbell::new(&shared, BELL_AT);
    let (wake, woken) = (shared.word64(WAKE_AT), shared.word64(WOKEN_AT));
    let mut waiter = Waiter::new(WaitPolicy::Futex)?;
    pin(1)?;
    let mut seen = 0;
    while seen != END {
        let news = || Some(wake.load(Ordering::Acquire)).filter(|number| *number != seen);
        if let Some(number) = waiter.wait_for(&bell, Duration::from_secs(1), news) {
            seen = number;
            woken.store(clock::now().0, Ordering::Release);
        }
    }
    Ok(())
}

fn pin(cpu: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn unpin() -> Result<(), Failure> {
    let mut set = CpuSet::new();
    (0..std::thread::available_parallelism()?.get().max(2)).for_each(|cpu| set.set(cpu));
    Ok(sched_setaffinity(None, &set)?)
}
