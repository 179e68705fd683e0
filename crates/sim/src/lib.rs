//! Virtual-time drivers, workloads and checkers. Pure.
