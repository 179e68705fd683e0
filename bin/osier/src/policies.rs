//! The eviction policy that a word in a profile or on the command line means.

use anyhow::{Context as _, Result};
use osier_actor::policy::{Source, is_path};
use osier_actor::{CodeCache, Compiler, Limits};

use crate::commands::domain;
use crate::exit::{Exit, Failure};

/// A policy of the cache by its name, or one of a WebAssembly module by its path, from the working directory. A word
/// with a `/` in it, or that ends in `.wasm`, is a path. [`Source::policy`] then makes as many as are wanted.
///
/// # Errors
/// A module that cannot be read, is refused, or takes too much to compile.
pub fn find(word: &str) -> Result<Source> {
    if !is_path(word) {
        return Ok(Source::Name(word.to_owned()));
    }
    // It lasts as long as the compilation: what was compiled stays mapped.
    let directory = tempfile::tempdir().context("making a directory to compile the cache policy in")?;
    let cache = CodeCache::open(directory.path().join("code"))?;
    let (program, arguments) = domain::compiler()?;
    let compiler = Compiler::Child { program: &program, arguments: &arguments, limits: Limits::default() };
    let source = Source::find(word, &cache, &compiler);
    source.map_err(|error| Failure::new(Exit::BadInput, error.to_string()).into())
}
