//! Tests of the device.

mod timing;
