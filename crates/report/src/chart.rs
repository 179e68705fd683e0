//! Any chart, and the frame that they share: title, legend, plot, axes.

use serde::Serialize;

use crate::axis::Laid;
use crate::palette;
use crate::svg::{Anchor, Canvas, WIDTH, num, text_width};
use crate::{BarChart, HeatStrip, Histogram, LineChart, Stroke};

/// Where every plot begins and ends, so that stacked charts stand under each other.
pub(crate) const LEFT: f64 = 72.0;
pub(crate) const RIGHT: f64 = WIDTH - 72.0;
const LEGEND_ROW: f64 = 18.0;

/// Any chart.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "chart", rename_all = "kebab-case")]
pub enum Chart {
    /// Values over time or another continuous quantity.
    Line(LineChart),
    /// Values of a few named things.
    Bars(BarChart),
    /// A value over time as colour.
    Strip(HeatStrip),
    /// How values are distributed.
    Histogram(Histogram),
}

impl Chart {
    /// The picture as a file of its own.
    #[must_use]
    pub fn to_svg(&self) -> String {
        stack(std::slice::from_ref(self))
    }

    /// The chart's title.
    #[must_use]
    pub fn title(&self) -> &str {
        match self {
            Chart::Line(chart) => &chart.title,
            Chart::Bars(chart) => &chart.title,
            Chart::Strip(chart) => &chart.title,
            Chart::Histogram(chart) => &chart.title,
        }
    }

    /// Draws below `top`; returns where it ends.
    fn draw(&self, canvas: &mut Canvas, top: f64) -> f64 {
        match self {
            Chart::Line(chart) => chart.draw(canvas, top),
            Chart::Bars(chart) => chart.draw(canvas, top),
            Chart::Strip(chart) => chart.draw(canvas, top),
            Chart::Histogram(chart) => chart.draw(canvas, top),
        }
    }
}

impl From<LineChart> for Chart {
    fn from(chart: LineChart) -> Chart {
        Chart::Line(chart)
    }
}

impl From<BarChart> for Chart {
    fn from(chart: BarChart) -> Chart {
        Chart::Bars(chart)
    }
}

impl From<HeatStrip> for Chart {
    fn from(chart: HeatStrip) -> Chart {
        Chart::Strip(chart)
    }
}

impl From<Histogram> for Chart {
    fn from(chart: Histogram) -> Chart {
        Chart::Histogram(chart)
    }
}

/// Charts under each other in one picture, their plots aligned, as a file of its own.
#[must_use]
pub fn stack(charts: &[Chart]) -> String {
    let (canvas, title) = drawn(charts);
    canvas.standalone(&title)
}

/// The same, to stand in a page.
pub(crate) fn stack_inline(charts: &[Chart]) -> String {
    let (canvas, title) = drawn(charts);
    canvas.inline(&title)
}

fn drawn(charts: &[Chart]) -> (Canvas, String) {
    let mut canvas = Canvas::new(0.0);
    let mut top = 0.0;
    for chart in charts {
        top = chart.draw(&mut canvas, top) + 6.0;
    }
    canvas.height = top.max(1.0);
    let titles: Vec<&str> = charts.iter().map(Chart::title).collect();
    (canvas, titles.join("; "))
}

/// Draws a title; returns where what follows may begin.
pub(crate) fn draw_title(canvas: &mut Canvas, top: f64, title: &str) -> f64 {
    if title.is_empty() {
        return top + 6.0;
    }
    let attributes = "class=\"ink\" fill=\"#1b1f23\" font-weight=\"600\" font-size=\"14\"";
    canvas.text(LEFT, top + 20.0, Anchor::Start, title, attributes);
    top + 30.0
}

/// One entry of a legend.
pub(crate) struct LegendEntry<'a> {
    pub(crate) name: &'a str,
    pub(crate) colour: usize,
    /// A line with this stroke; `None`: a filled square.
    pub(crate) stroke: Option<Stroke>,
}

/// Draws a legend, in as many rows as it needs; returns where what follows may begin.
pub(crate) fn draw_legend(canvas: &mut Canvas, top: f64, entries: &[LegendEntry]) -> f64 {
    if entries.is_empty() {
        return top;
    }
    let (mut x, mut y) = (LEFT, top);
    for entry in entries {
        let swatch = if entry.stroke.is_some() { 26.0 } else { 12.0 };
        let width = swatch + 6.0 + text_width(entry.name) + 18.0;
        if x > LEFT && x + width > RIGHT + 40.0 {
            (x, y) = (LEFT, y + LEGEND_ROW);
        }
        match entry.stroke {
            Some(stroke) => {
                canvas.line(x, y + 8.0, x + swatch, y + 8.0, &stroke_attributes(entry.colour, stroke));
            }
            None => canvas.rect(x, y + 2.0, swatch, 12.0, &fill_attributes(entry.colour)),
        }
        canvas.ink(x + swatch + 6.0, y + 12.0, Anchor::Start, entry.name);
        x += width;
    }
    y + LEGEND_ROW + 4.0
}

/// The attributes of a line of a series.
pub(crate) fn stroke_attributes(colour: usize, stroke: Stroke) -> String {
    let index = palette::series(colour);
    let light = palette::SERIES[index].light;
    let dashes = match stroke {
        Stroke::Solid => "",
        Stroke::Dashed => " stroke-dasharray=\"7 4\"",
        Stroke::Dotted => " stroke-dasharray=\"1.5 4\" stroke-linecap=\"round\"",
    };
    format!("class=\"s{index}\" stroke=\"{light}\" stroke-width=\"2\" fill=\"none\" stroke-linejoin=\"round\"{dashes}")
}

/// The attributes of an area of a series.
pub(crate) fn fill_attributes(colour: usize) -> String {
    let index = palette::series(colour);
    let light = palette::SERIES[index].light;
    format!("class=\"f{index}\" fill=\"{light}\"")
}

/// The place of a plot on the paper.
#[derive(Clone, Copy)]
pub(crate) struct Plot {
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

impl Plot {
    pub(crate) fn x(self, axis: &Laid, value: f64) -> Option<f64> {
        // Far outside is as good as just outside, and keeps coordinates short.
        axis.place(value).map(|place| LEFT + place.clamp(-1.0, 2.0) * (RIGHT - LEFT))
    }

    pub(crate) fn y(self, axis: &Laid, value: f64) -> Option<f64> {
        axis.place(value).map(|place| self.bottom - place.clamp(-1.0, 2.0) * (self.bottom - self.top))
    }

    /// Ticks, grid and title of the horizontal axis; returns where what follows may begin.
    pub(crate) fn draw_x(self, canvas: &mut Canvas, axis: &Laid) -> f64 {
        let bottom = self.bottom;
        canvas.line(LEFT, bottom, RIGHT, bottom, "class=\"rule\" stroke=\"#8c959f\"");
        for tick in &axis.ticks {
            let Some(x) = self.x(axis, tick.value) else { continue };
            let length = if tick.text.is_empty() { 3.0 } else { 5.0 };
            canvas.line(x, bottom, x, bottom + length, "class=\"rule\" stroke=\"#8c959f\"");
            canvas.soft(x, bottom + 18.0, Anchor::Middle, &tick.text);
        }
        if axis.title.is_empty() {
            return bottom + 26.0;
        }
        canvas.soft((LEFT + RIGHT) / 2.0, bottom + 35.0, Anchor::Middle, &axis.title);
        bottom + 44.0
    }

    /// Ticks and title of a vertical axis; the grid with the left one.
    pub(crate) fn draw_y(self, canvas: &mut Canvas, axis: &Laid, right: bool) {
        for tick in &axis.ticks {
            let Some(y) = self.y(axis, tick.value) else { continue };
            if !right && !tick.text.is_empty() {
                canvas.grid_line(LEFT, y, RIGHT, y);
            }
            let (x, anchor) = if right { (RIGHT + 8.0, Anchor::Start) } else { (LEFT - 8.0, Anchor::End) };
            canvas.soft(x, y + 4.0, anchor, &tick.text);
        }
        let (x, anchor) = if right { (RIGHT + 40.0, Anchor::End) } else { (LEFT - 40.0, Anchor::Start) };
        canvas.soft(x, self.top - 13.0, anchor, &axis.title);
    }

    /// A clip path, so that lines end at the plot's border.
    pub(crate) fn clip(self, canvas: &mut Canvas) -> String {
        // The name must be unique in a page with many pictures, and the same in every run.
        let id = format!("c{:x}", checksum(&format!("{} {} {}", self.top, self.bottom, canvas.height)));
        let (x, y) = (num(LEFT), num(self.top - 1.0));
        let (width, height) = (num(RIGHT - LEFT), num(self.bottom - self.top + 2.0));
        canvas.raw(&format!(
            "<clipPath id=\"{id}\"><rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/></clipPath>"
        ));
        id
    }
}

/// FNV-1a: enough to name things.
fn checksum(text: &str) -> u32 {
    text.bytes().fold(0x811C_9DC5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
