//! Conversations by the hundred thousand: what comes back is what the document says, and nothing that a client sends
//! does more harm than to itself.

use std::sync::Arc;

use super::Duplex as _;
use super::grammar::{
    BLOCK, Conversation, EXPORTS, Expected, OPTION_BYTES_MAX, Outcome, REQUEST_BYTES_MAX, conversation,
};
use super::property::OF_ORDER;
use super::replies::{Replies, Style};
use super::stream::{Check, Rng, drain, draw_cut, feed, first_failure};
use crate::memory::{Disk, MemoryExport};
use crate::nbd::bytes::Bytes;
use crate::nbd::lock::RangeLock;
use crate::nbd::planted::{Bug, plant};
use crate::nbd::session::{Event, Limits, Security, Session};
use crate::volume::Export;

const CASES: u64 = 200_000;

const LIMITS: Limits = Limits {
    staging_bytes: 10 << 10,
    option_bytes_max: OPTION_BYTES_MAX,
    request_bytes_max: REQUEST_BYTES_MAX as u32,
    outstanding_max: 4,
    buffered_bytes_max: 64 << 10,
};

/// A session with its volume, and a client that reads everything.
struct Line {
    session: Session,
    bytes: Bytes,
    received: Vec<u8>,
    /// Bytes that were received before, and bytes that were sent, whenever something was received.
    timeline: Vec<(usize, usize)>,
    starts_tls: bool,
    is_secured: bool,
}

impl Line {
    fn new(talk: &Conversation) -> Line {
        let mut disk = Disk::new(talk.world.blocks);
        disk.is_read_only = talk.world.is_read_only;
        let transfer_blocks_max = talk.world.transfer_blocks_max;
        let export = MemoryExport { transfer_blocks_max, ..MemoryExport::new(EXPORTS[0], &Arc::new(disk)) };
        let bytes = Bytes::new(export.open().unwrap(), &Arc::new(RangeLock::default())).unwrap();
        let names = EXPORTS.iter().map(|name| (*name).to_owned()).collect();
        let security = if talk.world.needs_tls { Security::Required } else { Security::None };
        let session = Session::new(names, LIMITS, security);
        Line { session, bytes, received: Vec::new(), timeline: Vec::new(), starts_tls: false, is_secured: false }
    }

    /// Gives the session bytes in pieces, and does what it asks for, one after the other.
    fn talk(&mut self, rng: &mut Rng, talk: &Conversation) -> Check<()> {
        let mut sent = &talk.bytes[..];
        let all = sent.len();
        let tls_at = talk.tls_at.filter(|_| !talk.is_broken).unwrap_or(0);
        let mut idle = 0;
        while idle < 3 {
            let waits = tls_at > 0 && !self.is_secured;
            let most = if waits { tls_at - (all - sent.len()) } else { usize::MAX };
            let filled = feed(&mut self.session, sent, draw_cut(rng).min(most));
            sent = &sent[filled..];
            let has_done = self.work(all - sent.len())?;
            idle = if filled > 0 || has_done { 0 } else { idle + 1 };
        }
        if !sent.is_empty() && self.session.end().is_none() {
            return Err(format!("{} bytes are not taken, and nothing is done", sent.len()));
        }
        Ok(())
    }

    fn work(&mut self, given: usize) -> Check<bool> {
        let mut has_done = false;
        while let Some(event) = self.session.next_event() {
            has_done = true;
            match event {
                Event::Open { .. } => self.session.opened(Ok(self.bytes.info())),
                Event::StartTls => self.starts_tls = true,
                Event::Request(request) => {
                    let mut answers = Vec::new();
                    self.bytes.begin(request, self.session.pool());
                    self.bytes.advance(self.session.pool(), &mut answers);
                    if answers.len() != 1 {
                        return Err(format!("{} answers to a request", answers.len()));
                    }
                    answers.into_iter().for_each(|(token, answer)| self.session.answer(token, answer));
                }
            }
        }
        self.timeline.push((self.received.len(), given));
        let sent = drain::<5>(&mut self.session, &mut self.received, usize::MAX);
        if self.starts_tls && !self.session.has_output() {
            self.session.secured();
            (self.starts_tls, self.is_secured) = (false, true);
        }
        Ok(has_done || sent > 0)
    }
}

fn run(seed: u64) -> Check<()> {
    let talk = conversation(seed);
    let mut line = Line::new(&talk);
    line.talk(&mut Rng(!seed), &talk)?;
    if line.bytes.is_busy() || line.session.outstanding() > 0 {
        return Err("something is not answered".to_owned());
    }
    if talk.is_broken { Ok(()) } else { check(&talk, &line) }
}

fn check(talk: &Conversation, line: &Line) -> Check<()> {
    let mut replies = Replies(&line.received);
    replies.greeting()?;
    for expected in &talk.expected {
        if let Expected::Reply { after, .. } = expected {
            let begins = line.received.len() - replies.0.len();
            let moment = line.timeline.partition_point(|(before, _)| *before <= begins);
            let given = line.timeline[moment - 1].1;
            if given < *after {
                return Err(format!("answered after {given} bytes of {after}; {expected:?}"));
            }
        }
        check_one(talk, expected, &mut replies).map_err(|error| format!("{error}; {expected:?}"))?;
    }
    if replies.0.is_empty() { Ok(()) } else { Err(format!("{} bytes too many", replies.0.len())) }
}

fn check_one(talk: &Conversation, expected: &Expected, replies: &mut Replies<'_>) -> Check<()> {
    let export_bytes = talk.world.blocks * BLOCK;
    match expected {
        Expected::Option { option, kinds } => {
            for kind in kinds {
                let (found, data) = replies.option(*option)?;
                if found != *kind {
                    return Err(format!("a reply of type {found:#x} and not {kind:#x}"));
                }
                if found == 3 && data.starts_with(&[0, 0]) {
                    Replies(&data[2..]).expect(8, export_bytes, "the size")?;
                }
            }
            Ok(())
        }
        Expected::ExportName { zeroes } => {
            replies.expect(8, export_bytes, "the size")?;
            replies.number(2)?;
            let zeroes = replies.bytes(if *zeroes { 124 } else { 0 })?;
            if zeroes.iter().all(|byte| *byte == 0) { Ok(()) } else { Err("no zeroes".to_owned()) }
        }
        Expected::Reply { cookie, offset, outcome, .. } => {
            let read = match outcome {
                Outcome::Read { data, .. } => Some(data.len() as u64),
                Outcome::Error { of_read, .. } | Outcome::Done { of_read } => of_read.then_some(0),
                Outcome::Status { .. } => None,
            };
            let mut reply = replies.reply(talk.style, *offset, read)?;
            if reply.cookie != *cookie {
                return Err(format!("cookie {:#x}", reply.cookie));
            }
            let error = if let Outcome::Error { error, .. } = outcome { *error } else { 0 };
            if reply.error != error {
                return Err(format!("error {}", reply.error));
            }
            match outcome {
                Outcome::Read { data, is_whole } => {
                    if *is_whole && reply.content.len() > 1 {
                        return Err(format!("{} pieces of what is to come in one", reply.content.len()));
                    }
                    let found = reply.data(*offset, data.len() as u64)?;
                    let is_wrong = |at: &usize| data[*at].is_some_and(|byte| byte != found[*at]);
                    match (0..data.len()).find(is_wrong) {
                        Some(at) => Err(format!("byte {at} is {} and should be {:?}", found[at], data[at])),
                        None => Ok(()),
                    }
                }
                Outcome::Status { length, is_one } => check_extents(&reply.extents, *length, *is_one),
                _ if reply.content.is_empty() && reply.extents.is_empty() => Ok(()),
                _ => Err("content that nobody asked for".to_owned()),
            }
        }
    }
}

fn check_extents(extents: &[(u64, u64)], length: u64, is_one: bool) -> Check<()> {
    let sum: u64 = extents.iter().map(|extent| extent.0).sum();
    let is_right = !extents.is_empty()
        && (!is_one || extents.len() == 1)
        && extents.iter().all(|&(length, state)| length > 0 && [0, 3].contains(&state))
        && sum <= length
        && extents.windows(2).all(|pair| pair[0].1 != pair[1].1);
    if is_right { Ok(()) } else { Err(format!("extents {extents:?}")) }
}

#[test]
fn what_comes_back_is_what_the_document_says() {
    assert_eq!(first_failure(0..CASES, run), None);
}

/// All three styles of messages, and transmissions at all, are reached.
#[test]
fn the_generator_reaches_what_it_is_for() {
    let mut styles = [0; 3];
    let (mut replies, mut broken, mut secured) = (0, 0, 0);
    for seed in 0..2000 {
        let talk = conversation(seed);
        styles[match talk.style {
            Style::Simple => 0,
            Style::Structured => 1,
            Style::Extended => 2,
        }] += 1;
        broken += u64::from(talk.is_broken);
        secured += u64::from(talk.tls_at.is_some());
        replies += talk.expected.iter().filter(|expected| matches!(expected, Expected::Reply { .. })).count();
    }
    assert!(
        styles.iter().all(|count| *count > 200) && replies > 5000 && secured > 200 && (200..1000).contains(&broken)
    );
}

#[test]
fn planted_bugs_are_found() {
    for &bug in Bug::ALL.iter().filter(|bug| !OF_ORDER.contains(bug)) {
        plant(Some(bug));
        let found = first_failure(0..CASES / 20, run);
        plant(None);
        assert!(found.is_some(), "{bug:?} went unnoticed");
    }
}
