//! A controller's side of the authentication of one queue.

use std::fmt;

use osier_device::Status;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::dh::{EXPONENT_BYTES, Group};
use super::hash::Hash;
use super::planted::{self, Bug};
use super::secret::Secrets;
use crate::command::Command;

/// Random bytes that a challenge needs.
pub const RANDOM_BYTES: usize = CHALLENGE_BYTES_MAX + EXPONENT_BYTES + 4;
/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Bytes of the longest challenge: as many as the hash function's.
const CHALLENGE_BYTES_MAX: usize = 64;

/// Transactions that a host may begin before one of them succeeds: each costs the controller an exponentiation.
const TRANSACTIONS_MAX: u8 = 8;

/// Dword 10 of both commands: SECP E9h, SPSP1 and SPSP0 01h.
const PROTOCOL: u32 = 0xE901_0100;

/// Messages: AUTH_TYPE and AUTH_ID.
mod message {
    pub const NEGOTIATE: [u8; 2] = [0x00, 0x00];
    pub const CHALLENGE: [u8; 2] = [0x01, 0x01];
    pub const REPLY: [u8; 2] = [0x01, 0x02];
    pub const SUCCESS1: [u8; 2] = [0x01, 0x03];
    pub const SUCCESS2: [u8; 2] = [0x01, 0x04];
    pub const FAILURE2: [u8; 2] = [0x00, 0xF0];
    pub const FAILURE1: [u8; 2] = [0x00, 0xF1];
}

/// Where fields lie in messages; T_ID is at 4 in each.
mod at {
    pub const T_ID: usize = 4;
    /// Negotiate: SC_C, NAPD, and the descriptors, of 64 bytes each.
    pub const SC_C: usize = 6;
    pub const NAPD: usize = 7;
    pub const DESCRIPTORS: usize = 8;
    /// In a descriptor: AuthID, HALEN, DHLEN, and the lists of identifiers.
    pub const HALEN: usize = 2;
    pub const DHLEN: usize = 3;
    pub const HASHES: usize = 4;
    pub const GROUPS: usize = 34;
    /// Reply: HL, CVALID, DHVLEN, SEQNUM; the values follow.
    pub const HL: usize = 6;
    pub const CVALID: usize = 8;
    pub const DHVLEN: usize = 10;
    pub const SEQNUM: usize = 12;
    pub const VALUES: usize = 16;
}
const DESCRIPTOR_BYTES: usize = 64;
/// AuthID of DH-HMAC-CHAP.
const DH_HMAC_CHAP: u8 = 1;
/// Most identifiers of a list.
const LIST_MAX: u8 = 30;
/// DHGID of no exchange.
const NO_GROUP: u8 = 0;

/// Why a transaction failed: the explanation of the reason code ("AUTH_Failure1 message"), which is always 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Failure {
    Failed = 1,
    ConcatenationMismatch = 3,
    HashUnusable = 4,
    GroupUnusable = 5,
    IncorrectPayload = 6,
    IncorrectMessage = 7,
}

/// What a host and this controller have agreed on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Terms {
    hash: Hash,
    group: Option<Group>,
}

/// What comes next.
enum Step {
    /// The host begins.
    Negotiate,
    /// The host takes the challenge.
    Challenge(Terms),
    /// The host answers it.
    Reply { terms: Terms, challenge: Vec<u8>, sequence: u32, exponent: Zeroizing<[u8; EXPONENT_BYTES]> },
    /// The host takes the news, and the response to its own challenge.
    Success1 { hash: Hash, response: Option<Zeroizing<Vec<u8>>> },
    /// The host says that it is content, too.
    Success2,
    /// The host takes the bad news.
    Failure1(Failure),
    /// Nothing.
    Over,
}

/// See the module.
pub struct Exchange {
    secrets: Secrets,
    host: String,
    subsystem: String,
    transaction: u16,
    step: Step,
    /// Transactions that were begun since the last one that succeeded.
    begun: u8,
    is_authenticated: bool,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("host", &self.host).field("is_authenticated", &self.is_authenticated).finish()
    }
}

impl Exchange {
    pub(in crate::fabrics) fn new(secrets: Secrets, host: String, subsystem: String) -> Exchange {
        let step = Step::Negotiate;
        Exchange { secrets, host, subsystem, transaction: 0, step, begun: 0, is_authenticated: false }
    }

    /// Whether the host has proved who it is. It may prove it again.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Whether it has failed to, and has been told so: the connection is to be closed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.step, Step::Over)
    }

    /// Whether one of the two commands is about this protocol, and names as many bytes as are there.
    ///
    /// # Errors
    /// The status that it ends with.
    pub fn check(command: &Command, bytes: usize) -> Result<(), Status> {
        // TL and AL are dword 11.
        let is_right = command.cdw[0] == PROTOCOL && (1..=MESSAGE_BYTES_MAX).contains(&bytes);
        if is_right && command.cdw[1] as usize == bytes { Ok(()) } else { Err(Status::INVALID_FIELD) }
    }

    /// The host sends a message (Authentication Send). It hears what comes of it when it asks.
    pub fn send(&mut self, message: &[u8]) {
        let next = match std::mem::replace(&mut self.step, Step::Over) {
            // Who has failed may only ask why.
            Step::Failure1(_) | Step::Over => Ok(Step::Over),
            step => self.next(step, message),
        };
        self.step = next.unwrap_or_else(|failure| {
            self.is_authenticated = false;
            Step::Failure1(failure)
        });
    }

    fn next(&mut self, step: Step, message: &[u8]) -> Result<Step, Failure> {
        let kind: [u8; 2] = *message.first_chunk().ok_or(Failure::IncorrectPayload)?;
        if kind == message::NEGOTIATE {
            return self.negotiate(message);
        }
        let transaction = number(message, at::T_ID, 2).ok_or(Failure::IncorrectPayload)?;
        match (kind, step) {
            // The host does not believe that this is the controller, and goes.
            (message::FAILURE2, _) => {
                self.is_authenticated = false;
                Ok(Step::Over)
            }
            _ if transaction != u32::from(self.transaction) && !planted::has(Bug::AnyTransaction) => {
                Err(Failure::IncorrectPayload)
            }
            (message::REPLY, Step::Reply { terms, challenge, sequence, exponent }) => {
                self.reply(message, terms, &challenge, sequence, &exponent)
            }
            (message::SUCCESS2, step) if matches!(step, Step::Success2) || planted::has(Bug::BelieveSuccess) => {
                self.succeed();
                Ok(Step::Negotiate)
            }
            _ => Err(Failure::IncorrectMessage),
        }
    }

    fn succeed(&mut self) {
        (self.is_authenticated, self.begun) = (true, 0);
    }

    /// "AUTH_Negotiate message": begins a transaction, in place of the one before.
    fn negotiate(&mut self, message: &[u8]) -> Result<Step, Failure> {
        let field = |at: usize| message.get(at).copied().ok_or(Failure::IncorrectPayload);
        self.transaction = number(message, at::T_ID, 2).ok_or(Failure::IncorrectPayload)? as u16;
        if self.begun == TRANSACTIONS_MAX {
            return Err(Failure::Failed);
        }
        self.begun += 1;
        if field(at::SC_C)? != 0 {
            return Err(Failure::ConcatenationMismatch);
        }
        let descriptors = message.get(at::DESCRIPTORS..).unwrap_or_default();
        if descriptors.len() != usize::from(field(at::NAPD)?) * DESCRIPTOR_BYTES {
            return Err(Failure::IncorrectPayload);
        }
        let mut descriptors = descriptors.chunks_exact(DESCRIPTOR_BYTES);
        let descriptor =
            descriptors.find(|descriptor| descriptor[0] == DH_HMAC_CHAP).ok_or(Failure::IncorrectPayload)?;
        let (hashes, groups) = (descriptor[at::HALEN], descriptor[at::DHLEN]);
        if hashes > LIST_MAX || groups > LIST_MAX {
            return Err(Failure::IncorrectPayload);
        }
        let hashes = &descriptor[at::HASHES..][..usize::from(hashes)];
        let groups = &descriptor[at::GROUPS..][..usize::from(groups)];
        let hash = Hash::BY_PREFERENCE.into_iter().find(|hash| hashes.contains(&(*hash as u8)));
        let group = Group::BY_PREFERENCE.into_iter().find(|group| groups.contains(&(*group as u8)));
        if group.is_none() && !groups.contains(&NO_GROUP) {
            return Err(Failure::GroupUnusable);
        }
        Ok(Step::Challenge(Terms { hash: hash.ok_or(Failure::HashUnusable)?, group }))
    }

    /// "DH-HMAC-CHAP_Reply message".
    fn reply(
        &mut self,
        message: &[u8],
        terms: Terms,
        challenge: &[u8],
        sequence: u32,
        exponent: &[u8; EXPONENT_BYTES],
    ) -> Result<Step, Failure> {
        let Terms { hash, group } = terms;
        let values = message.get(at::VALUES..).ok_or(Failure::IncorrectPayload)?;
        let length = usize::from(message[at::HL]);
        let public_bytes = usize::from(u16::from_le_bytes([message[at::DHVLEN], message[at::DHVLEN + 1]]));
        if length != hash.bytes() || values.len() != 2 * length + public_bytes {
            return Err(Failure::IncorrectPayload);
        }
        let (response, values) = values.split_at(length);
        let (counter_challenge, public) = values.split_at(length);
        let key = match group {
            None if public.is_empty() => None,
            None => return Err(Failure::IncorrectPayload),
            Some(group) => Some(group.shared(public, exponent).ok_or(Failure::GroupUnusable)?),
        };
        let key = key.as_deref().map(Vec::as_slice);
        let host = Prover { secret: &self.secrets.host, own: &self.host, label: "HostHost", other: &self.subsystem };
        let expected = host.response(hash, key, challenge, sequence, self.transaction);
        let is_right = bool::from(expected.as_slice().ct_eq(response)) || planted::has(Bug::BelieveResponse);
        if !is_right {
            return Err(Failure::Failed);
        }
        let sequence = number(message, at::SEQNUM, 4).unwrap_or_default();
        // A challenge without a sequence number is none to be answered: it would be for a secure channel's key.
        if message[at::CVALID] & 1 == 0 || sequence == 0 {
            self.succeed();
            return Ok(Step::Success1 { hash, response: None });
        }
        // What this controller has asked itself is no question; and one without a secret proves nothing.
        let Some(secret) = self
            .secrets
            .controller
            .as_ref()
            .filter(|_| challenge != counter_challenge || planted::has(Bug::AnswerReflection))
        else {
            return Err(Failure::Failed);
        };
        let own = Prover { secret, own: &self.subsystem, label: "Controller", other: &self.host };
        let response = own.response(hash, key, counter_challenge, sequence, self.transaction);
        Ok(Step::Success1 { hash, response: Some(response) })
    }

    /// The host takes a message of at most `room` bytes (Authentication Receive).
    ///
    /// # Errors
    /// It does not fit: the same message may be asked for again.
    pub fn receive(&mut self, room: usize, random: &[u8; RANDOM_BYTES]) -> Result<Vec<u8>, Status> {
        let message = match &self.step {
            Step::Challenge(terms) => self.challenge(*terms, random),
            Step::Success1 { hash, response } => self.success1(*hash, response.as_deref()),
            Step::Failure1(failure) => self.failure1(*failure),
            _ => self.failure1(Failure::IncorrectMessage),
        };
        if message.len() > room {
            return Err(Status::INVALID_FIELD);
        }
        self.step = match std::mem::replace(&mut self.step, Step::Over) {
            Step::Challenge(terms) => {
                let (challenge, exponent, sequence) = parts(terms.hash, random);
                Step::Reply { terms, challenge: challenge.to_vec(), sequence, exponent: Zeroizing::new(*exponent) }
            }
            Step::Success1 { response: Some(_), .. } => Step::Success2,
            Step::Success1 { .. } => Step::Negotiate,
            _ => {
                self.is_authenticated = false;
                Step::Over
            }
        };
        Ok(message)
    }

    /// "DH-HMAC-CHAP_Challenge message".
    fn challenge(&self, terms: Terms, random: &[u8; RANDOM_BYTES]) -> Vec<u8> {
        let (challenge, exponent, sequence) = parts(terms.hash, random);
        let public = terms.group.map_or_else(Vec::new, |group| group.public(exponent));
        let mut bytes = self.head(message::CHALLENGE);
        bytes.extend([challenge.len() as u8, 0, terms.hash as u8, terms.group.map_or(NO_GROUP, |group| group as u8)]);
        bytes.extend((public.len() as u16).to_le_bytes());
        bytes.extend(sequence.to_le_bytes());
        bytes.extend(challenge);
        bytes.extend(public);
        bytes
    }

    /// "DH-HMAC-CHAP_Success1 message".
    fn success1(&self, hash: Hash, response: Option<&Vec<u8>>) -> Vec<u8> {
        let mut bytes = self.head(message::SUCCESS1);
        bytes.extend([hash.bytes() as u8, 0, u8::from(response.is_some()), 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(response.into_iter().flatten());
        bytes
    }

    /// "AUTH_Failure1 message".
    fn failure1(&self, failure: Failure) -> Vec<u8> {
        let mut bytes = self.head(message::FAILURE1);
        bytes.extend([1, failure as u8]);
        bytes
    }

    fn head(&self, kind: [u8; 2]) -> Vec<u8> {
        let mut bytes = vec![kind[0], kind[1], 0, 0];
        bytes.extend(self.transaction.to_le_bytes());
        bytes
    }
}

/// A challenge, a private exponent and a sequence number, which is not zero, of random bytes.
fn parts(hash: Hash, random: &[u8; RANDOM_BYTES]) -> (&[u8], &[u8; EXPONENT_BYTES], u32) {
    let (challenge, rest) = random.split_at(CHALLENGE_BYTES_MAX);
    let (exponent, rest) = rest.split_first_chunk().expect("there are enough bytes");
    let sequence = u32::from_le_bytes(*rest.first_chunk().expect("there are enough bytes"));
    (&challenge[..hash.bytes()], exponent, sequence.max(1))
}

/// A number of two or four bytes.
fn number(message: &[u8], at: usize, bytes: usize) -> Option<u32> {
    Some(message.get(at..at + bytes)?.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// Who answers a challenge.
struct Prover<'a> {
    secret: &'a super::Secret,
    own: &'a str,
    label: &'a str,
    other: &'a str,
}

impl Prover<'_> {
    /// "DH-HMAC-CHAP responses". `key`: what both have in common by the exchange, if there is one.
    fn response(
        &self,
        hash: Hash,
        key: Option<&[u8]>,
        challenge: &[u8],
        sequence: u32,
        transaction: u16,
    ) -> Zeroizing<Vec<u8>> {
        let key = key.filter(|_| !planted::has(Bug::ForgetKey));
        let augmented = key.map(|key| hash.mac(&hash.of(key), &[challenge]));
        let challenge = augmented.as_deref().map_or(challenge, Vec::as_slice);
        let secret = self.secret.transformed(self.own);
        let parts: [&[u8]; 8] = [
            challenge,
            &sequence.to_le_bytes(),
            &transaction.to_le_bytes(),
            // SC_C.
            &[0],
            self.label.as_bytes(),
            self.own.as_bytes(),
            &[0],
            self.other.as_bytes(),
        ];
        hash.mac(&secret, &parts)
    }
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
