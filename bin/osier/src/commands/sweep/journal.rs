//! The results of a sweep while it runs: a line for each finished point, on disk before the next one is taken.
//!
//! ```text
//! osier-sweep 1 DIGEST POINTS
//! CRC32C {"point":3,"figures":{"Ok":[912345,null]}}
//! ```
//!
//! What a kill or a loss of power leaves is a prefix of the file with its last line torn: that line is dropped, and its
//! point is done again. A line that is wrong anywhere else is damage, and refused; so is the journal of another sweep.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use osier_sim::sweep::{Row, Sweep};

use crate::exit::{Exit, Failure};

/// The version of the format.
const VERSION: u32 = 1;

/// An open journal, locked for this process.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens the journal of a sweep, or begins it, and gives the rows that it has.
    ///
    /// # Errors
    /// When it is of another sweep, damaged, in use by another process, or what the system says.
    pub fn open(path: &Path, sweep: &Sweep, digest: &str) -> Result<(Journal, BTreeMap<u64, Row>)> {
        let opening = || format!("opening the journal {}", path.display());
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).with_context(opening)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let text = format!("another process runs this sweep: it has locked {}; wait for it", path.display());
                return Err(Failure::new(Exit::Busy, text).into());
            }
            Err(TryLockError::Error(cause)) => return Err(cause).with_context(opening),
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).with_context(opening)?;
        let head = format!("osier-sweep {VERSION} {digest} {}\n", sweep.points());
        let mut journal = Journal { path: path.to_owned(), file };
        // Also a head that was cut short: nothing was done yet.
        if head.as_bytes().starts_with(&text) && text.len() < head.len() {
            journal.cut(0)?;
            journal.append(head.as_bytes())?;
            journal.sync_directory()?;
            return Ok((journal, BTreeMap::new()));
        }
        let Some(lines) = text.strip_prefix(head.as_bytes()) else {
            let text = format!(
                "{} has the results of another sweep, or of another version of it, of its profile, of its workloads or of \
                 osier; finish that one, or remove the file, or name another with --out",
                path.display()
            );
            return Err(Failure::new(Exit::BadInput, text).into());
        };
        let (rows, whole) = journal.rows(lines, sweep)?;
        journal.cut((head.len() + whole) as u64)?;
        Ok((journal, rows))
    }

    /// The rows of the lines, and how many bytes of them are whole.
    fn rows(&self, lines: &[u8], sweep: &Sweep) -> Result<(BTreeMap<u64, Row>, usize)> {
        let mut rows = BTreeMap::new();
        let mut whole = 0;
        let ends = lines.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        for (number, end) in ends.enumerate() {
            let line = &lines[whole..end - 1];
            let row = parse(line).filter(|row| {
                let columns = row.figures.as_ref().map_or(sweep.columns.len(), Vec::len);
                row.point < sweep.points() && columns == sweep.columns.len()
            });
            let Some(row) = row else {
                // The last line may be torn and yet end, where a file system put its blocks on disk out of order.
                if end == lines.len() {
                    break;
                }
                let (path, line) = (self.path.display(), number + 2);
                let text = format!("line {line} of the journal {path} is damaged; remove the file to begin anew");
                return Err(Failure::new(Exit::BadInput, text).into());
            };
            rows.insert(row.point, row);
            whole = end;
        }
        Ok((rows, whole))
    }

    /// Keeps a row. When this returns, it is on disk.
    ///
    /// # Errors
    /// What the system says.
    pub fn keep(&mut self, row: &Row) -> Result<()> {
        let json = serde_json::to_string(row).context("writing a row as JSON")?;
        self.append(format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes())).as_bytes())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes).and_then(|()| self.file.sync_data());
        written.with_context(|| format!("writing the journal {}", self.path.display()))
    }

    fn cut(&mut self, length: u64) -> Result<()> {
        let cut = self.file.set_len(length).and_then(|()| self.file.seek(SeekFrom::End(0)));
        cut.map(drop).with_context(|| format!("cutting the torn end off the journal {}", self.path.display()))
    }

    fn sync_directory(&self) -> Result<()> {
        super::sync_directory(&self.path)
    }

    /// Removes the journal, once its results are elsewhere.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path).with_context(|| format!("removing the journal {}", self.path.display()))
    }
}

fn parse(line: &[u8]) -> Option<Row> {
    let (sum, json) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let is_whole = u32::from_str_radix(sum, 16) == Ok(crc32c::crc32c(json.as_bytes()));
    is_whole.then(|| serde_json::from_str(json).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep() -> Sweep {
        let text = "profile = \"p\"\nworkloads = [\"w\"]\nseeds = [1, 2, 3, 4]\ncolumns = [\"a\", \"b\"]\n";
        Sweep::parse("s", text, &["a", "b"]).unwrap()
    }

    fn rows() -> Vec<Row> {
        let figures =
            |point: u64| if point == 2 { Err("not \n \"so\"".to_owned()) } else { Ok(vec![Some(point), None]) };
        [3, 0, 2, 1].map(|point| Row { point, figures: figures(point) }).to_vec()
    }

    fn written() -> (tempfile::TempDir, PathBuf, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let (mut journal, rows_before) = Journal::open(&path, &sweep(), "d").unwrap();
        assert!(rows_before.is_empty());
        rows().iter().for_each(|row| journal.keep(row).unwrap());
        let bytes = std::fs::read(&path).unwrap();
        (dir, path, bytes)
    }

    #[test]
    fn a_journal_cut_anywhere_gives_the_rows_that_were_whole_and_takes_the_others_again() {
        let (_dir, path, bytes) = written();
        for length in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..length]).unwrap();
            let whole = bytes[..length].iter().filter(|byte| **byte == b'\n').count().saturating_sub(1);
            let (mut journal, kept) = Journal::open(&path, &sweep(), "d").unwrap();
            let expected: BTreeMap<u64, Row> = rows()[..whole].iter().map(|row| (row.point, row.clone())).collect();
            assert_eq!(kept, expected, "cut to {length}");
            rows()[whole..].iter().for_each(|row| journal.keep(row).unwrap());
            drop(journal);
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "cut to {length}");
        }
    }

    #[test]
    fn a_flipped_bit_is_refused_or_costs_the_last_lines_and_never_changes_a_row() {
        let (_dir, path, bytes) = written();
        let all: BTreeMap<u64, Row> = rows().into_iter().map(|row| (row.point, row)).collect();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, &damaged).unwrap();
            if let Ok((_, kept)) = Journal::open(&path, &sweep(), "d") {
                assert!(kept.iter().all(|(point, row)| all[point] == *row), "byte {at}");
                assert!(kept.len() >= all.len() - 2, "byte {at}: {} rows", kept.len());
            }
        }
    }

    #[test]
    fn the_journal_of_another_sweep_and_one_in_use_are_refused() {
        let (_dir, path, bytes) = written();
        let error = Journal::open(&path, &sweep(), "e").unwrap_err().to_string();
        assert!(error.contains("another sweep") && error.contains("--out"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        let held = Journal::open(&path, &sweep(), "d").unwrap();
        let error = Journal::open(&path, &sweep(), "d").unwrap_err().to_string();
        assert!(error.contains("another process"), "{error}");
        drop(held);
    }
}
