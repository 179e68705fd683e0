//! The shared persistent memory region: mapping, allocation, rings, waiting, ownership.
