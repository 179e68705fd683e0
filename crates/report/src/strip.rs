//! A value over time as colour: many rows in little room.

use serde::Serialize;

use crate::axis::Laid;
use crate::chart::{LEFT, Plot, RIGHT, draw_title};
use crate::palette;
use crate::svg::{Anchor, Canvas};
use crate::{Axis, format_value};

const ROW: f64 = 20.0;
const GAP: f64 = 5.0;
/// More rows than this are drawn dense: without gaps, so low that only every [`NAMED_EVERY`]-th has room for its name.
const ROWS_MAX: usize = 24;
const DENSE_ROW: f64 = 6.0;
const NAMED_EVERY: usize = 4;
/// No row has more cells than this: finer ones could not be told apart.
const CELLS_MAX: usize = 360;

/// One row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StripRow {
    /// Its name at the left.
    pub name: String,
    /// Points in order of the horizontal axis; each value holds until the next point.
    pub points: Vec<(f64, f64)>,
}

/// A value over time as colour, one row for each run or part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeatStrip {
    /// What is shown.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The axis of the values: from its low end (dark) to its high end (light).
    pub value: Axis,
    /// The rows.
    pub rows: Vec<StripRow>,
}

impl HeatStrip {
    /// A strip without rows.
    #[must_use]
    pub fn new(title: impl Into<String>, x: Axis, value: Axis) -> HeatStrip {
        HeatStrip { title: title.into(), x, value, rows: Vec::new() }
    }

    /// Draws below `top`; returns where it ends.
    pub(crate) fn draw(&self, canvas: &mut Canvas, top: f64) -> f64 {
        let all = || self.rows.iter().flat_map(|row| row.points.iter());
        let x = Laid::new(&self.x, all().map(|point| point.0), 10, false);
        let scale = Laid::new(&self.value, all().map(|point| point.1), 5, false);
        let below_title = draw_title(canvas, top, &self.title);
        let mut y = below_title + 4.0;
        let widest = self.rows.iter().map(|row| crate::svg::text_width(&row.name)).fold(0.0, f64::max);
        // Names longer than the margin stand above their rows.
        let above = widest > LEFT - 14.0;
        let is_dense = self.rows.len() > ROWS_MAX;
        for (index, row) in self.rows.iter().enumerate() {
            if is_dense {
                if index.is_multiple_of(NAMED_EVERY) {
                    canvas.soft(LEFT - 8.0, y + 9.0, Anchor::End, &row.name);
                }
                draw_row(canvas, (y, DENSE_ROW), &x, &scale, row);
                y += DENSE_ROW;
                continue;
            }
            if above {
                canvas.ink(LEFT, y + 12.0, Anchor::Start, &row.name);
                y += 17.0;
            } else {
                canvas.ink(LEFT - 8.0, y + 14.0, Anchor::End, &row.name);
            }
            draw_row(canvas, (y, ROW), &x, &scale, row);
            y += ROW + GAP;
        }
        let plot = Plot { top: below_title, bottom: y };
        let bottom = plot.draw_x(canvas, &x);
        self.draw_scale(canvas, bottom + 2.0, &scale)
    }

    fn draw_scale(&self, canvas: &mut Canvas, top: f64, scale: &Laid) -> f64 {
        let (cells, width) = (60, 4.0);
        let low = format_value(scale.low, self.value.unit);
        let high = format_value(scale.high, self.value.unit);
        let left = LEFT + crate::svg::text_width(&low) + 8.0;
        canvas.soft(LEFT, top + 11.0, Anchor::Start, &low);
        for cell in 0..cells {
            let colour = palette::heat(f64::from(cell) / f64::from(cells - 1));
            let x = left + f64::from(cell) * width;
            canvas.rect(x, top, width + 0.5, 14.0, &format!("fill=\"{colour}\" shape-rendering=\"crispEdges\""));
        }
        let right = left + f64::from(cells) * width;
        canvas.soft(right + 8.0, top + 11.0, Anchor::Start, &format!("{high}  {}", self.value.label));
        top + 22.0
    }
}

fn draw_row(canvas: &mut Canvas, (y, height): (f64, f64), x: &Laid, scale: &Laid, row: &StripRow) {
    let width = (RIGHT - LEFT) / CELLS_MAX as f64;
    let mut colours: Vec<Option<String>> = Vec::with_capacity(CELLS_MAX);
    let mut next = 0;
    let mut holding: Option<f64> = None;
    for cell in 0..CELLS_MAX {
        let end = (cell + 1) as f64 / CELLS_MAX as f64;
        let mut hottest: Option<f64> = None;
        while let Some((at, value)) = row.points.get(next) {
            match x.place(*at) {
                Some(place) if place > end && cell + 1 < CELLS_MAX => break,
                _ => {}
            }
            holding = scale.place(*value);
            hottest = [hottest, holding].into_iter().flatten().reduce(f64::max);
            next += 1;
        }
        // Within a cell the highest value counts: a short peak is what one looks for.
        colours.push(hottest.or(holding).map(palette::heat));
    }
    let mut cell = 0;
    while cell < CELLS_MAX {
        let same = colours[cell..].iter().take_while(|colour| **colour == colours[cell]).count();
        if let Some(colour) = &colours[cell] {
            let left = LEFT + cell as f64 * width;
            canvas.rect(
                left,
                y,
                same as f64 * width + 0.3,
                height,
                &format!("fill=\"{colour}\" shape-rendering=\"crispEdges\""),
            );
        }
        cell += same;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chart, Unit};

    #[test]
    fn many_rows_are_dense_and_every_one_is_there() {
        let axis = Axis::new("Time", Unit::Seconds);
        let mut strip = HeatStrip::new("t", axis, Axis::new("Busy", Unit::Share).from(0.0).to(1.0));
        for row in 0..64 {
            strip.rows.push(StripRow { name: format!("die {row}"), points: vec![(0.0, 0.5), (1.0, 0.5)] });
        }
        let svg = Chart::Strip(strip).to_svg();
        let colour = palette::heat(0.5);
        assert!(svg.matches(&colour).count() >= 64, "{svg}");
        assert_eq!(svg.matches(">die ").count(), 64 / NAMED_EVERY);
    }

    #[test]
    fn a_short_peak_is_seen_and_equal_cells_are_one() {
        let axis = Axis::new("Time", Unit::Seconds);
        let mut strip = HeatStrip::new("t", axis, Axis::new("Temperature", Unit::Celsius).from(0.0).to(100.0));
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i), 0.0)).collect();
        points[50_000].1 = 100.0;
        strip.rows.push(StripRow { name: "smartssd".to_owned(), points });
        let svg = Chart::Strip(strip).to_svg();
        // Twice in the scale's own ends, once for the peak.
        assert_eq!(svg.matches("#fde725").count(), 2, "{svg}");
        assert!(svg.matches("<rect").count() < 70);
    }
}
