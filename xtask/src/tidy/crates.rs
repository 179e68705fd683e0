//! The one-way list of crates, held by what cargo itself says about them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Offence;

/// The crates, lowest first: one may use only those before it. What they are is in `ARCHITECTURE.md`.
pub const ORDER: [&str; 19] = [
    "osier-flash",
    "osier-cache",
    "osier-link",
    "osier-device",
    "osier-nvme",
    "osier-pmr",
    "osier-domain",
    "osier-sched",
    "osier-image",
    "osier-actor",
    "osier-client",
    "osier-capi",
    "osier-preload",
    "osier-fs",
    "osier-front",
    "osier-report",
    "osier-sim",
    "osier-runtime",
    "osier",
];

/// The crates that are functions of their inputs: no clock, thread, file, environment or chance.
pub const PURE: [&str; 9] = [
    "osier-flash",
    "osier-cache",
    "osier-link",
    "osier-device",
    "osier-nvme",
    "osier-domain",
    "osier-sched",
    "osier-sim",
    "osier-report",
];

/// The crates that may have `unsafe`.
pub const UNSAFE: [&str; 6] =
    ["osier-pmr", "osier-actor", "osier-client", "osier-capi", "osier-preload", "osier-front"];

/// Checks every dependency between the workspace's crates.
///
/// # Errors
/// When cargo does not answer.
pub fn check(root: &Path) -> Result<Vec<Offence>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let output = Command::new(cargo).args(arguments).current_dir(root).output().context("running cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata = serde_json::from_slice(&output.stdout).context("cargo metadata gave no JSON")?;
    Ok(check_metadata(&metadata))
}

fn check_metadata(metadata: &Value) -> Vec<Offence> {
    let mut offences = Vec::new();
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        // The chores are no part of the product.
        if name != "xtask" {
            check_package(name, package, &mut offences);
        }
    }
    offences
}

fn check_package(name: &str, package: &Value, offences: &mut Vec<Offence>) {
    let place = |name: &str| ORDER.iter().position(|known| *known == name);
    let mut offend = |text: String| offences.push(Offence::new("cargo metadata", 0, text));
    let Some(own) = place(name) else {
        return offend(format!("crate `{name}` has no place in the one-way list of xtask/src/tidy/crates.rs"));
    };
    let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
    for dependency in dependencies {
        let target = dependency["name"].as_str().unwrap_or_default();
        // Tests may look from above; what is shipped may not.
        let shipped = dependency["kind"].as_str() != Some("dev");
        let Some(other) = place(target).filter(|_| shipped) else { continue };
        if other >= own {
            offend(format!("`{name}` uses `{target}`, which is above it; an arrow may only point down"));
        }
        if PURE.contains(&name) && !PURE.contains(&target) {
            offend(format!("`{name}` is pure and uses `{target}`, which is not"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn offences(packages: &Value) -> Vec<String> {
        check_metadata(&json!({ "packages": packages })).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_arrow_that_points_up_is_found() {
        let up = json!([{ "name": "osier-flash", "dependencies": [{ "name": "osier-device", "kind": null }] }]);
        assert!(offences(&up)[0].contains("only point down"));
        let down = json!([{ "name": "osier-device", "dependencies": [{ "name": "osier-flash", "kind": null }] }]);
        assert!(offences(&down).is_empty());
        let test = json!([{ "name": "osier-flash", "dependencies": [{ "name": "osier-device", "kind": "dev" }] }]);
        assert!(offences(&test).is_empty());
    }

    #[test]
    fn a_crate_without_a_place_is_found() {
        assert!(offences(&json!([{ "name": "osier-new", "dependencies": [] }]))[0].contains("no place"));
        assert!(offences(&json!([{ "name": "xtask", "dependencies": [] }])).is_empty());
    }

    #[test]
    fn a_pure_crate_on_an_impure_one_is_found() {
        let impure = json!([{ "name": "osier-sim", "dependencies": [{ "name": "osier-actor", "kind": null }] }]);
        assert!(offences(&impure)[0].contains("is pure"));
    }

    #[test]
    fn the_lists_name_only_crates_that_have_a_place() {
        assert!(PURE.iter().chain(&UNSAFE).all(|name| ORDER.contains(name)));
    }
}
