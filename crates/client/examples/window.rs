//! A device and a program that keeps a counter in each of its pages, ten times as many as the device has DRAM for.
//!
//! `cargo run -p osier-client --example window -- serve SOCKET` in one terminal, `... -- count SOCKET` in others.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use osier_client::{Window, WindowOptions};
use osier_device::Profile;
use osier_device::profile::parse_override;
use osier_device::window::Reserve;
use osier_front::window::{ServeOptions, Server};
use osier_pmr::WaitPolicy;

const BYTES: u64 = 256 << 20;

fn serve(socket: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let text = Profile::built_in_text("cylon").ok_or("there is no profile cylon")?;
    // Blocks as small as the device, and room: with a few superblocks collection would do most of the work.
    let overrides = ["cache.size={permille=100}", "geometry.pages_per_block=16", "ftl.over_provisioning_permille=200"];
    let overrides = overrides.map(parse_override).into_iter().collect::<Result<Vec<_>, _>>()?;
    let config = Profile::parse_with("cylon", text, &overrides)?.model(Some(BYTES))?;
    let options = ServeOptions {
        socket: socket.to_owned(),
        name: "cylon".to_owned(),
        reserve: Reserve { frames: 128, batch: 32 },
        wait: WaitPolicy::HYBRID,
        idle_bytes_max: BYTES / 10,
        seed: 1,
    };
    println!("serving {} MiB at {}", BYTES >> 20, socket.display());
    Server::new(&config, &options)?.run(&Arc::new(AtomicBool::new(false)));
    Ok(())
}

fn count(socket: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let window = Window::open(socket, &WindowOptions::default())?;
    let report = window.pin(0..16)?;
    println!("{} pages of {} are pinned", report.done, window.device());
    for page in 0..window.len() / 4096 {
        // SAFETY: the word lies in the window; who else counts may lose an addition of ours.
        unsafe {
            let word = window.as_ptr().add(page * 4096).cast::<u64>();
            word.write_volatile(word.read_volatile() + 1);
        }
    }
    window.unpin(0..16)?;
    println!("{:#?}", window.stats());
    let timing = window.timing();
    for (name, histogram) in [("latency", &timing.latency), ("lateness", &timing.lateness)] {
        let [half, most] = [500, 990].map(|permille| histogram.quantile_ns(permille) as f64 / 1000.0);
        println!("{name}: p50 {half:.1} us, p99 {most:.1} us");
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let done = match &arguments[..] {
        [_, word, socket] if word == "serve" => serve(socket.as_ref()),
        [_, word, socket] if word == "count" => count(socket.as_ref()),
        _ => Err("usage: window serve SOCKET, or window count SOCKET".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("window: {error}");
            ExitCode::FAILURE
        }
    }
}
