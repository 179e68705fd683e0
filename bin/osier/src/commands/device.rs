//! `osier device`: images on disk.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use osier_image::{BLOCK_BYTES, CheckReport, Image, Inspection, LockState, MediaKind, MediaSpec, Severity, utc_text};
use osier_runtime::create::CreateSpec;
use serde_json::{Value, json};

use super::Context;
use crate::exit::{Exit, Failure};
use crate::output::{self, Table};
use crate::profiles;
use crate::units::{format_bytes, parse_bytes};

/// What a new device is when neither the command line nor the configuration says.
const PROFILE_DEFAULT: &str = "wio";
const CAPACITY_DEFAULT: &str = "1GiB";
const MEDIA_DEFAULT: &str = "file";

/// `osier device ...`
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Make a device image
    Create(CreateArgs),
    /// List the devices in the home directory
    Ls,
    /// Show everything known about a device
    Show(NameArgs),
    /// Verify a device image and say what was found; nothing is changed
    Check(CheckArgs),
    /// Remove device images and all data in them
    Rm(RmArgs),
    /// List the built-in profiles, or print one to start your own from
    Profiles(ProfilesArgs),
}

/// `osier device create`
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The device's name, or with a `/` in it the path of its image
    device: String,
    /// A built-in profile, or the path of a profile file [default: wio]
    #[arg(long, short, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// The capacity that programs see [default: 1GiB]
    #[arg(long, short, value_name = "SIZE")]
    capacity: Option<String>,
    /// The size of the persistent memory region [default: what profile and pipelines need]
    #[arg(long, value_name = "SIZE")]
    pmr: Option<String>,
    /// Where the flash array's bytes go [default: file]
    ///
    /// `file`: a sparse file in the image. `memory`: lost when the device stops. `none`: timing only.
    /// A path: that block device, used whole.
    #[arg(long, short, value_name = "file|memory|none|PATH")]
    media: Option<String>,
    /// Erase a block device that holds data
    #[arg(long)]
    overwrite: bool,
    /// A file with the device's pipelines
    ///
    /// Without it the device has one, `main`: compress, encrypt, checksum.
    #[arg(long, value_name = "FILE")]
    pipelines: Option<PathBuf>,
}

/// A device.
#[derive(Debug, Args)]
pub struct NameArgs {
    /// The device's name, or the path of its image
    device: String,
}

/// `osier device check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The device's name, or the path of its image
    device: String,
    /// Read everything that is stored and compare it with its checksums
    ///
    /// Without it only what a kill can have left cut short is read.
    #[arg(long)]
    deep: bool,
    /// Then write a sound superblock copy in the place of a damaged one
    ///
    /// The damaged file is kept as `superblock.damaged` in the image. The device must not be in use.
    #[arg(long)]
    restore_copy: bool,
}

/// `osier device rm`
#[derive(Debug, Args)]
pub struct RmArgs {
    /// The devices' names, or the paths of their images
    #[arg(required = true)]
    devices: Vec<String>,
}

/// `osier device profiles`
#[derive(Debug, Args)]
pub struct ProfilesArgs {
    /// Print this profile's text, with the source of every value
    name: Option<String>,
}

/// Does what was asked.
///
/// # Errors
/// What the image, the profile or the system said.
pub fn run(command: DeviceCommand, context: &Context) -> anyhow::Result<Exit> {
    match command {
        DeviceCommand::Create(args) => create(&args, context),
        DeviceCommand::Ls => list(context),
        DeviceCommand::Show(args) => show(&args, context),
        DeviceCommand::Check(args) => check(&args, context),
        DeviceCommand::Rm(args) => remove(&args, context),
        DeviceCommand::Profiles(args) => print_profiles(&args, context),
    }
}

fn create(args: &CreateArgs, context: &Context) -> anyhow::Result<Exit> {
    let path = context.image_path(&args.device)?;
    if !args.device.contains('/') {
        std::fs::create_dir_all(&context.home)
            .with_context(|| format!("making the home of devices {} failed", context.home.display()))?;
    }
    let superblock = osier_runtime::create::create(&create_spec(args, &path, context)?)?;
    tracing::info!(path = %path.display(), uuid = %superblock.uuid, "made a device image");
    let inspection = osier_image::inspect(&path)?;
    if context.json {
        output::print_json(&to_json(&args.device, &inspection))?;
    } else {
        let capacity = format_bytes(superblock.logical_blocks * BLOCK_BYTES);
        let (profile, path) = (&superblock.profile_name, path.display());
        output::print(&format!("made device {} ({profile}, {capacity}) in {path}\n", args.device))?;
    }
    Ok(Exit::Ok)
}

fn create_spec<'a>(args: &CreateArgs, path: &'a Path, context: &Context) -> anyhow::Result<CreateSpec<'a>> {
    let defaults = &context.config.device;
    let pick = |given: &Option<String>, configured: &Option<String>| given.clone().or_else(|| configured.clone());
    let word = pick(&args.profile, &defaults.profile).unwrap_or_else(|| PROFILE_DEFAULT.to_owned());
    let (text, profile) = profiles::find(&word)?;
    let capacity = pick(&args.capacity, &defaults.capacity).unwrap_or_else(|| CAPACITY_DEFAULT.to_owned());
    let capacity_bytes = whole_blocks("capacity", &capacity)?;
    let blocks_max = profiles::logical_blocks_max(&profile);
    if capacity_bytes / BLOCK_BYTES > blocks_max {
        let most = format_bytes(blocks_max * BLOCK_BYTES);
        let text = format!("the flash array of profile `{word}` holds at most {most}; ask for less than {capacity}");
        return Err(Failure::new(Exit::BadInput, text).into());
    }
    let pmr_bytes = match pick(&args.pmr, &defaults.pmr) {
        Some(size) => Some(whole_blocks("size of the persistent memory region", &size)?),
        None => None,
    };
    let media = pick(&args.media, &defaults.media).unwrap_or_else(|| MEDIA_DEFAULT.to_owned());
    let media = media_spec(&media, args.overwrite)?;
    let mut spec = CreateSpec::new(path, &text.name, &text.text, capacity_bytes);
    if let Some(file) = &args.pipelines {
        let read = std::fs::read_to_string(file).map_err(|cause| {
            Failure::new(Exit::BadInput, format!("reading the pipelines {} failed: {cause}", file.display()))
        })?;
        let directory = file.parent().unwrap_or(Path::new(".")).to_owned();
        spec.pipelines = (read, file.display().to_string(), directory);
        spec.compiler = Some(super::domain::compiler()?);
    }
    Ok(CreateSpec { media, pmr_bytes, ..spec })
}

/// A size in bytes that is a multiple of a block, and not zero.
fn whole_blocks(what: &str, text: &str) -> Result<u64, Failure> {
    let refuse = |why: String| Failure::new(Exit::BadInput, why);
    let bytes = parse_bytes(text).map_err(|why| refuse(format!("the {what}: {why}")))?;
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(refuse(format!("the {what} cannot be {text}: it must be a multiple of {BLOCK_BYTES} bytes")));
    }
    Ok(bytes)
}

fn media_spec(word: &str, overwrite: bool) -> Result<MediaSpec, Failure> {
    match word {
        "file" => Ok(MediaSpec::File),
        "memory" => Ok(MediaSpec::Memory),
        "none" => Ok(MediaSpec::None),
        path if path.contains('/') => Ok(MediaSpec::Block { path: PathBuf::from(path), overwrite }),
        other => {
            let text = format!("`{other}` is no kind of media: use file, memory, none, or the path of a block device");
            Err(Failure::new(Exit::BadInput, text))
        }
    }
}

fn list(context: &Context) -> anyhow::Result<Exit> {
    let entries = osier_image::list(&context.home)?;
    if context.json {
        let devices: Vec<Value> = entries
            .iter()
            .map(|entry| match &entry.inspection {
                Ok(inspection) => to_json(&entry.name, inspection),
                Err(error) => json!({ "name": entry.name, "error": error.to_string() }),
            })
            .collect();
        output::print_json(&devices)?;
        return Ok(Exit::Ok);
    }
    if entries.is_empty() {
        let home = context.home.display();
        output::print(&format!("no devices in {home}; `osier device create NAME` makes one\n"))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["NAME", "STATE", "PROFILE", "CAPACITY", "MEDIA", "ON DISK", "STARTS", "MADE"]);
    let mut broken = String::new();
    for entry in &entries {
        match &entry.inspection {
            Ok(seen) => table.row(row_of(&entry.name, seen)),
            Err(error) => writeln!(broken, "{}: {error}", entry.name)?,
        }
    }
    output::print(&format!("{}{broken}", table.text()))?;
    Ok(Exit::Ok)
}

fn row_of(name: &str, seen: &Inspection) -> Vec<String> {
    let superblock = &seen.superblock;
    vec![
        name.to_owned(),
        state_word(seen).to_owned(),
        superblock.profile_name.clone(),
        format_bytes(superblock.logical_blocks * BLOCK_BYTES),
        superblock.media.word().to_owned(),
        format_bytes(on_disk_bytes(seen)),
        superblock.incarnation.to_string(),
        utc_text(superblock.created_unix_seconds),
    ]
}

/// The room that an image takes on its file system; a block device is not on one.
fn on_disk_bytes(seen: &Inspection) -> u64 {
    seen.media_allocated_bytes.unwrap_or(0) + seen.pmr_allocated_bytes.unwrap_or(0)
}

fn state_word(seen: &Inspection) -> &'static str {
    match (&seen.lock, seen.faults.iter().any(Option::is_some)) {
        (_, true) => "damaged",
        (LockState::Held(_), _) => "in use",
        (LockState::FreeAfterKill(_), _) => "killed",
        (LockState::Free | LockState::Missing, _) => "stopped",
    }
}

fn to_json(name: &str, seen: &Inspection) -> Value {
    let superblock = &seen.superblock;
    let media_path = match &superblock.media {
        MediaKind::Block(path) => Some(path.display().to_string()),
        MediaKind::File | MediaKind::Memory | MediaKind::None => None,
    };
    json!({
        "name": name,
        "path": seen.path.display().to_string(),
        "state": state_word(seen),
        "lock": seen.lock.to_string(),
        "uuid": superblock.uuid.to_string(),
        "profile": superblock.profile_name,
        "logical_blocks": superblock.logical_blocks,
        "capacity_bytes": superblock.logical_blocks * BLOCK_BYTES,
        "media": superblock.media.word(),
        "media_path": media_path,
        "media_bytes": superblock.media_bytes,
        "media_allocated_bytes": seen.media_allocated_bytes,
        "pmr_bytes": superblock.pmr_bytes,
        "pmr_allocated_bytes": seen.pmr_allocated_bytes,
        "incarnation": superblock.incarnation.0,
        "created_unix_seconds": superblock.created_unix_seconds,
    })
}

fn show(args: &NameArgs, context: &Context) -> anyhow::Result<Exit> {
    let path = context.image_path(&args.device)?;
    let seen = osier_image::inspect(&path)?;
    if context.json {
        output::print_json(&to_json(&args.device, &seen))?;
    } else {
        output::print(&show_text(&args.device, &seen))?;
    }
    Ok(Exit::Ok)
}

fn show_text(name: &str, seen: &Inspection) -> String {
    let superblock = &seen.superblock;
    let with_blocks = format!(
        "{} ({} blocks of {BLOCK_BYTES} bytes)",
        format_bytes(superblock.logical_blocks * BLOCK_BYTES),
        superblock.logical_blocks
    );
    let allocated = |bytes: Option<u64>| match bytes {
        Some(bytes) => format!(", {} on disk", format_bytes(bytes)),
        None => String::new(),
    };
    let media = format!(
        "{}, {}{}",
        superblock.media,
        format_bytes(superblock.media_bytes),
        allocated(seen.media_allocated_bytes)
    );
    let pmr = format!("{}{}", format_bytes(superblock.pmr_bytes), allocated(seen.pmr_allocated_bytes));
    let mut lines = vec![
        ("name", name.to_owned()),
        ("path", seen.path.display().to_string()),
        ("state", state_word(seen).to_owned()),
        ("lock", seen.lock.to_string()),
        ("uuid", superblock.uuid.to_string()),
        ("profile", superblock.profile_name.clone()),
        ("capacity", with_blocks),
        ("media", media),
        ("memory region", pmr),
        ("starts", superblock.incarnation.to_string()),
        ("made", utc_text(superblock.created_unix_seconds)),
    ];
    for (copy, fault) in seen.faults.iter().enumerate() {
        if let Some(fault) = fault {
            lines.push(("damage", format!("superblock copy {copy}: {fault}; see `osier device check`")));
        }
    }
    lines.iter().map(|(key, value)| format!("{key:<14} {value}\n")).collect()
}

fn check(args: &CheckArgs, context: &Context) -> anyhow::Result<Exit> {
    let path = context.image_path(&args.device)?;
    let report = osier_runtime::check(&path, args.deep, &profiles::check)?;
    print_check(&args.device, &report, context)?;
    // A sound image has nothing to restore, and may be in use.
    if args.restore_copy && !report.is_sound() && Image::open(&path, &profiles::check)?.restore_copy()? {
        tracing::warn!("wrote a new superblock copy; the damaged file is kept as superblock.damaged");
        // What was restored is judged anew, so that the exit code speaks of the image as it is now.
        return Ok(exit_of(&osier_runtime::check(&path, args.deep, &profiles::check)?));
    }
    Ok(exit_of(&report))
}

fn exit_of(report: &CheckReport) -> Exit {
    if report.is_sound() { Exit::Ok } else { Exit::Damaged }
}

fn print_check(name: &str, report: &CheckReport, context: &Context) -> anyhow::Result<()> {
    if context.json {
        let findings: Vec<Value> = report
            .findings
            .iter()
            .map(|f| json!({ "area": f.area.to_string(), "severity": f.severity.to_string(), "text": f.text }))
            .collect();
        let value = json!({ "name": name, "sound": report.is_sound(), "findings": findings });
        return Ok(output::print_json(&value)?);
    }
    let mut table = Table::new(&["PART", "FOUND", "WHAT"]);
    for finding in &report.findings {
        table.row(vec![finding.area.to_string(), finding.severity.to_string(), finding.text.clone()]);
    }
    let damages = report.findings.iter().filter(|f| f.severity == Severity::Damage).count();
    let verdict = match damages {
        0 => format!("device {name} is sound\n"),
        1 => format!("device {name} is damaged in one place\n"),
        count => format!("device {name} is damaged in {count} places\n"),
    };
    Ok(output::print(&(table.text() + &verdict))?)
}

fn remove(args: &RmArgs, context: &Context) -> anyhow::Result<Exit> {
    // All names are looked at before the first is removed, so that a mistyped one costs nothing.
    let paths: Vec<PathBuf> = args.devices.iter().map(|device| context.image_path(device)).collect::<Result<_, _>>()?;
    if let Some(missing) = paths.iter().find(|path| !path.exists()) {
        return Err(osier_image::ImageError::Missing { path: missing.clone() }.into());
    }
    for (device, path) in args.devices.iter().zip(&paths) {
        remove_one(device, path, context)?;
    }
    Ok(Exit::Ok)
}

fn remove_one(device: &str, path: &Path, context: &Context) -> anyhow::Result<()> {
    osier_image::remove(path)?;
    if !context.json {
        output::print(&format!("removed device {device}\n"))?;
    }
    Ok(())
}

fn print_profiles(args: &ProfilesArgs, context: &Context) -> anyhow::Result<Exit> {
    use osier_device::Profile;
    if let Some(name) = &args.name {
        output::print(&profiles::find(name)?.0.text)?;
        return Ok(Exit::Ok);
    }
    let mut found = Vec::new();
    for name in Profile::built_in_names() {
        found.push((name, profiles::find(name)?.1.device.description));
    }
    if context.json {
        let list: Vec<Value> = found.iter().map(|(name, text)| json!({ "name": name, "description": text })).collect();
        output::print_json(&list)?;
    } else {
        let mut table = Table::new(&["PROFILE", "DESCRIPTION"]);
        found.into_iter().for_each(|(name, text)| table.row(vec![name.to_owned(), text]));
        output::print(&table.text())?;
    }
    Ok(Exit::Ok)
}
