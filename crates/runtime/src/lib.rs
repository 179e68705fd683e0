//! The two domain processes in real time, and the supervisor that watches them.
