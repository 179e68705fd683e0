//! The driver against a device whose latencies have a closed form: so many servers, each request the same time.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use osier_device::model::{Causes, Command, Completed, Met, Outcome, Refused};

use super::counters::Counters;
use super::*;
use crate::trace::TraceError;
use crate::workload::Workload;
use crate::{Nanos, Op, Pace, Request, Source};

const SERVICE_NS: u64 = 1000;

/// Servers behind one queue, first come first served; full when it has `room` requests.
struct Servers {
    free_at: Vec<u64>,
    room: usize,
    under_way: VecDeque<Completed>,
}

impl Servers {
    fn new(servers: usize, room: usize) -> Self {
        Servers { free_at: vec![0; servers], room, under_way: VecDeque::new() }
    }
}

impl Target for Servers {
    fn submit(&mut self, now: Nanos, command: Command) -> Result<(), Refused> {
        if self.under_way.len() == self.room {
            return Err(Refused::Full { max: self.room as u32 });
        }
        let server = self.free_at.iter_mut().min().unwrap();
        let begin = now.0.max(*server);
        *server = begin + SERVICE_NS;
        let causes = Causes { die: begin - now.0, sense: SERVICE_NS, ..Causes::default() };
        let (at, met) = (Nanos(*server), if command.tenant == 0 { Met::Miss } else { Met::Hit });
        let completed = Completed { id: command.id, arrived: now, at, outcome: Outcome::Ok, met, causes };
        // All take the same time, so that they end in the order in which they came.
        self.under_way.push_back(completed);
        Ok(())
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<Completed>) {
        while self.under_way.front().is_some_and(|first| first.at <= now) {
            done.extend(self.under_way.pop_front());
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        self.under_way.front().map(|first| first.at)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn die_busy_ns(&self, into: &mut Vec<u64>) {
        into.extend(&self.free_at);
    }

    fn channel_busy_ns(&self, _into: &mut Vec<u64>) {}
}

fn workload(phases: &[(&str, u64)]) -> Workload {
    let phases: String = phases
        .iter()
        .map(|(arrivals, requests)| {
            format!(
                "[[job.phase]]\nrequests = {requests}\npattern = \"sequential\"\nmix = {{ read_permille = 1000 }}\n\
                 range_bytes = 1048576\nblock_bytes = 4096\narrivals = {arrivals}\n"
            )
        })
        .collect();
    Workload::parse("test", &format!("seed = 1\n[[job]]\nname = \"a\"\n{phases}")).unwrap()
}

/// Keeps every completion.
#[derive(Default)]
struct Log(Vec<Io>);

impl Watch for Log {
    fn completed(&mut self, io: &Io) -> ControlFlow<()> {
        self.0.push(*io);
        ControlFlow::Continue(())
    }
}

fn run(target: &mut Servers, workload: &Workload, limits: Limits) -> (Measured, Vec<Io>) {
    let mut jobs = workload.jobs();
    let sources = jobs.iter_mut().map(|job| job as &mut dyn Source).collect();
    let mut log = Log::default();
    let measured = drive(target, sources, limits, &mut log).unwrap();
    assert_eq!(measured.latencies.all.latency.count(), log.0.len() as u64);
    for io in &log.0 {
        assert_eq!(io.parts.iter().sum::<u64>(), io.completed.0 - io.request.at.0, "{io:?}");
    }
    (measured, log.0)
}

#[test]
fn a_closed_loop_has_the_latency_of_littles_law() {
    let requests = 4000;
    for (servers, depth) in [(1, 1), (1, 7), (4, 1), (4, 4), (4, 32), (8, 64)] {
        let workload = workload(&[(&format!("{{ closed = {{ depth = {depth} }} }}"), requests)]);
        for room in [depth as usize, 3, 1] {
            let (measured, ios) = run(&mut Servers::new(servers, room), &workload, Limits::default());
            let working = servers.min(depth as usize).min(room) as u64;
            // N = X * R: with `depth` under way all the time, each takes `depth` over the throughput.
            let steady = &ios[2 * depth as usize..ios.len() - depth as usize];
            let sum: u64 = steady.iter().map(|io| io.completed.0 - io.request.at.0).sum();
            assert_eq!(sum / steady.len() as u64, depth * SERVICE_NS / working, "{servers} {depth} {room}");
            assert_eq!(measured.ended.0, requests.div_ceil(working) * SERVICE_NS);
            assert_eq!(measured.delayed > 0, depth as usize > room);
            let busy: u64 = measured.die_busy_ns.iter().sum();
            assert!(busy >= requests * SERVICE_NS);
        }
    }
}

#[test]
fn an_overloaded_open_loop_falls_behind_by_the_difference_whatever_room_there_is() {
    // One a 800 ns, and 1000 ns of work for each: the k-th waits k times 200 ns.
    let workload = workload(&[("{ fixed = { requests_per_second = 1250000 } }", 500)]);
    for room in [1, 2, 1000] {
        let (measured, ios) = run(&mut Servers::new(1, room), &workload, Limits::default());
        for (k, io) in (0..).zip(&ios) {
            assert_eq!(io.request.at.0, 800 * k, "arrivals do not depend on the device");
            assert_eq!(io.completed.0 - io.request.at.0, SERVICE_NS + 200 * k);
        }
        assert_eq!(measured.delayed == 0, room == 1000, "{}", measured.delayed);
        assert_eq!(measured.latencies.all.latency.max(), SERVICE_NS + 200 * 499);
    }
}

#[test]
fn a_poisson_process_waits_as_long_as_pollaczek_and_khinchine_say() {
    // M/D/1 at a load of 3/4: a mean wait of rho / (2 * (1 - rho)) services.
    let workload = workload(&[("{ poisson = { requests_per_second = 750000 } }", 400_000)]);
    let (measured, _) = run(&mut Servers::new(1, 64), &workload, Limits::default());
    let wait = measured.latencies.all.latency.mean() - SERVICE_NS;
    assert!((1455..=1545).contains(&wait), "{wait} ns instead of 1500");
}

#[test]
fn phases_change_from_closed_to_open_and_jobs_run_side_by_side() {
    let two = workload(&[
        ("{ closed = { depth = 2, think_ns = 500 } }", 100),
        ("{ fixed = { requests_per_second = 100000 } }", 50),
        ("{ closed = { depth = 1 } }", 10),
    ]);
    let (measured, ios) = run(&mut Servers::new(3, 8), &two, Limits::default());
    assert_eq!(measured.latencies.all.latency.count(), 160);
    assert!(ios.iter().all(|io| io.completed.0 - io.request.at.0 == SERVICE_NS), "there is a server for each");
    // 50 pairs at 500, 2000, ... 74000; the open loop from the last arrival on, one a 10 us.
    assert_eq!(ios[99].request.at.0, 50 * 1500 - 1000);
    assert_eq!(ios[149].request.at.0 - ios[100].request.at.0, 49 * 10_000);
}

#[test]
fn a_warm_up_is_not_counted_and_limits_end_a_run() {
    let workload = workload(&[("{ fixed = { requests_per_second = 1000000 } }", 1000)]);
    let count = |limits: Limits| {
        let (measured, ios) = run(&mut Servers::new(2, 8), &workload, limits);
        (measured.warm_up_requests, ios.len(), ios[0].number, measured.end)
    };
    let limits = Limits::default();
    assert_eq!(count(limits), (0, 1000, 1, End::Workload));
    let warm_up = WarmUp::Requests(300);
    assert_eq!(count(Limits { warm_up, ..limits }), (300, 700, 301, End::Workload));
    assert_eq!(count(Limits { warm_up, requests_max: Some(50), ..limits }), (300, 50, 301, End::Requests));
    let warm_up = WarmUp::Nanos(100_000);
    assert_eq!(count(Limits { warm_up, ..limits }), (100, 900, 101, End::Workload));
    assert_eq!(count(Limits { warm_up, duration_ns: Some(5000), ..limits }), (100, 5, 101, End::Duration));
    let mut jobs = workload.jobs();
    let limits = Limits { warm_up: WarmUp::Requests(1000), ..limits };
    let error = drive(&mut Servers::new(1, 8), vec![&mut jobs[0]], limits, &mut ()).unwrap_err();
    assert!(matches!(error, DriveError::AllWarmUp { submitted: 1000 }), "{error}");
}

/// Ends with an error after some requests.
struct Broken(u64);

impl Source for Broken {
    fn pace(&self) -> Pace {
        Pace::Closed { depth: 4 }
    }

    fn next(&mut self, now: Nanos) -> Option<Result<Request, TraceError>> {
        self.0 = self.0.checked_sub(1)?;
        let request = Request { at: now, address: 0, bytes: 1, tenant: 0, op: Op::Load };
        Some(if self.0 == 0 { Err(TraceError::Empty) } else { Ok(request) })
    }
}

#[test]
fn a_run_that_was_stopped_or_whose_trace_is_broken_has_no_result() {
    for length in [1, 3, 100] {
        let error = drive(&mut Servers::new(1, 8), vec![&mut Broken(length)], Limits::default(), &mut ()).unwrap_err();
        assert!(matches!(error, DriveError::Trace(TraceError::Empty)), "{error}");
    }
    struct Impatient;
    impl Watch for Impatient {
        fn progress(&mut self, progress: &Progress) -> ControlFlow<()> {
            assert_eq!(progress.expected, Some(1_000_000));
            ControlFlow::Break(())
        }
    }
    let workload = workload(&[("{ closed = { depth = 1 } }", 1_000_000)]);
    let mut jobs = workload.jobs();
    let sources = vec![&mut jobs[0] as &mut dyn Source];
    let error = drive(&mut Servers::new(1, 8), sources, Limits::default(), &mut Impatient).unwrap_err();
    let DriveError::Stopped { submitted } = error else { panic!("{error}") };
    assert!((1..100_000).contains(&submitted), "{submitted}");
}

#[test]
fn the_intervals_hold_every_request_and_all_work() {
    let workload = workload(&[("{ closed = { depth = 3 } }", 30_000)]);
    let (measured, ios) = run(&mut Servers::new(1, 8), &workload, Limits::default());
    let (series, points) = (&measured.series, measured.series.points());
    assert_eq!(points.iter().map(|point| point.requests).sum::<u64>(), 30_000);
    assert_eq!(points.iter().map(|point| point.bytes_read).sum::<u64>(), 30_000 * 4096);
    for (index, point) in (0..).zip(points) {
        let (from, to) = (index * series.interval_ns(), (index + 1) * series.interval_ns());
        let within = ios.iter().filter(|io| io.completed.0 > from && io.completed.0 <= to);
        assert_eq!(point.requests, within.clone().count() as u64);
        let sum: u128 = within.map(|io| u128::from(io.completed.0 - io.request.at.0)).sum();
        assert_eq!(point.latency_sum_ns, sum);
    }
}
