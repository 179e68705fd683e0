//! The configuration file: TOML, every key optional, every unknown key refused by name and line.
//!
//! What is said on the command line goes before the environment, that before this file, and this before
//! what is built in. A new section is a struct here with `deny_unknown_fields`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::commands::fronts::FrontsArgs;
use crate::home;

/// The whole file.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where devices named without a path are kept.
    pub home: Option<PathBuf>,
    /// What to log, as in `OSIER_LOG`.
    pub log: Option<String>,
    /// What a new device is unless it is told.
    #[serde(default)]
    pub device: DeviceDefaults,
    /// What `osier serve` brings up, by the device's name.
    #[serde(default)]
    pub serve: BTreeMap<String, ServeDefaults>,
}

/// `[serve.NAME]`: what `osier serve NAME` does unless it is told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeDefaults {
    /// As `--pipeline`.
    pub pipeline: Option<String>,
    /// As `--read-only`.
    pub read_only: bool,
    /// `[serve.NAME.fronts]`: as the options under "Front ends".
    pub fronts: FrontsArgs,
}

/// `[device]`: what `osier device create` takes when an option is not given.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceDefaults {
    /// A built-in profile's name or the path of a profile file.
    pub profile: Option<String>,
    /// The capacity, as in `--capacity`.
    pub capacity: Option<String>,
    /// The size of the persistent memory region, as in `--pmr`.
    pub pmr: Option<String>,
    /// The media, as in `--media`.
    pub media: Option<String>,
}

/// Why a TOML file was not understood. The text names the file, the line and the key.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("reading the configuration {path} failed: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The text is not TOML, or a key or value is wrong.
    #[error("{path}:{line}: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, with the key's name.
        message: String,
    },
}

/// Loads the file that was named, or the default one if it exists.
///
/// # Errors
/// When a named file cannot be read, or either is not understood.
pub fn load(named: Option<&Path>) -> Result<Config, ConfigError> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => match home::default_config() {
            Some(path) if path.exists() => path,
            _ => return Ok(Config::default()),
        },
    };
    read_toml(&path)
}

/// Reads any TOML file into its type, with errors that name file, line and key.
///
/// # Errors
/// When it cannot be read or is not understood.
pub fn read_toml<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|cause| ConfigError::Read { path: path.to_owned(), cause })?;
    parse_toml(path, &text)
}

fn parse_toml<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start).min(text.len());
        ConfigError::Syntax {
            path: path.to_owned(),
            line: text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1,
            message: error.message().to_owned(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        parse_toml(Path::new("c.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_optional_and_read() {
        assert_eq!(parse("").unwrap(), Config::default());
        let text = "home = \"/d\"\nlog = \"info\"\n[device]\nprofile = \"p\"\ncapacity = \"1GiB\"\n\
                    pmr = \"1MiB\"\nmedia = \"memory\"\n";
        let config = parse(text).unwrap();
        assert_eq!((config.home, config.log), (Some("/d".into()), Some("info".into())));
        assert_eq!(config.device.media.as_deref(), Some("memory"));
    }

    #[test]
    fn an_unknown_key_is_refused_by_name_and_line() {
        let text = parse("\n[device]\ncapcity = \"1GiB\"\n").unwrap_err();
        assert!(text.starts_with("c.toml:3: ") && text.contains("`capcity`"), "{text}");
        assert!(text.contains("`capacity`"), "what is allowed is said: {text}");
        let text = parse("homes = 1").unwrap_err();
        assert!(text.starts_with("c.toml:1: ") && text.contains("`homes`"), "{text}");
    }

    #[test]
    fn a_wrong_type_and_a_broken_line_are_refused_by_line() {
        assert!(parse("\nlog = 3").unwrap_err().starts_with("c.toml:2: "));
        assert!(parse("a = \"b\"\n\n= 3").unwrap_err().starts_with("c.toml:3: "));
    }
}
