//! The check of an image: every part looked at, nothing changed, everything found said.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use osier_pmr::{FORMAT_VERSION, Snapshot};

use crate::error::ImageError;
use crate::image::{Inspection, ProfileCheck, inspect, read_profile, read_superblock_bytes};
use crate::layout::Layout;
use crate::lock::LockState;
use crate::remove::foreign_names;
use crate::superblock::{MediaKind, SUPERBLOCK_BYTES};
use crate::uuid::Uuid;

/// The permissions of the key directory: its owner's alone.
const KEYS_MODE: u32 = 0o700;

/// Which part of an image a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// The two copies of what the image is.
    Superblock,
    /// The device description.
    Profile,
    /// The flash array's bytes.
    Media,
    /// The persistent memory region.
    Pmr,
    /// The key directory.
    Keys,
    /// The owner lock.
    Lock,
    /// The directory itself.
    Directory,
    /// The pipelines: `pipelines.toml`, `registry.toml` and the modules.
    Pipelines,
    /// The actors' owner words and checkpoints.
    Owners,
    /// The requests in flight.
    Arena,
    /// The write buffer: completed data on their way to the flash array.
    Buffer,
    /// The map from logical blocks to the flash array, and the extents it leads to.
    Map,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Superblock => "superblock",
            Self::Profile => "profile",
            Self::Media => "media",
            Self::Pmr => "pmr",
            Self::Keys => "keys",
            Self::Lock => "lock",
            Self::Directory => "directory",
            Self::Pipelines => "pipelines",
            Self::Owners => "owners",
            Self::Arena => "arena",
            Self::Buffer => "buffer",
            Self::Map => "map",
        })
    }
}

/// What a finding means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Good,
    /// Worth knowing; the device works.
    Note,
    /// Data or redundancy is lost, or the device will not start.
    Damage,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Damage => "damage",
        })
    }
}

/// One thing that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The part it is about.
    pub area: Area,
    /// What it means.
    pub severity: Severity,
    /// What was found, in words.
    pub text: String,
}

impl Finding {
    /// A finding.
    #[must_use]
    pub fn new(area: Area, severity: Severity, text: impl Into<String>) -> Self {
        Self { area, severity, text: text.into() }
    }
}

/// Everything that a check found, part by part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The findings, in the order of the parts.
    pub findings: Vec<Finding>,
}

impl CheckReport {
    /// Whether nothing is damaged.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity < Severity::Damage)
    }

    fn add(&mut self, area: Area, severity: Severity, text: impl Into<String>) {
        self.findings.push(Finding::new(area, severity, text));
    }
}

/// Checks the image in the directory `path`.
///
/// # Errors
/// [`ImageError::Missing`], [`ImageError::NotAnImage`], [`ImageError::NewerFormat`], or what the system
/// said: then there is nothing to report on. Damage is a finding, not an error.
pub fn check(path: &Path, check_profile: ProfileCheck<'_>) -> Result<CheckReport, ImageError> {
    check_with(path, check_profile, &mut |_| Vec::new())
}

/// [`check`], with more findings from a caller who knows what the media and the region mean. It is asked
/// only when the superblock can be read.
///
/// # Errors
/// As [`check`].
pub fn check_with(
    path: &Path,
    check_profile: ProfileCheck<'_>,
    deeper: &mut dyn FnMut(&Inspection) -> Vec<Finding>,
) -> Result<CheckReport, ImageError> {
    let layout = Layout::new(path);
    let mut report = CheckReport { findings: Vec::new() };
    let inspection = match inspect(path) {
        Ok(inspection) => inspection,
        Err(ImageError::Damaged { what, .. }) => {
            report.add(Area::Superblock, Severity::Damage, what);
            report.add(Area::Directory, Severity::Note, "without a superblock nothing else can be checked");
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    check_superblock(&layout, &inspection, &mut report)?;
    check_profile_text(&layout, &inspection, check_profile, &mut report);
    check_media(&layout, &inspection, &mut report);
    check_pmr(&layout, &inspection, &mut report);
    check_keys(&layout, &mut report);
    check_lock(&inspection, &mut report);
    for name in foreign_names(path)? {
        let text = format!("`{name}` was not put there by osier, and prevents a removal");
        report.add(Area::Directory, Severity::Note, text);
    }
    report.findings.extend(deeper(&inspection));
    Ok(report)
}

fn check_superblock(layout: &Layout, seen: &Inspection, report: &mut CheckReport) -> Result<(), ImageError> {
    for (copy, fault) in seen.faults.iter().enumerate() {
        if let Some(fault) = fault {
            report.add(
                Area::Superblock,
                Severity::Damage,
                format!("copy {copy} is damaged: {fault}; the other copy serves, and nothing was changed"),
            );
        }
    }
    if seen.faults.iter().all(Option::is_none) {
        let (sb, crc) = (&seen.superblock, "both copies are sound");
        let text = format!("{crc}; image {}, incarnation {}", sb.uuid, sb.incarnation);
        report.add(Area::Superblock, Severity::Good, text);
    }
    if read_superblock_bytes(layout)?.len() > SUPERBLOCK_BYTES {
        let text = format!("the file is longer than its {SUPERBLOCK_BYTES} bytes; what follows is not used");
        report.add(Area::Superblock, Severity::Note, text);
    }
    if layout.superblock_damaged().exists() {
        let text = "superblock.damaged keeps a damaged superblock from before it was restored";
        report.add(Area::Superblock, Severity::Note, text);
    }
    Ok(())
}

fn check_profile_text(layout: &Layout, seen: &Inspection, check_profile: ProfileCheck<'_>, report: &mut CheckReport) {
    let name = &seen.superblock.profile_name;
    let text = match read_profile(layout, &seen.superblock) {
        Ok(text) => text,
        Err(error) => return report.add(Area::Profile, Severity::Damage, cause_of(error)),
    };
    match check_profile(name, &text) {
        Ok(()) => report.add(Area::Profile, Severity::Good, format!("`{name}`, checksum and values are right")),
        // The checksum is right, so this is what the image was made with: this program disagrees with it.
        Err(why) => report.add(Area::Profile, Severity::Damage, format!("this program refuses it: {why}")),
    }
}

fn check_media(layout: &Layout, seen: &Inspection, report: &mut CheckReport) {
    let bytes = seen.superblock.media_bytes;
    let (severity, text) = match &seen.superblock.media {
        MediaKind::File => match fs::metadata(layout.media()) {
            Err(cause) => (Severity::Damage, format!("the media file cannot be examined: {cause}")),
            Ok(meta) if meta.len() != bytes => {
                (Severity::Damage, format!("the media file has {} bytes instead of {bytes}", meta.len()))
            }
            Ok(_) => {
                let used = seen.media_allocated_bytes.unwrap_or(0);
                (Severity::Good, format!("sparse file of {bytes} bytes, {used} of them on disk"))
            }
        },
        MediaKind::Block(path) => match block_device_bytes(path) {
            Err(cause) => (Severity::Damage, format!("{} cannot serve: {cause}", path.display())),
            Ok(found) if found < bytes => {
                (Severity::Damage, format!("{} has {found} bytes instead of {bytes}", path.display()))
            }
            Ok(found) => (Severity::Good, format!("{}, {bytes} of {found} bytes", path.display())),
        },
        MediaKind::Memory => (Severity::Note, "in memory: the data are lost whenever the device stops".to_owned()),
        MediaKind::None => (Severity::Note, "none: the device models time and keeps no data".to_owned()),
    };
    report.add(Area::Media, severity, text);
}

/// The size of a block device, found without claiming it: its owner may be at work.
fn block_device_bytes(path: &Path) -> io::Result<u64> {
    if !fs::metadata(path)?.file_type().is_block_device() {
        return Err(io::Error::other("it is not a block device"));
    }
    File::open(path)?.seek(SeekFrom::End(0))
}

fn check_pmr(layout: &Layout, seen: &Inspection, report: &mut CheckReport) {
    let bytes = seen.superblock.pmr_bytes;
    let reserved = seen.pmr_allocated_bytes.unwrap_or(0);
    let snapshot = match Snapshot::open(&layout.pmr()) {
        Ok(snapshot) => snapshot,
        Err(error) => return report.add(Area::Pmr, Severity::Damage, error.to_string()),
    };
    let header = snapshot.header();
    let (severity, text) = if header.region_bytes != bytes {
        (Severity::Damage, format!("the region has {} bytes instead of {bytes}", header.region_bytes))
    } else if header.uuid != seen.superblock.uuid.0 {
        (Severity::Damage, format!("the region belongs to image {}; put this image's own back", Uuid(header.uuid)))
    } else if reserved < bytes {
        let text = format!("only {reserved} of {bytes} bytes are reserved on disk; the next start reserves the rest");
        (Severity::Note, text)
    } else {
        (Severity::Good, format!("region of {bytes} bytes, version {FORMAT_VERSION}, all reserved"))
    };
    report.add(Area::Pmr, severity, text);
    for finding in snapshot.check() {
        let remedy = "no object can be made or freed, so the device may not start; put the region back from a copy";
        report.add(Area::Pmr, Severity::Damage, format!("table of objects: {finding}; {remedy}"));
    }
}

fn check_keys(layout: &Layout, report: &mut CheckReport) {
    let path = layout.keys();
    match fs::metadata(&path) {
        Err(cause) => report.add(Area::Keys, Severity::Damage, format!("the key directory is missing: {cause}")),
        Ok(meta) if meta.permissions().mode() & 0o777 != KEYS_MODE => {
            let mode = meta.permissions().mode() & 0o777;
            let text = format!("others may look into the key directory (mode {mode:o}); make it {KEYS_MODE:o}");
            report.add(Area::Keys, Severity::Damage, text);
        }
        Ok(_) => report.add(Area::Keys, Severity::Good, "for the owner only"),
    }
}

fn check_lock(seen: &Inspection, report: &mut CheckReport) {
    let severity = match &seen.lock {
        LockState::Free => Severity::Good,
        LockState::FreeAfterKill(_) | LockState::Held(_) | LockState::Missing => Severity::Note,
    };
    report.add(Area::Lock, severity, seen.lock.to_string());
}

/// The part of an error that is not already said by the report's heading.
fn cause_of(error: ImageError) -> String {
    match error {
        ImageError::Damaged { what, .. } => what,
        other => other.to_string(),
    }
}
