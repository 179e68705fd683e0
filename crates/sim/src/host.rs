//! The host's cores, as the experiments in virtual time model them.

use osier_device::Engine;
use serde::Serialize;

use crate::Nanos;

/// What is assumed of the host. Rates are those of one core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostParams {
    /// Cores.
    pub cores: u32,
    /// Share of all cores that other work takes, in permille.
    pub other_permille: u32,
    /// Fixed cost of one call of a stage in nanoseconds.
    pub call_ns: u64,
    /// LZ4 compression.
    pub lz4_bytes_per_second: u64,
    /// AES-256 authenticated encryption.
    pub aes_bytes_per_second: u64,
    /// CRC-32C.
    pub crc32c_bytes_per_second: u64,
    /// Plain WebAssembly.
    pub wasm_bytes_per_second: u64,
}

/// Where each figure of [`HostParams::default`] comes from: what, and its source.
pub const HOST_SOURCES: &[(&str, &str)] = &[
    ("16 cores", "assumed: one socket of a storage server"),
    ("100 permille of other work", "assumed: an otherwise quiet host"),
    ("100 ns a call", "measured: call of a WebAssembly actor and its intrinsics, rounded up"),
    ("LZ4 0.55 GB/s", "measured: lz4_flex, safe, compressing 64 KiB of log text, one core at 2 to 3 GHz"),
    ("AES 5.9 GB/s", "measured: AES-256-GCM with hardware instructions, 64 KiB, one core"),
    ("CRC-32C 15 GB/s", "measured: crc32c with hardware instructions, 64 KiB, one core"),
    ("plain WebAssembly 0.5 GB/s", "assumed: a light stage without intrinsics"),
];

impl Default for HostParams {
    fn default() -> HostParams {
        HostParams {
            cores: 16,
            other_permille: 100,
            call_ns: 100,
            lz4_bytes_per_second: 550_000_000,
            aes_bytes_per_second: 5_900_000_000,
            crc32c_bytes_per_second: 15_000_000_000,
            wasm_bytes_per_second: 500_000_000,
        }
    }
}

impl HostParams {
    /// The same host with every rate divided, to go with a profile that was scaled by the same divisor.
    /// Fixed costs stay, as they do there: they are per call, not per byte.
    #[must_use]
    pub fn scaled(&self, divisor: u32) -> HostParams {
        let divisor = u64::from(divisor.max(1));
        HostParams {
            cores: self.cores,
            other_permille: self.other_permille,
            call_ns: self.call_ns,
            lz4_bytes_per_second: (self.lz4_bytes_per_second / divisor).max(1),
            aes_bytes_per_second: (self.aes_bytes_per_second / divisor).max(1),
            crc32c_bytes_per_second: (self.crc32c_bytes_per_second / divisor).max(1),
            wasm_bytes_per_second: (self.wasm_bytes_per_second / divisor).max(1),
        }
    }

    fn bytes_per_second(&self, engine: Engine) -> u64 {
        match engine {
            Engine::Lz4 => self.lz4_bytes_per_second,
            Engine::Aes => self.aes_bytes_per_second,
            Engine::Crc32c => self.crc32c_bytes_per_second,
            Engine::Wasm => self.wasm_bytes_per_second,
        }
    }

    /// Time of one call in nanoseconds.
    #[must_use]
    pub fn call_time_ns(&self, engine: Engine, bytes: u32) -> u64 {
        let work = u128::from(bytes) * 1_000_000_000;
        let work = work.div_ceil(u128::from(self.bytes_per_second(engine)));
        self.call_ns + u64::try_from(work).unwrap_or(u64::MAX)
    }
}

/// The host's cores as servers: a call takes the core that is free first.
///
/// Other work is a share that is added to the samples; it does not hold cores up. That is right for
/// a host with idle cores, which is the only case in which its load is not the experiment's subject.
#[derive(Debug)]
pub(crate) struct Host {
    params: HostParams,
    busy_until: Vec<Nanos>,
    /// Core time given out, what lies in the future included.
    given_ns: u64,
    used_ns: u64,
    sampled_at: Nanos,
}

impl Host {
    pub(crate) fn new(params: &HostParams) -> Host {
        assert!(params.cores > 0, "a host without cores runs nothing");
        Host {
            params: params.clone(),
            busy_until: vec![Nanos(0); params.cores as usize],
            given_ns: 0,
            used_ns: 0,
            sampled_at: Nanos(0),
        }
    }

    /// Runs one call that may start at `from`; returns when it is due and how long a core is busy.
    pub(crate) fn run(&mut self, from: Nanos, engine: Engine, bytes: u32) -> (Nanos, u64) {
        let took_ns = self.params.call_time_ns(engine, bytes);
        let first = self.busy_until.iter_mut().min().expect("at least one core");
        let due = Nanos((*first).max(from).0 + took_ns);
        *first = due;
        self.given_ns += took_ns;
        (due, took_ns)
    }

    /// Share of all cores that worked since the last call of this function, other work included.
    pub(crate) fn cpu_permille(&mut self, now: Nanos) -> u32 {
        let ahead: u64 = self.busy_until.iter().map(|until| until.0.saturating_sub(now.0)).sum();
        let used = self.given_ns.saturating_sub(ahead).max(self.used_ns);
        let worked = used - self.used_ns;
        let window = (now.0 - self.sampled_at.0) * u64::from(self.params.cores);
        (self.used_ns, self.sampled_at) = (used, now);
        let share = u128::from(worked) * 1000 / u128::from(window.max(1));
        let all = u32::try_from(share).unwrap_or(1000) + self.params.other_permille;
        all.min(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_share_the_cores_and_the_share_is_what_they_took() {
        let params = HostParams { cores: 2, other_permille: 50, ..HostParams::default() };
        let mut host = Host::new(&params);
        let took = params.call_time_ns(Engine::Lz4, 65_536);
        assert_eq!(took, 100 + 119_157);
        assert_eq!(host.run(Nanos(0), Engine::Lz4, 65_536), (Nanos(took), took));
        assert_eq!(host.run(Nanos(0), Engine::Lz4, 65_536), (Nanos(took), took));
        assert_eq!(host.run(Nanos(0), Engine::Lz4, 65_536), (Nanos(2 * took), took));
        assert_eq!(host.cpu_permille(Nanos(took)), 1000, "both cores, and no more than all");
        assert_eq!(host.cpu_permille(Nanos(2 * took)), 550);
        assert_eq!(host.cpu_permille(Nanos(3 * took)), 50);
    }

    #[test]
    fn a_scaled_host_takes_as_long_for_a_sixteenth_as_the_whole_one_for_all() {
        let params = HostParams::default();
        let slow = params.scaled(16);
        let whole = params.call_time_ns(Engine::Lz4, 65_536 * 16);
        let part = slow.call_time_ns(Engine::Lz4, 65_536);
        assert!(part.abs_diff(whole) < whole / 1000, "{part} {whole}");
    }
}
