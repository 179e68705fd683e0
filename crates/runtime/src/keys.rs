//! The keys of a device: 256 bits each, drawn from the system when first needed, kept in the image in files
//! that only their owner may read, and given to the domains over a pipe.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use osier_actor::{KeyRing, Pipelines};
use zeroize::Zeroizing;

use crate::error::RuntimeError;

/// The numbers of the keys that pipelines name.
pub fn numbers(pipelines: &Pipelines) -> BTreeSet<u16> {
    pipelines.actors().iter().filter_map(|a| a.stage.key).collect()
}

/// Loads the keys that the pipelines name, and makes those that do not exist yet. One of `used` that is not there
/// is not made: data may be sealed with it, and what a new one seals could not be read once the old one is back.
pub fn load(directory: &Path, pipelines: &Pipelines, used: &BTreeSet<u16>) -> Result<Zeroizing<Vec<u8>>, RuntimeError> {
    let mut ring = KeyRing::new();
    for number in numbers(pipelines) {
        let path = directory.join(format!("{number}.key"));
        let text = match fs::read_to_string(&path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && used.contains(&number) => {
                return Err(RuntimeError::LostKey { path });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => make(directory, &path)?,
            Err(source) => return Err(RuntimeError::System { what: "read a key of the image", source }),
        };
        let Some(key) = from_digits(text.trim()) else { return Err(RuntimeError::BadKey { path }) };
        ring.insert(number, key);
    }
    Ok(ring.to_bytes())
}

fn from_digits(digits: &str) -> Option<Zeroizing<[u8; 32]>> {
    let mut key = Zeroizing::new([0u8; 32]);
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    for (byte, index) in key.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&digits[index..index + 2], 16).ok()?;
    }
    Some(key)
}

fn make(directory: &Path, path: &Path) -> Result<Zeroizing<String>, RuntimeError> {
    let failed = |source| RuntimeError::System { what: "make a key of the image", source };
    let mut bytes = Zeroizing::new([0u8; 32]);
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()).map_err(|e| failed(e.into()))?;
    let digits: Zeroizing<String> = Zeroizing::new(bytes.iter().map(|b| format!("{b:02x}")).collect());
    fs::create_dir_all(directory).map_err(failed)?;
    // Under another name first: data must never be sealed with a key of which only a part is on disk.
    let partial = path.with_extension("partial");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial).map_err(failed)?;
    file.write_all(digits.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&partial, path).map_err(failed)?;
    fs::File::open(directory).and_then(|d| d.sync_all()).map_err(failed)?;
    Ok(digits)
}
