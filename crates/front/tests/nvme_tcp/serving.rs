//! What a host that behaves gets.

use std::io::{ErrorKind, Read};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use osier_front::nvme_tcp::{Config, ServeError, Server};

use super::common::memory::{Disk, MemoryExport};
use super::common::noise;
use super::host::{C2H_DATA, DISCOVERY, H2C_DATA, HOST, Host, R2T, Sqe, Terms, connect_data, h2c_header, pdu};
use super::{BLOCK, Rig};

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn a_controller_says_what_a_host_over_a_fabric_has_to_know() {
    let rig = Rig::new(1000);
    let (mut admin, controller) = rig.admin();
    let (cqe, _) = admin.run(Sqe::property_get(0, 0x00, true), &[]);
    assert_eq!((cqe.result & 0xFFFF, cqe.result >> 37 & 1), (127, 1), "MQES, and the NVM command set");
    assert_eq!(admin.run(Sqe::property_get(0, 0x08, false), &[]).0.result, 0x0002_0000, "VS");
    let (cqe, page) = admin.run(Sqe::identify(0, 1, 0), &[]);
    assert_eq!((cqe.status, page.len()), (0, 4096));
    assert_eq!(u16_at(&page, 78), controller);
    assert_eq!((page[76], page[111]), (2, 1), "one of several controllers, for I/O");
    assert_eq!((u16_at(&page, 320), u16_at(&page, 514)), (10, 128), "KAS, MAXCMD");
    assert_eq!(u32_at(&page, 536) & 0x30_0003, 0x30_0001, "SGLs by offset, and those of the transport");
    assert_eq!((u32_at(&page, 1792), u32_at(&page, 1796)), ((64 + 8192) / 16, 1), "IOCCSZ, IORCSZ");
    assert_eq!((u16_at(&page, 1800), page[1803]), (0, 1), "ICDOFF, MSDBD");
    assert!(page[768..].starts_with(rig.server.nqn().as_bytes()));
    let (_, page) = admin.run(Sqe::identify(0, 0, 1), &[]);
    assert_eq!((u64_at(&page, 0), page[30] & 1), (1000, 1), "NSZE, and that others share it");
    let (cqe, _) = admin.run(Sqe::new(0x09, 0, 0).dword(10, 0x07).dword(11, 0x00FF_00FF), &[]);
    assert_eq!(cqe.result, 0x0007_0007, "eight queues");
    // A queue is connected, and not created.
    assert_eq!(admin.run(Sqe::new(0x01, 0, 0), &[]).0.status, 0x001);
}

#[test]
fn what_is_written_is_read_whatever_the_digests_the_alignment_and_the_order() {
    for (round, late) in [None, Some(3)].into_iter().enumerate() {
        for alignment in [0, 3, 31] {
            let digests = [(false, false), (true, false), (false, true), (true, true)];
            for (header_digest, data_digest) in digests {
                let rig = Rig::with(Disk::new(512), late, |_| {});
                let terms = Terms { header_digest, data_digest, alignment };
                let (_admin, controller) = Host::admin(rig.address(), terms, rig.server.nqn());
                let mut io = Host::io(rig.address(), terms, 1, controller, rig.server.nqn());
                for (turn, blocks) in [1_u32, 2, 3, 32, 33, 64, 256].into_iter().enumerate() {
                    let data = noise(blocks as usize * BLOCK, turn as u64 + round as u64 * 100);
                    let sqe = Sqe::blocks(1, 0, 7, blocks);
                    let sqe = if blocks <= 2 { sqe.inside(data.len() as u32) } else { sqe.outside(data.len() as u32) };
                    assert_eq!(io.run(sqe, &data).0.status, 0);
                    let (cqe, got) = io.run(Sqe::blocks(2, 0, 7, blocks).outside(data.len() as u32), &[]);
                    assert!(cqe.status == 0 && got == data, "{blocks} blocks");
                    assert!(rig.disk.bytes.read().unwrap()[7 * BLOCK..].starts_with(&data));
                }
            }
        }
    }
}

#[test]
fn commands_of_the_nvm_command_set_do_what_they_say() {
    let rig = Rig::new(400_000);
    let (mut admin, controller) = rig.admin();
    let mut io = rig.io(1, controller);
    let data = noise(3 * BLOCK, 1);
    let (length, range) = (data.len() as u32, |opcode| Sqe::blocks(opcode, 0, 5, 3));
    assert_eq!(io.run(range(1).dword(12, 2 | 1 << 30).outside(length), &data).0.status, 0);
    assert_eq!(rig.disk.fua_writes.load(Ordering::Relaxed), 1);
    assert_eq!(io.run(range(5).outside(length), &data).0.status, 0, "Compare");
    let mut other = data.clone();
    other[2 * BLOCK + 9] ^= 1;
    assert_eq!(io.run(range(5).outside(length), &other).0.status, 0x285);
    assert_eq!(io.run(Sqe::blocks(0x0C, 0, 0, 65536), &[]).0.status, 0, "Verify");
    assert_eq!(io.run(Sqe::new(0, 0, 1), &[]).0.status, 0, "Flush");
    assert_eq!(rig.disk.flushes.load(Ordering::Relaxed), 1);
    assert_eq!(io.run(range(2).dword(12, 2 | 1 << 30).outside(length), &[]).1, data, "a read with FUA");
    assert_eq!(rig.disk.flushes.load(Ordering::Relaxed), 2);
    assert_eq!(io.run(Sqe::blocks(8, 0, 6, 1), &[]).0.status, 0, "Write Zeroes");
    let got = io.run(range(2).outside(length), &[]).1;
    assert!(got[..BLOCK] == data[..BLOCK] && got[BLOCK..2 * BLOCK] == vec![0; BLOCK]);
    // Dataset Management: two ranges, one of them longer than what a volume takes at a time.
    let ranges = |first: (u32, u64), second: (u32, u64)| {
        let range = |(blocks, block): (u32, u64)| [&[0; 4][..], &blocks.to_le_bytes(), &block.to_le_bytes()].concat();
        [range(first), range(second)].concat()
    };
    let list = ranges((1, 5), (390_000, 7));
    let deallocate = Sqe::new(9, 0, 1).dword(10, 1).dword(11, 4).inside(32);
    assert_eq!(io.run(deallocate, &list).0.status, 0);
    assert_eq!(io.run(range(2).outside(length), &[]).1, vec![0; 3 * BLOCK]);
    // With room for more ranges than there are, as Linux has it, and too little.
    let room = [list.clone(), vec![0xFF; 4064]].concat();
    assert_eq!(io.run(deallocate.inside(4096), &room).0.status, 0);
    assert_eq!(io.run(deallocate.inside(16), &list[..16]).0.status, 0x00F);
    assert_eq!(io.run(deallocate, &ranges((1, 0), (1, 400_000))).0.status, 0x080, "beyond the end");
    // Beyond the end; an opcode that is none; a namespace that is not there; lengths that are not the blocks'.
    assert_eq!(io.run(Sqe::blocks(2, 0, 399_999, 2).outside(8192), &[]).0.status, 0x080);
    assert_eq!(io.run(Sqe::new(0x70, 0, 1), &[]).0.status, 0x001);
    assert_eq!(io.run(Sqe::blocks(2, 0, 0, 1).dword(1, 2).outside(4096), &[]).0.status, 0x00B);
    assert_eq!(io.run(Sqe::blocks(2, 0, 0, 1).outside(8192), &[]).0.status, 0x00F);
    assert_eq!(io.run(Sqe::blocks(1, 0, 0, 2).inside(4096), &data[..BLOCK]).0.status, 0x00F);
    // The log of errors has the newest first; the health log counts.
    let (_, page) = admin.run(Sqe::log(0, 1, 64), &[]);
    assert!(u64_at(&page, 0) >= 7 && u16_at(&page, 8) == 1 && u16_at(&page, 12) >> 1 & 0x7FF == 0x00F);
    let (_, page) = admin.run(Sqe::log(0, 2, 512), &[]);
    assert_eq!((u64_at(&page, 64), u64_at(&page, 80)), (3, 1), "reads and writes");
    // Format NVM.
    assert_eq!(io.run(range(1).outside(length), &data).0.status, 0);
    assert_eq!(admin.run(Sqe::new(0x80, 0, 1), &[]).0.status, 0);
    assert_eq!(io.run(range(2).outside(length), &[]).1, vec![0; 3 * BLOCK]);
}

#[test]
fn without_flow_control_a_read_ends_with_its_data() {
    let rig = Rig::new(16);
    let (_admin, controller) = rig.admin();
    let mut io = Host::dial(rig.address(), Terms::default());
    // CATTR, bit 2.
    let connect = Sqe::connect(0, 1, 32, 0).dword(11, 31 | 1 << 18);
    let (cqe, _) = io.run(connect, &connect_data(controller, rig.server.nqn(), HOST));
    assert_eq!((cqe.status, cqe.head), (0, u16::MAX));
    io.submit(Sqe::blocks(2, 9, 0, 1).outside(4096), &[]);
    let pdu = io.receive();
    assert_eq!((pdu.kind, pdu.flags), (C2H_DATA, 4 | 8));
    assert_eq!(io.run(Sqe::new(0, 0, 1), &[]).0.head, u16::MAX);
    // With it, the head goes round.
    let mut io = rig.io(2, controller);
    for turn in 0..70 {
        assert_eq!(io.run(Sqe::new(0, 0, 1), &[]).0.head, (2 + turn) % 32);
    }
}

/// Several commands at a time, their data interleaved.
#[test]
fn data_of_several_commands_come_in_any_order() {
    let rig = Rig::new(64);
    let (_admin, controller) = rig.admin();
    let mut io = rig.io(1, controller);
    let data: Vec<Vec<u8>> = (0..4).map(|seed| noise(4 * BLOCK, seed)).collect();
    let mut tags = [0; 4];
    for cid in 0..4 {
        io.submit(Sqe::blocks(1, cid, u64::from(cid) * 4, 4).outside(4 * BLOCK as u32), &[]);
    }
    for _ in 0..4 {
        let pdu = io.receive();
        assert_eq!((pdu.kind, pdu.dword(12), pdu.dword(16)), (R2T, 0, 4 * BLOCK as u32));
        tags[usize::from(pdu.word(8))] = pdu.word(10);
    }
    for part in 0..4 {
        for cid in [2, 0, 3, 1] {
            let from = part * BLOCK;
            let header = h2c_header(cid, tags[usize::from(cid)], from as u32, BLOCK as u32);
            let flags = if part == 3 { 4 } else { 0 };
            let bytes = pdu(Terms::default(), H2C_DATA, flags, &header, &data[usize::from(cid)][from..from + BLOCK]);
            io.send(&bytes);
        }
    }
    let mut ended: Vec<u16> = (0..4).map(|_| io.completion()).map(|cqe| cqe.cid).collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 3]);
    assert_eq!(rig.disk.bytes.read().unwrap()[..16 * BLOCK], data.concat());
}

/// Nothing but the sending of one command's data makes room for the next's.
#[test]
fn commands_that_wait_for_room_go_on_when_it_is_there() {
    const BLOCKS: u32 = 256;
    let rig = Rig::with(Disk::new(1024), None, |config| config.limits.buffered_bytes_max = 1 << 20);
    let (_admin, controller) = rig.admin();
    let mut io = rig.io(1, controller);
    for cid in 0..6 {
        io.submit(Sqe::blocks(2, cid, 0, BLOCKS).outside(BLOCKS * BLOCK as u32), &[]);
    }
    for cid in 0..6 {
        let pdu = io.receive();
        assert_eq!((pdu.kind, pdu.word(8), pdu.data.len()), (C2H_DATA, cid, 1 << 20));
        assert_eq!(io.completion().cid, cid);
    }
}

#[test]
fn discovery_names_the_subsystem_where_the_host_found_it() {
    let rig = Rig::new(1);
    let (mut admin, _) = Host::admin(rig.address(), Terms::default(), DISCOVERY);
    let (_, page) = admin.run(Sqe::identify(0, 1, 0), &[]);
    assert_eq!((page[111], u32_at(&page, 516)), (2, 0), "a discovery controller");
    assert!(page[768..].starts_with(DISCOVERY.as_bytes()));
    let (_, head) = admin.run(Sqe::log(0, 0x70, 16), &[]);
    assert_eq!(u64_at(&head, 8), 2, "NUMREC");
    let (cqe, page) = admin.run(Sqe::log(0, 0x70, 3072), &[]);
    assert_eq!(cqe.status, 0);
    let entry = &page[1024..2048];
    assert_eq!(entry[..3], [3, 1, 2], "TCP, IPv4, an NVM subsystem");
    assert_eq!(u16_at(entry, 6), 0xFFFF);
    let text = |from: usize, to: usize| String::from_utf8(entry[from..to].to_vec()).unwrap().trim_end().to_owned();
    assert_eq!(text(32, 64), rig.address().port().to_string());
    assert_eq!(text(512, 768), "127.0.0.1");
    assert!(entry[256..].starts_with(rig.server.nqn().as_bytes()) && entry[256 + rig.server.nqn().len()] == 0);
    assert_eq!(page[2048 + 2], 3, "itself");
    // It has nothing else.
    assert_eq!(admin.run(Sqe::log(0, 2, 512), &[]).0.status, 0x109);
    assert_eq!(admin.run(Sqe::identify(0, 0, 1), &[]).0.status, 0x002);
    assert_eq!(admin.run(Sqe::new(0x80, 0, 1), &[]).0.status, 0x001);
    let (mut other, _) = rig.admin();
    assert_eq!(other.run(Sqe::log(0, 0x70, 1024), &[]).0.status, 0x109, "and others do not have that");
}

#[test]
fn a_connection_is_a_queue_only_of_a_controller_of_its_host() {
    let rig = Rig::new(1);
    let name = rig.server.nqn().to_owned();
    let (_admin, controller) = rig.admin();
    let refused = |sqe: Sqe, data: Vec<u8>| {
        let mut host = Host::dial(rig.address(), Terms::default());
        let cqe = host.run(sqe, &data).0;
        (cqe.status, cqe.result)
    };
    let admin = |entries| Sqe::connect(0, 0, entries, 0);
    let (data, io) = (1 << 16, |qid| Sqe::connect(0, qid, 32, 0));
    assert_eq!(refused(admin(32), connect_data(0xFFFF, "nqn.2020-01.org.example", HOST)), (0x182, data | 256));
    assert_eq!(refused(admin(32), connect_data(0xFFFF, &name, "")), (0x182, data | 512));
    assert_eq!(refused(admin(32), connect_data(1, &name, HOST)), (0x182, data | 16));
    assert_eq!(refused(admin(129), connect_data(0xFFFF, &name, HOST)), (0x182, 44));
    assert_eq!(refused(admin(1), connect_data(0xFFFF, &name, HOST)), (0x182, 44));
    assert_eq!(refused(admin(32).dword(10, 1), connect_data(0xFFFF, &name, HOST)).0, 0x180, "RECFMT");
    assert_eq!(refused(io(1), connect_data(controller + 7, &name, HOST)), (0x182, data | 16));
    assert_eq!(refused(io(9), connect_data(controller, &name, HOST)), (0x182, 42));
    assert_eq!(refused(io(1), connect_data(controller, &name, "nqn.2020-01.org.other")), (0x182, data | 512));
    assert_eq!(refused(io(1), connect_data(controller, DISCOVERY, HOST)), (0x182, data | 256));
    let mut stranger = connect_data(controller, &name, HOST);
    stranger[3] ^= 1;
    assert_eq!(refused(io(1), stranger), (0x182, data), "HOSTID");
    assert_eq!(refused(Sqe::connect(0, 1, 32, 0).inside(512), vec![0; 512]).0, 0x00F);
    // Nothing but Connect comes first, and none comes twice; nor is a queue two connections.
    assert_eq!(refused(Sqe::identify(0, 1, 0), Vec::new()).0, 0x00C);
    let mut first = rig.io(1, controller);
    assert_eq!(refused(io(1), connect_data(controller, &name, HOST)), (0x182, 42));
    assert_eq!(first.run(io(1), &connect_data(controller, &name, HOST)).0.status, 0x00C);
    // A controller that is not enabled has no queues, and no commands but those of the fabric.
    let mut other = Host::dial(rig.address(), Terms::default());
    let cqe = other.connect(0, &connect_data(0xFFFF, &name, HOST));
    assert_eq!(refused(io(1), connect_data(cqe.result as u16, &name, HOST)).0, 0x00C);
    assert_eq!(other.run(Sqe::identify(0, 1, 0), &[]).0.status, 0x00C);
    other.enable();
    assert_eq!(other.run(Sqe::identify(0, 1, 0), &[]).0.status, 0);
    // Properties are the admin queue's.
    assert_eq!(first.run(Sqe::property_get(0, 0x1C, false), &[]).0.status, 0x002);
    assert_eq!(other.run(Sqe::property_get(0, 0x20, false), &[]).0.status, 0x002);
    assert_eq!(other.run(Sqe::property_get(0, 0x00, false), &[]).0.status, 0x002, "CAP has eight bytes");
}

#[test]
fn a_queue_disconnects_and_another_connection_takes_its_number() {
    let rig = Rig::new(1);
    let (_admin, controller) = rig.admin();
    for _ in 0..3 {
        let mut io = rig.io(1, controller);
        assert_eq!(io.run(Sqe::fabrics(8, 0), &[]).0.status, 0);
        assert!(io.is_closed());
    }
    // As it does when the connection is simply gone.
    drop(rig.io(1, controller));
    let _io = rig.io(2, controller);
}

#[test]
fn a_controller_that_is_disabled_loses_its_queues_and_one_that_is_shut_down_is_flushed() {
    let rig = Rig::with(Disk::new(1), Some(5), |_| {});
    let (mut admin, controller) = rig.admin();
    let mut io = rig.io(1, controller);
    admin.submit(Sqe::new(0x0C, 77, 0), &[]);
    admin.submit(Sqe::property_set(78, 0x14, 0x0046_0000), &[]);
    let ended = [admin.completion(), admin.completion()].map(|cqe| (cqe.cid, cqe.status));
    assert_eq!(ended, [(78, 0), (77, 0x007)]);
    assert!(io.is_closed());
    assert_eq!(admin.run(Sqe::property_get(0, 0x1C, false), &[]).0.result, 0);
    admin.enable();
    let mut io = rig.io(1, controller);
    assert_eq!(io.run(Sqe::new(0, 0, 1), &[]).0.status, 0);
    let flushes = rig.disk.flushes.load(Ordering::Relaxed);
    assert_eq!(admin.run(Sqe::property_set(0, 0x14, 0x0046_4001), &[]).0.status, 0);
    let until = Instant::now() + Duration::from_secs(60);
    while admin.run(Sqe::property_get(0, 0x1C, false), &[]).0.result & 0xC != 0x8 {
        assert!(Instant::now() < until, "CSTS.SHST");
    }
    assert_eq!(rig.disk.flushes.load(Ordering::Relaxed), flushes + 1);
    // Again and again, without waiting for it.
    for turn in 0..20 {
        for (cid, value) in [(200 + turn, 0x0046_0001), (300 + turn, 0x0046_4001)] {
            admin.submit(Sqe::property_set(cid, 0x14, value), &[]);
        }
        assert_eq!([admin.completion().status, admin.completion().status], [0, 0]);
    }
    assert_eq!(admin.run(Sqe::new(0x18, 0, 0), &[]).0.status, 0);
    // With its admin queue all of it goes.
    drop(admin);
    assert!(io.is_closed());
}

#[test]
fn a_host_that_says_nothing_for_as_long_as_it_said_loses_its_controller_and_no_other_does() {
    let rig = Rig::new(1);
    let name = rig.server.nqn().to_owned();
    let connect = |keep_alive_ms| {
        let mut host = Host::dial(rig.address(), Terms::default());
        let (cqe, _) = host.run(Sqe::connect(0, 0, 32, keep_alive_ms), &connect_data(0xFFFF, &name, HOST));
        assert_eq!(cqe.status, 0);
        host.enable();
        (host, cqe.result as u16)
    };
    let (mut silent, controller) = connect(700);
    let mut io = rig.io(1, controller);
    let (mut talks, _) = connect(1000);
    let (mut patient, _) = connect(0);
    // A tenth of a second at a time, in which others say that they are there.
    let until = Instant::now() + Duration::from_secs(60);
    silent.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    while silent.stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
        assert_eq!(talks.run(Sqe::new(0x18, 0, 0), &[]).0.status, 0, "Keep Alive");
        assert!(Instant::now() < until, "it keeps its controller");
    }
    assert!(silent.is_closed() && io.is_closed());
    assert_eq!(talks.run(Sqe::new(0x18, 0, 0), &[]).0.status, 0);
    assert_eq!(patient.run(Sqe::new(0x18, 0, 0), &[]).0.status, 0);
}

#[test]
fn event_requests_are_held_and_aborted() {
    let rig = Rig::new(1);
    let (mut admin, _) = rig.admin();
    for cid in 100..104 {
        admin.submit(Sqe::new(0x0C, cid, 0), &[]);
    }
    assert_eq!(admin.run(Sqe::new(0x0C, 0, 0), &[]).0.status, 0x105, "more than are held");
    admin.submit(Sqe::new(0x08, 90, 0).dword(10, 102 << 16), &[]);
    let ended = [admin.completion(), admin.completion()].map(|cqe| (cqe.cid, cqe.status, cqe.result));
    assert_eq!(ended, [(102, 0x007, 0), (90, 0, 0)]);
    assert_eq!(admin.run(Sqe::new(0x08, 0, 0).dword(10, 5 << 16), &[]).0.result, 1, "there is none such");
}

#[test]
fn where_it_listens_and_what_it_is_called_have_to_be_possible() {
    let start = |config: Config| {
        let disk = std::sync::Arc::new(Disk::new(1));
        Server::start(std::sync::Arc::new(MemoryExport::new("memory", &disk)), config)
    };
    let anywhere = || Config::at(([0, 0, 0, 0], 0).into());
    let refused = start(anywhere()).unwrap_err().to_string();
    assert!(refused.contains("other machines reach") && refused.contains("--allow-remote"), "{refused}");
    assert!(start(Config { allow_remote: true, ..anywhere() }).is_ok());
    for name in ["", "mine", DISCOVERY, "nqn.2020-01.org.ex ample"] {
        let config = Config { nqn: Some(name.to_owned()), ..Config::at(([127, 0, 0, 1], 0).into()) };
        assert!(matches!(start(config), Err(ServeError::Name(_))), "{name:?}");
    }
    let rig = Rig::with(Disk::new(1), None, |config| config.nqn = Some("nqn.2020-01.org.example:d".to_owned()));
    Host::admin(rig.address(), Terms::default(), "nqn.2020-01.org.example:d");
}
