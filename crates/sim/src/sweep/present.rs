//! The results of a sweep as CSV and as a page with a chart for each figure.

use std::collections::BTreeMap;

use osier_report::{
    Axis as ChartAxis, BarChart, BarGroup, Chart, HeatStrip, LineChart, Report, Series, StripRow, Table, Tone, Unit,
};

use super::{Row, Sweep, Value};

/// Most lines or bars of a chart.
const SERIES_MAX: usize = 8;
/// Most rows that failed which the page lists.
const FAILED_SHOWN_MAX: usize = 50;

/// All rows, sorted by point: what was set, the figures, and the error of a row that has none.
///
/// # Panics
/// If a row has not one figure for each column, which is a bug of the caller.
#[must_use]
pub fn to_csv(sweep: &Sweep, digest: &str, rows: &[Row]) -> String {
    let axes = sweep.axes.iter().map(|axis| axis.key.as_str());
    let mut table = Table::new();
    for name in ["sweep", "point"].into_iter().chain(axes).chain(["workload", "seed"]) {
        table = table.left(name);
    }
    for column in sweep.columns.iter().map(String::as_str).chain(["error"]) {
        table = table.right(column);
    }
    for row in sorted(rows) {
        let mut cells = vec![digest.to_owned(), row.point.to_string()];
        let point = sweep.point(row.point);
        cells.extend(point.set[sweep.set.len()..].iter().map(|(_, value)| value.to_string()));
        cells.extend([point.workload, point.seed.to_string()]);
        match &row.figures {
            Ok(figures) => {
                assert_eq!(figures.len(), sweep.columns.len(), "a row has a figure for each column");
                cells.extend(figures.iter().map(|figure| figure.map_or_else(String::new, |figure| figure.to_string())));
                cells.push(String::new());
            }
            Err(error) => {
                cells.extend(sweep.columns.iter().map(|_| String::new()));
                cells.push(error.clone());
            }
        }
        table.row(cells);
    }
    table.to_csv()
}

/// A page: a chart for each figure over the first axis, a line or bar for each combination of the others, with the mean
/// over seeds; a map of colours where the first two axes are numbers; and the rows that failed.
#[must_use]
pub fn to_report(sweep: &Sweep, digest: &str, rows: &[Row]) -> Report {
    let rows = sorted(rows);
    let failed: Vec<&Row> = rows.iter().copied().filter(|row| row.figures.is_err()).collect();
    let title = if sweep.description.is_empty() { "Sweep" } else { &sweep.description };
    let subtitle = format!("profile {}, {} points, sweep {digest}", sweep.profile, sweep.points());
    let mut report = Report::new(title, subtitle);
    let set = sweep.set.iter().map(|(key, value)| format!("{key} = {value}, for every point"));
    let axes = sweep.axes.iter().map(|axis| {
        let values: Vec<String> = axis.values.iter().map(Value::to_string).collect();
        format!("{}: {}", axis.key, values.join(", "))
    });
    report.list(set.chain(axes));
    if sweep.seeds.len() > 1 {
        report.text(format!("Charts show the mean over {} seeds.", sweep.seeds.len()));
    }
    for (column, name) in sweep.columns.iter().enumerate() {
        let lines = lines(sweep, &rows, column);
        let caption = if lines.len() > SERIES_MAX {
            format!("The first {SERIES_MAX} of {} combinations; the CSV has all.", lines.len())
        } else {
            String::new()
        };
        let mut charts = vec![chart(sweep, name, &lines)];
        charts.extend(heat_map(sweep, name, &rows, column));
        report.figure(caption, charts);
    }
    if !failed.is_empty() {
        report.heading("Points without a result");
        report.note(Tone::Bad, format!("{} of {} points failed.", failed.len(), sweep.points()));
        let items = failed.iter().take(FAILED_SHOWN_MAX);
        report.list(items.map(|row| match &row.figures {
            Err(error) => format!("point {}: {error}", row.point),
            Ok(_) => unreachable!("only failed rows were kept"),
        }));
    }
    report
}

fn sorted(rows: &[Row]) -> Vec<&Row> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| row.point);
    rows
}

/// The mean of a few figures.
#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, figure: u64) {
        self.sum += figure as f64;
        self.count += 1;
    }

    fn get(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// A line for each combination of all but the first axis and the seeds: its name, and a mean for each value of the
/// first axis.
fn lines(sweep: &Sweep, rows: &[&Row], column: usize) -> Vec<(String, Vec<Option<f64>>)> {
    let first_values = sweep.axes.first().map_or(1, |axis| axis.values.len());
    let others = sweep.axes.len().min(1)..sweep.axes.len() + 1;
    let mut lines: BTreeMap<Vec<usize>, Vec<Mean>> = BTreeMap::new();
    for row in rows {
        let digits = sweep.digits(row.point);
        let line = lines.entry(digits[others.clone()].to_vec()).or_insert_with(|| vec![Mean::default(); first_values]);
        if let Some(figure) = row.figures.as_ref().ok().and_then(|figures| figures[column]) {
            line[if sweep.axes.is_empty() { 0 } else { digits[0] }].add(figure);
        }
    }
    let named = |(digits, means): (Vec<usize>, Vec<Mean>)| {
        (line_name(sweep, &digits), means.into_iter().map(Mean::get).collect())
    };
    lines.into_iter().map(named).collect()
}

fn line_name(sweep: &Sweep, digits: &[usize]) -> String {
    let (workload, of_axes) = digits.split_last().expect("the workload is the last digit");
    let axes = sweep.axes.iter().skip(1).zip(of_axes).map(|(axis, digit)| axis.values[*digit].to_string());
    let workload = (sweep.workloads.len() > 1 || of_axes.is_empty()).then(|| sweep.workloads[*workload].clone());
    axes.chain(workload).collect::<Vec<_>>().join(", ")
}

fn chart(sweep: &Sweep, name: &str, lines: &[(String, Vec<Option<f64>>)]) -> Chart {
    let y = ChartAxis::new(name, Unit::Number);
    let lines = &lines[..lines.len().min(SERIES_MAX)];
    let first = sweep.axes.first();
    let numbers = first.and_then(|axis| numbers(&axis.values));
    if let (Some(axis), Some(numbers)) = (first, numbers) {
        let mut chart = LineChart::new(name, ChartAxis::new(&axis.key, Unit::Number), y.from(0.0));
        for (line, means) in lines {
            let mut points: Vec<(f64, f64)> =
                numbers.iter().zip(means).map(|(x, mean)| (*x, mean.unwrap_or(f64::NAN))).collect();
            points.sort_by(|left, right| left.0.total_cmp(&right.0));
            chart.series.push(Series::new(line, points));
        }
        return chart.into();
    }
    let mut chart = BarChart::new(name, y, lines.iter().map(|(line, _)| line.clone()).collect());
    let groups =
        first.map_or_else(|| vec![sweep.profile.clone()], |axis| axis.values.iter().map(Value::to_string).collect());
    for (index, group) in groups.into_iter().enumerate() {
        let values = lines.iter().map(|(_, means)| means[index].unwrap_or(f64::NAN)).collect();
        chart.groups.push(BarGroup::new(group, values));
    }
    chart.into()
}

/// The values as numbers, if there are two or more and all are.
fn numbers(values: &[Value]) -> Option<Vec<f64>> {
    let number = |value: &Value| match value {
        Value::Integer(value) => Some(*value as f64),
        Value::Bool(_) | Value::Text(_) => None,
    };
    values.iter().map(number).collect::<Option<Vec<f64>>>().filter(|numbers| numbers.len() > 1)
}

/// The first axis to the right, a row of colours for each value of the second; the mean over all others.
fn heat_map(sweep: &Sweep, name: &str, rows: &[&Row], column: usize) -> Option<Chart> {
    let [first, second, ..] = &sweep.axes[..] else { return None };
    let (xs, _) = (numbers(&first.values)?, numbers(&second.values)?);
    let mut means = vec![vec![Mean::default(); first.values.len()]; second.values.len()];
    for row in rows {
        let digits = sweep.digits(row.point);
        if let Some(figure) = row.figures.as_ref().ok().and_then(|figures| figures[column]) {
            means[digits[1]][digits[0]].add(figure);
        }
    }
    let title = format!("{name}: {} by {}", second.key, first.key);
    let mut strip = HeatStrip::new(title, ChartAxis::new(&first.key, Unit::Number), ChartAxis::new(name, Unit::Number));
    for (value, means) in second.values.iter().zip(means) {
        let points = xs.iter().zip(means).map(|(x, mean)| (*x, mean.get().unwrap_or(f64::NAN)));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|left, right| left.0.total_cmp(&right.0));
        // A value holds until the next point, so the last one needs an end.
        if let [.., (before, _), (last, value)] = points[..] {
            points.push((2.0 * last - before, value));
        }
        strip.rows.push(StripRow { name: value.to_string(), points });
    }
    Some(strip.into())
}
