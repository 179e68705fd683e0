//! What the dashboard shows, and `/api/status` says: plain figures, whoever finds them.

use serde::Serialize;
use serde_json::{Map, Value};

/// A device as somebody who looks sees it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// Its name.
    pub device: String,
    /// What kind of device it models.
    pub profile: String,
    /// Bytes that clients may write.
    pub capacity_bytes: u64,
    /// What it does; nothing while it is not up.
    pub live: Option<Live>,
}

/// A device that is up. Counts only rise while it stays so; times are of the monotonic clock.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Live {
    /// When, in nanoseconds.
    pub at_ns: u64,
    /// Both domains serve; else one has died and is being recovered.
    pub serves: bool,
    /// Modelled temperature.
    pub temperature_celsius: f64,
    /// What throttling leaves of the speed, in thousandths.
    pub speed_permille: u64,
    /// Busy share of the host's domain, then of the device's modelled cores, in thousandths.
    pub busy_permille: [u64; 2],
    /// Requests in the device's domain.
    pub pending: u64,
    /// Domains that died and were recovered since the device came up.
    pub deaths: u64,
    /// The host's domain, then the device's.
    pub domains: [DomainProcess; 2],
    /// By kind.
    pub traffic: Vec<Traffic>,
    /// Upper bounds of the classes of latency, in nanoseconds; one more class has what took longer.
    pub latency_bounds_ns: Vec<u64>,
    /// In the order of their numbers.
    pub actors: Vec<Actor>,
    /// Migrations since the device came up.
    pub moves: u64,
    /// The last of them, the newest first.
    pub recent_moves: Vec<Move>,
    /// Who is attached: front ends and programs.
    pub clients: Vec<Client>,
    /// The dies of the flash.
    pub dies: Dies,
    /// The device core's own figures, by name.
    pub figures: Map<String, Value>,
}

/// A domain's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DomainProcess {
    /// Its process.
    pub pid: u64,
    /// Memory of its own, without the shared region and the media.
    pub resident_bytes: Option<u64>,
}

/// What clients asked for of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// `read`, `write`, `deallocate` or `flush`.
    pub kind: &'static str,
    /// Commands that ended.
    pub commands: u64,
    /// Those that failed.
    pub failed: u64,
    /// Bytes of those that did not.
    pub bytes: u64,
    /// Time that they took, all together.
    pub time_ns: u64,
    /// Commands in each class of latency.
    pub classes: Vec<u64>,
}

/// An actor. Pairs are of host and device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Actor {
    /// Pipeline and stage.
    pub name: String,
    /// `host`, `device` or `moving`.
    pub place: String,
    /// Input bytes.
    pub bytes: [u64; 2],
    /// Time: of the processor on the host, of the model on the device.
    pub busy_ns: [u64; 2],
    /// Calls that failed their request.
    pub failed: u64,
}

/// A migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Move {
    /// Which actor.
    pub actor: String,
    /// `host` or `device`.
    pub to: &'static str,
    /// When it was active there, in nanoseconds.
    pub at_ns: u64,
    /// From when its source served no more until it was active.
    pub took_ns: u64,
    /// In the middle of a request.
    pub mid_request: bool,
}

/// Somebody who has a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Client {
    /// What it calls itself.
    pub name: String,
    /// Commands that ended.
    pub commands: u64,
    /// Bytes of their data.
    pub bytes: u64,
}

/// How much the dies had to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Dies {
    /// Dies of a channel.
    pub per_channel: u64,
    /// When this was told, in nanoseconds.
    pub at_ns: u64,
    /// Nanoseconds of work given to each so far, channel after channel.
    pub busy_ns: Vec<u64>,
}
