//! What one program does to others: ranges of millions of pages, pins that outlive it, and being stopped.

use super::*;
use control::{COMMANDS_MAX, PIECE_PAGES};
use osier_cache::Presence;

/// Memory of which nobody looks at a byte.
struct Nowhere;

impl Resident for Nowhere {
    fn load(&mut self, _page: u64, _copy: Option<u64>, _bytes: Option<&PageBytes>) {}
    fn save(&mut self, _page: u64, _bytes: &mut PageBytes) {}
    fn left(&mut self, _page: u64, _copy: Option<u64>) {}
}

const RANGE: u64 = 1 << 20;
const OWN_PAGES: u64 = 4096;
const FRAMES: u64 = 2048;

/// A window of a million pages and a few more.
fn large(bug: Option<Bug>) -> Window<Nowhere> {
    large_with(bug, &["cache.pinned_pages_max=1024", "cache.fills_max=8"])
}

fn large_with(bug: Option<Bug>, set: &[&str]) -> Window<Nowhere> {
    let mut overrides: Vec<_> = set.iter().map(|text| parse_override(text).unwrap()).collect();
    overrides.push(parse_override(&format!("cache.size={{bytes={}}}", FRAMES * 4096)).unwrap());
    let text = Profile::built_in_text("cylon").unwrap();
    let profile = Profile::parse_with("cylon", text, &overrides).unwrap();
    let config = profile.model(Some((RANGE + OWN_PAGES) * 4096)).unwrap();
    let mut window = Window::new(&config, Reserve { frames: 32, batch: 8 }, 1, Nowhere).unwrap();
    if let Some(bug) = bug {
        window.plant(bug);
    }
    window
}

/// Drives a window whose mappers unmap at once.
struct Driver<R> {
    window: Window<R>,
    now: Nanos,
    /// Which pages of a zap are found dirty.
    dirty: u64,
    /// Who does not unmap.
    stopped: Option<MapperId>,
    kept: Vec<Output>,
    ended: BTreeMap<u32, Result<Report, CommandError>>,
    answers: Vec<(u64, Nanos, Grant)>,
    /// The most pages that commands went through in one turn.
    most: u64,
}

impl<R: Resident> Driver<R> {
    fn new(window: Window<R>) -> Driver<R> {
        let (kept, ended, answers) = (Vec::new(), BTreeMap::new(), Vec::new());
        Driver { window, now: Nanos::ZERO, dirty: u64::MAX, stopped: None, kept, ended, answers, most: 0 }
    }

    fn poll(&mut self) {
        let mut outputs = Vec::new();
        let before = self.window.counts.commanded;
        self.window.poll(self.now, &mut outputs);
        self.most = self.most.max(self.window.counts.commanded - before);
        for output in outputs {
            match output {
                Output::Zap { mapper, .. } if self.stopped == Some(mapper) => self.kept.push(output),
                Output::Zap { mapper, .. } => self.window.zapped(self.now, mapper, self.dirty).unwrap(),
                Output::Answer { page, due, grant, .. } => self.answers.push((page, due, grant)),
                Output::Done { tag, result, .. } => _ = self.ended.insert(tag, result),
            }
        }
    }

    /// Lets time go on to the next thing that happens; whether there is one.
    fn advance(&mut self) -> bool {
        let Some(at) = self.window.next_event() else { return false };
        self.now = self.now.max(at);
        true
    }

    fn fault(&mut self, mapper: MapperId, page: u64, is_store: bool) {
        self.window.fault(self.now, Fault { mapper, lane: 0, page, is_store, more_max: 0 }).unwrap();
    }

    /// A fault to its end: from when on the page may be mapped, and as what; nothing if it never ends.
    fn fetch(&mut self, mapper: MapperId, page: u64, is_store: bool) -> Option<(Nanos, Grant)> {
        self.fault(mapper, page, is_store);
        for _ in 0..100_000 {
            self.poll();
            if let Some((_, due, grant)) = self.answers.pop() {
                return Some((due, grant));
            }
            self.advance();
        }
        None
    }

    /// A command to its end.
    fn command(&mut self, mapper: MapperId, command: Command) -> Result<Report, CommandError> {
        self.window.command(self.now, mapper, 1000, command).unwrap();
        for _ in 0..1_000_000 {
            self.poll();
            if let Some(result) = self.ended.remove(&1000) {
                return result;
            }
            self.advance();
        }
        panic!("the command never ends");
    }
}

/// While a command goes through a million pages another program faults. The most that the device does before it
/// answers: its turns, and the pages that commands go through in them and in the one that the fault finds it at.
fn held_up_by(command: &Command, bug: Option<Bug>) -> (u64, Report) {
    let mut driver = Driver::new(large(bug));
    let [one, other] = [(); 2].map(|()| driver.window.attach().unwrap());
    // The cache is full of pages of the range, and some are pinned. They are clean: turns take no time here, and
    // writing to the flash would.
    driver.dirty = 0;
    for page in 0..FRAMES {
        driver.fetch(one, page * 7, false).unwrap();
    }
    assert_eq!(driver.command(one, Command::Pin(100..1100)).unwrap().done, 1000);
    driver.window.command(driver.now, one, 7, command.clone()).unwrap();
    driver.most = 0;
    let (mut steps_max, mut page) = (0, RANGE);
    while !driver.ended.contains_key(&7) {
        driver.fault(other, page, false);
        page = RANGE + (page + 1 - RANGE) % OWN_PAGES;
        let (before, mut turns) = (driver.window.counts.commanded, 0);
        while driver.answers.pop().is_none() {
            driver.poll();
            turns += 1;
            assert!(turns < 10_000, "the fault ends");
            // Not before the turns that take no time are done.
            if turns % 4 == 0 {
                driver.advance();
            }
        }
        steps_max = steps_max.max(turns + driver.window.counts.commanded - before);
        (0..16).for_each(|_| driver.poll());
        driver.advance();
    }
    (steps_max + driver.most, driver.ended.remove(&7).unwrap().unwrap())
}

#[test]
fn a_range_of_a_million_pages_holds_nobody_up() {
    // A few turns, each with a piece of the range.
    let bound = 8 * (1 + u64::from(PIECE_PAGES));
    for command in [Command::Evict(0..RANGE), Command::Unpin(0..RANGE), Command::Prefetch(0..RANGE / 16)] {
        let (steps, report) = held_up_by(&command, None);
        assert!(steps <= bound, "{command:?}: {steps} steps");
        match command {
            Command::Unpin(_) => assert_eq!((report.done, report.idle), (1000, RANGE - 1000)),
            Command::Evict(_) => {
                assert_eq!(report.refused, 1000, "what is pinned");
                assert_eq!(report.done + report.idle, RANGE - 1000);
            }
            _ => assert!(report.done > RANGE / 16 - FRAMES, "{report:?}"),
        }
    }
    assert!(held_up_by(&Command::Evict(0..RANGE), Some(Bug::RangeInOneGo)).0 > 10 * bound);
}

/// How long a fault takes whose page is on the flash, while so many pages of the flash are prefetched.
fn latency_beside(prefetched: u64, bug: Option<Bug>) -> u64 {
    let mut driver = Driver::new(large(bug));
    let [one, other] = [(); 2].map(|()| driver.window.attach().unwrap());
    for page in 0..4 * FRAMES {
        driver.fetch(one, page, true).unwrap();
    }
    while driver.advance() {
        driver.poll();
    }
    if prefetched > 0 {
        driver.window.command(driver.now, one, 7, Command::Prefetch(0..prefetched)).unwrap();
        (0..64).for_each(|_| driver.poll());
    }
    let began = driver.now;
    let (due, grant) = driver.fetch(other, 2 * FRAMES, false).unwrap();
    assert_eq!(grant, Grant::Armed);
    due.0 - began.0
}

#[test]
fn a_prefetch_leaves_the_flash_to_faults() {
    let alone = latency_beside(0, None);
    // Four reads of the flash may be under way for a command, were all on the die of the page that faults.
    let beside = latency_beside(FRAMES, None);
    assert!(alone > 0 && beside <= 5 * alone, "{beside} ns beside a prefetch, {alone} alone");
    let flooded = latency_beside(FRAMES, Some(Bug::RangeInOneGo));
    assert!(flooded > 5 * alone, "{flooded} ns with all of it begun at once");
}

#[test]
fn what_a_fault_wants_ahead_waits_for_the_flash_and_is_not_dropped() {
    let mut driver = Driver::new(large_with(
        None,
        &["cache.fills_max=2", "cache.prefetch=\"next-n\"", "cache.prefetch_parameters={degree=8,tagged=1}"],
    ));
    let mapper = driver.window.attach().unwrap();
    let settle = |driver: &mut Driver<Nowhere>| {
        while driver.advance() {
            driver.poll();
        }
    };
    for page in 0..2 * FRAMES {
        driver.fetch(mapper, page, true).unwrap();
    }
    settle(&mut driver);
    let before = driver.window.counts.prefetches_dropped;
    driver.fetch(mapper, 0, false).unwrap();
    settle(&mut driver);
    assert_eq!(driver.window.counts.prefetches_dropped, before);
    for page in 0..=8 {
        assert!(matches!(driver.window.cache.presence(page), Presence::Resident { .. }), "page {page}");
    }
    assert!(matches!(driver.window.cache.presence(9), Presence::Absent));
}

#[test]
fn commands_take_turns_and_none_has_more_than_its_share() {
    let mut driver = Driver::new(large(None));
    let [one, other] = [(); 2].map(|()| driver.window.attach().unwrap());
    for tag in 0..COMMANDS_MAX {
        driver.window.command(driver.now, one, tag, Command::Evict(0..RANGE)).unwrap();
    }
    driver.window.command(driver.now, one, 100, Command::Evict(0..1)).unwrap();
    driver.window.command(driver.now, other, 200, Command::Evict(0..1)).unwrap();
    for _ in 0..2 * COMMANDS_MAX {
        driver.poll();
    }
    assert_eq!(driver.ended.get(&100), Some(&Err(CommandError::TooMany)));
    assert!(matches!(driver.ended.get(&200), Some(Ok(_))), "it waits for a piece of each, not for their ends");
    driver.window.detach(driver.now, one);
    (0..4).for_each(|_| driver.poll());
    assert_eq!(driver.window.next_event(), None, "nothing is left of those who have gone");
}

/// What comes of a pin when a program that had pinned all that may be has gone.
fn pin_after_a_death(bug: Option<Bug>) -> Result<Report, CommandError> {
    let reserve = Reserve { frames: 2, batch: 1 };
    let mut driver = Driver::new(Window::new(&config(40, 12, "fifo"), reserve, 1, Memory::new(40)).unwrap());
    if let Some(bug) = bug {
        driver.window.plant(bug);
    }
    let [one, other] = [(); 2].map(|()| driver.window.attach().unwrap());
    driver.command(one, Command::Pin(0..3)).unwrap();
    driver.command(one, Command::Pin(1..3)).unwrap();
    let full = CommandError::Cache(osier_cache::CommandError::PinLimit { page: 5, max: 3 });
    assert_eq!(driver.command(other, Command::Pin(5..6)), Err(full));
    let report = driver.command(other, Command::Unpin(0..40)).unwrap();
    assert_eq!((report.done, report.idle), (0, 40), "nobody takes the pins of another off");
    assert_eq!((driver.window.pinned_by(one), driver.window.pinned_by(other)), (3, 0));
    driver.window.detach(driver.now, one);
    driver.command(other, Command::Pin(5..8))
}

#[test]
fn the_pins_of_a_program_that_ended_are_given_back() {
    assert_eq!(pin_after_a_death(None).unwrap().done, 3);
    assert!(pin_after_a_death(Some(Bug::KeepPinsOfTheGone)).is_err());
}

#[test]
fn a_pin_that_fails_leaves_the_pins_that_were_there() {
    let reserve = Reserve { frames: 2, batch: 1 };
    let mut driver = Driver::new(Window::new(&config(40, 12, "fifo"), reserve, 1, Memory::new(40)).unwrap());
    let [one, other] = [(); 2].map(|()| driver.window.attach().unwrap());
    driver.command(one, Command::Pin(1..3)).unwrap();
    // The third page of the range is the limit's; the second has a pin of each.
    driver.command(other, Command::Pin(2..3)).unwrap();
    assert!(driver.command(other, Command::Pin(2..5)).is_err());
    assert_eq!((driver.window.pinned_by(one), driver.window.pinned_by(other)), (2, 1));
    let too_many = driver.command(other, Command::Pin(0..4));
    let limit = osier_cache::CommandError::PinLimit { page: 3, max: 3 };
    assert_eq!(too_many, Err(CommandError::Cache(limit)), "it is refused before it brings anything in");
    driver.command(one, Command::Evict(0..40)).unwrap();
    assert_eq!(driver.window.residency().iter().sum::<u64>(), 2, "what is pinned stays");
    assert_eq!(driver.command(other, Command::Unpin(2..3)).unwrap().done, 1);
    assert_eq!(driver.command(one, Command::Unpin(0..40)).unwrap().done, 2);
    assert_eq!(driver.command(one, Command::Evict(0..40)).unwrap().done, 2);
}

/// A program maps half of the cache and is stopped; another goes through the window; then the first goes on.
fn go_on_beside_a_stopped_program(eviction: &str, bug: Option<Bug>) -> Result<(), Wrong> {
    let reserve = Reserve { frames: 2, batch: 1 };
    let mut driver = Driver::new(Window::new(&config(40, 12, eviction), reserve, 1, Memory::new(40)).unwrap());
    if let Some(bug) = bug {
        driver.window.plant(bug);
    }
    let [one, other] = [(); 2].map(|()| driver.window.attach().unwrap());
    for page in 0..5 {
        driver.fetch(one, page, true).unwrap();
        driver.window.resident_mut().pages[page as usize][0] = page as u8 + 1;
    }
    driver.stopped = Some(one);
    for round in 0..3 {
        for page in 5..40 {
            let wrong = || Wrong(format!("the fault of page {page} never ends in round {round}"));
            let (due, grant) = driver.fetch(other, page, true).ok_or_else(wrong)?;
            assert_eq!(grant, Grant::Writable);
            driver.now = driver.now.max(due);
            let byte = &mut driver.window.resident_mut().pages[page as usize][0];
            assert_eq!(*byte, if round == 0 { 0 } else { page as u8 }, "page {page} in round {round}");
            *byte = page as u8;
        }
    }
    assert!(driver.window.is_silent(one) && !driver.window.is_silent(other));
    driver.stopped = None;
    for _ in std::mem::take(&mut driver.kept) {
        driver.window.zapped(driver.now, one, u64::MAX).unwrap();
    }
    assert!(!driver.window.is_silent(one));
    for page in 0..5 {
        driver.fetch(other, page, false).unwrap();
        assert_eq!(driver.window.resident().pages[page as usize][0], page as u8 + 1);
    }
    Ok(())
}

#[test]
fn a_stopped_program_does_not_keep_others_waiting_for_other_frames() {
    for eviction in ["fifo", "lru", "clock", "s3-fifo", "sieve"] {
        go_on_beside_a_stopped_program(eviction, None).unwrap_or_else(|wrong| panic!("{eviction}: {}", wrong.0));
    }
    assert!(go_on_beside_a_stopped_program("fifo", Some(Bug::AwaitTheSilent)).is_err());
}
