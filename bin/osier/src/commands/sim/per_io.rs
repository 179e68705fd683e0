//! A line for each request, as CSV.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use osier_sim::run::Io;
use osier_sim::run::latency::{cause_names, met_name};
use osier_sim::run::report::outcome_name;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::whole_file::WholeFile;

/// Bytes of lines that are written, or compressed into a frame of their own, at once. Frames follow each other in one
/// file (RFC 8878, 3.1).
const CHUNK_BYTES: usize = 1 << 20;

/// See the module.
pub struct PerIo {
    file: WholeFile,
    compress: bool,
    lines: String,
}

impl PerIo {
    /// Begins a log. It is compressed if the name ends in `.zst`.
    pub fn create(path: &Path, overwrite: bool) -> Result<PerIo> {
        let file = WholeFile::create(path, "log of requests", overwrite)?;
        let compress = path.extension().is_some_and(|extension| extension == "zst");
        let mut lines = "number,tenant,op,address,bytes,arrived_ns,submitted_ns,completed_ns,outcome,met".to_owned();
        for cause in cause_names() {
            let _ = write!(lines, ",{cause}_ns");
        }
        lines.push('\n');
        Ok(PerIo { file, compress, lines })
    }

    /// Adds a line.
    pub fn add(&mut self, io: &Io) -> Result<()> {
        let (request, outcome, met) = (&io.request, outcome_name(io.outcome), met_name(io.met));
        let (number, tenant, op) = (io.number, request.tenant, request.op.name());
        let (address, bytes) = (request.address, request.bytes);
        let (arrived, submitted, completed) = (request.at.0, io.submitted.0, io.completed.0);
        // Writing to a string does not fail.
        let _ = write!(
            self.lines,
            "{number},{tenant},{op},{address},{bytes},{arrived},{submitted},{completed},{outcome},{met}"
        );
        for part in io.parts {
            let _ = write!(self.lines, ",{part}");
        }
        self.lines.push('\n');
        if self.lines.len() >= CHUNK_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let written = if self.compress {
            self.file.write_all(&compress_to_vec(self.lines.as_bytes(), CompressionLevel::Fastest))
        } else {
            self.file.write_all(self.lines.as_bytes())
        };
        self.lines.clear();
        written.map_err(|cause| self.file.failure(cause))
    }

    /// The log is complete.
    pub fn keep(mut self) -> Result<()> {
        self.flush()?;
        self.file.keep()
    }
}
