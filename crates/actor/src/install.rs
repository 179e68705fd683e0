//! What a module has to be before anything compiles or runs it: `docs/abi.md` section 1, checked.
//!
//! The check reads the module with the parser and validator that Wasmtime itself uses, in one pass. Every
//! refusal names the module, the reason and what to do. A module that passes can still trap, loop or answer
//! nonsense; that is the sandbox's matter.

use osier_domain::arena::Layout;
use osier_domain::migrate::GLOBALS_MAX;
use wasmparser::{
    BinaryReaderError, CompositeInnerType, Encoding, Export, ExternalKind, FuncType, FunctionBody, GlobalType, Import,
    MemoryType, Operator, Parser, Payload, TypeRef, ValType, Validator, WasmFeatures,
};

use crate::abi::{IMPORT_MODULE, MODULE_BYTES_MAX, PAGE_BYTES};

use ValType::{I32, I64};

/// The imports of the ABI: name, parameters, results.
const IMPORTS: [(&str, &[ValType], &[ValType]); 13] = [
    ("log", &[I32, I32, I32], &[]),
    ("unit_info", &[I32], &[I64]),
    ("param", &[I32, I32], &[I32]),
    ("state_get", &[I32, I32], &[I32]),
    ("state_put", &[I32, I32], &[I32]),
    ("blob_get", &[I32, I32, I32], &[I32]),
    ("blob_put", &[I32, I32, I32], &[I32]),
    ("record_next", &[I32, I32, I32], &[I64]),
    ("crc32c", &[I32, I32, I32], &[I32]),
    ("aead_seal", &[I32, I32, I32, I32], &[I32]),
    ("aead_open", &[I32, I32, I32, I32], &[I32]),
    ("lz4_compress", &[I32, I32, I32, I32], &[I32]),
    ("lz4_decompress", &[I32, I32, I32, I32], &[I32]),
];

/// The functions of the ABI: name, parameters, results.
const EXPORTS: [(&str, &[ValType], &[ValType]); 5] = [
    ("osier_abi", &[], &[I32]),
    ("osier_forward", &[I32, I32, I32, I32, I32], &[I64]),
    ("osier_inverse", &[I32, I32, I32, I32, I32], &[I64]),
    ("osier_resume", &[I32], &[I64]),
    ("osier_init", &[], &[I32]),
];

/// The most entries of a module's tables: they lie in this process's own memory.
const TABLE_ENTRIES_MAX: u64 = 4096;

/// Why a module is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("module {module} is refused: {reason}")]
pub struct Refusal {
    /// Which module, as the caller calls it.
    pub module: String,
    /// Why, and what to do.
    pub reason: Reason,
}

/// The reasons.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Too many bytes.
    #[error("it has {0} bytes, at most {MODULE_BYTES_MAX} are possible; build it with opt-level and strip")]
    TooLarge(usize),
    /// Not WebAssembly at all, or a component.
    #[error("it is not a core WebAssembly module ({0}); build it for wasm32-unknown-unknown")]
    NotWasm(String),
    /// WebAssembly that does not validate, or uses what the ABI leaves out.
    #[error("it does not validate at byte {offset}: {message}; use only the features of docs/abi.md section 1")]
    Invalid {
        /// Where.
        offset: u64,
        /// What the validator says.
        message: String,
    },
    /// An import that the ABI does not have.
    #[error(
        "it imports `{module}.{name}`, which the ABI does not have; docs/abi.md section 4 lists what can be imported"
    )]
    UnknownImport {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
    },
    /// An import or export of the ABI with another type.
    #[error("its `{name}` has the type {found}, the ABI says {wanted}")]
    WrongType {
        /// Which function.
        name: String,
        /// What the module has.
        found: String,
        /// What the ABI says.
        wanted: String,
    },
    /// An export is missing.
    #[error("it does not export `{name}`; {advice}")]
    MissingExport {
        /// Which.
        name: &'static str,
        /// How to add it.
        advice: &'static str,
    },
    /// It has not exactly one memory of its own.
    #[error("{0}; an actor defines and exports one 32-bit memory that is not shared")]
    Memory(&'static str),
    /// More memory than the tenant may use.
    #[error(
        "its memory begins with {wanted_kib} KiB, the tenant's memory_kib_max is {limit_kib}; \
         link it with a smaller --initial-memory and stack, or raise the limit"
    )]
    MemoryLimit {
        /// What it wants, in KiB.
        wanted_kib: u64,
        /// What the tenant may use, in KiB.
        limit_kib: u64,
    },
    /// Its declared maximum leaves no room for what the host adds.
    #[error(
        "its memory may grow to {maximum_kib} KiB only, {needed_kib} KiB are needed with the I/O buffers; \
         link it without --max-memory"
    )]
    MemoryMaximum {
        /// The declared maximum, in KiB.
        maximum_kib: u64,
        /// What is needed, in KiB.
        needed_kib: u64,
    },
    /// Large tables.
    #[error(
        "its tables begin with {0} entries in all, at most {TABLE_ENTRIES_MAX} are possible; call functions directly"
    )]
    Tables(u64),
    /// A mutable global that a migration could not carry.
    #[error("its mutable global {0} is not exported, so it could not move; link it with --export=__stack_pointer")]
    HiddenGlobal(u32),
    /// A mutable global of a type that a migration does not carry.
    #[error("its mutable global `{0}` is neither i32, i64, f32 nor f64, so it could not move; make it one of these")]
    GlobalType(String),
    /// Too many mutable globals.
    #[error("it has {0} mutable globals, at most {GLOBALS_MAX} can move; keep such values in memory")]
    TooManyGlobals(usize),
    /// A start function.
    #[error("it has a start function; do that work in `osier_init`")]
    Start,
    /// An instruction that changes what does not move.
    #[error(
        "it uses `{0}`, which changes what a migration does not carry; tables and segments have to stay as they are"
    )]
    Instruction(&'static str),
    /// It imports a key's use and has no key.
    #[error("it uses `{0}` and the stage names no key; add `key = N` to the stage")]
    NoKey(&'static str),
}

/// What a checked module is like.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Pages of 64 KiB that its memory begins with.
    pub initial_pages: u64,
    /// The most pages that it declares, if it does.
    pub maximum_pages: Option<u64>,
    /// Its mutable globals, by export name, in the order of the module.
    pub globals: Vec<String>,
    /// Has `osier_forward`.
    pub forward: bool,
    /// Has `osier_inverse`.
    pub inverse: bool,
    /// Has `osier_resume`.
    pub resume: bool,
    /// Has `osier_init`.
    pub init: bool,
    /// Uses shared state.
    pub uses_state: bool,
    /// Uses `aead_seal`.
    pub uses_seal: bool,
    /// Uses `aead_open`.
    pub uses_open: bool,
}

impl Facts {
    /// Bytes of its memory before the host adds to it.
    pub fn own_bytes(&self) -> u64 {
        self.initial_pages * PAGE_BYTES
    }

    /// Bytes of each of the two private buffers through which an untrusted actor is fed.
    pub fn bounce_bytes(layout: &Layout) -> u64 {
        u64::from(layout.unit_capacity()).next_multiple_of(PAGE_BYTES)
    }

    /// Bytes of the shared object that holds the actor's memory: its own pages and, if it is not trusted,
    /// its two private buffers.
    pub fn memory_bytes(&self, layout: &Layout, trusted: bool) -> u64 {
        let bounce = if trusted { 0 } else { 2 * Facts::bounce_bytes(layout) };
        self.own_bytes() + bounce
    }

    /// Whether its declared maximum has room for the buffers that will be mapped behind its own pages.
    ///
    /// # Errors
    /// [`Reason::MemoryMaximum`].
    pub fn check_room(&self, layout: &Layout, trusted: bool) -> Result<(), Reason> {
        let arena = if trusted { layout.arena_bytes().next_multiple_of(PAGE_BYTES) } else { 0 };
        let needed = self.memory_bytes(layout, trusted) + arena;
        let maximum = self.maximum_pages.unwrap_or(PAGE_BYTES).min(PAGE_BYTES) * PAGE_BYTES;
        if needed > maximum {
            return Err(Reason::MemoryMaximum { maximum_kib: maximum / 1024, needed_kib: needed / 1024 });
        }
        Ok(())
    }
}

/// Checks a module. `name` is what a refusal calls it, `memory_kib_max` the tenant's limit.
///
/// # Errors
/// [`Refusal`].
pub fn check(name: &str, wasm: &[u8], memory_kib_max: u32) -> Result<Facts, Refusal> {
    let refuse = |reason| Refusal { module: name.to_owned(), reason };
    if wasm.len() > MODULE_BYTES_MAX {
        return Err(refuse(Reason::TooLarge(wasm.len())));
    }
    let mut reader = Reader::default();
    reader.read(wasm).map_err(refuse)?;
    reader.finish(memory_kib_max).map_err(refuse)
}

/// What one pass over a module collects.
#[derive(Default)]
struct Reader {
    types: Vec<Option<FuncType>>,
    functions: Vec<u32>,
    globals: Vec<GlobalType>,
    memories: Vec<MemoryType>,
    imported_memory: bool,
    table_entries: u64,
    exports: Vec<(String, ExternalKind, u32)>,
    facts: Facts,
}

fn features() -> WasmFeatures {
    WasmFeatures::MUTABLE_GLOBAL
        | WasmFeatures::SATURATING_FLOAT_TO_INT
        | WasmFeatures::SIGN_EXTENSION
        | WasmFeatures::REFERENCE_TYPES
        | WasmFeatures::MULTI_VALUE
        | WasmFeatures::BULK_MEMORY
        | WasmFeatures::SIMD
        | WasmFeatures::FLOATS
        | WasmFeatures::EXTENDED_CONST
}

fn invalid(error: &BinaryReaderError) -> Reason {
    Reason::Invalid { offset: error.offset() as u64, message: error.message().to_owned() }
}

impl Reader {
    fn read(&mut self, wasm: &[u8]) -> Result<(), Reason> {
        let mut validator = Validator::new_with_features(features());
        let mut allocations = wasmparser::FuncValidatorAllocations::default();
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload.map_err(|e| not_wasm_or_invalid(wasm, &e))?;
            if let Payload::Version { encoding: Encoding::Component, .. } = &payload {
                return Err(Reason::NotWasm("it is a component".to_owned()));
            }
            let valid = validator.payload(&payload).map_err(|e| invalid(&e))?;
            if let wasmparser::ValidPayload::Func(function, body) = valid {
                let mut function = function.into_validator(allocations);
                function.validate(&body).map_err(|e| invalid(&e))?;
                allocations = function.into_allocations();
                check_body(&body)?;
            }
            self.section(payload).map_err(|e| match e {
                Failure::Reader(e) => invalid(&e),
                Failure::Reason(reason) => reason,
            })?;
        }
        Ok(())
    }

    fn section(&mut self, payload: Payload<'_>) -> Result<(), Failure> {
        match payload {
            Payload::TypeSection(groups) => {
                for group in groups {
                    for ty in group?.into_types() {
                        self.types.push(match ty.composite_type.inner {
                            CompositeInnerType::Func(function) => Some(function),
                            _ => None,
                        });
                    }
                }
            }
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    self.import(&import?)?;
                }
            }
            Payload::FunctionSection(functions) => {
                for ty in functions {
                    self.functions.push(ty?);
                }
            }
            Payload::MemorySection(memories) => {
                for memory in memories {
                    self.memories.push(memory?);
                }
            }
            Payload::TableSection(tables) => {
                for table in tables {
                    self.table_entries = self.table_entries.saturating_add(table?.ty.initial);
                }
            }
            Payload::GlobalSection(globals) => {
                for global in globals {
                    self.globals.push(global?.ty);
                }
            }
            Payload::ExportSection(exports) => {
                for export in exports {
                    let Export { name, kind, index } = export?;
                    self.exports.push((name.to_owned(), kind, index));
                }
            }
            Payload::StartSection { .. } => return Err(Failure::Reason(Reason::Start)),
            _ => {}
        }
        Ok(())
    }

    fn import(&mut self, import: &Import<'_>) -> Result<(), Reason> {
        let unknown = || Reason::UnknownImport { module: import.module.to_owned(), name: import.name.to_owned() };
        if matches!(import.ty, TypeRef::Memory(_)) {
            self.imported_memory = true;
            return Ok(());
        }
        let known = IMPORTS.iter().find(|(name, ..)| import.module == IMPORT_MODULE && import.name == *name);
        let Some((name, params, results)) = known else { return Err(unknown()) };
        let TypeRef::Func(ty) = import.ty else { return Err(unknown()) };
        self.same_type(name, ty, params, results)?;
        self.functions.push(ty);
        match *name {
            "state_get" | "state_put" => self.facts.uses_state = true,
            "aead_seal" => self.facts.uses_seal = true,
            "aead_open" => self.facts.uses_open = true,
            _ => {}
        }
        Ok(())
    }

    fn same_type(&self, name: &str, ty: u32, params: &[ValType], results: &[ValType]) -> Result<(), Reason> {
        let found = self.types.get(ty as usize).and_then(Option::as_ref);
        let wanted = FuncType::new(params.iter().copied(), results.iter().copied());
        if found == Some(&wanted) {
            return Ok(());
        }
        let (name, wanted) = (name.to_owned(), describe(&wanted));
        let found = found.map_or_else(|| "no function type".to_owned(), describe);
        Err(Reason::WrongType { name, found, wanted })
    }

    fn finish(mut self, memory_kib_max: u32) -> Result<Facts, Reason> {
        if self.table_entries > TABLE_ENTRIES_MAX {
            return Err(Reason::Tables(self.table_entries));
        }
        self.check_memory(memory_kib_max)?;
        self.check_exports()?;
        self.check_globals()?;
        Ok(self.facts)
    }

    fn check_memory(&mut self, memory_kib_max: u32) -> Result<(), Reason> {
        if self.imported_memory {
            return Err(Reason::Memory("it imports a memory; link it without --import-memory"));
        }
        let [memory] = self.memories[..] else {
            return Err(Reason::Memory("it has no memory, or more than one"));
        };
        if memory.shared || memory.memory64 || memory.page_size_log2.is_some() {
            return Err(Reason::Memory("its memory is shared, 64-bit or of another page size"));
        }
        let exported = |e: &&(String, ExternalKind, u32)| e.0 == "memory" && e.1 == ExternalKind::Memory;
        if self.exports.iter().find(exported).is_none() {
            return Err(Reason::MissingExport { name: "memory", advice: "linkers do so unless told otherwise" });
        }
        let (wanted_kib, limit_kib) = (memory.initial * PAGE_BYTES / 1024, u64::from(memory_kib_max));
        if wanted_kib > limit_kib {
            return Err(Reason::MemoryLimit { wanted_kib, limit_kib });
        }
        if memory.initial == 0 {
            return Err(Reason::Memory("its memory begins with no page"));
        }
        self.facts.initial_pages = memory.initial;
        self.facts.maximum_pages = memory.maximum;
        Ok(())
    }

    fn check_exports(&mut self) -> Result<(), Reason> {
        let mut present = [false; EXPORTS.len()];
        for (seen, (name, params, results)) in present.iter_mut().zip(EXPORTS) {
            let Some((_, kind, index)) = self.exports.iter().find(|e| e.0 == name) else { continue };
            let ty = self.functions.get(*index as usize).filter(|_| *kind == ExternalKind::Func);
            self.same_type(name, ty.copied().unwrap_or(u32::MAX), params, results)?;
            *seen = true;
        }
        let [abi, forward, inverse, resume, init] = present;
        if !abi {
            let advice = "it answers the version of the ABI, 1; the SDK's `actor!` macro makes it";
            return Err(Reason::MissingExport { name: "osier_abi", advice });
        }
        if !forward && !inverse {
            let advice = "an actor has this or `osier_inverse` or both";
            return Err(Reason::MissingExport { name: "osier_forward", advice });
        }
        self.facts = Facts { forward, inverse, resume, init, ..std::mem::take(&mut self.facts) };
        Ok(())
    }

    fn check_globals(&mut self) -> Result<(), Reason> {
        let mut names = Vec::new();
        for (index, global) in (0u32..).zip(&self.globals) {
            if !global.mutable {
                continue;
            }
            let export = self.exports.iter().find(|e| e.1 == ExternalKind::Global && e.2 == index);
            let Some((name, ..)) = export else { return Err(Reason::HiddenGlobal(index)) };
            if !matches!(global.content_type, I32 | I64 | ValType::F32 | ValType::F64) {
                return Err(Reason::GlobalType(name.clone()));
            }
            names.push(name.clone());
        }
        if names.len() > GLOBALS_MAX {
            return Err(Reason::TooManyGlobals(names.len()));
        }
        self.facts.globals = names;
        Ok(())
    }
}

enum Failure {
    Reader(BinaryReaderError),
    Reason(Reason),
}

impl From<BinaryReaderError> for Failure {
    fn from(error: BinaryReaderError) -> Failure {
        Failure::Reader(error)
    }
}

impl From<Reason> for Failure {
    fn from(reason: Reason) -> Failure {
        Failure::Reason(reason)
    }
}

fn not_wasm_or_invalid(wasm: &[u8], error: &BinaryReaderError) -> Reason {
    if wasm.starts_with(b"\0asm") { invalid(error) } else { Reason::NotWasm(error.message().to_owned()) }
}

fn describe(ty: &FuncType) -> String {
    let list = |types: &[ValType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!("({}) -> ({})", list(ty.params()), list(ty.results()))
}

/// Tables and segments are part of neither the memory nor the globals: nothing may change them.
fn check_body(body: &FunctionBody<'_>) -> Result<(), Reason> {
    let operators = body.get_operators_reader().map_err(|e| invalid(&e))?;
    for operator in operators {
        let refused = match operator.map_err(|e| invalid(&e))? {
            Operator::TableSet { .. } => "table.set",
            Operator::TableGrow { .. } => "table.grow",
            Operator::TableInit { .. } => "table.init",
            Operator::TableCopy { .. } => "table.copy",
            Operator::TableFill { .. } => "table.fill",
            Operator::ElemDrop { .. } => "elem.drop",
            Operator::DataDrop { .. } => "data.drop",
            _ => continue,
        };
        return Err(Reason::Instruction(refused));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
