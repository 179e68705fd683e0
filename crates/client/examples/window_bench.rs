//! What a window costs: `cargo run -p osier-client --example window_bench`. Prints a JSON object a figure, for
//! `make bench`. A word leaves out figures whose name does not have it: `resident`, `nand`, `in-thread/dirty`.
//!
//! The device is another process, started from this program; NAND takes no time unless a figure says so.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use osier_client::{FaultMode, Window, WindowOptions};
use osier_device::Profile;
use osier_device::profile::parse_override;
use osier_device::window::Reserve;
use osier_front::window::{ServeOptions, Server};
use osier_pmr::WaitPolicy;

const PAGE: usize = 4096;
const PAGES: usize = 32 << 10;
const CACHE_PAGES: usize = 8 << 10;
/// Pages touched for a figure.
const TOUCHES: usize = 100_000;

/// The device's process: socket, and `zero` for NAND that takes no time.
fn serve(socket: &Path, nand: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut overrides = vec![format!("cache.size={{bytes={}}}", CACHE_PAGES * PAGE)];
    // Blocks as small as the device, and room: with two superblocks collection would be all that is measured.
    let small = ["geometry.pages_per_block=16", "ftl.slots_per_die_max=8", "ftl.over_provisioning_permille=400"];
    overrides.extend(small.map(str::to_owned));
    if nand == "zero" {
        overrides.extend(["timing.read_ns=[1]", "timing.program_ns=[1]", "timing.erase_ns=1"].map(str::to_owned));
    }
    let overrides: Result<Vec<_>, _> = overrides.iter().map(|text| parse_override(text)).collect();
    let text = Profile::built_in_text("cylon").ok_or("there is no profile cylon")?;
    let profile = Profile::parse_with("cylon", text, &overrides?)?;
    let config = profile.model(Some((PAGES * PAGE) as u64))?;
    let options = ServeOptions {
        socket: socket.to_owned(),
        name: "bench".to_owned(),
        reserve: Reserve { frames: 512, batch: 128 },
        wait: WaitPolicy::Poll,
        idle_bytes_max: (PAGES * PAGE) as u64,
        seed: 1,
    };
    Server::new(&config, &options)?.run(&Arc::new(AtomicBool::new(false)));
    Ok(())
}

struct Device {
    process: Child,
    socket: PathBuf,
}

impl Device {
    fn start(nand: &str) -> Result<Device, Box<dyn std::error::Error>> {
        let socket = std::env::temp_dir().join(format!("osier-window-bench-{}.sock", std::process::id()));
        let own = std::env::current_exe()?;
        let mut command = Command::new(own);
        // The flash is random accesses to much memory: huge pages, which glibc asks for when told so.
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        let process = command.arg("device").arg(&socket).arg(nand).stdin(Stdio::null()).spawn()?;
        let began = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Device { process, socket })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A walk over all pages in an order without a pattern.
fn page(step: usize) -> usize {
    step.wrapping_mul(0x9e37_79b1) % PAGES
}

fn touch(window: &Window, page: usize, store: bool) {
    // SAFETY: the page lies in the window, which nobody else uses.
    unsafe {
        let at = window.as_ptr().add(page * PAGE);
        if store {
            at.write_volatile(page as u8);
        } else {
            at.read_volatile();
        }
    }
}

fn print(name: &str, value: f64, unit: &str) {
    println!("{{\"name\": \"window/{name}\", \"value\": {value:.3}, \"unit\": \"{unit}\"}}");
}

/// A figure with a bar: most, or least.
fn print_bar(name: &str, value: f64, unit: &str, bar: (f64, f64)) {
    let pass = (bar.0..=bar.1).contains(&value);
    let bar = if bar.1 == f64::MAX { format!(">= {}", bar.0) } else { format!("{} to {}", bar.0, bar.1) };
    println!(
        "{{\"name\": \"window/{name}\", \"value\": {value:.3}, \"unit\": \"{unit}\", \"bar\": \"{bar}\", \"pass\": {pass}}}"
    );
}

/// The same accesses to resident pages of a window and to the same memory mapped plainly. Two of each, because of one
/// alone the processor keeps what it needs to translate its addresses; in an order that is drawn, because what a walk
/// finds in the caches depends on the one before.
fn resident() -> Result<(), Box<dyn std::error::Error>> {
    const WALKS: usize = 4_000;
    let device = Device::start("zero")?;
    let pages = CACHE_PAGES / 2;
    let open = || Window::open(&device.socket, &WindowOptions::default());
    let windows = [open()?, open()?];
    let mut bases: Vec<*mut u8> = windows.iter().map(Window::as_ptr).collect();
    for window in &windows {
        bases.push(plain_memory(window, pages * PAGE)?);
    }
    for base in &bases {
        // All pages are mapped, for stores, before anything is measured.
        // SAFETY: the pages lie in the mappings.
        (0..pages).for_each(|page| unsafe { base.add(page * PAGE).write_volatile(1) });
    }
    let (mut times, mut random) = ([Vec::new(), Vec::new()], 1_u64);
    for _ in 0..WALKS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let which = (random >> 40) as usize % bases.len();
        times[which / 2].push(walk(bases[which], pages));
    }
    let [window, plain] = times.map(|mut times| {
        times.sort_unstable_by(f64::total_cmp);
        times[times.len() / 2]
    });
    print_bar("resident/ratio", window / plain, "x", (0.97, 1.03));
    Ok(())
}

/// The same memory mapped once more, without a device: the very same pages, so that where they lie makes no difference.
fn plain_memory(window: &Window, bytes: usize) -> Result<*mut u8, std::io::Error> {
    // SAFETY: of a shared mapping that is moved with no bytes, the kernel makes a second one; it is never unmapped.
    let base = unsafe { libc::mremap(window.as_ptr().cast(), 0, bytes, libc::MREMAP_MAYMOVE) };
    if base == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(base.cast())
}

/// Loads and stores in every page, in an order without a pattern; the seconds that it took. One copy of the code serves
/// both memories: two would differ in where they lie.
#[inline(never)]
fn walk(base: *mut u8, pages: usize) -> f64 {
    let began = Instant::now();
    for step in 0..pages * 8 {
        let place = step.wrapping_mul(0x9e37_79b1) % (pages * 64);
        // SAFETY: the word lies in the pages, which nobody else uses.
        unsafe {
            let word = base.add(place * 64).cast::<u64>();
            word.write_volatile(word.read_volatile() + 1);
        }
    }
    began.elapsed().as_secs_f64()
}

/// With NAND's times: how late pages are, against what the model said.
fn timed() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::start("cylon")?;
    let window = Window::open(&device.socket, &WindowOptions::default())?;
    (0..PAGES).for_each(|page| touch(&window, page, true));
    // A window of its own, so that what was never written, and takes no time, is not counted.
    drop(window);
    let window = Window::open(&device.socket, &WindowOptions::default())?;
    (0..TOUCHES / 5).for_each(|step| touch(&window, page(step), false));
    let timing = window.timing();
    for (name, permille) in [("p50", 500), ("p99", 990)] {
        print(&format!("nand/latency-{name}"), timing.latency.quantile_ns(permille) as f64 / 1000.0, "us");
        print(&format!("nand/late-{name}"), timing.lateness.quantile_ns(permille) as f64 / 1000.0, "us");
    }
    Ok(())
}

/// Misses in a steady state, one thread, no prefetch: latency and rate.
fn misses(mode: FaultMode, name: &str, store: bool) -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::start("zero")?;
    let window = Window::open(&device.socket, &WindowOptions { mode, ..WindowOptions::default() })?;
    // Every page has been written, so that each miss brings bytes from the flash.
    (0..PAGES).for_each(|page| touch(&window, page, true));
    (0..PAGES).for_each(|step| touch(&window, page(step), store));
    let mut times: Vec<u64> = Vec::with_capacity(TOUCHES);
    let began = Instant::now();
    for step in 0..TOUCHES {
        let one = Instant::now();
        touch(&window, page(step), store);
        times.push(one.elapsed().as_nanos() as u64);
    }
    let seconds = began.elapsed().as_secs_f64();
    times.sort_unstable();
    let kind = if store { "dirty" } else { "clean" };
    let rate_min = if store { 95_000.0 } else { 110_000.0 };
    let p50_max = if mode == FaultMode::InThread { 6.0 } else { 11.0 };
    let (rate, p50) = (TOUCHES as f64 / seconds, times[TOUCHES / 2] as f64 / 1000.0);
    if mode == FaultMode::InThread {
        print_bar(&format!("{name}/{kind}/misses"), rate, "1/s", (rate_min, f64::MAX));
    } else {
        print(&format!("{name}/{kind}/misses"), rate, "1/s");
    }
    if mode == FaultMode::Sleeping {
        print(&format!("{name}/{kind}/p50"), p50, "us");
    } else {
        print_bar(&format!("{name}/{kind}/p50"), p50, "us", (0.0, p50_max));
    }
    print(&format!("{name}/{kind}/p99"), times[TOUCHES * 99 / 100] as f64 / 1000.0, "us");
    let timing = window.timing();
    let parts = [
        ("latency", &timing.latency),
        ("late", &timing.lateness),
        ("asking", &timing.asking),
        ("device", &timing.device),
        ("mapping", &timing.mapping),
    ];
    for (part, histogram) in parts {
        print(&format!("{name}/{kind}/{part}-p50"), histogram.quantile_ns(500) as f64 / 1000.0, "us");
    }
    eprintln!("{name} {kind}: {:?}", window.stats());
    Ok(())
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, word, socket, nand] = &arguments[..]
        && word == "device"
    {
        return serve(Path::new(socket), nand);
    }
    if arguments.len() == 1 || arguments[1] == "resident" {
        resident()?;
    }
    if arguments.len() == 1 || arguments[1] == "nand" {
        timed()?;
    }
    let modes =
        [(FaultMode::InThread, "in-thread"), (FaultMode::Spinning, "spinning"), (FaultMode::Sleeping, "sleeping")];
    for (mode, name) in modes {
        for (kind, store) in [("clean", false), ("dirty", true)] {
            if arguments.get(1).is_none_or(|filter| format!("{name}/{kind}").contains(filter)) {
                misses(mode, name, store)?;
            }
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("window_bench: {error}");
            ExitCode::FAILURE
        }
    }
}
