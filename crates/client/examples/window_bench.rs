//! What a window costs: `cargo run -p osier-client --example window_bench`. Prints a JSON object a figure, for
//! `make bench`. A word leaves out figures whose name does not have it: `kernel`, `core`, `resident`, `sampled`,
//! `nand`, `scan`, `hits`, `shards`, `in-thread/dirty`.
//!
//! The device is another process, started from this program; NAND takes no time unless a figure says so.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use osier_client::hits::{self, HitFigures};
use osier_client::{FaultMode, HitLatency, Window, WindowOptions};
use osier_device::Profile;
use osier_device::model::ModelConfig;
use osier_device::profile::parse_override;
use osier_device::window::{Fault, Output, Reserve, Window as Core};
use osier_front::window::{Memory, ServeOptions, Server, clock};
use osier_pmr::WaitPolicy;

const PAGE: usize = 4096;
const PAGES: usize = 32 << 10;
const CACHE_PAGES: usize = 8 << 10;
/// Of a device whose cache is larger than the processor's.
const LARGE_PAGES: usize = 64 << 10;
const LARGE_CACHE_PAGES: usize = 56 << 10;
const RESERVE: Reserve = Reserve { frames: 512, batch: 128 };
/// Pages touched for a figure.
const TOUCHES: usize = 100_000;

/// The device's process: socket, and `zero` for NAND that takes no time; with `ahead` it brings in the next eight.
fn serve(socket: &Path, nand: &str) -> Result<(), Box<dyn std::error::Error>> {
    let options = ServeOptions {
        socket: socket.to_owned(),
        name: "bench".to_owned(),
        reserve: RESERVE,
        // Where hits are measured the device has nothing to do, and is not to take a processor for it.
        wait: if nand.contains("large") { WaitPolicy::Hybrid { spin_ns: 50_000 } } else { WaitPolicy::Poll },
        idle_bytes_max: (PAGES * PAGE) as u64,
        seed: 1,
    };
    Server::new(&config(nand)?, &options)?.run(&Arc::new(AtomicBool::new(false)));
    Ok(())
}

fn config(nand: &str) -> Result<ModelConfig, Box<dyn std::error::Error>> {
    let (pages, frames) = if nand.contains("large") { (LARGE_PAGES, LARGE_CACHE_PAGES) } else { (PAGES, CACHE_PAGES) };
    let mut overrides = vec![format!("cache.size={{bytes={}}}", frames * PAGE)];
    // Blocks as small as the device, and room: with two superblocks collection would be all that is measured.
    let small = ["geometry.pages_per_block=16", "ftl.slots_per_die_max=8", "ftl.over_provisioning_permille=400"];
    overrides.extend(small.map(str::to_owned));
    if nand.contains("ahead") {
        let ahead = ["cache.prefetch=\"next-n\"", "cache.prefetch_parameters={degree=8,tagged=1}"];
        overrides.extend(ahead.map(str::to_owned));
    }
    if nand.contains("sampled") {
        overrides.push("window={sample_pages=16,sample_period_us=10000}".to_owned());
    }
    if nand.contains("zero") {
        overrides.extend(["timing.read_ns=[1]", "timing.program_ns=[1]", "timing.erase_ns=1"].map(str::to_owned));
    }
    let overrides: Result<Vec<_>, _> = overrides.iter().map(|text| parse_override(text)).collect();
    let text = Profile::built_in_text("cylon").ok_or("there is no profile cylon")?;
    let profile = Profile::parse_with("cylon", text, &overrides?)?;
    Ok(profile.model(Some((pages * PAGE) as u64))?)
}

/// What the device needs for a fault by itself, with nobody else: the answer, and what prepares for the next one.
fn core() -> Result<(), Box<dyn std::error::Error>> {
    let memory = Memory::new(PAGES as u64, (PAGES * PAGE) as u64)?;
    let mut window = Core::new(&config("zero")?, RESERVE, 1, memory)?;
    let (mapper, mut outputs) = (window.attach()?, Vec::new());
    let (mut answers, mut all) = (Vec::with_capacity(TOUCHES), Vec::with_capacity(TOUCHES));
    for step in 0..2 * PAGES + TOUCHES {
        let (page, is_store) = if step < PAGES { (step, true) } else { (page(step), false) };
        let began = Instant::now();
        let now = clock();
        window.fault(now, Fault { mapper, lane: 0, page: page as u64, is_store, more_max: 0 })?;
        window.poll(now, &mut outputs);
        let answered = began.elapsed();
        loop {
            for output in outputs.drain(..) {
                if let Output::Zap { known, .. } = output {
                    window.zapped(now, mapper, known)?;
                }
            }
            window.poll(clock(), &mut outputs);
            if outputs.is_empty() {
                break;
            }
        }
        if step >= 2 * PAGES {
            answers.push(answered.as_nanos() as u64);
            all.push(began.elapsed().as_nanos() as u64);
        }
    }
    print("core/answer-p50", median(answers) as f64 / 1000.0, "us");
    print("core/all-p50", median(all) as f64 / 1000.0, "us");
    Ok(())
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Misses a second, evictions included, where nobody else had the processors: the fastest tenth of runs of so many.
fn undisturbed(times: &[u64]) -> f64 {
    const MISSES: usize = 512;
    let mut sums: Vec<u64> = times.chunks_exact(MISSES).map(|times| times.iter().sum()).collect();
    sums.sort_unstable();
    MISSES as f64 * 1e9 / sums[sums.len() / 10] as f64
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

/// The same with hits sampled: 16 pages every 10 ms. A while in the one memory and a while in the other, in which many
/// samples are taken; what was drawn while the other was used is used before the clock starts. Where page tables come
/// to lie makes more of a difference than the samples do, and stays as long as the window: so there are several
/// windows, and as many without samples.
fn sampled() -> Result<(), Box<dyn std::error::Error>> {
    const WINDOWS: usize = 5;
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..WINDOWS {
        for (ratios, nand) in ratios.iter_mut().zip(["zero", "zero-sampled"]) {
            let device = Device::start(nand)?;
            let window = Window::open(&device.socket, &WindowOptions::default())?;
            ratios.push(ratio_to_plain(&window)?);
            let (timing, stats) = (window.timing(), window.stats());
            if stats.samples > 0 {
                let used = stats.samples_used as f64 * 100.0 / stats.samples as f64;
                let fault = timing.sampling.quantile_ns(500) as f64 / 1000.0;
                eprintln!("sampled: {used:.1} % of the pages used, a fault {fault:.2} us (p50)");
            }
        }
    }
    eprintln!("sampled: without and with samples {ratios:.3?}");
    let [without, with] = ratios.map(|mut ratios| {
        ratios.sort_unstable_by(f64::total_cmp);
        ratios[WINDOWS / 2]
    });
    print("sampled/without", without, "x");
    print_bar("sampled/ratio", with, "x", (0.95, 1.05));
    Ok(())
}

/// What walks in resident pages of a window take by what they take in the same memory mapped plainly.
fn ratio_to_plain(window: &Window) -> Result<f64, Box<dyn std::error::Error>> {
    const TURNS: usize = 12;
    const WHILE: Duration = Duration::from_millis(100);
    let pages = CACHE_PAGES / 2;
    let bases = [window.as_ptr(), plain_memory(window, pages * PAGE)?];
    for base in bases {
        // SAFETY: the pages lie in the mappings.
        (0..pages).for_each(|page| unsafe { base.add(page * PAGE).write_volatile(1) });
    }
    let mut ratios: Vec<f64> = (0..TURNS)
        .map(|_| {
            let [window, plain] = bases.map(|base| {
                walk(base, pages);
                let (began, mut walks) = (Instant::now(), 0);
                while began.elapsed() < WHILE {
                    walk(base, pages);
                    walks += 1;
                }
                began.elapsed().as_secs_f64() / f64::from(walks)
            });
            window / plain
        })
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    Ok(ratios[TURNS / 2])
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

/// Lines of 64 bytes, each of which names the next one, in an order without a pattern.
struct Chain<'a> {
    window: &'a Window,
    lines: usize,
}

impl Chain<'_> {
    const LINE: usize = 64;

    fn new(window: &Window, bytes: usize) -> Chain<'_> {
        let lines = bytes / Chain::LINE;
        let (mut order, mut random): (Vec<usize>, u64) = ((0..lines).collect(), 1);
        for line in (1..lines).rev() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(line, (random >> 20) as usize % line);
        }
        let words = window.words();
        for (at, line) in order.iter().enumerate() {
            let next = order[(at + 1) % lines] * Chain::LINE;
            words[line * Chain::LINE / 8].store(next as u64, std::sync::atomic::Ordering::Relaxed);
        }
        Chain { window, lines }
    }

    /// The same chain in a window of the same device whose hits have a latency.
    fn in_window<'a>(&self, window: &'a Window) -> Chain<'a> {
        Chain { window, lines: self.lines }
    }

    /// Nanoseconds of a step; with the latency of hits, if the window has one and it is wanted.
    fn walk(&self, steps: usize, is_delayed: bool) -> f64 {
        let words = self.window.words();
        let follow = |steps: usize| {
            (0..steps).fold(0, |at: u64, _| words[at as usize / 8].load(std::sync::atomic::Ordering::Relaxed))
        };
        // Every page is mapped.
        (0..self.lines * Chain::LINE / PAGE).for_each(|page| touch(self.window, page, false));
        if is_delayed {
            hits::enter_thread();
        }
        let began = thread_seconds();
        std::hint::black_box(follow(steps));
        // With what is owed.
        hits::leave_thread();
        (thread_seconds() - began) * 1e9 / steps as f64
    }
}

/// Medians of what `f` says of turn after turn.
fn medians<const N: usize>(turns: usize, mut f: impl FnMut() -> [f64; N]) -> [f64; N] {
    let all: Vec<[f64; N]> = (0..turns).map(|_| f()).collect();
    std::array::from_fn(|figure| {
        let mut values: Vec<f64> = all.iter().map(|turn| turn[figure]).collect();
        values.sort_unstable_by(f64::total_cmp);
        values[turns / 2]
    })
}

/// Hits that take twice and four times what this machine's memory takes: a chase beyond the processor's caches by what
/// it should take, one within them by what it takes without, a loop that has nothing to do with the window, a scan.
fn hits() -> Result<(), Box<dyn std::error::Error>> {
    const TURNS: usize = 5;
    const STEPS: usize = 2_000_000;
    let device = Device::start("zero-large")?;
    let bytes = (LARGE_CACHE_PAGES - 4 * RESERVE.frames as usize) * PAGE;
    let open = |hit_latency| Window::open(&device.socket, &WindowOptions { hit_latency, ..WindowOptions::default() });
    let plain_window = open(None)?;
    let plain = Chain::new(&plain_window, bytes);
    // The first one measures the machine.
    drop(open(Some(HitLatency::Profile))?);
    let start = hits::figures().ok_or("hits have no latency")?;
    hits::leave_thread();
    print("hits/machine", start.machine_start_ns, "ns");
    print("hits/sample-cost", start.sample_cost_ns / 1000.0, "us");
    let misses = |window: &Window| window.stats().misses;
    for times in [2, 4] {
        let hit_ns = (start.machine_start_ns * f64::from(times)) as u32;
        let window = open(Some(HitLatency::Nanoseconds(hit_ns)))?;
        hits::leave_thread();
        let chain = plain.in_window(&window);
        let before = misses(&window);
        let mut machine = Vec::new();
        let [ratio, added, step, with, rest] = medians(TURNS, || {
            let from = hits::figures().unwrap_or_default();
            let injected_ns = || hits::figures().unwrap_or_default().injected_ns;
            // In the same window: where page tables come to lie makes a difference.
            let (one, before) = (chain.walk(STEPS, false), injected_ns());
            let (with, after) = (chain.walk(STEPS, true), injected_ns());
            let without = f64::midpoint(one, chain.walk(STEPS, false));
            let machine_ns = machine_between(&from, &hits::figures().unwrap_or_default());
            machine.push(machine_ns);
            let (more, added) = (f64::from(hit_ns) - machine_ns, (after - before) as f64 / STEPS as f64);
            [with / (without + more), added / more, without, with, with - added]
        });
        eprintln!(
            "hits {times}x: {step:.1} ns a step, {with:.1} with hits of {hit_ns} ns, {rest:.1} of it the program's; memory {machine:.0?} ns"
        );
        eprintln!("hits {times}x: {:?}; {} misses", hits::figures(), misses(&window) - before);
        print(&format!("hits/chase-{times}x/added"), added, "x");
        print_bar(&format!("hits/chase-{times}x/ratio"), ratio, "x", (0.9, 1.1));
    }
    let window = open(Some(HitLatency::Nanoseconds((start.machine_start_ns * 4.0) as u32)))?;
    hits::leave_thread();
    hits_beside(&window, bytes);
    Ok(())
}

/// The rest of these: what does not wait for memory, or for much of it at once.
fn hits_beside(window: &Window, bytes: usize) {
    const TURNS: usize = 5;
    const SMALL: usize = 128 << 10;
    let scan = |window: &Window, is_delayed: bool| {
        let words = window.words();
        if is_delayed {
            hits::enter_thread();
        }
        let began = thread_seconds();
        let sum = |all: u64, word: &std::sync::atomic::AtomicU64| {
            all.wrapping_add(word.load(std::sync::atomic::Ordering::Relaxed))
        };
        (0..5).for_each(|_| _ = std::hint::black_box(words[..bytes / 8].iter().fold(0, sum)));
        hits::leave_thread();
        (5 * bytes) as f64 / (thread_seconds() - began) / 1e9
    };
    let [without, with] = medians(TURNS, || [scan(window, false), scan(window, true)]);
    print("hits/scan/plain", without, "GB/s");
    print("hits/scan/4x", with, "GB/s");
    let small = Chain::new(window, SMALL);
    let [ratio] = medians(TURNS, || [small.walk(100_000_000, true) / small.walk(100_000_000, false)]);
    eprintln!("hits small: {:?}", hits::figures());
    print_bar("hits/small/ratio", ratio, "x", (0.0, 1.1));
    let [ratio] = medians(3 * TURNS, || {
        let without = work();
        hits::enter_thread();
        let with = work();
        hits::leave_thread();
        [with / without]
    });
    print_bar("hits/none/ratio", ratio, "x", (0.0, 1.02));
}

/// What the machine's memory took between two looks.
fn machine_between(from: &HitFigures, to: &HitFigures) -> f64 {
    let count = to.on_window.saturating_sub(from.on_window) as f64;
    let sum = |figures: &HitFigures| figures.machine_ns * figures.on_window as f64;
    if count > 0.0 { (sum(to) - sum(from)) / count } else { to.machine_start_ns }
}

/// Seconds of this thread on a processor: delays count, and waiting for a processor does not.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live, writable value.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The seconds of a loop without memory.
fn work() -> f64 {
    let began = thread_seconds();
    std::hint::black_box((0..200_000_000_u64).fold(1_u64, |all, one| (all ^ one).rotate_left(5).wrapping_mul(3)));
    thread_seconds() - began
}

/// A scan beyond the cache of pages that were all written, with the next eight brought in ahead.
fn scan() -> Result<(), Box<dyn std::error::Error>> {
    /// Pages whose time is taken together.
    const PART: usize = 512;
    for nand in ["zero-ahead", "cylon-ahead"] {
        let device = Device::start(nand)?;
        let window = Window::open(&device.socket, &WindowOptions::default())?;
        (0..PAGES).for_each(|page| touch(&window, page, true));
        let mut seconds = Vec::new();
        for part in (0..5 * PAGES / PART).map(|part| part % (PAGES / PART) * PART) {
            let began = Instant::now();
            // SAFETY: bytes of the window, which nobody stores to meanwhile.
            let words = unsafe {
                let first = window.as_ptr().add(part * PAGE).cast::<u64>();
                std::slice::from_raw_parts(first, PART * PAGE / 8)
            };
            std::hint::black_box(words.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)));
            seconds.push(began.elapsed().as_secs_f64());
        }
        let all = seconds.iter().sum::<f64>();
        print(&format!("scan/{nand}-mean"), (5 * PAGES * PAGE) as f64 / all / 1e9, "GB/s");
        seconds.sort_unstable_by(f64::total_cmp);
        // The fastest tenth: where nobody else had the processors.
        let rate = (PART * PAGE) as f64 / seconds[seconds.len() / 10] / 1e9;
        if nand == "zero-ahead" {
            print_bar("scan/zero-ahead", rate, "GB/s", (1.0, f64::MAX));
        } else {
            print("scan/cylon-ahead", rate, "GB/s");
        }
        eprintln!("scan {nand}: {:?}", window.stats());
    }
    Ok(())
}

/// What the kernel alone needs: faults resolved in the thread that faulted, with the bytes there already and no device.
/// Most of each figure above is this.
mod kernel {
    use std::os::fd::RawFd;
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::time::Instant;

    use super::{PAGE, PAGES, TOUCHES, median, page, undisturbed};

    static FD: AtomicI32 = AtomicI32::new(-1);
    /// Pages that are unmapped together.
    const BATCH: usize = 28;

    fn call<const WORDS: usize>(number: u8, words: &mut [u64; WORDS]) -> bool {
        let request = 3 << 30 | ((WORDS * 8) as libc::c_ulong) << 16 | 0xaa << 8 | libc::c_ulong::from(number);
        // SAFETY: the argument is as large as the request says, and lives.
        unsafe { libc::ioctl(FD.load(Ordering::Relaxed), request, words.as_mut_ptr()) == 0 }
    }

    extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid siginfo for SIGBUS, which has an address.
        let address = unsafe { (*info).si_addr() } as u64 & !(PAGE as u64 - 1);
        const WRITE_PROTECTED: u64 = 1 << 1;
        call(0x07, &mut [address, PAGE as u64, WRITE_PROTECTED, 0]);
    }

    /// Maps memory whose pages are there, with faults as signals.
    fn map() -> Option<*mut u8> {
        const SIGBUS_MINOR_WRITES: u64 = 1 << 7 | 1 << 10 | 1 << 12 | 1 << 15;
        const MINOR_AND_WRITES: u64 = 1 << 2 | 1 << 1;
        let bytes = PAGES * PAGE;
        // SAFETY: plain calls; the handler does what a handler may, and the memory stays until the program ends.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) as RawFd;
            FD.store(fd, Ordering::Relaxed);
            let memory = libc::memfd_create(c"bench".as_ptr(), 0);
            let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::ftruncate(memory, bytes as libc::off_t);
            let filled = libc::mmap(std::ptr::null_mut(), bytes, protection, shared, memory, 0);
            let base = libc::mmap(std::ptr::null_mut(), bytes, protection, shared, memory, 0);
            if filled == libc::MAP_FAILED || base == libc::MAP_FAILED {
                return None;
            }
            libc::memset(filled, 1, bytes);
            libc::munmap(filled, bytes);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
            let agreed = call(0x3f, &mut [0xaa, SIGBUS_MINOR_WRITES, 0])
                && call(0x00, &mut [base as u64, bytes as u64, MINOR_AND_WRITES, 0]);
            agreed.then_some(base.cast())
        }
    }

    /// The median of a fault, in microseconds, and faults a second with each page unmapped again, undisturbed.
    pub fn alone() -> Option<(f64, f64)> {
        let base = map()?;
        let mut times: Vec<u64> = Vec::with_capacity(TOUCHES);
        for step in 0..TOUCHES {
            let one = Instant::now();
            // SAFETY: the page lies in the mapping.
            unsafe { base.add(page(step) * PAGE).read_volatile() };
            if step % BATCH == BATCH - 1 {
                unmap(base, step);
            }
            times.push(one.elapsed().as_nanos() as u64);
        }
        let fastest = undisturbed(&times);
        Some((median(times) as f64 / 1000.0, fastest))
    }

    fn unmap(base: *mut u8, last: usize) {
        // SAFETY: the pages lie in the mapping.
        let part = |step| libc::iovec { iov_base: unsafe { base.add(page(step) * PAGE) }.cast(), iov_len: PAGE };
        let parts: [libc::iovec; BATCH] = std::array::from_fn(|back| part(last - back));
        // SAFETY: the parts live and lie in the mapping, which is this program's own.
        unsafe {
            let own = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
            libc::syscall(libc::SYS_process_madvise, own, parts.as_ptr(), BATCH, libc::MADV_DONTNEED, 0);
            libc::close(own as RawFd);
        }
    }
}

fn kernel_alone() -> Result<(), Box<dyn std::error::Error>> {
    // In a process of its own: its handler of SIGBUS is not the window's.
    let output = Command::new(std::env::current_exe()?).arg("kernel-alone").output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut figures = text.split_whitespace().map(str::parse::<f64>);
    let (Some(Ok(p50)), Some(Ok(rate))) = (figures.next(), figures.next()) else {
        return Err(format!("the kernel alone was not measured: {text}").into());
    };
    print("kernel/p50", p50, "us");
    print("kernel/misses-undisturbed", rate, "1/s");
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
    let fastest = undisturbed(&times);
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
    print(&format!("{name}/{kind}/misses-undisturbed"), fastest, "1/s");
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

/// Threads that fault at the same time in a window of several parts: misses a second of all, and how often for each the
/// program's threads gave the processor away.
fn shards(mode: FaultMode, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    for (threads, shards) in [2, 4].into_iter().flat_map(|threads| [1, 2, 4].map(|shards| (threads, shards))) {
        let device = Device::start("zero")?;
        let window = Window::open(&device.socket, &WindowOptions { mode, shards, ..WindowOptions::default() })?;
        let touch = |thread: usize, from: usize, count: usize| {
            // Each thread has pages of its own, in every part.
            (from..from + count).for_each(|step| {
                let at = window.as_ptr() as usize + page(step * threads + thread) * PAGE;
                // SAFETY: the word is in the window, and no other thread's.
                unsafe { (at as *mut u64).read_volatile() };
            });
        };
        let all = |from: usize, count: usize| {
            let touch = &touch;
            std::thread::scope(|scope| {
                (0..threads).for_each(|thread| _ = scope.spawn(move || touch(thread, from, count)))
            });
        };
        all(0, PAGES / threads);
        let (began, before, switched) = (Instant::now(), window.timing().latency.count(), switches());
        all(PAGES / threads, TOUCHES / 4 / threads);
        let misses = (window.timing().latency.count() - before) as f64;
        let figure = |what| format!("shards/{name}/{threads}-threads/{shards}-descriptors/{what}");
        print(&figure("misses"), misses / began.elapsed().as_secs_f64(), "1/s");
        print(&figure("switches-per-miss"), (switches() - switched) as f64 / misses, "");
    }
    Ok(())
}

/// How often this process's threads gave the processor away, or had it taken away.
fn switches() -> u64 {
    // SAFETY: an all-zero value of that plain struct is valid, and it lives.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        (usage.ru_nvcsw + usage.ru_nivcsw) as u64
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, word, socket, nand] = &arguments[..]
        && word == "device"
    {
        return serve(Path::new(socket), nand);
    }
    if arguments.get(1).is_some_and(|word| word == "kernel-alone") {
        let (p50, rate) = kernel::alone().ok_or("userfaultfd does not do what is measured")?;
        println!("{p50} {rate}");
        return Ok(());
    }
    if arguments.len() == 1 || arguments[1] == "kernel" {
        kernel_alone()?;
    }
    if arguments.len() == 1 || arguments[1] == "core" {
        core()?;
    }
    if arguments.len() == 1 || arguments[1] == "scan" {
        scan()?;
    }
    if arguments.len() == 1 || arguments[1] == "resident" {
        resident()?;
    }
    if arguments.len() == 1 || arguments[1] == "hits" {
        hits()?;
    }
    if arguments.len() == 1 || arguments[1] == "sampled" {
        sampled()?;
    }
    if arguments.len() == 1 || arguments[1] == "nand" {
        timed()?;
    }
    let modes =
        [(FaultMode::InThread, "in-thread"), (FaultMode::Spinning, "spinning"), (FaultMode::Sleeping, "sleeping")];
    for (mode, name) in modes {
        if arguments.get(1).is_none_or(|filter| format!("shards/{name}").contains(filter)) {
            shards(mode, name)?;
        }
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
