//! The source checker: the rules of the house that no compiler checks.
//!
//! It runs as `cargo xtask tidy` and as a test of this crate. Each rule is a function over one file, and each
//! has a test with a planted violation, because a check that cannot fail is none.

mod crates;
mod lexer;
mod links;
mod promises;
mod rules;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offence {
    /// The file, from the workspace's directory.
    pub path: String,
    /// The line, from 1; 0 when it is about the whole file.
    pub line: usize,
    /// What is wrong, and what to do.
    pub text: String,
}

impl Offence {
    fn new(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into() }
    }
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}

/// Checks the workspace and prints what it finds.
///
/// # Errors
/// When files cannot be read or cargo cannot be asked.
pub fn run(root: &Path) -> Result<ExitCode> {
    let (files, offences) = check(root)?;
    for offence in &offences {
        println!("{offence}");
    }
    println!("tidy: {files} files, {} offences", offences.len());
    Ok(if offences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How many files were looked at, and what is wrong with them.
fn check(root: &Path) -> Result<(usize, Vec<Offence>)> {
    let mut offences = crates::check(root)?;
    let paths = files(root)?;
    let (mut functions, mut specification) = (BTreeSet::new(), String::new());
    for path in &paths {
        let bytes = fs::read(root.join(path)).with_context(|| format!("reading {}", path.display()))?;
        // What is not text (prebuilt modules, pictures) has no lines to check.
        let Ok(text) = String::from_utf8(bytes) else { continue };
        offences.extend(rules::check_file(&path.to_string_lossy(), &text));
        // The checker's own tests name pages that do not exist.
        if !path.starts_with("xtask") {
            let exists = |target: &Path| root.join(target).exists();
            offences.extend(links::check(&path.to_string_lossy(), &text, &exists));
        }
        if path.extension().is_some_and(|extension| extension == "rs") {
            promises::functions(&lexer::Source::new(&text).code, &mut functions);
        }
        if path.as_os_str() == promises::SPECIFICATION {
            specification = text;
        }
    }
    offences.extend(promises::check(&specification, &functions, &crate::bench::names(root)?));
    Ok((paths.len(), offences))
}

/// Every file that git tracks or would track.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().context("running git")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    let mut paths: Vec<PathBuf> = text.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
    // A deleted file is listed until its deletion is staged, and one in conflict more than once.
    paths.retain(|path| root.join(path).is_file());
    paths.sort();
    paths.dedup();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let (files, offences) = check(&crate::root().unwrap()).unwrap();
        assert!(files > 20, "only {files} files were found");
        let lines: Vec<String> = offences.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{}", lines.join("\n"));
    }
}
