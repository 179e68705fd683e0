//! A host of its own, by the offsets of the messages, and what it may do wrong, drawn.

use super::*;
use crate::fabrics::auth::planted::plant;
use crate::fabrics::auth::{Secret, Secrets};
use crate::stream::testing::{Check, Rng, first_failure};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
const SUBSYSTEM: &str = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
const SEEDS: u64 = 2_000;

/// What a host does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// It has another secret.
    Secret,
    /// It is another host, with the right secret.
    Name,
    /// A bit of the response is another one.
    Response,
    /// The response is of no exchange's key.
    NoKey,
    /// Bytes of a message are missing, or there are more.
    Length,
    /// A message names another transaction.
    Transaction,
    /// It sends the messages of the transaction before again.
    Replay,
    /// It says that it is content where it should answer.
    Early,
    /// It asks for a message twice.
    AskTwice,
    /// It asks before it says anything.
    AskFirst,
    /// It wants a secure channel, too.
    Channel,
    /// No hash function that there is; no group.
    NoHash,
    NoGroup,
    /// A public value that gives the key away.
    WeakPublic,
    /// It asks what it was asked.
    Reflection,
    /// It finds that the controller is none.
    Refuses,
}

const WRONGS: [Wrong; 16] = [
    Wrong::Secret,
    Wrong::Name,
    Wrong::Response,
    Wrong::NoKey,
    Wrong::Length,
    Wrong::Transaction,
    Wrong::Replay,
    Wrong::Early,
    Wrong::AskTwice,
    Wrong::AskFirst,
    Wrong::Channel,
    Wrong::NoHash,
    Wrong::NoGroup,
    Wrong::WeakPublic,
    Wrong::Reflection,
    Wrong::Refuses,
];

fn random(rng: &mut Rng) -> [u8; RANDOM_BYTES] {
    std::array::from_fn(|_| rng.draw() as u8)
}

fn secret(rng: &mut Rng) -> Secret {
    use base64::Engine as _;
    let key: Vec<u8> = (0..rng.pick(&[32, 48, 64])).map(|_| rng.draw() as u8).collect();
    let bytes = [&key[..], &crc32fast::hash(&key).to_le_bytes()].concat();
    let text = base64::engine::general_purpose::STANDARD.encode(bytes);
    Secret::parse(&format!("DHHC-1:0{}:{text}:", rng.below(4))).unwrap()
}

/// The host's side.
struct Host {
    secrets: Secrets,
    name: String,
    transaction: u16,
    exponent: [u8; EXPONENT_BYTES],
    hash: Hash,
    group: Option<Group>,
    key: Option<Zeroizing<Vec<u8>>>,
    challenge: Vec<u8>,
    sequence: u32,
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// What a response is, put together as the standard lists it.
fn response(secret: &Secret, names: [&str; 3], challenge: &[u8], host: &Host, sequence: u32) -> Vec<u8> {
    let [own, label, other] = names;
    let challenge = match &host.key {
        None => challenge.to_vec(),
        Some(key) => host.hash.mac(&host.hash.of(key), &[challenge]).to_vec(),
    };
    let mut all = challenge;
    all.extend(sequence.to_le_bytes());
    all.extend(host.transaction.to_le_bytes());
    all.push(0);
    all.extend(label.as_bytes());
    all.extend(own.as_bytes());
    all.push(0);
    all.extend(other.as_bytes());
    host.hash.mac(&secret.transformed(own), &[&all]).to_vec()
}

impl Host {
    fn negotiate(&self, hashes: &[u8], groups: &[u8], channel: u8) -> Vec<u8> {
        let mut bytes = vec![0; 72];
        bytes[4..6].copy_from_slice(&self.transaction.to_le_bytes());
        (bytes[6], bytes[7], bytes[8]) = (channel, 1, 1);
        (bytes[10], bytes[11]) = (hashes.len() as u8, groups.len() as u8);
        bytes[12..12 + hashes.len()].copy_from_slice(hashes);
        bytes[42..42 + groups.len()].copy_from_slice(groups);
        bytes
    }

    /// Takes the challenge, and answers it.
    fn reply(&mut self, message: &[u8], challenges: bool, wrong: Option<Wrong>) -> Check<Vec<u8>> {
        if message[..2] != [1, 1] || word(message, 4) != self.transaction {
            return Err(format!("no challenge: {message:?}"));
        }
        let length = usize::from(message[6]);
        self.hash = [Hash::Sha256, Hash::Sha384, Hash::Sha512][usize::from(message[8]) - 1];
        let sequence = u32::from_le_bytes(message[12..16].try_into().unwrap());
        let (challenge, public) = message[16..].split_at(length);
        if length != self.hash.bytes() || public.len() != usize::from(word(message, 10)) || sequence == 0 {
            return Err("a challenge whose lengths are wrong".to_owned());
        }
        self.group = Group::BY_PREFERENCE.into_iter().find(|group| *group as u8 == message[9]);
        let mut own = Vec::new();
        if let Some(group) = self.group {
            self.key = group.shared(public, &self.exponent);
            own = group.public(&self.exponent);
            if wrong == Some(Wrong::WeakPublic) {
                own.fill(0);
                *own.last_mut().unwrap() = 1;
                let one = own.clone();
                self.key = Some(Zeroizing::new(one));
            }
        }
        if wrong == Some(Wrong::NoKey) {
            self.key = None;
        }
        let names = [&self.name[..], "HostHost", SUBSYSTEM];
        let mut value = response(&self.secrets.host, names, challenge, self, sequence);
        if wrong == Some(Wrong::Response) {
            value[length / 2] ^= 4;
        }
        if wrong == Some(Wrong::Reflection) {
            self.challenge = challenge.to_vec();
        }
        self.challenge.resize(length, 9);
        let mut bytes = vec![1, 2, 0, 0];
        bytes.extend(self.transaction.to_le_bytes());
        bytes.extend([length as u8, 0, u8::from(challenges), 0]);
        bytes.extend((own.len() as u16).to_le_bytes());
        bytes.extend(if challenges { self.sequence } else { 0 }.to_le_bytes());
        bytes.extend(value);
        bytes.extend(&self.challenge);
        bytes.extend(own);
        Ok(bytes)
    }

    /// Whether the controller has proved who it is.
    fn believes(&self, message: &[u8]) -> bool {
        let names = [SUBSYSTEM, "Controller", &self.name[..]];
        let Some(secret) = &self.secrets.controller else { return false };
        message[8] == 1 && message[16..] == response(secret, names, &self.challenge, self, self.sequence)
    }

    fn short(&self, kind: [u8; 2]) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        bytes[..2].copy_from_slice(&kind);
        bytes[4..6].copy_from_slice(&self.transaction.to_le_bytes());
        bytes
    }
}

/// A transaction, drawn: the exchange, and what there was of messages of the host.
struct World {
    rng: Rng,
    exchange: Exchange,
    host: Host,
    challenges: bool,
    /// Both lists of what the host knows.
    hashes: Vec<u8>,
    groups: Vec<u8>,
    sent: Vec<Vec<u8>>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng(seed);
        let controller = if rng.one_in(3) { None } else { Some(secret(&mut rng)) };
        let secrets = Secrets { host: secret(&mut rng), controller };
        let exchange = Exchange::new(secrets.clone(), HOST.to_owned(), SUBSYSTEM.to_owned());
        let challenges = secrets.controller.is_some() && rng.one_in(2);
        let mut hashes: Vec<u8> = [1, 2, 3, 77].into_iter().filter(|_| rng.one_in(2)).collect();
        hashes.push(rng.pick(&[1, 2, 3]));
        // Exchanges of large groups take long.
        let groups = match rng.below(100) {
            0 => vec![0, 1, 2, 3, 4, 5],
            1 => vec![rng.pick(&[2, 3, 4, 5])],
            2..30 => vec![200, 1],
            _ => vec![0],
        };
        let exponent = std::array::from_fn(|_| rng.draw() as u8);
        let host = Host {
            secrets,
            name: HOST.to_owned(),
            transaction: rng.draw() as u16,
            exponent,
            hash: Hash::Sha256,
            group: None,
            key: None,
            challenge: vec![7; 9],
            sequence: rng.draw() as u32 | 1,
        };
        World { rng, exchange, host, challenges, hashes, groups, sent: Vec::new() }
    }

    fn send(&mut self, message: &[u8]) {
        self.sent.push(message.to_vec());
        self.exchange.send(message);
    }

    fn receive(&mut self) -> Vec<u8> {
        let random = random(&mut self.rng);
        self.exchange.receive(MESSAGE_BYTES_MAX, &random).unwrap()
    }

    /// Does all of it right. Whether the host is content is checked, too.
    fn authenticate(&mut self) -> Check<()> {
        let message = self.host.negotiate(&self.hashes, &self.groups, 0);
        self.send(&message);
        let challenge = self.receive();
        let reply = self.host.reply(&challenge, self.challenges, None)?;
        self.send(&reply);
        let success = self.receive();
        if success[..2] != [1, 3] || word(&success, 4) != self.host.transaction {
            return Err(format!("it is not believed: {success:?}"));
        }
        if self.challenges {
            if !self.host.believes(&success) {
                return Err("the controller's response is wrong".to_owned());
            }
            let content = self.host.short([1, 4]);
            self.send(&content);
        } else if success[8] != 0 {
            return Err("a response that nobody asked for".to_owned());
        }
        if self.exchange.is_authenticated() { Ok(()) } else { Err("it is not authenticated".to_owned()) }
    }

    /// The failure with that explanation comes, and then nothing.
    fn expect(&mut self, explanation: u8) -> Check<()> {
        let message = self.receive();
        let is_it = message[..2] == [0, 0xF1] && message.len() == 8 && message[6..] == [1, explanation];
        if !is_it || self.exchange.is_authenticated() || !self.exchange.is_over() {
            return Err(format!("explanation {explanation}: {message:?}, {:?}", self.exchange));
        }
        // Nothing brings it back.
        let again = self.host.negotiate(&self.hashes, &self.groups, 0);
        self.exchange.send(&again);
        if self.exchange.is_over() { Ok(()) } else { Err("it goes on".to_owned()) }
    }

    /// Does it with one thing wrong.
    fn do_wrong(&mut self, wrong: Wrong) -> Check<()> {
        if wrong == Wrong::AskFirst {
            return self.expect(7);
        }
        if wrong == Wrong::Replay {
            // It was right once; what was said then is said again, in a transaction of the same name.
            self.authenticate()?;
            let before = self.sent.clone();
            self.exchange.send(&before[0]);
            self.receive();
            self.exchange.send(&before[1]);
            return self.expect(1);
        }
        self.prepare(wrong);
        let mut message = self.host.negotiate(&self.hashes, &self.groups, u8::from(wrong == Wrong::Channel));
        let in_negotiation = wrong == Wrong::Length && self.rng.one_in(2);
        if in_negotiation {
            change_length(&mut self.rng, &mut message);
        }
        self.send(&message);
        match wrong {
            Wrong::Channel => return self.expect(3),
            Wrong::NoHash => return self.expect(4),
            Wrong::NoGroup => return self.expect(5),
            Wrong::Length if in_negotiation => return self.expect(6),
            Wrong::Early => {
                self.receive();
                let message = self.host.short([1, 4]);
                self.send(&message);
                if self.exchange.is_authenticated() {
                    return Err("it is authenticated by its own word".to_owned());
                }
                return self.expect(7);
            }
            _ => {}
        }
        let challenge = self.receive();
        if wrong == Wrong::AskTwice {
            return self.expect(7);
        }
        self.answer_wrongly(&challenge, wrong)
    }

    /// What is wrong from the beginning.
    fn prepare(&mut self, wrong: Wrong) {
        match wrong {
            Wrong::NoHash => self.hashes = vec![0, 4, 99],
            Wrong::NoGroup => self.groups = vec![6, 255],
            Wrong::WeakPublic | Wrong::NoKey => self.groups = vec![1],
            Wrong::Secret => {
                let other = secret(&mut self.rng);
                self.host.secrets.host = other;
            }
            Wrong::Name => {
                self.host.name.push('0');
            }
            Wrong::Reflection if self.host.secrets.controller.is_some() => self.challenges = true,
            _ => {}
        }
    }

    /// The reply, and what comes of it.
    fn answer_wrongly(&mut self, challenge: &[u8], wrong: Wrong) -> Check<()> {
        let mut reply = self.host.reply(challenge, self.challenges, Some(wrong))?;
        match wrong {
            Wrong::Length => change_length(&mut self.rng, &mut reply),
            Wrong::Transaction => reply[4] ^= 1 << self.rng.below(8),
            _ => {}
        }
        self.send(&reply);
        match wrong {
            Wrong::Length | Wrong::Transaction => self.expect(6),
            Wrong::WeakPublic => self.expect(5),
            Wrong::Secret | Wrong::Name | Wrong::Response | Wrong::NoKey => self.expect(1),
            Wrong::Reflection if self.challenges => self.expect(1),
            _ if !self.challenges => Ok(()),
            _ => {
                // Two-way, and the host does not believe it.
                self.receive();
                if self.exchange.is_authenticated() {
                    return Err("it is authenticated before the host is content".to_owned());
                }
                let refusal = self.host.short([0, 0xF0]);
                self.send(&refusal);
                let is_gone = self.exchange.is_over() && !self.exchange.is_authenticated();
                if is_gone { Ok(()) } else { Err("it goes on".to_owned()) }
            }
        }
    }
}

fn change_length(rng: &mut Rng, message: &mut Vec<u8>) {
    if rng.one_in(2) {
        let length = rng.below(message.len() as u64) as usize;
        // The kind of a message is in its first two bytes.
        message.truncate(length.max(2));
    } else {
        message.extend(vec![0; 1 + rng.below(80) as usize]);
    }
}

fn run(seed: u64) -> Check<()> {
    let mut world = World::new(seed);
    if world.rng.one_in(3) {
        world.authenticate()?;
        // Again, on the same queue.
        world.host.transaction = world.host.transaction.wrapping_add(1);
        return world.authenticate();
    }
    let wrong = world.rng.pick(&WRONGS);
    world.do_wrong(wrong).map_err(|error| format!("{wrong:?}: {error}"))
}

#[test]
fn who_answers_with_its_secret_is_authenticated_and_nobody_else_is() {
    assert_eq!(first_failure(0..SEEDS, run), None);
}

#[test]
fn planted_bugs_are_found() {
    for &bug in Bug::ALL {
        plant(Some(bug));
        let found = first_failure(0..SEEDS / 4, run);
        plant(None);
        assert!(found.is_some(), "{bug:?} went unnoticed");
    }
}

/// Whatever is sent and asked for, nobody is authenticated who has not answered.
#[test]
fn no_noise_is_an_answer() {
    for seed in 0..20_000 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        world.groups = vec![0];
        let mut last = world.host.negotiate(&world.hashes, &world.groups, 0);
        for _ in 0..12 {
            match rng.below(4) {
                0 => last = world.host.short(rng.pick(&[[1, 2], [1, 4], [0, 0], [0, 0xF0], [1, 3], [9, 9]])),
                1 => last = world.host.negotiate(&world.hashes, &world.groups, 0),
                2 => {
                    let room = rng.pick(&[0, 8, 40, MESSAGE_BYTES_MAX]);
                    let random = random(&mut rng);
                    let got = world.exchange.receive(room, &random);
                    assert!(got.is_err() || got.is_ok_and(|message| message.len() <= room));
                    continue;
                }
                _ => {
                    let at = rng.below(last.len() as u64 + 1) as usize;
                    let more: Vec<u8> = (0..rng.below(99)).map(|_| rng.draw() as u8).collect();
                    last.splice(at.., more);
                }
            }
            world.exchange.send(&last);
            assert!(!world.exchange.is_authenticated(), "seed {seed}");
        }
    }
}

#[test]
fn who_begins_again_and_again_is_let_go() {
    let mut world = World::new(1);
    // What succeeds does not count.
    for _ in 0..3 * TRANSACTIONS_MAX {
        world.authenticate().unwrap();
    }
    let message = world.host.negotiate(&world.hashes, &world.groups, 0);
    for _ in 0..TRANSACTIONS_MAX {
        world.send(&message);
        assert_eq!(world.receive()[..2], [1, 1]);
    }
    world.send(&message);
    world.expect(1).unwrap();
}
