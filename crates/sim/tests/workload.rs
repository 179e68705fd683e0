//! Generators beside the distributions that they are said to have; jobs and phases; descriptions that cannot be.
#![allow(clippy::unwrap_used, reason = "a test")]

use osier_sim::workload::{Job, Merged, Workload};
use osier_sim::{Nanos, Op, Pace, Request, Rng, Source};

/// One job of one phase, of 64-byte loads over so many slots.
fn description(pattern: &str, slots: u64, requests: u64) -> String {
    format!(
        "seed = 42\n[[job]]\nname = \"j\"\n[[job.phase]]\nrequests = {requests}\npattern = {pattern}\n\
         mix = {{ load_permille = 1000 }}\nrange_bytes = {}\nblock_bytes = 64\n\
         arrivals = {{ closed = {{ depth = 1 }} }}\n",
        slots * 64
    )
}

fn parse(text: &str) -> Workload {
    Workload::parse("test", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn job(text: &str) -> Job {
    parse(text).jobs().remove(0)
}

/// All requests of a job; in a closed loop each is done at once.
fn all(job: &mut Job) -> Vec<Request> {
    let mut now = Nanos::ZERO;
    let next = || {
        let request = job.next(now)?.unwrap();
        now = request.at;
        Some(request)
    };
    std::iter::from_fn(next).collect()
}

fn slots(pattern: &str, slots: u64, requests: u64) -> Vec<u64> {
    all(&mut job(&description(pattern, slots, requests))).iter().map(|request| request.address / 64).collect()
}

fn histogram(values: &[u64], bins: usize) -> Vec<u64> {
    let mut counts = vec![0; bins];
    values.iter().for_each(|value| counts[*value as usize] += 1);
    counts
}

/// Pearson's statistic over bins of at least twenty expected, and its bound: six standard deviations above its mean,
/// which a right generator passes with a probability above 1 - 10^-6.
fn assert_fits(what: &str, counts: &[u64], shares: &[f64]) {
    let total: u64 = counts.iter().sum();
    let (mut statistic, mut bins) = (0.0, 0_u32);
    let (mut seen, mut expected) = (0.0, 0.0);
    for (index, (count, share)) in counts.iter().zip(shares).enumerate() {
        seen += *count as f64;
        expected += share * total as f64;
        if expected >= 20.0 || index + 1 == counts.len() {
            statistic += (seen - expected).powi(2) / expected.max(1.0);
            bins += 1;
            (seen, expected) = (0.0, 0.0);
        }
    }
    let freedom = f64::from(bins - 1);
    let bound = freedom + 6.0 * (2.0 * freedom).sqrt();
    assert!(statistic < bound, "{what}: chi-square {statistic:.0} of {freedom} degrees is above {bound:.0}");
}

fn zipf_shares(ranks: u64, theta: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=ranks).map(|rank| (rank as f64).powf(-theta)).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

#[test]
fn zipf_has_the_frequencies_of_the_formula() {
    for (theta_permille, ranks) in
        [(1, 50), (500, 1000), (990, 1000), (1000, 1000), (1001, 1000), (1500, 300), (4000, 5)]
    {
        let pattern = format!("{{ zipf = {{ theta_permille = {theta_permille}, scatter = false }} }}");
        let counts = histogram(&slots(&pattern, ranks, 400_000), ranks as usize);
        let shares = zipf_shares(ranks, f64::from(theta_permille) / 1000.0);
        assert_fits(&pattern, &counts, &shares);
        let wrong = zipf_shares(ranks, f64::from(theta_permille) / 1000.0 + 0.05);
        let off = std::panic::catch_unwind(|| assert_fits("a wrong exponent", &counts, &wrong));
        assert!(off.is_err(), "the test does not see an exponent that is 0.05 off");
    }
    assert!(slots("{ zipf = { theta_permille = 990 } }", 1, 100).iter().all(|slot| *slot == 0));
}

/// The sum of `k^-theta` from 1 to `n`, by Euler and Maclaurin from the 1000th on.
fn harmonic(n: f64, theta: f64) -> f64 {
    const EXACT: u32 = 1000;
    if n <= f64::from(EXACT) {
        return (1..=n as u32).map(|k| f64::from(k).powf(-theta)).sum();
    }
    let start: f64 = (1..EXACT).map(|k| f64::from(k).powf(-theta)).sum();
    let m = f64::from(EXACT);
    let integral =
        if theta == 1.0 { (n / m).ln() } else { (n.powf(1.0 - theta) - m.powf(1.0 - theta)) / (1.0 - theta) };
    let ends = (m.powf(-theta) + n.powf(-theta)) / 2.0;
    start + integral + ends + theta * (m.powf(-theta - 1.0) - n.powf(-theta - 1.0)) / 12.0
}

#[test]
fn zipf_over_a_trillion_slots_needs_no_table_and_is_as_exact() {
    const RANKS: u64 = 1 << 40;
    const DRAWS: u64 = 300_000;
    for theta_permille in [200, 990, 1000, 1200] {
        let pattern = format!("{{ zipf = {{ theta_permille = {theta_permille}, scatter = false }} }}");
        let theta = f64::from(theta_permille) / 1000.0;
        let values = slots(&pattern, RANKS, DRAWS);
        // Powers of two as borders of the bins: the share below each is a quotient of two sums.
        let bin = |rank: u64| (rank + 1).ilog2() as usize;
        let counts = histogram(&values.iter().map(|rank| bin(*rank) as u64).collect::<Vec<_>>(), 41);
        let total = harmonic(RANKS as f64, theta);
        let below = |bin: usize| harmonic(((1_u64 << bin) - 1) as f64, theta) / total;
        let shares: Vec<f64> =
            (0..41).map(|bin| if bin == 40 { 1.0 - below(40) } else { below(bin + 1) - below(bin) }).collect();
        assert_fits(&pattern, &counts, &shares);
    }
}

#[test]
fn scattered_ranks_have_the_same_frequencies_elsewhere() {
    let mut counts = histogram(&slots("{ zipf = { theta_permille = 990 } }", 1000, 200_000), 1000);
    assert!(counts[0] < counts.iter().copied().max().unwrap(), "the first slot is not the hottest by design");
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let plain = histogram(&slots("{ zipf = { theta_permille = 990, scatter = false } }", 1000, 200_000), 1000);
    let mut sorted = plain.clone();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let close = |a: u64, b: u64| a.abs_diff(b) <= 40 + a / 20;
    assert!(counts.iter().zip(&sorted).all(|(a, b)| close(*a, *b)));
}

#[test]
fn uniform_and_hotspot_have_their_shares() {
    let counts = histogram(&slots("\"uniform\"", 777, 500_000), 777);
    assert_fits("uniform", &counts, &[1.0 / 777.0; 777]);
    let pattern = "{ hotspot = { access_permille = 900, space_permille = 100 } }";
    let counts = histogram(&slots(pattern, 500, 500_000), 500);
    let share = |slot: usize| if slot < 50 { 0.9 / 50.0 } else { 0.1 / 450.0 };
    assert_fits("hotspot", &counts, &(0..500).map(share).collect::<Vec<_>>());
}

#[test]
fn normal_has_its_bell_and_is_cut_off_at_the_range() {
    for (mean, deviation) in [(500, 100), (0, 300), (900, 1000)] {
        let pattern = format!("{{ normal = {{ mean_permille = {mean}, deviation_permille = {deviation} }} }}");
        let counts = histogram(&slots(&pattern, 200, 400_000), 200);
        let at = |slot: usize| {
            let z = (slot as f64 - 0.2 * f64::from(mean)) / (0.2 * f64::from(deviation));
            0.5 * (1.0 + libm::erf(z / std::f64::consts::SQRT_2))
        };
        let inside = at(200) - at(0);
        let shares: Vec<f64> = (0..200).map(|slot| (at(slot + 1) - at(slot)) / inside).collect();
        assert_fits(&pattern, &counts, &shares);
    }
}

#[test]
fn pareto_is_self_similar() {
    for skew in [100, 200, 500] {
        let pattern = format!("{{ pareto = {{ skew_permille = {skew} }} }}");
        let counts = histogram(&slots(&pattern, 1000, 400_000), 1000);
        let h = f64::from(skew) / 1000.0;
        let power = (1.0 - h).ln() / h.ln();
        let below = |slot: usize| (slot as f64 / 1000.0).powf(power);
        let shares: Vec<f64> = (0..1000).map(|slot| below(slot + 1) - below(slot)).collect();
        assert_fits(&pattern, &counts, &shares);
        let first: u64 = counts[..skew as usize].iter().sum();
        assert!((first as f64 / 400_000.0 - (1.0 - h)).abs() < 0.005, "{first} of 400000 are for the first {skew}");
    }
}

#[test]
fn a_chase_visits_every_slot_once_a_round() {
    for size in [1, 2, 3, 64, 1000, 4097] {
        let visited = slots("\"chase\"", size, 3 * size);
        for round in visited.chunks(size as usize) {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..size), "{size} slots");
        }
        assert_eq!(visited[..size as usize], visited[size as usize..2 * size as usize], "pointers do not change");
    }
}

#[test]
fn sequences_and_strides_go_round_the_range() {
    assert_eq!(slots("\"sequential\"", 3, 7), [0, 1, 2, 0, 1, 2, 0]);
    assert_eq!(slots("{ strided = { stride_bytes = 192 } }", 8, 7), [0, 3, 6, 0, 3, 6, 0]);
    let text = description("\"sequential\"", 100, 6)
        .replace("block_bytes = 64", "blocks = [{ bytes = 1000, weight = 1 }]\nalign_bytes = 512\noffset_bytes = 512");
    let addresses: Vec<u64> = all(&mut job(&text)).iter().map(|request| request.address).collect();
    assert_eq!(addresses, [512, 1536, 2560, 3584, 4608, 5632]);
}

#[test]
fn operations_and_sizes_come_in_their_shares() {
    let text = description("\"uniform\"", 1000, 300_000)
        .replace(
            "load_permille = 1000",
            "read_permille = 650, write_permille = 300, trim_permille = 40, flush_permille = 10",
        )
        .replace(
            "block_bytes = 64",
            "blocks = [{ bytes = 64, weight = 5 }, { bytes = 128, weight = 3 }, { bytes = 4096, weight = 2 }]",
        );
    let requests = all(&mut job(&text));
    let ops = histogram(&requests.iter().map(|request| request.op as u64).collect::<Vec<_>>(), 4);
    assert_fits("operations", &ops, &[0.65, 0.3, 0.04, 0.01]);
    let sized: Vec<&Request> = requests.iter().filter(|request| request.op != Op::Flush).collect();
    let sizes = [64, 128, 4096].map(|bytes| sized.iter().filter(|request| request.bytes == bytes).count() as u64);
    assert_fits("sizes", &sizes, &[0.5, 0.3, 0.2]);
    assert!(requests.iter().all(|r| r.op != Op::Flush || (r.address, r.bytes) == (0, 0)));
    let reads_only = text.replace("read_permille = 650, write_permille = 300", "read_permille = 950");
    let places = |requests: &[Request]| requests.iter().map(|request| request.address).collect::<Vec<_>>();
    assert_eq!(places(&requests), places(&all(&mut job(&reads_only))), "another mix moves no address");
}

fn open(arrivals: &str, requests: u64) -> Vec<u64> {
    let text = description("\"uniform\"", 10, requests).replace("{ closed = { depth = 1 } }", arrivals);
    all(&mut job(&text)).iter().map(|request| request.at.0).collect()
}

#[test]
fn rates_are_exact_over_a_long_run() {
    for rate in [1, 3, 7_777, 999_999_937] {
        let times = open(&format!("{{ fixed = {{ requests_per_second = {rate} }} }}"), 100_000);
        let exact = |index: usize| (index as u128 * 1_000_000_000 / rate) as u64;
        assert!(times.iter().enumerate().all(|(index, time)| *time == exact(index)), "{rate} a second");
    }
    let times = open("{ bandwidth = { bytes_per_second = 1000003 } }", 100_000);
    assert!(times.iter().enumerate().all(|(index, time)| *time == (index as u64 * 64) * 1_000_000_000 / 1_000_003));
}

#[test]
fn poisson_arrivals_have_exponential_gaps_of_the_mean() {
    const REQUESTS: u64 = 400_000;
    for rate in [10_u64, 50_000, 500_000] {
        let times = open(&format!("{{ poisson = {{ requests_per_second = {rate} }} }}"), REQUESTS);
        let mean = 1e9 / rate as f64;
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        // Of twenty bins each has a twentieth of an exponential distribution.
        let bin = |gap: &f64| (((1.0 - (-gap / mean).exp()) * 20.0) as u64).min(19);
        assert_fits("gaps", &histogram(&gaps.iter().map(bin).collect::<Vec<_>>(), 20), &[0.05; 20]);
        let span = times[times.len() - 1] as f64;
        // The sum of n gaps has a standard deviation of sqrt(n) of them.
        assert!((span / mean - REQUESTS as f64).abs() < 5.0 * (REQUESTS as f64).sqrt(), "{rate} a second");
    }
}

/// A phase with everything drawn at random.
fn random_phase(rng: &mut Rng, closed: bool) -> String {
    let align = 1_u64 << rng.below(13);
    let blocks: Vec<u64> = (0..rng.between(1, 3)).map(|_| align * rng.between(1, 5)).collect();
    let magnitude = rng.between(1, 40);
    let range = blocks.iter().max().unwrap() + rng.below(1 << magnitude);
    let offset = rng.below(1 << 40);
    let pattern = match rng.below(8) {
        0 => "\"sequential\"".to_owned(),
        1 => format!("{{ strided = {{ stride_bytes = {} }} }}", align * rng.between(1, 100)),
        2 => "\"uniform\"".to_owned(),
        3 => format!("{{ zipf = {{ theta_permille = {}, scatter = {} }} }}", rng.between(1, 3000), rng.one_in(2)),
        4 => format!(
            "{{ normal = {{ mean_permille = {}, deviation_permille = {} }} }}",
            rng.below(1001),
            rng.between(1, 1000)
        ),
        5 => format!("{{ pareto = {{ skew_permille = {} }} }}", rng.between(1, 500)),
        6 if range >= blocks.iter().max().unwrap() + align => {
            format!(
                "{{ hotspot = {{ access_permille = {}, space_permille = {} }} }}",
                rng.below(1001),
                rng.between(1, 999)
            )
        }
        _ => "\"chase\"".to_owned(),
    };
    let arrivals = match rng.below(4) {
        0 if closed => format!("{{ closed = {{ depth = {}, think_ns = {} }} }}", rng.between(1, 9), rng.below(1000)),
        1 => format!("{{ fixed = {{ requests_per_second = {} }} }}", rng.between(1000, 10_000_000)),
        2 => format!("{{ bandwidth = {{ bytes_per_second = {} }} }}", rng.between(1_000_000, 10_000_000_000)),
        _ => format!("{{ poisson = {{ requests_per_second = {} }} }}", rng.between(1000, 10_000_000)),
    };
    let length = match rng.one_in(2) {
        true => format!("requests = {}", rng.between(1, 300)),
        false => format!("duration_ns = {}", rng.between(1, 200_000)),
    };
    let sizes: Vec<String> =
        blocks.iter().map(|bytes| format!("{{ bytes = {bytes}, weight = {} }}", rng.between(1, 5))).collect();
    let read = rng.below(1001);
    format!(
        "[[job.phase]]\n{length}\npattern = {pattern}\nmix = {{ read_permille = {read}, write_permille = {} }}\n\
         offset_bytes = {offset}\nrange_bytes = {range}\nblocks = [{}]\nalign_bytes = {align}\narrivals = {arrivals}\n",
        1000 - read,
        sizes.join(", ")
    )
}

fn random_workload(rng: &mut Rng, closed: bool) -> Workload {
    let mut text = format!("seed = {}\n", rng.next() >> 1);
    for job in 0..rng.between(1, 4) {
        text += &format!("[[job]]\nname = \"j{job}\"\ntenant = {}\n", 100 - job);
        (0..rng.between(1, 4)).for_each(|_| text += &random_phase(rng, closed));
    }
    parse(&text)
}

#[test]
fn no_request_leaves_its_range_its_alignment_its_sizes_or_its_phase() {
    let mut rng = Rng::new(77);
    let mut checked = 0;
    for round in 0..400 {
        let workload = random_workload(&mut rng, true);
        for (description, mut job) in workload.jobs.iter().zip(workload.jobs()) {
            let mut now = Nanos::ZERO;
            let mut counts = vec![0; description.phases.len()];
            let mut first_at: Vec<Option<Nanos>> = vec![None; description.phases.len()];
            loop {
                // A count that is full is known beforehand, a time that is over is not.
                let sure = job.phase();
                let Some(request) = job.next(now).transpose().unwrap() else { break };
                assert!(request.at >= now, "round {round}: time goes back");
                let full = |index: usize| description.phases[index].requests == Some(counts[index] + 1);
                let index = if job.phase() > sure && full(job.phase() - 1) { job.phase() - 1 } else { job.phase() };
                let phase = &description.phases[index];
                counts[index] += 1;
                let first = *first_at[index].get_or_insert(request.at);
                let place = request.address - phase.offset_bytes;
                assert!(place + u64::from(request.bytes) <= phase.range_bytes, "round {round}: out of range");
                assert!(place.is_multiple_of(phase.align()), "round {round}: not aligned");
                assert!(phase.sizes().iter().any(|block| block.bytes == request.bytes), "round {round}: another size");
                if let Some(duration) = phase.duration_ns {
                    assert!(request.at.0 < first.0 + duration, "round {round}: after the phase");
                }
                now = request.at;
                checked += 1;
            }
            for (phase, count) in description.phases.iter().zip(counts) {
                assert!(phase.requests.is_none_or(|requests| requests == count), "round {round}: {count} requests");
            }
        }
    }
    assert!(checked > 50_000, "{checked} requests are no test");
}

#[test]
fn merging_loses_and_changes_nothing_and_keeps_time() {
    let mut rng = Rng::new(5);
    for round in 0..100 {
        let workload = random_workload(&mut rng, false);
        let mut merged = Merged::new(&workload, None).unwrap();
        let requests: Vec<Request> = std::iter::from_fn(|| merged.next(Nanos::ZERO)).map(Result::unwrap).collect();
        assert!(requests.windows(2).all(|pair| pair[0].at <= pair[1].at), "round {round}");
        for mut job in workload.jobs() {
            let tenant = job.tenant();
            let own: Vec<Request> = requests.iter().filter(|request| request.tenant == tenant).copied().collect();
            assert_eq!(own, all(&mut job), "round {round}, tenant {tenant}");
        }
    }
}

#[test]
fn a_closed_loop_keeps_its_depth_and_its_think_time() {
    let text = description("\"uniform\"", 100, 1000)
        .replace("{ closed = { depth = 1 } }", "{ closed = { depth = 5, think_ns = 30 } }");
    let workload = parse(&text);
    assert_eq!(workload.jobs()[0].pace(), Pace::Closed { depth: 5 });
    let mut merged = Merged::new(&workload, Some(200)).unwrap();
    let times: Vec<u64> = std::iter::from_fn(|| merged.next(Nanos::ZERO)).map(|r| r.unwrap().at.0).collect();
    // All five think, are served and think again together.
    assert!(times.iter().enumerate().all(|(index, time)| *time == 30 + index as u64 / 5 * 230), "{:?}", &times[..12]);
    let error = Merged::new(&workload, None).unwrap_err().to_string();
    assert!(error.contains("\"j\"") && error.contains("how long a request takes"), "{error}");
}

#[test]
fn a_closed_phase_and_an_open_one_keep_their_own_pace_behind_each_other() {
    let closed = description("\"uniform\"", 100, 10).replace("depth = 1", "depth = 5, think_ns = 30");
    let phase = closed[closed.find("[[job.phase]]").unwrap()..].to_owned();
    let open =
        phase.replace("{ closed = { depth = 5, think_ns = 30 } }", "{ fixed = { requests_per_second = 1_000_000 } }");
    let workload = parse(&format!("{closed}{}{phase}", open.replace("requests = 10\n", "duration_ns = 2500\n")));
    let mut merged = Merged::new(&workload, Some(200)).unwrap();
    let times: Vec<u64> = std::iter::from_fn(|| merged.next(Nanos::ZERO)).map(|r| r.unwrap().at.0).collect();
    // Five at 30, five at 260 when these are done; an open phase from there to 2760; behind it twice five again.
    assert_eq!(times[..10], [[30; 5], [260; 5]].concat());
    assert_eq!(times[10..13], [260, 1260, 2260]);
    assert_eq!(times[13..], [[2790; 5], [3020; 5]].concat());
}

#[test]
fn phases_follow_each_other_without_a_gap() {
    let mut text = description("\"uniform\"", 10, 5)
        .replace("{ closed = { depth = 1 } }", "{ fixed = { requests_per_second = 10_000_000 } }");
    let phase = text[text.find("[[job.phase]]").unwrap()..].to_owned();
    text += &phase.replace("requests = 5\n", "duration_ns = 250\n");
    text += &phase;
    let times: Vec<u64> = all(&mut job(&text)).iter().map(|request| request.at.0).collect();
    assert_eq!(times, [0, 100, 200, 300, 400, 500, 600, 700, 750, 850, 950, 1050, 1150]);
}

/// The first sixteen of each generator, as they are on any machine.
#[test]
fn the_first_numbers_are_the_same_on_every_machine() {
    const PATTERNS: [&str; 9] = [
        "\"sequential\"",
        "{ strided = { stride_bytes = 4096 } }",
        "\"uniform\"",
        "{ zipf = { theta_permille = 990 } }",
        "{ zipf = { theta_permille = 1200, scatter = false } }",
        "{ normal = { mean_permille = 500, deviation_permille = 100 } }",
        "{ pareto = { skew_permille = 200 } }",
        "{ hotspot = { access_permille = 900, space_permille = 100 } }",
        "\"chase\"",
    ];
    let mut found = String::new();
    let mut line = |name: &str, values: &[u64]| {
        let words: Vec<String> = values.iter().map(u64::to_string).collect();
        found += &format!("{name}: {}\n", words.join(" "));
    };
    for pattern in PATTERNS {
        line(pattern, &slots(pattern, 1 << 34, 16));
    }
    for arrivals in ["fixed = { requests_per_second = 30000 }", "poisson = { requests_per_second = 30000 }"] {
        line(arrivals, &open(&format!("{{ {arrivals} }}"), 16));
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden-workloads.txt");
    if std::env::var_os("OSIER_ACCEPT").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(&path).unwrap(), "OSIER_ACCEPT=1 takes these for the right ones");
}

#[test]
fn impossible_values_are_refused_with_key_line_and_reason() {
    let good = description("\"uniform\"", 100, 10);
    for (from, to, line, key, reason) in [
        ("requests = 10\n", "requests = 0\n", 5, "job.1.phase.1.requests", "must be 1 to"),
        ("requests = 10\n", "requests = 10\nduration_ns = 5\n", 5, "requests", "not both"),
        ("block_bytes = 64", "block_bytes = 0", 9, "block_bytes", "must be 1 to"),
        ("block_bytes = 64", "block_bytes = 64\nblocks = [{ bytes = 64, weight = 1 }]", 9, "block_bytes", "not both"),
        ("block_bytes = 64", "blocks = []", 9, "blocks", "1 to 64"),
        ("block_bytes = 64", "blocks = [{ bytes = 64, weight = 0 }]", 9, "blocks.1.weight", "left out"),
        ("block_bytes = 64", "block_bytes = 64\nalign_bytes = 0", 10, "align_bytes", "multiples"),
        ("range_bytes = 6400", "range_bytes = 63", 8, "range_bytes", "largest request"),
        ("load_permille = 1000", "load_permille = 999", 7, "mix", "adds up to 999"),
        ("\"uniform\"", "{ strided = { stride_bytes = 0 } }", 6, "pattern.strided.stride_bytes", "same place"),
        (
            "\"uniform\"",
            "{ strided = { stride_bytes = 65 } }",
            6,
            "pattern.strided.stride_bytes",
            "multiple of the alignment",
        ),
        ("\"uniform\"", "{ zipf = { theta_permille = 0 } }", 6, "pattern.zipf.theta_permille", "`uniform`"),
        ("\"uniform\"", "{ pareto = { skew_permille = 501 } }", 6, "pattern.pareto.skew_permille", "turns round"),
        (
            "\"uniform\"",
            "{ normal = { mean_permille = 1001, deviation_permille = 1 } }",
            6,
            "mean_permille",
            "in the range",
        ),
        ("\"uniform\"", "{ hotspot = { access_permille = 1, space_permille = 1000 } }", 6, "space_permille", "a rest"),
        ("depth = 1", "depth = 0", 10, "arrivals.closed.depth", "under way"),
        ("closed = { depth = 1 }", "fixed = { requests_per_second = 0 }", 10, "requests_per_second", "nothing comes"),
    ] {
        let text = good.replace(from, to);
        assert_ne!(text, good, "{from} is not there");
        let error = Workload::parse("w.toml", &text).unwrap_err().to_string();
        let start = format!("workload w.toml, line {line}: ");
        assert!(error.starts_with(&start) && error.contains(key) && error.contains(reason), "{to}: {error}");
    }
    let twice = format!("{good}[[job]]\nname = \"k\"\ntenant = 0\nphase = []\n");
    let error = Workload::parse("w", &twice).unwrap_err().to_string();
    assert!(error.contains("line 13: job.2.tenant") && error.contains("another job"), "{error}");
    let error = Workload::parse("w", "seed = 1\njob = []\n").unwrap_err().to_string();
    assert!(error.contains("line 2: job is 0"), "{error}");
    let large = good.replace("\"uniform\"", "{ zipf = { theta_permille = 1 } }").replace("6400", "4611686018427387904");
    let error = Workload::parse("w", &large).unwrap_err().to_string();
    assert!(error.contains("range_bytes") && error.contains("1099511627776"), "{error}");
}

#[test]
fn unknown_and_missing_keys_are_refused_by_name_and_line() {
    let good = description("\"uniform\"", 100, 10);
    for (from, to, line, word) in [
        ("block_bytes", "block_byte", 9, "`block_byte`"),
        ("\"uniform\"", "\"unifrom\"", 6, "`unifrom`"),
        ("\"uniform\"", "{ zipf = { theta = 1 } }", 6, ": theta,"),
        ("depth = 1", "depth = 1, think = 3", 10, ": think,"),
        ("load_permille", "loads_permille", 7, "`loads_permille`"),
        ("seed = 42", "seed = -1", 1, "-1"),
        ("name = \"j\"", "nam = \"j\"", 3, "`nam`"),
    ] {
        let error = Workload::parse("w", &good.replace(from, to)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("workload w, line {line}: ")) && error.contains(word), "{error}");
        assert!(error.contains("docs/workloads.md"), "{error}");
    }
    for key in ["pattern", "mix", "range_bytes", "arrivals", "seed", "name"] {
        let without: String =
            good.lines().filter(|line| !line.starts_with(key)).map(|line| format!("{line}\n")).collect();
        let error = Workload::parse("w", &without).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{error}");
    }
}

#[test]
fn every_example_of_the_manual_is_a_workload() {
    let manual = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/workloads.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let examples: Vec<&str> = manual.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(examples.len() >= 3);
    for example in &examples {
        let workload = parse(example);
        let mut merged = Merged::new(&workload, Some(1000)).unwrap();
        assert!((0..100).all(|_| merged.next(Nanos::ZERO).is_some()), "{example}");
    }
    let all = examples.concat();
    for pattern in ["sequential", "strided", "uniform", "zipf", "normal", "pareto", "hotspot", "chase"] {
        assert!(all.contains(pattern), "no example has {pattern}");
    }
    for name in Workload::built_in_names() {
        Workload::built_in(name).unwrap();
        assert!(manual.contains(name), "docs/workloads.md lacks {name}");
    }
    let error = Workload::built_in("cylon").unwrap_err().to_string();
    assert!(error.contains("cylon-seq"), "{error}");
}
