//! `osier run --place`, `--place-rule` and `--call-sites` as a user meets them: which call site's blocks lie where.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod common;
mod windows;

use std::fs;

use serde_json::Value;

use windows::*;

/// The test program and its library.
fn programs(device: &Device) -> Option<(String, String)> {
    let program = compile("bin/osier/tests/programs/sites.c", &device.path("sites"), &[])?;
    let shared = ["-shared", "-fPIC"];
    let library = compile("bin/osier/tests/programs/sites_library.c", &device.path("libsites.so.1"), &shared)?;
    Some((program, library))
}

/// What the program says of its blocks under some rules, by name, and its figures.
fn placed(device: &Device, rules: &[&str]) -> Option<(Vec<(String, String)>, Value)> {
    let (program, library) = programs(device)?;
    let mut options = vec!["--call-sites", "50"];
    options.extend(rules.iter().flat_map(|rule| ["--place-rule", rule]));
    let (out, stats) = device.expect(&options, &[&program, &library]);
    let lines: Vec<&str> = out.lines().collect();
    let (last, blocks) = lines.split_last().unwrap();
    assert_eq!(*last, "well");
    let blocks = blocks.iter().map(|line| line.split_once(' ').unwrap()).map(|(a, b)| (a.to_owned(), b.to_owned()));
    Some((blocks.collect(), stats))
}

/// Where the blocks of a name lie.
fn of<'a>(blocks: &'a [(String, String)], name: &str) -> Vec<&'a str> {
    blocks.iter().filter(|(who, _)| who == name).map(|(_, place)| place.as_str()).collect()
}

const NAMES: [&str; 8] = ["hidden", "direct", "zeroed", "aligned", "mapped", "small", "wrapped", "library"];

#[test]
fn a_rule_places_the_blocks_of_its_call_site_and_no_others() {
    if !may_handle_faults() {
        return;
    }
    let device = Device::start(128, 8, &[]);
    let Some((blocks, _)) = placed(&device, &[]) else { return };
    assert!(blocks.len() == 14 && blocks.iter().all(|(_, place)| place == "window"), "{blocks:?}");
    // A static function, callers further up, a library that comes and goes, sizes.
    for (rule, expected) in [
        ("memory symbol=direct", &["direct", "small"][..]),
        ("memory symbol=direct size=..4KiB", &["small"]),
        ("memory symbol=zeroed", &["zeroed"]),
        ("memory symbol=aligned", &["aligned"]),
        ("memory symbol=mapped", &["mapped"]),
        ("memory symbol=mapped size=257KiB..", &[]),
        ("memory symbol=wrapped", &["hidden", "wrapped"]),
        ("memory symbol=hidden depth=1", &["hidden"]),
        ("memory symbol=main depth=2", &["hidden", "library"]),
        ("memory symbol=main depth=1", &["direct", "zeroed", "aligned", "mapped", "small", "wrapped"]),
        ("memory symbol=library depth=1", &["library"]),
        ("memory module=libsites.so", &["library"]),
        ("memory symbol=allocate module=libsites.so.1", &["library"]),
        ("memory symbol=allocate module=sites", &[]),
        ("memory any", &NAMES),
    ] {
        let (blocks, stats) = placed(&device, &[rule]).unwrap();
        let is_in_memory = |name: &&str| of(&blocks, name).iter().all(|place| *place == "memory");
        let in_memory: Vec<&str> = NAMES.iter().filter(|name| is_in_memory(name)).copied().collect();
        assert_eq!(in_memory, expected, "{rule}: {blocks:?}");
        assert_eq!(stats["rules"][0]["used"], !expected.is_empty(), "{rule}");
    }
}

#[test]
fn the_first_rule_that_fits_decides_and_blocks_that_move_keep_their_bytes() {
    if !may_handle_faults() {
        return;
    }
    let device = Device::start(128, 8, &[]);
    let moves = ["memory symbol=to_memory", "window symbol=to_window"];
    let Some((blocks, _)) = placed(&device, &moves) else { return };
    for (name, place) in
        [("to_memory", "memory"), ("stays_in_memory", "memory"), ("to_window", "window"), ("stays_in_window", "window")]
    {
        assert_eq!(of(&blocks, name), [place], "{name}");
    }
    let (blocks, _) =
        placed(&device, &["window symbol=direct size=..4KiB", "memory symbol=direct", "window any"]).unwrap();
    assert_eq!((of(&blocks, "small"), of(&blocks, "direct")), (vec!["window"], vec!["memory"]));
    let (blocks, _) = placed(&device, &["memory any size=..4KiB", "window symbol=direct"]).unwrap();
    assert_eq!((of(&blocks, "small"), of(&blocks, "direct")), (vec!["memory"], vec!["window"]));
    // A rule goes before the sizes of the other options.
    let (program, library) = programs(&device).unwrap();
    let options = ["--from-size", "1GiB", "--threshold", "1GiB", "--place-rule", "window symbol=mapped"];
    let (out, _) = device
        .expect(&[&options[..], &["--place-rule", "window symbol=hidden depth=1"]].concat(), &[&program, &library]);
    let in_window: Vec<&str> = out.lines().filter_map(|line| line.strip_suffix(" window")).collect();
    assert_eq!(in_window, ["hidden", "mapped"]);
}

#[test]
fn call_sites_are_said_so_that_rules_can_be_written() {
    if !may_handle_faults() {
        return;
    }
    let device = Device::start(128, 8, &[]);
    let Some((_, stats)) = placed(&device, &[]) else { return };
    let sites = stats["call_sites"].as_array().unwrap();
    let site = |symbol: &str| sites.iter().find(|site| site["symbol"] == symbol).unwrap();
    // 256 KiB each time: main's, a resize's, the child's are not counted; and once 100 bytes.
    assert_eq!((&site("direct")["calls"], &site("direct")["bytes"]), (&3.into(), &((512 << 10) + 100).into()));
    assert_eq!((&site("mapped")["calls"], &site("mapped")["bytes"]), (&1.into(), &(256 << 10).into()));
    assert_eq!((&site("wrapped")["calls"], &site("wrapped")["module"]), (&2.into(), &"sites".into()));
    assert_eq!(stats["call_sites_without_room"]["calls"], 0);
    // What is said names the call site, and no other.
    let rule = format!("memory module=sites+{:#x}", site("zeroed")["offset"].as_u64().unwrap());
    let (blocks, _) = placed(&device, &[&rule]).unwrap();
    let in_memory: Vec<&str> =
        blocks.iter().filter(|(_, place)| place == "memory").map(|(name, _)| name.as_str()).collect();
    assert_eq!(in_memory, ["zeroed"], "{rule}");
    // One caller further up.
    let (program, _) = programs(&device).unwrap();
    let (_, stats) = device.expect(&["--call-sites", "50", "--call-depth", "1"], &[&program]);
    let sites = stats["call_sites"].as_array().unwrap();
    assert!(sites.iter().any(|site| site["symbol"] == "hidden"), "{sites:?}");
    assert!(sites.iter().all(|site| site["symbol"] != "wrapped"), "{sites:?}");
}

#[test]
fn a_rule_that_names_nothing_is_said_wherever_the_figures_go() {
    if !may_handle_faults() {
        return;
    }
    let device = Device::start(128, 8, &[]);
    let Some((program, _)) = programs(&device) else { return };
    let file = device.path("rules");
    let text = "# of the dictionary\n\n memory symbol=dictExpnad depth=1 # a typo\nwindow symbol=mapped size=1..2\nwindow symbol=direct\n";
    fs::write(&file, text).unwrap();
    let stats = device.path("figures");
    let options = ["--stats", stats.to_str().unwrap(), "--place", file.to_str().unwrap()];
    let (status, out, err) = finish(device.run(&options, &[&program]));
    assert!(status.success() && out.ends_with("well\n"), "{err}");
    assert!(err.contains("the rule `memory symbol=dictExpnad depth=1` names nothing that was loaded"), "{err}");
    assert!(err.contains("the rule `window symbol=mapped size=1..2` decided nothing"), "{err}");
    assert!(!err.contains("symbol=direct"), "{err}");
    let stats: Value = serde_json::from_str(&fs::read_to_string(stats).unwrap()).unwrap();
    let rules = stats["rules"].as_array().unwrap().iter().map(|rule| (rule["found"].as_bool(), rule["used"].as_bool()));
    assert!(rules.eq([(false, false), (true, false), (true, true)].map(|(a, b)| (Some(a), Some(b)))), "{stats}");
}

#[test]
fn a_bad_rule_is_refused_before_the_program_begins() {
    let device = Device::start(64, 8, &[]);
    let begun = device.path("begun");
    let refuse = |options: &[&str], part: &str| {
        let (status, out, err) = finish(device.run(options, &["/usr/bin/touch", begun.to_str().unwrap()]));
        assert!(status.code() == Some(2) && err.contains(part), "{options:?}: {status}: {out}{err}");
        assert!(!begun.exists(), "{options:?}: the program has begun");
    };
    refuse(&["--place-rule", "memory sybol=a"], "`sybol=a` is nothing that a rule says");
    refuse(&["--place-rule", "memory any size=4KiB"], "`4KiB` are no sizes");
    refuse(&["--place", "/nonexistent/rules"], "reading the rules /nonexistent/rules failed");
    let file = device.path("rules");
    let path = file.to_str().unwrap();
    fs::write(&file, "window any\n\nmemory symbol=a depth=99\n").unwrap();
    refuse(&["--place", path], "rules:3: `memory symbol=a depth=99`: `99` is no depth: it is a number from 0 to 8");
    fs::write(&file, "window any\n".repeat(64)).unwrap();
    refuse(&["--place", path], "there are 64 rules, and 63 may be");
    refuse(&["--dax", "/p=8MiB", "--place-rule", "window any"], "add --heap SIZE");
    refuse(&["--call-sites", "1001"], "1001");
}

/// Redis is linked to an allocator of its own, which knows none of the blocks.
#[test]
fn redis_keeps_every_value_wherever_its_tables_lie() {
    if !may_handle_faults() {
        return;
    }
    let (Some(server), Some(client)) = (installed("redis-server"), installed("redis-cli")) else { return };
    let device = Device::start(128, 8, &[]);
    let socket = device.path("redis");
    let socket = socket.to_str().unwrap();
    let rules = ["memory symbol=dictExpand depth=1", "memory symbol=_dictExpand depth=1", "window any"];
    let figures = device.path("figures");
    let mut options = vec!["--stats", figures.to_str().unwrap()];
    options.extend(rules.iter().flat_map(|rule| ["--place-rule", rule]));
    let program = [&server, "--port", "0", "--unixsocket", socket, "--save", "", "--loglevel", "warning"];
    let mut redis = device.run(&options, &program).spawn().unwrap();
    let began = std::time::Instant::now();
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        assert!(redis.try_wait().unwrap().is_none() && began.elapsed() < PATIENCE, "it does not serve");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let ask = |text: &str| {
        let mut command = std::process::Command::new(&client);
        command.args(["-s", socket, "eval", text, "0"]);
        let (status, out, err) = finish(command);
        assert!(status.success(), "{err}");
        out
    };
    ask("for i=1,20000 do redis.call('SET', i, string.rep(tostring(i), 50)) end");
    let wrong =
        "local n=0 for i=1,20000 do if redis.call('GET', i) ~= string.rep(tostring(i), 50) then n=n+1 end end return n";
    assert_eq!(ask(wrong).trim(), "0");
    assert!(std::process::Command::new(&client).args(["-s", socket, "shutdown", "nosave"]).status().unwrap().success());
    assert!(await_end(&mut redis).success());
    let stats: Value = serde_json::from_str(&fs::read_to_string(&figures).unwrap()).unwrap();
    assert!(stats["rules"].as_array().unwrap().iter().any(|rule| rule["used"] == true), "{stats}");
    assert!(stats["rules"][2]["used"] == true && stats["used_bytes_max"].as_u64() > Some(16 << 20), "{stats}");
}

#[test]
fn stock_programs_compute_the_same_wherever_their_blocks_lie() {
    if !may_handle_faults() {
        return;
    }
    let Some(python) = installed("python3") else { return };
    let device = Device::start(256, 8, &[]);
    let program = "import hashlib,threading\nb=bytearray(24<<20)\nb[::4096]=b'x'*6144\nd={i: str(i)*9 for i in range(40000)}\n\
                   def grow():\n  l=[]\n  for i in range(60000): l.append(i*i)\n  d[len(d)]=str(sum(l))\n\
                   t=[threading.Thread(target=grow) for _ in range(3)]\n[x.start() for x in t]; [x.join() for x in t]\n\
                   print(hashlib.md5(b).hexdigest(), hashlib.md5(''.join(sorted(d.values())).encode()).hexdigest())";
    let all = |rules: &[&str]| {
        let options: Vec<&str> = rules.iter().flat_map(|rule| ["--place-rule", rule]).collect();
        device.expect(&options, &[&python, "-c", program])
    };
    let used = |stats: &Value| stats["used_bytes_max"].as_u64().unwrap();
    let (out, stats) = all(&[]);
    assert!(used(&stats) > 32 << 20, "{stats}");
    // The large array alone: a part of the heap, which is of 32 MiB at first.
    let (same, large) = all(&["window any size=16MiB..", "memory any"]);
    assert!(same == out && used(&large) <= 64 << 20 && large["latency"]["count"].as_u64() > Some(6000), "{large}");
    // Blocks are moved all the time: the list grows here, and its other blocks are there.
    let (same, _) = all(&["memory symbol=PyList_Append depth=3", "memory any size=4KiB..64KiB", "window any"]);
    assert_eq!(same, out);
    let (same, none) = all(&["memory any"]);
    assert!(same == out && none["latency"]["count"].as_u64() < Some(64), "{none}");
}
