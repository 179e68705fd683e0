//! What is said over the control socket: a line, and a line in answer. For programs that cannot map a ring, and for
//! people.
//!
//! | request | answer |
//! | --- | --- |
//! | `prefetch`, `pin`, `unpin`, `evict`, then the first page and the one past the last | `ok DONE IDLE REFUSED` |
//! | `policy`, then its word, as in `s3-fifo:small_permille=200` | `ok 1 0 0` |
//! | `stats` | `stats`, then an object of JSON |
//!
//! Anything else, and what cannot be done, is answered with `error` and the reason.

use std::fmt;

use osier_cache::{PolicyError, parse_policy};

use super::{Command, Report};

/// Bytes of a request, at most, without the end of its line.
pub const REQUEST_MAX: usize = 1024;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A command; what it pins belongs to nobody's program, and stays until it is unpinned here.
    Command(Command),
    /// The figures.
    Stats,
}

/// Why a line is no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Not a word of these.
    #[error("there is no request {0:?}; there are prefetch, pin, unpin, evict, policy and stats")]
    Unknown(String),
    /// Not two numbers.
    #[error("{word} takes two numbers, the first page and the one past the last; {rest:?} are not")]
    Pages {
        /// The request.
        word: &'static str,
        /// What came with it.
        rest: String,
    },
    /// It has no arguments.
    #[error("stats takes nothing, and was given {0:?}")]
    Stats(String),
    /// The policy's word cannot be read.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl Request {
    /// What a line asks for, without its end.
    ///
    /// # Errors
    /// Why it asks for nothing.
    pub fn parse(line: &str) -> Result<Request, RequestError> {
        let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let rest = rest.trim();
        let pages = |word| {
            let numbers =
                rest.split_once(' ').and_then(|(first, end)| Some((first.parse().ok()?, end.trim().parse().ok()?)));
            let (first, end) = numbers.ok_or_else(|| RequestError::Pages { word, rest: rest.to_owned() })?;
            Ok::<_, RequestError>(std::ops::Range::<u64> { start: first, end })
        };
        let command = match word {
            "prefetch" => Command::Prefetch(pages("prefetch")?),
            "pin" => Command::Pin(pages("pin")?),
            "unpin" => Command::Unpin(pages("unpin")?),
            "evict" => Command::Evict(pages("evict")?),
            "policy" => {
                let (name, parameters) = parse_policy(rest)?;
                Command::Policy { name: name.to_owned(), parameters }
            }
            "stats" if rest.is_empty() => return Ok(Request::Stats),
            "stats" => return Err(RequestError::Stats(rest.to_owned())),
            _ => return Err(RequestError::Unknown(word.to_owned())),
        };
        Ok(Request::Command(command))
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, pages) = match self {
            Request::Stats => return f.write_str("stats"),
            Request::Command(Command::Policy { name, parameters }) => {
                let pairs: Vec<String> = parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
                let separator = if pairs.is_empty() { "" } else { ":" };
                return write!(f, "policy {name}{separator}{}", pairs.join(","));
            }
            Request::Command(Command::Prefetch(pages)) => ("prefetch", pages),
            Request::Command(Command::Pin(pages)) => ("pin", pages),
            Request::Command(Command::Unpin(pages)) => ("unpin", pages),
            Request::Command(Command::Evict(pages)) => ("evict", pages),
        };
        write!(f, "{word} {} {}", pages.start, pages.end)
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A command has ended.
    Ended(Report),
    /// The figures, as JSON in one line.
    Stats(String),
    /// It was not done.
    Error(String),
}

impl Answer {
    /// What a line answers, without its end; nothing if it is no answer.
    #[must_use]
    pub fn parse(line: &str) -> Option<Answer> {
        let (word, rest) = line.split_once(' ')?;
        match word {
            "ok" => {
                let numbers: Option<Vec<u64>> = rest.split(' ').map(|number| number.parse().ok()).collect();
                let [done, idle, refused] = numbers?.try_into().ok()?;
                Some(Answer::Ended(Report { done, idle, refused }))
            }
            "stats" => Some(Answer::Stats(rest.to_owned())),
            "error" => Some(Answer::Error(rest.to_owned())),
            _ => None,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Ended(Report { done, idle, refused }) => write!(f, "ok {done} {idle} {refused}"),
            Answer::Stats(json) => write!(f, "stats {json}"),
            // What was asked may have had any characters; an answer is one line.
            Answer::Error(why) => {
                let line: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                write!(f, "error {line}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use osier_cache::SplitMix64;

    use super::*;

    #[test]
    fn requests_and_answers_are_what_they_were() {
        let lines = [
            "prefetch 1 2",
            "pin 0 18446744073709551615",
            "unpin 5 3",
            "evict 7 7",
            "policy sieve",
            "policy s3-fifo:ghost_permille=5,small_permille=200",
            "stats",
        ];
        for line in lines {
            assert_eq!(Request::parse(line).unwrap().to_string(), line);
        }
        let answers = ["ok 1 2 3", "stats {\"a\": 1}", "error there is none"];
        for line in answers {
            assert_eq!(Answer::parse(line).unwrap().to_string(), line);
        }
        assert_eq!(Answer::Error("a\nb\r".to_owned()).to_string(), "error a b ");
    }

    #[test]
    fn what_is_no_request_is_refused_by_name() {
        let said = |line: &str| Request::parse(line).unwrap_err().to_string();
        assert!(said("frobnicate 1 2").contains("there is no request \"frobnicate\""));
        assert!(said("").contains("there is no request \"\""));
        for line in ["evict", "evict 1", "evict 1 x", "evict -1 4", "evict 1 2 3", "evict 1 18446744073709551616"] {
            assert!(said(line).contains("evict takes two numbers"), "{line}");
        }
        assert!(said("stats all").contains("\"all\""));
        assert!(said("policy s3-fifo:small_permille=much").contains("`small_permille=much`"));
        for line in ["ok", "ok 1 2", "ok 1 2 3 4", "well 1 2 3", "ok 1 2 x"] {
            assert_eq!(Answer::parse(line), None, "{line}");
        }
    }

    #[test]
    fn any_bytes_are_borne() {
        let mut random = SplitMix64::new(1);
        let words =
            ["evict", "pin", "policy", "stats", ":", "=", ",", "0", "18446744073709551615", "s3-fifo", "-", "é"];
        for _ in 0..20_000 {
            let parts = (0..random.below(6)).map(|_| words[random.below(words.len() as u64) as usize]);
            let line = parts.collect::<Vec<_>>().join(if random.below(2) == 0 { " " } else { "" });
            if let Ok(request) = Request::parse(&line) {
                assert_eq!(Request::parse(&request.to_string()), Ok(request), "{line}");
            }
            let _ = Answer::parse(&line);
        }
    }
}
