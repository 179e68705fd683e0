//! The program as a user runs it: devices that migrate, die, run full and are given bad input. Two real
//! processes a device, the real SIGKILL.
//!
//! The long counts that `SPECIFICATION.md` names run in `make evidence`; here runs a stated share of them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Forced migrations in this file; `make evidence` makes 10,000.
const MOVES: u64 = 1_000;

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn osier(&self, arguments: &[&str]) -> Output {
        // A run that hangs is a failure, not a reason to wait for ever.
        Command::new("timeout")
            .arg("120")
            .arg(env!("CARGO_BIN_EXE_osier"))
            .args(arguments)
            .env("OSIER_HOME", self.0.path())
            .env_remove("OSIER_CONFIG")
            .output()
            .unwrap()
    }

    fn device(&self, name: &str, more: &[&str]) {
        let out = self.osier(&[&["device", "create", name, "--capacity", "256MiB"], more].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
    }

    fn soak(&self, device: &str, more: &[&str]) -> Value {
        let out = self.osier(&[&["--json", "soak", device, "--no-model-timing"], more].concat());
        assert!(out.status.success(), "{more:?}: {}{}", text(&out.stdout), text(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write(path: &Path, content: &str) {
    std::fs::write(path, content).unwrap();
}

/// A serving device; a test that fails leaves none behind.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A pipeline with a stateful actor, whose every output depends on all that came before in its stream.
const STATEFUL: &str = r#"
[[pipeline]]
name = "main"
unit_kib = 16
request_kib_max = 64
slots = 32
[[pipeline.stage]]
actor = "running-hash"
[[pipeline.stage]]
actor = "lz4"
[[pipeline.stage]]
actor = "crc32c"
"#;

#[test]
fn forced_migrations_lose_repeat_and_reorder_nothing_at_any_depth() {
    let home = Home::new();
    write(&home.path("stateful.toml"), STATEFUL);
    let pipelines = home.path("stateful.toml");
    home.device("d", &["--pipelines", pipelines.to_str().unwrap()]);
    let mut made = 0;
    for (depth, blocks) in [("1", "1"), ("8", "16"), ("32", "1")] {
        let moves = (MOVES / 3 + 1).to_string();
        let found = home.soak(
            "d",
            &["--requests", "2000", "--depth", depth, "--request-blocks", blocks, "--moves", &moves, "--seed", depth],
        );
        made += found["migrations"].as_u64().unwrap();
        for fault in ["failed", "lost", "repeated", "out_of_order", "wrong_blocks"] {
            assert_eq!(found["tally"][fault], 0, "depth {depth}: {found}");
        }
    }
    assert!(made >= MOVES, "only {made} migrations were made");
}

#[test]
fn what_is_stored_is_byte_for_byte_the_same_with_and_without_migration() {
    let home = Home::new();
    write(&home.path("stateful.toml"), STATEFUL);
    let pipelines = home.path("stateful.toml");
    let run = |device: &str, more: &[&str]| {
        home.device(device, &["--pipelines", pipelines.to_str().unwrap()]);
        let basics = ["--requests", "4000", "--digest", "--seed", "7", "--request-blocks", "16"];
        home.soak(device, &[&basics[..], more].concat())
    };
    let still = run("still", &["--placement", "host"]);
    let moved = run("moved", &["--moves", "100000", "--move-every-ns", "50000"]);
    assert!(moved["migrations"].as_u64().unwrap() > 20, "{moved}");
    assert!(moved["mid_request"].as_u64().unwrap() > 0, "no actor was moved in the middle of a request");
    assert_ne!(still["digest"][0], 0);
    assert_eq!(still["digest"], moved["digest"]);
}

#[test]
fn a_request_moved_in_its_middle_a_thousand_times_gives_the_same_bytes() {
    let home = Home::new();
    // Units of the largest size, so that every stage of every request has eight borders to be moved at.
    write(&home.path("long.toml"), &STATEFUL.replace("unit_kib = 16", "unit_kib = 64"));
    let pipelines = home.path("long.toml");
    let run = |device: &str, more: &[&str]| {
        home.device(device, &["--pipelines", pipelines.to_str().unwrap()]);
        let basics = ["--requests", "8000", "--digest", "--seed", "7", "--request-blocks", "16"];
        home.soak(device, &[&basics[..], more].concat())
    };
    let moved = run("moved", &["--moves", "100000", "--move-every-ns", "40000"]);
    let middle = moved["mid_request"].as_u64().unwrap();
    assert!(middle >= 1000, "only {middle} of {} migrations came in the middle of a request", moved["migrations"]);
    assert_eq!(run("still", &["--placement", "device"])["digest"], moved["digest"]);
}

/// Every built-in actor at once, in as many pipelines as that takes.
#[test]
fn a_device_process_stays_small() {
    let home = Home::new();
    let stages = |name: &str, actors: &[&str]| {
        let stage = |actor: &&str| format!("[[pipeline.stage]]\nactor = \"{actor}\"\n{}", extra(actor));
        let head = format!("[[pipeline]]\nname = \"{name}\"\nunit_kib = 16\nrequest_kib_max = 64\nslots = 16\n");
        head + &actors.iter().map(stage).collect::<String>()
    };
    fn extra(actor: &str) -> &'static str {
        match actor {
            "aes256-gcm-siv" => "key = 0\n",
            "jsonl-project" => "query = true\nparams = { fields = [\"a\"] }\n",
            "filter" => "query = true\nparams = { field = \"a\", op = \"eq\", value = \"1\" }\n",
            "example" => "params = { word = \"secret\" }\n",
            "logfmt" => "query = true\nparams = { template = \"{a}\" }\n",
            _ => "",
        }
    }
    let file = home.path("all.toml");
    let text = stages("main", &["lz4", "aes256-gcm-siv", "crc32c"])
        + &stages("more", &["jsonl-project", "filter", "logfmt", "running-hash", "example"]);
    write(&file, &text);
    let out = home.osier(&["device", "create", "d", "--capacity", "1GiB", "--pipelines", file.to_str().unwrap()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let found = home.soak("d", &["--requests", "5000", "--placement", "device"]);
    let resident = found["device_resident_bytes"].as_u64().unwrap();
    println!("the device's process has {resident} bytes of its own resident");
    assert!(resident > 1 << 20 && resident <= 32_000_000, "{resident} bytes");
}

#[test]
fn tenants_are_accounted_and_the_share_holds_one_back() {
    let home = Home::new();
    let slow = STATEFUL.replace("name = \"main\"", "name = \"main\"\ntenant = \"acme\"");
    write(&home.path("slow.toml"), &(slow + "\n[tenant.acme]\ncpu_permille = 50\n"));
    home.device("d", &["--pipelines", home.path("slow.toml").to_str().unwrap()]);
    let begun = std::time::Instant::now();
    let found = home
        .soak("d", &["--requests", "2000", "--reads-permille", "0", "--placement", "host", "--request-blocks", "4"]);
    let elapsed_ns = begun.elapsed().as_nanos() as u64;
    let tenant = &found["tenants"][0];
    assert_eq!(
        (&tenant["tenant"], &tenant["actors"], &tenant["failed"]),
        (&"acme".into(), &3.into(), &0.into()),
        "{found}"
    );
    // Three stages, each of which worked on every byte that was written and read, most of them unpacked.
    let bytes = tenant["bytes"][0].as_u64().unwrap();
    assert!(bytes >= found["tally"]["written_bytes"].as_u64().unwrap(), "{found}");
    assert!(
        tenant["calls"].as_u64().unwrap() >= 3 * 2000 && tenant["memory_bytes"].as_u64().unwrap() > 3 << 16,
        "{found}"
    );
    let busy_ns = tenant["busy_ns"][0].as_u64().unwrap();
    // A twentieth of the time, 10 ms that were saved up, and the debt of a last call.
    assert!(busy_ns > 5_000_000 && busy_ns <= elapsed_ns / 20 + 20_000_000, "{busy_ns} of {elapsed_ns} ns");
}

#[test]
fn a_domain_killed_at_any_step_loses_nothing() {
    let home = Home::new();
    home.device("d", &[]);
    let steps = [
        "Routed",
        "Drained",
        "CheckpointWritten",
        "Ready",
        "DoorbellHeard",
        "Rebuilt",
        "Active",
        "FirstServed",
        "StageBegins",
        "StageEnds",
    ];
    let mut kills: Vec<(String, u64)> = Vec::new();
    for side in ["host", "device"] {
        kills.extend(steps.iter().flat_map(|step| [1u64, 3].map(|nth| (format!("{side}:{step}:{nth}"), nth))));
    }
    for (step, nths) in [
        ("host:SlotFilled", [1, 100]),
        ("device:StoreBegins", [2, 50]),
        ("device:StoreEnds", [2, 90]),
        ("host:CompletionHeard", [3, 70]),
        ("device:ProgramBegins", [1, 2]),
        ("device:ProgramEnds", [1, 2]),
    ] {
        kills.extend(nths.map(|nth| (format!("{step}:{nth}"), 0)));
    }
    let mut resolutions = String::new();
    for (seed, (kill, _)) in kills.iter().enumerate() {
        let seed = seed.to_string();
        let found = home.soak("d", &["--requests", "600", "--moves", "20", "--crash", kill, "--seed", &seed]);
        for fault in ["failed", "lost", "repeated", "out_of_order", "wrong_blocks"] {
            assert_eq!(found["tally"][fault], 0, "{kill}: {found}");
        }
        assert_eq!(found["deaths"].as_array().unwrap().len(), 1, "{kill}: {found}");
        resolutions += &found["deaths"][0]["resolutions"].to_string();
    }
    assert!(kills.len() >= 40);
    assert!(resolutions.contains("RolledBack"), "no roll-back was seen");
    assert!(resolutions.contains("RolledForward"), "no roll-forward was seen");
}

#[test]
fn real_files_come_back_right_and_the_report_asks_for_nothing() {
    let home = Home::new();
    write(&home.path("a.txt"), &"to be compressed, encrypted and checked\n".repeat(20_000));
    let (input, report) = (home.path("a.txt"), home.path("r.html"));
    let out = home.osier(&[
        "--json",
        "demo",
        "--input",
        input.to_str().unwrap(),
        "--seconds",
        "2",
        "--report",
        report.to_str().unwrap(),
    ]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    for run in found["runs"].as_array().unwrap() {
        assert_eq!(run["right"], true, "{run}");
    }
    let page = std::fs::read_to_string(report).unwrap();
    assert!(page.contains("<svg") && !page.contains("src=\"http") && !page.contains("href=\"http"));
}

#[test]
fn a_second_owner_is_told_who_the_first_is_and_actors_move_on_request() {
    let home = Home::new();
    home.device("d", &[]);
    let mut first = Server(
        Command::new(env!("CARGO_BIN_EXE_osier"))
            .args(["serve", "d"])
            .env("OSIER_HOME", home.0.path())
            .spawn()
            .unwrap(),
    );
    let begun = std::time::Instant::now();
    let moved = loop {
        let out = home.osier(&["actor", "move", "d", "main", "host"]);
        if out.status.success() || begun.elapsed().as_secs() > 60 {
            break out;
        }
    };
    assert!(moved.status.success(), "{}", text(&moved.stderr));
    let tenants = home.osier(&["actor", "tenants", "d"]);
    assert!(tenants.status.success() && text(&tenants.stdout).contains("default"), "{}", text(&tenants.stdout));
    let listed = home.osier(&["--json", "actor", "ls", "d"]);
    let actors: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert!(actors.as_array().unwrap().iter().all(|a| a["where"] == "host"), "{actors}");
    let unknown = home.osier(&["actor", "move", "d", "main/zstd", "host"]);
    assert_eq!(unknown.status.code(), Some(3));
    assert!(text(&unknown.stderr).contains("main/0:lz4"), "{}", text(&unknown.stderr));
    let second = home.osier(&["serve", "d"]);
    assert_eq!(second.status.code(), Some(4), "{}", text(&second.stderr));
    assert!(text(&second.stderr).contains(&first.0.id().to_string()), "{}", text(&second.stderr));
    let stopped = Command::new("kill").arg("-TERM").arg(first.0.id().to_string()).status().unwrap();
    assert!(stopped.success() && first.0.wait().unwrap().success());
}

/// Whoever asks twice does not want to wait for a device that does not stop, and is told what that means.
#[test]
fn a_second_signal_ends_at_once_and_says_so() {
    let home = Home::new();
    home.device("d", &[]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
    command.args(["serve", "d"]).env("OSIER_HOME", home.0.path()).stderr(std::process::Stdio::piped());
    let mut server = Server(command.spawn().unwrap());
    let domains = server.domains(&[]);
    eventually(|| home.osier(&["actor", "ls", "d"]).status.success());
    let (server_pid, [device, host]) = (server.0.id().to_string(), [domains[0].to_string(), domains[1].to_string()]);
    Server::signal("-STOP", &device);
    Server::signal("-INT", &server_pid);
    // The first was heard when the host is gone.
    eventually(|| Path::new("/proc").join(&host).join("exe").read_link().is_err());
    Server::signal("-INT", &server_pid);
    let said = std::io::read_to_string(server.0.stderr.take().unwrap()).unwrap();
    assert_eq!(server.0.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("a second signal ends this at once"), "{said}");
    eventually(|| !Path::new("/proc").join(&device).exists());
    assert!(home.osier(&["device", "check", "d"]).status.success());
}

/// What is written to a device without media takes its time and is nowhere: no read makes it up.
#[test]
fn a_device_without_media_takes_writes_and_never_makes_up_what_they_were() {
    let home = Home::new();
    home.device("none", &["--media", "none"]);
    let recording = home.path("recording");
    let recording = recording.to_str().unwrap();
    // The second finds the device as new.
    for seed in ["1", "2"] {
        let basics = ["--json", "soak", "none", "--no-model-timing", "--request-blocks", "16", "--seed", seed];
        let out = home.osier(&[&basics[..], &["--requests", "10000", "--record-core", recording]].concat());
        assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
        let found: Value = serde_json::from_slice(&out.stdout).unwrap();
        let tally = &found["tally"];
        for fault in ["lost", "repeated", "out_of_order", "wrong_blocks"] {
            assert_eq!(tally[fault], 0, "{tally}");
        }
        assert!(tally["completed"].as_u64().unwrap() > 6_000, "{tally}");
        let failures = tally["first_failures"].as_array().unwrap();
        assert!(!failures.is_empty(), "{tally}");
        let honest = |failure: &Value| failure.as_str().unwrap().contains("unrecovered read error");
        assert!(failures.iter().all(honest), "{tally}");
        assert!(home.osier(&["device", "check", "none"]).status.success());
        let replayed = home.osier(&["replay", recording]);
        assert!(replayed.status.success(), "{}", text(&replayed.stderr));
    }
}

/// A demonstration that is ended at once leaves no device behind in the temporary directory.
#[test]
fn a_second_signal_to_the_demonstration_leaves_nothing_behind() {
    let home = Home::new();
    let (scratch, input) = (home.path("scratch"), home.path("input"));
    std::fs::create_dir(&scratch).unwrap();
    write(&input, &"a line of text\n".repeat(10_000));
    let left = || std::fs::read_dir(&scratch).unwrap().count();
    let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
    command.args(["demo", "--seconds", "60", "--input"]).arg(&input).current_dir(home.0.path());
    command.env("OSIER_HOME", home.0.path()).env("TMPDIR", &scratch);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let mut demo = Server(command.spawn().unwrap());
    let domains = demo.domains(&[]);
    assert_eq!(left(), 1);
    let (pid, [device, host]) = (demo.0.id().to_string(), [domains[0].to_string(), domains[1].to_string()]);
    Server::signal("-STOP", &device);
    Server::signal("-INT", &pid);
    eventually(|| Path::new("/proc").join(&host).join("exe").read_link().is_err());
    assert_eq!(left(), 1, "it waits for the device");
    Server::signal("-INT", &pid);
    let said = std::io::read_to_string(demo.0.stderr.take().unwrap()).unwrap();
    assert_eq!(demo.0.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("a second signal ends this at once"), "{said}");
    assert!(said.contains("its temporary directory is removed"), "{said}");
    assert_eq!(left(), 0);
    eventually(|| !Path::new("/proc").join(&device).exists());
}

impl Server {
    /// A device that serves, in a process group of its own as a terminal's job has.
    fn start(home: &Home, device: &str) -> Server {
        let server = Server::with(home, device, &[]);
        eventually(|| home.osier(&["actor", "move", device, "main", "auto"]).status.success());
        server
    }

    /// The same with more arguments, once its domains are there.
    fn with(home: &Home, device: &str, more: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
        command.args(["serve", device]).args(more).env("OSIER_HOME", home.0.path()).process_group(0);
        let server = Server(command.spawn().unwrap());
        server.domains(&[]);
        server
    }

    /// Its two domains, once both are there and none is among `but`.
    fn domains(&self, but: &[u32]) -> Vec<u32> {
        let pid = self.0.id();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let mut found = Vec::new();
        eventually(|| {
            let text = std::fs::read_to_string(&path).unwrap();
            found = text.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
            found.len() == 2 && found.iter().all(|pid| !but.contains(pid))
        });
        found
    }

    fn signal(name: &str, target: &str) {
        assert!(Command::new("kill").args([name, "--", target]).status().unwrap().success());
    }
}

fn eventually(mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed().as_secs() < 60, "it did not come about in a minute");
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}

#[test]
fn a_terminals_interrupt_stops_a_device_in_order() {
    let home = Home::new();
    home.device("d", &[]);
    let mut server = Server::start(&home, "d");
    Server::signal("-INT", &format!("-{}", server.0.id()));
    assert!(server.0.wait().unwrap().success());
    let check = home.osier(&["device", "check", "d"]);
    assert!(check.status.success(), "{}", text(&check.stdout));
    assert!(!text(&check.stdout).contains("was killed"), "{}", text(&check.stdout));
}

#[test]
fn a_domain_that_does_not_stop_is_an_error_and_costs_nothing_that_was_completed() {
    let home = Home::new();
    home.device("d", &[]);
    home.soak("d", &["--requests", "300"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
    command.args(["serve", "d", "--stop-patience", "1"]).env("OSIER_HOME", home.0.path());
    let mut server = Server(command.stderr(std::process::Stdio::piped()).spawn().unwrap());
    // The device is the one that is started first.
    let device = server.domains(&[])[0];
    eventually(|| home.osier(&["actor", "move", "d", "main", "auto"]).status.success());
    Server::signal("-STOP", &device.to_string());
    Server::signal("-TERM", &server.0.id().to_string());
    assert_eq!(server.0.wait().unwrap().code(), Some(1));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut server.0.stderr.take().unwrap(), &mut said).unwrap();
    for word in ["the device domain did not stop in order", "within 1s", "the next start takes them up"] {
        assert!(said.contains(word), "{said}");
    }
    let found = home.soak("d", &["--read-back"]);
    assert_eq!(found["tally"]["wrong_blocks"], 0, "{found}");
}

#[test]
fn a_fixed_placement_is_kept_or_gives_way_as_the_command_says() {
    let home = Home::new();
    let fixed = STATEFUL.replace("actor = \"lz4\"", "actor = \"lz4\"\nplacement = \"host\"");
    write(&home.path("fixed.toml"), &fixed);
    home.device("d", &["--pipelines", home.path("fixed.toml").to_str().unwrap()]);
    // Forced moves pass it by as well.
    let found = home.soak("d", &["--requests", "500", "--moves", "20", "--move-all"]);
    assert!(found["migrations"].as_u64().unwrap() >= 20, "{found}");
    let server = Server::with(&home, "d", &["--placement", "device"]);
    let places = || -> Vec<String> {
        let listed: Value = serde_json::from_slice(&home.osier(&["--json", "actor", "ls", "d"]).stdout).unwrap();
        listed.as_array().unwrap().iter().map(|a| a["where"].as_str().unwrap().to_owned()).collect()
    };
    eventually(|| places() == ["device", "host", "device"]);
    let move_to = |what: &str, to: &str| {
        let out = home.osier(&["actor", "move", "d", what, to]);
        (out.status.code(), text(&out.stderr))
    };
    let (code, said) = move_to("main/1:lz4", "device");
    assert!(
        code == Some(3) && said.contains("main/1:lz4 stays where it is") && said.contains("pipelines.toml"),
        "{said}"
    );
    let (code, said) = move_to("main/1:lz4", "host");
    assert_eq!(code, Some(0), "it is there: {said}");
    let (code, said) = move_to("main", "host");
    assert!(code == Some(0) && said.contains("goes before --placement device"), "{said}");
    assert_eq!(places(), ["host", "host", "host"]);
    let (code, said) = move_to("all", "device");
    assert!(code == Some(0) && said.contains("main/1:lz4 stayed"), "{said}");
    assert_eq!(places(), ["device", "host", "device"]);
    let (code, said) = move_to("main", "auto");
    assert!(code == Some(3) && said.contains("no policy"), "{said}");
    drop(server);
}

#[test]
fn a_death_during_the_recovery_from_another_is_recovered_too() {
    let home = Home::new();
    home.device("d", &[]);
    let mut server = Server::start(&home, "d");
    for _ in 0..2 {
        let before = server.domains(&[]);
        for pid in &before {
            Server::signal("-KILL", &pid.to_string());
        }
        // The first to be started again dies before it can be ready.
        let fresh = || std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", server.0.id())).unwrap();
        let mut first = None;
        eventually(|| {
            first = fresh().split_whitespace().map(|pid| pid.parse().unwrap()).find(|pid: &u32| !before.contains(pid));
            first.is_some()
        });
        Server::signal("-KILL", &first.unwrap().to_string());
        server.domains(&[&before[..], &[first.unwrap()]].concat());
        eventually(|| home.osier(&["actor", "move", "d", "main", "host"]).status.success());
    }
    Server::signal("-TERM", &server.0.id().to_string());
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn commands_given_at_once_are_all_carried_out() {
    let home = Home::new();
    home.device("d", &[]);
    let _server = Server::start(&home, "d");
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let ask = |side| home.osier(&["actor", "move", "d", "main", side]);
        let asked: Vec<_> = (0..6).map(|n| scope.spawn(move || ask(["host", "device"][n % 2]))).collect();
        asked.into_iter().map(|each| each.join().unwrap()).collect()
    });
    for out in outputs {
        assert!(out.status.success(), "{}", text(&out.stderr));
    }
}

#[test]
fn soaks_and_processors_that_do_not_fit_are_refused() {
    let home = Home::new();
    home.device("d", &[]);
    let cases: [(&[&str], i32, &str); 5] = [
        (&["--depth", "33"], 3, "takes (32: its pipelines have 32 slots"),
        (&["--depth", "100000"], 3, "raise slots"),
        (&["--request-blocks", "64"], 3, "request_kib_max"),
        (&["--groups", "300000"], 3, "fewer groups"),
        (&["--cpus", "0,5000"], 2, "two processors"),
    ];
    for (arguments, code, expected) in cases {
        let out = home.osier(&[&["soak", "d"], arguments].concat());
        assert_eq!(out.status.code(), Some(code), "{arguments:?}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains(expected), "{arguments:?}: {}", text(&out.stderr));
    }
}

#[test]
fn bad_input_is_refused_by_name() {
    let home = Home::new();
    write(&home.path("garbage.wasm"), "this is not WebAssembly");
    let pipeline = |actor: &str, more: &str| {
        format!(
            "[[pipeline]]\nname = \"main\"\nunit_kib = 16\nrequest_kib_max = 64\nslots = 8\n{more}\n[[pipeline.stage]]\nactor = \"{actor}\"\n"
        )
    };
    write(&home.path("module.toml"), &pipeline("./garbage.wasm", ""));
    write(&home.path("key.toml"), &pipeline("lz4", "colour = \"red\""));
    write(&home.path("name.toml"), &pipeline("zstd", ""));
    for (file, expected) in
        [("module.toml", "garbage"), ("key.toml", "colour"), ("name.toml", "zstd"), ("none.toml", "none.toml")]
    {
        let path = home.path(file);
        let out = home.osier(&["device", "create", "x", "--capacity", "256MiB", "--pipelines", path.to_str().unwrap()]);
        let mut message = text(&out.stderr);
        if out.status.success() {
            let served = home.osier(&["soak", "x", "--requests", "1"]);
            message = text(&served.stderr);
            assert!(!served.status.success(), "{file} was taken");
            assert!(home.osier(&["device", "rm", "x"]).status.success());
        }
        assert!(message.contains(expected), "{file}: {message}");
    }
    let missing = home.osier(&["demo", "--input", "/no/such/file", "--seconds", "1"]);
    assert!(!missing.status.success() && text(&missing.stderr).contains("/no/such/file"), "{}", text(&missing.stderr));
    let profile = home.osier(&["device", "create", "y", "--profile", "no-such-profile"]);
    assert_eq!(profile.status.code(), Some(3));
}
