//! What a policy sees: one sample of the host, the device and every actor.
//!
//! A sample is a plain value. What the machine does not show (frequency, power) is `None`, never
//! zero, so that a policy cannot take silence for a measurement.

use serde::{Deserialize, Serialize};

use crate::{ACTORS_MAX, ActorId, Nanos, Side};

/// How an actor's flow is treated (WIO, arXiv 2604.02442, section 3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Log writes, metadata lookups: on the host unless the host is throttled.
    LatencySensitive,
    /// Compression, compaction, reformatting: may be offloaded.
    BestEffort,
}

/// One actor at the time of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActorView {
    /// Its number.
    pub id: ActorId,
    /// Where it is.
    pub side: Side,
    /// How its flow is treated.
    pub class: Class,
    /// Whether it may be moved now: false while it is pinned by configuration or is being moved.
    pub movable: bool,
    /// When it was placed where it is.
    pub since: Nanos,
    /// Its share of all the cores of its side since the last sample, in permille.
    pub busy_permille: u32,
    /// Bytes it took in since the last sample.
    pub bytes: u64,
}

/// The host at the time of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSample {
    /// Share of the host's cores that did work since the last sample, in permille. Cores that only
    /// poll an empty ring are idle in this figure: otherwise a polling host never has headroom.
    pub cpu_permille: u32,
    /// Mean frequency of the cores in kHz, where the machine shows it.
    pub frequency_khz: Option<u32>,
    /// The frequency that the cores are sold with in kHz, where the machine shows it. With it the
    /// policy can tell a throttled host; a frequency alone says nothing.
    pub frequency_nominal_khz: Option<u32>,
    /// Package power by RAPL in milliwatts, where the machine shows it.
    pub power_milliwatts: Option<u32>,
    /// Requests that wait in the host domain's rings.
    pub ring_depth: u32,
}

/// The device at the time of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSample {
    /// Temperature of the thermal model in thousandths of a degree Celsius.
    pub temperature_millicelsius: i32,
    /// Share of the device's embedded cores that did work since the last sample, in permille.
    pub utilisation_permille: u32,
    /// What throttling leaves of the device's speed: 1000 is full speed, 0 is shut down.
    pub speed_permille: u32,
    /// Requests that wait in the device domain's rings.
    pub ring_depth: u32,
}

/// Everything that a policy may look at, at one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it was taken. The times of successive samples never go back.
    pub at: Nanos,
    /// The host.
    pub host: HostSample,
    /// The device.
    pub device: DeviceSample,
    /// The actors, in rising order of their numbers, [`ACTORS_MAX`] at most.
    pub actors: Vec<ActorView>,
}

/// Why a sample is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// More actors than a sample may hold.
    #[error("the sample lists {0} actors, more than {ACTORS_MAX}: no device holds so many")]
    TooManyActors(usize),
    /// Actors out of order or listed twice.
    #[error("the sample lists actor {0} after actor {1}: list every actor once, in rising order")]
    ActorsOutOfOrder(u16, u16),
    /// A share above the whole.
    #[error("the sample gives {name} as {value} permille: a share is 1000 at most")]
    ShareTooLarge {
        /// Which share.
        name: &'static str,
        /// What it was.
        value: u32,
    },
    /// An actor placed in the future.
    #[error("the sample at {at} ns says that actor {id} was placed at {since} ns, later than the sample itself")]
    PlacedInFuture {
        /// The actor.
        id: u16,
        /// When it is said to have been placed.
        since: u64,
        /// The time of the sample.
        at: u64,
    },
}

impl Sample {
    /// The actor with this number.
    #[must_use]
    pub fn actor(&self, id: ActorId) -> Option<&ActorView> {
        let found = self.actors.binary_search_by_key(&id, |actor| actor.id);
        found.ok().map(|index| &self.actors[index])
    }

    /// Checks what every policy relies on. Samples that come from a file or from another process
    /// must pass it before they reach a policy.
    ///
    /// # Errors
    /// Says which rule the sample breaks.
    pub fn check(&self) -> Result<(), SampleError> {
        if self.actors.len() > ACTORS_MAX {
            return Err(SampleError::TooManyActors(self.actors.len()));
        }
        for pair in self.actors.windows(2) {
            if pair[0].id >= pair[1].id {
                return Err(SampleError::ActorsOutOfOrder(pair[1].id.0, pair[0].id.0));
            }
        }
        share("the host's CPU", self.host.cpu_permille)?;
        share("the device's utilisation", self.device.utilisation_permille)?;
        share("the device's speed", self.device.speed_permille)?;
        for actor in &self.actors {
            share("an actor's busy share", actor.busy_permille)?;
            if actor.since > self.at {
                let (id, since, at) = (actor.id.0, actor.since.0, self.at.0);
                return Err(SampleError::PlacedInFuture { id, since, at });
            }
        }
        Ok(())
    }
}

fn share(name: &'static str, value: u32) -> Result<(), SampleError> {
    if value > 1000 {
        return Err(SampleError::ShareTooLarge { name, value });
    }
    Ok(())
}
