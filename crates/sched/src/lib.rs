//! Where actors run: samples in, one placement decision an epoch out. Pure.
