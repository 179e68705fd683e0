//! Mounts the device that is served at a socket, to measure the adapter without the command around it:
//! `fuse_mount SOCKET DIR [THREADS]`. `memory:MIB` instead of a socket is memory, so that the device costs nothing.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use osier_front::fuse::{DeviceDisk, Mount, MountConfig};
use osier_fs::{Blocks, FileSystem, MemoryBlocks, MountError, Time};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, place, rest @ ..] = &arguments[..] else {
        return Err("fuse_mount SOCKET|memory:MIB DIR [THREADS]".into());
    };
    let threads = rest.first().map_or(Ok(4), |count| count.parse())?;
    let disk: Arc<dyn Blocks> = match device.strip_prefix("memory:") {
        Some(mib) => Arc::new(MemoryBlocks::new(mib.parse::<usize>()? * 256)),
        None => Arc::new(DeviceDisk::attach(Path::new(device), threads + 1)?),
    };
    let system = match FileSystem::mount(Arc::clone(&disk)) {
        Err(MountError::NoFileSystem) => FileSystem::format(disk, [0; 16], (0, 0), Time::default())?,
        mounted => mounted?,
    };
    let config = MountConfig { name: "osier".to_owned(), threads, commit_interval: Duration::from_secs(5) };
    let mount = Mount::start(Arc::new(system), Path::new(place), &config)?;
    while !mount.has_ended() {
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(mount.end(|| {})?)
}
