//! The removal of an image: only of an image, only when nobody owns it, only of what osier put there.

use std::fs;
use std::io;
use std::path::Path;

use crate::create::parent_of;
use crate::error::{ImageError, io_error};
use crate::image::{read_superblock_bytes, sync_directory};
use crate::layout::{Layout, is_known};
use crate::leftover;
use crate::lock::OwnerLock;
use crate::superblock::has_magic;

/// Removes the image in the directory `path`. A damaged image, or one of a newer format, is removed too:
/// that it has the magic is enough to know that osier made it. Block devices are left as they are.
///
/// # Errors
/// [`ImageError::Missing`], [`ImageError::NotAnImage`], [`ImageError::Busy`], [`ImageError::Foreign`],
/// all before anything is changed; or what the system said.
pub fn remove(path: &Path) -> Result<(), ImageError> {
    // A link to an image is not the image; following it here makes both names mean the same.
    let root = fs::canonicalize(path).map_err(|cause| match cause.kind() {
        io::ErrorKind::NotFound => ImageError::Missing { path: path.to_owned() },
        _ => io_error("finding", path)(cause),
    })?;
    let layout = Layout::new(&root);
    if !has_magic(&read_superblock_bytes(&layout)?) {
        let why = "its `superblock` does not have the magic OSIERIMG".to_owned();
        return Err(ImageError::NotAnImage { path: root, why });
    }
    let lock = OwnerLock::acquire(&root, &layout.lock())?;
    refuse_foreign(&root)?;
    // Out of sight in one step, so that a kill never leaves half an image under its name.
    let name = root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let parent = parent_of(&root);
    leftover::sweep(parent);
    let doomed = leftover::removing(parent, &name);
    fs::rename(&root, &doomed).map_err(io_error("removing", &root))?;
    sync_directory(parent)?;
    fs::remove_dir_all(&doomed).map_err(io_error("removing", &doomed))?;
    drop(lock);
    Ok(())
}

/// Refuses when the directory holds anything that an image does not.
fn refuse_foreign(root: &Path) -> Result<(), ImageError> {
    let names = foreign_names(root)?;
    if names.is_empty() {
        return Ok(());
    }
    Err(ImageError::Foreign { path: root.to_owned(), names: names.join(", ") })
}

/// The names in the directory that an image does not have, sorted.
pub(crate) fn foreign_names(root: &Path) -> Result<Vec<String>, ImageError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root).map_err(io_error("listing", root))? {
        let entry = entry.map_err(io_error("listing", root))?;
        let kind = entry.file_type().map_err(io_error("examining", root))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_known(&name, kind.is_dir()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
