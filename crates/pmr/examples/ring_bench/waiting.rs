//! What each way of waiting costs: latency and processor time, for a client that sends requests to a server
//! in another process and waits for their completions, both by the same policy.

use crate::harness::{Effort, Line, Stage, in_two_processes, median, own_processor_time, percentile};
use osier_pmr::{Consumer, Doorbell, Producer, RingEntry, SharedLines, WaitPolicy, Waiter, set_timer_slack};
use std::time::{Duration, Instant};

/// A request that ends the server.
const STOP: u64 = u64::MAX >> 1;
/// No wait is unbounded; a request that takes this long is a failure.
const LIMIT: Duration = Duration::from_secs(5);

/// How requests are made.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    depth: usize,
    /// Time between the starts of two requests; zero for the next as soon as one completed.
    period: Duration,
    requests: u64,
}

/// What a policy under a load came to.
struct Outcome {
    p50_us: f64,
    p99_us: f64,
    cpu_us_per_request: f64,
    /// Processor time of both processes over twice the time that passed, in percent.
    cpu_percent: f64,
}

/// All policies that this processor has, under each load; the peer is polling.
pub fn policies(effort: Effort) -> anyhow::Result<Vec<Line>> {
    let load = |name, depth, period_us, requests| {
        let requests = effort.count(requests);
        Load { name, depth, period: Duration::from_micros(period_us), requests }
    };
    let loads =
        [load("qd1_5000", 1, 200, 5_000), load("qd1_closed", 1, 0, 50_000), load("qd32_closed", 32, 0, 200_000)];
    let mut lines = Vec::new();
    for load in loads {
        let polling = measure(effort, WaitPolicy::Poll, load)?;
        lines.extend(report(WaitPolicy::Poll, load, &polling, None));
        for policy in [WaitPolicy::Umwait, WaitPolicy::Futex, WaitPolicy::HYBRID] {
            match Waiter::new(policy) {
                Ok(_) => lines.extend(report(policy, load, &measure(effort, policy, load)?, Some(&polling))),
                Err(reason) => {
                    let mut line = Line::new(format!("pmr.wait.{}.{}.p50", name_of(policy), load.name), 0.0, "us");
                    (line.value, line.note) = (None, reason.to_string());
                    lines.push(line);
                }
            }
        }
    }
    Ok(lines)
}

fn name_of(policy: WaitPolicy) -> &'static str {
    match policy {
        WaitPolicy::Poll => "poll",
        WaitPolicy::Umwait => "umwait",
        WaitPolicy::Futex => "futex",
        WaitPolicy::Hybrid { .. } => "hybrid",
    }
}

fn report(policy: WaitPolicy, load: Load, outcome: &Outcome, polling: Option<&Outcome>) -> Vec<Line> {
    let line = |what: &str, unit, of: fn(&Outcome) -> f64| {
        let line = Line::new(format!("pmr.wait.{}.{}.{what}", name_of(policy), load.name), of(outcome), unit);
        match polling {
            Some(polling) => line.peer("poll", of(polling)),
            None => line,
        }
    };
    let cpu = line("cpu_per_request", "us", |outcome| outcome.cpu_us_per_request);
    let hybrid_when_idle = matches!(policy, WaitPolicy::Hybrid { .. }) && load.name == "qd1_5000";
    vec![
        line("p50", "us", |outcome| outcome.p50_us),
        line("p99", "us", |outcome| outcome.p99_us),
        if hybrid_when_idle { cpu.ratio_bar(0.35) } else { cpu },
        line("cpu_share", "percent", |outcome| outcome.cpu_percent),
    ]
}

fn measure(effort: Effort, policy: WaitPolicy, load: Load) -> anyhow::Result<Outcome> {
    let mut outcomes = Vec::new();
    for _ in 0..effort.series().min(3) {
        outcomes.push(once(policy, load)?);
    }
    let of = |figure: fn(&Outcome) -> f64| median(outcomes.iter().map(figure).collect());
    Ok(Outcome {
        p50_us: of(|outcome| outcome.p50_us),
        p99_us: of(|outcome| outcome.p99_us),
        cpu_us_per_request: of(|outcome| outcome.cpu_us_per_request),
        cpu_percent: of(|outcome| outcome.cpu_percent),
    })
}

fn once(policy: WaitPolicy, load: Load) -> anyhow::Result<Outcome> {
    let stage = Stage::new(256)?;
    let here = || {
        set_timer_slack(1)?;
        let mut client = End {
            consumer: stage.back.consumer(),
            producer: stage.there.producer(),
            heard: &stage.back_bell,
            rung: &stage.there_bell,
            waiter: Waiter::new(policy)?,
        };
        stage.meet()?;
        let (start, cpu) = (Instant::now(), own_processor_time()?);
        let latencies = client.send_requests(load)?;
        let (wall, cpu) = (start.elapsed(), own_processor_time()? - cpu);
        client.send([STOP; 8])?;
        Ok((latencies, wall, cpu))
    };
    let there = || {
        let mut server = End {
            consumer: stage.there.consumer(),
            producer: stage.back.producer(),
            heard: &stage.there_bell,
            rung: &stage.back_bell,
            waiter: Waiter::new(policy)?,
        };
        stage.meet()?;
        loop {
            match server.receive(LIMIT) {
                Some(entry) if entry[0] == STOP => return Ok(()),
                Some(entry) => server.send(entry)?,
                None => anyhow::bail!("no request came for {LIMIT:?}"),
            }
        }
    };
    let ((mut latencies, wall, own), other) = in_two_processes(here, there)?;
    let cpu = own + other;
    Ok(Outcome {
        p50_us: percentile(&mut latencies, 500)? / 1000.0,
        p99_us: percentile(&mut latencies, 990)? / 1000.0,
        cpu_us_per_request: cpu.as_secs_f64() * 1e6 / load.requests as f64,
        cpu_percent: cpu.as_secs_f64() / wall.as_secs_f64() * 50.0,
    })
}

/// One process's end of both rings.
struct End<'a> {
    consumer: Consumer<SharedLines>,
    producer: Producer<SharedLines>,
    heard: &'a Doorbell,
    rung: &'a Doorbell,
    waiter: Waiter,
}

impl End<'_> {
    fn send(&mut self, entry: RingEntry) -> anyhow::Result<()> {
        self.producer.push(entry)?;
        self.rung.ring();
        Ok(())
    }

    fn receive(&mut self, limit: Duration) -> Option<RingEntry> {
        let consumer = &mut self.consumer;
        self.waiter.wait_for(self.heard, limit, || consumer.pop())
    }

    /// Sends a load's requests and returns how many nanoseconds each took.
    fn send_requests(&mut self, load: Load) -> anyhow::Result<Vec<u64>> {
        let start = Instant::now();
        let mut latencies = Vec::with_capacity(load.requests as usize);
        let mut sent = 0;
        while latencies.len() < load.requests as usize {
            while sent < load.requests && sent - (latencies.len() as u64) < load.depth as u64 {
                self.pause_until(start + load.period * sent as u32);
                let now = start.elapsed().as_nanos() as u64;
                self.send([sent, now, 0, 0, 0, 0, 0, 0])?;
                sent += 1;
            }
            let answer = self.receive(LIMIT);
            let Some([id, sent_at, ..]) = answer else {
                anyhow::bail!("request {} took longer than {LIMIT:?}", latencies.len());
            };
            anyhow::ensure!(id == latencies.len() as u64, "request {id} completed out of order");
            latencies.push(start.elapsed().as_nanos() as u64 - sent_at);
        }
        Ok(latencies)
    }

    /// Idles by this end's policy until the next request is due.
    fn pause_until(&mut self, due: Instant) {
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            let heard = self.heard;
            self.waiter.wait(heard, heard.sequence(), left);
        }
    }
}
