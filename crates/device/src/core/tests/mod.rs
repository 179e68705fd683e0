//! Tests of the device: `basics` one promise at a time, `crash` random work and random crashes against
//! a reference model, `bench` the world around the device that both share.

mod basics;
pub(crate) mod bench;
mod crash;
mod timing;
