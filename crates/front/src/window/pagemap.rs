//! Which pages a program stored to: its page tables, as the kernel shows them.
//!
//! The program passes its `/proc/self/pagemap` on, so that the device looks, and the thread that faulted need not. The
//! structure and the numbers are those of Linux's `fs.h`, which the libc crate lacks, and of its
//! Documentation/admin-guide/mm/pagemap.rst.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use osier_device::window::PAGE_BYTES;
use osier_device::window::message::{Marks, PageTables};

const PAGE_IS_WRITTEN: u64 = 1 << 1;
/// Of an entry of the file: write-protected by userfaultfd.
const ENTRY_IS_PROTECTED: u64 = 1 << 57;
const ENTRY_BYTES: u64 = 8;
/// What `fstatfs` says of files in `/proc`.
const PROC_MAGIC: i64 = 0x9fa0;

#[repr(C)]
struct ScanCall {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const SCAN_BYTES: libc::c_ulong = size_of::<ScanCall>() as libc::c_ulong;
const IOCTL_SCAN: libc::c_ulong = 3 << 30 | SCAN_BYTES << 16 | (b'f' as libc::c_ulong) << 8 | 16;

const _: () = assert!(SCAN_BYTES == 96);

/// The page tables of one program, for its window.
#[derive(Debug)]
pub(super) struct PageMap {
    file: File,
    tables: PageTables,
}

impl PageMap {
    /// What a program passed on, if it has marks and is such a file: of another kind the calls could be commands, or
    /// wait for the program.
    pub fn new(file: OwnedFd, tables: PageTables) -> Option<PageMap> {
        // SAFETY: an all-zero statfs is a valid value of that plain struct, which the call fills in.
        let mut about: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live, writable value.
        let is_of_proc = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut about) } == 0
            && about.f_type as i64 == PROC_MAGIC
            && std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
                .is_ok_and(|path| path.file_name().is_some_and(|name| name == "pagemap"));
        (is_of_proc && tables.marks != Marks::None).then(|| PageMap { file: File::from(file), tables })
    }

    /// Whether a mark can be of a page that was stored to.
    pub fn has_to_compare(&self) -> bool {
        self.tables.marks == Marks::ReadAndCompared
    }

    /// Whether a page that the program has unmapped was stored to while it was mapped. The kernel leaves a mark where a
    /// page was mapped for loads and not stored to; where there is none it was, or nobody knows.
    pub fn was_written(&self, page: u64) -> bool {
        let address = self.tables.origin.wrapping_add(page.wrapping_mul(PAGE_BYTES as u64));
        if self.tables.marks == Marks::Scanned {
            return self.scan(address);
        }
        let mut entry = [0; ENTRY_BYTES as usize];
        let is_known = self.file.read_exact_at(&mut entry, address / PAGE_BYTES as u64 * ENTRY_BYTES).is_ok();
        !is_known || u64::from_le_bytes(entry) & ENTRY_IS_PROTECTED == 0
    }

    fn scan(&self, start: u64) -> bool {
        let mut region = Region::default();
        let mut call = ScanCall {
            size: SCAN_BYTES,
            flags: 0,
            start,
            end: start.wrapping_add(PAGE_BYTES as u64),
            walk_end: 0,
            vec: &raw mut region as u64,
            vec_len: 1,
            max_pages: 0,
            category_inverted: 0,
            category_mask: PAGE_IS_WRITTEN,
            category_anyof_mask: 0,
            return_mask: PAGE_IS_WRITTEN,
        };
        // SAFETY: the argument is of the ioctl's type, and it and the region that it points to live.
        let found = unsafe { libc::ioctl(self.file.as_raw_fd(), IOCTL_SCAN, &raw mut call) };
        found != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_page_map_is_not_asked_and_a_page_of_nobody_counts_as_written() {
        let open = |path: &str| OwnedFd::from(File::open(path).unwrap());
        for marks in [Marks::Scanned, Marks::Read, Marks::ReadAndCompared] {
            let map = |path, origin| PageMap::new(open(path), PageTables { origin, marks });
            // To read the memory of a program can wait for that program.
            for other in ["/dev/null", "/proc/self/mem", "/proc/self/status"] {
                assert!(map(other, 0).is_none(), "{other}");
            }
            // The kernel refuses to look at what is beyond a program's memory.
            assert!(map("/proc/self/pagemap", u64::MAX - 4095).unwrap().was_written(0));
            assert!(map("/proc/self/pagemap", 1).unwrap().was_written(0), "no address of a page");
        }
        assert!(PageMap::new(open("/proc/self/pagemap"), PageTables { origin: 0, marks: Marks::None }).is_none());
    }
}
