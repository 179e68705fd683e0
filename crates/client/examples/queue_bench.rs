//! Reads or writes of 4 KiB at random places by one queue of a device that is served: how many a second.
//!
//! `queue_bench SOCKET read|write DEPTH SECONDS`

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use osier_client::{Ask, Queue, Slot};

const BLOCK_BYTES: u32 = 4096;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, kind, depth, seconds] = arguments.as_slice() else {
        eprintln!("queue_bench SOCKET read|write DEPTH SECONDS");
        return ExitCode::FAILURE;
    };
    let (Ok(depth), Ok(seconds)) = (depth.parse(), seconds.parse()) else {
        eprintln!("queue_bench: depth and seconds are numbers");
        return ExitCode::FAILURE;
    };
    match run(Path::new(socket), kind == "write", depth, Duration::from_secs(seconds)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("queue_bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(socket: &Path, writes: bool, depth: u16, limit: Duration) -> Result<(), Box<dyn std::error::Error>> {
    let mut queue = Queue::attach(socket, depth, BLOCK_BYTES)?;
    let blocks = queue.namespace().blocks.min(1 << 14);
    let mut random = 1_u64;
    let mut next = |queue: &mut Queue, slot: Slot| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let block = (random >> 33) % blocks;
        let ask = if writes { Ask::Write { block, blocks: 1, fua: false } } else { Ask::Read { block, blocks: 1 } };
        queue.submit(slot, &ask);
    };
    while let Some(slot) = queue.take() {
        queue.buffer(slot).fill(0, u64::from(BLOCK_BYTES), slot.index() as u8);
        next(&mut queue, slot);
    }
    queue.ring();
    let began = Instant::now();
    let mut ended = 0_u64;
    while began.elapsed() < limit {
        let before = ended;
        while let Some((slot, status)) = queue.reap() {
            if !status.is_success() {
                return Err(format!("a command ended with {status}").into());
            }
            ended += 1;
            next(&mut queue, slot);
        }
        if ended > before {
            queue.ring();
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{{\"ops\":{ended},\"per_second\":{:.0},\"us\":{:.2}}}",
        ended as f64 / seconds,
        seconds * 1e6 * f64::from(depth) / ended as f64
    );
    Ok(())
}
