//! Pipelines as a person writes them, and the registry of all that ever wrote to a device.
//!
//! [`Config`] is the TOML file. [`Registry`] is kept with the device's image: each definition that ever
//! wrote has a *tag* there, a number that lies beside every extent. A changed definition gets another tag,
//! so that what an older one wrote is still decoded by it. [`Pipelines`] is what both domains hold while
//! traffic runs: the plan of the state machine and, for each actor, how to make it.
//!
//! Invariants:
//! 1. A registered tag is a number of 24 bits and not zero: beside an extent the high 8 bits say which
//!    optional stages were left out when it was written ([`Tag`]).
//! 2. What decides how a definition's extents are decoded never changes under its tag.
//! 3. Both domains, given the same registry text, number the actors alike.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use osier_domain::arena::{Layout, UNITS_MAX};
use osier_domain::{ACTORS_MAX, ActorId, Pipeline, Plan, STAGES_MAX, Tag};
use serde::{Deserialize, Serialize};

use crate::abi::PARAMS_BYTES_MAX;
use crate::module::{Digest, ModuleStore, ModuleStoreError};

/// Bytes of a logical block, as the arena counts them.
const BLOCK_KIB: u32 = 4;
/// The largest request that an arena's unit table can hold, in KiB.
const REQUEST_KIB_MAX: u32 = UNITS_MAX * BLOCK_KIB;
/// The most slots that one pipeline may have.
const SLOTS_MAX: u16 = 256;
/// Longest name of a pipeline, a tenant or an engine, in bytes.
const NAME_BYTES_MAX: usize = 32;
/// The tenant of pipelines that name none.
pub const DEFAULT_TENANT: &str = "default";
/// Memory of an actor whose tenant states no limit, in KiB.
const MEMORY_KIB_DEFAULT: u32 = 1024;
/// The largest limit that a tenant may have, in KiB.
const MEMORY_KIB_MAX: u32 = 64 * 1024;
/// The bits of a tag that name the pipeline.
const TAG_PIPELINE_BITS: u32 = 0x00ff_ffff;

/// What is wrong with pipelines.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML, an unknown key, a missing key, a value of another type; the text has line and key.
    #[error("{file}: {message}")]
    Syntax {
        /// Which file.
        file: String,
        /// The line, and what the parser says.
        message: String,
    },
    /// A value that cannot be.
    #[error("{place}: {problem}")]
    Value {
        /// File and pipeline or tenant.
        place: String,
        /// What is wrong and what to write instead.
        problem: String,
    },
    /// A module file.
    #[error("{place}: {error}")]
    Module {
        /// File, pipeline and stage.
        place: String,
        /// What happened.
        #[source]
        error: ModuleStoreError,
    },
}

/// How a stage's latency counts when placement is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Stays on the host unless the host is throttled.
    LatencySensitive,
    /// Goes where there is headroom.
    #[default]
    BestEffort,
}

/// Where a stage may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// On the host only.
    Host,
    /// On the device only.
    Device,
    /// Wherever the scheduler says.
    #[default]
    Any,
}

/// Where a stage's module comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// One of the built-in modules, by name.
    #[serde(rename = "builtin")]
    Builtin(String),
    /// A module in the image's module store.
    #[serde(rename = "module")]
    Stored(Digest),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Builtin(name) => write!(f, "built-in `{name}`"),
            Source::Stored(digest) => write!(f, "module {}", digest.short()),
        }
    }
}

/// One stage, checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageDef {
    /// Its module.
    pub source: Source,
    /// What the file called it: `lz4`, `./rotate.wasm`.
    pub name: String,
    /// Parameters in the normal form of `docs/abi.md` section 3.
    pub params: String,
    /// A request may leave it out.
    pub optional: bool,
    /// Its inverse runs in queries only.
    pub query: bool,
    /// For the scheduler.
    pub class: Class,
    /// For the scheduler.
    pub placement: Placement,
    /// The name of its cost model in the device's profile.
    pub engine: String,
    /// Runs unmetered on the arena itself; of built-ins only.
    pub trusted: bool,
    /// The key that it seals with.
    pub key: Option<u16>,
}

/// One pipeline, checked, with its modules pinned by content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineDef {
    /// Its name.
    pub name: String,
    /// Who pays for it.
    pub tenant: String,
    /// Bytes of a unit, in KiB.
    pub unit_kib: u32,
    /// The largest request, in KiB.
    pub request_kib_max: u32,
    /// Requests in flight.
    pub slots: u16,
    /// First stage of a write first.
    pub stages: Vec<StageDef>,
}

impl PipelineDef {
    /// Bytes of a full unit.
    pub fn unit_bytes(&self) -> u32 {
        self.unit_kib * 1024
    }

    /// The bits of a request's flags that it may set: one for each optional stage.
    pub fn skip_mask(&self) -> u16 {
        self.mask(|stage| stage.optional).into()
    }

    /// The stages that only queries run.
    pub fn query_mask(&self) -> u8 {
        self.mask(|stage| stage.query)
    }

    fn mask(&self, has: impl Fn(&StageDef) -> bool) -> u8 {
        let bits = self.stages.iter().enumerate().filter(|(_, stage)| has(stage));
        bits.fold(0, |mask, (position, _)| mask | 1 << position)
    }
}

/// What one tenant may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant {
    /// Thousandths of one processor, in each domain. 1000 is all of one, `None` no limit.
    pub cpu_permille: Option<u32>,
    /// The largest initial memory of one of its modules, in KiB.
    pub memory_kib_max: u32,
}

impl Default for Tenant {
    fn default() -> Tenant {
        Tenant { cpu_permille: None, memory_kib_max: MEMORY_KIB_DEFAULT }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    tenant: BTreeMap<String, FileTenant>,
    #[serde(default)]
    pipeline: Vec<FilePipeline>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTenant {
    cpu_permille: Option<u32>,
    memory_kib_max: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePipeline {
    name: toml::Spanned<String>,
    tenant: Option<String>,
    unit_kib: u32,
    request_kib_max: u32,
    slots: u16,
    stage: Vec<FileStage>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileStage {
    actor: toml::Spanned<String>,
    #[serde(default)]
    params: toml::Table,
    #[serde(default)]
    optional: bool,
    #[serde(default)]
    query: bool,
    #[serde(default)]
    class: Class,
    #[serde(default)]
    placement: Placement,
    engine: Option<String>,
    trusted: Option<bool>,
    key: Option<u16>,
}

/// The pipelines and tenants that a file asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// In the order of the file.
    pub pipelines: Vec<PipelineDef>,
    /// By name; always has [`DEFAULT_TENANT`].
    pub tenants: BTreeMap<String, Tenant>,
}

impl Config {
    /// Reads a pipeline file. `name` is what errors call it; relative module paths start at `directory`, and
    /// the modules found go into `store`.
    ///
    /// # Errors
    /// [`ConfigError`], naming the file, the line or the pipeline, the key and what to write instead.
    pub fn parse(
        name: &str,
        text: &str,
        directory: &std::path::Path,
        store: &ModuleStore,
    ) -> Result<Config, ConfigError> {
        let file: File = toml::from_str(text).map_err(|e| ConfigError::Syntax {
            file: name.to_owned(),
            message: format!("line {}: {}", line_of(text, &e), one_line(&e)),
        })?;
        let reader = Reader { name, text, directory, store };
        let mut tenants = BTreeMap::from([(DEFAULT_TENANT.to_owned(), Tenant::default())]);
        for (tenant, values) in file.tenant {
            let checked = reader.tenant(&tenant, &values)?;
            tenants.insert(tenant, checked);
        }
        let mut pipelines: Vec<PipelineDef> = Vec::new();
        for pipeline in file.pipeline {
            let checked = reader.pipeline(pipeline, &tenants)?;
            if pipelines.iter().any(|p| p.name == checked.name) {
                let problem = "the name is used by two pipelines; give each its own".to_owned();
                return Err(ConfigError::Value { place: format!("{name}: pipeline `{}`", checked.name), problem });
            }
            pipelines.push(checked);
        }
        Ok(Config { pipelines, tenants })
    }
}

struct Reader<'a> {
    name: &'a str,
    text: &'a str,
    directory: &'a std::path::Path,
    store: &'a ModuleStore,
}

impl Reader<'_> {
    fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|b| *b == b'\n').count() + 1
    }

    fn tenant(&self, tenant: &str, values: &FileTenant) -> Result<Tenant, ConfigError> {
        let fail = |problem: String| ConfigError::Value { place: format!("{}: tenant `{tenant}`", self.name), problem };
        check_name(tenant).map_err(fail)?;
        if let Some(share @ (0 | 64_001..)) = values.cpu_permille {
            return Err(fail(format!(
                "cpu_permille = {share} must be 1 to 64000 (1000 is one processor); leave it out for no limit"
            )));
        }
        let memory_kib_max = values.memory_kib_max.unwrap_or(MEMORY_KIB_DEFAULT);
        if !(64..=MEMORY_KIB_MAX).contains(&memory_kib_max) {
            return Err(fail(format!("memory_kib_max = {memory_kib_max} must be 64 to {MEMORY_KIB_MAX}")));
        }
        Ok(Tenant { cpu_permille: values.cpu_permille, memory_kib_max })
    }

    fn pipeline(&self, file: FilePipeline, tenants: &BTreeMap<String, Tenant>) -> Result<PipelineDef, ConfigError> {
        let line = self.line(file.name.span().start);
        let name = file.name.into_inner();
        let place = format!("{}: line {line}: pipeline `{name}`", self.name);
        let fail = |problem: String| ConfigError::Value { place: place.clone(), problem };
        check_name(&name).map_err(fail)?;
        let tenant = file.tenant.unwrap_or_else(|| DEFAULT_TENANT.to_owned());
        if !tenants.contains_key(&tenant) {
            return Err(fail(format!("tenant = \"{tenant}\" is not declared; add a [tenant.{tenant}] table")));
        }
        if !(4..=64).contains(&file.unit_kib) || !file.unit_kib.is_multiple_of(BLOCK_KIB) {
            return Err(fail(format!("unit_kib = {} must be a multiple of 4 from 4 to 64", file.unit_kib)));
        }
        let request = file.request_kib_max;
        if request < file.unit_kib || request > REQUEST_KIB_MAX || !request.is_multiple_of(BLOCK_KIB) {
            return Err(fail(format!(
                "request_kib_max = {request} must be a multiple of 4 from unit_kib to {REQUEST_KIB_MAX}"
            )));
        }
        if !(1..=SLOTS_MAX).contains(&file.slots) {
            return Err(fail(format!("slots = {} must be 1 to {SLOTS_MAX}", file.slots)));
        }
        if file.stage.is_empty() || file.stage.len() > STAGES_MAX {
            return Err(fail(format!("it has {} stages; 1 to {STAGES_MAX} are possible", file.stage.len())));
        }
        let mut stages = Vec::new();
        for (position, stage) in file.stage.into_iter().enumerate() {
            stages.push(self.stage(&place, position, stage)?);
        }
        let (unit_kib, request_kib_max, slots) = (file.unit_kib, request, file.slots);
        Ok(PipelineDef { name, tenant, unit_kib, request_kib_max, slots, stages })
    }

    fn stage(&self, pipeline: &str, position: usize, file: FileStage) -> Result<StageDef, ConfigError> {
        let line = self.line(file.actor.span().start);
        let name = file.actor.into_inner();
        let place = format!("{pipeline}: stage {position} (line {line}), actor `{name}`");
        let fail = |problem: String| ConfigError::Value { place: place.clone(), problem };
        let is_path = name.contains('/') || name.ends_with(".wasm") || name.ends_with(".wat");
        let source = if is_path {
            let path = self.directory.join(&name);
            let kept = self.store.named(&name).filter(|kept| !path.exists() && kept.exists());
            let stored = self.store.put_file(&kept.unwrap_or(path));
            Source::Stored(stored.map_err(|error| ConfigError::Module { place: place.clone(), error })?)
        } else if crate::builtin::find(&name).is_some() {
            Source::Builtin(name.clone())
        } else {
            let known: Vec<&str> = crate::builtin::names().collect();
            return Err(fail(format!(
                "there is no built-in actor of this name (there are: {}); a module's path ends in .wasm",
                known.join(", ")
            )));
        };
        if file.trusted == Some(true) && is_path {
            return Err(fail("trusted = true is for built-in actors only; leave it out".to_owned()));
        }
        let default_engine = crate::builtin::find(&name).map_or("wasm", |b| b.engine);
        let engine = file.engine.unwrap_or_else(|| default_engine.to_owned());
        check_name(&engine).map_err(|problem| fail(format!("engine: {problem}")))?;
        let params = normal_params(&file.params).map_err(|problem| fail(format!("params: {problem}")))?;
        Ok(StageDef {
            source,
            params,
            optional: file.optional,
            query: file.query,
            class: file.class,
            placement: file.placement,
            engine,
            trusted: file.trusted.unwrap_or(!is_path),
            key: file.key,
            name,
        })
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(fits) {
        return Err(format!("the name `{name}` must be 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` or `.`"));
    }
    Ok(())
}

/// The normal form of a `params` table, `docs/abi.md` section 3.
///
/// # Errors
/// Says which key has a type that the form does not have, or that the whole is too long.
pub fn normal_params(table: &toml::Table) -> Result<String, String> {
    let mut keys: Vec<(&String, &toml::Value)> = table.iter().collect();
    keys.sort_by_key(|(key, _)| key.as_bytes());
    let mut out = String::new();
    for (key, value) in keys {
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
            return Err(format!("the key `{key}` must be letters, digits, `-` or `_`"));
        }
        let _ = write!(out, "{key} = ");
        match value {
            toml::Value::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index > 0 { ", " } else { "" });
                    if !matches!(item, toml::Value::String(_) | toml::Value::Integer(_)) {
                        return Err(format!("the list `{key}` may hold strings and integers only"));
                    }
                    push_scalar(&mut out, item);
                }
                out.push(']');
            }
            toml::Value::String(_) | toml::Value::Integer(_) | toml::Value::Boolean(_) => push_scalar(&mut out, value),
            other => {
                let kind = other.type_str();
                return Err(format!("`{key}` is a {kind}; strings, integers, booleans and lists are possible"));
            }
        }
        out.push('\n');
    }
    if out.len() > PARAMS_BYTES_MAX {
        return Err(format!("{} bytes in normal form, {PARAMS_BYTES_MAX} are possible", out.len()));
    }
    Ok(out)
}

fn push_scalar(out: &mut String, value: &toml::Value) {
    match value {
        toml::Value::Integer(i) => drop(write!(out, "{i}")),
        toml::Value::Boolean(b) => drop(write!(out, "{b}")),
        toml::Value::String(text) => {
            out.push('"');
            for c in text.chars() {
                match c {
                    '"' => out.push_str("\\\""),
                    '\\' => out.push_str("\\\\"),
                    '\n' => out.push_str("\\n"),
                    '\t' => out.push_str("\\t"),
                    '\r' => out.push_str("\\r"),
                    c if u32::from(c) < 0x20 => drop(write!(out, "\\u{:04X}", u32::from(c))),
                    c => out.push(c),
                }
            }
            out.push('"');
        }
        other => unreachable!("{} is no scalar of a parameter", other.type_str()),
    }
}

/// A definition that wrote, or writes, to the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// What its extents carry; the high 8 bits are zero.
    pub tag: u32,
    /// Rises with each change of the pipeline of this name.
    pub version: u32,
    /// New writes use it.
    pub current: bool,
    /// What it is.
    pub definition: PipelineDef,
}

/// Every definition whose extents may be on the device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    format: u32,
    #[serde(default, rename = "entry")]
    entries: Vec<Entry>,
}

const REGISTRY_FORMAT: u32 = 1;
/// Begins the first line: the CRC-32C of all that follows the line, in eight hexadecimal digits. A tag or a key
/// number with a flipped bit would otherwise be as good as the right one.
const CHECKSUM_KEY: &str = "checksum = \"";

/// Why a registry cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The text is no registry.
    #[error("the pipeline registry of the image is damaged: {0}; restore it, without it old data cannot be decoded")]
    Damaged(String),
    /// A newer program wrote it.
    #[error("the pipeline registry has format {0}, this program reads {REGISTRY_FORMAT}; use the newer program")]
    Newer(u32),
    /// Too many actors.
    #[error(
        "the pipelines that the device needs have {0} stages in all, {ACTORS_MAX} are possible; \
         rewrite or trim data of old pipelines, then retire them"
    )]
    TooManyActors(usize),
}

/// What adopting a configuration did to one pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// As it was.
    Kept,
    /// Seen for the first time.
    Added,
    /// Other limits or hints, but what it wrote is decoded as before: the same tag.
    Tuned,
    /// Another definition than before: a new tag.
    Changed,
    /// No longer in the configuration; kept for reading.
    Withdrawn,
}

impl Registry {
    /// A registry of nothing.
    pub fn new() -> Registry {
        Registry { format: REGISTRY_FORMAT, entries: Vec::new() }
    }

    /// Reads the text that [`Registry::encode`] made.
    ///
    /// # Errors
    /// [`RegistryError::Damaged`] or [`RegistryError::Newer`].
    pub fn decode(text: &str) -> Result<Registry, RegistryError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let damaged = |e: toml::de::Error| RegistryError::Damaged(one_line(&e));
        let text = checked(text)?;
        let head: Head = toml::from_str(text).map_err(damaged)?;
        if head.format > REGISTRY_FORMAT {
            return Err(RegistryError::Newer(head.format));
        }
        let registry: Registry = toml::from_str(text).map_err(damaged)?;
        for (index, entry) in registry.entries.iter().enumerate() {
            let name = &entry.definition.name;
            let twice = registry.entries[..index].iter().any(|e| e.tag == entry.tag);
            if entry.tag == 0 || entry.tag > TAG_PIPELINE_BITS || twice {
                return Err(RegistryError::Damaged(format!(
                    "pipeline `{name}` has the impossible tag {:#x}",
                    entry.tag
                )));
            }
            if let Err(problem) = entry.definition.check() {
                return Err(RegistryError::Damaged(format!("pipeline `{name}`: {problem}")));
            }
        }
        Ok(registry)
    }

    /// The text to keep with the image.
    ///
    /// # Panics
    /// Never: every field has a form in TOML.
    pub fn encode(&self) -> String {
        match toml::to_string(self) {
            Ok(text) => format!("{CHECKSUM_KEY}{:08x}\"\n{text}", crc32c::crc32c(text.as_bytes())),
            Err(error) => panic!("a registry has no TOML form: {error}"),
        }
    }

    /// Every definition.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Takes over what a configuration asks for: same definition, same tag; another one, a new tag. What is
    /// not in it any more stays for reading. Answers what happened to each pipeline, by name.
    pub fn adopt(&mut self, config: &Config) -> Vec<(String, Change)> {
        let mut changes = Vec::new();
        for entry in &mut self.entries {
            let wanted = config.pipelines.iter().any(|p| p.name == entry.definition.name);
            if entry.current && !wanted {
                entry.current = false;
                changes.push((entry.definition.name.clone(), Change::Withdrawn));
            }
        }
        for definition in &config.pipelines {
            changes.push((definition.name.clone(), self.adopt_one(definition)));
        }
        changes
    }

    fn adopt_one(&mut self, definition: &PipelineDef) -> Change {
        let mut known = false;
        let mut version = 0;
        let mut same = None;
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.definition.name == definition.name {
                known |= entry.current;
                version = version.max(entry.version);
                if entry.definition.decodes_like(definition) {
                    same = Some((index, entry.current));
                }
                entry.current = false;
            }
        }
        if let Some((index, current)) = same {
            let entry = &mut self.entries[index];
            entry.current = true;
            let equal = entry.definition == *definition;
            entry.definition = definition.clone();
            return match (current, equal) {
                (true, true) => Change::Kept,
                (true, false) => Change::Tuned,
                (false, _) => Change::Changed,
            };
        }
        let version = version + 1;
        let tag = self.free_tag(&definition.name, version);
        self.entries.push(Entry { tag, version, current: true, definition: definition.clone() });
        if known { Change::Changed } else { Change::Added }
    }

    /// A tag is a hash of name and version, so that two images configured alike agree on it.
    fn free_tag(&self, name: &str, version: u32) -> u32 {
        let hash = crc32c::crc32c(format!("{name}\0{version}").as_bytes());
        // Bounded by the number of entries: each step passes one of them, or zero.
        let candidates = (0..).map(|step: u32| hash.wrapping_add(step) & TAG_PIPELINE_BITS);
        let mut free = candidates.filter(|tag| *tag != 0 && self.entries.iter().all(|e| e.tag != *tag));
        free.next().unwrap_or_else(|| unreachable!("the candidates do not end"))
    }

    /// Forgets definitions that are not current and whose tags `in_use` does not have; answers their tags.
    /// `in_use` may carry the skip bits of extents.
    pub fn retire(&mut self, in_use: &[Tag]) -> Vec<Tag> {
        let used = |tag: u32| in_use.iter().any(|t| t.pipeline() == Tag(tag));
        let (keep, gone): (Vec<Entry>, Vec<Entry>) =
            self.entries.drain(..).partition(|entry| entry.current || used(entry.tag));
        self.entries = keep;
        gone.into_iter().map(|entry| Tag(entry.tag)).collect()
    }

    /// Numbers the actors of every definition. `tenants` are those of the present configuration; a withdrawn
    /// pipeline whose tenant is gone gets the default limits.
    ///
    /// # Errors
    /// [`RegistryError::TooManyActors`].
    pub fn pipelines(&self, tenants: &BTreeMap<String, Tenant>) -> Result<Pipelines, RegistryError> {
        let total = self.entries.iter().map(|e| e.definition.stages.len()).sum();
        if total > ACTORS_MAX {
            return Err(RegistryError::TooManyActors(total));
        }
        let mut actors = Vec::new();
        let mut plans = Vec::new();
        for entry in &self.entries {
            let mut stages = Vec::new();
            for (position, stage) in entry.definition.stages.iter().enumerate() {
                let id = ActorId(actors.len() as u16);
                stages.push(id);
                actors.push(ActorDef {
                    id,
                    tag: Tag(entry.tag),
                    pipeline: entry.definition.name.clone(),
                    version: entry.version,
                    current: entry.current,
                    position: position as u8,
                    unit_bytes: entry.definition.unit_bytes(),
                    tenant: entry.definition.tenant.clone(),
                    limits: tenants.get(&entry.definition.tenant).copied().unwrap_or_default(),
                    stage: stage.clone(),
                });
            }
            plans.push(Pipeline { tag: Tag(entry.tag), stages, query: entry.definition.query_mask() });
        }
        Ok(Pipelines { plan: Plan::new(plans), actors, entries: self.entries.clone() })
    }
}

/// The line of a text, from 1, that its parser stumbled over.
fn line_of(text: &str, error: &toml::de::Error) -> usize {
    let start = error.span().map_or(0, |span| span.start).min(text.len());
    text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// What a parser says, without the picture of the text.
fn one_line(error: &toml::de::Error) -> String {
    error.message().trim().replace('\n', " ")
}

/// What follows the first line, if its checksum is that line's.
fn checked(text: &str) -> Result<&str, RegistryError> {
    let damaged = |what: &str| Err(RegistryError::Damaged(what.to_owned()));
    let Some((digits, rest)) = text.strip_prefix(CHECKSUM_KEY).and_then(|text| text.split_once("\"\n")) else {
        return damaged("it does not begin with its checksum");
    };
    if digits != format!("{:08x}", crc32c::crc32c(rest.as_bytes())) {
        return damaged("its checksum is wrong; it is not a file to be edited: change pipelines.toml");
    }
    Ok(rest)
}

impl PipelineDef {
    /// Whether extents of one are read back by the other: all but limits, hints and who pays is equal.
    fn decodes_like(&self, other: &PipelineDef) -> bool {
        let alike = |a: &StageDef, b: &StageDef| {
            (&a.source, &a.params, a.optional, a.query, a.key) == (&b.source, &b.params, b.optional, b.query, b.key)
        };
        self.unit_kib == other.unit_kib
            && self.stages.len() == other.stages.len()
            && self.stages.iter().zip(&other.stages).all(|(a, b)| alike(a, b))
    }

    /// The bounds that the reader of a file checks, for definitions that come from an image.
    fn check(&self) -> Result<(), String> {
        let units = (4..=64).contains(&self.unit_kib) && self.unit_kib.is_multiple_of(BLOCK_KIB);
        let request = (self.unit_kib..=REQUEST_KIB_MAX).contains(&self.request_kib_max);
        if !units || !request || !self.request_kib_max.is_multiple_of(BLOCK_KIB) {
            return Err(format!("unit_kib = {}, request_kib_max = {}", self.unit_kib, self.request_kib_max));
        }
        if !(1..=SLOTS_MAX).contains(&self.slots) || !(1..=STAGES_MAX).contains(&self.stages.len()) {
            return Err(format!("slots = {}, {} stages", self.slots, self.stages.len()));
        }
        for stage in &self.stages {
            if stage.params.len() > PARAMS_BYTES_MAX {
                return Err(format!("stage `{}` has {} bytes of parameters", stage.name, stage.params.len()));
            }
            match &stage.source {
                Source::Builtin(name) if crate::builtin::find(name).is_none() => {
                    return Err(format!("there is no built-in actor `{name}` in this program"));
                }
                Source::Stored(_) if stage.trusted => {
                    return Err(format!("stage `{}` is a module from outside and says that it is trusted", stage.name));
                }
                Source::Builtin(_) | Source::Stored(_) => {}
            }
        }
        Ok(())
    }
}

/// One actor: everything that making it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorDef {
    /// Its number.
    pub id: ActorId,
    /// Its pipeline's tag.
    pub tag: Tag,
    /// Its pipeline's name.
    pub pipeline: String,
    /// The version of that pipeline.
    pub version: u32,
    /// New writes go through it.
    pub current: bool,
    /// Its place in the pipeline, from 0.
    pub position: u8,
    /// Bytes of a full unit.
    pub unit_bytes: u32,
    /// Who pays.
    pub tenant: String,
    /// What the tenant may use.
    pub limits: Tenant,
    /// The stage.
    pub stage: StageDef,
}

impl ActorDef {
    /// The name of the shared object that holds its memory. It depends on tag and position alone, so that it is
    /// found again after the pipelines changed and the actors were numbered anew.
    pub fn memory_name(&self) -> String {
        format!("actor.{:06x}.{}.memory", self.tag.0, self.position)
    }

    /// The name of the shared object that holds its shared state.
    pub fn state_name(&self) -> String {
        format!("actor.{:06x}.{}.state", self.tag.0, self.position)
    }

    /// What logs and listings call it: `text/0:lz4`.
    pub fn label(&self) -> String {
        format!("{}/{}:{}", self.pipeline, self.position, self.stage.name)
    }
}

/// What both domains hold while traffic runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipelines {
    plan: Plan,
    actors: Vec<ActorDef>,
    entries: Vec<Entry>,
}

impl Pipelines {
    /// For the state machine.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Every actor; its number is its index.
    pub fn actors(&self) -> &[ActorDef] {
        &self.actors
    }

    /// One actor.
    pub fn actor(&self, id: ActorId) -> &ActorDef {
        &self.actors[usize::from(id.0)]
    }

    /// The actor of a label, or of `pipeline/position` or `pipeline/name`, among current pipelines.
    pub fn find_actor(&self, wanted: &str) -> Option<ActorId> {
        let matches = |a: &&ActorDef| {
            let (pipeline, position, name) = (&a.pipeline, a.position, &a.stage.name);
            a.current
                && (a.label() == wanted
                    || format!("{pipeline}/{position}") == wanted
                    || format!("{pipeline}/{name}") == wanted)
        };
        self.actors.iter().find(matches).map(|a| a.id)
    }

    /// The definition that new writes of this name use, with its tag.
    pub fn current(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.current && e.definition.name == name)
    }

    /// The definition of an extent's tag.
    pub fn of_tag(&self, tag: Tag) -> Option<&Entry> {
        self.entries.iter().find(|e| Tag(e.tag) == tag.pipeline())
    }

    /// The arena that all of them share: as many slots as the current pipelines have together, each large
    /// enough for the largest request and the largest unit of any pipeline, since a read may meet the
    /// extents of all.
    pub fn layout(&self) -> Layout {
        let slots = self.entries.iter().filter(|e| e.current).map(|e| u32::from(e.definition.slots)).sum::<u32>();
        let request_kib = self.entries.iter().map(|e| e.definition.request_kib_max).max().unwrap_or(BLOCK_KIB);
        let unit_kib = self.entries.iter().map(|e| e.definition.unit_kib).max().unwrap_or(BLOCK_KIB);
        Layout {
            slots: slots.clamp(1, u32::from(u16::MAX)) as u16,
            request_blocks_max: request_kib.max(unit_kib) / BLOCK_KIB,
            unit_blocks: (unit_kib / BLOCK_KIB) as u8,
        }
    }
}

#[cfg(test)]
mod tests;
