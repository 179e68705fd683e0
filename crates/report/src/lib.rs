//! Tables, line charts and self-contained HTML reports. Pure.
