//! How many transactions the model takes a second, in virtual time, on the busiest and the plainest links.
//! Prints one JSON object for each figure.

use std::time::{Duration, Instant};

use osier_link::nvme::{self, QueuePair, Transfer};
use osier_link::{CxlFlit, Direction, Link, LinkConfig, Time, Transaction};

/// The fewest transactions a second that are promised: the device core must not wait for its link.
const RATE_MIN: f64 = 10_000_000.0;
/// Rounds of a part: some milliseconds.
const PART: usize = 8_192;

const CONFIG: LinkConfig = LinkConfig {
    generation: 5,
    lanes: 4,
    max_payload_bytes: 256,
    max_read_request_bytes: 512,
    read_completion_boundary_bytes: 64,
    completion_bytes_max: 256,
    ecrc: false,
    ack_every_packets: 4,
    update_fc_every_packets: 4,
    read_tags: 256,
    one_way_ns: 100,
    host_read_ns: 300,
    device_read_ns: 100,
    cxl_flit: CxlFlit::None,
};

/// Rounds of `round`, each begun when the one `depth` before it was over. The figure is that of the fastest part of two
/// seconds: what other programs take of the core is no property of the model.
fn measure(name: &str, config: &LinkConfig, depth: usize, round: &[Transaction]) {
    let mut link = Link::new(config).expect("the configuration is sound");
    let mut over = vec![Time::ZERO; depth];
    let (start, mut rate) = (Instant::now(), 0.0f64);
    while start.elapsed() < Duration::from_secs(2) {
        let part = Instant::now();
        for index in 0..PART {
            let slot = &mut over[index % depth];
            let now = *slot;
            for transaction in round {
                *slot = link.transfer(now, *transaction).at.max(*slot);
            }
        }
        rate = rate.max((PART * round.len()) as f64 / part.elapsed().as_secs_f64());
    }
    let end = over.iter().max().map_or(0, |time| time.nanos_ceil());
    let busy = |direction| link.busy_picos(direction) / 10 / u128::from(end.max(1));
    let (down, up) = (busy(Direction::Downstream), busy(Direction::Upstream));
    let pass = rate >= RATE_MIN;
    print!("{{\"name\":\"link/{name}\",\"value\":{rate:.0},\"unit\":\"transactions/s\"");
    print!(",\"bar\":\">= {RATE_MIN}\",\"pass\":{pass}");
    println!(",\"note\":\"depth {depth}; the link is busy for {down} % of the time downstream, {up} % upstream\"}}");
}

fn main() {
    let queue = QueuePair { submissions: 1 << 33, completions: 1 << 34, doorbells: 1 << 40, entries: 1024 };
    let mut write = queue.submit(3, 1).collect::<Vec<_>>();
    write.extend(nvme::sgl(Transfer::HostToController, &[(1 << 35, 4096)], 0));
    write.extend(queue.complete(3, true));
    measure("nvme-write-4k-depth-1", &CONFIG, 1, &write);
    measure("nvme-write-4k", &CONFIG, 64, &write);
    let flits = LinkConfig { generation: 6, ..CONFIG };
    measure("nvme-write-4k-flit-mode", &flits, 64, &write);
    let lines = [Transaction::cxl_read(), Transaction::cxl_write()].concat();
    let cxl_68 = LinkConfig { lanes: 8, cxl_flit: CxlFlit::Bytes68, ..CONFIG };
    measure("cxl-line-read-write-68", &cxl_68, 64, &lines);
    let cxl_256 = LinkConfig { generation: 6, lanes: 8, cxl_flit: CxlFlit::Bytes256, ..CONFIG };
    measure("cxl-line-read-write-256", &cxl_256, 64, &lines);
}
