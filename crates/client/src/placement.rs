//! Rules of where allocations lie: in the window or in ordinary memory, by their call site and size.
//!
//! A rule is a line of words: `window` or `memory`, and what it is of. `any` is of every call site; `module=NAME`,
//! `module=NAME+0xOFFSET` and `symbol=NAME` name call sites, `depth=N` those of N callers further up, and
//! `size=FROM..TO` bounds the bytes. The first rule that fits decides.

use std::fmt;
use std::ops::Range;

/// Most rules of a run: each is a bit of a word, and one more bit is taken.
pub const RULES_MAX: usize = 63;
/// The furthest caller that a rule may name.
pub const DEPTH_MAX: u8 = 8;

/// Where an allocation lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In the window.
    Window,
    /// In ordinary memory.
    Memory,
}

/// A rule: see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Where allocations go that fit.
    pub placement: Placement,
    /// The file name of a program or library, or what it begins with before a dot.
    pub module: Option<String>,
    /// The return address in the module, as `osier run --call-sites` says it.
    pub offset: Option<u64>,
    /// The name of the function that calls.
    pub symbol: Option<String>,
    /// How many callers further up: 0 is who called `malloc` or `mmap`.
    pub depth: u8,
    /// Bytes asked for.
    pub bytes: Range<u64>,
}

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// It begins with something else.
    #[error("a rule begins with `window` or `memory`, not with `{0}`")]
    Placement(String),
    /// Nothing that a rule says.
    #[error(
        "`{0}` is nothing that a rule says: it has any, module=NAME, module=NAME+0xOFFSET, symbol=NAME, depth=N and \
         size=FROM..TO"
    )]
    Unknown(String),
    /// It is said twice.
    #[error("`{0}` is said twice")]
    Twice(&'static str),
    /// It names nothing.
    #[error("the rule names no call site: say module=NAME, symbol=NAME, or any")]
    NoSite,
    /// `any` beside a call site.
    #[error("`any` names every call site, and a module, symbol or depth beside it none of them: leave one away")]
    AnyAndSite,
    /// An offset is a place in a module, and a symbol another.
    #[error("the rule has an offset and a symbol: leave one away")]
    OffsetAndSymbol,
    /// Not a number of that form.
    #[error("`{0}` is no offset in a module: write it as in module=libfoo.so+0x12f0")]
    Offset(String),
    /// Not a depth.
    #[error("`{0}` is no depth: it is a number from 0 to {DEPTH_MAX}")]
    Depth(String),
    /// Not sizes.
    #[error("`{0}` are no sizes: write them as in 4KiB..1MiB, 4KiB.. or ..4KiB, the second not included")]
    Sizes(String),
    /// More than there may be.
    #[error("there are {0} rules, and {RULES_MAX} may be")]
    TooMany(usize),
}

impl Rule {
    /// Reads a rule; `bytes` reads a size.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &str, bytes: impl Fn(&str) -> Option<u64>) -> Result<Rule, RuleError> {
        let mut words = text.split_whitespace();
        let placement = match words.next().unwrap_or_default() {
            "window" => Placement::Window,
            "memory" => Placement::Memory,
            other => return Err(RuleError::Placement(other.to_owned())),
        };
        let (mut is_any, mut module, mut symbol, mut depth, mut sizes) = (None, None, None, None, None);
        for word in words {
            match word.split_once('=') {
                None if word == "any" => once("any", &mut is_any, ())?,
                Some(("module", name)) if !name.is_empty() => once("module", &mut module, module_of(name)?)?,
                Some(("symbol", name)) if !name.is_empty() => once("symbol", &mut symbol, name.to_owned())?,
                Some(("depth", number)) => once("depth", &mut depth, depth_of(number)?)?,
                Some(("size", range)) => once("size", &mut sizes, sizes_of(range, &bytes)?)?,
                _ => return Err(RuleError::Unknown(word.to_owned())),
            }
        }
        let (module, offset) = module.map_or((None, None), |(name, offset)| (Some(name), offset));
        match (is_any.is_some(), module.is_some() || symbol.is_some()) {
            (false, false) => return Err(RuleError::NoSite),
            (true, true) => return Err(RuleError::AnyAndSite),
            (true, false) if depth.is_some() => return Err(RuleError::AnyAndSite),
            _ if offset.is_some() && symbol.is_some() => return Err(RuleError::OffsetAndSymbol),
            _ => {}
        }
        let (depth, bytes) = (depth.unwrap_or(0), sizes.unwrap_or(0..u64::MAX));
        Ok(Rule { placement, module, offset, symbol, depth, bytes })
    }

    /// Reads what `to_string` has written.
    #[must_use]
    pub fn from_line(line: &str) -> Option<Rule> {
        Rule::parse(line, |text| text.parse().ok()).ok()
    }

    /// Whether it is of every call site.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.module.is_none() && self.symbol.is_none()
    }

    /// Whether it may be of a call site in a module of this file name: `libfoo.so` is `libfoo.so.1` too.
    #[must_use]
    pub fn is_of_module(&self, name: &str) -> bool {
        let starts = |module: &String| name.strip_prefix(module.as_str());
        self.module
            .as_ref()
            .is_none_or(|module| starts(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
    }

    /// Whether it may be of a call site in a function of this name, or in a part that the compiler has split off.
    #[must_use]
    pub fn is_of_symbol(&self, name: &[u8]) -> bool {
        let starts = |symbol: &String| name.strip_prefix(symbol.as_bytes());
        self.symbol
            .as_ref()
            .is_some_and(|symbol| starts(symbol).is_some_and(|rest| rest.is_empty() || rest.starts_with(b".")))
    }
}

fn once<T>(name: &'static str, place: &mut Option<T>, value: T) -> Result<(), RuleError> {
    if place.replace(value).is_some() { Err(RuleError::Twice(name)) } else { Ok(()) }
}

fn module_of(text: &str) -> Result<(String, Option<u64>), RuleError> {
    // A name may have a plus, as in libstdc++.so.6: an offset follows the last, and begins with 0x.
    let Some((name, digits)) = text.rsplit_once("+0x") else { return Ok((text.to_owned(), None)) };
    match u64::from_str_radix(digits, 16) {
        Ok(offset) if !name.is_empty() => Ok((name.to_owned(), Some(offset))),
        _ => Err(RuleError::Offset(text.to_owned())),
    }
}

fn depth_of(text: &str) -> Result<u8, RuleError> {
    let depth = text.parse().ok().filter(|depth| *depth <= DEPTH_MAX);
    depth.ok_or_else(|| RuleError::Depth(text.to_owned()))
}

fn sizes_of(text: &str, bytes: &impl Fn(&str) -> Option<u64>) -> Result<Range<u64>, RuleError> {
    let refuse = || RuleError::Sizes(text.to_owned());
    let (from, to) = text.split_once("..").ok_or_else(refuse)?;
    let bound = |text: &str, otherwise| if text.is_empty() { Some(otherwise) } else { bytes(text) };
    let range = bound(from, 0).zip(bound(to, u64::MAX)).map(|(from, to)| from..to);
    range.filter(|range| !range.is_empty() && text != "..").ok_or_else(refuse)
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.placement == Placement::Window { "window" } else { "memory" })?;
        if self.is_any() {
            f.write_str(" any")?;
        }
        if let Some(module) = &self.module {
            write!(f, " module={module}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, "+{offset:#x}")?;
        }
        if let Some(symbol) = &self.symbol {
            write!(f, " symbol={symbol}")?;
        }
        if self.depth > 0 {
            write!(f, " depth={}", self.depth)?;
        }
        match (self.bytes.start, self.bytes.end) {
            (0, u64::MAX) => Ok(()),
            (from, u64::MAX) => write!(f, " size={from}.."),
            (0, to) => write!(f, " size=..{to}"),
            (from, to) => write!(f, " size={from}..{to}"),
        }
    }
}

/// What `osier run` is told about call sites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallSites {
    /// The first that fits decides; where none does, it is as if there were none.
    pub rules: Vec<Rule>,
    /// So many call sites with most bytes in the window are said at the end.
    pub shown: u32,
    /// They are of so many callers further up.
    pub depth: u8,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn parse(text: &str) -> Result<Rule, RuleError> {
        Rule::parse(text, |text| {
            text.strip_suffix('K').map_or(text.parse().ok(), |k| Some(k.parse::<u64>().ok()? << 10))
        })
    }

    #[test]
    fn a_rule_is_what_its_words_say_and_its_line_says_the_same() {
        let rule = parse("  memory symbol=dictExpand  depth=1 size=4K..  ").unwrap();
        assert_eq!(
            rule,
            Rule {
                placement: Placement::Memory,
                module: None,
                offset: None,
                symbol: Some("dictExpand".into()),
                depth: 1,
                bytes: 4096..u64::MAX,
            }
        );
        let rule = parse("window module=libstdc++.so.6+0x12f0").unwrap();
        assert_eq!((rule.module.as_deref(), rule.offset), (Some("libstdc++.so.6"), Some(0x12f0)));
        for text in [
            "window any",
            "memory any size=..4096",
            "memory module=a symbol=b depth=8 size=1..2",
            "window module=libc++.so+0xa size=7..",
        ] {
            let rule = parse(text).unwrap();
            assert_eq!((rule.to_string().as_str(), Rule::from_line(text)), (text, Some(rule)));
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_by_name() {
        use RuleError::*;
        for (text, error) in [
            ("", Placement(String::new())),
            ("Memory any", Placement("Memory".into())),
            ("memory", NoSite),
            ("memory size=4K..", NoSite),
            ("memory depth=1", NoSite),
            ("memory any symbol=a", AnyAndSite),
            ("memory any depth=1", AnyAndSite),
            ("memory symbol=a symbol=b", Twice("symbol")),
            ("memory symbol=", Unknown("symbol=".into())),
            ("memory sybol=a", Unknown("sybol=a".into())),
            ("memory module=a+0x1 symbol=b", OffsetAndSymbol),
            ("memory module=a+0xyz", Offset("a+0xyz".into())),
            ("memory module=+0x1", Offset("+0x1".into())),
            ("memory symbol=a depth=9", Depth("9".into())),
            ("memory symbol=a depth=-1", Depth("-1".into())),
            ("memory any size=4K", Sizes("4K".into())),
            ("memory any size=..", Sizes("..".into())),
            ("memory any size=2..2", Sizes("2..2".into())),
            ("memory any size=x..", Sizes("x..".into())),
        ] {
            assert_eq!(parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_name_is_that_of_its_versions_and_parts_too() {
        let rule = parse("memory module=libfoo.so symbol=grow").unwrap();
        assert!(rule.is_of_module("libfoo.so") && rule.is_of_module("libfoo.so.1.2"));
        assert!(!rule.is_of_module("libfoo.so1") && !rule.is_of_module("libfoo"));
        assert!(rule.is_of_symbol(b"grow") && rule.is_of_symbol(b"grow.part.0"));
        assert!(!rule.is_of_symbol(b"growth") && !rule.is_of_symbol(b"gro"));
        assert!(parse("memory symbol=a").unwrap().is_of_module("anything"));
        assert!(!parse("memory module=a").unwrap().is_of_symbol(b"a"), "it names no symbol");
    }
}
