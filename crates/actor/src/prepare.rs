//! From pipelines to loaded code: fetch each actor's module, check it, compile it or find it compiled.
//!
//! The supervisor prepares first, with a compiler, and reports what is refused. The domains then prepare the
//! same pipelines from the cache, without one.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use osier_domain::ActorId;
use osier_domain::arena::Layout;

use crate::arena::Arena;
use crate::compile::{Code, CodeCache, CompileError, Compiler, Engines, Flavour};
use crate::install::{self, Facts, Reason, Refusal};
use crate::intrinsics::KeyRing;
use crate::module::{Digest, ModuleStore, ModuleStoreError};
use crate::pipeline::{ActorDef, Pipelines, Source};
use crate::sandbox::{Sandbox, SandboxError, Setting};
use crate::segment::Segment;
use crate::state::StateRing;

/// One actor, ready to be instantiated.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The SHA-256 of its module.
    pub digest: Digest,
    /// What its module is like.
    pub facts: Facts,
    /// Its machine code.
    pub code: Code,
}

impl Prepared {
    /// Bytes of the shared object for its memory.
    pub fn memory_bytes(&self, layout: &Layout) -> u64 {
        self.facts.memory_bytes(layout, self.code.flavour == Flavour::Trusted)
    }

    /// Bytes of the shared object for its shared state; 0 if it has none.
    pub fn state_bytes(&self, layout: &Layout) -> u64 {
        if self.facts.uses_state { StateRing::object_bytes(layout).unwrap_or(0) } else { 0 }
    }
}

/// Why an actor could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// Its module cannot be read.
    #[error("actor {actor}: {error}")]
    Module {
        /// Which.
        actor: String,
        /// What happened.
        #[source]
        error: ModuleStoreError,
    },
    /// Its module is refused.
    #[error("actor {actor}: {refusal}")]
    Refused {
        /// Which.
        actor: String,
        /// Why.
        #[source]
        refusal: Refusal,
    },
    /// There is no machine code.
    #[error("actor {actor}: {error}")]
    Compile {
        /// Which.
        actor: String,
        /// Why.
        #[source]
        error: CompileError,
    },
    /// It keeps state, and more requests can be in flight than its versions can tell apart.
    #[error(
        "actor {actor} keeps shared state, for which {slots} slots in all are too many; lower `slots` to 1022 in all"
    )]
    Slots {
        /// Which.
        actor: String,
        /// How many there are.
        slots: u16,
    },
    /// The stage names a key that the device does not have.
    #[error(
        "actor {actor} seals with key {key}, which the device does not have; give it to the device or change `key`"
    )]
    Key {
        /// Which.
        actor: String,
        /// The id.
        key: u16,
    },
    /// It does not come up.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Memory for trying it out.
    #[error("making memory to try out actors: {0}")]
    Memory(io::Error),
}

/// Prepares every actor, in the order of their numbers. Built-in modules are compiled in this process whatever
/// `compiler` says, unless it is [`Compiler::CacheOnly`].
///
/// # Errors
/// The first [`PrepareError`].
pub fn prepare(
    pipelines: &Pipelines,
    store: &ModuleStore,
    cache: &CodeCache,
    engines: &Engines,
    compiler: &Compiler<'_>,
) -> Result<Vec<Prepared>, PrepareError> {
    let layout = pipelines.layout();
    let mut loaded: BTreeMap<(Digest, bool), Code> = BTreeMap::new();
    let mut prepared = Vec::new();
    for actor in pipelines.actors() {
        let wasm = wasm(actor, store)?;
        let digest = Digest::of(&wasm);
        let facts = check(actor, &wasm, &layout)?;
        let code = match loaded.get(&(digest, actor.stage.trusted)) {
            Some(code) => code.clone(),
            None => {
                let flavour = if actor.stage.trusted { Flavour::Trusted } else { Flavour::Untrusted };
                let compiler = match (&actor.stage.source, compiler) {
                    (Source::Builtin(_), Compiler::Child { .. }) => &Compiler::InProcess,
                    _ => compiler,
                };
                let code = cache.load(engines, &actor.stage.name, &wasm, flavour, compiler);
                code.map_err(|error| PrepareError::Compile { actor: actor.label(), error })?
            }
        };
        loaded.insert((digest, actor.stage.trusted), code.clone());
        prepared.push(Prepared { digest, facts, code });
    }
    Ok(prepared)
}

fn wasm(actor: &ActorDef, store: &ModuleStore) -> Result<Vec<u8>, PrepareError> {
    match &actor.stage.source {
        // A registry that names a built-in that is not there was refused when it was read.
        Source::Builtin(name) => Ok(crate::builtin::find(name).map_or_else(Vec::new, |b| b.wasm.to_vec())),
        Source::Stored(digest) => {
            store.get(digest).map_err(|error| PrepareError::Module { actor: actor.label(), error })
        }
    }
}

fn check(actor: &ActorDef, wasm: &[u8], layout: &Layout) -> Result<Facts, PrepareError> {
    let refused = |refusal| PrepareError::Refused { actor: actor.label(), refusal };
    let because = |reason| refused(Refusal { module: actor.stage.name.clone(), reason });
    let facts = install::check(&actor.stage.name, wasm, actor.limits.memory_kib_max).map_err(refused)?;
    facts.check_room(layout, actor.stage.trusted).map_err(because)?;
    if facts.uses_seal && actor.stage.key.is_none() {
        return Err(because(Reason::NoKey("aead_seal")));
    }
    if facts.uses_state && StateRing::object_bytes(layout).is_none() {
        return Err(PrepareError::Slots { actor: actor.label(), slots: layout.slots });
    }
    Ok(facts)
}

/// Instantiates every actor once, on private pages, so that a module of another ABI, an `osier_init` that
/// refuses its parameters, and a missing key are found before traffic runs. Answers what failed, by actor.
///
/// # Errors
/// [`PrepareError::Memory`] if nothing can be tried at all.
pub fn try_out(
    pipelines: &Pipelines,
    prepared: &[Prepared],
    engines: &Engines,
    keys: &Arc<KeyRing>,
) -> Result<Vec<(ActorId, PrepareError)>, PrepareError> {
    let layout = Layout { slots: 1, request_blocks_max: 1, unit_blocks: 1 };
    let segment = Segment::anonymous(c"try-out", Arena::object_bytes(&layout)).map_err(PrepareError::Memory)?;
    let arena = Arc::new(Arena::new(&segment, layout).map_err(PrepareError::Memory)?);
    let mut failures = Vec::new();
    for (actor, prepared) in pipelines.actors().iter().zip(prepared) {
        if let Some(key) = actor.stage.key.filter(|key| !keys.has(*key)) {
            failures.push((actor.id, PrepareError::Key { actor: actor.label(), key }));
            continue;
        }
        let setting = setting(actor, keys, 0, &arena);
        if let Err(error) = Sandbox::new(engines, &prepared.code, &prepared.facts, setting) {
            failures.push((actor.id, error.into()));
        }
    }
    Ok(failures)
}

pub(crate) fn setting(actor: &ActorDef, keys: &Arc<KeyRing>, incarnation: u32, arena: &Arc<Arena>) -> Setting {
    Setting {
        label: actor.label(),
        params: actor.stage.params.clone(),
        key: actor.stage.key,
        keys: keys.clone(),
        incarnation,
        arena: arena.clone(),
    }
}
