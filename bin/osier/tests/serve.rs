//! `osier serve` with front ends beside the device: they come up with it, come back when they are killed, and show what
//! it does.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
mod served;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use osier_client::{Ask, Queue};
use served::{LIMIT, Served, osier, signal};

const DASHBOARD: [&str; 2] = ["--dashboard", "127.0.0.1:0"];

/// Waits for something to be so.
fn until<T>(what: &str, served: &Served, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < LIMIT, "{what}; {}", served.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where the dashboard listens, as it said last.
fn dashboard(served: &Served) -> String {
    until("no dashboard", served, || {
        let log = served.log();
        let line = log.lines().rev().find(|line| line.contains("is shown at http://"))?;
        Some(line.rsplit_once("http://")?.1.to_owned())
    })
}

/// The status and the body of a page.
fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

fn metric(address: &str, name: &str) -> Option<f64> {
    let (_, text) = get(address, "/metrics")?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

fn status(address: &str) -> serde_json::Value {
    let (code, body) = get(address, "/api/status").unwrap();
    assert_eq!(code, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// What an NBD server says first.
fn greets(socket: &Path) -> Option<()> {
    let mut stream = UnixStream::connect(socket).ok()?;
    let mut magic = [0; 8];
    stream.read_exact(&mut magic).ok()?;
    (magic == *b"NBDMAGIC").then_some(())
}

fn write(queue: &mut Queue, block: u64) {
    let slot = queue.take().unwrap();
    queue.submit(slot, &Ask::Write { block, blocks: 1, fua: false });
    queue.ring();
    let (slot, status) = queue.wait(LIMIT).unwrap();
    assert!(status.is_success(), "{status}");
    queue.release(slot);
}

/// The process of a front end, by its command.
fn front(served: &Served, command: &str) -> Option<u32> {
    served.children().into_iter().find(|pid| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(command.as_bytes())
    })
}

#[test]
fn front_ends_come_up_with_the_device_and_come_back_when_they_are_killed() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd");
    let nbd = ["--nbd", socket.to_str().unwrap()];
    let mut served = Served::new(&[&nbd[..], &DASHBOARD, &["--nvme-tcp", "127.0.0.1:0"]].concat());
    let address = dashboard(&served);
    until("no NBD", &served, || greets(&socket));
    until("no NVMe over TCP", &served, || served.log().contains(" as nqn.2014-08.").then_some(()));
    assert_eq!(until("not well", &served, || get(&address, "/healthz").filter(|(code, _)| *code == 200)).1, "ok\n");
    for _ in 0..3 {
        let pid = until("no process", &served, || front(&served, "nbd"));
        signal(pid, "KILL");
        until("no NBD after a kill", &served, || {
            front(&served, "nbd").filter(|now| *now != pid)?;
            greets(&socket)
        });
    }
    assert!(served.log().matches("and is started again").count() >= 3, "{}", served.log());
    // One that is ended in order stays ended; the device and the others go on.
    signal(front(&served, "dashboard").unwrap(), "TERM");
    until("it is not told of", &served, || served.log().contains("was ended, and stays so").then_some(()));
    until("no NBD", &served, || greets(&socket));
    assert_eq!(front(&served, "dashboard"), None);
    served.stop();
    assert!(!socket.exists());
}

#[test]
fn a_mount_that_is_killed_is_mounted_again_with_all_that_was_synced() {
    if std::fs::File::open("/dev/fuse").is_err() {
        common::skipped("/dev/fuse cannot be opened here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut served = Served::sized("128MiB", &["--mount", directory.path().to_str().unwrap()]);
    until("no file system", &served, || served.log().contains("osier: mounted").then_some(()));
    let path = directory.path().join("file");
    for round in 0..3_u8 {
        let bytes = vec![round; 100_000];
        std::fs::write(&path, &bytes).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        let pid = until("no process", &served, || front(&served, "mount"));
        signal(pid, "KILL");
        // Until then the kernel may answer from pages that it has kept of the dead one.
        let mounts = usize::from(round) + 2;
        until("it is not mounted again", &served, || {
            (served.log().matches("osier: mounted").count() == mounts).then_some(())
        });
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
    served.stop();
    assert!(!path.exists(), "it is still mounted");
}

#[test]
fn the_dashboard_has_exact_counts_and_knows_who_is_there_and_who_died() {
    let mut served = Served::new(&DASHBOARD);
    let address = dashboard(&served);
    let mut queue = Queue::attach_as(&served.socket(), 4, 4096, "a test\n").unwrap();
    for block in 0..25 {
        write(&mut queue, block);
    }
    let of = |kind: &str| metric(&address, &format!("osier_commands_total{{device=\"d\",kind=\"{kind}\"}}"));
    until("not 25 writes", &served, || (of("write")? == 25.0).then_some(()));
    assert_eq!(metric(&address, "osier_bytes_total{device=\"d\",kind=\"write\"}"), Some(25.0 * 4096.0));
    assert_eq!(metric(&address, "osier_command_seconds_count{device=\"d\",kind=\"write\"}"), Some(25.0));
    assert_eq!(of("read"), Some(0.0));
    let live = status(&address)["live"].clone();
    assert_eq!(live["clients"][0]["name"], "a test?");
    assert_eq!(live["clients"][0]["commands"], 25);
    assert_eq!(live["actors"].as_array().map(Vec::len), Some(3), "{live}");
    assert!(live["figures"]["flash"]["superblocks_free"].as_u64() > Some(0), "{live}");
    assert_eq!(live["dies"]["busy_ns"].as_array().map(Vec::len), Some(64));
    // A failure counts as one.
    let slot = queue.take().unwrap();
    queue.submit(slot, &Ask::Read { block: u64::from(u32::MAX), blocks: 1 });
    queue.ring();
    assert!(!queue.wait(LIMIT).unwrap().1.is_success());
    queue.release(slot);
    for (kind, child) in [("host", 1), ("device", 0)] {
        let before = metric(&address, "osier_domain_deaths_total{device=\"d\"}").unwrap();
        let pid = status(&address)["live"]["domains"][1 - child]["pid"].as_u64().unwrap() as u32;
        signal(pid, "KILL");
        until(kind, &served, || {
            let deaths = metric(&address, "osier_domain_deaths_total{device=\"d\"}")?;
            (deaths == before + 1.0 && metric(&address, "osier_up{device=\"d\"}")? == 1.0).then_some(())
        });
    }
    queue.recover(LIMIT).unwrap();
    write(&mut queue, 0);
    until("the counts began anew", &served, || (of("write")? == 26.0).then_some(()));
    drop(queue);
    until("a client that has gone is shown", &served, || {
        status(&address)["live"]["clients"].as_array()?.is_empty().then_some(())
    });
    served.stop();
}

#[test]
fn a_dashboard_of_its_own_outlives_the_device() {
    let mut served = Served::new(&[]);
    drop(served.queue(1, 4096));
    let mut shown =
        osier(&served.home, &["dashboard", "d", "--listen", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(shown.stderr.as_mut().unwrap()), &mut line).unwrap();
    let address = line.trim().rsplit_once("http://").unwrap().1;
    assert_eq!(get(address, "/healthz").map(|(code, _)| code), Some(200));
    served.stop();
    until("a device that is down is well", &served, || get(address, "/healthz").filter(|(code, _)| *code == 503));
    assert!(status(address)["live"].is_null());
    served.start();
    until("a device that is up again is not well", &served, || {
        get(address, "/healthz").filter(|(code, _)| *code == 200)
    });
    signal(shown.id(), "INT");
    assert!(shown.wait().unwrap().success());
}

#[test]
fn a_front_end_that_cannot_be_had_is_said_and_nothing_stays_behind() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let cases: [(&[&str], &str); 3] = [
        (&["--nbd", path], "it exists and is no socket"),
        (&["--dashboard", "0.0.0.0:0"], "--allow-remote"),
        (&["--nbd", "10809"], "write an address with a port"),
    ];
    let mut served = Served::down("64MiB", &[]);
    for (options, words) in cases {
        let out = osier(&served.home, &["serve", "d", "--no-model-timing"]).args(options).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(3), "{text}");
        assert!(text.contains(words), "{text}");
    }
    served.start();
    drop(served.queue(1, 4096));
    served.stop();
}

#[test]
fn front_ends_are_named_in_the_configuration_and_end_with_their_supervisor() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd");
    let config = directory.path().join("config.toml");
    std::fs::write(&config, format!("[serve.d]\nread_only = true\n[serve.d.fronts]\nnbd = [{socket:?}]\n")).unwrap();
    let mut served = Served::new(&["--config", config.to_str().unwrap()]);
    until("no NBD", &served, || greets(&socket));
    assert!(served.queue(1, 4096).namespace().is_read_only);
    let pid = front(&served, "nbd").unwrap();
    let mut supervisor = served.process.take().unwrap();
    signal(supervisor.id(), "KILL");
    supervisor.wait().unwrap();
    until("a front end outlives its supervisor", &served, || {
        (!Path::new(&format!("/proc/{pid}/exe")).exists()).then_some(())
    });
}

#[test]
fn a_service_manager_hears_when_it_is_up_and_when_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    let served = Served::down("64MiB", &[]);
    let mut process =
        osier(&served.home, &["serve", "d"]).env("NOTIFY_SOCKET", &path).stderr(Stdio::null()).spawn().unwrap();
    let mut heard = [0; 64];
    let count = manager.recv(&mut heard).unwrap();
    assert_eq!(&heard[..count], b"READY=1");
    drop(served.queue(1, 4096));
    signal(process.id(), "TERM");
    let count = manager.recv(&mut heard).unwrap();
    assert_eq!(&heard[..count], b"STOPPING=1");
    assert!(process.wait().unwrap().success());
}

#[test]
fn top_watches_a_device_until_it_goes() {
    let mut served = Served::down("64MiB", &[]);
    let run = |options: &[&str]| osier(&served.home, &[&["top", "d"], options].concat()).output().unwrap();
    let down = run(&["--once"]);
    assert_eq!(down.status.code(), Some(8), "{}", String::from_utf8_lossy(&down.stderr));
    served.start();
    let mut queue = served.queue(1, 4096);
    write(&mut queue, 3);
    let run = |options: &[&str]| osier(&served.home, &[&["top", "d"], options].concat()).output().unwrap();
    let page = String::from_utf8(run(&["--once"]).stdout).unwrap();
    let row = page.lines().find(|line| line.starts_with("write ")).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!((row[5], row[6]), ("1", "0"), "{page}");
    assert!(page.contains("main/0:lz4") && page.contains("serve-"), "{page}");
    let seen: serde_json::Value = serde_json::from_slice(&run(&["--once", "--json"]).stdout).unwrap();
    assert_eq!(seen["live"]["traffic"][1]["commands"], 1);
    let mut watched = osier(&served.home, &["top", "d", "--every", "50ms"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watched.stdout.take().unwrap()));
    assert!(lines.next().unwrap().unwrap().contains("reads/s"));
    for _ in 0..3 {
        assert_eq!(lines.next().unwrap().unwrap().split_whitespace().count(), 12);
    }
    drop(queue);
    served.stop();
    assert!(lines.all(|line| line.is_ok()));
    assert_eq!(watched.wait().unwrap().code(), Some(8), "it ends with the device");
}

#[test]
fn the_page_is_drawn_by_a_real_browser() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let got = Command::new("scripts/browser").current_dir(root).output().unwrap();
    if !got.status.success() {
        common::skipped(String::from_utf8_lossy(&got.stderr).trim_end());
        return;
    }
    let browser = String::from_utf8(got.stdout).unwrap();
    let mut served = Served::new(&DASHBOARD);
    let address = dashboard(&served);
    let mut queue = Queue::attach_as(&served.socket(), 4, 4096, "<b>bold</b>").unwrap();
    write(&mut queue, 1);
    let profile = tempfile::tempdir().unwrap();
    let out = Command::new("timeout")
        .args(["120", browser.trim(), "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(["--virtual-time-budget=6000", &format!("http://{address}/")])
        .output()
        .unwrap();
    let page = String::from_utf8_lossy(&out.stdout);
    assert!(page.contains("<title>d – Osier</title>"), "{page}{}", String::from_utf8_lossy(&out.stderr));
    assert!(page.contains("class=\"pill up\""), "{page}");
    assert!(page.contains("&lt;b&gt;bold&lt;/b&gt;"), "a client's name is text: {page}");
    assert_eq!(page.matches("<polyline").count(), 10, "{page}");
    assert_eq!(page.matches("<rect").count(), 64, "{page}");
    assert!(page.contains("main/0:lz4"), "{page}");
    drop(queue);
    served.stop();
}
