//! Single keys of a profile set to other values, for a run or a sweep.

use super::{Profile, ProfileError};
use serde::Deserialize;
use toml::{Table, Value};

/// Tables of which exactly one key is given: setting one takes the place of the other.
const ONE_OF: [&str; 2] = ["cache.size", "ftl.collection.policy"];

/// Takes `key=value` apart, as a command line gives it: a path of keys such as `cache.eviction`, or
/// `throttle.2.speed_permille` for the second of several tables, and a TOML value. A bare word is a string.
///
/// # Errors
/// When there is no `=` or no key; says so.
pub fn parse_override(text: &str) -> Result<(String, Value), ProfileError> {
    let refuse = |reason: &str| ProfileError::Override { key: text.to_owned(), reason: reason.to_owned() };
    let (key, value) = text.split_once('=').ok_or_else(|| refuse("it has no `=`; give KEY=VALUE"))?;
    let (key, value) = (key.trim(), value.trim());
    if key.is_empty() || value.is_empty() {
        return Err(refuse("key or value is missing; give KEY=VALUE"));
    }
    let parsed = format!("value = {value}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
    Ok((key.to_owned(), parsed.unwrap_or_else(|| Value::String(value.to_owned()))))
}

/// Sets the keys one after the other, so that the one that cannot be is the one that is named.
pub(super) fn apply(profile: &str, text: &str, overrides: &[(String, Value)]) -> Result<Profile, ProfileError> {
    let refuse =
        |key: &str, reason: String| ProfileError::Override { key: format!("{key} of profile {profile}"), reason };
    let mut document: Table = text.parse().map_err(|error: toml::de::Error| refuse("the text", error.to_string()))?;
    let mut last = None;
    for (key, value) in overrides {
        set(&mut document, key, value).map_err(|reason| refuse(key, reason))?;
        let changed = Profile::deserialize(Value::Table(document.clone()));
        last = Some(changed.map_err(|error| refuse(key, error.message().to_owned()))?);
    }
    last.ok_or_else(|| refuse("nothing", "no key was given".to_owned()))
}

/// Each value stands once all are set: two names of one key, or two keys that exclude each other, leave one without
/// effect.
pub(super) fn check_all(profile: &str, text: &str, overrides: &[(String, Value)]) -> Result<(), ProfileError> {
    let refuse =
        |key: &str, reason: String| ProfileError::Override { key: format!("{key} of profile {profile}"), reason };
    let mut document: Table = text.parse().map_err(|error: toml::de::Error| refuse("the text", error.to_string()))?;
    for (key, value) in overrides {
        set(&mut document, key, value).map_err(|reason| refuse(key, reason))?;
    }
    for (number, (key, value)) in overrides.iter().enumerate() {
        let is_set_later = overrides[number + 1..].iter().any(|(later, _)| later == key);
        let mut again = document.clone();
        set(&mut again, key, value).map_err(|reason| refuse(key, reason))?;
        if again != document && !is_set_later {
            return Err(refuse(key, "another key that is set takes its place; leave one of them out".to_owned()));
        }
    }
    Ok(())
}

fn set(document: &mut Table, path: &str, value: &Value) -> Result<(), String> {
    let (mut table, mut walked) = (document, String::new());
    let mut parts = path.split('.').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            if ONE_OF.contains(&walked.as_str()) {
                table.clear();
            }
            table.insert(part.to_owned(), value.clone());
            return Ok(());
        }
        if !walked.is_empty() {
            walked.push('.');
        }
        walked.push_str(part);
        let next = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
        if ONE_OF.contains(&walked.as_str()) && !next.is_table() {
            *next = Value::Table(Table::new());
        }
        table = match next {
            Value::Table(inner) => inner,
            Value::Array(items) => {
                let number = parts.next().ok_or_else(|| format!("`{walked}` has several tables: give a number"))?;
                let found = number.parse::<usize>().ok().and_then(|number| items.get_mut(number.checked_sub(1)?));
                found.and_then(Value::as_table_mut).ok_or_else(|| format!("`{walked}` has no table {number}"))?
            }
            _ => return Err(format!("`{walked}` is a value, not a table of keys")),
        };
    }
    Err("the key is empty".to_owned())
}
