//! Tables, charts and self-contained HTML reports. Pure.
//!
//! Everything here is a value that turns into text: a [`Table`] into aligned text, CSV or HTML; a
//! [`Chart`] into an SVG; a [`Report`] of paragraphs, tables and charts into one HTML page or into
//! JSON. Nothing is written anywhere.
//!
//! Invariants:
//!
//! 1. Text from outside (names, labels, messages) never becomes markup: it goes through
//!    [`escape`](fn@escape) at the one place where it is written ([`svg`], [`html`]).
//! 2. A page or picture asks for nothing from anywhere: no link, font, script or image. The page
//!    says so to the browser by its content security policy.
//! 3. The same values give the same bytes.
//!
//! Floats are fine in this crate: it shows figures, it decides nothing.

#![forbid(unsafe_code)]

mod axis;
mod bars;
mod chart;
mod histogram;
pub mod html;
mod line;
mod palette;
mod strip;
pub mod svg;
mod table;
mod unit;

pub use axis::{Axis, Scale};
pub use bars::{BarChart, BarGroup};
pub use chart::{Chart, stack};
pub use histogram::{Histogram, HistogramSeries};
pub use html::{Block, Fact, Report, Tone};
pub use line::{Level, LineChart, Marker, Series, Side, Stroke};
pub use strip::{HeatStrip, StripRow};
pub use svg::escape;
pub use table::{Align, Cell, Column, Table};
pub use unit::{Unit, format_value};
