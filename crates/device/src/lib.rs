//! The device core: flash, write buffer, thermal model and persistence, sans-IO. Pure: no I/O, no clock,
//! no threads; everything that comes in has a time stamp, everything that goes out is due at one.
//!
//! Where to start:
//!
//! - [`profile`]: every parameter of every model, from one TOML file (`docs/profiles.md`);
//! - [`Device`]: commands in, completions and media operations out; its modules follow a command;
//! - [`buffer`]: the log that carries completed writes over a death of the process
//!   (`docs/formats-buffer.md`);
//! - [`thermal`] and [`compute`]: heat, throttling, and what work on the device costs;
//! - [`record`]: every input of a run, for a replay in virtual time (`docs/formats-recording.md`);
//! - [`predict`]: what a profile settles at, to hold a measured run against.
#![forbid(unsafe_code)]

pub mod buffer;
pub mod compute;
pub mod core;
pub mod model;
pub mod predict;
pub mod profile;
pub mod record;
pub mod status;
pub mod thermal;
pub mod window;

mod pending;

pub use buffer::{BufferError, BufferReport, Bytes, NoBytes, WriteBuffer};
pub use compute::Compute;
pub use core::{
    BufferState, CommandId, Completion, Device, DeviceError, DeviceParams, DeviceSample, DeviceStats, ReadContent,
    ReadPiece, RecoveryReport, Run, UnitMeta, WriteMeta,
};
pub use osier_flash::{
    BLOCK_BYTES, Extent, ExtentKind, Geometry, Lba, MediaError, MediaOp, MediaOpKind, MediaResult, Nanos, OpId,
};
pub use predict::{Crossing, Placement, Stage, SteadyState, Workload};
pub use profile::{Engine, Profile, ProfileError, SchedulerParams, parse_override};
pub use status::Status;
pub use thermal::{Thermal, Transition};
