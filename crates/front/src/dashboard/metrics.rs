//! The figures in the text format that Prometheus scrapes, version 0.0.4.
//!
//! Counters end in `_total`, times are in seconds, shares are from 0 to 1, as Prometheus' naming practice asks.

use std::fmt::{Display, Write as _};

use super::status::{Live, Status};

/// The media type of the format.
pub const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The figures of a device.
pub fn render(status: &Status) -> String {
    let mut page = Page { text: String::new(), device: label("device", &status.device) };
    page.family("osier_up", "gauge", "Whether the device is up and both of its domains serve.");
    page.sample("osier_up", "", u8::from(status.live.as_ref().is_some_and(|live| live.serves)));
    page.family("osier_capacity_bytes", "gauge", "Bytes that clients may write.");
    page.sample("osier_capacity_bytes", "", status.capacity_bytes);
    if let Some(live) = &status.live {
        page.condition(live);
        page.traffic(live);
        page.actors(live);
        page.flash(live);
    }
    page.text
}

struct Page {
    text: String,
    /// The label that every sample has.
    device: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // To write to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// `labels` begin with a comma, or are none.
    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.text, "{name}{{{}{labels}}} {value}", self.device);
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    fn condition(&mut self, live: &Live) {
        self.single("osier_temperature_celsius", "gauge", "Modelled temperature.", live.temperature_celsius);
        let speed = ratio(live.speed_permille);
        self.single("osier_speed_ratio", "gauge", "What throttling leaves of the speed.", speed);
        self.family("osier_busy_ratio", "gauge", "Busy share of the host's domain and of the device's modelled cores.");
        for (domain, permille) in DOMAINS.iter().zip(live.busy_permille) {
            self.sample("osier_busy_ratio", &format!(",domain=\"{domain}\""), ratio(permille));
        }
        self.family("osier_resident_bytes", "gauge", "Memory of a domain's process, without the shared region.");
        for (domain, process) in DOMAINS.iter().zip(live.domains) {
            if let Some(bytes) = process.resident_bytes {
                self.sample("osier_resident_bytes", &format!(",domain=\"{domain}\""), bytes);
            }
        }
        self.single("osier_requests_pending", "gauge", "Requests in the device's domain.", live.pending);
        let help = "Domains that died and were recovered.";
        self.single("osier_domain_deaths_total", "counter", help, live.deaths);
        self.single("osier_clients", "gauge", "Clients that are attached.", live.clients.len());
        self.single("osier_moves_total", "counter", "Migrations of actors.", live.moves);
    }

    fn traffic(&mut self, live: &Live) {
        let counters = [
            ("osier_commands_total", "Commands that ended, failed ones too."),
            ("osier_commands_failed_total", "Commands that failed."),
            ("osier_bytes_total", "Bytes of data of commands that did not fail."),
        ];
        for (at, (name, help)) in counters.into_iter().enumerate() {
            self.family(name, "counter", help);
            for each in &live.traffic {
                let value = [each.commands, each.failed, each.bytes][at];
                self.sample(name, &format!(",kind=\"{}\"", each.kind), value);
            }
        }
        let name = "osier_command_seconds";
        self.family(name, "histogram", "From a command's fetch to its completion.");
        for each in &live.traffic {
            let mut below = 0;
            let bounds = live.latency_bounds_ns.iter().map(|bound| seconds(*bound).to_string());
            for (bound, class) in bounds.chain(["+Inf".to_owned()]).zip(&each.classes) {
                below += class;
                self.sample(&format!("{name}_bucket"), &format!(",kind=\"{}\",le=\"{bound}\"", each.kind), below);
            }
            self.sample(&format!("{name}_sum"), &format!(",kind=\"{}\"", each.kind), seconds(each.time_ns));
            // As many as the classes have: a command may have ended since they were read.
            self.sample(&format!("{name}_count"), &format!(",kind=\"{}\"", each.kind), below);
        }
    }

    fn actors(&mut self, live: &Live) {
        self.family("osier_actor_on_device", "gauge", "1 where the actor is on the device, 0 on the host or moving.");
        for actor in &live.actors {
            let on_device = u8::from(actor.place == "device");
            self.sample("osier_actor_on_device", &label(",actor", &actor.name), on_device);
        }
        self.family("osier_actor_bytes_total", "counter", "Input bytes of an actor.");
        for (actor, at, domain) in each_side(live) {
            let labels = format!("{},domain=\"{domain}\"", label(",actor", &actor.name));
            self.sample("osier_actor_bytes_total", &labels, actor.bytes[at]);
        }
        let help = "Time of an actor: of the processor on the host, of the model on the device.";
        self.family("osier_actor_busy_seconds_total", "counter", help);
        for (actor, at, domain) in each_side(live) {
            let labels = format!("{},domain=\"{domain}\"", label(",actor", &actor.name));
            self.sample("osier_actor_busy_seconds_total", &labels, seconds(actor.busy_ns[at]));
        }
        self.family("osier_actor_failed_total", "counter", "Calls that failed their request.");
        for actor in &live.actors {
            self.sample("osier_actor_failed_total", &label(",actor", &actor.name), actor.failed);
        }
    }

    /// The core's figures are many and have names and numbers of their own: each is a metric as it stands.
    fn flash(&mut self, live: &Live) {
        self.family("osier_die_busy_seconds_total", "counter", "Work given to a die.");
        let per_channel = live.dies.per_channel.max(1);
        for (die, busy) in (0_u64..).zip(&live.dies.busy_ns) {
            let labels = format!(",channel=\"{}\",die=\"{}\"", die / per_channel, die % per_channel);
            self.sample("osier_die_busy_seconds_total", &labels, seconds(*busy));
        }
        for (name, value) in &live.figures {
            match value {
                serde_json::Value::Number(value) => self.figure(&format!("osier_device_{name}"), value),
                serde_json::Value::Object(inner) => {
                    for (inner, value) in inner.iter().filter(|(_, value)| value.is_number()) {
                        self.figure(&format!("osier_{name}_{inner}"), value);
                    }
                }
                _ => {}
            }
        }
    }

    fn figure(&mut self, name: &str, value: impl Display) {
        let _ = writeln!(self.text, "# TYPE {name} untyped");
        self.sample(name, "", value);
    }
}

const DOMAINS: [&str; 2] = ["host", "device"];

fn each_side(live: &Live) -> impl Iterator<Item = (&super::status::Actor, usize, &'static str)> {
    live.actors.iter().flat_map(|actor| DOMAINS.into_iter().enumerate().map(move |(at, domain)| (actor, at, domain)))
}

fn ratio(permille: u64) -> f64 {
    permille as f64 / 1000.0
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A label with its value escaped.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}
