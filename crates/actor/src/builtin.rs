//! The built-in actors: prebuilt copies of what `actors/` holds the sources of. A test builds them anew and
//! compares, where it can.

/// One built-in actor.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    /// What pipelines call it.
    pub name: &'static str,
    /// Its module.
    pub wasm: &'static [u8],
    /// The cost model that it has unless a pipeline names another.
    pub engine: &'static str,
}

macro_rules! builtin {
    ($name:literal, $engine:literal) => {
        Builtin {
            name: $name,
            wasm: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../actors/prebuilt/", $name, ".wasm")),
            engine: $engine,
        }
    };
}

/// Every built-in actor.
pub const BUILTINS: [Builtin; 8] = [
    builtin!("lz4", "lz4"),
    builtin!("aes256-gcm-siv", "aes"),
    builtin!("crc32c", "crc32c"),
    builtin!("jsonl-project", "wasm"),
    builtin!("filter", "wasm"),
    builtin!("logfmt", "wasm"),
    builtin!("running-hash", "wasm"),
    builtin!("example", "wasm"),
];

/// The built-in of a name.
pub fn find(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|b| b.name == name)
}

/// All names.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILTINS.iter().map(|b| b.name)
}
