//! What an entry costs: one way in batches, and there and back one at a time.

use crate::harness::{Effort, Line, Stage, in_two_processes, median, percentile, pin};
use osier_pmr::RingEntry;
use std::hint::spin_loop;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

const CAPACITY: usize = 256;
const BATCH: usize = 16;

/// Nanoseconds an entry, batched, between processes; the peer is rtrb between threads with as large entries.
pub fn one_way(effort: Effort) -> anyhow::Result<Vec<Line>> {
    let count = effort.count(1_000_000);
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..effort.series() {
        ours.push(one_way_ring(count)?);
        theirs.push(one_way_rtrb(count)?);
    }
    let line = Line::new("pmr.ring.one_way_batched", median(ours), "ns/entry");
    Ok(vec![line.peer("rtrb 0.4, threads, 64-byte entries", median(theirs)).bar(25.0)])
}

fn one_way_ring(count: u64) -> anyhow::Result<f64> {
    let stage = Stage::new(CAPACITY)?;
    let here = || {
        let mut producer = stage.there.producer();
        stage.meet()?;
        let start = Instant::now();
        let mut sent = 0;
        while sent < count {
            let batch: [RingEntry; BATCH] = std::array::from_fn(|ahead| [sent + ahead as u64; 8]);
            let wanted = BATCH.min((count - sent) as usize);
            match producer.push_batch(&batch[..wanted]) {
                0 => spin_loop(),
                pushed => sent += pushed as u64,
            }
        }
        while !producer.is_drained() {
            spin_loop();
        }
        Ok(start.elapsed().as_nanos() as f64 / count as f64)
    };
    let there = || {
        let mut consumer = stage.there.consumer();
        let mut batch = [[0; 8]; BATCH];
        stage.meet()?;
        let (mut taken, mut sum) = (0, 0u64);
        while taken < count {
            let popped = consumer.pop_batch(&mut batch);
            if popped == 0 {
                spin_loop();
                continue;
            }
            for entry in &batch[..popped] {
                sum = sum.wrapping_add(entry.iter().sum());
            }
            taken += popped as u64;
        }
        consumer.publish();
        anyhow::ensure!(sum == checksum(count), "the entries that came out are not those that went in");
        Ok(())
    };
    Ok(in_two_processes(here, there)?.0)
}

/// The sum of all words of entries 0 to `count`, each eight times its number.
fn checksum(count: u64) -> u64 {
    count * (count - 1) / 2 * 8
}

fn one_way_rtrb(count: u64) -> anyhow::Result<f64> {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<RingEntry>::new(CAPACITY);
    // Before the thread starts, so that it needs no turn on the sender's processor.
    pin(1)?;
    let receiver = std::thread::spawn(move || -> anyhow::Result<u64> {
        let (mut taken, mut sum) = (0, 0u64);
        while taken < count {
            let ready = consumer.slots().min(BATCH);
            if ready == 0 {
                spin_loop();
                continue;
            }
            for entry in consumer.read_chunk(ready)? {
                sum = sum.wrapping_add(entry.iter().sum());
            }
            taken += ready as u64;
        }
        Ok(sum)
    });
    pin(0)?;
    let start = Instant::now();
    let mut sent = 0;
    while sent < count {
        let wanted = BATCH.min((count - sent) as usize);
        match producer.write_chunk_uninit(wanted) {
            Ok(chunk) => sent += chunk.fill_from_iter((sent..).map(|id| [id; 8])) as u64,
            Err(_) => spin_loop(),
        }
    }
    let sum = receiver.join().map_err(|_| anyhow::anyhow!("the rtrb receiver panicked"))??;
    anyhow::ensure!(sum == checksum(count), "the entries that came out of rtrb are not those that went in");
    Ok(start.elapsed().as_nanos() as f64 / count as f64)
}

/// Round trips with both sides polling; the peer is a bare cache line each way, in the same run.
pub fn round_trip(effort: Effort) -> anyhow::Result<Vec<Line>> {
    const PERMILLES: [(&str, usize); 3] = [("p50", 500), ("p99", 990), ("p99.9", 999)];
    let count = effort.count(100_000);
    let mut ours = [const { Vec::new() }; 3];
    let mut bare = [const { Vec::new() }; 3];
    for _ in 0..effort.series() {
        let (mut ring, mut line) = (ring_trips(count)?, bare_trips(count)?);
        for (index, (_, permille)) in PERMILLES.iter().enumerate() {
            ours[index].push(percentile(&mut ring, *permille)? / 1000.0);
            bare[index].push(percentile(&mut line, *permille)? / 1000.0);
        }
    }
    let figures = PERMILLES.iter().zip(ours.into_iter().zip(bare));
    let lines = figures.map(|((name, permille), (ours, bare))| {
        let line = Line::new(format!("pmr.ring.round_trip_polling.{name}"), median(ours), "us");
        let line = line.peer("bare cache line, processes", median(bare));
        if *permille == 500 { line.bar(0.7) } else { line }
    });
    Ok(lines.collect())
}

fn ring_trips(count: u64) -> anyhow::Result<Vec<u64>> {
    let stage = Stage::new(64)?;
    let here = || {
        let (mut producer, mut consumer) = (stage.there.producer(), stage.back.consumer());
        let mut trips = Vec::with_capacity(count as usize);
        stage.meet()?;
        for id in 0..count {
            let start = Instant::now();
            producer.push([id; 8])?;
            let answer = loop {
                match consumer.pop() {
                    Some(answer) => break answer,
                    None => spin_loop(),
                }
            };
            trips.push(start.elapsed().as_nanos() as u64);
            anyhow::ensure!(answer == [id; 8], "request {id} was answered by {answer:?}");
        }
        Ok(trips)
    };
    let there = || {
        let (mut consumer, mut producer) = (stage.there.consumer(), stage.back.producer());
        stage.meet()?;
        for _ in 0..count {
            let entry = loop {
                match consumer.pop() {
                    Some(entry) => break entry,
                    None => spin_loop(),
                }
            };
            producer.push(entry)?;
        }
        Ok(())
    };
    Ok(in_two_processes(here, there)?.0)
}

fn bare_trips(count: u64) -> anyhow::Result<Vec<u64>> {
    let stage = Stage::new(2)?;
    let here = || {
        let mut trips = Vec::with_capacity(count as usize);
        stage.meet()?;
        for id in 1..=count {
            let start = Instant::now();
            stage.word(0).store(id, Release);
            while stage.word(1).load(Acquire) != id {
                spin_loop();
            }
            trips.push(start.elapsed().as_nanos() as u64);
        }
        Ok(trips)
    };
    let there = || {
        stage.meet()?;
        for id in 1..=count {
            while stage.word(0).load(Acquire) != id {
                spin_loop();
            }
            stage.word(1).store(id, Release);
        }
        Ok(())
    };
    Ok(in_two_processes(here, there)?.0)
}
