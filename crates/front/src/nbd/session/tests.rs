use super::*;
use crate::nbd::testing::replies::{Replies, Style};
use crate::nbd::testing::stream::{drain, feed};

const INFO: Info = Info { blocks: 1 << 40, is_read_only: false, piece_blocks: 32 };

struct Talk {
    session: Session,
    received: Vec<u8>,
}

impl Talk {
    fn new(limits: Limits) -> Talk {
        Talk::with(limits, Security::None)
    }

    fn with(limits: Limits, security: Security) -> Talk {
        Talk { session: Session::new(Arc::new(["only".to_owned()]), limits, security), received: Vec::new() }
    }

    /// Sends bytes, as far as they are taken; what is asked of the owner.
    fn say(&mut self, mut bytes: &[u8], info: Info) -> Vec<Request> {
        let mut requests = Vec::new();
        loop {
            let filled = feed(&mut self.session, bytes, usize::MAX);
            bytes = &bytes[filled..];
            let mut has_asked = false;
            while let Some(event) = self.session.next_event() {
                has_asked = true;
                match event {
                    Event::Open { .. } => self.session.opened(Ok(info)),
                    Event::Request(request) => requests.push(request),
                    Event::StartTls => {}
                }
            }
            let before = self.received.len();
            self.hear();
            if filled == 0 && !has_asked && self.received.len() == before {
                return requests;
            }
        }
    }

    fn hear(&mut self) {
        drain::<64>(&mut self.session, &mut self.received, usize::MAX);
    }

    /// The flags of the export, after these options and NBD_OPT_GO.
    fn go(&mut self, options: &[u32], info: Info) -> u64 {
        let option = |number: u32, data: &[u8]| {
            [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
        };
        let mut bytes = 3_u32.to_be_bytes().to_vec();
        options.iter().for_each(|number| bytes.extend(option(*number, &[])));
        bytes.extend(option(7, &[0; 6]));
        self.say(&bytes, info);
        let received = std::mem::take(&mut self.received);
        let mut replies = Replies(&received);
        replies.greeting().unwrap();
        options.iter().for_each(|number| assert_eq!(replies.option(*number).unwrap(), (1, &[][..])));
        let (_, data) = replies.option(7).unwrap();
        assert_eq!(Replies(&data[2..]).number(8), Ok(info.blocks * 4096));
        assert_eq!(replies.option(7).unwrap().0, 1);
        Replies(&data[10..]).number(2).unwrap()
    }
}

fn compact(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let parts: [&[u8]; 5] = [
        &[0x25, 0x60, 0x95, 0x13, 0, 0],
        &command.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &length.to_be_bytes(),
    ];
    parts.concat()
}

/// "Transmission flags", bit by bit.
#[test]
fn the_export_says_what_it_can() {
    let bits = |numbers: &[u32]| numbers.iter().map(|bit| 1 << bit).sum::<u64>();
    let read_only = Info { is_read_only: true, ..INFO };
    assert_eq!(Talk::new(Limits::default()).go(&[], INFO), bits(&[0, 2, 3, 5, 6, 8, 10, 11]));
    assert_eq!(Talk::new(Limits::default()).go(&[8], INFO), bits(&[0, 2, 3, 5, 6, 7, 8, 10, 11]));
    assert_eq!(Talk::new(Limits::default()).go(&[11], read_only), bits(&[0, 1, 2, 3, 7, 8, 10]));
}

/// What is not answered is bounded by its number, and by its bytes.
#[test]
fn a_session_takes_no_more_than_its_limits() {
    let limits = Limits { outstanding_max: 5, buffered_bytes_max: 100_000, ..Limits::default() };
    let mut talk = Talk::new(limits);
    talk.go(&[], INFO);
    let many: Vec<u8> = (0..20).flat_map(|cookie| compact(3, cookie, 0, 0)).collect();
    let flushes = talk.say(&many, INFO);
    assert_eq!((flushes.len(), talk.session.outstanding()), (5, 5));
    let mut answered = 0;
    let mut waiting = flushes;
    while let Some(request) = waiting.pop() {
        talk.session.answer(request.token, Answer::Done);
        answered += 1;
        waiting.extend(talk.say(&[], INFO));
        assert!(talk.session.outstanding() <= 5);
    }
    assert_eq!(answered, 20);
    // Three reads of 40,000 bytes are more than is kept.
    let reads: Vec<u8> = (0..3).flat_map(|cookie| compact(0, cookie, 0, 40_000)).collect();
    assert_eq!(talk.say(&reads, INFO).len(), 2);
    // One alone may be larger than that.
    let mut talk = Talk::new(limits);
    talk.go(&[], INFO);
    assert_eq!(talk.say(&compact(0, 1, 0, 1_000_000), INFO).len(), 1);
}

/// Lengths of 64 bits: a trim of half an exbibyte, and extents of more than 32 bits.
#[test]
fn extended_headers_carry_lengths_of_64_bits() {
    let mut talk = Talk::new(Limits::default());
    talk.go(&[11], INFO);
    let length = 1_u64 << 49;
    let mut trim = [&0x21e4_1c71_u32.to_be_bytes()[..], &[0, 0, 0, 4]].concat();
    [9, 1 << 40, length].iter().for_each(|word: &u64| trim.extend(word.to_be_bytes()));
    let requests = talk.say(&trim, INFO);
    let Command::Trim { span, .. } = requests[0].command else { panic!("{requests:?}") };
    assert_eq!((span.offset, span.length), (1 << 40, length));
    talk.session.answer(requests[0].token, Answer::Extents(vec![(length - 1, true), (1, false)]));
    talk.hear();
    let received = std::mem::take(&mut talk.received);
    let reply = Replies(&received).reply(Style::Extended, 1 << 40, None).unwrap();
    assert_eq!((reply.cookie, reply.extents), (9, vec![(length - 1, 3), (1, 0)]));
}

/// A message of the document's, byte by byte, and its answer: "Request message", "Simple reply message".
#[test]
fn a_read_is_answered_byte_by_byte() {
    let mut talk = Talk::new(Limits::default());
    talk.go(&[], INFO);
    let read = b"\x25\x60\x95\x13\0\0\0\0ABCDEFGH\0\0\0\0\0\0\x10\x02\0\0\0\x03";
    let requests = talk.say(read, INFO);
    let Command::Read(span) = requests[0].command else { panic!("{requests:?}") };
    assert_eq!((span.offset, span.length), (0x1002, 3));
    let mut payload = Payload::new(span, 32, talk.session.pool());
    payload.pieces[0][2..5].copy_from_slice(b"xyz");
    talk.session.answer(requests[0].token, Answer::Data { payload, holes: Vec::new() });
    talk.hear();
    assert_eq!(talk.received, b"\x67\x44\x66\x98\0\0\0\0ABCDEFGHxyz");
}

#[test]
fn a_session_that_ends_refuses_options_and_requests() {
    let mut talk = Talk::new(Limits::default());
    talk.session.refuse(Refusal::ShutDown);
    talk.say(&[&3_u32.to_be_bytes()[..], b"IHAVEOPT\0\0\0\x03\0\0\0\0"].concat(), INFO);
    let mut replies = Replies(&talk.received[18..]);
    assert_eq!(replies.option(3).unwrap().0, (1 << 31) + 7);
    let mut talk = Talk::new(Limits::default());
    talk.go(&[], INFO);
    let before = talk.say(&compact(3, 1, 0, 0), INFO);
    talk.session.refuse(Refusal::ShutDown);
    assert!(talk.say(&compact(3, 2, 0, 0), INFO).is_empty());
    talk.session.answer(before[0].token, Answer::Done);
    talk.hear();
    let mut replies = Replies(&talk.received);
    let mut next = || replies.reply(Style::Simple, 0, None).map(|reply| (reply.cookie, reply.error));
    assert_eq!((next(), next()), (Ok((2, 108)), Ok((1, 0))));
}

/// Whoever is on the way can put bytes behind the option that begins TLS: none of them is taken for the client's.
#[test]
fn nothing_from_before_tls_is_taken_for_something_behind_it() {
    let option = |number: u32| [b"IHAVEOPT", &number.to_be_bytes()[..], &[0; 4]].concat();
    let flags = 3_u32.to_be_bytes();
    let mut talk = Talk::with(Limits::default(), Security::Required);
    talk.say(&[&flags[..], &option(5), &option(3)].concat(), INFO);
    assert!(matches!(talk.session.end(), Some(End::Violation(_))));
    assert_eq!(talk.received.len(), 18, "nothing but the greeting");
    // Behind the answer nothing is read until the encryption is there.
    let mut talk = Talk::with(Limits::default(), Security::Required);
    talk.say(&[&flags[..], &option(5)].concat(), INFO);
    assert_eq!(Replies(&talk.received[18..]).option(5).unwrap().0, 1);
    assert_eq!(feed(&mut talk.session, &option(3), usize::MAX), 0);
    talk.session.secured();
    talk.received.clear();
    talk.say(&option(3), INFO);
    assert_eq!(Replies(&talk.received).option(3).unwrap().0, 2);
}
