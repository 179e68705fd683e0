//! The system calls under a window: userfaultfd.
//!
//! Structures and numbers are those of Linux's `userfaultfd.h`, which the libc crate lacks.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::error::WindowError;
use crate::stores::StoreTracking;

/// Bytes of a page.
pub const PAGE: usize = 4096;

const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xaa;
const FEATURE_WP: u64 = 1 << 0;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
const FEATURE_POISON: u64 = 1 << 14;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const MODE_MISSING: u64 = 1 << 0;
const MODE_WP: u64 = 1 << 1;
const MODE_MINOR: u64 = 1 << 2;
const CONTINUE_SILENT: u64 = 1 << 0;
const CONTINUE_WP: u64 = 1 << 1;
const PROTECT_WP: u64 = 1 << 0;
const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WRITE: u64 = 1 << 0;
const FLAG_WP: u64 = 1 << 1;

#[repr(C)]
struct ApiCall {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeCall {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterCall {
    range: RangeCall,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct ContinueCall {
    range: RangeCall,
    mode: u64,
    mapped: i64,
}

#[repr(C)]
struct ProtectCall {
    range: RangeCall,
    mode: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

const _: () = assert!(size_of::<Message>() == 32);

/// The number of an ioctl that reads and writes its argument.
const fn both_ways<T>(number: u8) -> libc::c_ulong {
    3 << 30 | (size_of::<T>() as libc::c_ulong) << 16 | 0xaa << 8 | number as libc::c_ulong
}

const IOCTL_API: libc::c_ulong = both_ways::<ApiCall>(0x3f);
const IOCTL_REGISTER: libc::c_ulong = both_ways::<RegisterCall>(0x00);
const IOCTL_WAKE: libc::c_ulong = 2 << 30 | (size_of::<RangeCall>() as libc::c_ulong) << 16 | 0xaa << 8 | 0x02;
const IOCTL_PROTECT: libc::c_ulong = both_ways::<ProtectCall>(0x06);
const IOCTL_CONTINUE: libc::c_ulong = both_ways::<ContinueCall>(0x07);
const IOCTL_POISON: libc::c_ulong = both_ways::<ContinueCall>(0x08);
/// `USERFAULTFD_IOC_NEW` of /dev/userfaultfd.
const IOCTL_NEW: libc::c_ulong = 0xaa << 8;

/// Userfaultfds over the parts of one range, and this process's page tables for whoever looks which pages of it were
/// stored to.
#[derive(Debug)]
pub struct Uffd {
    base: usize,
    /// All parts are so long, but for the last, which may be shorter.
    part_bytes: usize,
    parts: Vec<OwnedFd>,
    pagemap: File,
    stores: StoreTracking,
    can_poison: bool,
}

/// A fault that a thread waits in.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    pub address: usize,
    pub is_store: bool,
    /// The page is mapped, and protected against stores.
    pub is_protected: bool,
}

impl Uffd {
    /// Registers a range in so many parts, or fewer where it has no so many pages; with `in_thread` a fault is a SIGBUS
    /// of the thread, else a message. Stores are tracked as is `wanted`, or as well as can be.
    pub fn new(
        base: usize,
        bytes: usize,
        parts: usize,
        in_thread: bool,
        wanted: Option<StoreTracking>,
    ) -> Result<Uffd, WindowError> {
        let offered = handshake(&open(USER_MODE_ONLY).map_err(|source| refused(true, source))?, 0)?;
        if offered & FEATURE_MINOR_SHMEM == 0 {
            return Err(WindowError::NoFeature { feature: "minor faults of shared memory", since: "5.14" });
        }
        let pagemap = File::open("/proc/self/pagemap")
            .map_err(|source| WindowError::System { what: "open /proc/self/pagemap", source })?;
        let can_poison = offered & FEATURE_POISON != 0;
        let stores = choose(offered, in_thread, base, wanted)?;
        let mut features = FEATURE_MINOR_SHMEM | FEATURE_MISSING_SHMEM | features_of(stores);
        features |= if in_thread { FEATURE_SIGBUS } else { 0 };
        features |= if can_poison { FEATURE_POISON } else { 0 };
        // Both: without the first, the kernel would make a page of zeroes where the device has put none yet.
        let mode = MODE_MISSING | MODE_MINOR | if stores == StoreTracking::Nothing { 0 } else { MODE_WP };
        let part_bytes = bytes.div_ceil(parts.max(1)).next_multiple_of(PAGE);
        let starts = (base..base + bytes).step_by(part_bytes);
        let parts = starts.map(|start| {
            let fd = if in_thread { open(USER_MODE_ONLY) } else { open(0).or_else(open_device) }
                .map_err(|source| refused(in_thread, source))?;
            handshake(&fd, features)?;
            let len = part_bytes.min(base + bytes - start) as u64;
            let mut call = RegisterCall { range: RangeCall { start: start as u64, len }, mode, ioctls: 0 };
            // SAFETY: the argument is of the ioctl's type and lives.
            if unsafe { libc::ioctl(fd.as_raw_fd(), IOCTL_REGISTER, &raw mut call) } != 0 {
                return Err(WindowError::last_os("register the window with userfaultfd"));
            }
            Ok(fd)
        });
        Ok(Uffd { base, part_bytes, parts: parts.collect::<Result<_, _>>()?, pagemap, stores, can_poison })
    }

    /// How many parts there are.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    pub fn raw(&self, part: usize) -> i32 {
        self.parts[part].as_raw_fd()
    }

    /// The descriptor of an address, and where its part ends.
    fn of(&self, address: usize) -> (i32, usize) {
        let part = (address - self.base) / self.part_bytes;
        (self.raw(part), self.base + (part + 1) * self.part_bytes)
    }

    /// How stores are tracked.
    pub fn stores(&self) -> StoreTracking {
        self.stores
    }

    /// The page tables, for whoever looks for marks.
    pub fn page_map(&self) -> BorrowedFd<'_> {
        self.pagemap.as_fd()
    }

    /// Maps pages; `armed` so that a store leaves a trace. False means that the range is no longer what it was.
    pub fn map(&self, address: usize, pages: usize, armed: bool) -> bool {
        let (mut start, end) = (address, address + pages * PAGE);
        while start < end {
            let part_end = self.of(start).1.min(end);
            if !self.map_in_part(start, part_end, armed) {
                return false;
            }
            start = part_end;
        }
        true
    }

    fn map_in_part(&self, address: usize, end: usize, armed: bool) -> bool {
        let fd = self.of(address).0;
        let mode = match self.stores {
            StoreTracking::Asynchronous | StoreTracking::Faults if armed => CONTINUE_WP,
            StoreTracking::FaultsLate if armed => CONTINUE_SILENT,
            _ => 0,
        };
        let mut start = address;
        while start < end {
            let range = RangeCall { start: start as u64, len: (end - start) as u64 };
            let mut call = ContinueCall { range, mode, mapped: 0 };
            // SAFETY: the argument is of the ioctl's type and lives; the pages lie in the registered range.
            let error = if unsafe { libc::ioctl(fd, IOCTL_CONTINUE, &raw mut call) } == 0 { 0 } else { errno() };
            let mapped = usize::try_from(call.mapped).unwrap_or(0);
            if mode == CONTINUE_SILENT && mapped > 0 {
                // Those that this call has mapped, and no other: another one may have been stored to since, and would
                // be protected again as if it had not.
                self.protect(start, mapped, PROTECT_WP);
                self.wake(start, mapped);
            }
            match error {
                0 => return true,
                // Another thread was faster: whoever waits is woken.
                libc::EEXIST => {
                    self.wake(start, PAGE);
                    start += PAGE;
                }
                // It may have come a part of the way.
                libc::EAGAIN | libc::EINTR => start += mapped,
                _ => return false,
            }
        }
        true
    }

    /// Lets a page that is mapped and protected be stored to; from then on it has no mark. Where it has been unmapped
    /// meanwhile the access faults again.
    pub fn allow_stores(&self, address: usize) {
        self.protect(address, PAGE, 0);
    }

    /// Protects pages of one part, or takes that off and wakes whoever waits. What is not protected has no mark: a
    /// refusal loses no store.
    fn protect(&self, address: usize, bytes: usize, mode: u64) {
        let range = RangeCall { start: address as u64, len: bytes as u64 };
        let mut call = ProtectCall { range, mode };
        // SAFETY: the argument is of the ioctl's type and lives; the pages lie in the registered range.
        while unsafe { libc::ioctl(self.of(address).0, IOCTL_PROTECT, &raw mut call) } != 0
            && matches!(errno(), libc::EAGAIN | libc::EINTR)
        {}
    }

    /// Lets accesses to a page end in SIGBUS; false where the kernel cannot.
    pub fn poison(&self, address: usize) -> bool {
        let range = RangeCall { start: address as u64, len: PAGE as u64 };
        let mut call = ContinueCall { range, mode: 0, mapped: 0 };
        // SAFETY: as above; both calls have the same shape.
        self.can_poison && unsafe { libc::ioctl(self.of(address).0, IOCTL_POISON, &raw mut call) } == 0
    }

    /// Wakes whoever waits in a range: they fault again.
    pub fn wake(&self, address: usize, bytes: usize) {
        let (mut start, end) = (address, address + bytes);
        while start < end {
            let (fd, part_end) = self.of(start);
            let part_end = part_end.min(end);
            let mut call = RangeCall { start: start as u64, len: (part_end - start) as u64 };
            // SAFETY: as above. It cannot fail for a range of whole pages.
            unsafe { libc::ioctl(fd, IOCTL_WAKE, &raw mut call) };
            start = part_end;
        }
    }

    /// Reads faults of a part, as many as there are and fit; says how many.
    pub fn read(&self, part: usize, traps: &mut [Trap; 16]) -> usize {
        let mut messages = [Message { event: 0, reserved: [0; 7], flags: 0, address: 0, thread: 0 }; 16];
        // SAFETY: the buffer is live and of the stated length; every byte pattern is a message.
        let got = unsafe { libc::read(self.raw(part), messages.as_mut_ptr().cast(), size_of_val(&messages)) };
        let count = usize::try_from(got).unwrap_or(0) / size_of::<Message>();
        let mut found = 0;
        for message in &messages[..count] {
            if message.event == EVENT_PAGEFAULT {
                let has = |flag| message.flags & flag != 0;
                let (is_store, is_protected) = (has(FLAG_WRITE), has(FLAG_WP));
                traps[found] = Trap { address: message.address as usize, is_store, is_protected };
                found += 1;
            }
        }
        found
    }
}

/// How stores are tracked: as is wanted, or as well as can be.
fn choose(
    offered: u64,
    in_thread: bool,
    base: usize,
    wanted: Option<StoreTracking>,
) -> Result<StoreTracking, WindowError> {
    let can = |stores: &StoreTracking| {
        let has_features = offered & features_of(*stores) == features_of(*stores);
        // Where the thread resolves its faults, only this processor says which of them are of protected pages.
        let can_tell = !stores.faults() || !in_thread || cfg!(target_arch = "x86_64");
        has_features && can_tell && (*stores != StoreTracking::Faults || maps_protected(offered, base))
    };
    match wanted {
        None => Ok(StoreTracking::ALL.into_iter().find(can).unwrap_or(StoreTracking::Nothing)),
        Some(stores) if can(&stores) => Ok(stores),
        Some(stores) => {
            let (feature, since) = stores.needs();
            Err(WindowError::NoFeature { feature, since })
        }
    }
}

fn features_of(stores: StoreTracking) -> u64 {
    match stores {
        StoreTracking::Asynchronous => FEATURE_WP_ASYNC | FEATURE_WP_SHMEM,
        StoreTracking::Faults | StoreTracking::FaultsLate => FEATURE_WP | FEATURE_WP_SHMEM,
        StoreTracking::Nothing => 0,
    }
}

/// Whether the kernel can map a page protected in one call. No feature says so: an address that is not registered is
/// asked for, and who does not know the mode complains of that first.
fn maps_protected(offered: u64, base: usize) -> bool {
    let Ok(fd) = open(USER_MODE_ONLY) else { return false };
    let range = RangeCall { start: base as u64, len: PAGE as u64 };
    let mut call = ContinueCall { range, mode: CONTINUE_WP, mapped: 0 };
    // SAFETY: the argument is of the ioctl's type and lives; the call maps nothing, since nothing is registered.
    handshake(&fd, offered & FEATURE_MINOR_SHMEM).is_ok()
        && unsafe { libc::ioctl(fd.as_raw_fd(), IOCTL_CONTINUE, &raw mut call) } != 0
        && errno() == libc::ENOENT
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn open(flags: i32) -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | flags;
    // SAFETY: a plain call.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The other way in, for those who may use the device file.
fn open_device(refused: io::Error) -> io::Result<OwnedFd> {
    let Ok(device) = File::options().read(true).write(true).open("/dev/userfaultfd") else { return Err(refused) };
    // SAFETY: a plain call on an open file; the flags are its argument.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), IOCTL_NEW, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return Err(refused);
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn refused(in_thread: bool, source: io::Error) -> WindowError {
    match source.raw_os_error() {
        Some(libc::EPERM) if !in_thread => WindowError::NoPermission { source },
        Some(libc::ENOSYS) => WindowError::NoFeature { feature: "itself", since: "4.3 (CONFIG_USERFAULTFD)" },
        _ => WindowError::System { what: "open a userfaultfd", source },
    }
}

/// Agrees on features; says what there is.
fn handshake(fd: &OwnedFd, features: u64) -> Result<u64, WindowError> {
    let mut call = ApiCall { api: API, features, ioctls: 0 };
    // SAFETY: the argument is of the ioctl's type and lives.
    if unsafe { libc::ioctl(fd.as_raw_fd(), IOCTL_API, &raw mut call) } != 0 {
        return Err(WindowError::last_os("agree with userfaultfd on its features"));
    }
    Ok(call.features)
}
