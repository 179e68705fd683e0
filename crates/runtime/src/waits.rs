//! Where the time of both loops goes, and of what the longest gap between completions is made up: it tells what the
//! machine did from what the model does.
//!
//! Invariant: the parts of an account add up to the time that it spans, to the nanosecond. What the kernel adds (how
//! long the process ran, how long it was ready to) lies across them and is read once in a while, so it is a little
//! older.

use serde::{Deserialize, Serialize};

use crate::clock;

/// Between two looks at what the kernel says: to ask it takes about a microsecond.
const LOOK_NS: u64 = 1_000_000;

/// What a process did with a span of time, in nanoseconds. All but the last two add up to the span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spent {
    /// Turns of the loop.
    pub work_ns: u64,
    /// Waiting for a time: of the model on the device; of the rate that is let in, or a tenant's share, on the host.
    pub due_ns: u64,
    /// Waiting while a read, program or erase of the media took longer than the model says.
    pub media_ns: u64,
    /// Waiting for the media to sync.
    pub sync_ns: u64,
    /// Waiting for the other domain.
    pub idle_ns: u64,
    /// From the end of a wait, as it was asked for, to the next turn.
    pub late_ns: u64,
    /// At least so long it had something to do and did not run: it had no processor, or the kernel held it.
    pub absent_ns: u64,
    /// So long, of that, the kernel says that it was ready to run: other programs had the processor. In the rest the
    /// machine below the kernel had taken it away, or a disk held the process, or a signal had stopped it.
    pub ready_ns: u64,
}

impl Spent {
    /// The time that the parts span.
    pub fn total_ns(&self) -> u64 {
        self.work_ns + self.due_ns + self.media_ns + self.sync_ns + self.idle_ns + self.late_ns
    }

    /// At least so long it was not ready to run, did not wait, and did not run.
    fn held_ns(&self) -> u64 {
        self.absent_ns - self.ready_ns
    }

    /// At most so long it ran and did not poll.
    fn ran_ns(&self) -> u64 {
        self.work_ns.saturating_sub(self.absent_ns)
    }
}

/// What a process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A time.
    Due,
    /// A read, program or erase of the media.
    Media,
    /// The media's sync.
    Sync,
    /// The other domain.
    Idle,
}

/// Words of an account in the shared region.
pub const ACCOUNT_WORDS: usize = 10;

/// What a process did since its device came up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Up to when, in nanoseconds of the monotonic clock.
    at: u64,
    /// The parts: work, due, media, sync, idle, late.
    parts: [u64; 6],
    /// Of the waits, those that were spent polling.
    polled: u64,
    /// How long the process ran and was ready to, as the kernel says.
    ran: u64,
    ready: u64,
}

impl Account {
    /// As words.
    pub fn words(&self) -> [u64; ACCOUNT_WORDS] {
        let [work, due, media, sync, idle, late] = self.parts;
        [self.at, work, due, media, sync, idle, late, self.polled, self.ran, self.ready]
    }

    /// From words.
    pub fn from_words(words: [u64; ACCOUNT_WORDS]) -> Account {
        let [at, work, due, media, sync, idle, late, polled, ran, ready] = words;
        Account { at, parts: [work, due, media, sync, idle, late], polled, ran, ready }
    }

    /// What was done since an earlier account.
    fn since(&self, earlier: &Account) -> Spent {
        let part = |index: usize| self.parts[index].saturating_sub(earlier.parts[index]);
        let [work, due, media, sync, idle, late] = std::array::from_fn(part);
        let ran = self.ran.saturating_sub(earlier.ran);
        // A process that polls runs while it waits.
        let worked = ran.saturating_sub(self.polled.saturating_sub(earlier.polled));
        let ready = self.ready.saturating_sub(earlier.ready).min(work + due + media + sync + idle + late);
        Spent {
            work_ns: work,
            due_ns: due,
            media_ns: media,
            sync_ns: sync,
            idle_ns: idle,
            late_ns: late,
            absent_ns: (work + late).saturating_sub(worked).max(ready),
            ready_ns: ready,
        }
    }
}

/// A wait that has ended.
#[derive(Debug, Clone, Copy)]
struct Wait {
    reason: Reason,
    begun: u64,
    asked: u64,
    slept: bool,
}

/// Keeps the account of one loop.
pub struct Meter {
    account: Account,
    /// How the present turn ended.
    wait: Option<Wait>,
    schedule: clock::Schedule,
    /// What the kernel had counted for this process when it last asked, and when that was.
    counted: [u64; 2],
    looked: u64,
}

impl Meter {
    /// Goes on with the account of a former life, or begins one; nobody was there meanwhile.
    pub fn new(now: u64, former: Option<Account>) -> Meter {
        let mut account = former.unwrap_or(Account { at: now, ..Account::default() });
        account.parts[5] += now.saturating_sub(account.at);
        account.at = account.at.max(now);
        Meter { account, wait: None, schedule: clock::Schedule::of_this_process(), counted: [0; 2], looked: 0 }
    }

    /// A turn begins: the time since the one before goes where it belongs.
    pub fn turn(&mut self, now: u64) {
        let now = now.max(self.account.at);
        let parts = &mut self.account.parts;
        let wait = self.wait.take();
        let worked = wait.map_or(now, |w| w.begun.clamp(self.account.at, now)) - self.account.at;
        parts[0] += worked;
        if let Some(wait) = wait {
            let waited = now - self.account.at - worked;
            let wanted = waited.min(wait.asked);
            parts[1 + wait.reason as usize] += wanted;
            parts[5] += waited - wanted;
            self.account.polled += if wait.slept { 0 } else { wanted };
        }
        self.account.at = now;
    }

    /// The present turn ends with a wait that was to take `asked` at most.
    pub fn waited(&mut self, reason: Reason, begun: u64, asked: u64, slept: bool) {
        self.wait = Some(Wait { reason, begun, asked, slept });
    }

    /// Asks the kernel, if that is not too soon.
    pub fn look(&mut self) {
        if self.account.at < self.looked.saturating_add(LOOK_NS) {
            return;
        }
        self.looked = self.account.at;
        let counted = self.schedule.nanoseconds();
        self.account.ran += counted[0].saturating_sub(self.counted[0]);
        self.account.ready += counted[1].saturating_sub(self.counted[1]);
        self.counted = counted;
    }

    /// The account at the beginning of the present turn.
    pub fn account(&self) -> Account {
        self.account
    }
}

/// The longest time between two completions, and what both processes did in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// How long it was.
    pub ns: u64,
    /// In which phase of the job it ended.
    pub phase: String,
    /// What throttling left of the device's speed at its end.
    pub speed_permille: u64,
    /// What the host's process did, from the one completion to the other.
    pub host: Spent,
    /// What the device's process did, from its last account before the gap to its first one after it.
    pub device: Spent,
}

impl Gap {
    /// What took most of it, in words, and how long that took at least.
    pub fn cause(&self) -> (&'static str, u64) {
        let (host, device) = (&self.host, &self.device);
        let causes = [
            ("other programs had the processor of the host's process", host.ready_ns),
            ("other programs had the processor of the device's process", device.ready_ns),
            (
                "the host's process was held: its processor was taken away below the kernel, or it was stopped",
                host.held_ns(),
            ),
            (
                "the device's process was held: its processor was taken away below the kernel, or it was stopped",
                device.held_ns(),
            ),
            ("the model: a stage, the link, the controller or the flash was at work", device.due_ns),
            ("the scheduler's rate or a tenant's share held requests back", host.due_ns),
            ("the media were read, programmed or erased: the disk held them, or their thread", device.media_ns),
            ("the media were synced", device.sync_ns),
            ("the device's process worked", device.ran_ns()),
            ("the host's process worked", host.ran_ns()),
        ];
        let (what, ns) = causes.into_iter().max_by_key(|(_, ns)| *ns).unwrap_or_default();
        (what, ns.min(self.ns))
    }
}

/// Finds the longest gap. The host keeps it, and reads the device's account from the shared region.
#[derive(Debug, Default)]
pub struct Gaps {
    /// Both accounts at the last completion.
    last: Option<[Account; 2]>,
    longest: Gap,
    /// The device's account before the longest gap, and when the gap ended: until the device tells of that.
    open: Option<(Account, u64)>,
}

impl Gaps {
    /// Something was completed; `longest_gap_ns` is the longest gap so far. The device's account is missing while it is
    /// written. `about` says phase and speed.
    pub fn completed(
        &mut self,
        longest_gap_ns: u64,
        host: Account,
        device: Option<Account>,
        about: impl FnOnce() -> (String, u64),
    ) {
        let Some(device) = device.or(self.last.map(|[_, device]| device)) else { return };
        if longest_gap_ns > self.longest.ns
            && let Some([host_before, device_before]) = self.last
        {
            let (phase, speed_permille) = about();
            let host = host.since(&host_before);
            self.longest = Gap { ns: longest_gap_ns, phase, speed_permille, host, device: Spent::default() };
            self.open = Some((device_before, host_before.at + longest_gap_ns));
        }
        self.last = Some([host, device]);
        self.hear(device);
    }

    /// The device's account as it is now.
    pub fn hear(&mut self, device: Account) {
        if let Some((before, _)) = self.open.filter(|(_, end)| device.at >= *end) {
            self.longest.device = device.since(&before);
            self.open = None;
        }
    }

    /// Whether the device's account is awaited.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The longest gap so far.
    pub fn longest(&self) -> &Gap {
        &self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A meter to which the kernel says nothing.
    fn meter(now: u64) -> Meter {
        Meter { looked: u64::MAX, ..Meter::new(now, None) }
    }

    fn span(from: &Account, to: &Account) -> u64 {
        to.since(from).total_ns()
    }

    #[test]
    fn the_parts_of_any_turns_and_waits_add_up_to_the_time() {
        for seed in 1..200u64 {
            let mut random = seed;
            let mut next = |below: u64| {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (random >> 33) % below
            };
            let (mut meter, mut now) = (meter(1_000), 1_000);
            let mut accounts = vec![meter.account()];
            for _ in 0..50 {
                now += next(500);
                if next(2) == 0 {
                    let reason = [Reason::Due, Reason::Media, Reason::Sync, Reason::Idle][next(4) as usize];
                    meter.waited(reason, now, next(400), next(2) == 0);
                    now += next(800);
                }
                meter.turn(now);
                accounts.push(meter.account());
            }
            for pair in accounts.windows(2) {
                assert_eq!(span(&pair[0], &pair[1]), pair[1].at - pair[0].at, "seed {seed}");
            }
            assert_eq!(span(&accounts[0], &accounts[50]), now - 1_000, "seed {seed}");
            assert_eq!(Account::from_words(meter.account().words()), meter.account());
        }
    }

    #[test]
    fn each_span_goes_where_it_belongs() {
        let mut meter = meter(0);
        let begin = meter.account();
        meter.waited(Reason::Sync, 100, 50, true);
        meter.turn(170);
        meter.waited(Reason::Due, 180, 50, false);
        meter.turn(200);
        meter.waited(Reason::Media, 200, 50, true);
        meter.turn(230);
        let spent = meter.account().since(&begin);
        let expected = Spent {
            work_ns: 100 + 10,
            sync_ns: 50,
            late_ns: 20,
            due_ns: 20,
            media_ns: 30,
            // The kernel says that it never ran.
            absent_ns: 100 + 10 + 20,
            ..Spent::default()
        };
        assert_eq!(spent, expected);
        let ran = Account { ran: 125, ready: 15, ..meter.account() };
        // Of the 125, 20 were spent polling.
        assert_eq!((ran.since(&begin).absent_ns, ran.since(&begin).ready_ns), (130 - 105, 15));
    }

    #[test]
    fn the_longest_gap_has_what_both_did_in_it_and_its_cause() {
        let account = |at, work, due, ran| Account { at, parts: [work, due, 0, 0, 0, 0], ran, ..Account::default() };
        let about = || ("write".to_owned(), 500);
        let mut gaps = Gaps::default();
        gaps.completed(0, account(100, 100, 0, 100), Some(account(90, 90, 0, 90)), about);
        // A gap of 900, in which the host waited for the device and that for its model.
        gaps.completed(900, account(1000, 150, 850, 150), Some(account(95, 95, 0, 95)), about);
        assert!(gaps.is_open(), "the device has told of nothing yet");
        gaps.hear(account(999, 100, 899, 100));
        assert!(gaps.is_open(), "it has not told of all");
        gaps.hear(account(1010, 110, 900, 110));
        assert!(!gaps.is_open());
        let found = gaps.longest().clone();
        assert_eq!((found.ns, found.host.total_ns(), found.device.total_ns()), (900, 900, 920));
        assert_eq!(found.cause(), ("the model: a stage, the link, the controller or the flash was at work", 900));
        // A shorter one changes nothing; a longer one, in which the device did not run, does.
        gaps.completed(900, account(1100, 250, 850, 250), Some(account(1010, 110, 900, 110)), about);
        assert_eq!(gaps.longest(), &found);
        gaps.completed(5000, account(6100, 350, 5750, 350), Some(account(6100, 5200, 900, 200)), about);
        assert_eq!((gaps.longest().host.total_ns(), gaps.longest().device.absent_ns), (5000, 5000));
        assert!(gaps.longest().cause().0.starts_with("the device's process was held: "));
    }

    #[test]
    fn the_cause_is_what_took_the_longest_for_certain() {
        let cause = |host: Spent, device: Spent| Gap { ns: 100, host, device, ..Gap::default() }.cause();
        let (idle, none) = (Spent { idle_ns: 100, ..Spent::default() }, Spent::default());
        let of = |work_ns, absent_ns, ready_ns| Spent { work_ns, absent_ns, ready_ns, ..none };
        for (device, words, ns) in [
            (of(100, 0, 0), "the device's process worked", 100),
            (of(100, 90, 80), "other programs had the processor of the device's", 80),
            (of(100, 90, 10), "the device's process was held: ", 80),
            (Spent { media_ns: 60, due_ns: 40, ..none }, "the media were read, programmed or erased", 60),
            (Spent { sync_ns: 70, due_ns: 30, ..none }, "the media were synced", 70),
            (Spent { sync_ns: 30, due_ns: 70, ..none }, "the model: ", 70),
            // It may be longer than the gap, as the device's account is.
            (Spent { due_ns: 170, ..none }, "the model: ", 100),
        ] {
            let (what, found) = cause(idle, device);
            assert!(what.starts_with(words) && found == ns, "{device:?}: {what}, {found}");
        }
        assert!(cause(Spent { due_ns: 80, ..none }, idle).0.starts_with("the scheduler's rate"));
        assert!(cause(of(80, 0, 0), idle).0.starts_with("the host's process worked"));
    }
}
