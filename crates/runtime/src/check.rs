//! The check of a device that is down: what the image's own check cannot know, because it has to be read as
//! the device would read it. Pipelines, owner records, requests in flight, write buffer, and the map.
//!
//! Nothing is changed: the region is read through a [`Snapshot`], the media through a descriptor that cannot
//! write, and the device core recovers over copies in memory. Recovery itself asks for nothing but reads.

use std::collections::BTreeSet;
use std::path::Path;

use osier_actor::{Arena, ModuleStore, Pipelines, pipeline::Source};
use osier_device::{BufferReport, BufferState, Device, DeviceParams, MediaError, Profile, RecoveryReport};
use osier_domain::arena::{REQUEST_OFFSET, SLOT_FREE, SLOT_SUBMITTED};
use osier_domain::migrate::CHECKPOINT_BYTES;
use osier_domain::{Checkpoint, OwnerState, Phase, SlotId, Tag};
use osier_flash::{Damage, LiveExtent};
use osier_image::{
    Area, CheckReport, Finding, Inspection, Layout, LockState, MediaKind, MediaView, ProfileCheck, Severity, inspect,
};
use osier_pmr::{Entry, PmrError, Snapshot};

use crate::client::{SLOT_FAILED, request_of};
use crate::error::RuntimeError;
use crate::record::{CHECKPOINT_AT, RECORD_BYTES};
use crate::setup::{device_params, media_error, modules_path, read_pipelines};

/// Extents that are named one by one; all are counted.
const NAMED_MAX: usize = 8;
/// Bytes read at once.
const READ_BYTES: u32 = 1 << 20;
/// Hexadecimal digits of a key file.
const KEY_DIGITS: usize = 64;

/// Checks the device in the directory `image`. With `deep`, every extent that a block reads from is read and
/// compared with its checksum; without, only those that recovery has to doubt.
///
/// # Errors
/// When there is nothing to report on; see [`osier_image::check`]. Damage is a finding, not an error.
pub fn check(image: &Path, deep: bool, check_profile: ProfileCheck<'_>) -> Result<CheckReport, RuntimeError> {
    Ok(osier_image::check_with(image, check_profile, &mut |seen| look(seen, deep))?)
}

fn look(seen: &Inspection, deep: bool) -> Vec<Finding> {
    let mut look = Look { seen, deep, findings: Vec::new() };
    let pipelines = look.pipelines();
    if seen.is_owned() {
        look.note(
            Area::Map,
            "the device is in use: its map, write buffer, owner records and requests change while it runs and were \
             not looked at; stop it and check again",
        );
        return look.findings;
    }
    let before = look.findings.len();
    if let Ok(region) = Snapshot::open(&Layout::new(&seen.path).pmr()) {
        look.region(&region, pipelines.as_ref());
    }
    match inspect(&seen.path) {
        Ok(now) if !now.is_owned() && now.superblock.incarnation == seen.superblock.incarnation => {}
        _ => {
            look.findings.truncate(before);
            let text = "the device was started while it was looked at; stop it and check again";
            look.note(Area::Map, text);
        }
    }
    look.findings
}

struct Look<'a> {
    seen: &'a Inspection,
    deep: bool,
    findings: Vec<Finding>,
}

impl Look<'_> {
    fn good(&mut self, area: Area, text: impl Into<String>) {
        self.findings.push(Finding::new(area, Severity::Good, text));
    }

    fn note(&mut self, area: Area, text: impl Into<String>) {
        self.findings.push(Finding::new(area, Severity::Note, text));
    }

    fn damage(&mut self, area: Area, text: impl Into<String>) {
        self.findings.push(Finding::new(area, Severity::Damage, text));
    }

    fn has_damage(&self, area: Area) -> bool {
        self.findings.iter().any(|f| f.area == area && f.severity == Severity::Damage)
    }

    /// Whether the last owner ended in order, so that everything was flushed and nothing cut short.
    fn stopped_in_order(&self) -> bool {
        !matches!(self.seen.lock, LockState::FreeAfterKill(_))
    }

    fn was_started(&self) -> bool {
        self.seen.superblock.incarnation.0 > 0
    }

    fn pipelines(&mut self) -> Option<Pipelines> {
        let pipelines = match read_pipelines(&self.seen.path) {
            Ok(pipelines) => pipelines,
            Err(error) => {
                self.damage(Area::Pipelines, error.to_string());
                return None;
            }
        };
        let store = ModuleStore::new(modules_path(&self.seen.path));
        for actor in pipelines.actors() {
            if let Source::Stored(digest) = &actor.stage.source
                && let Err(error) = store.get(digest)
            {
                self.damage(Area::Pipelines, format!("actor {}: {error}", actor.label()));
            }
        }
        if !self.has_damage(Area::Pipelines) {
            let (count, actors) = (pipelines.plan().pipelines().len(), pipelines.actors().len());
            self.good(Area::Pipelines, format!("pipelines: {count}; actors: {actors}; checksum and modules are right"));
        }
        Some(pipelines)
    }

    fn region(&mut self, region: &Snapshot, pipelines: Option<&Pipelines>) {
        if let Some(pipelines) = pipelines {
            self.owners(region, pipelines);
            self.arena(region, pipelines);
        }
        let buffer = self.object(region, Area::Buffer, "buffer").unwrap_or_default();
        self.flash(buffer, pipelines);
    }

    /// All bytes of an object; `None`, and said why, when they cannot be had. A device that never was up has no
    /// objects.
    fn object(&mut self, region: &Snapshot, area: Area, name: &str) -> Option<Vec<u8>> {
        let entry: Entry = match region.find(name) {
            Ok(entry) => entry,
            Err(PmrError::NotFound { .. }) if !self.was_started() => return None,
            Err(error) => {
                self.damage(area, format!("{error}; what it held is lost unless the region is put back from a copy"));
                return None;
            }
        };
        let mut bytes = vec![0; usize::try_from(entry.bytes).ok()?];
        match region.read(&entry, 0, &mut bytes) {
            Ok(()) => Some(bytes),
            Err(error) => {
                self.damage(area, error.to_string());
                None
            }
        }
    }

    fn owners(&mut self, region: &Snapshot, pipelines: &Pipelines) {
        let Some(bytes) = self.object(region, Area::Owners, "owners") else { return };
        let cut_short = if self.stopped_in_order() { Severity::Damage } else { Severity::Note };
        for (actor, record) in pipelines.actors().iter().zip(bytes.chunks_exact(RECORD_BYTES as usize)) {
            if let Some((severity, what)) = owner_fault(record, actor.id.0, cut_short) {
                self.findings.push(Finding::new(Area::Owners, severity, format!("actor {}: {what}", actor.label())));
            }
        }
        if !self.has_damage(Area::Owners) {
            self.good(Area::Owners, format!("owner words of {} actors decode", pipelines.actors().len()));
        }
    }

    fn arena(&mut self, region: &Snapshot, pipelines: &Pipelines) {
        let layout = pipelines.layout();
        let Some(bytes) = self.object(region, Area::Arena, "arena") else { return };
        if bytes.len() as u64 != Arena::object_bytes(&layout) {
            return self.note(Area::Arena, "the pipelines were changed, so the next start makes the arena anew");
        }
        let mut waiting = 0;
        for slot in 0..layout.slots {
            let head = &bytes[layout.slot_offset(slot) as usize..];
            let request: [u64; 8] = std::array::from_fn(|word| word_at(head, REQUEST_OFFSET as usize + 8 * word));
            match word_at(head, 0) & 0xffff {
                SLOT_FREE => continue,
                SLOT_SUBMITTED | SLOT_FAILED if request_of(&request, SlotId(slot), &layout).is_some() => waiting += 1,
                _ => self.damage(
                    Area::Arena,
                    format!(
                        "slot {slot} holds neither nothing nor a request; a request that was not answered is \
                         lost, none that was; the next start leaves the slot out"
                    ),
                ),
            }
        }
        if waiting > 0 {
            self.note(
                Area::Arena,
                format!("requests in flight when the device ended: {waiting}; the next start replays them"),
            );
        } else if !self.has_damage(Area::Arena) {
            self.good(Area::Arena, format!("none of {} slots holds a request", layout.slots));
        }
    }

    /// The write buffer and the flash array, which only together say what a block reads as.
    fn flash(&mut self, buffer: Vec<u8>, pipelines: Option<&Pipelines>) {
        let superblock = &self.seen.superblock;
        if matches!(superblock.media, MediaKind::Memory | MediaKind::None) {
            return self.note(Area::Map, "media that keep nothing have no map");
        }
        let text = match self.seen.profile_text() {
            Ok(text) => text,
            Err(_) => return self.note(Area::Map, "not looked at: it needs the profile; put that right first"),
        };
        // Said already: by the profile's own check, and by that of the media.
        let Ok(profile) = Profile::parse(&superblock.profile_name, &text) else { return };
        let Ok(Some(view)) = self.seen.view_media() else { return };
        let params = device_params(superblock, &profile);
        if buffer.is_empty() && self.was_started() {
            return self.note(Area::Map, "not looked at: it needs the write buffer");
        }
        let buffer = if buffer.is_empty() { vec![0; profile.write_buffer.bytes as usize] } else { buffer };
        match recover(&profile, params, buffer, &view) {
            Ok((device, report)) => {
                self.buffer(&report.buffer);
                self.media(&device, &report.flash);
                self.extents(&device, &view, pipelines);
            }
            Err(error) => self.damage(Area::Map, format!("{error}; the device does not start with it")),
        }
    }

    fn buffer(&mut self, state: &BufferState) {
        let report = match state {
            BufferState::New => return self.good(Area::Buffer, "nothing was ever written"),
            BufferState::Lost => {
                let text = "the write buffer does not go on from what the flash array has, as after a loss of power: \
                            writes that were completed and not flushed are lost; the next start makes it anew";
                return match self.stopped_in_order() {
                    true => self.damage(Area::Buffer, text),
                    false => self.note(Area::Buffer, text),
                };
            }
            BufferState::Kept(report) => report,
        };
        self.buffer_damage(report);
        if !self.has_damage(Area::Buffer) {
            let (records, bytes) = (report.records, report.payload_bytes);
            self.good(Area::Buffer, format!("sound; records: {records}, with {bytes} bytes"));
        }
    }

    fn buffer_damage(&mut self, report: &BufferReport) {
        for damage in report.damages.iter().take(NAMED_MAX) {
            let (at, sequence) = (damage.ring_offset, damage.sequence);
            let meaning = match damage.lost {
                0 => "its blocks read as an error until they are written again".to_owned(),
                lost => format!("{lost} completed writes are lost, and their blocks read as before them"),
            };
            self.damage(Area::Buffer, format!("record {sequence} at byte {at} of the ring is damaged: {meaning}"));
        }
        if report.damage_count > NAMED_MAX as u64 {
            self.damage(Area::Buffer, format!("damaged places in all: {}", report.damage_count));
        }
        if !report.cursors_lost.is_empty() {
            let text = "cursors of streams are lost, so a request that is replayed may be done twice: streams";
            self.damage(Area::Buffer, format!("{text} {:?}", report.cursors_lost));
        }
        if report.tail_copy_damaged || report.cursor_copies_damaged > 0 {
            let text = "one of two copies of its tail or cursors differs; the next start puts it right";
            match self.stopped_in_order() {
                true => self.damage(Area::Buffer, text),
                false => self.note(Area::Buffer, text),
            }
        }
    }

    /// What recovery found on the media.
    fn media(&mut self, device: &Device<Vec<u8>>, report: &osier_flash::RecoveryReport) {
        for finding in &report.findings {
            let (severity, what) = self.judge(device, finding);
            let text = format!("superblock {}, byte {}: {what}", finding.superblock, finding.offset_bytes);
            self.findings.push(Finding::new(Area::Media, severity, text));
        }
        if report.findings.len() == osier_flash::RecoveryReport::FINDINGS_MAX {
            self.note(Area::Media, format!("no more than the first {} findings are listed", report.findings.len()));
        }
    }

    fn judge(&self, device: &Device<Vec<u8>>, finding: &osier_flash::Finding) -> (Severity, String) {
        // A device that is killed, or loses power, leaves the end of what it was writing cut short.
        let cut_short = match self.stopped_in_order() || finding.was_synced {
            true => Severity::Damage,
            false => Severity::Note,
        };
        let because = match cut_short {
            Severity::Note => "what a kill leaves in mid-write; nothing flushed is lost",
            _ => "the media changed bytes that were stored, or lost them; read what is left, and replace the media",
        };
        match finding.damage {
            Damage::Rotten { slba, sequence } => (
                Severity::Damage,
                format!(
                    "extent of block {} (write {sequence}) does not fit its checksum: its blocks read as an error \
                     until they are written again; the media changed bytes, so replace them",
                    slba.0
                ),
            ),
            Damage::Torn { slba, sequence } if is_superseded(device, slba, sequence) => (
                Severity::Note,
                format!("write {sequence} of block {} is not whole here, and is read from where it is", slba.0),
            ),
            Damage::Torn { slba, sequence } => {
                let text = format!("extent of block {} (write {sequence}) does not fit its checksum", slba.0);
                (cut_short, format!("{text}, and what the block held before is read instead: {because}"))
            }
            Damage::HeaderRepaired => {
                let text = "a flipped bit in a header was put right; nothing is lost, but the media change bytes";
                (Severity::Damage, format!("{text}: replace them"))
            }
            Damage::HeaderLost => (cut_short, format!("one of two headers is not there; the other serves: {because}")),
            Damage::Gap { bytes } => (cut_short, format!("{bytes} bytes belong to no extent: {because}")),
            Damage::Hole => (cut_short, format!("a blank page before written ones: {because}")),
            Damage::Headless => (cut_short, format!("bytes without a header, of which nothing is read: {because}")),
        }
    }

    /// Every extent that a block reads from: known to be wrong, without its pipeline, and with `deep` compared
    /// with its checksum.
    fn extents(&mut self, device: &Device<Vec<u8>>, view: &MediaView, pipelines: Option<&Pipelines>) {
        let mut extents: Vec<LiveExtent> = device.flash().live_extents().collect();
        extents.sort_unstable_by_key(|extent| extent.address);
        let mut wrong: Vec<(LiveExtent, String)> = Vec::new();
        let (mut bytes, mut tags) = (0u64, BTreeSet::new());
        for extent in &extents {
            tags.insert(extent.extent.tag);
            if extent.is_damaged {
                wrong.push((*extent, "does not fit its checksum".to_owned()));
            } else if self.deep {
                bytes += u64::from(extent.extent.stored_bytes);
                match checksum(view, extent) {
                    Ok(found) if found == extent.extent.checksum => {}
                    Ok(_) => wrong.push((*extent, "does not fit its checksum".to_owned())),
                    Err(error) => wrong.push((*extent, error.to_string())),
                }
            }
        }
        for (extent, what) in wrong.iter().take(NAMED_MAX) {
            let (first, last) = (extent.extent.slba.0, extent.extent.slba.0 + u64::from(extent.extent.blocks) - 1);
            let text = format!("blocks {first} to {last}, at byte {} of the media: {what}", extent.address);
            self.damage(Area::Map, format!("{text}; they read as an error until they are written again"));
        }
        let (blocks, count) = (device.flash().stats().mapped_blocks, extents.len());
        let map = format!("{blocks} of {} blocks are mapped, in {count} extents", self.seen.superblock.logical_blocks);
        match (wrong.len(), self.deep) {
            (0, true) => self.good(Area::Map, format!("{map}; all {bytes} bytes of them fit their checksums")),
            (0, false) => self.good(Area::Map, format!("{map}; --deep reads them all")),
            (some, _) => {
                let lost: u64 = wrong.iter().map(|(extent, _)| u64::from(extent.live_blocks)).sum();
                self.damage(Area::Map, format!("{map}; {some} extents with {lost} blocks cannot be read"));
            }
        }
        if let Some(pipelines) = pipelines {
            self.tags(&tags, pipelines);
        }
    }

    /// What is on the media can be read back only with the pipeline and the keys that wrote it.
    fn tags(&mut self, tags: &BTreeSet<u32>, pipelines: &Pipelines) {
        let mut keys = BTreeSet::new();
        for tag in tags.iter().map(|tag| Tag(*tag).pipeline()).filter(|tag| *tag != Tag::NONE) {
            match pipelines.of_tag(tag) {
                Some(entry) => keys.extend(entry.definition.stages.iter().filter_map(|stage| stage.key)),
                None => self.damage(
                    Area::Pipelines,
                    format!(
                        "there are extents of a pipeline with tag {:#08x}, which registry.toml does not have: they \
                         cannot be decoded; put the registry back from a copy",
                        tag.0
                    ),
                ),
            }
        }
        for key in keys {
            let path = Layout::new(&self.seen.path).keys().join(format!("{key}.key"));
            let is_key =
                |text: &str| text.trim().len() == KEY_DIGITS && text.trim().bytes().all(|b| b.is_ascii_hexdigit());
            let fault = match std::fs::read_to_string(&path) {
                Ok(text) if is_key(&text) => continue,
                Ok(_) => format!("is not {KEY_DIGITS} hexadecimal digits"),
                Err(cause) => format!("cannot be read ({cause})"),
            };
            let text = format!("{} {fault}, and data are sealed with it; put it back from a copy", path.display());
            self.damage(Area::Keys, text);
        }
    }
}

/// What is wrong with an actor's record, if anything; `cut_short` is what a checkpoint means that may just not have
/// been finished.
fn owner_fault(record: &[u8], actor: u16, cut_short: Severity) -> Option<(Severity, String)> {
    let word = word_at(record, 0);
    let state = match OwnerState::decode(word) {
        None if word == 0 => return None,
        None => {
            let text = format!("{word:#x} is no owner word; the next start begins the actor where its pipeline says");
            return Some((Severity::Damage, text));
        }
        Some(state) => state,
    };
    let mut bytes = [0; CHECKPOINT_BYTES];
    bytes.copy_from_slice(&record[CHECKPOINT_AT as usize..][..CHECKPOINT_BYTES]);
    if bytes == [0; CHECKPOINT_BYTES] && state.phase == Phase::Active {
        return None;
    }
    let harmless = "nothing is lost: the actor stays where it was and begins from what was committed last";
    match (Checkpoint::decode(&bytes), state.phase) {
        (Ok(checkpoint), _) if checkpoint.actor.0 != actor => {
            Some((Severity::Damage, format!("the checkpoint is that of actor {}; {harmless}", checkpoint.actor.0)))
        }
        (Ok(checkpoint), Phase::Active) if checkpoint.generation > state.generation + 1 => {
            Some((Severity::Damage, format!("the owner word is older than the checkpoint; {harmless}")))
        }
        (Ok(_), Phase::Active) => None,
        (Ok(_), Phase::Ready { .. }) => {
            Some((Severity::Note, format!("it was in the middle of a migration, which is taken back; {harmless}")))
        }
        (Err(error), Phase::Ready { .. }) => Some((Severity::Damage, format!("{error}; {harmless}"))),
        (Err(_), Phase::Active) => {
            let text =
                "the checkpoint of its last migration is damaged or was never finished; it is not needed any more";
            Some((cut_short, format!("{text}, and {harmless}")))
        }
    }
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn recover(
    profile: &Profile,
    params: DeviceParams,
    buffer: Vec<u8>,
    view: &MediaView,
) -> Result<(Device<Vec<u8>>, RecoveryReport), osier_device::DeviceError> {
    let mut read = |address: u64, out: &mut [u8]| -> Result<(), MediaError> {
        view.read(address, out).map_err(|error| media_error(&error))
    };
    Device::recover(profile, params, buffer, &mut read)
}

/// Whether a write that is torn on the media is whole elsewhere: in the buffer, or on the media again.
fn is_superseded(device: &Device<Vec<u8>>, slba: osier_flash::Lba, sequence: u64) -> bool {
    device.buffer().record(sequence).is_some() || device.flash().sequence_at(slba) >= sequence
}

fn checksum(view: &MediaView, extent: &LiveExtent) -> Result<u32, osier_image::MediaError> {
    let (mut crc, mut done, mut part) = (0, 0, Vec::new());
    while done < extent.extent.stored_bytes {
        part.resize((extent.extent.stored_bytes - done).min(READ_BYTES) as usize, 0);
        view.read(extent.address + u64::from(done), &mut part)?;
        crc = crc32c::crc32c_append(crc, &part);
        done += part.len() as u32;
    }
    Ok(crc)
}
