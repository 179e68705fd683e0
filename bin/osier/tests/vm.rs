//! `osier vm` as a user meets it: a stock kernel that sees, fills and checks memory in a device's window, what the
//! device's death does to it, and what is refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod common;
mod guests;
mod windows;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use osier_client::heap::Lease;
use serde_json::Value;

use guests::*;
use windows::*;

/// What a guest is made of.
struct Guest {
    kernel: PathBuf,
    initrd: PathBuf,
}

impl Guest {
    /// A stock kernel whose first process is one of `programs/`, with some of its modules, unless something is missing.
    fn new(directory: &Path, program: &str, modules: &[&str]) -> Option<Guest> {
        if !may_handle_faults() {
            return None;
        }
        let ready = ready()?;
        let init = compile(&format!("bin/osier/tests/programs/{program}"), &directory.join("init"), &["-static"])?;
        let mut archive = Archive::new(&init);
        for module in modules {
            let Ok(bytes) = fs::read(ready.join("modules").join(module)) else {
                common::skipped(format_args!("this kernel has no {module}"));
                return None;
            };
            archive.put(&format!("lib/{module}"), PROGRAM, (0, 0), &bytes);
        }
        let initrd = directory.join("initrd");
        archive.save(&initrd);
        Some(Guest { kernel: ready.join("kernel"), initrd })
    }

    /// Boots it beside the device; `words` are for the kernel.
    fn boot(&self, device: &Device, options: &[&str], words: &str) -> Child {
        let words = format!("quiet mitigations=off {words}");
        let mut command = vm(device, options);
        command.args(["--memory", "256MiB", "--append", &words]);
        command.arg("--kernel").arg(&self.kernel).arg("--initrd").arg(&self.initrd);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

fn vm(device: &Device, options: &[&str]) -> Command {
    builds();
    let mut command = osier();
    command.args(["--json", "vm", "--device"]).arg(device.socket()).args(options).stdin(Stdio::null());
    command
}

/// Has so much of the window, from its beginning on, until it is dropped.
fn hold(device: &Device, window_mib: u64, mib: u64) -> Lease {
    let lease = Lease::take(&device.socket(), window_mib << 20, mib << 20).unwrap();
    assert_eq!(lease.range(), 0..mib << 20);
    lease
}

/// What a machine says on its console, and on standard error, until it is switched off.
fn watch(mut process: Child) -> (String, String) {
    let said = rest(process.stdout.as_mut().unwrap());
    let errors = rest(process.stderr.as_mut().unwrap());
    assert!(await_end(&mut process).success(), "{said}\n{errors}");
    (said, errors)
}

/// What a process still says.
fn rest(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap()
}

#[test]
fn a_stock_kernel_sees_a_node_without_processors_and_keeps_every_word_of_it() {
    const BOUND_MIB: u64 = 24;
    const PASSES: u64 = 3;
    const PAGES: u64 = BOUND_MIB << 8;
    let device = Device::start(96, 4, &[]);
    let Some(guest) = Guest::new(device.directory.path(), "guest.c", &[]) else { return };
    // The guest's part is not the window's beginning, and has room for what the kernel itself puts there.
    let holder = hold(&device, 96, 32);
    let stats = device.path("stats");
    let options = ["--window", "64MiB", "--stats", stats.to_str().unwrap()];
    let words = format!("bound_mib={BOUND_MIB} passes={PASSES}");
    let (said, errors) = watch(guest.boot(&device, &options, &words));
    drop(holder);

    assert!(said.contains("guest: nodes with memory [0-1]"), "{said}");
    assert!(said.contains("guest: nodes with processors [0]"), "{said}");
    assert!(said.contains("guest: processors of node 1 []"), "{said}");
    assert!(said.contains(&format!("guest: pass {PASSES} of {BOUND_MIB} MiB")), "{said}");
    assert!(said.contains("guest: well"), "{said}");
    assert!(errors.contains("64 MiB of the window of cylon as NUMA node 1"), "{errors}");
    assert!(errors.contains("KVM") || errors.contains("TCG), because"), "{errors}");

    let figures: Value = serde_json::from_str(&fs::read_to_string(&stats).unwrap()).unwrap();
    assert_eq!(figures["guest_bytes"], 64 << 20);
    assert_eq!(figures["lateness"]["count"], figures["latency"]["count"]);
    let report = device.stop();
    // Each pass stores to every page and loads every page, the first loads twice; a sixth at most is still there.
    let touched = PAGES * (2 * PASSES + 1);
    let misses = number(&report, "misses");
    assert!(misses > touched * 5 / 6 && misses < touched * 3 / 2, "{misses} of {touched}: {report}");
    assert!(number(&report, "evicted_dirty") > PAGES * PASSES * 5 / 6, "{report}");
    assert_eq!((number(&report, "lost"), number(&report, "dropped")), (0, 0), "{report}");
    assert!(number(&report, "superblocks_erased") > 0, "collection works: {report}");
    assert!(number(&report, "flash_pages_moved") > 0 && number(&report, "waf_ppm") > 1_000_000, "{report}");
}

#[test]
fn a_machine_whose_device_is_killed_ends_with_sigbus_and_a_message() {
    let mut device = Device::start(64, 4, &[]);
    let Some(guest) = Guest::new(device.directory.path(), "guest.c", &[]) else { return };
    let mut process = guest.boot(&device, &[], "bound_mib=24 passes=0");
    let mut out = BufReader::new(process.stdout.take().unwrap());
    let mut said = String::new();
    // After a pass the memory is larger than the cache, so the next page that is not there comes soon.
    while !said.contains("guest: pass 1") {
        assert!(out.read_line(&mut said).unwrap() > 0, "{said}\n{}", rest(process.stderr.as_mut().unwrap()));
    }
    device.process.kill().unwrap();
    let status = await_end(&mut process);
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    let errors = rest(process.stderr.as_mut().unwrap());
    assert!(errors.contains("the device has died") && errors.contains("cylon"), "{errors}");
    let after = rest(&mut out);
    assert!(!after.contains("wrong"), "it sees no wrong byte before: {after}");
}

#[test]
fn a_stock_kernel_reaches_the_window_through_a_cxl_device() {
    let device = Device::start(256, 4, &[]);
    let modules = ["cxl_acpi.ko", "cxl_pci.ko", "cxl_mem.ko"];
    let Some(guest) = Guest::new(device.directory.path(), "guest_cxl.c", &modules) else { return };
    let (said, errors) = watch(guest.boot(&device, &["--cxl"], ""));
    assert!(said.contains("guest: a CXL device of 0x10000000 bytes"), "{said}");
    assert!(said.contains("guest: well"), "{said}");
    assert!(errors.contains("256 MiB of the window of cylon as a CXL Type 3 device"), "{errors}");
    let report = device.stop();
    // 24 MiB are stored to and then loaded; the cache has a sixth of them.
    assert!(number(&report, "misses") > 2 * (24 << 8) * 5 / 6, "{report}");
    assert!(number(&report, "evicted_dirty") > (24 << 8) * 5 / 6, "{report}");
}

#[test]
fn an_emulators_memory_is_the_window_and_stays_it() {
    if !may_handle_faults() {
        return;
    }
    let device = Device::start(64, 4, &[]);
    let emulator = device.path("emulator");
    let Some(emulator) = compile("bin/osier/tests/programs/emulator.c", &emulator, &[]) else { return };
    let works = |mode: &str| {
        let (status, out, err) = finish(vm(&device, &["--mode", mode, "--window", "32MiB", "--qemu", &emulator]));
        assert!(status.success() && out == "well\n", "{mode}: {status}\n{out}\n{err}");
    };
    // The second finds what the first left, and must not see it; the third has a part of its own beside a heap.
    works("sleeping");
    works("spinning");
    let holder = hold(&device, 64, 32);
    works("sleeping");
    drop(holder);
    let report = device.stop();
    // Each stores to all of it, and then the kernel does to half.
    assert!(number(&report, "evicted_dirty") > 3 * (32 << 8), "{report}");
}

#[test]
fn what_a_machine_cannot_have_is_said() {
    if !may_handle_faults() {
        return;
    }
    let device = Device::start(64, 4, &[]);
    let refuses = |options: &[&str], code: i32, part: &str| {
        let mut all = options.to_vec();
        if !options.contains(&"--qemu") {
            all.splice(0..0, ["--qemu", "/bin/true"]);
        }
        let said = refused(vm(&device, &all), code);
        assert!(said.contains(part), "{options:?}: {said}");
    };
    refuses(&["--qemu", "/nonexistent/qemu"], 8, "apt-get install --no-install-recommends qemu-system-x86");
    refuses(&["--kernel", "/nonexistent/kernel"], 8, "the kernel /nonexistent/kernel cannot be opened");
    refuses(&["--kernel", "/bin/true", "--initrd", "/nonexistent/initrd"], 8, "first file system");
    refuses(&["--disk", "/nonexistent/disk"], 8, "the disk image /nonexistent/disk");
    refuses(&["--window", "1GiB"], 3, "1 GiB does not fit in the window of cylon, which has 64 MiB");
    refuses(&["--window", "33MiB"], 3, "multiple of 32 MiB");
    refuses(&["--window", "0"], 3, "multiple of 32 MiB");
    refuses(&["--cxl"], 3, "multiple of 256 MiB");
    refuses(&["--", "-drive", "file=x,cache=none"], 3, "lost");
    let mut nowhere = osier();
    nowhere.args(["--json", "vm", "--qemu", "/bin/true", "--device", "/nonexistent/s"]);
    assert!(refused(nowhere, 8).contains("is it running?"));
    let (status, _, err) = finish(vm(&device, &["--initrd", "/bin/true"]));
    assert!(status.code() == Some(2) && err.contains("--kernel"), "{status}: {err}");
    // Beside a heap that takes all there is no room; it is said by the library, in the place of QEMU.
    let Some(emulator) = compile("bin/osier/tests/programs/emulator.c", &device.path("emulator"), &[]) else { return };
    let holder = hold(&device, 64, 64);
    let (status, _, err) = finish(vm(&device, &["--window", "32MiB", "--qemu", &emulator]));
    assert!(status.code() == Some(126) && err.contains("does not fit beside the others"), "{status}: {err}");
    drop(holder);
}

#[test]
fn without_permission_a_machine_says_which_setting_to_change() {
    let device = Device::start(64, 4, &[]);
    let Some(nobody) = Nobody::new(&device) else { return };
    let kernel = device.path("kernel");
    fs::write(&kernel, b"x").unwrap();
    fs::set_permissions(&kernel, fs::Permissions::from_mode(0o600)).unwrap();
    let command = |options: &[&str]| {
        let mut command = nobody.osier();
        command.args(["--json", "vm", "--qemu", "/bin/true", "--device"]).arg(device.socket()).args(options);
        command
    };
    let said = refused(command(&[]), 3);
    assert!(said.contains("vm.unprivileged_userfaultfd=1") && !said.contains("InThread"), "{said}");
    let said = refused(command(&["--kernel", kernel.to_str().unwrap()]), 3);
    assert!(said.contains("cannot be opened: Permission denied"), "{said}");
}
