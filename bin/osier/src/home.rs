//! Where things are by default, and what a device's name means.

use std::env;
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure};

/// The default configuration file, if the environment says where people keep theirs.
pub fn default_config() -> Option<PathBuf> {
    base("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("osier/config.toml"))
}

/// The default home of devices.
pub fn default_home() -> Option<PathBuf> {
    base("XDG_DATA_HOME", ".local/share").map(|dir| dir.join("osier"))
}

/// A directory of the XDG Base Directory Specification: the variable if it holds an absolute path (the
/// specification says to ignore others), else its default below `HOME`.
fn base(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
}

/// The image that a word on the command line means: with a `/` in it a path, else a name in the home.
///
/// # Errors
/// When the name is not one that an image can have.
pub fn image_path(home: &Path, device: &str) -> Result<PathBuf, Failure> {
    if device.contains('/') {
        return Ok(PathBuf::from(device));
    }
    osier_image::check_name(device).map_err(|why| Failure::new(Exit::BadInput, why))?;
    Ok(home.join(device))
}

/// What people call the device in an image.
pub fn name_of(image: &Path) -> String {
    image.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_with_a_slash_is_a_path_and_others_are_names() {
        let home = Path::new("/h");
        assert_eq!(image_path(home, "a").unwrap(), Path::new("/h/a"));
        assert_eq!(image_path(home, "./a").unwrap(), Path::new("./a"));
        assert_eq!(image_path(home, "/x/y").unwrap(), Path::new("/x/y"));
        for bad in ["", "..", ".hidden", "-x", "a b", "é"] {
            assert_eq!(image_path(home, bad).unwrap_err().exit, Exit::BadInput, "{bad:?}");
        }
    }
}
