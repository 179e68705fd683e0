//! One domain of the device: routes requests through stages, keeps streams in order, migrates actors. Pure.
