//! What can go wrong around a running device, in words that say what to do.

use osier_domain::Side;

/// An operating error of the runtime.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The image cannot be used.
    #[error(transparent)]
    Image(#[from] osier_image::ImageError),
    /// The media cannot be used.
    #[error(transparent)]
    Media(#[from] osier_image::MediaError),
    /// The shared region cannot be used.
    #[error(transparent)]
    Pmr(#[from] osier_pmr::PmrError),
    /// A ring of the shared region cannot be used.
    #[error(transparent)]
    Ring(#[from] osier_pmr::RingError),
    /// The profile of the image cannot be used.
    #[error(transparent)]
    Profile(#[from] osier_device::ProfileError),
    /// The pipelines of the image cannot be used.
    #[error(transparent)]
    Config(#[from] osier_actor::pipeline::ConfigError),
    /// The pipelines that the image had cannot be used.
    #[error("{path}: {source}")]
    Registry {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: osier_actor::pipeline::RegistryError,
    },
    /// A module of the image cannot be read.
    #[error(transparent)]
    Module(#[from] osier_actor::module::ModuleStoreError),
    /// An actor cannot be prepared.
    #[error(transparent)]
    Prepare(#[from] osier_actor::prepare::PrepareError),
    /// Machine code cannot be had.
    #[error(transparent)]
    Compile(#[from] osier_actor::compile::CompileError),
    /// The actors do not come up.
    #[error(transparent)]
    Runner(#[from] osier_actor::runner::RunnerError),
    /// The device core cannot begin.
    #[error(transparent)]
    Device(#[from] osier_device::DeviceError),
    /// The input cannot be used.
    #[error(transparent)]
    Corpus(#[from] crate::corpus::CorpusError),
    /// The write buffer in the shared region is not the profile's.
    #[error(
        "the image's write buffer has {found} bytes and its profile asks for {wanted}; it may hold data, so it is not resized: \
         put write_buffer.bytes back, or make another device"
    )]
    BufferSize {
        /// What the region holds.
        found: u64,
        /// What the profile says.
        wanted: u64,
    },
    /// A key file holds no key.
    #[error(
        "the key file {path} does not hold 64 hexadecimal digits; put the right file back: without it what was sealed cannot be read"
    )]
    BadKey {
        /// Which.
        path: std::path::PathBuf,
    },
    /// The scheduler's samples cannot be written down.
    #[error("cannot write the samples to {path}: {source}; name another file with --record, or make room")]
    Record {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The core's inputs cannot be written down.
    #[error("cannot record the device core to {path}: {source}; name another file with --record-core, or make room")]
    Recording {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A key that was used is gone.
    #[error(
        "the key file {path} is missing, and data may be sealed with it; put it back. To go on without those data, \
         put a file of 64 random hexadecimal digits there"
    )]
    LostKey {
        /// Which.
        path: std::path::PathBuf,
    },
    /// No soak left what another could read back.
    #[error(
        "no soak over {groups} groups was run on this device, so there is nothing to read back; run one with the same --groups first"
    )]
    NoWitness {
        /// How many were asked for.
        groups: u64,
    },
    /// Nobody has the device up.
    #[error("the device {path} is not up; start it with `osier serve`")]
    NotRunning {
        /// Its image.
        path: std::path::PathBuf,
    },
    /// An option has no such value.
    #[error("{0}")]
    Option(String),
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file of the image cannot be used.
    #[error("cannot {what} ({path}): {source}; `osier device check` looks the whole image over")]
    File {
        /// What was attempted.
        what: &'static str,
        /// On what.
        path: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Clients have nowhere to arrive.
    #[error("cannot listen for clients at {path}: {source}; is its directory writable?")]
    Listen {
        /// The socket.
        path: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A domain ended while it was started.
    #[error("the {side} domain does not start ({how}); its own message stands above, and OSIER_LOG=debug shows more")]
    DoesNotStart {
        /// Which.
        side: Side,
        /// How it ended.
        how: String,
        /// The code that it ended with, if it did by itself.
        code: Option<i32>,
    },
    /// The device died and its media with it.
    #[error(
        "the device domain died ({how}), and media in its memory with it; a device that is to survive that needs media in a file"
    )]
    MediaLost {
        /// How it died.
        how: String,
    },
    /// Somebody made the region's file shorter under a running device.
    #[error(
        "the memory region {path} was cut from {stated} to {found} bytes while the device was up, so it is down; what \
         reached the media is whole, and completed writes that had not lie in what was cut off: put the region back from \
         a copy before the next start"
    )]
    RegionCut {
        /// The file.
        path: std::path::PathBuf,
        /// Its length as it was made.
        stated: u64,
        /// Its length now.
        found: u64,
    },
    /// A domain did not stop in order.
    #[error("the {side} domain did not stop in order ({how}): {undone}; `osier device check` looks the image over")]
    NotStopped {
        /// Which.
        side: Side,
        /// What it did instead.
        how: String,
        /// What that left undone.
        undone: &'static str,
    },
    /// A domain dies again and again.
    #[error(
        "the {side} domain died too often within a minute (last: {how}); the image is unharmed, `osier device check` looks it over"
    )]
    DiesTooOften {
        /// Which.
        side: Side,
        /// How it died last.
        how: String,
    },
}
