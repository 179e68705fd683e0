//! Lines over a continuous axis.

use std::fmt::Write as _;

use serde::Serialize;

use crate::axis::Laid;
use crate::chart::{LEFT, LegendEntry, Plot, RIGHT, draw_legend, draw_title, fill_attributes, stroke_attributes};
use crate::svg::{Anchor, Canvas, escape, num, text_width};
use crate::{Axis, Scale, format_value};

/// Labels of markers take at most this many rows; a label without room stays in the tool tip.
const LABEL_ROWS: usize = 3;
const LABEL_ROW: f64 = 15.0;

/// Which vertical axis a series is read on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The left one.
    #[default]
    Left,
    /// The right one.
    Right,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stroke {
    /// An unbroken line.
    #[default]
    Solid,
    /// Dashes.
    Dashed,
    /// Dots.
    Dotted,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// The points in order of the horizontal axis. A value that is not finite makes a gap.
    pub points: Vec<(f64, f64)>,
    /// The axis it is read on.
    pub side: Side,
    /// How it is drawn.
    pub stroke: Stroke,
    /// Whether a value holds until the next point, instead of a straight line to it.
    pub step: bool,
    /// The number of its colour; `None`: by its place in the chart. Two series that belong
    /// together, such as a run's throughput and its temperature, share one.
    pub colour: Option<usize>,
}

impl Series {
    /// A solid line on the left axis.
    #[must_use]
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, side: Side::Left, stroke: Stroke::Solid, step: false, colour: None }
    }

    /// The same on the right axis.
    #[must_use]
    pub fn right(mut self) -> Series {
        self.side = Side::Right;
        self
    }

    /// The same with another stroke.
    #[must_use]
    pub fn stroke(mut self, stroke: Stroke) -> Series {
        self.stroke = stroke;
        self
    }

    /// The same in steps.
    #[must_use]
    pub fn step(mut self) -> Series {
        self.step = true;
        self
    }

    /// The same in the n-th colour.
    #[must_use]
    pub fn colour(mut self, colour: usize) -> Series {
        self.colour = Some(colour);
        self
    }
}

/// A vertical line at an event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Marker {
    /// When.
    pub x: f64,
    /// What; may be empty.
    pub label: String,
}

/// A horizontal line at a value that matters, such as a threshold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Level {
    /// On which axis.
    pub side: Side,
    /// Where.
    pub y: f64,
    /// What; may be empty.
    pub label: String,
}

/// Lines over a continuous axis, on one or two vertical axes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LineChart {
    /// What is shown.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The left axis.
    pub y: Axis,
    /// The right axis, if there is one.
    pub y2: Option<Axis>,
    /// The lines.
    pub series: Vec<Series>,
    /// Events.
    pub markers: Vec<Marker>,
    /// Values that matter.
    pub levels: Vec<Level>,
    /// Spans of the horizontal axis with a grey background: from, to.
    pub bands: Vec<(f64, f64)>,
    /// Height of the plot in user units; the width is 716.
    pub height: u32,
}

impl LineChart {
    /// An empty chart.
    #[must_use]
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> LineChart {
        LineChart {
            title: title.into(),
            x,
            y,
            y2: None,
            series: Vec::new(),
            markers: Vec::new(),
            levels: Vec::new(),
            bands: Vec::new(),
            height: 220,
        }
    }

    /// Draws below `top`; returns where it ends.
    pub(crate) fn draw(&self, canvas: &mut Canvas, top: f64) -> f64 {
        let x = self.lay_x();
        let y = self.lay_y(&self.y, Side::Left);
        let y2 = self.y2.as_ref().map(|axis| self.lay_y(axis, Side::Right));
        let below_title = draw_title(canvas, top, &self.title);
        let below_legend = self.draw_legend(canvas, below_title);
        let labels = place_labels(&self.markers, &x);
        let rows = labels.iter().flatten().map(|(row, _)| row + 1).max().unwrap_or(0);
        let plot_top = below_legend + 24.0 + rows as f64 * LABEL_ROW;
        let plot = Plot { top: plot_top, bottom: plot_top + f64::from(self.height) };
        for (from, to) in &self.bands {
            draw_band(canvas, plot, &x, *from, *to);
        }
        plot.draw_y(canvas, &y, false);
        if let Some(y2) = &y2 {
            plot.draw_y(canvas, y2, true);
        }
        for level in &self.levels {
            draw_level(canvas, plot, side_axis(level.side, &y, y2.as_ref()), level);
        }
        self.draw_markers(canvas, plot, &x, &labels);
        let clip = plot.clip(canvas);
        canvas.raw(&format!("<g clip-path=\"url(#{clip})\">"));
        for (index, series) in self.series.iter().enumerate() {
            let axis = side_axis(series.side, &y, y2.as_ref());
            draw_series(canvas, plot, &x, axis, series, series.colour.unwrap_or(index));
        }
        canvas.raw("</g>");
        plot.draw_x(canvas, &x)
    }

    fn lay_x(&self) -> Laid {
        let points = self.series.iter().flat_map(|series| series.points.iter().map(|point| point.0));
        Laid::new(&self.x, points, 10, false)
    }

    fn lay_y(&self, axis: &Axis, side: Side) -> Laid {
        // Without a right axis everything is read on the left one.
        let here = |of: Side| of == side || self.y2.is_none();
        let series = self.series.iter().filter(|series| here(series.side));
        let points = series.flat_map(|series| series.points.iter().map(|point| point.1));
        let levels = self.levels.iter().filter(|level| here(level.side)).map(|level| level.y);
        Laid::new(axis, points.chain(levels), 5, true)
    }

    fn draw_legend(&self, canvas: &mut Canvas, top: f64) -> f64 {
        if self.series.len() < 2 && self.y2.is_none() {
            return top;
        }
        let names: Vec<String> = self.series.iter().map(|series| self.legend_name(series)).collect();
        let entries: Vec<LegendEntry> = self
            .series
            .iter()
            .zip(&names)
            .enumerate()
            .map(|(index, (series, name))| LegendEntry {
                name,
                colour: series.colour.unwrap_or(index),
                stroke: Some(series.stroke),
            })
            .collect();
        draw_legend(canvas, top, &entries)
    }

    fn legend_name(&self, series: &Series) -> String {
        match series.side {
            Side::Right if self.y2.is_some() => format!("{} (right axis)", series.name),
            _ => series.name.clone(),
        }
    }

    fn draw_markers(&self, canvas: &mut Canvas, plot: Plot, axis: &Laid, labels: &[Option<(usize, f64)>]) {
        // Many events would make a curtain in front of the data.
        let opacity = if self.markers.len() > 24 { "0.35" } else { "0.8" };
        for (marker, label) in self.markers.iter().zip(labels) {
            let Some(x) = inside(axis, marker.x).and_then(|value| plot.x(axis, value)) else { continue };
            let mut top = plot.top;
            if let Some((row, text_x)) = label {
                let y = plot.top - 29.0 - *row as f64 * LABEL_ROW;
                canvas.soft(*text_x, y, Anchor::Middle, &marker.label);
                top = y + 4.0;
            }
            let tip = format!("{} {}", format_value(marker.x, self.x.unit), marker.label);
            let (x, top, bottom, tip) = (num(x), num(top), num(plot.bottom), escape(tip.trim()));
            canvas.raw(&format!(
                "<line x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{bottom}\" class=\"rule\" stroke=\"#8c959f\" \
                 stroke-dasharray=\"3 3\" opacity=\"{opacity}\"><title>{tip}</title></line>"
            ));
        }
    }
}

fn side_axis<'a>(side: Side, left: &'a Laid, right: Option<&'a Laid>) -> &'a Laid {
    match side {
        Side::Left => left,
        Side::Right => right.unwrap_or(left),
    }
}

fn inside(axis: &Laid, value: f64) -> Option<f64> {
    axis.place(value).filter(|place| (-1e-9..=1.0 + 1e-9).contains(place)).map(|_| value)
}

/// For every marker the row of its label, from the plot upwards, and the label's middle; `None` if
/// it has no label or finds no room.
fn place_labels(markers: &[Marker], axis: &Laid) -> Vec<Option<(usize, f64)>> {
    let plot = Plot { top: 0.0, bottom: 1.0 };
    let mut order: Vec<usize> = (0..markers.len()).collect();
    order.sort_by(|a, b| markers[*a].x.total_cmp(&markers[*b].x));
    let mut row_ends = [f64::NEG_INFINITY; LABEL_ROWS];
    let mut places = vec![None; markers.len()];
    for index in order {
        let marker = &markers[index];
        let x = inside(axis, marker.x).and_then(|value| plot.x(axis, value));
        let (Some(x), false) = (x, marker.label.is_empty()) else { continue };
        let half = text_width(&marker.label) / 2.0;
        let middle = x.clamp(LEFT + half - 40.0, (RIGHT - half + 60.0).max(LEFT + half - 40.0));
        let Some(row) = row_ends.iter().position(|end| *end + 8.0 <= middle - half) else { continue };
        row_ends[row] = middle + half;
        places[index] = Some((row, middle));
    }
    places
}

fn draw_band(canvas: &mut Canvas, plot: Plot, axis: &Laid, from: f64, to: f64) {
    if let (Some(from), Some(to)) = (plot.x(axis, from), plot.x(axis, to)) {
        let (from, to) = (from.clamp(LEFT, RIGHT), to.clamp(LEFT, RIGHT));
        let attributes = "class=\"band\" fill=\"#8a939b\" opacity=\"0.16\"";
        canvas.rect(from, plot.top, to - from, plot.bottom - plot.top, attributes);
    }
}

fn draw_level(canvas: &mut Canvas, plot: Plot, axis: &Laid, level: &Level) {
    let Some(y) = inside(axis, level.y).and_then(|value| plot.y(axis, value)) else { return };
    canvas.line(LEFT, y, RIGHT, y, "class=\"rule\" stroke=\"#8c959f\" stroke-dasharray=\"6 3\"");
    canvas.soft(RIGHT - 6.0, y - 4.0, Anchor::End, &level.label);
}

fn draw_series(canvas: &mut Canvas, plot: Plot, x: &Laid, y: &Laid, series: &Series, colour: usize) {
    let places = series.points.iter().map(|(at, value)| match (plot.x(x, *at), plot.y(y, *value)) {
        (Some(x), Some(y)) => Some((x, y)),
        _ => None,
    });
    let path = path(&thin(places), series.step);
    if !path.is_empty() {
        let attributes = stroke_attributes(colour, series.stroke);
        canvas.raw(&format!("<path d=\"{path}\" {attributes}/>"));
    }
    // A point between two gaps makes no line; without a dot it would be lost.
    for (x, y) in lone_points(series, plot, x, y) {
        let (x, y, fill) = (num(x), num(y), fill_attributes(colour));
        canvas.raw(&format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"2.5\" {fill}/>"));
    }
}

fn lone_points(series: &Series, plot: Plot, x: &Laid, y: &Laid) -> Vec<(f64, f64)> {
    let place = |index: usize| {
        let (at, value) = series.points.get(index)?;
        Some((plot.x(x, *at)?, plot.y(y, *value)?))
    };
    let lone = |index: &usize| {
        let before = index.checked_sub(1).and_then(place);
        before.is_none() && place(index + 1).is_none()
    };
    (0..series.points.len()).filter(lone).filter_map(place).collect()
}

/// Leaves at most four points for each column of pixels: the first, the lowest, the highest and the
/// last. That looks the same as all of them, and keeps a picture of hours small.
fn thin(places: impl Iterator<Item = Option<(f64, f64)>>) -> Vec<Option<(f64, f64)>> {
    let mut kept: Vec<Option<(f64, f64)>> = Vec::new();
    let mut column: Vec<(f64, f64)> = Vec::new();
    for place in places {
        let same = match (place, column.first()) {
            (Some(place), Some(first)) => place.0.floor() == first.0.floor(),
            _ => false,
        };
        if !same {
            flush(&mut column, &mut kept);
        }
        match place {
            Some(place) => column.push(place),
            None => kept.push(None),
        }
    }
    flush(&mut column, &mut kept);
    kept
}

fn flush(column: &mut Vec<(f64, f64)>, kept: &mut Vec<Option<(f64, f64)>>) {
    let by_height = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
    let index_of = |point: Option<&(f64, f64)>| point.and_then(|point| column.iter().position(|other| other == point));
    let mut chosen: Vec<usize> = [
        column.len().checked_sub(1).map(|_| 0),
        index_of(column.iter().min_by(by_height)),
        index_of(column.iter().max_by(by_height)),
        column.len().checked_sub(1),
    ]
    .into_iter()
    .flatten()
    .collect();
    chosen.sort_unstable();
    chosen.dedup();
    kept.extend(chosen.into_iter().map(|index| Some(column[index])));
    column.clear();
}

fn path(places: &[Option<(f64, f64)>], step: bool) -> String {
    let mut path = String::new();
    let mut pen_down = false;
    for place in places {
        let Some((x, y)) = place else {
            pen_down = false;
            continue;
        };
        let (x, y) = (num(*x), num(*y));
        let written = match (pen_down, step) {
            (false, _) => write!(path, "M{x} {y}"),
            (true, false) => write!(path, "L{x} {y}"),
            (true, true) => write!(path, "H{x}V{y}"),
        };
        written.expect("writing to a string cannot fail");
        pen_down = true;
    }
    path
}

impl Axis {
    /// Whether values of zero and below can be shown.
    pub(crate) fn shows_zero(&self) -> bool {
        self.scale == Scale::Linear
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chart, Unit};

    fn chart(series: Vec<Series>) -> LineChart {
        let mut chart = LineChart::new("t", Axis::new("Time", Unit::Seconds), Axis::new("Rate", Unit::BytesPerSecond));
        chart.series = series;
        chart
    }

    fn svg(chart: LineChart) -> String {
        Chart::Line(chart).to_svg()
    }

    #[test]
    fn a_value_that_is_not_finite_makes_a_gap_and_a_lone_point_a_dot() {
        let points = vec![(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 1.5), (4.0, f64::INFINITY), (5.0, 1.0)];
        let svg = svg(chart(vec![Series::new("a", points)]));
        assert_eq!(svg.matches('M').count() - svg.matches("MB").count(), 3, "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn a_million_points_stay_a_small_picture_with_its_extremes() {
        let mut points: Vec<(f64, f64)> = (0..1_000_000).map(|i| (f64::from(i), f64::from(i % 100))).collect();
        points[500_000].1 = 1000.0;
        let svg = svg(chart(vec![Series::new("a", points)]));
        assert!(svg.len() < 100_000, "{} bytes", svg.len());
        // The highest of all values stands at the top of the plot.
        assert!(svg.contains("1.0") && svg.contains(" 54L"), "{}", &svg[..3000]);
    }

    #[test]
    fn labels_that_meet_move_up_a_row_and_the_fourth_is_only_a_tool_tip() {
        let mut chart = chart(vec![Series::new("a", vec![(0.0, 0.0), (100.0, 1.0)])]);
        for name in ["first", "second", "third", "fourth"] {
            chart.markers.push(Marker { x: 50.0, label: format!("{name} event") });
        }
        let svg = svg(chart);
        assert_eq!(svg.matches("third event").count(), 2, "label and tool tip");
        assert_eq!(svg.matches("fourth event").count(), 1, "tool tip alone");
    }

    #[test]
    fn hostile_names_stay_text() {
        let mut chart = chart(vec![
            Series::new("<script>", vec![(0.0, 0.0), (1.0, 1.0)]),
            Series::new("\"&'", vec![(0.0, 0.0), (1.0, 1.0)]),
        ]);
        chart.title = "</svg><img src=x onerror=alert(1)>".to_owned();
        chart.markers.push(Marker { x: 0.5, label: "<b>".to_owned() });
        chart.levels.push(Level { side: Side::Left, y: 0.5, label: "<i>".to_owned() });
        let svg = svg(chart);
        for bad in ["<script", "<img", "<b>", "<i>"] {
            assert!(!svg.contains(bad), "{bad}");
        }
        assert_eq!(svg.matches("</svg>").count(), 1);
    }

    #[test]
    fn steps_hold_their_value() {
        let series = Series::new("a", vec![(0.0, 0.0), (50.0, 1.0), (100.0, 0.0)]).step();
        let svg = svg(chart(vec![series]));
        assert!(svg.contains("H430V"), "{svg}");
    }
}
