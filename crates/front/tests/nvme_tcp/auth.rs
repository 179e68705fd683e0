//! Hosts that have to prove who they are, with a host that does so by hand: SHA-256 and no Diffie-Hellman exchange.

use std::time::Duration;

use hmac::{Hmac, Mac};
use osier_front::nvme_tcp::{Config, Hosts, Server};
use sha2::Sha256;

use super::common::memory::Disk;
use super::host::{Cqe, HOST, Host, Sqe, Terms, connect_data};
use super::{Rig, common};

const REQUIRED: u16 = 0x191;
/// 32 bytes of 1, which is the key.
const SECRET: &str = "DHHC-1:00:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQHMnzFi:";

fn rig(negotiation: Duration) -> Rig {
    Rig::with(Disk::new(1), None, |config| {
        config.hosts = Some(Hosts::parse(&format!("{HOST} {SECRET}")).unwrap());
        config.negotiation = negotiation;
    })
}

fn send(host: &mut Host, message: &[u8]) -> Cqe {
    let sqe = Sqe::fabrics(5, 0).dword(10, 0xE901_0100).dword(11, message.len() as u32);
    host.run(sqe.inside(message.len() as u32), message).0
}

fn receive(host: &mut Host, room: u32) -> (Cqe, Vec<u8>) {
    host.run(Sqe::fabrics(6, 0).dword(10, 0xE901_0100).dword(11, room).outside(room), &[])
}

/// Negotiates, and answers the challenge with this key; what comes of it.
fn answer(host: &mut Host, subsystem: &str, key: &[u8]) -> Vec<u8> {
    let mut negotiate = vec![0; 72];
    (negotiate[4], negotiate[7], negotiate[8]) = (77, 1, 1);
    (negotiate[10], negotiate[11], negotiate[12]) = (1, 1, 1);
    assert_eq!(send(host, &negotiate).status, 0);
    let (cqe, challenge) = receive(host, 4096);
    assert_eq!((cqe.status, &challenge[..10]), (0, &[1, 1, 0, 0, 77, 0, 32, 0, 1, 0][..]));
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    for part in [&challenge[16..48], &challenge[12..16], &[77, 0, 0], b"HostHost", HOST.as_bytes(), &[0]] {
        mac.update(part);
    }
    mac.update(subsystem.as_bytes());
    let mut reply = vec![0; 80];
    (reply[0], reply[1], reply[4], reply[6]) = (1, 2, 77, 32);
    reply[16..48].copy_from_slice(&mac.finalize().into_bytes());
    assert_eq!(send(host, &reply).status, 0);
    receive(host, 4096).1
}

/// A connection that has become a queue, and whose host has proved nothing.
fn connected(rig: &Rig, qid: u16, controller: u16) -> (Host, u16) {
    let mut host = Host::dial(rig.address(), Terms::default());
    let cqe = host.connect(qid, &connect_data(controller, rig.server.nqn(), HOST));
    assert_eq!((cqe.status, cqe.result >> 16), (0, 2), "ATR");
    (host, cqe.result as u16)
}

#[test]
fn a_host_works_on_queues_for_which_it_has_proved_who_it_is_and_on_no_other() {
    let rig = rig(Duration::from_secs(30));
    let (mut admin, controller) = connected(&rig, 0, 0xFFFF);
    for sqe in [Sqe::property_get(0, 0x1C, false), Sqe::property_set(0, 0x14, 0x0046_0001), Sqe::identify(0, 1, 0)] {
        assert_eq!(admin.run(sqe, &[]).0.status, REQUIRED);
    }
    assert_eq!(answer(&mut admin, rig.server.nqn(), &[1; 32])[..2], [1, 3], "Success1");
    admin.enable();
    let (mut io, _) = connected(&rig, 1, controller);
    let flush = Sqe::new(0, 0, 1);
    assert_eq!(io.run(flush, &[]).0.status, REQUIRED);
    assert_eq!(io.run(Sqe::blocks(1, 0, 0, 1).inside(4096), &common::noise(4096, 1)).0.status, REQUIRED);
    assert!(rig.disk.bytes.read().unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(answer(&mut io, rig.server.nqn(), &[1; 32])[..2], [1, 3]);
    assert_eq!(io.run(flush, &[]).0.status, 0);
    // It may have to do so again, and does.
    assert_eq!(answer(&mut io, rig.server.nqn(), &[1; 32])[..2], [1, 3]);
    assert_eq!(io.run(flush, &[]).0.status, 0);
    // With another secret it is told so, and the queue is over; the others are not.
    let failure = answer(&mut io, rig.server.nqn(), &[2; 32]);
    assert_eq!(failure[..8], [0, 0xF1, 0, 0, 77, 0, 1, 1], "Failure1");
    assert!(io.is_closed());
    assert_eq!(admin.run(Sqe::new(0x18, 0, 0), &[]).0.status, 0);
}

#[test]
fn who_is_not_listed_or_says_nothing_is_not_let_in() {
    let rig = rig(Duration::from_secs(2));
    let mut stranger = Host::dial(rig.address(), Terms::default());
    let data = connect_data(0xFFFF, rig.server.nqn(), "nqn.2020-01.org.other");
    assert_eq!(stranger.connect(0, &data).status, 0x184, "Connect Invalid Host");
    // What there is to connect to is for everybody to know.
    let discovery = stranger.connect(0, &connect_data(0xFFFF, super::host::DISCOVERY, "nqn.2020-01.org.other"));
    assert_eq!((discovery.status, discovery.result >> 16), (0, 0));
    let (mut silent, _) = connected(&rig, 0, 0xFFFF);
    assert!(silent.is_closed());
    // Nor does one that only sends, or asks for what there is not.
    let (mut wrong, _) = connected(&rig, 0, 0xFFFF);
    assert_eq!(send(&mut wrong, &[0; 5000]).status, 0x002);
    assert_eq!(receive(&mut wrong, 4096).1[..8], [0, 0xF1, 0, 0, 0, 0, 1, 7]);
    assert!(wrong.is_closed());
}

#[test]
fn other_machines_may_reach_a_target_whose_hosts_prove_who_they_are() {
    let start = |hosts: Option<Hosts>| {
        let export = common::export(&Disk::new(1).into(), None);
        Server::start(export, Config { hosts, ..Config::at(([0, 0, 0, 0], 0).into()) })
    };
    assert!(start(Some(Hosts::parse(&format!("{HOST} {SECRET}")).unwrap())).is_ok());
    let said = start(None).unwrap_err().to_string();
    assert!(said.contains("--host-keys") && said.contains("--allow-remote"), "{said}");
}
