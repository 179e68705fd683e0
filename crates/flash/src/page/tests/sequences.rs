//! Every short sequence of operations, with a loss of power at every point.

