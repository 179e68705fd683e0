//! Bars of a few named things.

use serde::Serialize;

use crate::axis::Laid;
use crate::chart::{LEFT, LegendEntry, Plot, RIGHT, draw_legend, draw_title, fill_attributes};
use crate::svg::{Anchor, Canvas, text_width};
use crate::{Axis, format_value};

/// Height of a line of a label.
const LABEL_LINE: f64 = 14.0;

/// The bars that stand together under one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BarGroup {
    /// The name under them.
    pub name: String,
    /// One value for each of the chart's series; one that is not finite has no bar.
    pub values: Vec<f64>,
}

impl BarGroup {
    /// A group.
    #[must_use]
    pub fn new(name: impl Into<String>, values: Vec<f64>) -> BarGroup {
        BarGroup { name: name.into(), values }
    }
}

/// Bars of a few named things, each value written at its bar.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BarChart {
    /// What is shown.
    pub title: String,
    /// The axis of the values. Linear axes start at zero whatever is asked for: a bar's length is
    /// its value.
    pub y: Axis,
    /// The names of the bars in each group.
    pub series: Vec<String>,
    /// The groups.
    pub groups: Vec<BarGroup>,
    /// Height of the plot in user units.
    pub height: u32,
}

impl BarChart {
    /// An empty chart.
    #[must_use]
    pub fn new(title: impl Into<String>, y: Axis, series: Vec<String>) -> BarChart {
        BarChart { title: title.into(), y, series, groups: Vec::new(), height: 200 }
    }

    /// Draws below `top`; returns where it ends.
    pub(crate) fn draw(&self, canvas: &mut Canvas, top: f64) -> f64 {
        let mut axis = self.y.clone();
        let values = self.groups.iter().flat_map(|group| group.values.iter().copied());
        let zero = axis.shows_zero().then_some(0.0);
        if axis.shows_zero() {
            axis.low = None;
        }
        let y = Laid::new(&axis, values.chain(zero), 5, true);
        let below_title = draw_title(canvas, top, &self.title);
        let entries: Vec<LegendEntry> =
            self.series.iter().enumerate().map(|(colour, name)| LegendEntry { name, colour, stroke: None }).collect();
        let below_legend = if entries.len() > 1 { draw_legend(canvas, below_title, &entries) } else { below_title };
        let plot = Plot { top: below_legend + 28.0, bottom: below_legend + 28.0 + f64::from(self.height) };
        plot.draw_y(canvas, &y, false);
        let base = plot.y(&y, if axis.shows_zero() { 0.0 } else { y.low }).unwrap_or(plot.bottom);
        let share = (RIGHT - LEFT) / self.groups.len().max(1) as f64;
        for (index, group) in self.groups.iter().enumerate() {
            self.draw_group(canvas, plot, &y, base, (LEFT + share * index as f64, share), group);
        }
        canvas.line(LEFT, base, RIGHT, base, "class=\"rule\" stroke=\"#8c959f\"");
        plot.bottom + 12.0 + LABEL_LINE * self.name_lines() as f64
    }

    fn draw_group(
        &self,
        canvas: &mut Canvas,
        plot: Plot,
        axis: &Laid,
        base: f64,
        (left, width): (f64, f64),
        group: &BarGroup,
    ) {
        let count = group.values.len().max(1) as f64;
        let bar = (width * 0.72 / count).min(64.0);
        let start = left + (width - bar * count) / 2.0;
        for (index, value) in group.values.iter().enumerate() {
            let Some(y) = plot.y(axis, *value) else { continue };
            let x = start + bar * index as f64;
            canvas.rect(x + 1.0, y.min(base), bar - 2.0, (base - y).abs(), &fill_attributes(index));
            let text = format_value(*value, self.y.unit);
            // Labels wider than their bars would meet, so every other one stands a line further off.
            let crowded = text_width(&text) > bar && index % 2 == 1;
            let offset = if crowded { LABEL_LINE } else { 0.0 };
            let below = if *value < 0.0 { 14.0 + offset } else { -5.0 - offset };
            if bar >= 20.0 {
                canvas.soft(x + bar / 2.0, y + below, Anchor::Middle, &text);
            }
        }
        for (index, line) in wrap(&group.name, width - 6.0).iter().enumerate() {
            let y = plot.bottom + 18.0 + LABEL_LINE * index as f64;
            canvas.ink(left + width / 2.0, y, Anchor::Middle, line);
        }
    }

    /// Lines that the longest name takes.
    fn name_lines(&self) -> usize {
        let share = (RIGHT - LEFT) / self.groups.len().max(1) as f64;
        self.groups.iter().map(|group| wrap(&group.name, share - 6.0).len()).max().unwrap_or(1)
    }
}

/// Breaks a text at spaces, so that its lines are at most so wide if its words allow.
fn wrap(text: &str, width: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(word);
        } else if text_width(line) + text_width(word) + 4.0 <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chart, Unit};

    #[test]
    fn bars_start_at_zero_and_say_their_value() {
        let axis = Axis::new("Throughput", Unit::BytesPerSecond).from(1e9);
        let mut chart = BarChart::new("t", axis, vec!["device-fixed".to_owned(), "adaptive".to_owned()]);
        chart.groups.push(BarGroup::new("smartssd", vec![0.95e9, 1.9e9]));
        chart.groups.push(BarGroup::new("none", vec![f64::NAN, 0.0]));
        let svg = Chart::Bars(chart).to_svg();
        assert!(svg.contains(">950 MB/s<") && svg.contains(">1.90 GB/s<") && svg.contains(">0.0<"), "{svg}");
        assert!(svg.contains("adaptive"));
    }

    #[test]
    fn long_names_break_at_spaces() {
        assert_eq!(wrap("ScaleFlux, on the device", 80.0), ["ScaleFlux,", "on the device"]);
        assert_eq!(wrap("", 80.0), [""]);
        assert_eq!(wrap("unbreakable-name-of-a-device", 20.0).len(), 1);
    }
}
