//! From a file to a module that policies are made of.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use osier_cache::{Eviction, ParameterValues, PolicyError, Shape};
use wasmtime::{Engine, InstancePre, Linker};

use super::instance::{Host, WasmPolicy, add_imports};
use super::{POLICY_ABI_VERSION, check};
use crate::abi::MODULE_BYTES_MAX;
use crate::compile::{CodeCache, CompileError, Compiler, Flavour, config};

/// What a WebAssembly file begins with, and what of these begins a core module rather than a component.
const MAGIC: &[u8] = b"\0asm";
const CORE: &[u8] = b"\0asm\x01\0\0\0";

/// A policy that cannot be had from a module.
#[derive(Debug, thiserror::Error)]
#[error("cache policy {module}: {problem}")]
pub struct PolicyModuleError {
    /// The module, as it was named.
    pub module: String,
    /// What is wrong with it.
    #[source]
    pub problem: Problem,
}

/// What is wrong with a module.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("reading it failed: {0}; name another file")]
    Read(io::Error),
    /// Too many bytes.
    #[error("it has more than {MODULE_BYTES_MAX} bytes, the most that are possible; build it optimised and strip it")]
    TooLarge,
    /// Not WebAssembly.
    #[error("it is not a WebAssembly module; build it for wasm32-unknown-unknown")]
    NotWasm,
    /// A component, or a version of the format that is to come.
    #[error("it is a WebAssembly component, or of another version; build a core module, for wasm32-unknown-unknown")]
    NotCore,
    /// It is not valid, or could not be compiled within the bounds.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// An import that the ABI does not have.
    #[error("it imports `{from}.{name}`, which the host does not have; docs/abi-cache-policy.md lists what it has")]
    UnknownImport {
        /// The import's module.
        from: String,
        /// The import's name.
        name: String,
    },
    /// An import or export of the ABI of another type.
    #[error("its `{name}` has the type {found}, the ABI says {wanted}")]
    WrongType {
        /// Which.
        name: String,
        /// What the module has.
        found: String,
        /// What the ABI says.
        wanted: &'static str,
    },
    /// An export that has to be there.
    #[error("it does not export `{0}`; docs/abi-cache-policy.md says what a policy exports")]
    MissingExport(&'static str),
    /// An export of a function's name that is none.
    #[error("it exports `{0}`, and not as a function")]
    NoFunction(&'static str),
    /// A memory that cannot be used.
    #[error("its `memory` is not a 32-bit memory of its own; link it without shared memory")]
    Memory,
    /// Built for another ABI.
    #[error(
        "its `osier_policy_abi` answers {0}, this program has version {POLICY_ABI_VERSION}; build it with a matching SDK"
    )]
    Abi(i32),
    /// One of its functions failed.
    #[error("`{function}` failed: {reason}")]
    Failed {
        /// Which; `start` where it was being instantiated.
        function: &'static str,
        /// How.
        reason: String,
    },
    /// It refuses.
    #[error("its `osier_policy_new` refuses: {0}")]
    Refused(String),
    /// A parameter that it does not have.
    #[error("it has no parameter `{key}`; {known}")]
    UnknownParameter {
        /// The key that was given.
        key: String,
        /// Those that it asked for.
        known: String,
    },
}

/// A module that is checked and compiled.
#[derive(Clone)]
pub struct PolicyModule {
    name: String,
    ready: InstancePre<Host>,
}

impl std::fmt::Debug for PolicyModule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PolicyModule({})", self.name)
    }
}

impl PolicyModule {
    /// Reads a module's file, compiles and checks it. `compiler` bounds the time and memory of compiling where it is
    /// [`Compiler::Child`].
    ///
    /// # Errors
    /// [`PolicyModuleError`], which names the file.
    pub fn load(path: &Path, cache: &CodeCache, compiler: &Compiler<'_>) -> Result<PolicyModule, PolicyModuleError> {
        let name = path.display().to_string();
        match read(path) {
            Ok(wasm) => PolicyModule::new(&name, &wasm, cache, compiler),
            Err(problem) => Err(PolicyModuleError { module: name, problem }),
        }
    }

    /// The same with the module's bytes.
    ///
    /// # Errors
    /// [`PolicyModuleError`].
    pub fn new(
        name: &str,
        wasm: &[u8],
        cache: &CodeCache,
        compiler: &Compiler<'_>,
    ) -> Result<PolicyModule, PolicyModuleError> {
        let ready = prepare(name, wasm, cache, compiler);
        let ready = ready.map_err(|problem| PolicyModuleError { module: name.to_owned(), problem })?;
        Ok(PolicyModule { name: name.to_owned(), ready })
    }

    /// The module, as it was named.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An instance: a policy with no page.
    ///
    /// # Errors
    /// A module of another ABI, one that fails or refuses, and a parameter that it does not have or cannot have.
    pub fn policy(&self, shape: Shape, given: &ParameterValues, seed: u64) -> Result<WasmPolicy, PolicyModuleError> {
        let made = WasmPolicy::new(&self.name, &self.ready, shape, given, seed);
        made.map_err(|problem| PolicyModuleError { module: self.name.clone(), problem })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    let mut wasm = Vec::new();
    // Not its length beforehand: a device file has none.
    let file = File::open(path).map_err(Problem::Read)?;
    file.take(MODULE_BYTES_MAX as u64 + 1).read_to_end(&mut wasm).map_err(Problem::Read)?;
    Ok(wasm)
}

fn prepare(name: &str, wasm: &[u8], cache: &CodeCache, compiler: &Compiler<'_>) -> Result<InstancePre<Host>, Problem> {
    if wasm.len() > MODULE_BYTES_MAX {
        return Err(Problem::TooLarge);
    }
    if !wasm.starts_with(CORE) {
        return Err(if wasm.starts_with(MAGIC) { Problem::NotCore } else { Problem::NotWasm });
    }
    let unusable = |error: wasmtime::Error| Problem::Compile(CompileError::Engine(format!("{error:#}")));
    // Bounded as an untrusted actor is, but its memory is its own and may grow.
    let mut config = config(Flavour::Untrusted);
    config.enable_compiler(false);
    let engine = Engine::new(&config).map_err(unusable)?;
    let module = cache.module(&engine, name, wasm, Flavour::Untrusted, compiler)?;
    check::check(&module)?;
    let mut linker = Linker::new(&engine);
    add_imports(&mut linker).map_err(unusable)?;
    linker.instantiate_pre(&module).map_err(unusable)
}

/// Where a policy comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// From `osier-cache`, by its name.
    Name(String),
    /// From a module.
    Module(PolicyModule),
}

/// A policy that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Of `osier-cache`.
    #[error("{0}; a module is named by its path, with a `/` in it or `.wasm` at its end")]
    Name(#[source] PolicyError),
    /// Of a module.
    #[error(transparent)]
    Module(#[from] PolicyModuleError),
}

impl Source {
    /// What a word means. A path that is not absolute begins at the working directory.
    ///
    /// # Errors
    /// A module that is refused. Whether there is a policy of a name is seen when one is made.
    pub fn find(word: &str, cache: &CodeCache, compiler: &Compiler<'_>) -> Result<Source, PolicyModuleError> {
        if !osier_cache::is_module(word) {
            return Ok(Source::Name(word.to_owned()));
        }
        PolicyModule::load(Path::new(word), cache, compiler).map(Source::Module)
    }

    /// Makes a policy.
    ///
    /// # Errors
    /// No policy of that name, a parameter that it does not have, a module that fails.
    pub fn policy(
        &self,
        shape: Shape,
        parameters: &ParameterValues,
        seed: u64,
    ) -> Result<Box<dyn Eviction>, SourceError> {
        match self {
            Source::Name(name) => osier_cache::policy(name, shape, parameters, seed).map_err(SourceError::Name),
            Source::Module(module) => Ok(Box::new(module.policy(shape, parameters, seed)?)),
        }
    }
}
