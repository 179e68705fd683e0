//! Logs: to standard error, as much as `OSIER_LOG` or the configuration asks for.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::exit::{Exit, Failure};

/// The environment variable that says what to log.
const VARIABLE: &str = "OSIER_LOG";
/// What is logged when nobody says: what a person should know.
const DEFAULT: &str = "warn";

/// Starts logging. The environment goes before the configuration.
///
/// # Errors
/// When what is asked for is not a filter.
pub fn start(configured: Option<&str>) -> Result<(), Failure> {
    let from_environment = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let directives = from_environment.as_deref().or(configured).unwrap_or(DEFAULT);
    let filter = EnvFilter::try_new(directives).map_err(|cause| {
        let text = format!(
            "`{directives}` does not say what to log: {cause}; use error, warn, info, debug or trace, \
             or a target as in `osier_image=debug`"
        );
        Failure::new(Exit::BadInput, text)
    })?;
    let stderr = std::io::stderr();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(stderr.is_terminal())
        .with_writer(std::io::stderr)
        // It would say so on standard error, and panic where that has been closed.
        .log_internal_errors(false)
        .init();
    Ok(())
}
