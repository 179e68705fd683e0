//! Ahead-of-time compilation, away from the I/O path, and the cache of what it made.
//!
//! Two flavours of machine code: *trusted* actors run unmetered, *untrusted* ones count fuel. A domain's
//! process holds engines without a compiler and loads artefacts from the cache; compiling happens in the
//! supervisor, or, for modules from outside, in a process of its own with bounds on time and memory,
//! because the compiler is the one part of the sandbox that makes no promise about hostile input.
//!
//! An artefact is machine code: whoever can write it runs what he likes. The cache directory is therefore
//! readable and writable for its owner alone, which is checked, and a checksum beside each artefact finds
//! damage. Artefacts of another build have other names; Wasmtime checks settings and processor features.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use wasmtime::{Config, Engine, Module, OperatorCost};

use crate::memory::{Creator, GUARD_BYTES, RESERVATION_BYTES};
use crate::module::{Digest, unique, write_whole};

/// Bytes of stack that WebAssembly may use; deeper recursion traps.
const WASM_STACK_BYTES: usize = 256 << 10;
/// Part of each artefact's name: raised when what is compiled changes without Wasmtime noticing.
const ARTEFACT_FORMAT: &str = concat!("osier-artefact-1 ", env!("CARGO_PKG_VERSION"));

/// How the code of a module is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// Not at all: it yields by itself.
    Trusted,
    /// By fuel.
    Untrusted,
}

impl Flavour {
    fn name(self) -> &'static str {
        match self {
            Flavour::Trusted => "trusted",
            Flavour::Untrusted => "untrusted",
        }
    }
}

/// What bounds a compiling process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Seconds of processor time, and of wall clock after which it is killed.
    pub seconds: u32,
    /// Bytes of address space.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { seconds: 10, bytes: 1 << 30 }
    }
}

/// Who compiles what the cache does not have.
#[derive(Debug, Clone, Copy)]
pub enum Compiler<'a> {
    /// Nobody: it is an error.
    CacheOnly,
    /// This process, for built-in modules, whose text is ours.
    InProcess,
    /// A process of its own: `program` is run with `arguments` and then those of [`compile_main`].
    Child {
        /// Usually this very program.
        program: &'a Path,
        /// What makes it call [`compile_main`].
        arguments: &'a [OsString],
        /// Its bounds.
        limits: Limits,
    },
}

/// Why there is no machine code.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// Wasmtime could not be set up here.
    #[error("setting up the WebAssembly engine: {0}; the host has to allow executable mappings")]
    Engine(String),
    /// The compiler refuses the module.
    #[error("compiling module {module}: {message}")]
    Refused {
        /// Which module.
        module: String,
        /// What the compiler says.
        message: String,
    },
    /// The compiling process exceeded a bound.
    #[error(
        "compiling module {module} took more than {seconds} s or {mebibytes} MiB; split its large functions or \
         build it with opt-level and without inlining"
    )]
    Limit {
        /// Which module.
        module: String,
        /// The bound of time.
        seconds: u32,
        /// The bound of memory.
        mebibytes: u64,
    },
    /// The compiling process could not be run.
    #[error("running the compiler {program} for module {module}: {error}")]
    Child {
        /// Which program.
        program: PathBuf,
        /// Which module.
        module: String,
        /// What the system says.
        error: io::Error,
    },
    /// The cache directory cannot be used.
    #[error("the code cache {path}: {problem}")]
    Cache {
        /// Where.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The code is not in the cache and nobody may compile.
    #[error("module {module} has no compiled code in {path}; start the device anew, the supervisor compiles it")]
    Missing {
        /// Which module.
        module: String,
        /// Where it was looked for.
        path: PathBuf,
    },
}

/// The engines of one process.
#[derive(Clone)]
pub struct Engines {
    trusted: Engine,
    untrusted: Engine,
    creators: [Arc<Creator>; 2],
}

/// Loaded machine code of one module.
#[derive(Clone)]
pub struct Code {
    pub(crate) module: Module,
    pub(crate) flavour: Flavour,
}

impl Engines {
    /// Engines that load artefacts and hold no compiler.
    ///
    /// # Errors
    /// [`CompileError::Engine`].
    pub fn new() -> Result<Engines, CompileError> {
        let creators = [Arc::new(Creator::default()), Arc::new(Creator::default())];
        let make = |flavour, creator: &Arc<Creator>| {
            let mut config = config(flavour);
            config.enable_compiler(false).with_host_memory(creator.clone());
            Engine::new(&config).map_err(|e| CompileError::Engine(format!("{e:#}")))
        };
        Ok(Engines {
            trusted: make(Flavour::Trusted, &creators[0])?,
            untrusted: make(Flavour::Untrusted, &creators[1])?,
            creators,
        })
    }

    pub(crate) fn engine(&self, flavour: Flavour) -> &Engine {
        match flavour {
            Flavour::Trusted => &self.trusted,
            Flavour::Untrusted => &self.untrusted,
        }
    }

    pub(crate) fn creator(&self, flavour: Flavour) -> &Arc<Creator> {
        match flavour {
            Flavour::Trusted => &self.creators[0],
            Flavour::Untrusted => &self.creators[1],
        }
    }
}

impl std::fmt::Debug for Engines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Engines")
    }
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Code({})", self.flavour.name())
    }
}

/// What both the compiling and the loading side agree on; Wasmtime refuses an artefact of another setting.
pub(crate) fn config(flavour: Flavour) -> Config {
    let mut config = Config::new();
    config
        .memory_init_cow(false)
        .memory_reservation(RESERVATION_BYTES)
        .memory_guard_size(GUARD_BYTES)
        .max_wasm_stack(WASM_STACK_BYTES)
        .wasm_multi_memory(false)
        .wasm_memory64(false)
        .wasm_relaxed_simd(false)
        .wasm_tail_call(false)
        .consume_fuel(flavour == Flavour::Untrusted);
    // It leaves the guest for the host, only to be told no.
    config.operator_cost(OperatorCost { MemoryGrow: u8::MAX, ..OperatorCost::new() });
    config
}

/// Compiles in this process.
///
/// # Errors
/// [`CompileError::Refused`] or [`CompileError::Engine`].
pub fn compile(name: &str, wasm: &[u8], flavour: Flavour, parallel: bool) -> Result<Vec<u8>, CompileError> {
    let mut config = config(flavour);
    config.parallel_compilation(parallel);
    let engine = Engine::new(&config).map_err(|e| CompileError::Engine(format!("{e:#}")))?;
    let artefact = engine.precompile_module(wasm);
    artefact.map_err(|e| CompileError::Refused { module: name.to_owned(), message: format!("{e:#}") })
}

/// The main function of a compiling process. `arguments`: flavour, seconds, bytes, module file, artefact
/// file. It bounds itself, compiles and writes the artefact; messages go to standard error.
pub fn compile_main(arguments: &[OsString]) -> ExitCode {
    match compile_bounded(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn compile_bounded(arguments: &[OsString]) -> Result<(), String> {
    let [flavour, seconds, bytes, input, output] = arguments else {
        return Err("the arguments are: trusted|untrusted SECONDS BYTES MODULE ARTEFACT".to_owned());
    };
    let number = |text: &OsString| text.to_str().and_then(|t| t.parse::<u64>().ok()).ok_or("not a number");
    let flavour = if flavour == Flavour::Trusted.name() { Flavour::Trusted } else { Flavour::Untrusted };
    limit(libc::RLIMIT_CPU, number(seconds)?).map_err(|e| format!("bounding the processor time: {e}"))?;
    limit(libc::RLIMIT_AS, number(bytes)?).map_err(|e| format!("bounding the address space: {e}"))?;
    let wasm = fs::read(input).map_err(|e| format!("reading the module: {e}"))?;
    let artefact = compile("", &wasm, flavour, false).map_err(|e| match e {
        CompileError::Refused { message, .. } => message,
        other => other.to_string(),
    })?;
    fs::write(output, artefact).map_err(|e| format!("writing the artefact: {e}"))
}

fn limit(resource: libc::__rlimit_resource_t, value: u64) -> io::Result<()> {
    let limits = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: the structure lives through the call.
    if unsafe { libc::setrlimit(resource, &limits) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A directory of artefacts that belongs to one user alone.
#[derive(Debug, Clone)]
pub struct CodeCache {
    directory: PathBuf,
}

impl CodeCache {
    /// Opens, or makes, a cache.
    ///
    /// # Errors
    /// [`CompileError::Cache`]: it cannot be made, or others than its owner may write or read in it.
    pub fn open(directory: impl Into<PathBuf>) -> Result<CodeCache, CompileError> {
        let directory = directory.into();
        let fail = |problem: String| CompileError::Cache { path: directory.clone(), problem };
        match fs::DirBuilder::new().mode(0o700).create(&directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(fail(format!("making it: {e}"))),
            _ => {}
        }
        let status = fs::symlink_metadata(&directory).map_err(|e| fail(format!("looking at it: {e}")))?;
        if !status.is_dir() {
            return Err(fail("it is not a directory; remove it".to_owned()));
        }
        // SAFETY: the call has no preconditions.
        let user = unsafe { libc::geteuid() };
        if status.uid() != user || status.mode() & 0o077 != 0 {
            return Err(fail(format!(
                "it holds machine code, and user {} with mode {:o} owns it; it has to be yours with mode 700",
                status.uid(),
                status.mode() & 0o777
            )));
        }
        Ok(CodeCache { directory })
    }

    /// The machine code of a module: from the cache, else made by `compiler` and put there.
    ///
    /// # Errors
    /// [`CompileError`], naming the module.
    pub fn load(
        &self,
        engines: &Engines,
        name: &str,
        wasm: &[u8],
        flavour: Flavour,
        compiler: &Compiler<'_>,
    ) -> Result<Code, CompileError> {
        let module = self.module(engines.engine(flavour), name, wasm, flavour, compiler)?;
        Ok(Code { module, flavour })
    }

    /// The same for an engine of the flavour's [`config`].
    pub(crate) fn module(
        &self,
        engine: &Engine,
        name: &str,
        wasm: &[u8],
        flavour: Flavour,
        compiler: &Compiler<'_>,
    ) -> Result<Module, CompileError> {
        let path = self.path(wasm, flavour);
        if let Some(module) = self.find(engine, &path) {
            return Ok(module);
        }
        match compiler {
            Compiler::CacheOnly => return Err(CompileError::Missing { module: name.to_owned(), path }),
            Compiler::InProcess => {
                let artefact = compile(name, wasm, flavour, true)?;
                self.put(&path, &artefact)?;
            }
            Compiler::Child { program, arguments, limits } => {
                let name_of_both = unique();
                let input = self.directory.join(format!("in-{name_of_both}"));
                let output = self.directory.join(format!("out-{name_of_both}"));
                let result =
                    self.compile_in_child(name, wasm, flavour, (program, arguments), limits, (&input, &output));
                let artefact =
                    result.and_then(|()| fs::read(&output).map_err(|e| self.failed("reading the artefact", &e)));
                let _ = fs::remove_file(&input);
                let _ = fs::remove_file(&output);
                self.put(&path, &artefact?)?;
            }
        }
        let missing = || CompileError::Missing { module: name.to_owned(), path: path.clone() };
        self.find(engine, &path).ok_or_else(missing)
    }

    fn failed(&self, what: &str, error: &io::Error) -> CompileError {
        CompileError::Cache { path: self.directory.clone(), problem: format!("{what}: {error}") }
    }

    fn path(&self, wasm: &[u8], flavour: Flavour) -> PathBuf {
        let key = format!("{ARTEFACT_FORMAT} {} {}", flavour.name(), Digest::of(wasm));
        self.directory.join(format!("{}.cwasm", Digest::of(key.as_bytes())))
    }

    fn put(&self, path: &Path, artefact: &[u8]) -> Result<(), CompileError> {
        // The checksum comes first: an artefact with a name and no checksum is never loaded.
        let sum = Digest::of(artefact).to_string();
        write_whole(&path.with_extension("sum"), sum.as_bytes()).map_err(|e| self.failed("writing", &e))?;
        write_whole(path, artefact).map_err(|e| self.failed("writing", &e))
    }

    /// An artefact that is there, whole, and fits this process's engines.
    fn find(&self, engine: &Engine, path: &Path) -> Option<Module> {
        let sum = fs::read_to_string(path.with_extension("sum")).ok()?;
        let mut file = fs::File::open(path).ok()?;
        let mut artefact = Vec::new();
        file.read_to_end(&mut artefact).ok()?;
        if Digest::of(&artefact).to_string() != sum {
            tracing::warn!(path = %path.display(), "a compiled module in the cache is damaged and is made anew");
            return None;
        }
        drop(artefact);
        // SAFETY: the file is what `precompile_module` made: it lies in a directory that only this user can
        // write (checked when the cache was opened), under a name of this build, and its checksum is right.
        // Nobody overwrites it in place: `write_whole` renames.
        let module = unsafe { Module::deserialize_open_file(engine, file) };
        match module {
            Ok(module) => Some(module),
            Err(error) => {
                tracing::info!(path = %path.display(), %error, "a compiled module does not fit and is made anew");
                None
            }
        }
    }

    fn compile_in_child(
        &self,
        name: &str,
        wasm: &[u8],
        flavour: Flavour,
        (program, arguments): (&Path, &[OsString]),
        limits: &Limits,
        (input, output): (&Path, &Path),
    ) -> Result<(), CompileError> {
        fs::write(input, wasm).map_err(|e| self.failed("writing the module", &e))?;
        let failed = |error| CompileError::Child { program: program.to_owned(), module: name.to_owned(), error };
        let (seconds, bytes) = (limits.seconds.to_string(), limits.bytes.to_string());
        let child = Command::new(program)
            .args(arguments)
            .args([flavour.name(), &seconds, &bytes])
            .args([input, output])
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(failed)?;
        let message = wait(&mut child, Duration::from_secs(u64::from(limits.seconds))).map_err(failed)?;
        match message {
            Ended::Well => Ok(()),
            Ended::Message(message) => Err(CompileError::Refused { module: name.to_owned(), message }),
            Ended::Killed => Err(CompileError::Limit {
                module: name.to_owned(),
                seconds: limits.seconds,
                mebibytes: limits.bytes >> 20,
            }),
        }
    }
}

enum Ended {
    Well,
    Message(String),
    Killed,
}

/// Bytes of a compiler's message that are kept.
const MESSAGE_BYTES_MAX: u64 = 4096;

fn wait(child: &mut Child, limit: Duration) -> io::Result<Ended> {
    let begin = Instant::now();
    // Bounded by `limit`. A pipe holds what a message of a compiler has, so that not reading it blocks nobody.
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if begin.elapsed() > limit => {
                child.kill()?;
                child.wait()?;
                return Ok(Ended::Killed);
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    if status.success() {
        return Ok(Ended::Well);
    }
    // Ended by a signal: the processor time, or an allocation that the address space had no room for.
    let Some(_) = status.code() else { return Ok(Ended::Killed) };
    let mut message = String::new();
    if let Some(stderr) = child.stderr.take() {
        stderr.take(MESSAGE_BYTES_MAX).read_to_string(&mut message)?;
    }
    Ok(Ended::Message(message.trim().to_owned()))
}
