//! The eviction policy that a word in a profile or on the command line means.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use osier_actor::policy::Source;
use osier_actor::{CodeCache, Compiler, Limits};
use osier_cache::{CacheConfig, Eviction};

use crate::commands::domain;
use crate::exit::{Exit, Failure};

/// A policy of the cache by its name, or one of a WebAssembly module by its path, from the working directory. A word
/// with a `/` in it, or that ends in `.wasm`, is a path. [`Source::policy`] then makes as many as are wanted.
///
/// # Errors
/// A module that cannot be read, is refused, or takes too much to compile.
pub fn find(word: &str) -> Result<Source> {
    if !osier_cache::is_module(word) {
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

/// Policies that were found, by the words that name them: a module is read and compiled once, however many runs use it.
#[derive(Default)]
pub struct Policies {
    found: BTreeMap<String, Source>,
}

impl Policies {
    /// Finds the policy that `word` means; if it is a module, in the file `path`.
    ///
    /// # Errors
    /// As [`find`].
    pub fn add(&mut self, word: &str, path: &str) -> Result<()> {
        let source = find(if osier_cache::is_module(word) { path } else { word })?;
        self.found.insert(word.to_owned(), source);
        Ok(())
    }

    /// Makes the policy of a cache.
    ///
    /// # Errors
    /// Why it cannot be made: there is none of this name, a parameter is not its own, its module fails.
    pub fn make(&self, cache: &CacheConfig, seed: u64) -> Result<Box<dyn Eviction>, String> {
        let shape = cache.shape().map_err(|error| error.to_string())?;
        let by_name = || Source::Name(cache.eviction.clone());
        let source = self.found.get(&cache.eviction).cloned().unwrap_or_else(by_name);
        source.policy(shape, &cache.eviction_parameters, seed).map_err(|error| error.to_string())
    }
}
