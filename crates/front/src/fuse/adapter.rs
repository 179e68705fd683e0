//! The kernel's requests (`include/uapi/linux/fuse.h`) as operations of the file system.
//!
//! The kernel checks permissions itself (`default_permissions`), keeps locks itself, and asks for no handles: opening a
//! file is answered with "not implemented", which it takes to mean that it need not ask.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use osier_fs::{
    Allocation, BLOCK_BYTES, Changes, Entry, Existing, FileSystem, Inode, NAME_MAX, NewNode, Presence, S_IFDIR,
    S_IFLNK, S_IFMT, Seek, Time, WriteEffects,
};

/// How long the kernel may keep what it is told: nobody else changes it.
const KEEP: Duration = Duration::from_secs(24 * 3600);
/// Bytes of a write, at most.
const WRITE_BYTES: u32 = 1 << 20;
/// Requests that the kernel has under way for readahead and write-back.
const BACKGROUND: u16 = 64;
/// Entries of a directory read at a time.
const ENTRIES: usize = 128;

/// See the module.
pub(super) struct Adapter {
    pub system: Arc<FileSystem>,
    /// Where searches for data and holes are answered.
    pub seeks: Sender<Search>,
}

/// A search for data or a hole.
///
/// The kernel (6.18) sends it without giving what it has collected for the file, so that what was just written would be
/// a hole. It is told to forget the file's pages first, which makes it write them: to other threads than the one that
/// asks, so this is none of those that answer requests.
pub(super) struct Search {
    number: u64,
    offset: u64,
    seek: Seek,
    reply: ReplyLseek,
}

impl Search {
    /// Answers.
    pub fn run(self, system: &FileSystem, notifier: &Notifier) {
        // A file whose pages nobody has is fine as it is.
        let _ = notifier.inval_inode(INodeNo(self.number), self.offset.cast_signed(), 0);
        match system.seek(self.number, self.offset, self.seek) {
            Ok(found) => self.reply.offset(found.cast_signed()),
            Err(refused) => self.reply.error(error(refused)),
        }
    }
}

/// The time, for what happens now.
#[must_use]
pub fn now() -> Time {
    time_of(SystemTime::now())
}

fn time_of(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time { seconds: since.as_secs().cast_signed(), nanoseconds: since.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            // Forward from the second before.
            let (seconds, nanoseconds) = match before.subsec_nanos() {
                0 => (before.as_secs(), 0),
                nanoseconds => (before.as_secs() + 1, 1_000_000_000 - nanoseconds),
            };
            Time { seconds: -seconds.cast_signed(), nanoseconds }
        }
    }
}

fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let seconds = if time.seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    seconds.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(u64::from(time.nanoseconds))
}

fn time_or_now(time: TimeOrNow, now: Time) -> Time {
    match time {
        TimeOrNow::SpecificTime(time) => time_of(time),
        TimeOrNow::Now => now,
    }
}

fn file_type(mode: u32) -> FileType {
    match mode & S_IFMT {
        S_IFDIR => FileType::Directory,
        S_IFLNK => FileType::Symlink,
        0o010_000 => FileType::NamedPipe,
        0o020_000 => FileType::CharDevice,
        0o060_000 => FileType::BlockDevice,
        0o140_000 => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

fn attributes(number: u64, inode: &Inode) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: inode.size,
        blocks: inode.blocks * (BLOCK_BYTES as u64 / 512),
        atime: system_time(inode.atime),
        mtime: system_time(inode.mtime),
        ctime: system_time(inode.ctime),
        crtime: system_time(inode.crtime),
        kind: file_type(inode.mode),
        perm: (inode.mode & 0o7777) as u16,
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    }
}

/// There is nothing of that name, and the kernel may remember it.
fn nothing() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn error(error: osier_fs::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

fn answer(reply: ReplyEmpty, result: Result<(), osier_fs::Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(refused) => reply.error(error(refused)),
    }
}

fn answer_entry(reply: ReplyEntry, result: Result<(u64, Inode), osier_fs::Errno>) {
    match result {
        Ok((number, inode)) => reply.entry(&KEEP, &attributes(number, &inode), Generation(0)),
        Err(refused) => reply.error(error(refused)),
    }
}

fn answer_data(reply: ReplyData, result: Result<Vec<u8>, osier_fs::Errno>) {
    match result {
        Ok(bytes) => reply.data(&bytes),
        Err(refused) => reply.error(error(refused)),
    }
}

fn answer_attributes(reply: ReplyAttr, INodeNo(number): INodeNo, result: Result<Inode, osier_fs::Errno>) {
    match result {
        Ok(inode) => reply.attr(&KEEP, &attributes(number, &inode)),
        Err(refused) => reply.error(error(refused)),
    }
}

/// A value, or its length if that is what is asked for.
fn answer_value(reply: ReplyXattr, size: u32, result: Result<Vec<u8>, osier_fs::Errno>) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(refused) => reply.error(error(refused)),
    }
}

/// Attributes that somebody would have to act on (access control lists) are not kept.
fn is_kept(name: &OsStr) -> bool {
    !name.as_bytes().starts_with(b"system.")
}

impl Adapter {
    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        node: NewNode<'_>,
    ) -> Result<(u64, Inode), osier_fs::Errno> {
        let node = NewNode { uid: request.uid(), gid: request.gid(), ..node };
        self.system.create(parent.0, name.as_bytes(), &node, now())
    }
}

fn node(mode: u32) -> NewNode<'static> {
    NewNode { mode, uid: 0, gid: 0, rdev: 0, target: b"" }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_WRITEBACK_CACHE,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_NO_OPEN_SUPPORT,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
        ];
        for flag in wanted {
            // An older kernel has not all of them; each is only faster.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(WRITE_BYTES);
        let _ = config.set_max_readahead(WRITE_BYTES);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.system.lookup(parent.0, name.as_bytes()) {
            Err(osier_fs::Errno::NOENT) => reply.entry(&KEEP, &nothing(), Generation(0)),
            found => answer_entry(reply, found),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.system.forget(ino.0, nlookup);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        answer_attributes(reply, ino, self.system.attributes(ino.0));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let now = now();
        let changes = Changes {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(|time| time_or_now(time, now)),
            mtime: mtime.map(|time| time_or_now(time, now)),
            ctime: ctime.map(time_of),
            is_unprivileged: request.uid() != 0,
        };
        answer_attributes(reply, ino, self.system.set_attributes(ino.0, &changes, now));
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        answer_data(reply, self.system.target(ino.0));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        answer_entry(reply, self.make(request, parent, name, NewNode { rdev, ..node(mode) }));
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        answer_entry(reply, self.make(request, parent, name, node(mode & !S_IFMT | S_IFDIR)));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let node = NewNode { target, ..node(S_IFLNK | 0o777) };
        answer_entry(reply, self.make(request, parent, link_name, node));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.system.unlink(parent.0, name.as_bytes(), now()));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.system.rmdir(parent.0, name.as_bytes(), now()));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let existing = match flags {
            flags if flags.is_empty() => Existing::Replace,
            RenameFlags::RENAME_NOREPLACE => Existing::Keep,
            RenameFlags::RENAME_EXCHANGE => Existing::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let (from, to) = ((parent.0, name.as_bytes()), (newparent.0, newname.as_bytes()));
        answer(reply, self.system.rename(from, to, existing, now()));
    }

    fn link(&self, _request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let linked = self.system.link(ino.0, newparent.0, newname.as_bytes(), now());
        answer_entry(reply, linked.map(|inode| (ino.0, inode)));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        answer_data(reply, self.system.read(ino.0, offset, size as usize));
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Of what it has collected the kernel says itself when it was written.
        let is_collected = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let effects = WriteEffects {
            now: (!is_collected).then(now),
            is_unprivileged: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        match self.system.write(ino.0, offset, data, effects) {
            Ok(()) => reply.written(data.len() as u32),
            Err(refused) => reply.error(error(refused)),
        }
    }

    fn flush(&self, _request: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        // Before it asks the kernel has given what it had collected; there is nothing else to do.
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        answer(reply, self.system.sync(ino.0, !datasync));
    }

    fn fsyncdir(&self, _request: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer(reply, self.system.commit());
    }

    fn readdir(&self, _request: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let added = self.add_entries(ino.0, offset, |entry| {
            let kind = file_type(u32::from(entry.kind) << 12);
            Ok(!reply.add(INodeNo(entry.inode), entry.cookie, kind, OsStr::from_bytes(&entry.name)))
        });
        match added {
            Ok(()) => reply.ok(),
            Err(refused) => reply.error(error(refused)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        match self.add_entries(ino.0, offset, |entry| self.add_with_attributes(ino.0, entry, &mut reply)) {
            Ok(()) => reply.ok(),
            Err(refused) => reply.error(error(refused)),
        }
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let totals = self.system.totals();
        let (blocks, free) = (totals.blocks, totals.blocks_free);
        let inodes = totals.inodes + totals.inodes_free;
        let bytes = BLOCK_BYTES as u32;
        reply.statfs(blocks, free, free, inodes, totals.inodes_free, bytes, NAME_MAX as u32, bytes);
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if !is_kept(name) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let presence = match flags {
            libc::XATTR_CREATE => Presence::Absent,
            libc::XATTR_REPLACE => Presence::Present,
            _ => Presence::Any,
        };
        answer(reply, self.system.set_attribute(ino.0, name.as_bytes(), value, presence, now()));
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if !is_kept(name) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        answer_value(reply, size, self.system.attribute(ino.0, name.as_bytes()));
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.system.attribute_names(ino.0);
        let list = |names: Vec<Vec<u8>>| names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect();
        answer_value(reply, size, names.map(list));
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if !is_kept(name) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        answer(reply, self.system.remove_attribute(ino.0, name.as_bytes(), now()));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.make(request, parent, name, node(mode)) {
            Ok((number, inode)) => {
                let attributes = attributes(number, &inode);
                reply.created(&KEEP, &attributes, Generation(0), FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(refused) => reply.error(error(refused)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let keeps = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let allocation = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocation::Reserve,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero,
            libc::FALLOC_FL_PUNCH_HOLE if keeps => Allocation::Punch,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let effects = WriteEffects { now: Some(now()), is_unprivileged: request.uid() != 0 };
        answer(reply, self.system.allocate(ino.0, (offset, length), allocation, !keeps, effects));
    }

    fn lseek(&self, _request: &Request, ino: INodeNo, _fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let seek = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        // Whoever answers is there as long as requests come; without it the reply that is dropped says EIO.
        let _ = self.seeks.send(Search { number: ino.0, offset, seek, reply });
    }
}

impl Adapter {
    /// Adds a directory's entries behind a cookie, until there are no more, or no room for the next.
    fn add_entries(
        &self,
        directory: u64,
        mut after: u64,
        mut add: impl FnMut(&Entry) -> Result<bool, osier_fs::Errno>,
    ) -> Result<(), osier_fs::Errno> {
        loop {
            let entries = self.system.entries(directory, after, ENTRIES)?;
            for entry in &entries {
                if !add(entry)? {
                    return Ok(());
                }
                after = entry.cookie;
            }
            if entries.len() < ENTRIES {
                return Ok(());
            }
        }
    }

    /// Adds an entry that the kernel then holds; false when there is no room for it.
    fn add_with_attributes(
        &self,
        directory: u64,
        entry: &Entry,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<bool, osier_fs::Errno> {
        // The kernel does not hold `.` and `..` by this.
        let is_held = entry.cookie > 2;
        let found = match is_held {
            true => self.system.lookup(directory, &entry.name),
            false => self.system.attributes(entry.inode).map(|inode| (entry.inode, inode)),
        };
        let (number, inode) = match found {
            Ok(found) => found,
            // Removed in between.
            Err(osier_fs::Errno::NOENT) => return Ok(true),
            Err(refused) => return Err(refused),
        };
        let name = OsStr::from_bytes(&entry.name);
        let attributes = attributes(number, &inode);
        let is_full = reply.add(INodeNo(number), entry.cookie, name, &KEEP, &attributes, Generation(0));
        if is_full && is_held {
            self.system.forget(number, 1);
        }
        Ok(!is_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_same_both_ways_before_1970_too() {
        for seconds in [-3_000_000_000, -1, 0, 1, 4_000_000_000] {
            for nanoseconds in [0, 1, 999_999_999] {
                let time = Time { seconds, nanoseconds };
                assert_eq!(time_of(system_time(time)), time);
            }
        }
    }
}
