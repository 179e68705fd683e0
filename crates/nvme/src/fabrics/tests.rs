//! Hosts that draw what they do, and a second account of what a target's controllers and connections are: plain lists,
//! without numbers that are looked up.

use super::*;
use crate::command::admin;
use crate::controller::Reach;
use crate::registers::CC_ENTRIES;
use crate::status::{CONNECT_BUSY, CONNECT_INVALID_HOST, INVALID_NAMESPACE};

const NQN: &str = "nqn.2020-01.org.example:d";
const CONTROLLERS_MAX: usize = 4;
const QUEUES_MAX: u16 = 3;

fn target() -> Target {
    target_for(None)
}

fn target_for(hosts: Option<Hosts>) -> Target {
    let identity = Identity {
        serial: "1".into(),
        model: "test".into(),
        firmware: "1".into(),
        subsystem: NQN.into(),
        controller: 0,
        volatile_cache: true,
        warning_kelvin: 0,
        critical_kelvin: 0,
        reach: Reach::Fabric,
        io_queues_max: QUEUES_MAX,
    };
    let namespace =
        Namespace { nsid: 1, blocks: 8, used_blocks: 8, is_thin: false, is_read_only: false, nguid: [1; 16] };
    Target::new(Subsystem { identity, namespaces: vec![namespace], controllers_max: CONTROLLERS_MAX, hosts })
}

fn data(controller: u16, host: u8, is_discovery: bool) -> ConnectData {
    let subsystem = if is_discovery { DISCOVERY_NQN } else { NQN }.to_owned();
    ConnectData { host_id: [host; 16], controller, subsystem, host: format!("nqn.2020-01.org.example:host{host}") }
}

fn portal() -> Portal {
    Portal { address: "127.0.0.1".to_owned(), is_ipv6: false, port: 4420 }
}

fn fabrics(kind: u8, cdw: [u32; 6]) -> Command {
    Command { cdw, ..Command::new(fabrics::OPCODE, u32::from(kind)) }
}

fn connect(qid: u16, keep_alive_ms: u32) -> Command {
    fabrics(fabrics::CONNECT, [u32::from(qid) << 16, 31, keep_alive_ms, 0, 0, 0])
}

fn set(value: u32) -> Command {
    fabrics(fabrics::PROPERTY_SET, [0, CC as u32, value, 0, 0, 0])
}

/// A connection, as the model knows it.
#[derive(Debug)]
struct Line {
    number: u64,
    host: u8,
    place: Place,
    /// It is a queue of a controller that lives.
    is_queue: bool,
}

/// A controller, as the model knows it.
#[derive(Debug)]
struct Model {
    number: u16,
    host: u8,
    is_discovery: bool,
    is_enabled: bool,
    keep_alive_ms: u64,
    heard_ms: u64,
}

struct World {
    target: Target,
    lines: Vec<Line>,
    controllers: Vec<Model>,
    next: u64,
    now_ms: u64,
    random: u64,
}

impl World {
    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) % below
    }

    fn step(&mut self) {
        match self.draw(16) {
            0 | 1 => self.connect_admin(),
            2..=7 => self.connect_io(),
            8..=10 => self.leave(),
            11 | 12 => self.set(),
            13 => self.disconnect(),
            14 => self.talk(),
            _ => self.wait(),
        }
        let alive: Vec<u64> =
            self.lines.iter().filter(|line| self.target.is_alive(line.place)).map(|line| line.number).collect();
        let expected: Vec<u64> = self.lines.iter().filter(|line| line.is_queue).map(|line| line.number).collect();
        assert_eq!(alive, expected);
        assert_eq!(self.target.controllers(), self.controllers.len());
        let over = |it: &Model| match it.keep_alive_ms {
            0 if it.is_discovery => Some(it.heard_ms + 120_000),
            0 => None,
            wanted => Some(it.heard_ms + wanted.div_ceil(1000) * 1000),
        };
        assert_eq!(self.target.next_expiry_ms(), self.controllers.iter().filter_map(over).min());
    }

    /// Connections that are closed are queues no more, and stay until they leave.
    fn closed(&mut self, closed: &[u64], expected: impl Fn(&Line) -> bool) {
        let mut lines: Vec<u64> =
            self.lines.iter().filter(|line| line.is_queue && expected(line)).map(|line| line.number).collect();
        let mut closed = closed.to_vec();
        lines.sort_unstable();
        closed.sort_unstable();
        assert_eq!(closed, lines);
        self.lines.iter_mut().filter(|line| closed.contains(&line.number)).for_each(|line| line.is_queue = false);
    }

    fn connect_admin(&mut self) {
        let (host, is_discovery) = (self.draw(2) as u8, self.draw(4) == 0);
        let keep_alive_ms = [0, 0, 0, 500, 1000, 3300][self.draw(6) as usize];
        self.next += 1;
        let (command, data) = (connect(0, keep_alive_ms as u32), data(0xFFFF, host, is_discovery));
        let outcome = self.target.connect(self.next, &command, &data, &portal(), self.now_ms);
        let is_leaving = self.lines.iter().any(|line| line.host == host && !line.is_queue);
        if is_leaving || self.controllers.len() == CONTROLLERS_MAX {
            assert_eq!(outcome.unwrap_err().status, CONNECT_BUSY);
            return;
        }
        let place = outcome.unwrap().place;
        assert!(self.controllers.iter().all(|it| it.number != place.controller) && place.controller > 0);
        self.lines.push(Line { number: self.next, host, place, is_queue: true });
        self.controllers.push(Model {
            number: place.controller,
            host,
            is_discovery,
            is_enabled: false,
            keep_alive_ms,
            heard_ms: self.now_ms,
        });
    }

    fn connect_io(&mut self) {
        let (host, qid) = (self.draw(2) as u8, 1 + self.draw(u64::from(QUEUES_MAX) + 1) as u16);
        let index = self.draw(CONTROLLERS_MAX as u64) as usize;
        let number = self.controllers.get(index).map_or(0xFF00, |it| it.number);
        self.next += 1;
        let outcome =
            self.target.connect(self.next, &connect(qid, 0), &data(number, host, false), &portal(), self.now_ms);
        let is_leaving = self.lines.iter().any(|line| line.host == host && !line.is_queue);
        let is_taken = |line: &Line| line.is_queue && (line.place.controller, line.place.qid) == (number, qid);
        let expected = match self.controllers.get(index) {
            _ if is_leaving => Some(CONNECT_BUSY),
            None => Some(CONNECT_INVALID_PARAMETERS),
            Some(it) if it.host != host || it.is_discovery => Some(CONNECT_INVALID_PARAMETERS),
            Some(_) if qid > QUEUES_MAX || self.lines.iter().any(is_taken) => Some(CONNECT_INVALID_PARAMETERS),
            Some(it) if !it.is_enabled => Some(COMMAND_SEQUENCE_ERROR),
            Some(_) => None,
        };
        match outcome {
            Ok(Connected { place, .. }) => {
                assert_eq!(expected, None);
                self.lines.push(Line { number: self.next, host, place, is_queue: true });
            }
            Err(refused) => assert_eq!(Some(refused.status), expected),
        }
    }

    fn pick(&mut self) -> Option<usize> {
        let count = self.lines.len() as u64;
        (count > 0).then(|| self.draw(count) as usize)
    }

    fn leave(&mut self) {
        // Those that are closed leave soon.
        let closed = self.lines.iter().position(|line| !line.is_queue);
        let Some(index) = closed.or_else(|| self.pick()) else { return };
        let Line { number, place, is_queue, .. } = self.lines.remove(index);
        let closed = self.target.leave(number, Some(place));
        let is_controller = is_queue && place.qid == 0;
        if is_controller {
            self.controllers.retain(|it| it.number != place.controller);
        }
        self.closed(&closed, |line| is_controller && line.place.controller == place.controller);
    }

    fn set(&mut self) {
        let Some(index) = self.pick() else { return };
        let Line { place, is_queue, .. } = self.lines[index];
        let enable = self.draw(4) > 0;
        let command = set(if enable { CC_ENTRIES | CC_EN } else { CC_ENTRIES });
        let outcome = self.target.fabrics(place, &command, self.now_ms);
        if !is_queue {
            assert_eq!(outcome, Err(COMMAND_SEQUENCE_ERROR));
            return;
        }
        if place.qid > 0 {
            assert_eq!(outcome, Err(Status::INVALID_FIELD));
            return;
        }
        let now_ms = self.now_ms;
        let it = self.controllers.iter_mut().find(|it| it.number == place.controller).unwrap();
        it.heard_ms = now_ms;
        let was_enabled = std::mem::replace(&mut it.is_enabled, enable);
        let Answer::Done { result: 0, change } = outcome.unwrap() else { panic!("it is done") };
        match change {
            Change::None => assert_eq!(was_enabled, enable),
            Change::Reset { close, events } => {
                assert!(was_enabled != enable && events.is_empty());
                self.closed(&close, |line| {
                    was_enabled && line.place.controller == place.controller && line.place.qid > 0
                });
            }
            Change::ShutDown => panic!("nobody wanted that"),
        }
    }

    fn disconnect(&mut self) {
        let Some(index) = self.pick() else { return };
        let (place, now_ms) = (self.lines[index].place, self.now_ms);
        let outcome = self.target.fabrics(place, &fabrics(fabrics::DISCONNECT, [0; 6]), now_ms);
        if !self.lines[index].is_queue {
            assert_eq!(outcome, Err(COMMAND_SEQUENCE_ERROR));
        } else if place.qid == 0 {
            assert_eq!(outcome, Err(Status::INVALID_FIELD));
            self.controllers.iter_mut().filter(|it| it.number == place.controller).for_each(|it| it.heard_ms = now_ms);
        } else {
            assert_eq!(outcome, Ok(Answer::Disconnected));
            self.lines[index].is_queue = false;
        }
    }

    fn talk(&mut self) {
        let Some(index) = self.pick() else { return };
        let Line { place, is_queue, .. } = self.lines[index];
        let now_ms = self.now_ms;
        if place.qid > 0 {
            let outcome = self.target.io(place, &Command::new(crate::nvm::FLUSH, 1));
            assert_eq!(outcome, if is_queue { Ok(Io::Flush) } else { Err(COMMAND_SEQUENCE_ERROR) });
            return;
        }
        let outcome = self.target.admin(place, &Command::new(admin::KEEP_ALIVE, 0), &Health::default(), now_ms);
        let it = self.controllers.iter_mut().find(|it| is_queue && it.number == place.controller);
        assert_eq!(outcome.is_ok(), it.as_ref().is_some_and(|it| it.is_enabled));
        it.into_iter().for_each(|it| it.heard_ms = now_ms);
    }

    fn wait(&mut self) {
        self.now_ms += self.draw(2500);
        let closed = self.target.expire(self.now_ms);
        let now_ms = self.now_ms;
        let is_over = |it: &Model| {
            it.keep_alive_ms > 0 && it.heard_ms + it.keep_alive_ms.div_ceil(1000) * 1000 <= now_ms
                || it.keep_alive_ms == 0 && it.is_discovery && it.heard_ms + 120_000 <= now_ms
        };
        let over: Vec<u16> = self.controllers.iter().filter(|it| is_over(it)).map(|it| it.number).collect();
        self.controllers.retain(|it| !over.contains(&it.number));
        self.closed(&closed, |line| over.contains(&line.place.controller));
    }
}

#[test]
fn controllers_and_their_queues_are_what_a_second_account_says() {
    let (mut most, mut queues) = (0, 0);
    for seed in 0..2000 {
        let (target, lines, controllers) = (target(), Vec::new(), Vec::new());
        let mut world = World { target, lines, controllers, next: 0, now_ms: 0, random: seed };
        for _ in 0..120 {
            world.step();
            most = most.max(world.controllers.len());
            queues = queues.max(world.lines.iter().filter(|line| line.is_queue && line.place.qid > 0).count());
        }
    }
    assert!(most == CONTROLLERS_MAX && queues >= 4, "{most} {queues}");
}

#[test]
fn a_number_is_not_given_again_soon() {
    let mut target = target();
    let mut numbers = Vec::new();
    for connection in 0..100 {
        let data = data(0xFFFF, 1, false);
        let place = target.connect(connection, &connect(0, 0), &data, &portal(), 0).unwrap().place;
        numbers.push(place.controller);
        assert!(target.leave(connection, Some(place)).is_empty());
    }
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count);
}

#[test]
fn a_shut_down_is_over_when_all_is_persistent_and_a_configuration_that_cannot_be_is_fatal() {
    let mut target = target();
    let place = target.connect(1, &connect(0, 0), &data(0xFFFF, 1, false), &portal(), 0).unwrap().place;
    let status = |target: &mut Target| {
        let get = fabrics(fabrics::PROPERTY_GET, [0, CSTS as u32, 0, 0, 0, 0]);
        match target.fabrics(place, &get, 0).unwrap() {
            Answer::Done { result, .. } => result as u32,
            Answer::Disconnected => panic!("it is an admin queue"),
        }
    };
    target.fabrics(place, &set(CC_ENTRIES | CC_EN | 1 << 7), 0).unwrap();
    assert_eq!(status(&mut target), CSTS_CFS, "pages of 8 KiB");
    target.fabrics(place, &set(0), 0).unwrap();
    target.fabrics(place, &set(CC_ENTRIES | CC_EN), 0).unwrap();
    assert_eq!(status(&mut target), CSTS_RDY);
    target.shut_down(place);
    assert_eq!(status(&mut target), CSTS_RDY, "nobody wanted that");
    let shut = target.fabrics(place, &set(CC_ENTRIES | CC_EN | 1 << 14), 0);
    assert_eq!(shut, Ok(Answer::Done { result: 0, change: Change::ShutDown }));
    assert_eq!(status(&mut target), CSTS_RDY | 1 << 2);
    target.shut_down(place);
    assert_eq!(status(&mut target), CSTS_RDY | CSTS_SHST_COMPLETE);
    assert_eq!(target.io(place, &Command::new(crate::nvm::FLUSH, 7)), Err(INVALID_NAMESPACE));
}

/// Where hosts are listed no other one is let in, and a queue does nothing before its host has proved by it who it is.
#[test]
fn a_queue_takes_no_command_before_its_host_has_proved_who_it_is() {
    // 32 bytes of 1.
    let secret = "DHHC-1:00:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQHMnzFi:";
    let hosts = Hosts::parse(&format!("nqn.2020-01.org.example:host1 {secret}")).unwrap();
    let mut target = target_for(Some(hosts));
    let stranger = target.connect(1, &connect(0, 0), &data(0xFFFF, 2, false), &portal(), 0);
    assert_eq!(stranger.unwrap_err().status, CONNECT_INVALID_HOST);
    let discovers = target.connect(1, &connect(0, 0), &data(0xFFFF, 2, true), &portal(), 0).unwrap();
    assert_eq!(discovers.result, u64::from(discovers.place.controller));
    assert!(target.exchange(discovers.place).is_none() && target.fabrics(discovers.place, &set(CC_EN), 0).is_ok());

    let connected = target.connect(2, &connect(0, 0), &data(0xFFFF, 1, false), &portal(), 0).unwrap();
    let (controller, admin) = (connected.place.controller, connected.place);
    assert_eq!(connected.result, u64::from(controller) | 1 << 17, "ATR");
    let refused = Err(AUTHENTICATION_REQUIRED);
    assert_eq!(target.fabrics(admin, &set(CC_EN | CC_ENTRIES), 0).map(drop), refused);
    assert_eq!(
        target.fabrics(admin, &fabrics(fabrics::PROPERTY_GET, [0, CSTS as u32, 0, 0, 0, 0]), 0).map(drop),
        refused
    );
    let identify = Command::new(admin::IDENTIFY, 0);
    assert_eq!(target.admin(admin, &identify, &Health::default(), 0).map(drop), refused);
    assert!(target.exchange(admin).is_some());
    target.proved(admin);
    assert!(target.exchange(admin).is_none());
    target.fabrics(admin, &set(CC_EN | CC_ENTRIES), 0).unwrap();
    // Each queue for itself, and its number's next one again.
    for connection in 3..6 {
        let io = target.connect(connection, &connect(1, 0), &data(controller, 1, false), &portal(), 0).unwrap().place;
        let flush = Command::new(crate::nvm::FLUSH, 1);
        assert_eq!(target.io(io, &flush).map(drop), refused);
        assert_eq!(target.fabrics(io, &fabrics(fabrics::DISCONNECT, [0; 6]), 0).map(drop), refused);
        target.proved(io);
        assert!(target.io(io, &flush).is_ok());
        target.leave(connection, Some(io));
    }
}
