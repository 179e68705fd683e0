//! Serves memory over NBD, to measure what the server itself costs: `nbd_memory MEBIBYTES SOCKET` or
//! `nbd_memory MEBIBYTES ADDRESS:PORT`. Ends when its input ends.

#[expect(clippy::unwrap_used, reason = "it is the tests'")]
#[path = "../tests/common/memory.rs"]
mod memory;
use osier_front::volume;

use std::io::Read;
use std::sync::Arc;

use memory::{Disk, MemoryExport};
use osier_front::nbd::{Config, Server};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mebibytes, address] = arguments.as_slice() else { return Err("usage: nbd_memory MEBIBYTES WHERE".into()) };
    let disk = Arc::new(Disk::new(mebibytes.parse::<u64>()? << 8));
    let config = match address.parse() {
        Ok(tcp) => Config { tcp: Some(tcp), ..Config::default() },
        Err(_) => Config { unix: Some(address.into()), ..Config::default() },
    };
    let server = Server::start(vec![Arc::new(MemoryExport::new("memory", &disk))], config)?;
    println!("{server:?}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.stop();
    Ok(())
}
