//! How values are distributed, such as latencies.

use serde::Serialize;

use crate::axis::Laid;
use crate::chart::{LEFT, LegendEntry, Plot, RIGHT, draw_legend, draw_title, stroke_attributes};
use crate::svg::{Canvas, num};
use crate::{Axis, Stroke, Unit, format_value, palette};

/// The distribution of one set of values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HistogramSeries {
    /// Its name in the legend.
    pub name: String,
    /// Bins in rising order: lower border, upper border, how many values.
    pub bins: Vec<(f64, f64, u64)>,
    /// Percentiles to mark: what is written, and the value.
    pub percentiles: Vec<(String, f64)>,
}

/// How values are distributed. The height is the share of the values in a bin, so that runs of
/// different length can be compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Histogram {
    /// What is shown.
    pub title: String,
    /// The axis of the values; mostly logarithmic.
    pub x: Axis,
    /// The distributions, drawn as outlines over each other.
    pub series: Vec<HistogramSeries>,
    /// Height of the plot in user units.
    pub height: u32,
}

impl HistogramSeries {
    /// Sorts values into bins of equal width on a logarithmic axis, `per_decade` of them for each
    /// factor of ten, and takes the usual percentiles (nearest rank). Values of zero and below are
    /// counted with the smallest value above zero.
    #[must_use]
    pub fn from_values(name: impl Into<String>, values: &[f64], per_decade: u32) -> HistogramSeries {
        assert!(per_decade >= 1, "a histogram needs bins");
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let least = sorted.iter().copied().find(|value| *value > 0.0).unwrap_or(1.0);
        let bin_of = |value: f64| (value.max(least).log10() * f64::from(per_decade)).floor() as i64;
        let border = |bin: i64| 10f64.powf(bin as f64 / f64::from(per_decade));
        let mut bins: Vec<(f64, f64, u64)> = Vec::new();
        let mut last_bin = None;
        for value in &sorted {
            let bin = bin_of(*value);
            if last_bin != Some(bin) {
                bins.push((border(bin), border(bin + 1), 0));
                last_bin = Some(bin);
            }
            bins.last_mut().expect("just pushed").2 += 1;
        }
        let percentiles = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)]
            .into_iter()
            .filter_map(|(name, share)| {
                let rank = (share * sorted.len() as f64).ceil() as usize;
                let value = sorted.get(rank.checked_sub(1)?)?;
                Some((name.to_owned(), *value))
            })
            .collect();
        HistogramSeries { name: name.into(), bins, percentiles }
    }
}

impl Histogram {
    /// An empty histogram.
    #[must_use]
    pub fn new(title: impl Into<String>, x: Axis) -> Histogram {
        Histogram { title: title.into(), x, series: Vec::new(), height: 180 }
    }

    /// Draws below `top`; returns where it ends.
    pub(crate) fn draw(&self, canvas: &mut Canvas, top: f64) -> f64 {
        let borders = || self.series.iter().flat_map(|series| series.bins.iter());
        let x = Laid::new(&self.x, borders().flat_map(|bin| [bin.0, bin.1]), 10, false);
        let shares = self.series.iter().flat_map(|series| {
            let all = total(series);
            series.bins.iter().map(move |bin| bin.2 as f64 / all)
        });
        let y = Laid::new(&Axis::new("Share of values", Unit::Share).from(0.0), shares.chain([0.0]), 4, true);
        let below_title = draw_title(canvas, top, &self.title);
        let names: Vec<String> = self.series.iter().map(|series| series.legend(self.x.unit)).collect();
        let entries: Vec<LegendEntry> = names
            .iter()
            .enumerate()
            .map(|(colour, name)| LegendEntry { name, colour, stroke: Some(Stroke::Solid) })
            .collect();
        let below_legend = draw_legend(canvas, below_title, &entries);
        let plot = Plot { top: below_legend + 28.0, bottom: below_legend + 28.0 + f64::from(self.height) };
        plot.draw_y(canvas, &y, false);
        for (colour, series) in self.series.iter().enumerate() {
            draw_outline(canvas, plot, (&x, &y), series, colour);
            draw_percentiles(canvas, plot, &x, series, colour);
        }
        plot.draw_x(canvas, &x)
    }
}

impl HistogramSeries {
    fn legend(&self, unit: Unit) -> String {
        let count = self.bins.iter().map(|bin| bin.2).sum::<u64>();
        let mut text = format!("{}: {} values", self.name, format_value(count as f64, Unit::Count));
        for (name, value) in &self.percentiles {
            text.push_str(&format!(", {name} {}", format_value(*value, unit)));
        }
        text
    }
}

fn total(series: &HistogramSeries) -> f64 {
    series.bins.iter().map(|bin| bin.2).sum::<u64>().max(1) as f64
}

fn draw_outline(canvas: &mut Canvas, plot: Plot, (x, y): (&Laid, &Laid), series: &HistogramSeries, colour: usize) {
    let all = total(series);
    let mut path = String::new();
    let mut last_right: Option<f64> = None;
    for (low, high, count) in &series.bins {
        let height = plot.y(y, *count as f64 / all);
        let (Some(left), Some(right), Some(height)) = (plot.x(x, *low), plot.x(x, *high), height) else { continue };
        // Bins that touch are one outline; between others the outline returns to zero.
        match last_right {
            Some(last) if (left - last).abs() < 0.01 => {}
            Some(_) => path.push_str(&format!("V{}H{}", num(plot.bottom), num(left))),
            None => path.push_str(&format!("M{} {}", num(left), num(plot.bottom))),
        }
        path.push_str(&format!("V{}H{}", num(height), num(right)));
        last_right = Some(right);
    }
    if path.is_empty() {
        return;
    }
    path.push_str(&format!("V{}", num(plot.bottom)));
    let index = palette::series(colour);
    let light = palette::SERIES[index].light;
    canvas.raw(&format!("<path d=\"{path}\" class=\"f{index}\" fill=\"{light}\" opacity=\"0.15\"/>"));
    let stroke = stroke_attributes(colour, Stroke::Solid);
    canvas.raw(&format!("<path d=\"{path}\" {stroke}/>"));
}

fn draw_percentiles(canvas: &mut Canvas, plot: Plot, x: &Laid, series: &HistogramSeries, colour: usize) {
    let attributes = stroke_attributes(colour, Stroke::Dashed).replace("stroke-width=\"2\"", "stroke-width=\"1.2\"");
    for (_, value) in &series.percentiles {
        let Some(place) = plot.x(x, *value).filter(|place| (LEFT..=RIGHT + 0.5).contains(place)) else { continue };
        canvas.line(place, plot.top, place, plot.bottom, &attributes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chart;

    #[test]
    fn every_value_is_in_one_bin_and_percentiles_are_ranks() {
        let values: Vec<f64> = (1..=1000).map(|i| f64::from(i) * 1e-6).collect();
        let series = HistogramSeries::from_values("write", &values, 10);
        assert_eq!(series.bins.iter().map(|bin| bin.2).sum::<u64>(), 1000);
        assert!(series.bins.windows(2).all(|pair| pair[0].1 <= pair[1].0 * 1.000_001));
        let found: Vec<f64> = series.percentiles.iter().map(|(_, value)| value * 1e6).collect();
        assert_eq!(found.iter().map(|v| v.round() as u32).collect::<Vec<_>>(), [500, 990, 999]);
        let empty = HistogramSeries::from_values("none", &[], 10);
        assert!(empty.bins.is_empty() && empty.percentiles.is_empty());
        let mut histogram = Histogram::new("t", Axis::new("Latency", Unit::Seconds).log());
        histogram.series = vec![series, empty];
        let svg = Chart::Histogram(histogram).to_svg();
        assert!(svg.contains("write: 1000 values, p50 500 µs, p99 990 µs, p99.9 999 µs"), "{svg}");
    }

    #[test]
    fn zero_is_counted_with_the_smallest() {
        let series = HistogramSeries::from_values("x", &[0.0, 1e-6, -1.0], 10);
        assert_eq!(series.bins.len(), 1);
        assert_eq!(series.bins[0].2, 3);
    }
}
