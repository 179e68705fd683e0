//! The profile that a word on the command line means.

use std::path::Path;

use osier_device::Profile;
use osier_flash::Ftl;
use osier_image::ProfileText;

use crate::exit::{Exit, Failure};

/// A profile with its text: a built-in one by its name, or that of a file by its path. A word with a `/` in
/// it, or that ends in `.toml`, is a path.
///
/// # Errors
/// When the file cannot be read, or the profile is unknown or refused.
pub fn find(word: &str) -> anyhow::Result<(ProfileText, Profile)> {
    let (name, text) = text(word)?;
    let profile = with(&name, &text, &[])?;
    let name = if is_path(word) { profile.device.name.clone() } else { name };
    Ok((ProfileText { name, text }, profile))
}

/// The same, with some of its keys set otherwise.
///
/// # Errors
/// As [`find`], and when a key is unknown or a value cannot be.
pub fn find_with(word: &str, set: &[(String, toml::Value)]) -> anyhow::Result<Profile> {
    let (name, text) = text(word)?;
    with(&name, &text, set)
}

/// What a profile is called in messages, its name or its path, and its text.
///
/// # Errors
/// When the file cannot be read, or there is no such profile.
pub fn text(word: &str) -> anyhow::Result<(String, String)> {
    if is_path(word) {
        let text = std::fs::read_to_string(Path::new(word)).map_err(|cause| {
            Failure::new(Exit::BadInput, format!("reading the profile {word} failed: {cause}; name another file"))
        })?;
        return Ok((word.to_owned(), text));
    }
    let unknown = || osier_device::ProfileError::UnknownName { name: word.to_owned() };
    let text = Profile::built_in_text(word).ok_or_else(|| Failure::new(Exit::BadInput, unknown().to_string()))?;
    Ok((word.to_owned(), text.to_owned()))
}

/// A profile from its text, with some of its keys set otherwise.
///
/// # Errors
/// What is wrong with it.
pub fn with(name: &str, text: &str, set: &[(String, toml::Value)]) -> anyhow::Result<Profile> {
    Profile::parse_with(name, text, set).map_err(|error| Failure::new(Exit::BadInput, error.to_string()).into())
}

fn is_path(word: &str) -> bool {
    word.contains('/') || word.ends_with(".toml")
}

/// Whether the device model accepts a profile, as an image asks.
///
/// # Errors
/// What is wrong with it.
pub fn check(name: &str, text: &str) -> Result<(), String> {
    Profile::parse(name, text).map(drop).map_err(|error| error.to_string())
}

/// The most logical blocks that a profile's whole flash array can hold, compressed or not.
pub fn logical_blocks_max(profile: &Profile) -> u64 {
    // A profile that was parsed has a possible array; of an impossible one nothing could be promised.
    Ftl::logical_blocks_max(&profile.geometry(), &profile.ftl_params(true, false)).unwrap_or(0)
}
