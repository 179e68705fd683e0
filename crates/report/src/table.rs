//! Tables: aligned text, CSV and JSON from one value.

use std::collections::BTreeMap;

use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::Tone;

/// On which side of its column a text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Align {
    /// Words.
    Left,
    /// Figures.
    Right,
}

/// A column's head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Column {
    /// Its name, with the unit if its cells have none.
    pub name: String,
    /// On which side its cells stand.
    pub align: Align,
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// What stands in it.
    pub text: String,
    /// Whether it is good, bad or neither.
    pub tone: Tone,
}

impl Cell {
    /// A cell that is good news.
    #[must_use]
    pub fn good(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), tone: Tone::Good }
    }

    /// A cell that is bad news.
    #[must_use]
    pub fn bad(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), tone: Tone::Bad }
    }

    /// Good if `holds`, else bad.
    #[must_use]
    pub fn verdict(holds: bool, text: impl Into<String>) -> Cell {
        if holds { Cell::good(text) } else { Cell::bad(text) }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell { text: text.into(), tone: Tone::Plain }
    }
}

/// Rows under named columns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table without columns.
    #[must_use]
    pub fn new() -> Table {
        Table::default()
    }

    /// The same with a column of words.
    #[must_use]
    pub fn left(self, name: impl Into<String>) -> Table {
        self.column(name, Align::Left)
    }

    /// The same with a column of figures.
    #[must_use]
    pub fn right(self, name: impl Into<String>) -> Table {
        self.column(name, Align::Right)
    }

    fn column(mut self, name: impl Into<String>, align: Align) -> Table {
        assert!(self.rows.is_empty(), "columns come before rows");
        self.columns.push(Column { name: name.into(), align });
        self
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has not one cell for each column, which is a bug of the caller.
    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) -> &mut Table {
        let cells: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.columns.len(), "a row has one cell for each column");
        self.rows.push(cells);
        self
    }

    /// The columns.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The rows.
    #[must_use]
    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// Aligned text with a rule under the head, each line ended by a line feed. Widths are those of
    /// a terminal, where some characters take two places and some none. Control characters are
    /// replaced: a name must not be able to steer the terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let heads: Vec<String> = self.columns.iter().map(|column| printable(&column.name)).collect();
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(|cell| printable(&cell.text)).collect()).collect();
        let widths: Vec<usize> = (0..heads.len())
            .map(|index| {
                let cells = rows.iter().map(|row| row[index].width());
                cells.chain([heads[index].width()]).max().unwrap_or(0)
            })
            .collect();
        let mut text = self.text_line(&heads, &widths);
        let rules: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
        text.push_str(&self.text_line(&rules, &widths));
        for row in &rows {
            text.push_str(&self.text_line(row, &widths));
        }
        text
    }

    fn text_line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for (index, cell) in cells.iter().enumerate() {
            let padding = " ".repeat(widths[index].saturating_sub(cell.width()));
            if index > 0 {
                line.push_str("  ");
            }
            match self.columns[index].align {
                Align::Left => line.extend([cell.as_str(), &padding]),
                Align::Right => line.extend([padding.as_str(), cell]),
            }
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }

    /// Comma-separated values (RFC 4180), head included.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut csv = csv_line(self.columns.iter().map(|column| column.name.as_str()));
        for row in &self.rows {
            csv.push_str(&csv_line(row.iter().map(|cell| cell.text.as_str())));
        }
        csv
    }

    /// A list with one object for each row, as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let rows: Vec<BTreeMap<&str, &str>> = self
            .rows
            .iter()
            .map(|row| {
                let names = self.columns.iter().map(|column| column.name.as_str());
                names.zip(row.iter().map(|cell| cell.text.as_str())).collect()
            })
            .collect();
        serde_json::to_string_pretty(&rows).expect("plain text always serializes")
    }
}

fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '\u{FFFD}' } else { character }).collect()
}

fn csv_line<'a>(fields: impl Iterator<Item = &'a str>) -> String {
    let fields: Vec<String> = fields.map(csv_field).collect();
    fields.join(",") + "\n"
}

fn csv_field(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new().left("run").right("MB/s");
        table.row(["adaptive", "1900"]);
        table.row(["東京", "9"]);
        table.row(["e\u{301}te", "12,5"]);
        table
    }

    #[test]
    fn columns_stand_under_each_other_whatever_the_characters() {
        let text = table().to_text();
        let expected = "run       MB/s\n\
                        ────────  ────\n\
                        adaptive  1900\n\
                        東京         9\n\
                        e\u{301}te       12,5\n";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.width() == 14));
    }

    #[test]
    fn a_cell_cannot_steer_the_terminal() {
        let mut table = Table::new().left("a");
        table.row(["\u{1b}[2Jgone\r\n"]);
        assert!(table.to_text().lines().nth(2).unwrap().chars().all(|c| !c.is_control()));
    }

    #[test]
    fn csv_and_json_keep_what_was_put_in() {
        let mut table = table();
        table.row(["say \"hi\"", "1\n2"]);
        let csv = table.to_csv();
        assert!(csv.contains("\"12,5\"\n") && csv.ends_with("\"say \"\"hi\"\"\",\"1\n2\"\n"), "{csv}");
        let json: Vec<BTreeMap<String, String>> = serde_json::from_str(&table.to_json()).unwrap();
        assert_eq!(json[3]["run"], "say \"hi\"");
    }

    #[test]
    #[should_panic(expected = "one cell for each column")]
    fn a_row_of_another_length_is_a_bug() {
        table().row(["alone"]);
    }
}
