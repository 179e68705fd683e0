//! Fixed newstyle negotiation: options and their replies ("Option types").

use std::sync::Arc;

use super::transmission::Transmission;
use super::{End, Event, Info, Phase, Security, Session, Step};
use crate::nbd::planted::{self, Bug};
use crate::nbd::wire::{
    self, CLIENT_FLAGS_BYTES, ContextRequest, Headers, InfoRequest, OptionHeader, export_flag, option, reply,
};
use crate::volume::BLOCK_BYTES;
use osier_nvme::stream::Part;

/// What was agreed on so far.
pub struct Negotiation {
    exports: Arc<[String]>,
    no_zeroes: bool,
    headers: Headers,
    /// The export for which `base:allocation` was chosen.
    context: Option<String>,
}

/// An export that is being looked at.
pub struct Opening {
    option: u32,
    name: String,
    wants_name: bool,
    wants_block_size: bool,
}

impl Negotiation {
    pub fn new(exports: Arc<[String]>) -> Negotiation {
        Negotiation { exports, no_zeroes: false, headers: Headers::Simple, context: None }
    }

    /// The export of that name; the empty name is the first one's.
    fn find(&self, name: &str) -> Option<&String> {
        if name.is_empty() { self.exports.first() } else { self.exports.iter().find(|export| *export == name) }
    }

    fn unknown(&self, name: &str) -> String {
        format!("there is no export {name:?} here; there is {}", self.exports.join(", "))
    }
}

/// An option is answered with an error of this kind and text.
struct Refused(u32, String);

fn refused<T>(kind: u32, text: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(kind, text.into()))
}

impl Session {
    pub(super) fn client_flags(&mut self) -> Step {
        let Some(flags) = self.stream.input.take::<CLIENT_FLAGS_BYTES>() else { return Step::Blocked };
        let Some(no_zeroes) = wire::parse_client_flags(flags) else {
            return Step::End(End::Violation("client flags that were not offered"));
        };
        self.negotiation.no_zeroes = no_zeroes;
        self.phase = Phase::Options;
        Step::Again
    }

    pub(super) fn next_option(&mut self) -> Step {
        // A client may send no option before the last one is answered; one that does is answered as it reads.
        if !self.stream.out.is_empty() {
            return Step::Blocked;
        }
        let staged = self.stream.input.staged();
        if staged.len() < OptionHeader::BYTES {
            return Step::Blocked;
        }
        let Some(header) = OptionHeader::parse(staged) else {
            return Step::End(End::Violation("an option without its magic"));
        };
        if header.length > self.stream.limits.option_bytes_max {
            self.stream.input.consume(OptionHeader::BYTES);
            return self.skip_option(header);
        }
        let bytes = OptionHeader::BYTES + header.length as usize;
        let Some(data) = staged.get(OptionHeader::BYTES..bytes) else { return Step::Blocked };
        let data = data.to_vec();
        self.stream.input.consume(bytes);
        self.option(header.option, &data)
    }

    fn skip_option(&mut self, header: OptionHeader) -> Step {
        if header.option == option::EXPORT_NAME {
            return Step::End(End::Refused);
        }
        self.stream.input.skip_more(u64::from(header.length));
        let most = self.stream.limits.option_bytes_max;
        let mut out = Vec::new();
        let text = format!("an option has at most {most} bytes of data here");
        wire::option_reply(&mut out, header.option, reply::ERR_TOO_BIG, &[text.as_bytes()]);
        self.stream.postponed = Some(Part::message(out));
        Step::Again
    }

    fn refuse_option(&mut self, option: u32, Refused(kind, text): Refused) {
        let mut out = Vec::new();
        wire::option_reply(&mut out, option, kind, &[text.as_bytes()]);
        self.stream.out.message(out);
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Step {
        if option == option::ABORT {
            let mut out = Vec::new();
            wire::option_reply(&mut out, option, reply::ACK, &[]);
            self.stream.out.message(out);
            return Step::End(End::Disconnected);
        }
        if let Some(refusal) = &self.refusal {
            let (kind, text) = refusal.reply();
            let refused = Refused(kind, text.to_owned());
            return self.refuse_or_end(option, refused);
        }
        let is_early = self.security == Security::Required && !planted::has(Bug::ServeBeforeTls);
        if is_early && option != option::STARTTLS {
            let text = "this server speaks TLS alone: begin it first (nbds://)";
            return self.refuse_or_end(option, Refused(reply::ERR_TLS_REQD, text.to_owned()));
        }
        match option {
            option::STARTTLS if self.security == Security::Required && data.is_empty() => self.start_tls(),
            option::EXPORT_NAME | option::GO | option::INFO => match self.opening(option, data) {
                Ok(opening) => {
                    let name = opening.name.clone();
                    self.phase = Phase::Opening(opening);
                    Step::Event(Event::Open { name })
                }
                Err(refused) => self.refuse_or_end(option, refused),
            },
            _ => {
                let mut out = Vec::new();
                match self.setting(option, data, &mut out) {
                    Ok(()) => {
                        wire::option_reply(&mut out, option, reply::ACK, &[]);
                        self.stream.out.message(out);
                    }
                    Err(refused) => self.refuse_option(option, refused),
                }
                Step::Again
            }
        }
    }

    fn start_tls(&mut self) -> Step {
        // Whoever can put bytes behind the option could have them taken for the client's own.
        if !self.stream.input.is_empty() {
            return Step::End(End::Violation("bytes behind NBD_OPT_STARTTLS that are not encrypted"));
        }
        let mut out = Vec::new();
        wire::option_reply(&mut out, option::STARTTLS, reply::ACK, &[]);
        self.stream.out.message(out);
        self.phase = Phase::Securing;
        Step::Event(Event::StartTls)
    }

    /// NBD_OPT_EXPORT_NAME cannot be answered with an error.
    fn refuse_or_end(&mut self, option: u32, refused: Refused) -> Step {
        if option == option::EXPORT_NAME {
            return Step::End(End::Refused);
        }
        self.refuse_option(option, refused);
        Step::Again
    }

    fn opening(&self, option: u32, data: &[u8]) -> Result<Opening, Refused> {
        let request = if option == option::EXPORT_NAME {
            wire::string(data).map(|name| InfoRequest { name, wants_name: false, wants_block_size: false })
        } else {
            InfoRequest::parse(data)
        };
        let Some(InfoRequest { name, wants_name, wants_block_size }) = request else {
            return refused(reply::ERR_INVALID, "the data of the option contradicts its lengths, or is no name");
        };
        if option == option::EXPORT_NAME && self.negotiation.headers == Headers::Extended {
            return refused(reply::ERR_EXT_HEADER_REQD, "with extended headers, NBD_OPT_GO is to be used");
        }
        let Some(name) = self.negotiation.find(name) else {
            return refused(reply::ERR_UNKNOWN, self.negotiation.unknown(name));
        };
        Ok(Opening { option, name: name.clone(), wants_name, wants_block_size })
    }

    /// What changes or lists something, and ends with NBD_REP_ACK.
    fn setting(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        let negotiation = &mut self.negotiation;
        match option {
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => return negotiation.contexts(option, data, out),
            option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS | option::STARTTLS => {}
            _ => return refused(reply::ERR_UNSUP, format!("option {option} is not known here")),
        }
        if !data.is_empty() {
            return refused(reply::ERR_INVALID, "this option has no data");
        }
        match option {
            option::LIST => negotiation.exports.iter().for_each(|name| wire::server_reply(out, name)),
            option::STARTTLS if self.security == Security::Secured => {
                return refused(reply::ERR_INVALID, "this connection is encrypted already");
            }
            option::STARTTLS => return refused(reply::ERR_UNSUP, "there is no TLS here; connect without it"),
            option::EXTENDED_HEADERS if negotiation.headers == Headers::Extended => {
                return refused(reply::ERR_INVALID, "extended headers are agreed on already");
            }
            option::EXTENDED_HEADERS => negotiation.headers = Headers::Extended,
            _ => match negotiation.headers {
                Headers::Simple => negotiation.headers = Headers::Structured,
                Headers::Structured => return refused(reply::ERR_INVALID, "structured replies are agreed on already"),
                Headers::Extended => return refused(reply::ERR_EXT_HEADER_REQD, "extended headers are agreed on"),
            },
        }
        Ok(())
    }

    /// The owner has looked at the export. Where the client did not ask to look only, the transmission begins.
    ///
    /// # Panics
    /// When no export was to be looked at.
    pub fn opened(&mut self, info: Result<Info, String>) {
        let Phase::Opening(opening) = &self.phase else { panic!("no export was to be looked at") };
        let option = opening.option;
        let info = match info {
            Ok(info) => info,
            Err(text) => {
                self.phase = Phase::Options;
                if let Step::End(end) = self.refuse_or_end(option, Refused(reply::ERR_UNKNOWN, text)) {
                    self.end = Some(end);
                }
                return;
            }
        };
        let (bytes, flags) = (info.blocks * BLOCK_BYTES as u64, self.export_flags(&info));
        let mut out = Vec::new();
        if option == option::EXPORT_NAME {
            wire::export_name_reply(&mut out, bytes, flags, self.negotiation.no_zeroes);
        } else {
            wire::export_info(&mut out, option, bytes, flags);
            if opening.wants_name {
                wire::name_info(&mut out, option, &opening.name);
            }
            if opening.wants_block_size {
                let sizes = [1, BLOCK_BYTES as u32, self.stream.limits.request_bytes_max];
                wire::block_size_info(&mut out, option, sizes);
            }
            wire::option_reply(&mut out, option, reply::ACK, &[]);
        }
        self.stream.out.message(out);
        self.phase = if option == option::INFO {
            Phase::Options
        } else {
            let has_context = self.negotiation.context.as_ref() == Some(&opening.name);
            Phase::Transmission(Transmission::new(self.negotiation.headers, info, has_context))
        };
    }

    fn export_flags(&self, info: &Info) -> u16 {
        let always = export_flag::HAS_FLAGS
            | export_flag::SEND_FLUSH
            | export_flag::SEND_FUA
            | export_flag::CAN_MULTI_CONN
            | export_flag::SEND_CACHE;
        let of_access = if info.is_read_only {
            export_flag::READ_ONLY
        } else {
            export_flag::SEND_TRIM | export_flag::SEND_WRITE_ZEROES | export_flag::SEND_FAST_ZERO
        };
        let of_headers = if self.negotiation.headers == Headers::Simple { 0 } else { export_flag::SEND_DF };
        always | of_access | of_headers
    }
}

impl Negotiation {
    fn contexts(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        let sets = option == option::SET_META_CONTEXT;
        if sets {
            // "replaces all previously-set metadata contexts (including when this command fails)".
            self.context = None;
        }
        if self.headers == Headers::Simple {
            return refused(reply::ERR_INVALID, "structured replies are to be agreed on first");
        }
        let Some(request) = ContextRequest::parse(data) else {
            return refused(reply::ERR_INVALID, "the data of the option contradicts its lengths");
        };
        let Some(export) = self.find(request.export) else {
            return refused(reply::ERR_UNKNOWN, self.unknown(request.export));
        };
        if request.names_allocation || (!sets && (request.names_base || request.queries == 0)) {
            wire::context_reply(out, option);
            if sets {
                self.context = Some(export.clone());
            }
        }
        Ok(())
    }
}
