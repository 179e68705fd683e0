//! What a file's owner, mode and times are, and its extended attributes.

use rustix::io::Errno;

use crate::record::{Inode, S_ISGID, S_ISUID, S_IXGRP, Time, key, key_with};
use crate::state::State;
use crate::store::Pair;
use crate::system::FileSystem;

/// Most bytes of an extended attribute's name.
pub const ATTRIBUTE_NAME_MAX: usize = 255;
/// Most bytes of an extended attribute's value, and of the list of a file's names of attributes.
pub const ATTRIBUTE_VALUE_MAX: usize = 65_536;

/// What is to be set; nothing where it stays.
#[derive(Debug, Clone, Copy, Default)]
pub struct Changes {
    /// Permissions; the type stays.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// Bytes, of a regular file.
    pub size: Option<u64>,
    /// Of the last access.
    pub atime: Option<Time>,
    /// Of the last change of its content.
    pub mtime: Option<Time>,
    /// Of the last change of the inode; otherwise now.
    pub ctime: Option<Time>,
    /// Whoever asks may not keep what the mode gives those who execute it.
    pub is_unprivileged: bool,
}

/// What has to be there when an extended attribute is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Whatever there is.
    Any,
    /// Nothing.
    Absent,
    /// A value.
    Present,
}

/// What a program may do beside what its user may; goes with a change of the file (capabilities(7)).
const CAPABILITIES: &[u8] = b"security.capability";

/// A mode without what it gives those who execute the file.
pub(crate) fn without_privileges(inode: &Inode) -> u32 {
    if inode.is_directory() {
        return inode.mode;
    }
    // Without execution by the group it is no privilege (chmod(2)).
    let group = if inode.mode & S_IXGRP != 0 { S_ISGID } else { 0 };
    inode.mode & !(S_ISUID | group)
}

impl State {
    /// The file has changed: its capabilities go.
    pub(crate) fn drop_capabilities(&mut self, number: u64) -> Result<(), Errno> {
        self.store.delete(&key_with(b'X', number, CAPABILITIES))
    }

    /// A file's extended attributes, by their keys in the store.
    pub(crate) fn attributes_of(&self, number: u64) -> Result<Vec<Pair>, Errno> {
        self.store.range(&key(b'X', number), &key(b'X', number + 1), usize::MAX)
    }
}

impl FileSystem {
    /// A file's attributes.
    ///
    /// # Errors
    /// `ENOENT`, `EIO`.
    pub fn attributes(&self, number: u64) -> Result<Inode, Errno> {
        self.state().inode(number)
    }

    /// Changes a file's attributes; what they are then. A new owner or group takes privileges from the mode.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR` and `EINVAL` for the size of what has none, `EFBIG`, `ENOSPC`, `EIO`.
    pub fn set_attributes(&self, number: u64, changes: &Changes, now: Time) -> Result<Inode, Errno> {
        if let Some(size) = changes.size {
            self.resize(number, size, now)?;
        }
        let takes_privileges =
            changes.uid.is_some() || changes.gid.is_some() || (changes.size.is_some() && changes.is_unprivileged);
        let is_times_only = changes.mode.is_none() && changes.size.is_none() && !takes_privileges;
        self.change(|state| {
            let before = state.inode(number)?;
            let mut inode = before;
            if takes_privileges {
                inode.mode = without_privileges(&inode);
            }
            if takes_privileges || changes.size.is_some() {
                state.drop_capabilities(number)?;
            }
            if let Some(mode) = changes.mode {
                inode.mode = inode.mode & !0o7777 | mode & 0o7777;
            }
            inode.uid = changes.uid.unwrap_or(inode.uid);
            inode.gid = changes.gid.unwrap_or(inode.gid);
            inode.atime = changes.atime.unwrap_or(inode.atime);
            inode.mtime = changes.mtime.unwrap_or(inode.mtime);
            inode.ctime = changes.ctime.unwrap_or(now);
            if !is_times_only {
                state.is_essential(number);
            }
            if inode != before {
                state.put_inode(number, &inode)?;
            }
            Ok(inode)
        })
    }

    /// An extended attribute's value.
    ///
    /// # Errors
    /// `ENODATA`, `EIO`.
    pub fn attribute(&self, number: u64, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.state().store.get(&key_with(b'X', number, name))?.ok_or(Errno::NODATA)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `ERANGE` for a name that is none, `E2BIG`, `ENOSPC`, `ENOENT`, `EIO`.
    pub fn set_attribute(
        &self,
        number: u64,
        name: &[u8],
        value: &[u8],
        presence: Presence,
        now: Time,
    ) -> Result<(), Errno> {
        if name.is_empty() || name.len() > ATTRIBUTE_NAME_MAX {
            return Err(Errno::RANGE);
        }
        if value.len() > ATTRIBUTE_VALUE_MAX {
            return Err(Errno::TOOBIG);
        }
        self.change(|state| {
            let mut inode = state.inode(number)?;
            let key = key_with(b'X', number, name);
            match (state.store.get(&key)?.is_some(), presence) {
                (true, Presence::Absent) => return Err(Errno::EXIST),
                (false, Presence::Present) => return Err(Errno::NODATA),
                (false, _) => {
                    // Each name has a zero behind it (listxattr(2)).
                    let listed: usize = state.attributes_of(number)?.iter().map(|(key, _)| key.len() - 9 + 1).sum();
                    if listed + name.len() >= ATTRIBUTE_VALUE_MAX {
                        return Err(Errno::NOSPC);
                    }
                }
                (true, _) => {}
            }
            state.need_room(name.len() + value.len())?;
            state.store.put(key, value.to_vec())?;
            inode.ctime = now;
            state.is_essential(number);
            state.put_inode(number, &inode)
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`, `ENOENT`, `EIO`.
    pub fn remove_attribute(&self, number: u64, name: &[u8], now: Time) -> Result<(), Errno> {
        self.change(|state| {
            let mut inode = state.inode(number)?;
            let key = key_with(b'X', number, name);
            state.store.get(&key)?.ok_or(Errno::NODATA)?;
            state.store.delete(&key)?;
            inode.ctime = now;
            state.is_essential(number);
            state.put_inode(number, &inode)
        })
    }

    /// The names of a file's extended attributes, in order.
    ///
    /// # Errors
    /// `ENOENT`, `EIO`.
    pub fn attribute_names(&self, number: u64) -> Result<Vec<Vec<u8>>, Errno> {
        let state = self.state();
        state.inode(number)?;
        Ok(state.attributes_of(number)?.into_iter().map(|(key, _)| key[9..].to_vec()).collect())
    }
}
