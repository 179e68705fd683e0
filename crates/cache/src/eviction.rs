//! The trait that every eviction policy implements, and the registry by name.
//!
//! A policy is told which pages come in, are used and leave, and names the victim when a frame is needed. It is
//! never trusted: [`crate::Cache`] checks each victim, counts a wrong one and takes another itself. What a policy
//! need not know it is not told: a pinned page, and one whose bytes are still on the way, are not in its hands.

use std::collections::BTreeMap;

use crate::cache::PolicyFault;
use crate::error::{ParameterError, PolicyError, UnknownPolicy};
use crate::flags::Flags;
use crate::policies::{Arc, Clock, Fifo, Lifo, Lru, Mru, Random, S3Fifo, Sieve};

/// The frames that a policy rules over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of sets; 1 is fully associative.
    pub sets: u32,
    /// Frames of a set. Set `s` has the frames `s * ways` to `s * ways + ways - 1`.
    pub ways: u32,
    /// Pages that a set holds once it is full: `ways` less the frames that are kept free.
    pub pages_per_set: u32,
}

impl Shape {
    /// All frames.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.sets * self.ways
    }
}

/// What a policy remembers of a page that is about to come in: 0 is nothing; 1 to 3 are the policy's own. The cache
/// keeps it while the bytes are on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recall(u8);

impl Recall {
    /// It remembers nothing.
    pub const NOTHING: Recall = Recall(0);

    /// One of the policy's own meanings.
    ///
    /// # Panics
    /// When `meaning` is above 3.
    #[must_use]
    #[inline]
    pub const fn new(meaning: u8) -> Self {
        assert!(meaning <= 3, "a recall has two bits");
        Recall(meaning)
    }

    /// The meaning, from 0.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A look at the frames, for a policy that wants to know more before it names a victim.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    pub(crate) pages: &'a [u64],
    pub(crate) flags: &'a [Flags],
}

impl Frames<'_> {
    /// The page in a frame that the policy has.
    #[must_use]
    #[inline]
    pub fn page(&self, frame: u32) -> u64 {
        self.pages[frame as usize]
    }

    /// Whether that page must be written before it can leave.
    #[must_use]
    pub fn is_dirty(&self, frame: u32) -> bool {
        self.flags[frame as usize].has(Flags::DIRTY)
    }
}

/// Decides which page leaves. Frames are numbered through all sets; a policy works in each set by itself.
///
/// The same calls from its creation on must give the same answers.
pub trait Eviction: Send {
    /// `page` is not resident and is about to come in: wanted by a request if `demanded`, else by a prefetch.
    fn incoming(&mut self, set: u32, page: u64, demanded: bool) -> Recall {
        let _ = (set, page, demanded);
        Recall::NOTHING
    }

    /// `page` is now in `frame`, which the policy is given. `recall` is what [`Eviction::incoming`] said of it;
    /// nothing for a page that was unpinned or that another policy had before.
    fn inserted(&mut self, set: u32, frame: u32, page: u64, recall: Recall);

    /// A page that the policy has was used. Not every use is seen: where the host maps a page, hits are sampled
    /// or unknown; and requests that were merged with the fill of their page count as the one that began it.
    fn touched(&mut self, set: u32, frame: u32);

    /// Names the frame of `set` whose page leaves, and gives it up. `recall` is of the page that needs the frame;
    /// nothing where frames are only kept in reserve. No frame means that it has none, or that it failed.
    fn victim(&mut self, set: u32, recall: Recall, frames: &Frames<'_>) -> Option<u32>;

    /// `frame` leaves the policy's hands for another reason: its page was pinned, evicted by command, or taken
    /// because the policy named no good victim.
    fn removed(&mut self, set: u32, frame: u32);

    /// It named a wrong victim or none. The cache has taken another, and [`Eviction::removed`] has said which.
    fn overruled(&mut self, fault: &PolicyFault) {
        let _ = fault;
    }

    /// Why it can decide no more, and for good; nothing from a policy that cannot fail. A driver ends its run with
    /// this: what has left since was not the policy's choice. [`crate::Cache::policy_failure`] asks it.
    fn failure(&self) -> Option<&str> {
        None
    }
}

impl Eviction for Box<dyn Eviction> {
    fn incoming(&mut self, set: u32, page: u64, demanded: bool) -> Recall {
        (**self).incoming(set, page, demanded)
    }

    fn inserted(&mut self, set: u32, frame: u32, page: u64, recall: Recall) {
        (**self).inserted(set, frame, page, recall);
    }

    fn touched(&mut self, set: u32, frame: u32) {
        (**self).touched(set, frame);
    }

    fn victim(&mut self, set: u32, recall: Recall, frames: &Frames<'_>) -> Option<u32> {
        (**self).victim(set, recall, frames)
    }

    fn removed(&mut self, set: u32, frame: u32) {
        (**self).removed(set, frame);
    }

    fn overruled(&mut self, fault: &PolicyFault) {
        (**self).overruled(fault);
    }

    fn failure(&self) -> Option<&str> {
        (**self).failure()
    }
}

/// Parameters of a policy by name, as a profile gives them.
pub type ParameterValues = BTreeMap<String, u64>;

/// One parameter that a policy understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its key.
    pub name: &'static str,
    /// What it is where none is given: the published value.
    pub default: u64,
    /// Least value.
    pub min: u64,
    /// Greatest value.
    pub max: u64,
    /// One line: what it means, with its unit, and who says the default.
    pub about: &'static str,
}

/// The parameters of one policy, each given or its default.
#[derive(Clone, Debug)]
pub struct Parameters(Vec<(&'static str, u64)>);

impl Parameters {
    /// Checks what was given against what is known.
    pub(crate) fn resolve(
        policy: &'static str,
        known: &'static [Parameter],
        given: &ParameterValues,
    ) -> Result<Self, ParameterError> {
        for (key, value) in given {
            let Some(parameter) = known.iter().find(|parameter| parameter.name == key) else {
                let known = known.iter().map(|parameter| parameter.name).collect();
                return Err(ParameterError::Unknown { policy, key: key.clone(), known });
            };
            let Parameter { name, min, max, about, .. } = *parameter;
            if *value < min || *value > max {
                return Err(ParameterError::OutOfRange { policy, name, value: *value, min, max, about });
            }
        }
        let value = |parameter: &Parameter| given.get(parameter.name).copied().unwrap_or(parameter.default);
        Ok(Self(known.iter().map(|parameter| (parameter.name, value(parameter))).collect()))
    }

    /// The value of a parameter that the policy listed.
    ///
    /// # Panics
    /// When it listed none of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.expect("the policy lists its parameters").1
    }
}

/// A policy of this crate: it has a name and is made from parameters.
pub trait Named: Eviction + Sized {
    /// Its name in profiles and on the command line.
    const NAME: &'static str;
    /// One line for the help text.
    const SUMMARY: &'static str;
    /// What it understands.
    const PARAMETERS: &'static [Parameter];

    /// A policy with no page. `seed` is for those that draw numbers.
    fn new(shape: Shape, parameters: &Parameters, seed: u64) -> Self;
}

/// One registered policy.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInfo {
    /// Its name.
    pub name: &'static str,
    /// One line for the help text.
    pub summary: &'static str,
    /// What it understands.
    pub parameters: &'static [Parameter],
}

/// Something to do with a policy whose type is known when it is compiled; see [`with_policy`].
pub trait Visitor {
    /// What comes out of it.
    type Output;

    /// Does it.
    fn visit<P: Eviction + 'static>(self, policy: P) -> Self::Output;
}

/// Lists the policies: their table, and the way from a name to a type.
macro_rules! policies {
    ($($policy:ty),+ $(,)?) => {
        /// Every policy that works without knowing the future. ([`crate::Belady`] is made from a trace.)
        pub const POLICIES: &[PolicyInfo] = &[$(PolicyInfo {
            name: <$policy>::NAME,
            summary: <$policy>::SUMMARY,
            parameters: <$policy>::PARAMETERS,
        }),+];

        /// Makes the policy of this name and hands it on with its own type, so that what is done with it is
        /// compiled for it: a replay of ten million requests pays for no indirect call.
        ///
        /// # Errors
        /// A name that is not registered, or a parameter that the policy does not have or cannot have.
        pub fn with_policy<V: Visitor>(
            name: &str,
            shape: Shape,
            given: &ParameterValues,
            seed: u64,
            visitor: V,
        ) -> Result<V::Output, PolicyError> {
            match name {
                $(<$policy>::NAME => {
                    let parameters = Parameters::resolve(<$policy>::NAME, <$policy>::PARAMETERS, given)?;
                    Ok(visitor.visit(<$policy>::new(shape, &parameters, seed)))
                })+
                _ => Err(UnknownPolicy::eviction(name).into()),
            }
        }
    };
}

policies!(Fifo, Lifo, Lru, Mru, Clock, S3Fifo, Sieve, Arc, Random);

/// The name and the parameters of a policy's word, as in `s3-fifo:small_permille=200,ghost_permille=500`. Whether there
/// is such a policy is another question.
///
/// # Errors
/// What is no parameter.
pub fn parse_policy(word: &str) -> Result<(&str, ParameterValues), PolicyError> {
    // A path may have a colon in it: what follows is parameters only if it looks like them.
    let (name, text) = word.rsplit_once(':').filter(|(_, text)| text.contains('=')).unwrap_or((word, ""));
    let mut parameters = ParameterValues::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let number = pair.split_once('=').and_then(|(key, value)| Some((key, value.parse().ok()?)));
        let wrong = || PolicyError::Word { word: word.to_owned(), pair: pair.to_owned() };
        let (key, value) = number.ok_or_else(wrong)?;
        parameters.insert(key.to_owned(), value);
    }
    Ok((name, parameters))
}

/// The policy of this name, if it can have these parameters.
///
/// # Errors
/// As [`with_policy`].
pub fn check_policy(name: &str, given: &ParameterValues) -> Result<&'static PolicyInfo, PolicyError> {
    let found = POLICIES.iter().find(|policy| policy.name == name);
    let found = found.ok_or_else(|| UnknownPolicy::eviction(name))?;
    Parameters::resolve(found.name, found.parameters, given)?;
    Ok(found)
}

/// Whether a word where a policy's name stands means the path of a WebAssembly module: it has a `/` in it, or ends in
/// `.wasm`. This crate runs none; whoever has a sandbox makes the policy, and gives it to [`crate::Cache::new`].
#[must_use]
pub fn is_module(word: &str) -> bool {
    word.contains('/') || word.ends_with(".wasm")
}

/// Makes the policy of this name, to be changed while running.
///
/// # Errors
/// As [`with_policy`].
pub fn policy(name: &str, shape: Shape, given: &ParameterValues, seed: u64) -> Result<Box<dyn Eviction>, PolicyError> {
    struct Boxed;
    impl Visitor for Boxed {
        type Output = Box<dyn Eviction>;
        fn visit<P: Eviction + 'static>(self, policy: P) -> Box<dyn Eviction> {
            Box::new(policy)
        }
    }
    with_policy(name, shape, given, seed, Boxed)
}
