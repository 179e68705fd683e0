//! The program and the libraries that are loaded, and the functions in them.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol, SymbolKind};

use crate::own::{self, MAP_FAILED};

/// Something loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// What is added to the addresses of its file.
    pub base: usize,
    /// Its file, as the linker has it.
    pub path: PathBuf,
    /// Where its code lies.
    pub code: Vec<Range<usize>>,
    /// All that is loaded of it.
    pub loaded: Range<usize>,
    /// The table of its frames (`.eh_frame_hdr`).
    pub frames: Option<Range<usize>>,
}

/// A function in a module.
pub struct Function<'a> {
    pub name: &'a [u8],
    pub addresses: Range<usize>,
}

impl Module {
    /// Its file's name.
    pub fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    pub fn has_code(&self, address: usize) -> bool {
        self.code.iter().any(|range| range.contains(&address))
    }

    /// Hands over each function that its file's tables of symbols have; of what has no file, or no table, none.
    pub fn each_function(&self, mut each: impl FnMut(Function<'_>)) {
        let Some(file) = Mapped::open(&self.path) else { return };
        let Ok(object) = object::File::parse(file.bytes()) else { return };
        for symbol in object.symbols().chain(object.dynamic_symbols()) {
            let (Ok(name), true) = (symbol.name_bytes(), symbol.kind() == SymbolKind::Text) else { continue };
            let start = self.base.wrapping_add(symbol.address() as usize);
            let addresses = start..start.saturating_add(symbol.size() as usize);
            if symbol.is_definition() && !addresses.is_empty() {
                each(Function { name, addresses });
            }
        }
    }
}

/// A file, mapped by the system call: the name `mmap` means this library's.
struct Mapped {
    at: usize,
    bytes: usize,
}

impl Mapped {
    fn open(path: &Path) -> Option<Mapped> {
        // By the system call: the C library's name is this library's too, which asks the linker for it.
        let file = own::open(path)?;
        let bytes = usize::try_from(own::stat(file.as_raw_fd())?.st_size).ok().filter(|bytes| *bytes > 0)?;
        let at = own::mmap(0, bytes, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
        (at != MAP_FAILED).then_some(Mapped { at, bytes })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is as long and lives as long as this value. Whoever cuts off a file whose code runs has
        // ended the program by that already.
        unsafe { std::slice::from_raw_parts(self.at as *const u8, self.bytes) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        own::munmap(self.at, self.bytes);
    }
}

/// How often anything was loaded and unloaded: what is loaded is the same as long as this is.
pub fn generation() -> (u64, u64) {
    let mut found = (0, 0);
    extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
        // SAFETY: the linker passes a whole description, and what `generation` gave it.
        unsafe { *to.cast::<(u64, u64)>() = ((*info).dlpi_adds, (*info).dlpi_subs) };
        1
    }
    // SAFETY: the function writes to the value that it is given, which lives.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut found).cast()) };
    found
}

/// What is loaded. Nothing of this library's may be locked: the linker's own lock is held meanwhile.
pub fn loaded() -> Vec<Module> {
    let mut found: Vec<Module> = Vec::new();
    extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
        // SAFETY: the linker passes a whole description, and what `loaded` gave it.
        unsafe { (*to.cast::<Vec<Module>>()).push(module_of(&*info)) };
        0
    }
    // SAFETY: the function writes to the list that it is given, which lives.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut found).cast()) };
    // The first is the program, which the linker gives no name.
    if let Some(program) = found.first_mut().filter(|module| module.path.as_os_str().is_empty())
        && let Ok(path) = std::fs::read_link("/proc/self/exe")
    {
        program.path = path;
    }
    found
}

fn module_of(info: &libc::dl_phdr_info) -> Module {
    let base = info.dlpi_addr as usize;
    let mut module = Module { base, path: PathBuf::new(), code: Vec::new(), loaded: 0..0, frames: None };
    if !info.dlpi_name.is_null() {
        // SAFETY: the linker's name ends in zero.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) };
        module.path = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    }
    // SAFETY: the linker has so many headers there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    for header in headers {
        let start = base.wrapping_add(header.p_vaddr as usize);
        let range = start..start.saturating_add(header.p_memsz as usize);
        match header.p_type {
            libc::PT_LOAD => {
                // In the order of their addresses (System V ABI, chapter 5).
                let start = if module.loaded.is_empty() { range.start } else { module.loaded.start };
                module.loaded = start..range.end;
                if header.p_flags & libc::PF_X != 0 {
                    module.code.push(range);
                }
            }
            libc::PT_GNU_EH_FRAME => module.frames = Some(range),
            _ => {}
        }
    }
    module
}
