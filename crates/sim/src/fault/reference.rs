//! What a unit may read as: a plain list of its versions, which knows nothing of flash.
//!
//! The list of a unit begins with the newest version that is surely persistent; everything since may be there
//! after a loss of power or not. A flush that ends drops what is older than what it covers. What a recovery shows
//! drops what is newer: what was lost must not come back later.

use super::Check;

/// What a version holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Never written, or trimmed.
    Nothing,
    /// Says whose it is and which version.
    Payload(u64),
    /// Uncorrectable, and known to be.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    /// Its place among all writes and trims.
    pub sequence: u64,
    pub content: Content,
}

/// All versions that are possible.
#[derive(Debug, Clone)]
pub(super) struct Reference {
    /// By unit, oldest first; never empty.
    versions: Vec<Vec<Version>>,
    sequence: u64,
}

impl Reference {
    pub(super) fn new(units: u64) -> Reference {
        let never = Version { sequence: 0, content: Content::Nothing };
        Reference { versions: vec![vec![never]; units as usize], sequence: 0 }
    }

    /// Sequence of the last write or trim.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Takes a sequence for a write or a trim.
    pub(super) fn next_sequence(&mut self, step: u64) -> u64 {
        self.sequence += step;
        self.sequence
    }

    /// A unit was written or trimmed. A replay of what is known changes nothing.
    pub(super) fn put(&mut self, unit: u64, sequence: u64, content: Content) {
        let versions = &mut self.versions[unit as usize];
        if versions.iter().all(|known| known.sequence < sequence) {
            versions.push(Version { sequence, content });
        }
    }

    /// Nobody knows whether the last write reached this unit; a read says what is there.
    pub(super) fn settle_last(&mut self, unit: u64, seen: Content) {
        let versions = &mut self.versions[unit as usize];
        if versions.len() > 1 && versions.last().is_some_and(|last| last.content != seen) {
            versions.pop();
        }
    }

    /// Everything up to a sequence is persistent.
    pub(super) fn persist(&mut self, sequence: u64) {
        for versions in &mut self.versions {
            drop_older(versions, sequence);
        }
    }

    pub(super) fn newest(&self, unit: u64) -> Version {
        *self.versions[unit as usize].last().expect("a unit has a version")
    }

    /// Whether any version that a unit may read as is damaged.
    pub(super) fn may_any_be_lost(&self, unit: u64, damaged: impl Fn(u64) -> bool) -> bool {
        self.versions[unit as usize].iter().any(|version| may_be_lost(version.content, &damaged))
    }

    /// While the power is on the newest version is read, or an error where `damaged` says that it may be.
    pub(super) fn check_newest(&self, unit: u64, seen: Content, damaged: impl Fn(u64) -> bool) -> Check {
        let newest = self.newest(unit).content;
        if seen == newest || (seen == Content::Lost && may_be_lost(newest, damaged)) {
            return Ok(());
        }
        Err(format!("unit {unit} reads as {seen:?}; allowed is the newest version, {newest:?}"))
    }

    /// After a loss of power any possible version that is not older than the one of `floor` may be read, or an
    /// error where one of them may be damaged. What is newer than what is seen is gone for good, and with
    /// `is_media` what is older, too: then what is seen is on the media.
    pub(super) fn check_recovered(
        &mut self,
        unit: u64,
        seen: Content,
        floor: u64,
        is_media: bool,
        damaged: impl Fn(u64) -> bool,
    ) -> Check {
        let versions = &mut self.versions[unit as usize];
        let mut allowed = versions.clone();
        drop_older(&mut allowed, floor);
        let found = allowed.iter().rfind(|version| version.content == seen).copied();
        if found.is_none() && seen == Content::Lost && allowed.iter().any(|one| may_be_lost(one.content, &damaged)) {
            if is_media {
                let sequence = allowed[allowed.len() - 1].sequence;
                *versions = vec![Version { sequence, content: Content::Lost }];
            }
            return Ok(());
        }
        let Some(found) = found else {
            let allowed: Vec<Content> = allowed.iter().map(|version| version.content).collect();
            return Err(format!("unit {unit} reads as {seen:?} after recovery; allowed are {allowed:?}"));
        };
        versions.retain(|version| version.sequence <= found.sequence);
        if is_media {
            *versions = vec![found];
        }
        Ok(())
    }
}

fn may_be_lost(content: Content, damaged: impl Fn(u64) -> bool) -> bool {
    match content {
        Content::Payload(payload) => damaged(payload),
        Content::Nothing => false,
        Content::Lost => true,
    }
}

/// Drops what is older than the newest version up to `floor`.
fn drop_older(versions: &mut Vec<Version>, floor: u64) {
    if let Some(index) = versions.iter().rposition(|version| version.sequence <= floor) {
        versions.drain(..index);
    }
}
