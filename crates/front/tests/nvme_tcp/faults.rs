//! What a host that breaks the protocol gets, and that nobody else notices.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use super::common::noise;
use super::host::{CAPSULE, H2C_DATA, H2C_TERM, HOST, Host, R2T, Sqe, Terms, connect_data, h2c_header, ic_req, pdu};
use super::{BLOCK, Rig};

const PLAIN: Terms = Terms { header_digest: false, data_digest: false, alignment: 0 };

/// FES and FEI that answer these bytes on a connection for I/O; another queue works before and after.
fn answer(rig: &Rig, terms: Terms, bytes: impl FnOnce(&mut Host) -> Vec<u8>) -> (u16, u32) {
    let (_admin, controller) = Host::admin(rig.address(), terms, rig.server.nqn());
    let mut other = Host::io(rig.address(), terms, 1, controller, rig.server.nqn());
    let mut io = Host::io(rig.address(), terms, 2, controller, rig.server.nqn());
    let bytes = bytes(&mut io);
    io.send(&bytes);
    let answer = io.terminated();
    assert_eq!(other.run(Sqe::new(0, 0, 1), &[]).0.status, 0);
    answer
}

/// A flush's capsule with some bytes of its header changed.
fn changed(changes: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = pdu(PLAIN, CAPSULE, 0, &Sqe::new(0, 1, 1).0, &[]);
    changes.iter().for_each(|(at, value)| bytes[*at] = *value);
    bytes
}

#[test]
fn a_header_that_is_none_ends_the_connection_and_says_where() {
    let rig = Rig::new(64);
    for (changes, expected) in [
        (&[(0, 5)][..], (1, 0)),
        (&[(0, 0x55)], (1, 0)),
        (&[(0, 0)], (2, 0)),
        (&[(1, 1)], (1, 1)),
        (&[(2, 71)], (1, 2)),
        (&[(4, 71)], (1, 4)),
        (&[(4, 80), (3, 70)], (1, 3)),
        (&[(4, 80), (3, 73)], (1, 3)),
        (&[(4, 80), (3, 200)], (1, 4)),
        (&[(4, 80), (3, 72), (1, 2)], (1, 1)),
        (&[(4, 0xFF), (5, 0xFF), (6, 0xFF), (7, 0xFF), (3, 72)], (5, 0)),
        (&[(4, 76), (5, 0x20), (3, 72)], (5, 0)),
    ] {
        assert_eq!(answer(&rig, PLAIN, |_| changed(changes)), expected, "{changes:?}");
    }
}

#[test]
fn the_first_pdu_is_one_that_asks_for_a_connection_of_this_version() {
    let rig = Rig::new(1);
    let first = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(rig.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(bytes).unwrap();
        Host { stream, terms: PLAIN, next: 0 }.terminated()
    };
    let with = |at: usize, value: u8| {
        let mut bytes = ic_req(PLAIN);
        bytes[at] = value;
        bytes
    };
    assert_eq!(first(&changed(&[])), (2, 0), "a command");
    assert_eq!(first(&with(8, 1)), (6, 8), "PFV");
    assert_eq!(first(&with(10, 32)), (1, 10), "HPDA");
    assert_eq!(first(&with(4, 127)), (1, 4));
    assert_eq!(first(b"GET / HTTP/1.1\r\n\r\n"), (1, 0));
}

#[test]
fn a_wrong_digest_of_a_header_ends_the_connection_and_one_of_data_the_command() {
    let rig = Rig::new(64);
    let terms = Terms { header_digest: true, data_digest: true, alignment: 0 };
    let (fes, fei) = answer(&rig, terms, |_| {
        let mut bytes = pdu(terms, CAPSULE, 0, &Sqe::new(0, 1, 1).0, &[]);
        bytes[72..76].copy_from_slice(&[1, 2, 3, 4]);
        bytes
    });
    assert_eq!((fes, fei), (3, 0x0403_0201), "the digest that came");
    assert_eq!(answer(&rig, terms, |_| pdu(PLAIN, CAPSULE, 0, &Sqe::new(0, 1, 1).0, &[])), (1, 1), "no digest");

    let (_admin, controller) = Host::admin(rig.address(), terms, rig.server.nqn());
    let mut io = Host::io(rig.address(), terms, 1, controller, rig.server.nqn());
    let data = noise(2 * BLOCK, 1);
    let mut bytes = pdu(terms, CAPSULE, 0, &Sqe::blocks(1, 5, 0, 1).inside(4096).0, &data[..BLOCK]);
    *bytes.last_mut().unwrap() ^= 1;
    io.send(&bytes);
    let cqe = io.completion();
    assert_eq!((cqe.cid, cqe.status), (5, 0x022), "Transient Transport Error");
    io.submit(Sqe::blocks(1, 6, 0, 2).outside(8192), &[]);
    let r2t = io.receive();
    assert_eq!(r2t.kind, R2T);
    let mut first = pdu(terms, H2C_DATA, 0, &h2c_header(6, r2t.word(10), 0, 4096), &data[..BLOCK]);
    first[30] ^= 0x80;
    io.send(&first);
    let second = pdu(terms, H2C_DATA, 4, &h2c_header(6, r2t.word(10), 4096, 4096), &data[BLOCK..]);
    io.send(&second);
    let cqe = io.completion();
    assert_eq!((cqe.cid, cqe.status), (6, 0x022));
    assert!(rig.disk.bytes.read().unwrap().iter().all(|byte| *byte == 0), "nothing of it is written");
    assert_eq!(io.run(Sqe::blocks(1, 0, 0, 2).outside(8192), &data).0.status, 0, "the queue goes on");
}

#[test]
fn data_that_were_not_asked_for_end_the_connection() {
    let rig = Rig::new(64);
    let asked = |io: &mut Host| {
        io.submit(Sqe::blocks(1, 3, 0, 2).outside(8192), &[]);
        let r2t = io.receive();
        assert_eq!((r2t.kind, r2t.dword(16)), (R2T, 8192));
        r2t.word(10)
    };
    let data = |flags, header: Vec<u8>, bytes: usize| pdu(PLAIN, H2C_DATA, flags, &header, &vec![0; bytes]);
    let all = |tag| h2c_header(3, tag, 0, 8192);
    assert_eq!(answer(&rig, PLAIN, |io| data(4, h2c_header(4, asked(io), 0, 8192), 8192)), (1, 8), "CCCID");
    assert_eq!(answer(&rig, PLAIN, |io| data(4, all(asked(io).wrapping_add(1)), 8192)), (1, 10), "TTAG");
    assert_eq!(answer(&rig, PLAIN, |io| data(4, h2c_header(3, asked(io), 0, 8188), 8192)), (1, 16), "DATAL");
    assert_eq!(answer(&rig, PLAIN, |io| data(4, h2c_header(3, asked(io), 4096, 4096), 4096)), (4, 0), "DATAO");
    assert_eq!(answer(&rig, PLAIN, |io| data(4, h2c_header(3, asked(io), 0, 12288), 12288)), (4, 0), "too many");
    assert_eq!(answer(&rig, PLAIN, |io| data(0, all(asked(io)), 8192)), (1, 1), "not the last");
    assert_eq!(answer(&rig, PLAIN, |_| data(4, all(0), 8192)), (1, 8), "nothing was asked for");
    // The same again, when the command has ended.
    let again = |io: &mut Host| {
        let tag = asked(io);
        let bytes = data(4, all(tag), 8192);
        io.send(&bytes);
        assert_eq!(io.completion().cid, 3);
        bytes
    };
    assert_eq!(answer(&rig, PLAIN, again), (1, 8));
}

#[test]
fn a_command_that_is_wrong_ends_with_a_status_and_its_data_are_skipped() {
    let rig = Rig::new(64);
    let (_admin, controller) = rig.admin();
    let mut io = rig.io(1, controller);
    let data = noise(8192, 1);
    let write = Sqe::blocks(1, 0, 0, 2);
    let with = |at: usize, value: u8| {
        let mut sqe = write.inside(8192);
        sqe.0[at] = value;
        sqe.0
    };
    // No SGL; an offset; a descriptor of another kind; more than the capsule has; two megabytes.
    let mut cases = vec![(with(1, 0), 0x002), (with(24, 8), 0x016), (with(39, 0x20), 0x011), (with(39, 0x40), 0x011)];
    cases.push((write.inside(12288).0, 0x00F));
    cases.push((write.outside(2 << 20).0, 0x002));
    cases.push((Sqe::blocks(2, 0, 0, 2).inside(8192).0, 0x011));
    for (cid, (mut sqe, expected)) in (10..).zip(cases) {
        sqe[2..4].copy_from_slice(&u16::to_le_bytes(cid));
        let bytes = pdu(PLAIN, CAPSULE, 0, &sqe, &data);
        io.send(&bytes);
        let cqe = io.completion();
        assert_eq!((cqe.cid, cqe.status), (cid, expected));
    }
    // One identifier twice: the second ends, and the first goes on.
    io.submit(Sqe::blocks(1, 40, 0, 3).outside(12288), &[]);
    let r2t = io.receive();
    io.submit(Sqe::new(0, 40, 1), &[]);
    assert_eq!((io.completion().status, r2t.kind), (0x003, R2T));
    io.give(40, r2t.word(10), &noise(12288, 3), 5000);
    assert_eq!(io.completion().status, 0);
    assert_eq!(io.run(Sqe::blocks(1, 0, 0, 2).inside(8192), &data).0.status, 0);
}

#[test]
fn more_commands_than_a_queue_has_entries_end_the_connection() {
    let rig = Rig::new(64);
    let expected = answer(&rig, PLAIN, |io| {
        let bytes: Vec<Vec<u8>> =
            (0..33).map(|cid| pdu(PLAIN, CAPSULE, 0, &Sqe::blocks(1, cid, 0, 2).outside(8192).0, &[])).collect();
        io.stream.set_nodelay(true).unwrap();
        bytes.concat()
    });
    assert_eq!(expected, (2, 0));
}

#[test]
fn a_host_that_ends_the_connection_by_a_pdu_is_let_go() {
    let rig = Rig::new(1);
    let (mut admin, controller) = rig.admin();
    let mut io = rig.io(1, controller);
    let bytes = pdu(PLAIN, H2C_TERM, 0, &[&6_u16.to_le_bytes()[..], &[0; 14]].concat(), &[]);
    io.send(&bytes);
    assert!(io.is_closed());
    assert_eq!(admin.run(Sqe::new(0x18, 0, 0), &[]).0.status, 0);
}

#[test]
fn connections_are_bounded_and_one_too_many_is_told_so() {
    let rig = Rig::with(super::Disk::new(1), None, |config| config.connections_max = 2);
    let (mut admin, controller) = rig.admin();
    let _io = rig.io(1, controller);
    let mut third = Host::dial(rig.address(), PLAIN);
    let cqe = third.connect(2, &connect_data(controller, rig.server.nqn(), HOST));
    assert_eq!(cqe.status, 0x181, "busy");
    assert_eq!(admin.run(Sqe::new(0x18, 0, 0), &[]).0.status, 0);
}

#[test]
fn who_never_says_what_it_wants_is_let_go() {
    let rig = Rig::with(super::Disk::new(1), None, |config| config.negotiation = Duration::from_millis(200));
    let mut stream = TcpStream::connect(rig.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&ic_req(PLAIN)[..100]).unwrap();
    assert!(Host { stream, terms: PLAIN, next: 0 }.is_closed());
}
