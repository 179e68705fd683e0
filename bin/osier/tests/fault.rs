//! `osier fault sim`: the same figures however many threads there are.

use std::process::{Command, Output};

fn simulate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
    command.args(["fault", "sim"]).args(arguments).output().expect("the program starts")
}

#[test]
fn the_figures_of_a_fault_simulation_do_not_depend_on_threads() {
    for model in ["page", "extent"] {
        let run = |jobs| simulate(&["--json", "--model", model, "--seed", "40", "--seeds", "30", "--jobs", jobs]);
        let (one, three) = (run("1"), run("3"));
        assert!(one.status.success() && three.status.success(), "{one:?} {three:?}");
        assert_eq!(one.stdout, three.stdout);
        let figures: serde_json::Value = serde_json::from_slice(&one.stdout).expect("JSON");
        assert_eq!(figures["seeds_passed"], 30);
        assert!(figures["counts"]["cuts"].as_u64().is_some_and(|cuts| cuts >= 60), "{figures}");
        assert!(figures["broken"].is_null());
    }
}
