//! Results on standard output: tables for people, JSON for programs.

use std::io::{self, Write};

use serde::Serialize;

/// Between two columns.
const GAP: &str = "  ";

/// Prints a line to standard error. Whoever read it may have gone: what serves others goes on then, and does not panic
/// as `eprintln!` does.
macro_rules! tell {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        _ = writeln!(std::io::stderr(), $($part)*);
    }};
}
pub(crate) use tell;

/// Prints lines to standard output. A reader who has seen enough (`osier device ls | head`) is no error.
///
/// # Errors
/// What the system said, but for a closed pipe.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Prints a value as indented JSON.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
    print(&(text + "\n"))
}

/// Rows of words under a heading, in columns. Columns whose cells all begin with a digit stand flush right.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    columns: usize,
}

impl Table {
    /// A table with these column headings.
    pub fn new(headings: &[&str]) -> Self {
        let heading = headings.iter().map(|text| (*text).to_owned()).collect();
        Self { rows: vec![heading], columns: headings.len() }
    }

    /// Adds a row, with a cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns, "a row has a cell for each column");
        self.rows.push(cells);
    }

    /// The table as lines, without blanks at their ends.
    pub fn text(&self) -> String {
        let widths: Vec<usize> = (0..self.columns).map(|column| self.width(column)).collect();
        let right: Vec<bool> = (0..self.columns).map(|column| self.is_number(column)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let blanks = " ".repeat(widths[column] - cell.chars().count());
                let parts = if right[column] { [&blanks, cell] } else { [cell, &blanks] };
                line.push_str(if column == 0 { "" } else { GAP });
                parts.iter().for_each(|part| line.push_str(part));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn width(&self, column: usize) -> usize {
        self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    }

    fn is_number(&self, column: usize) -> bool {
        let cells = &self.rows[1..];
        !cells.is_empty() && cells.iter().all(|row| row[column].starts_with(|c: char| c.is_ascii_digit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_numbers_stand_flush_right() {
        let mut table = Table::new(&["NAME", "SIZE", "NOTE"]);
        table.row(vec!["a".into(), "1 B".into(), String::new()]);
        table.row(vec!["longer".into(), "100 B".into(), "é".into()]);
        assert_eq!(table.text(), "NAME     SIZE  NOTE\na         1 B\nlonger  100 B  é\n");
        assert_eq!(Table::new(&["NAME"]).text(), "NAME\n");
    }
}
