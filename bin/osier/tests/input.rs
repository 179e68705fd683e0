//! What people get wrong, at the real command line: each is refused by name, on one line, with the code for it, and
//! nothing is left or lost.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), content).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    fn osier(&self, arguments: &[&str]) -> Output {
        // What hangs is a failure, not a reason to wait for ever.
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "60", env!("CARGO_BIN_EXE_osier")]).args(arguments);
        command.env("OSIER_HOME", self.path("home")).env_remove("OSIER_CONFIG").env_remove("OSIER_LOG");
        command.current_dir(self.0.path()).output().unwrap()
    }

    /// Insists on the code, on one line on standard error, and on the words in it.
    fn refused(&self, code: i32, arguments: &[&str], words: &[&str]) {
        let out = self.osier(arguments);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.starts_with("osier: ") && said.lines().count() == 1, "{arguments:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{arguments:?}: {said}");
        }
    }
}

/// A module whose forward function has this body: parameters 0 to 4 are in, in_len, out, out_cap, budget.
fn module(parts: &str, forward: &str) -> Vec<u8> {
    let text = format!(
        r#"(module {parts}
             (memory (export "memory") 1)
             (func (export "osier_abi") (result i32) (i32.const 1))
             (func (export "osier_forward") (param i32 i32 i32 i32 i32) (result i64) {forward}))"#
    );
    wat::parse_str(text).unwrap()
}

const COPY: &str = "(memory.copy (local.get 2) (local.get 0) (local.get 1)) (i64.extend_i32_u (local.get 1))";

fn pipeline(actor: &str) -> String {
    format!(
        "[[pipeline]]\nname = \"main\"\nunit_kib = 16\nrequest_kib_max = 64\nslots = 8\n\
         [[pipeline.stage]]\nactor = \"{actor}\"\n"
    )
}

#[test]
fn a_module_that_cannot_serve_is_refused_before_a_device_is_made() {
    let home = Home::new();
    let no_export = wat::parse_str("(module (memory (export \"memory\") 1))").unwrap();
    let bomb = wat::parse_str("(module (memory (export \"memory\") 60000))").unwrap();
    let foreign = module("(import \"wasi_snapshot_preview1\" \"fd_write\" (func (param i32)))", COPY);
    let cases: [(&str, &[u8], &[&str]); 6] = [
        ("garbage.wasm", b"this is not WebAssembly", &["not a core WebAssembly module"]),
        ("empty.wasm", b"", &["not a core WebAssembly module"]),
        ("export.wasm", &no_export, &["does not export `osier_abi`"]),
        ("import.wasm", &foreign, &["imports `wasi_snapshot_preview1.fd_write`"]),
        ("bomb.wasm", &bomb, &["memory"]),
        ("start.wasm", &module("(func $s unreachable) (start $s)", COPY), &["start function"]),
    ];
    for (name, wasm, words) in cases {
        home.file(name, wasm);
        let file = home.file("pipelines.toml", pipeline(name));
        let create = ["device", "create", "d", "--capacity", "64MiB", "--pipelines", &file];
        home.refused(3, &create, &[&["main/0", name], words].concat());
        assert!(!home.path("home/d").exists(), "{name}: a device was made");
    }
}

/// They pass for modules, and fail each request: with a status, and a word on which actor it was. Reads and the
/// device go on.
#[test]
fn a_module_that_fails_at_work_fails_its_requests_and_no_more() {
    let home = Home::new();
    let cases: [(&str, &str, &str); 4] = [
        ("trap.wasm", "unreachable", "actor trapped"),
        ("loop.wasm", "(loop $l (br $l)) (i64.const 0)", "actor exceeded its time budget"),
        ("long.wasm", "(i64.const 0x7fffffff)", "actor failed the request"),
        ("grow.wasm", "(drop (memory.grow (i32.const 60000))) unreachable", "actor trapped"),
    ];
    for (name, forward, status) in cases {
        home.file(name, module("", forward));
        let file = home.file("pipelines.toml", pipeline(name));
        let made = home.osier(&["device", "create", name, "--capacity", "64MiB", "--pipelines", &file]);
        assert!(made.status.success(), "{name}: {}", String::from_utf8_lossy(&made.stderr));
        let soak = ["soak", name, "--no-model-timing", "--requests", "12", "--groups", "8", "--depth", "2"];
        let out = home.osier(&soak);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains(status) && said.contains(&format!("main/0:{name}")), "{name}: {said}");
        assert!(home.osier(&["device", "check", name, "--deep"]).status.success());
    }
}

#[test]
fn wrong_profiles_pipelines_and_inputs_are_refused_and_leave_nothing() {
    let home = Home::new();
    let profile = home.osier(&["device", "profiles", "smartssd"]).stdout;
    let profile = String::from_utf8(profile).unwrap();
    let with = |name: &str, from: &str, to: &str| {
        let changed = profile.replacen(from, to, 1);
        assert_ne!(changed, profile, "{from}");
        home.file(name, changed)
    };
    let missing = with("missing.toml", "drain_idle_ns", "# drain_idle_ns");
    let unknown = with("unknown.toml", "[write_buffer]", "[write_buffer]\ncolour = 1");
    let impossible = with("impossible.toml", "drain_start_permille = ", "drain_start_permille = 9");
    let create = |more: &[&'static str]| [&["device", "create", "d", "--capacity", "64MiB"], more].concat();
    home.refused(3, &[&create(&["--profile"])[..], &[&missing]].concat(), &["missing.toml", "drain_idle_ns"]);
    home.refused(3, &[&create(&["--profile"])[..], &[&unknown]].concat(), &["unknown.toml", "line", "colour"]);
    home.refused(3, &[&create(&["--profile"])[..], &[&impossible]].concat(), &["line", "drain_start_permille"]);
    let pipelines = [
        (pipeline("zstd"), "actor `zstd`: there is no built-in"),
        (pipeline("lz4").replace("slots", "colour"), "colour"),
        (pipeline("lz4").replace("16", "17"), "unit_kib = 17"),
        (pipeline("lz4").replace("[[pipeline]]", "[[pipeline"), "line 1: "),
        (pipeline("./none.wasm"), "none.wasm"),
    ];
    for (text, word) in pipelines {
        let file = home.file("pipelines.toml", text);
        home.refused(3, &[&create(&["--pipelines"])[..], &[&file]].concat(), &[word]);
    }
    // The actor says why in a line of its own.
    let file = home.file("pipelines.toml", pipeline("filter"));
    let out = home.osier(&[&create(&["--pipelines"])[..], &[&file]].concat());
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(3) && said.contains("main/0:filter") && said.contains("`field`"), "{said}");
    home.refused(3, &create(&["--pipelines", "absent.toml"]), &["absent.toml"]);
    fs::create_dir(home.path("odd")).unwrap();
    let made = Command::new("mkfifo").arg(home.path("pipe")).status().unwrap();
    assert!(made.success());
    std::os::unix::fs::symlink("nowhere", home.path("odd/dangling")).unwrap();
    let demo = |input: &'static str| ["demo", "--seconds", "1", "--input", input];
    home.refused(3, &demo("/no/such/file"), &["/no/such/file", "check that it exists"]);
    home.refused(3, &demo("pipe"), &["pipe", "neither a file nor a directory"]);
    home.refused(3, &demo("/dev/zero"), &["/dev/zero", "neither a file nor a directory"]);
    home.refused(3, &demo("odd/dangling"), &["dangling"]);
    home.file("empty", "");
    fs::create_dir_all(home.path("hollow/below")).unwrap();
    home.file("hollow/a", "");
    home.file("hollow/below/b", "");
    for input in ["odd", "empty", "hollow", "hollow/below"] {
        // One line: nothing was started that could have said another.
        home.refused(3, &demo(input), &["the inputs hold no bytes"]);
    }
    home.file("notes.html", "<title>Somebody's notes</title>");
    home.refused(
        3,
        &[&demo("/etc/hostname")[..], &["--report", "notes.html"]].concat(),
        &["notes.html", "is not a report"],
    );
    home.refused(3, &[&demo("/etc/hostname")[..], &["--report", "/no/dir/r.html"]].concat(), &["/no/dir/r.html"]);
    home.refused(3, &[&demo("/etc/hostname")[..], &["--record", "/no/dir/r"]].concat(), &["/no/dir/r"]);
    home.refused(3, &[&demo("/etc/hostname")[..], &["--policy", "best"]].concat(), &["best", "wio"]);
    home.refused(3, &["sched", "replay", "pipelines.toml"], &["pipelines.toml", "osier sched record"]);
    for command in [&["serve", "d"][..], &["soak", "d"], &["actor", "ls", "d"], &["device", "check", "d"]] {
        home.refused(8, command, &["no device image"]);
    }
    let left = fs::read_dir(home.path("home")).map(|entries| entries.count());
    assert_eq!(left.unwrap_or(0), 0);
}

#[test]
fn empty_files_among_others_are_passed_over_and_reports_of_another_kind_are_kept() {
    let home = Home::new();
    fs::create_dir_all(home.path("mixed/below")).unwrap();
    for (name, content) in [("mixed/a", ""), ("mixed/b", "bytes\n"), ("mixed/below/c", ""), ("mixed/below/d", "more\n")]
    {
        home.file(name, content);
    }
    let demo = ["--json", "demo", "--seconds", "1", "--skip-fixed", "--input", "mixed"];
    let out = home.osier(&demo);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(found["runs"][0]["report"]["files"], serde_json::json!([2, 2]), "{found}");
    assert_eq!(found["report_path"], "osier-demo-one-run.html");
    // Again over its own kind, but not over that of two runs, nor the other way round.
    fs::rename(home.path("osier-demo-one-run.html"), home.path("r.html")).unwrap();
    home.refused(3, &["demo", "--input", "mixed", "--report", "r.html"], &["r.html", "is not a report"]);
    assert!(home.osier(&[&demo[..], &["--report", "r.html"]].concat()).status.success());
}

#[test]
fn what_an_actor_logs_is_said_with_its_name() {
    let home = Home::new();
    let parts =
        "(import \"osier\" \"log\" (func $log (param i32 i32 i32))) (data (i32.const 64) \"a word of its own\")";
    home.file("talks.wasm", module(parts, &format!("(call $log (i32.const 1) (i32.const 64) (i32.const 17)) {COPY}")));
    let file = home.file("pipelines.toml", pipeline("./talks.wasm"));
    let made = home.osier(&["device", "create", "d", "--capacity", "64MiB", "--pipelines", &file]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let soak = [
        "soak",
        "d",
        "--no-model-timing",
        "--requests",
        "3000",
        "--groups",
        "8",
        "--depth",
        "2",
        "--reads-permille",
        "0",
    ];
    let begun = std::time::Instant::now();
    let out = home.osier(&soak);
    // Two domains, 64 a second each.
    let most = 2 * 64 * (begun.elapsed().as_secs() + 2);
    let said = String::from_utf8_lossy(&out.stderr);
    let lines = said.lines().filter(|line| line.contains("a word of its own")).count();
    assert!(out.status.success() && said.contains("main/0:") && said.contains("talks"), "{said}");
    assert!((1..=most).contains(&(lines as u64)), "{lines} lines, {most} at most");
}
