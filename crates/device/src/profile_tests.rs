use super::*;

fn text() -> &'static str {
    Profile::built_in_text("smartssd").expect("built-in")
}

fn line_of(text: &str, needle: &str) -> usize {
    1 + text.lines().position(|line| line.starts_with(needle)).expect("needle in profile")
}

#[test]
fn every_built_in_profile_parses_under_its_own_name() {
    for name in Profile::built_in_names() {
        let profile = Profile::built_in(name).expect("a built-in profile is valid");
        assert_eq!(profile.device.name, name);
        assert!(!profile.calibration.is_empty(), "{name} says what was calibrated");
        assert_eq!(profile.scale, Scale::default());
        assert_eq!(profile.thermal.time_scale, 1);
    }
    let error = Profile::built_in("optane").expect_err("no such profile");
    assert!(error.to_string().contains("wio"), "{error}");
}

#[test]
fn the_throttle_steps_are_the_published_ones() {
    let steps = |name| {
        let profile = Profile::built_in(name).expect("valid");
        let steps = profile.throttle.iter();
        steps.map(|step| (step.enter_millicelsius, step.speed_permille)).collect::<Vec<_>>()
    };
    assert_eq!(steps("smartssd"), [(70_000, 500), (93_000, 250), (97_000, 100), (100_000, 0)]);
    assert_eq!(steps("scaleflux"), [(65_000, 400)]);
}

#[test]
fn every_parameter_has_a_source_or_says_that_it_is_assumed() {
    for name in Profile::built_in_names() {
        let text = Profile::built_in_text(name).expect("built-in");
        let mut covered = false;
        let mut table = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(header) = line.strip_prefix('[') {
                // A comment above a [[throttle]] header covers the step.
                covered = covered && header.starts_with("[throttle");
                table = header.to_owned();
            } else if line.starts_with('#') {
                covered = true;
            } else if line.is_empty() {
                covered = false;
            } else if !table.starts_with("device]") && !table.starts_with("[calibration") {
                assert!(covered, "{name}: {line} has no source");
            }
        }
    }
}

/// Each key of a profile removed in turn: each removal must be refused, naming the key.
#[test]
fn every_missing_key_is_refused_by_name() {
    let text = Profile::built_in_text("cylon").expect("built-in");
    let mut removed = 0;
    for (index, line) in text.lines().enumerate() {
        let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let without: Vec<&str> =
            text.lines().enumerate().filter(|(at, _)| *at != index).map(|(_, line)| line).collect();
        let error = Profile::parse("cut", &without.join("\n")).expect_err(line).to_string();
        assert!(error.contains(&format!("missing field `{key}`")), "{error}");
        assert!(error.starts_with("profile cut, line "), "{error}");
        removed += 1;
    }
    assert!(removed > 60, "only {removed} keys were tried");
}

/// Each value replaced by a string: each must be refused on its own line.
#[test]
fn every_wrong_type_is_refused_on_its_line() {
    let text = Profile::built_in_text("cylon").expect("built-in");
    for (index, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let wrong = if value.starts_with('"') { "7" } else { "\"seven\"" };
        let changed: Vec<String> = text
            .lines()
            .enumerate()
            .map(|(at, line)| if at == index { format!("{key} = {wrong}") } else { line.to_owned() })
            .collect();
        let error = Profile::parse("typed", &changed.join("\n")).expect_err(line);
        let ProfileError::Syntax { line: at, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*at, index + 1, "{error}");
    }
}

#[test]
fn an_unknown_key_is_refused_by_name_and_line() {
    for (header, table) in [("[link]", "link"), ("[compute.engines]", "compute.engines"), ("[[throttle]]", "throttle")]
    {
        let changed = text().replacen(header, &format!("{header}\nwarp = 9"), 1);
        let error = Profile::parse("odd", &changed).expect_err("unknown key");
        let ProfileError::Syntax { line, message, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*line, line_of(&changed, "warp"), "{error}");
        assert!(message.contains("`warp`") && message.contains(&format!("[{table}]")), "{error}");
    }
    let error = Profile::parse("odd", &format!("{}\n[warp]\nfactor = 9\n", text())).expect_err("table");
    assert!(error.to_string().contains("`warp`"), "{error}");
}

#[test]
fn what_is_not_toml_is_refused_with_its_line() {
    let error = Profile::parse("torn", "[device]\nname = \"x\n").expect_err("unterminated string");
    assert!(error.to_string().starts_with("profile torn, line 2"), "{error}");
    let error = Profile::parse("empty", "").expect_err("empty");
    assert!(error.to_string().contains("missing field `device`"), "{error}");
}

/// (key with its tables, impossible value, word that the reason must have).
const IMPOSSIBLE: &[(&str, &str, &str)] = &[
    ("geometry.channels", "0", "from 1 to 64"),
    ("geometry.blocks_per_plane", "7", "from 8 to 65536"),
    ("geometry.page_bytes", "5000", "65536"),
    ("timing.erase_ns", "0", "from 1 to"),
    ("timing.channel_bytes_per_second", "0", "from 1 to"),
    ("timing.suspend.times_max", "0", "from 1 to"),
    ("errors.correctable_bits", "0", "from 1 to"),
    ("errors.page_type_permille", "[1000, 1000]", "as many values"),
    ("ftl.over_provisioning_permille", "1000", "leaves users nothing"),
    ("ftl.collection.free_background", "1", "from 3 to"),
    ("ftl.collection.free_min", "0", "from 1 to"),
    ("ftl.slots_per_die_max", "0", "from 1 to"),
    ("controller.write_bytes_per_second", "0", "rate of zero"),
    ("controller.queue_entries", "1", "queues"),
    ("link.lanes", "3", "choose 1, 2, 4, 8 or 16"),
    ("link.one_way_ns", "5000000000", "no link"),
    ("write_buffer.bytes", "4096", "not one request"),
    ("write_buffer.drain_start_permille", "1000", "before the buffer is full"),
    ("write_buffer.drain_idle_ns", "0", "some day"),
    ("compute.cores", "0", "core"),
    ("compute.call_ns", "50000", "time left"),
    ("compute.engines.aes_bytes_per_second", "0", "rate of zero"),
    ("thermal.ambient_millicelsius", "-300000", "absolute zero"),
    ("thermal.resistance_millikelvin_per_watt", "0", "nothing warms"),
    ("thermal.capacitance_millijoule_per_kelvin", "0", "at once"),
    ("power.program_nanojoules_per_page", "2000000000", "joule"),
    ("throttle.2.enter_millicelsius", "70000", "below the step's enter"),
    ("throttle.1.exit_millicelsius", "70000", "below the step's enter"),
    ("throttle.1.exit_millicelsius", "20000", "never cool"),
    ("throttle.3.speed_permille", "250", "step before"),
    ("scheduler.epoch_ms", "0", "tick"),
    ("scheduler.offload_below_millicelsius", "68000", "to and fro"),
    ("scheduler.host_cpu_low_permille", "800", "to and fro"),
    ("scheduler.min_residency_ms", "5", "epoch"),
    ("scheduler.moves_per_epoch", "0", "nothing is scheduled"),
    ("scheduler.shed_floor_permille", "0", "always pass"),
    ("scheduler.shed_span_millikelvin", "0", "at once"),
    ("scheduler.host_cpu_window_ms", "0", "answers no load"),
    ("scheduler.host_throttle_permille", "1001", "nominal"),
];

/// The same of `cylon`, which has a cache.
const IMPOSSIBLE_CACHES: &[(&str, &str, &str)] = &[
    ("cache.size", "{ permille = 1001 }", "share of the capacity"),
    ("cache.size", "{ bytes = 200000000000 }", "more than the device's"),
    ("cache.eviction", "\"lru-ish\"", "choose one of"),
    ("cache.prefetch", "\"next\"", "choose one of"),
    ("cache.reserve_frames", "4000000000", "at least one has to hold a page"),
    ("cache.fills_max", "0", "from 1 to"),
    ("cache.dram.bytes_per_second", "0", "from 1000000"),
];

/// Replaces the value of a key given with its tables, and returns the line it stands on.
fn replace(text: &str, path: &str, value: &str) -> (String, usize) {
    let (tables, key) = path.rsplit_once('.').expect("table and key");
    let (header, nth) = match tables.rsplit_once('.') {
        Some((table, nth)) if nth.parse::<usize>().is_ok() => (format!("[[{table}]]"), nth.parse().expect("checked")),
        _ => (format!("[{tables}]"), 1),
    };
    let (mut seen, mut found) = (0, 0);
    let mut inside = false;
    let lines: Vec<String> = text
        .lines()
        .enumerate()
        .map(|(index, line)| {
            if line.starts_with('[') {
                seen += usize::from(line == header);
                inside = line == header && seen == nth;
            }
            if inside && line.starts_with(&format!("{key} = ")) {
                found = index + 1;
                return format!("{key} = {value}");
            }
            line.to_owned()
        })
        .collect();
    assert!(found > 0, "{path} is not in the profile");
    (lines.join("\n"), found)
}

#[test]
fn impossible_values_are_refused_with_key_line_and_reason() {
    let cylon = Profile::built_in_text("cylon").expect("built-in");
    let caches = IMPOSSIBLE_CACHES.iter().map(|case| (cylon, case));
    for (text, (path, value, reason)) in IMPOSSIBLE.iter().map(|case| (text(), case)).chain(caches) {
        let (changed, line) = replace(text, path, value);
        let error = Profile::parse("bad", &changed).expect_err(path);
        let ProfileError::Impossible { line: at, key, reason: why, .. } = &error else {
            panic!("{path}: {error}");
        };
        let related = key == path || key.split('.').next() == path.split('.').next();
        assert!(related, "{path}: {error}");
        assert!(why.contains(reason), "{path}: {error}");
        if key == path {
            assert_eq!(*at, line, "{error}");
        }
    }
}

#[test]
fn a_small_device_gets_a_small_array_of_the_same_shape() {
    let profile = Profile::built_in("wio").expect("valid");
    let small = profile.geometry_for((1 << 30) / 4096);
    assert!((16..=20).contains(&small.blocks_per_plane), "{small:?}");
    let params = profile.ftl_params(true, false);
    assert!(Ftl::logical_blocks_max(&small, &params).is_ok_and(|most| most >= (1 << 30) / 4096));
    assert_eq!(Geometry { blocks_per_plane: 16_384, ..small }, profile.geometry());
    assert_eq!(profile.geometry_for(1).blocks_per_plane, 16);
    assert_eq!(profile.geometry_for(u64::MAX / 8192), profile.geometry());
}

#[test]
fn scaling_multiplies_up_and_leaves_latencies_alone() {
    let profile = Profile::built_in("wio").expect("valid");
    let scaled = profile.scaled(10, 5).scaled(2, 3);
    assert_eq!(scaled.scale, Scale { rate_divisor: 20, thermal_time: 15 });
    assert_eq!(scaled.thermal.time_scale, 15);
    assert_eq!(scaled.controller.write_bytes_per_second, 177_167_400);
    assert_eq!(scaled.power.program_nanojoules_per_page, 300_000);
    assert_eq!(scaled.controller.command_ns, profile.controller.command_ns);
    assert_eq!(scaled.timing().program_ns, profile.timing().program_ns);
    assert_eq!(profile.scaled(0, 0), profile);
}

#[test]
fn the_documentation_has_every_key() {
    let documentation = include_str!("../../../docs/profiles.md");
    let texts = ["smartssd", "cylon"].map(|name| Profile::built_in_text(name).expect("built-in"));
    for line in texts.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#')) {
        if let Some((key, _)) = line.split_once(" = ") {
            assert!(documentation.contains(&format!("| `{key}` |")), "docs/profiles.md does not explain {key}");
        } else if line.starts_with('[') {
            assert!(documentation.contains(&format!("`{line}`")), "docs/profiles.md has no section for {line}");
        }
    }
}

/// The table of steady states in the documentation is what the profiles give.
#[test]
fn the_documented_steady_states_are_those_of_the_profiles() {
    use crate::predict::Placement;
    let documentation = include_str!("../../../docs/profiles.md");
    let mut missing = String::new();
    for name in Profile::built_in_names() {
        let profile = Profile::built_in(name).expect("valid");
        for (placement, word) in [(Placement::Host, "host"), (Placement::Device, "device")] {
            let state = profile.steady_state(placement);
            let row = format!(
                "| `{name}` | {word} | {}.{} W | {}.{} °C | {} % | {}.{:02} GB/s |",
                state.milliwatts / 1000,
                state.milliwatts % 1000 / 100,
                state.millicelsius / 1000,
                state.millicelsius % 1000 / 100,
                state.speed_permille / 10,
                state.write_bytes_per_second / 1_000_000_000,
                state.write_bytes_per_second % 1_000_000_000 / 10_000_000,
            );
            if !documentation.contains(&row) {
                missing = missing + &row + "\n";
            }
        }
    }
    assert!(missing.is_empty(), "docs/profiles.md lacks the rows\n{missing}");
}

/// Every built-in profile is a device: a small one, full, takes ten thousand random reads and writes, loads and stores,
/// and answers each of them, later than it was asked and without an error.
#[test]
fn every_built_in_profile_serves_ten_thousand_random_requests() {
    use crate::model::{Command, Model, Op, Outcome};
    use osier_flash::{Nanos, page::FillPattern};
    const REQUESTS: u64 = 10_000;
    for name in Profile::built_in_names() {
        let config = Profile::built_in(name).expect("valid").model(Some(16 << 30)).expect("a small device");
        let mut model = Model::new(&config, 1).expect("a model");
        model.precondition(1000, FillPattern::Sequential, 1).expect("a full device");
        let (mut now, mut random, mut done) = (Nanos::ZERO, 1_u64, Vec::new());
        let mut answered = 0;
        for id in 0..REQUESTS {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (op, bytes) = [(Op::Read, 4096), (Op::Write, 4096), (Op::Load, 64), (Op::Store, 64)][(id % 4) as usize];
            let address = (random >> 16) % (model.capacity_bytes() / 4096) * 4096;
            model.submit(now, Command { id, op, address, bytes, tenant: 0 }).expect("there is room for one");
            while done.is_empty() {
                now = model.next_event().expect("a request ends");
                model.poll(now, &mut done);
            }
            for end in done.drain(..) {
                assert_eq!((end.id, end.outcome), (id, Outcome::Ok), "{name}");
                // Posted stores of a window take no time of the host.
                assert!(end.at >= end.arrived, "{name}: {end:?}");
                answered += 1;
            }
        }
        assert_eq!(answered, REQUESTS, "{name}");
        let flash = model.stats().flash;
        assert!(now > Nanos::ZERO, "{name}: {flash:?}");
    }
}

#[test]
fn every_calibration_names_its_figure() {
    for name in Profile::built_in_names() {
        for one in Profile::built_in(name).expect("valid").calibration {
            assert!(!one.parameter.is_empty(), "{name}: {one:?}");
            assert!(one.figure.contains(|letter: char| letter.is_ascii_digit()), "{name}: {one:?} has no figure");
        }
    }
}

/// Of the raw space, over-provisioning is what users do not get; a smaller device has the same share or more.
#[test]
fn the_capacity_follows_from_over_provisioning() {
    for name in Profile::built_in_names() {
        let text = Profile::built_in_text(name).expect("built-in");
        for permille in [100_u64, 280, 500] {
            let set = ("ftl.over_provisioning_permille".to_owned(), toml::Value::Integer(permille as i64));
            let profile = Profile::parse_with(name, text, &[set]).expect("valid");
            let of = &profile.geometry;
            let dies = u64::from(of.channels * of.chips_per_channel * of.dies_per_chip);
            let blocks = dies * u64::from(of.planes_per_die) * u64::from(of.blocks_per_plane);
            let raw = blocks * u64::from(of.pages_per_block) * u64::from(of.page_bytes) / 4096;
            let model = profile.model(None).expect("the whole device");
            assert_eq!(model.flash.ftl.logical_units, raw * (1000 - permille) / 1000, "{name}");
            for gib in [8_u64, 32] {
                let small = profile.model(Some(gib << 30)).expect("a smaller device");
                assert_eq!(small.capacity_bytes(), gib << 30);
                let left = small.flash.shape.units() * (1000 - permille) / 1000;
                assert!(left >= gib << 18, "{name} {permille} {gib}: {left}");
            }
        }
    }
}

#[test]
fn a_capacity_that_cannot_be_is_refused_with_key_and_reason() {
    let text = Profile::built_in_text("cylon").expect("built-in");
    // 16 blocks a plane leave collection nothing at 1 %.
    let sets = [("geometry.blocks_per_plane", 16), ("ftl.over_provisioning_permille", 10)]
        .map(|(key, value)| (key.to_owned(), toml::Value::Integer(value)));
    let error = Profile::parse_with("tight", text, &sets).expect_err("no space");
    let ProfileError::Impossible { key, reason, .. } = &error else { panic!("{error}") };
    assert_eq!(key, "ftl.over_provisioning_permille");
    assert!(reason.contains("leave collection something to gain"), "{error}");
    let profile = Profile::built_in("cylon").expect("valid");
    let error = profile.model(Some(1 << 40)).expect_err("larger than the array").to_string();
    assert!(error.contains("capacity is 1099511627776") && error.contains("103852306432"), "{error}");
    let set = (
        "cache.size".to_owned(),
        "size = { bytes = 4294967296 }".parse::<toml::Table>().expect("toml")["size"].clone(),
    );
    let large = Profile::parse_with("cylon", text, &[set]).expect("it fits the whole device");
    let error = large.model(Some(1 << 30)).expect_err("a cache of 4 GiB for 1 GiB").to_string();
    assert!(error.contains("cache.size is 1048576") && error.contains("262144"), "{error}");
}

#[test]
fn single_keys_can_be_set() {
    let text = Profile::built_in_text("cylon").expect("built-in");
    let with = |sets: &[&str]| {
        let sets: Result<Vec<_>, _> = sets.iter().map(|set| parse_override(set)).collect();
        Profile::parse_with("cylon", text, &sets?)
    };
    let profile = with(&[
        "cache.eviction=lru",
        "cache.size.bytes = 1073741824",
        "ftl.collection.policy.choices=4",
        "throttle.2.speed_permille=100",
        "cache.write_log.lines_per_half=4096",
        "timing.read_ns=[30000]",
    ])
    .expect("all of them are keys");
    let cache = profile.cache.as_ref().expect("it has one");
    assert_eq!((cache.eviction.as_str(), cache.size), ("lru", CacheSize::Bytes(1 << 30)));
    assert_eq!(profile.ftl.collection.policy, osier_flash::page::VictimPolicy::Choices(4));
    assert_eq!(profile.throttle[1].speed_permille, 100);
    assert_eq!(cache.write_log, Some(WriteLogSection { lines_per_half: 4096 }));
    assert_eq!(profile.timing().read_ns, 30_000);
    for (set, reason) in [
        ("cache.evicton=lru", "evicton"),
        ("cash.eviction=lru", "cash"),
        ("cache.ways=many", "invalid type"),
        ("cache.ways.deep=1", "not a table"),
        ("throttle.9.name=x", "no table 9"),
        ("cache.eviction", "no `=`"),
        ("=3", "missing"),
    ] {
        let error = with(&["link.lanes=8", set]).expect_err(set).to_string();
        assert!(error.contains(reason) && error.contains(set.split('=').next().expect("a key")), "{set}: {error}");
    }
    let error = with(&["cache.eviction=lruish"]).expect_err("no such policy").to_string();
    assert!(error.contains("cache.eviction") && error.contains("lruish"), "{error}");
}

/// A value that another one takes the place of would have no effect, and nobody would say so.
#[test]
fn two_names_of_one_key_are_refused_and_the_last_of_one_name_counts() {
    let text = Profile::built_in_text("cylon").expect("built-in");
    let with = |sets: &[&str]| {
        let sets: Result<Vec<_>, _> = sets.iter().map(|set| parse_override(set)).collect();
        Profile::parse_with_all("cylon", text, &sets?)
    };
    for (first, second) in [
        ("cache.size.bytes=1073741824", "cache.size.permille=10"),
        ("ftl.collection.policy=greedy", "ftl.collection.policy.choices=4"),
        ("throttle.2.speed_permille=100", "throttle.02.speed_permille=200"),
    ] {
        for sets in [[first, second], [second, first]] {
            let error = with(&sets).expect_err(first).to_string();
            let key = sets[0].split('=').next().expect("a key");
            assert!(error.contains(key) && error.contains("takes its place"), "{sets:?}: {error}");
        }
    }
    with(&["throttle.2.speed_permille=100", "throttle.02.speed_permille=100"]).expect("they say the same");
    let profile = with(&["cache.ways=4", "cache.size.bytes=4096", "cache.ways=8", "cache.size.bytes=1073741824"]);
    let cache = profile.expect("one name each").cache.expect("it has one");
    assert_eq!((cache.ways, cache.size), (8, CacheSize::Bytes(1 << 30)));
}

/// What calibrated figures of the real-time core stood on.
#[test]
fn the_derived_link_is_near_what_was_measured() {
    for (name, rate, nanos) in
        [("wio", 22_000_000_000_u64, 750), ("smartssd", 3_500_000_000, 9_000), ("scaleflux", 3_500_000_000, 9_000)]
    {
        let path = Profile::built_in(name).expect("valid").link_path();
        assert!(path.bytes_per_second.abs_diff(rate) * 100 <= rate * 8, "{name}: {path:?}");
        assert_eq!(path.round_trip_ns, nanos, "{name}");
    }
}
