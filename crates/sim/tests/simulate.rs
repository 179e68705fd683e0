//! Whole simulations: profile, workload and options in, a result out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Read;
use std::ops::ControlFlow;

use osier_device::Profile;
use osier_flash::page::FillPattern;
use osier_sim::run::{
    FillMethod, Io, Limits, Load, Options, Precondition, RunReport, SimulateError, WarmUp, Watch, simulate,
};
use osier_sim::trace::{ReadOptions, Remap, Speed, TraceReader, unpack};
use osier_sim::workload::Workload;
use serde_json::Value;

const CAPACITY: u64 = 1 << 30;
const FULL: Precondition =
    Precondition { fill_permille: 1000, pattern: FillPattern::UniformRandom, method: FillMethod::Analytic };

/// Two tenants, one of loads and stores and one of block commands, for as many requests each.
fn mixed(requests: u64) -> Workload {
    let text = format!(
        r#"
        seed = 7
        [[job]]
        name = "memory"
        [[job.phase]]
        requests = {requests}
        pattern = {{ zipf = {{ theta_permille = 900 }} }}
        mix = {{ load_permille = 700, store_permille = 300 }}
        range_bytes = 268435456
        block_bytes = 64
        arrivals = {{ closed = {{ depth = 4 }} }}
        [[job]]
        name = "blocks"
        [[job.phase]]
        requests = {requests}
        pattern = "uniform"
        mix = {{ read_permille = 590, write_permille = 400, flush_permille = 10 }}
        range_bytes = 1073741824
        blocks = [{{ bytes = 4096, weight = 3 }}, {{ bytes = 16384, weight = 1 }}]
        arrivals = {{ poisson = {{ requests_per_second = 20000 }} }}
        "#
    );
    Workload::parse("mixed", &text).unwrap()
}

fn writes(requests: u64) -> Workload {
    let text = format!(
        r#"
        seed = 1
        [[job]]
        name = "w"
        [[job.phase]]
        requests = {requests}
        pattern = "uniform"
        mix = {{ write_permille = 1000 }}
        range_bytes = 1073741824
        block_bytes = 4096
        arrivals = {{ closed = {{ depth = 64 }} }}
        "#
    );
    Workload::parse("writes", &text).unwrap()
}

/// With fewer dies, so that a small device has as many superblocks as a large one.
fn cylon() -> Profile {
    let set = ["geometry.channels", "geometry.chips_per_channel"].map(|key| (key.to_owned(), toml::Value::Integer(2)));
    Profile::parse_with("cylon", Profile::built_in_text("cylon").unwrap(), &set).unwrap()
}

fn small() -> Options {
    Options { capacity_bytes: Some(CAPACITY), ..Options::default() }
}

fn full() -> Options {
    let precondition = Some(FULL);
    Options { precondition, ..small() }
}

fn run(profile: &Profile, workload: &Workload, options: &Options) -> RunReport {
    simulate(profile, Load::Workload { name: "test", workload }, options, &mut ()).unwrap()
}

/// A validator of the parts of JSON Schema 2020-12 that the schema uses; a keyword that it does not know is an error.
struct Schema(Value);

impl Schema {
    fn load() -> Schema {
        Schema(serde_json::from_str(include_str!("../../../docs/report-schema.json")).unwrap())
    }

    fn check(&self, text: &str) -> Result<(), String> {
        self.value(&self.0, &serde_json::from_str(text).unwrap(), "")
    }

    fn value(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        for (keyword, rule) in schema.as_object().unwrap() {
            let held = match keyword.as_str() {
                "$schema" | "title" | "description" | "$defs" | "properties" => true,
                "$ref" => {
                    let name = rule.as_str().unwrap().rsplit('/').next().unwrap();
                    self.value(&self.0["$defs"][name], value, at)?;
                    true
                }
                "anyOf" => rule.as_array().unwrap().iter().any(|one| self.value(one, value, at).is_ok()),
                "type" => match rule.as_array() {
                    Some(types) => types.iter().any(|one| is_type(one, value)),
                    None => is_type(rule, value),
                },
                "const" => value == rule,
                "minimum" => value.is_null() || value.as_u64() >= rule.as_u64(),
                "minItems" => value.as_array().is_some_and(|items| items.len() as u64 >= rule.as_u64().unwrap()),
                "maxItems" => value.as_array().is_some_and(|items| items.len() as u64 <= rule.as_u64().unwrap()),
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.value(rule, item, &format!("{at}/{index}"))?;
                    }
                    true
                }
                "required" => rule.as_array().unwrap().iter().all(|key| value.get(key.as_str().unwrap()).is_some()),
                "additionalProperties" => {
                    self.properties(schema, value, at)?;
                    true
                }
                other => return Err(format!("{at}: the validator does not know `{other}`")),
            };
            if !held {
                return Err(format!("{at}: {value} breaks {keyword} = {rule}"));
            }
        }
        Ok(())
    }

    fn properties(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        for (key, inner) in value.as_object().into_iter().flatten() {
            let at = format!("{at}/{key}");
            match (&schema["properties"][key], &schema["additionalProperties"]) {
                (Value::Null, Value::Bool(false)) => return Err(format!("{at} is not in the schema")),
                (Value::Null, other) => self.value(other, inner, &at)?,
                (known, _) => self.value(known, inner, &at)?,
            }
        }
        Ok(())
    }
}

fn is_type(name: &Value, value: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("unknown type {other}"),
    }
}

#[test]
fn the_result_is_what_its_schema_says() {
    let schema = Schema::load();
    for report in [run(&cylon(), &mixed(2000), &small()), run(&cylon(), &writes(2000), &full())] {
        let text = report.to_json();
        schema.check(&text).unwrap();
        assert_eq!(serde_json::from_str::<RunReport>(&text).unwrap(), report, "nothing is lost in it");
        // What is wrong is found.
        let whole: Value = serde_json::from_str(&text).unwrap();
        let plant = |change: &dyn Fn(&mut Value)| {
            let mut other = whole.clone();
            change(&mut other);
            schema.check(&other.to_string())
        };
        assert!(plant(&|value| value["run"]["requests"] = 0.5.into()).is_err());
        assert!(plant(&|value| value["run"]["surprise"] = 1.into()).is_err());
        assert!(plant(&|value| drop(value["flash"].as_object_mut().unwrap().remove("waf_ppm"))).is_err());
        assert!(plant(&|value| value["version"] = 2.into()).is_err());
        assert!(plant(&|value| value["latency"]["all"]["latency"]["buckets"][0] = vec![1].into()).is_err());
        assert!(plant(&|value| value["cache"] = Value::Null).is_ok());
    }
}

#[test]
fn the_same_inputs_give_the_same_bytes_on_any_number_of_threads() {
    let (profile, workload, options) = (cylon(), mixed(3000), full());
    let alone = run(&profile, &workload, &options).to_json();
    for threads in [2, 5] {
        let results: Vec<String> = std::thread::scope(|scope| {
            let runs: Vec<_> =
                (0..threads).map(|_| scope.spawn(|| run(&profile, &workload, &options).to_json())).collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        assert!(results.iter().all(|result| *result == alone));
    }
    let other = run(&profile, &workload, &Options { seed: Some(8), ..options });
    assert_ne!(other.to_json(), alone, "the seed draws something");
}

/// Adds up what it sees.
#[derive(Default)]
struct Sum {
    requests: u64,
    bytes: u64,
    latency_ns: u128,
    longest_ns: u64,
    last: u64,
}

impl Watch for Sum {
    fn completed(&mut self, io: &Io) -> ControlFlow<()> {
        let latency_ns = io.completed.0 - io.request.at.0;
        assert_eq!(io.parts.iter().sum::<u64>(), latency_ns, "{io:?}");
        assert!(io.request.at <= io.submitted && io.submitted <= io.completed);
        self.requests += 1;
        self.bytes += u64::from(io.request.bytes);
        self.latency_ns += u128::from(latency_ns);
        self.longest_ns = self.longest_ns.max(latency_ns);
        self.last = self.last.max(io.completed.0);
        ControlFlow::Continue(())
    }
}

#[test]
fn the_parts_of_a_result_agree_with_each_other_and_with_every_request() {
    let (workload, options) = (mixed(5000), full());
    let mut sum = Sum::default();
    let load = Load::Workload { name: "test", workload: &workload };
    let report = simulate(&cylon(), load, &options, &mut sum).unwrap();
    assert_eq!((report.run.requests, sum.requests), (10_000, 10_000));
    let all = &report.latency.all.latency;
    assert_eq!((all.max_ns, u128::from(all.mean_ns)), (sum.longest_ns, sum.latency_ns / 10_000));
    assert_eq!(report.run.bytes_read + report.run.bytes_written, sum.bytes, "a flush has no bytes");
    assert_eq!(report.run.span_ns, sum.last);
    let whole = |parts: Vec<u64>| assert_eq!(parts.iter().sum::<u64>(), 10_000, "{parts:?}");
    whole(report.latency.by_op.values().map(|group| group.latency.requests).collect());
    whole(report.latency.by_met.values().map(|group| group.latency.requests).collect());
    whole(report.tenants.iter().map(|tenant| tenant.latency.latency.requests).collect());
    whole(all.buckets.iter().map(|(.., count)| *count).collect());
    whole(report.run.outcomes.values().copied().collect());
    whole(report.series.requests.clone());
    let causes: u64 = report.latency.all.mean_ns_by_cause.values().sum();
    assert!(all.mean_ns - causes <= 13, "each mean is rounded down");
    let (series, flash) = (&report.series, &report.flash);
    assert_eq!(series.units_moved.iter().sum::<u64>(), flash.counts.units_moved);
    assert_eq!(series.flash_bytes_programmed.iter().sum::<u64>(), flash.counts.bytes_programmed);
    for (die, busy) in series.die_busy_ns.iter().enumerate() {
        assert_eq!(busy.iter().sum::<u64>(), flash.die_busy_ns[die]);
    }
    let cache = report.cache.as_ref().unwrap();
    assert_eq!(series.cache_accesses.iter().sum::<u64>(), cache.counts.accesses());
    let names: Vec<_> = report.tenants.iter().map(|tenant| tenant.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["memory", "blocks"]);
    let data = |direction: &str| {
        let rows = report.link.counts.iter().filter(|row| row.direction == direction && row.kind == "data");
        rows.map(|row| row.payload_bytes).sum::<u64>()
    };
    // To the device goes what is written, as completions of its reads of host memory; to the host what is read.
    let blocks = &report.tenants[1].bytes;
    assert_eq!((data("downstream"), data("upstream")), (blocks["write"], blocks["read"]));
}

#[test]
fn collection_is_seen_on_a_full_device_and_not_on_a_new_one() {
    let used = run(&cylon(), &writes(60_000), &full());
    assert!(used.flash.waf_ppm.unwrap() > 1_100_000, "{:?}", used.flash.waf_ppm);
    assert!(used.flash.counts.blocks_erased > 0 && used.flash.counts.units_moved > 0);
    let new = run(&cylon(), &writes(60_000), &small());
    assert_eq!((new.flash.counts.units_moved, new.flash.counts.blocks_erased), (0, 0));
    assert!(new.run.requests_per_second > used.run.requests_per_second * 11 / 10, "collection costs throughput");
}

#[test]
fn a_warm_up_leaves_what_it_did_out_of_every_count() {
    let workload = mixed(5000);
    let warm_up = WarmUp::Requests(6000);
    let options = Options { limits: Limits { warm_up, requests_max: Some(1000), duration_ns: None }, ..full() };
    let mut sum = Sum::default();
    let load = Load::Workload { name: "test", workload: &workload };
    let part = simulate(&cylon(), load, &options, &mut sum).unwrap();
    let whole = run(&cylon(), &workload, &full());
    assert_eq!((part.run.requests, part.run.warm_up_requests), (1000, 6000));
    assert_eq!((part.run.bytes_read + part.run.bytes_written, sum.requests), (sum.bytes, 1000));
    assert_eq!(part.latency.all.latency.max_ns, sum.longest_ns);
    // A thousand of the five thousand block commands, which are the last to come and move the most.
    let accesses = |report: &RunReport| report.cache.as_ref().unwrap().counts.accesses();
    assert!(accesses(&part) * 3 < accesses(&whole));
    assert!(part.link.wire_bytes * 3 < whole.link.wire_bytes);
}

fn trace(bytes: &'static [u8]) -> TraceReader<Box<dyn Read>> {
    let (_, bytes) = unpack(bytes).unwrap();
    TraceReader::new(bytes, None, ReadOptions::default()).unwrap()
}

#[test]
fn a_trace_is_replayed_with_its_bad_lines_counted_and_its_addresses_mapped() {
    let msr = include_bytes!("traces/msr.csv");
    let speed = Speed::Scaled { numerator: 1, denominator: 1 };
    let replay = |bytes, addresses, speed| {
        let mut reader = trace(bytes);
        let options = Options { addresses, ..small() };
        simulate(&cylon(), Load::Trace { name: "msr.csv", reader: &mut reader, speed }, &options, &mut ())
    };
    let error = replay(msr, Remap::Refuse, speed).unwrap_err();
    assert!(error.to_string().contains("beyond the capacity"), "{error}");
    for addresses in [Remap::Modulo, Remap::Compact] {
        let report = replay(msr, addresses, speed).unwrap();
        assert_eq!(report.workload.addresses, addresses.name());
        let found = report.workload.trace.unwrap();
        assert_eq!((found.format.as_str(), found.bad.len()), ("msr", 0));
        assert!(report.run.requests >= 60);
    }
    let closed = replay(msr, Remap::Modulo, Speed::Closed { depth: 2 }).unwrap();
    let open = replay(msr, Remap::Modulo, speed).unwrap();
    assert!(closed.run.span_ns * 10 < open.run.span_ns, "without its times it ends sooner");
}

/// Whoever ends a fill after so many pages.
struct EndsFill {
    after: u64,
    heard: Vec<(u64, u64)>,
}

impl Watch for EndsFill {
    fn preconditioning(&mut self, written: u64, all: u64) -> ControlFlow<()> {
        self.heard.push((written, all));
        if written < self.after { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

#[test]
fn the_analytic_fill_is_what_the_writes_come_to() {
    let workload = writes(200_000);
    let simulated = Precondition { method: FillMethod::Simulated, ..FULL };
    let text = Profile::built_in_text("cylon").unwrap();
    let set = ["geometry.channels=2", "geometry.chips_per_channel=2", "ftl.over_provisioning_permille=150"];
    let set = set.map(|text| osier_device::parse_override(text).unwrap());
    let profile = Profile::parse_with("cylon", text, &set).unwrap();
    let of = |fill| run(&profile, &workload, &Options { precondition: Some(fill), ..small() });
    let (closed_form, written) = (of(FULL), of(simulated));
    let waf = [&closed_form, &written].map(|report| report.flash.waf_ppm.unwrap());
    assert!(waf[0].abs_diff(waf[1]) * 25 < waf[1], "{waf:?}");
    let rate = [&closed_form, &written].map(|report| report.run.requests_per_second);
    assert!(rate[0].abs_diff(rate[1]) * 20 < rate[1], "{rate:?}");
    assert_eq!(written.device.precondition.as_deref(), Some("100% random, simulated"));
    // The run's time and counts begin behind the fill; its wear stays.
    assert!(written.run.span_ns < 2 * closed_form.run.span_ns);
    assert_eq!(written.run.requests, 200_000);
    assert!(written.flash.erases.mean_ppm > closed_form.flash.erases.mean_ppm + 1_000_000);
    Schema::load().check(&written.to_json()).unwrap();
    // In order every superblock is full, either way; the fill can be ended, and says how far it is.
    let sequential = Precondition { pattern: FillPattern::Sequential, ..simulated };
    let once = run(&cylon(), &mixed(500), &Options { precondition: Some(sequential), ..small() });
    assert!(once.flash.erases.mean_ppm < 1_000_000, "{}", once.flash.erases.mean_ppm);
    let mut watch = EndsFill { after: 50_000, heard: Vec::new() };
    let load = Load::Workload { name: "test", workload: &workload };
    let ended = simulate(&cylon(), load, &Options { precondition: Some(simulated), ..small() }, &mut watch);
    assert!(matches!(ended, Err(SimulateError::Drive(_))));
    let pages = CAPACITY / 4096;
    assert!(watch.heard.len() > 3 && watch.heard.iter().all(|(_, all)| *all == 9 * pages), "{:?}", watch.heard);
}

#[test]
fn what_cannot_be_is_refused_before_anything_runs() {
    let workload = mixed(10);
    let load = || Load::Workload { name: "test", workload: &workload };
    let refused = |options: Options| simulate(&cylon(), load(), &options, &mut ()).unwrap_err();
    let error = refused(Options { capacity_bytes: Some(1 << 60), ..small() });
    assert!(matches!(error, SimulateError::Device { .. }) && error.to_string().contains("cylon"), "{error}");
    let error = refused(Options { addresses: Remap::Compact, ..small() });
    assert!(matches!(error, SimulateError::CompactWorkload), "{error}");
    let precondition = Some(Precondition { fill_permille: 1001, ..FULL });
    let error = refused(Options { precondition, ..small() });
    assert!(error.to_string().contains("fill_permille"), "{error}");
}
