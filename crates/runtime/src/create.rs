//! Making a device: the image, its region, its pipelines.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use osier_actor::{Config, ModuleStore, Registry};
use osier_device::Profile;
use osier_domain::Tag;
use osier_flash::BLOCK_BYTES;
use osier_image::{CreateOptions, Image, MediaSpec, ProfileText, Superblock, inspect};

use crate::error::RuntimeError;
use crate::link::{BELLS_BYTES, ring_object_bytes};
use crate::setup::{compile, modules_path, pipelines_path, registry_path};

/// The pipeline that a new device has.
pub const DEFAULT_PIPELINE: &str = "main";

/// The pipelines of a new device, unless its maker names others.
pub const DEFAULT_PIPELINES: &str = r#"# The pipelines of this device. docs/actors.md explains every key; a change takes effect at the next start,
# and data that was written before it is still read by the pipeline that wrote it.
[[pipeline]]
name = "main"
unit_kib = 16
request_kib_max = 64
slots = 32

[[pipeline.stage]]
actor = "lz4"

[[pipeline.stage]]
actor = "aes256-gcm-siv"
key = 0

[[pipeline.stage]]
actor = "crc32c"
"#;

/// Room in the region for what is not counted one by one: the table, control words, owner records, a witness.
const REGION_SLACK_BYTES: u64 = 8 << 20;
/// Room for one actor's linear memory and shared state.
const ACTOR_BYTES: u64 = 1 << 20;

/// What a new device shall be.
pub struct CreateSpec<'a> {
    /// The image's directory, which must not exist.
    pub path: &'a Path,
    /// The profile.
    pub profile: ProfileText,
    /// Capacity in bytes, a multiple of 4096.
    pub capacity_bytes: u64,
    /// Where the flash array's bytes go.
    pub media: MediaSpec,
    /// The region's size; as much as the pipelines need if it is not given.
    pub pmr_bytes: Option<u64>,
    /// The pipelines: the file's text, what errors call it, and where relative module paths start.
    pub pipelines: (String, String, PathBuf),
    /// The program that compiles modules, and its first arguments: then every actor is tried out before anything is
    /// made. Without it that is left to the first start.
    pub compiler: Option<(PathBuf, Vec<OsString>)>,
}

impl<'a> CreateSpec<'a> {
    /// A device in a sparse file with the default pipelines.
    pub fn new(path: &'a Path, name: &str, text: &str, capacity_bytes: u64) -> CreateSpec<'a> {
        CreateSpec {
            path,
            profile: ProfileText { name: name.to_owned(), text: text.to_owned() },
            capacity_bytes,
            media: MediaSpec::File,
            pmr_bytes: None,
            pipelines: (DEFAULT_PIPELINES.to_owned(), "the default pipelines".to_owned(), PathBuf::from(".")),
            compiler: None,
        }
    }
}

/// Makes the device. After an error nothing of it is left.
pub fn create(spec: &CreateSpec<'_>) -> Result<Superblock, RuntimeError> {
    let profile = Profile::parse(&spec.profile.name, &spec.profile.text)?;
    let logical_blocks = spec.capacity_bytes / u64::from(BLOCK_BYTES);
    let (text, name, directory) = &spec.pipelines;
    // Modules go into a store beside the image first: the image's directory does not exist before it is whole.
    let staging =
        tempfile::tempdir().map_err(|source| RuntimeError::System { what: "make a temporary directory", source })?;
    let store = ModuleStore::new(modules_path(staging.path()));
    let config = Config::parse(name, text, directory, &store)?;
    let mut registry = Registry::new();
    registry.adopt(&config);
    let pipelines = registry
        .pipelines(&config.tenants)
        .map_err(|source| RuntimeError::Registry { path: PathBuf::from(name), source })?;
    if let Some(compiler) = &spec.compiler {
        // With keys of its own, which go with the directory.
        let keys = crate::keys::load(&staging.path().join("keys"), &pipelines, &BTreeSet::new())?;
        compile(staging.path(), &pipelines, &keys, compiler)?;
    }
    let wanted = REGION_SLACK_BYTES
        + profile.write_buffer.bytes
        + pipelines.layout().arena_bytes()
        + pipelines.actors().len() as u64 * ACTOR_BYTES
        + 2 * ring_object_bytes(pipelines.layout().slots, pipelines.actors().len())
        + BELLS_BYTES;
    let options = CreateOptions {
        profile: spec.profile.clone(),
        media: spec.media.clone(),
        media_bytes: profile.geometry_for(logical_blocks).media_bytes(),
        pmr_bytes: spec.pmr_bytes.unwrap_or(wanted.next_multiple_of(1 << 20)),
        logical_blocks,
    };
    let check = |name: &str, text: &str| Profile::parse(name, text).map(|_| ()).map_err(|e| e.to_string());
    Image::create_with(spec.path, &options, &check, |layout| finish(layout.root(), text, &registry, &config, &store))
}

fn finish(
    path: &Path,
    text: &str,
    registry: &Registry,
    config: &Config,
    from: &ModuleStore,
) -> Result<(), RuntimeError> {
    let failed = |source| RuntimeError::System { what: "write the image's pipelines", source };
    let into = ModuleStore::new(modules_path(path));
    for stage in config.pipelines.iter().flat_map(|p| &p.stages) {
        if let osier_actor::pipeline::Source::Stored(digest) = &stage.source {
            let module = from.get(digest)?;
            into.put(&module)?;
            keep_named(&into, &stage.name, &module)?;
        }
    }
    osier_actor::module::write_whole(&pipelines_path(path), text.as_bytes()).map_err(failed)?;
    osier_actor::module::write_whole(&registry_path(path), registry.encode().as_bytes()).map_err(failed)
}

/// Keeps a module under its file's own name too, by which the image's pipelines.toml finds it.
fn keep_named(into: &ModuleStore, name: &str, module: &[u8]) -> Result<(), RuntimeError> {
    let Some(path) = into.named(name) else { return Ok(()) };
    match std::fs::read(&path) {
        Ok(other) if other != module => Err(RuntimeError::Option(format!(
            "two different modules are called {}; give one of the files another name",
            path.file_name().unwrap_or_default().display()
        ))),
        Ok(_) => Ok(()),
        Err(_) => osier_actor::module::write_whole(&path, module)
            .map_err(|source| RuntimeError::System { what: "write a module into the image", source }),
    }
}

/// The tag that new writes through a pipeline get.
pub fn current_tag(image: &Path, pipeline: &str) -> Result<Tag, RuntimeError> {
    // First, so that a device that is not there is not taken for one that lacks a file.
    inspect(image)?;
    let pipelines = crate::setup::read_pipelines(image)?;
    match pipelines.current(pipeline) {
        Some(entry) => Ok(Tag(entry.tag)),
        None => Err(RuntimeError::Option(format!(
            "this device has no pipeline `{pipeline}`; its pipelines.toml lists those that it has"
        ))),
    }
}
