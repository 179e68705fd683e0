use super::*;
use crate::stream::testing::{drain, feed};
use crate::tcp::testing::wire::{
    self, CAPSULE, Cqe, H2C_DATA, Pdu, R2T, RESPONSE, Sqe, Terms, h2c_header, ic_req, pdu,
};

const LIMITS: Limits = Limits { staging_bytes: 4096, piece_bytes: 4096, buffered_bytes_max: 1 << 20 };
const PLAIN: Terms = Terms { header_digest: false, data_digest: false, alignment: 0 };

struct Talk {
    session: Session,
    received: Vec<u8>,
    requests: Vec<Request>,
}

impl Talk {
    fn new() -> Talk {
        let mut talk = Talk { session: Session::new(LIMITS), received: Vec::new(), requests: Vec::new() };
        talk.session.connected(64, true);
        talk.say(&ic_req(PLAIN));
        assert_eq!(talk.hear().kind, wire::IC_RESP);
        talk
    }

    /// Sends bytes, as far as they are taken; how many are left.
    fn say(&mut self, mut bytes: &[u8]) -> usize {
        loop {
            let filled = feed(&mut self.session, bytes, usize::MAX);
            bytes = &bytes[filled..];
            while let Some(request) = self.session.next_request() {
                self.requests.push(request);
            }
            if filled == 0 {
                return bytes.len();
            }
        }
    }

    fn command(&mut self, sqe: Sqe) -> usize {
        self.say(&pdu(PLAIN, CAPSULE, 0, &sqe.0, &[]))
    }

    /// Takes all that is to be sent.
    fn drain(&mut self) {
        while drain::<64>(&mut self.session, &mut self.received, usize::MAX) > 0 {}
        while let Some(request) = self.session.next_request() {
            self.requests.push(request);
        }
    }

    fn hear(&mut self) -> Pdu {
        self.drain();
        let (pdu, length) = Pdu::parse(&self.received, PLAIN).unwrap();
        self.received.drain(..length);
        pdu
    }
}

const MEGABYTE: u32 = 1 << 20;

/// What there is no room for waits: an R2T for data, a read for its turn.
#[test]
fn data_of_commands_that_there_is_no_room_for_wait() {
    let mut talk = Talk::new();
    talk.command(Sqe::new(1, 1, 1).outside(MEGABYTE));
    talk.command(Sqe::new(2, 2, 1).outside(MEGABYTE));
    talk.command(Sqe::new(1, 3, 1).outside(4096));
    talk.command(Sqe::new(0, 4, 1));
    let r2t = talk.hear();
    assert_eq!((r2t.kind, r2t.word(8)), (R2T, 1));
    // What needs no room overtakes.
    assert!(talk.received.is_empty() && talk.requests.len() == 1 && talk.requests[0].command.cid == 4);
    assert!(talk.session.buffered() <= LIMITS.buffered_bytes_max + 24);
    let header = h2c_header(1, r2t.word(10), 0, MEGABYTE);
    assert_eq!(talk.say(&pdu(PLAIN, H2C_DATA, 4, &header, &vec![7; MEGABYTE as usize])), 0);
    assert_eq!(talk.requests.len(), 2);
    talk.session.respond(1, Response::of(Status::SUCCESS, 0));
    assert_eq!(Cqe::of(&talk.hear()).cid, 1);
    assert_eq!((talk.requests.len(), talk.requests[2].wanted), (3, MEGABYTE as usize));
    let data = vec![vec![1; 4096]; 256];
    talk.session.respond(2, Response { status: Status::SUCCESS, result: 0, data });
    assert_eq!(talk.hear().data.len(), MEGABYTE as usize);
    assert_eq!(talk.hear().kind, RESPONSE);
    // Only now, when that is sent, there is room for the last.
    assert_eq!((talk.hear().kind, talk.session.outstanding()), (R2T, 2));
}

/// A host that takes nothing is not listened to for ever.
#[test]
fn who_does_not_read_is_not_listened_to() {
    let mut talk = Talk::new();
    let commands = pdu(PLAIN, CAPSULE, 0, &Sqe::new(0, 1, 1).0, &[]).repeat(1000);
    let (mut taken, mut rounds) = (0, 0);
    loop {
        let left = talk.say(&commands);
        taken += commands.len() - left;
        // The same identifier again and again: all but the first end at once.
        while let Some(request) = talk.requests.pop() {
            talk.session.respond(request.command.cid, Response::of(Status::SUCCESS, 0));
        }
        rounds += 1;
        if left > 0 {
            break;
        }
        assert!(rounds < 10_000, "{} bytes are to be sent", talk.session.buffered());
    }
    assert!(talk.session.buffered() <= LIMITS.buffered_bytes_max + 4096);
    talk.drain();
    assert!(taken > LIMITS.buffered_bytes_max && talk.say(&commands) < commands.len(), "it goes on when it reads");
}

#[test]
fn a_session_that_has_ended_takes_nothing_and_says_nothing() {
    let mut talk = Talk::new();
    talk.command(Sqe::new(0, 1, 1));
    talk.say(&[0xFF; 80]);
    assert!(matches!(talk.session.end(), Some(End::Violation(_))));
    talk.session.respond(1, Response::of(Status::SUCCESS, 0));
    assert_eq!(talk.hear().kind, wire::C2H_TERM);
    assert!(talk.received.is_empty() && !talk.session.has_output());
    assert_eq!(talk.say(&pdu(PLAIN, CAPSULE, 0, &Sqe::new(0, 2, 1).0, &[])), 72);
}
