//! Listening, limits, bad clients and the end.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use osier_front::ListenError;
use osier_front::nbd::{Config, Limits, ServeError, Server};
use osier_front::volume::Export;

use super::Rig;
use super::common::memory::{Disk, MemoryExport};
use super::raw::{DISC, READ, Raw, WRITE};

const ERR_POLICY: u32 = (1 << 31) + 2;
const ESHUTDOWN: u32 = 108;

fn exports() -> Vec<Arc<dyn Export>> {
    vec![Arc::new(MemoryExport::new("memory", &Arc::new(Disk::new(1))))]
}

fn refusal(config: Config) -> String {
    Server::start(exports(), config).unwrap_err().to_string()
}

fn at(address: &str) -> Config {
    Config { tcp: Some(address.parse().unwrap()), ..Config::default() }
}

#[test]
fn an_address_that_others_reach_is_refused_unless_it_is_meant() {
    let text = refusal(at("0.0.0.0:0"));
    assert!(text.contains("other machines reach") && text.contains("--allow-remote"), "{text}");
    let meant = Server::start(exports(), Config { allow_remote: true, ..at("0.0.0.0:0") }).unwrap();
    assert_ne!(meant.tcp().map(|address: SocketAddr| address.port()), Some(0));
}

#[test]
fn a_port_in_use_and_no_address_at_all_are_said_to_be_that() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = refusal(at(&taken.local_addr().unwrap().to_string()));
    assert!(text.contains("another program does") && text.contains("choose another port"), "{text}");
    assert!(matches!(Server::start(exports(), Config::default()), Err(ServeError::Listen(ListenError::Nowhere))));
    assert!(matches!(Server::start(Vec::new(), at("127.0.0.1:0")), Err(ServeError::Name { .. })));
    let twice = [exports(), exports()].concat();
    assert!(Server::start(twice, at("127.0.0.1:0")).unwrap_err().to_string().contains("another one has that name"));
}

#[test]
fn a_socket_that_lives_is_left_alone_and_a_stale_one_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let config = || Config { unix: Some(path.clone()), ..Config::default() };
    std::fs::write(&path, "precious").unwrap();
    assert!(refusal(config()).contains("it exists and is no socket"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
    // What a process leaves that is killed.
    drop(UnixListener::bind(&path).unwrap());
    let server = Server::start(exports(), config()).unwrap();
    assert!(refusal(config()).contains("another server does"));
    Raw::connect(&path).go();
    server.stop();
    assert!(!path.exists());
}

#[test]
fn one_client_too_many_is_told_so_and_the_next_one_is_served() {
    let rig = Rig::with(Disk::new(1), None, |config| config.connections_max = 2);
    let (mut one, mut two) = (Raw::connect(&rig.socket()), Raw::connect(&rig.socket()));
    one.go();
    two.go();
    let mut three = Raw::connect(&rig.socket());
    let (kind, text) = three.option(7, &[0; 6]);
    let text = String::from_utf8(text).unwrap();
    assert!(kind == ERR_POLICY && text.contains("2 clients at a time") && text.contains("later"), "{text}");
    assert_eq!(three.option(2, &[]).0, 1);
    assert!(three.is_closed());
    one.0.write_all(&Raw::request(DISC, 0, 0, 0)).unwrap();
    assert!(one.is_closed());
    await_that(|| rig.server.clients() == 1);
    Raw::connect(&rig.socket()).go();
}

fn await_that(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "it never was so");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn who_negotiates_too_long_is_left() {
    let rig = Rig::with(Disk::new(1), None, |config| config.negotiation = Duration::from_millis(100));
    let mut quick = Raw::connect(&rig.socket());
    quick.go();
    // The limit is of the negotiation alone: the time of who came first is over, too, when this one's is.
    assert!(Raw::connect(&rig.socket()).is_closed());
    quick.0.write_all(&Raw::request(READ, 5, 0, 10)).unwrap();
    assert_eq!(quick.reply(), (0, 5));
}

/// A client that asks and never reads is not listened to for long, and when it reads after all, it gets everything.
#[test]
fn who_does_not_read_is_not_listened_to() {
    const REQUESTS: u64 = 200_000;
    const LENGTH: u32 = 64 << 10;
    let rig = Rig::new(64);
    let mut client = Raw::connect(&rig.socket());
    client.go();
    client.0.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let (mut asked, mut rest) = (0, Vec::new());
    while asked < REQUESTS {
        let request = Raw::request(READ, asked, 0, LENGTH);
        match client.0.write(&request) {
            Ok(written) if written == request.len() => asked += 1,
            Ok(written) => rest = request[written..].to_vec(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
        if !rest.is_empty() {
            break;
        }
    }
    assert!(asked < REQUESTS, "all of them were taken");
    let mut data = vec![0; LENGTH as usize];
    for cookie in 0..asked {
        assert_eq!(client.reply(), (0, cookie));
        client.0.read_exact(&mut data).unwrap();
    }
}

#[test]
fn who_breaks_the_protocol_or_dies_harms_nobody() {
    let rig = Rig::with(Disk::new(64), Some(1), |_| {});
    let mut good = Raw::connect(&rig.socket());
    good.go();
    let mut bad = Raw::connect(&rig.socket());
    bad.go();
    bad.0.write_all(&[0x55; 28]).unwrap();
    assert!(bad.is_closed());
    // One that ends within a payload: nothing of it is written.
    let mut dying = Raw::connect(&rig.socket());
    dying.go();
    dying.0.write_all(&Raw::request(WRITE, 1, 0, 8192)).unwrap();
    dying.0.write_all(&[9; 8000]).unwrap();
    drop(dying);
    // One that ends while requests are under way.
    let mut hasty = Raw::connect(&rig.socket());
    hasty.go();
    for cookie in 0..50 {
        hasty.0.write_all(&Raw::request(READ, cookie, 0, 65536)).unwrap();
    }
    drop(hasty);
    await_that(|| rig.server.clients() == 1);
    good.0.write_all(&Raw::request(READ, 7, 0, 8192)).unwrap();
    assert_eq!(good.reply(), (0, 7));
    let mut data = vec![1; 8192];
    good.0.read_exact(&mut data).unwrap();
    assert_eq!(data, vec![0; 8192]);
}

/// What was sent at once is answered to its end, though only some of it is taken at a time.
#[test]
fn what_waits_for_room_is_not_forgotten() {
    let tight = Limits { outstanding_max: 1, buffered_bytes_max: 1, ..Limits::default() };
    let rig = Rig::with(Disk::new(64), None, |config| config.limits = tight);
    let mut client = Raw::connect(&rig.socket());
    // Options, too, of a client that does not wait for replies.
    client.0.write_all(&b"IHAVEOPT\0\0\0\x03\0\0\0\0".repeat(3)).unwrap();
    for _ in 0..3 {
        assert_eq!((client.option_reply().0, client.option_reply().0), (2, 1));
    }
    client.go();
    let many: Vec<u8> = (0..50).flat_map(|cookie| Raw::request(READ, cookie, cookie * 4096, 4096)).collect();
    client.0.write_all(&many).unwrap();
    for cookie in 0..50 {
        assert_eq!(client.reply(), (0, cookie));
        client.0.read_exact(&mut [1; 4096]).unwrap();
    }
}

/// Requests that were taken are done; those that come later are told that the server ends.
#[test]
fn at_the_end_what_is_under_way_is_finished() {
    let rig = Rig::with(Disk::new(64), Some(5), |_| {});
    let mut client = Raw::connect(&rig.socket());
    client.go();
    let mut idle = Raw::connect(&rig.socket());
    idle.go();
    let negotiating = Raw::connect(&rig.socket());
    for cookie in 0..100 {
        client.0.write_all(&Raw::request(WRITE, cookie, cookie * 1000, 1000)).unwrap();
        client.0.write_all(&[cookie as u8 + 1; 1000]).unwrap();
    }
    let Rig { directory, disk, server } = rig;
    let stopping = std::thread::spawn(move || server.stop());
    let mut answers = Vec::new();
    while answers.len() < 100 {
        answers.push(client.reply());
    }
    assert!(client.is_closed() && idle.is_closed());
    drop(negotiating);
    stopping.join().unwrap();
    let bytes = disk.bytes.read().unwrap().clone();
    for (error, cookie) in answers {
        let at = cookie as usize * 1000;
        let expected = match error {
            0 => cookie as u8 + 1,
            ESHUTDOWN => 0,
            other => panic!("error {other}"),
        };
        assert!(bytes[at..at + 1000].iter().all(|byte| *byte == expected), "request {cookie}, error {error}");
    }
    drop(directory);
}
