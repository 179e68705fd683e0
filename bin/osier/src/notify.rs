//! What a service manager is told (sd_notify(3)): that the device is up, and that it is going down.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The device and its front ends are up.
pub fn ready() {
    tell("READY=1");
}

/// It was asked to end, and does so in order.
pub fn stopping() {
    tell("STOPPING=1");
}

/// Nothing where nobody asked to be told. A manager that cannot be told goes by its own time-out, so that is logged and
/// no more.
fn tell(what: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path)),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, socket = %place.to_string_lossy(), "the service manager could not be told: {what}");
    }
}
