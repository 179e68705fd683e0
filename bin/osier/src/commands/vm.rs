//! `osier vm`: a whole machine, by a stock QEMU, part of whose memory lies in a device's window.
//!
//! The guest sees that part as a NUMA node without processors, or as a CXL Type 3 device. QEMU is told to map a file,
//! and the library that is preloaded into it answers with the window (`osier_client::heap::stand_in`).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use osier_client::heap::{HEAP_UNIT_BYTES, Settings, StandIn, THRESHOLD_BYTES, stand_in};
use osier_client::placement::CallSites;

use super::Context;
use crate::exit::{Exit, Failure};
use crate::output::tell;
use crate::preloaded::{self, ModeArg};
use crate::units::{format_bytes, parse_bytes};

/// What Debian's package `qemu-system-x86` brings.
const QEMU: &str = "qemu-system-x86_64";
/// How the window is called among QEMU's objects.
const OBJECT: &str = "osier";
/// CXL decodes addresses in parts of so many bytes (CXL 3.0, section 8.2.4.19).
const CXL_UNIT_BYTES: u64 = 256 << 20;
/// The labels of a CXL device, which QEMU wants memory for.
const CXL_LABELS_BYTES: u64 = 256 << 10;
/// In QEMU's arguments, what moves bytes to and from guest memory behind the page tables' back.
const UNSEEN: [&str; 4] = ["cache=none", "cache=directsync", "cache.direct=on", "vfio-"];

/// Run a machine with part of its memory in a device's memory
///
/// QEMU (Debian's package qemu-system-x86) runs an unchanged guest. Besides its ordinary memory it has a NUMA node
/// without processors, node 1, whose pages are the window's: those in the device's cache cost what memory costs. Start
/// a device with `osier window serve`. The guest's serial console is this terminal; Ctrl-A X ends the machine.
#[derive(Debug, Args)]
pub struct VmArgs {
    /// The socket of the device
    #[arg(long, value_name = "SOCKET")]
    device: PathBuf,
    /// Who resolves faults
    #[arg(long, value_enum, default_value = "auto")]
    mode: ModeArg,
    /// Bytes of the guest's ordinary memory
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "512MiB")]
    memory: u64,
    /// Bytes of the window for the guest, a multiple of 32 MiB, with `--cxl` of 256 MiB [default: all]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    window: Option<u64>,
    /// Processors of the guest
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=255))]
    cpus: u32,
    /// How the guest's instructions are run
    #[arg(long, value_enum, default_value = "auto")]
    accel: AccelArg,
    /// Show the window as a CXL Type 3 device, instead of as node 1
    ///
    /// QEMU 7.2 carries out each access to it by itself, eight bytes at most: slow, and no guest runs programs there.
    #[arg(long)]
    cxl: bool,
    /// A kernel to boot
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// The kernel's first file system
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,
    /// Words for the kernel, besides `console=ttyS0 panic=-1`
    #[arg(long, value_name = "WORDS", requires = "kernel", allow_hyphen_values = true)]
    append: Option<String>,
    /// A disk image, of QEMU's format if its name ends in .qcow2, else raw; may be given several times
    #[arg(long, value_name = "FILE")]
    disk: Vec<PathBuf>,
    /// The program to be QEMU
    #[arg(long, value_name = "PROGRAM", default_value = QEMU)]
    qemu: OsString,
    /// Add the figures to this file at the end, instead of standard error
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// More arguments for QEMU
    #[arg(last = true, value_name = "QEMU ARGUMENT")]
    more: Vec<OsString>,
}

/// How the guest's instructions are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AccelArg {
    /// By the processor where it can, else by QEMU
    Auto,
    /// By the processor
    Kvm,
    /// By QEMU, which translates them: some ten times slower
    Tcg,
}

/// The same, once it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accel {
    Kvm,
    Tcg,
}

/// Becomes QEMU.
///
/// # Errors
/// What is missing: QEMU, a file, the device, a permission, the library.
pub fn run(args: &VmArgs, context: &Context) -> Result<Exit> {
    let qemu = preloaded::find(&args.qemu).ok_or_else(|| {
        let text = format!(
            "there is no {} on the PATH; Debian has QEMU in a package: apt-get install --no-install-recommends \
             qemu-system-x86",
            Path::new(&args.qemu).display()
        );
        Failure::new(Exit::Missing, text)
    })?;
    check_files(args)?;
    check_more(&args.more)?;
    let (accel, why) = args.accel.choose()?;
    let socket = fs::canonicalize(&args.device).unwrap_or_else(|_| args.device.clone());
    let mode = args.mode.mode();
    let offer = preloaded::check_window(&socket, mode, "a guest's part", HEAP_UNIT_BYTES, args.window)?;
    let bytes = args.window_bytes(offer.bytes)?;
    let file = stand_in(bytes).context("making the file that stands in for the window failed")?;
    // QEMU's from now on.
    let fd = file.into_raw_fd();
    let settings = Settings {
        socket,
        heap_bytes: None,
        threshold_bytes: THRESHOLD_BYTES,
        small_bytes: 0,
        mode,
        stats: args.stats.as_deref().map(std::path::absolute).transpose()?,
        json: context.json,
        children: false,
        stand_in: Some(StandIn { fd, window_bytes: offer.bytes }),
        dax: Vec::new(),
        survives_power_loss: false,
        hit_latency: None,
        call_sites: CallSites::default(),
    };
    tell!(
        "osier vm: {} of the window of {} {}; {why}",
        format_bytes(bytes),
        offer.device,
        if args.cxl { "as a CXL Type 3 device" } else { "as NUMA node 1" },
    );
    preloaded::become_program(&qemu, &args.qemu, &args.qemu_arguments(accel, bytes, fd), &settings)
}

/// Whether the files that QEMU is to read are there, so that what is missing is said before a machine is made.
fn check_files(args: &VmArgs) -> Result<()> {
    let named = [("the kernel", &args.kernel), ("the kernel's first file system", &args.initrd)];
    let read = named.into_iter().filter_map(|(what, path)| Some((what, path.as_deref()?, false)));
    let disks = args.disk.iter().map(|path| ("the disk image", path.as_path(), true));
    for (what, path, is_written) in read.chain(disks) {
        let opened = File::options().read(true).write(is_written).open(path);
        opened.map_err(|error| {
            let exit = if error.kind() == io::ErrorKind::NotFound { Exit::Missing } else { Exit::BadInput };
            Failure::new(exit, format!("{what} {} cannot be opened: {error}", path.display()))
        })?;
    }
    Ok(())
}

/// Refuses what would store to guest memory without the device's hearing of it: such stores are lost.
fn check_more(more: &[OsString]) -> Result<()> {
    for argument in more {
        let text = argument.to_string_lossy();
        if let Some(unseen) = UNSEEN.iter().find(|unseen| text.contains(**unseen)) {
            let text = format!(
                "QEMU's argument {text:?} cannot be given: with {unseen:?} the system moves bytes to and from the guest's \
                 memory behind the page tables, and what is stored so to the window is lost"
            );
            return Err(Failure::new(Exit::BadInput, text).into());
        }
    }
    Ok(())
}

impl AccelArg {
    /// What it is on this machine, and why.
    fn choose(self) -> Result<(Accel, String)> {
        let by_qemu = |why: &str| format!("its instructions are translated by QEMU (TCG), {why}");
        let kvm = kvm();
        match (self, kvm) {
            (AccelArg::Tcg, _) => Ok((Accel::Tcg, by_qemu("as asked for"))),
            (AccelArg::Auto | AccelArg::Kvm, Ok(())) => Ok((Accel::Kvm, "its instructions are run by KVM".to_owned())),
            (AccelArg::Auto, Err(why)) => Ok((Accel::Tcg, by_qemu(&format!("because {why}")))),
            (AccelArg::Kvm, Err(why)) => {
                let text = format!("there is no KVM for the guest, because {why}; --accel tcg does without");
                Err(Failure::new(Exit::Missing, text).into())
            }
        }
    }
}

/// Whether the processor can run a guest, or why not.
fn kvm() -> Result<(), String> {
    const DEVICE: &str = "/dev/kvm";
    if !cfg!(target_arch = "x86_64") {
        return Err("the guest's processor is another than this machine's".to_owned());
    }
    if let Err(error) = File::options().read(true).write(true).open(DEVICE) {
        return Err(match error.kind() {
            io::ErrorKind::PermissionDenied => format!("this user may not open {DEVICE} (group kvm)"),
            _ => format!("{DEVICE} cannot be opened ({error})"),
        });
    }
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !has_virtualization(&about) {
        return Err(format!(
            "the processor has neither VMX nor SVM here: what {DEVICE} offers runs only kernels that are made for it"
        ));
    }
    Ok(())
}

/// Whether a processor, as `/proc/cpuinfo` describes it, has what KVM needs for unchanged guests.
fn has_virtualization(about: &str) -> bool {
    let flags = about.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| matches!(flag, "vmx" | "svm"))
}

impl VmArgs {
    /// Bytes of the window for the guest.
    fn window_bytes(&self, offered: u64) -> Result<u64> {
        let unit = if self.cxl { CXL_UNIT_BYTES } else { HEAP_UNIT_BYTES };
        let bytes = self.window.unwrap_or(offered / unit * unit);
        if bytes == 0 || !bytes.is_multiple_of(unit) {
            let text = format!(
                "a CXL device is a multiple of {}, which {} is not; say how much of the window the guest gets: --window",
                format_bytes(unit),
                format_bytes(self.window.unwrap_or(offered)),
            );
            return Err(Failure::new(Exit::BadInput, text).into());
        }
        Ok(bytes)
    }

    /// What QEMU is told: a machine with a serial console, and nothing that was not asked for.
    fn qemu_arguments(&self, accel: Accel, window_bytes: u64, fd: i32) -> Vec<OsString> {
        let accel_words = match accel {
            Accel::Kvm => ("accel=kvm", "host"),
            Accel::Tcg => ("accel=tcg", "max"),
        };
        let mut all = Arguments(Vec::new());
        all.two("-cpu", accel_words.1);
        all.two("-smp", self.cpus.to_string());
        all.two("-object", format!("memory-backend-ram,id=ordinary,size={}", self.memory));
        // By the descriptor that QEMU inherits: a path of its own would have to be cleaned up.
        let path = format!("/proc/self/fd/{fd}");
        all.two("-object", format!("memory-backend-file,id={OBJECT},mem-path={path},size={window_bytes},share=on"));
        let processors = if self.cpus == 1 { "0".to_owned() } else { format!("0-{}", self.cpus - 1) };
        if self.cxl {
            let decoded = format!("cxl-fmw.0.targets.0=cxl-bridge,cxl-fmw.0.size={window_bytes}");
            all.two("-machine", format!("q35,{},cxl=on,memory-backend=ordinary,{decoded}", accel_words.0));
            all.two("-m", format!("{}B", self.memory));
            all.two("-object", format!("memory-backend-ram,id=labels,size={CXL_LABELS_BYTES}"));
            all.two("-device", "pxb-cxl,id=cxl-bridge,bus=pcie.0,bus_nr=12");
            // Two, of which one stays empty: below a single one Linux takes the bridge to pass all on and leaves its
            // decoder alone, without which QEMU 7.2 drops every access.
            for port in ["0", "1"] {
                let at = format!("port={port},chassis=0,slot={port}");
                all.two("-device", format!("cxl-rp,id=cxl-port{port},bus=cxl-bridge,{at}"));
            }
            all.two("-device", format!("cxl-type3,id=cxl-window,bus=cxl-port0,memdev={OBJECT},lsa=labels"));
        } else {
            all.two("-machine", format!("q35,{}", accel_words.0));
            all.two("-m", format!("{}B", self.memory + window_bytes));
            all.two("-numa", format!("node,nodeid=0,cpus={processors},memdev=ordinary"));
            all.two("-numa", format!("node,nodeid=1,memdev={OBJECT}"));
        }
        for word in ["-nodefaults", "-display", "none", "-serial", "mon:stdio"] {
            all.0.push(word.into());
        }
        if let Some(kernel) = &self.kernel {
            all.two("-kernel", kernel);
            all.0.push("-no-reboot".into());
            let words = ["console=ttyS0 panic=-1", self.append.as_deref().unwrap_or_default()].join(" ");
            all.two("-append", words.trim_end());
        }
        if let Some(initrd) = &self.initrd {
            all.two("-initrd", initrd);
        }
        for disk in &self.disk {
            all.two("-drive", drive(disk));
        }
        all.0.extend(self.more.iter().cloned());
        all.0
    }
}

/// Arguments as they grow.
struct Arguments(Vec<OsString>);

impl Arguments {
    fn two(&mut self, option: &str, value: impl AsRef<OsStr>) {
        self.0.extend([option.into(), value.as_ref().to_owned()]);
    }
}

/// A disk as QEMU wants it described. Its format is said and not guessed from its bytes, which the guest may write.
fn drive(path: &Path) -> OsString {
    let format = if path.extension().is_some_and(|extension| extension == "qcow2") { "qcow2" } else { "raw" };
    let mut words = OsString::from(format!("if=virtio,format={format},file="));
    // A comma in a name is doubled.
    let doubled: Vec<&[u8]> = path.as_os_str().as_encoded_bytes().split(|byte| *byte == b',').collect();
    words.push(OsString::from_vec(doubled.join(&b",,"[..])));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_of_a_disk_comes_from_its_name() {
        assert_eq!(drive(Path::new("/a/b.qcow2")), "if=virtio,format=qcow2,file=/a/b.qcow2");
        assert_eq!(drive(Path::new("a,b,format=raw")), "if=virtio,format=raw,file=a,,b,,format=raw");
    }

    #[test]
    fn a_processor_with_virtualization_is_told_from_others() {
        assert!(has_virtualization("processor\t: 0\nflags\t\t: fpu vmx sse\nbugs\t: x\n"));
        assert!(has_virtualization("flags\t\t: fpu svm\n"));
        // Flags of another line, and names that only begin so.
        assert!(!has_virtualization("flags\t\t: fpu vmxx\nvmx flags\t: vnmi svm\n"));
        assert!(!has_virtualization(""));
    }

    #[test]
    fn what_goes_behind_the_page_tables_is_refused() {
        let refused = |text: &str| check_more(&["-drive".into(), text.into()]).is_err();
        assert!(refused("file=x,cache=none") && refused("vfio-pci,host=0"));
        assert!(!refused("file=x,format=raw"));
    }
}
