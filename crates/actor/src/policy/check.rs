//! What a policy's module has to import and export, checked before it is instantiated.

use wasmtime::{ExternType, FuncType, Module};

use super::module::Problem;
use crate::abi::IMPORT_MODULE;

/// The imports of the ABI, with their types.
const IMPORTS: [(&str, &str); 3] =
    [("log", "(i32, i32) -> ()"), ("parameter", "(i32, i32, i64, i64, i64) -> (i64)"), ("is_dirty", "(i32) -> (i32)")];

/// The functions of the ABI, with their types and whether there has to be one.
const EXPORTS: [(&str, &str, bool); 5] = [
    ("osier_policy_abi", "() -> (i32)", true),
    ("osier_policy_new", "(i32, i32, i32, i64) -> (i32)", true),
    ("osier_policy_events", "(i32) -> ()", true),
    ("osier_policy_victim", "(i32, i32, i32) -> (i32)", true),
    ("osier_policy_incoming", "(i32, i32, i64, i32) -> (i32)", false),
];

/// Checks imports and exports.
pub(super) fn check(module: &Module) -> Result<(), Problem> {
    for import in module.imports() {
        let (from, name) = (import.module(), import.name());
        let known = IMPORTS.iter().find(|(known, _)| from == IMPORT_MODULE && name == *known);
        match (known, import.ty()) {
            (Some((_, wanted)), ExternType::Func(found)) => same(name, &found, wanted)?,
            _ => return Err(Problem::UnknownImport { from: from.to_owned(), name: name.to_owned() }),
        }
    }
    match module.get_export("memory") {
        Some(ExternType::Memory(memory)) if !memory.is_64() && !memory.is_shared() => {}
        Some(_) => return Err(Problem::Memory),
        None => return Err(Problem::MissingExport("memory")),
    }
    for (name, wanted, is_required) in EXPORTS {
        match module.get_export(name) {
            Some(ExternType::Func(found)) => same(name, &found, wanted)?,
            Some(_) => return Err(Problem::NoFunction(name)),
            None if is_required => return Err(Problem::MissingExport(name)),
            None => {}
        }
    }
    Ok(())
}

fn same(name: &str, found: &FuncType, wanted: &'static str) -> Result<(), Problem> {
    let found = describe(found);
    if found == wanted { Ok(()) } else { Err(Problem::WrongType { name: name.to_owned(), found, wanted }) }
}

fn describe(ty: &FuncType) -> String {
    let list = |types: &mut dyn Iterator<Item = wasmtime::ValType>| {
        types.map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ")
    };
    format!("({}) -> ({})", list(&mut ty.params()), list(&mut ty.results()))
}
