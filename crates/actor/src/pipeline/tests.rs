//! Pipeline files that are refused, and registries that keep what wrote.

use super::*;

fn parse_in(text: &str, directory: &std::path::Path) -> Result<Config, ConfigError> {
    Config::parse("p.toml", text, directory, &ModuleStore::new(directory.join("modules")))
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    parse_in(text, tempfile::tempdir().unwrap().path())
}

fn refusal(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

const GOOD: &str = r#"
[tenant.acme]
cpu_permille = 250
memory_kib_max = 512

[[pipeline]]
name = "text"
tenant = "acme"
unit_kib = 16
request_kib_max = 128
slots = 8
[[pipeline.stage]]
actor = "jsonl-project"
params = { fields = ["time", "level"] }
query = true
[[pipeline.stage]]
actor = "lz4"
params = { engine = "intrinsic" }
optional = true
class = "latency-sensitive"
placement = "host"
[[pipeline.stage]]
actor = "aes256-gcm-siv"
key = 1

[[pipeline]]
name = "plain"
unit_kib = 4
request_kib_max = 64
slots = 4
[[pipeline.stage]]
actor = "crc32c"
engine = "fast"
trusted = false
"#;

#[test]
fn a_good_file_is_read_as_it_says() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.tenants["acme"], Tenant { cpu_permille: Some(250), memory_kib_max: 512 });
    assert_eq!(config.tenants[DEFAULT_TENANT], Tenant::default());
    let text = &config.pipelines[0];
    assert_eq!((text.unit_bytes(), text.request_kib_max, text.slots), (16_384, 128, 8));
    assert_eq!((text.skip_mask(), text.query_mask()), (0b010, 0b001));
    assert_eq!(text.stages[0].params, "fields = [\"time\", \"level\"]\n");
    assert_eq!(text.stages[0].source, Source::Builtin("jsonl-project".to_owned()));
    assert_eq!((text.stages[1].class, text.stages[1].placement), (Class::LatencySensitive, Placement::Host));
    assert_eq!((text.stages[1].engine.as_str(), text.stages[2].engine.as_str()), ("lz4", "aes"));
    assert_eq!((text.stages[2].key, text.stages[2].trusted), (Some(1), true));
    let plain = &config.pipelines[1];
    assert_eq!(plain.tenant, DEFAULT_TENANT);
    assert_eq!((plain.stages[0].engine.as_str(), plain.stages[0].trusted), ("fast", false));
}

/// What is replaced in a good file, by what, and what the refusal has to say.
#[test]
fn a_wrong_value_is_refused_by_name_and_line() {
    for (from, to, said) in [
        ("slots = 8", "slots = 8\nslotz = 9", "unknown field `slotz`"),
        ("optional = true", "optoinal = true", "unknown field `optoinal`"),
        ("cpu_permille = 250", "cpu = 250", "unknown field `cpu`"),
        ("[tenant.acme]", "[tennant.acme]", "unknown field `tennant`"),
        ("unit_kib = 16", "", "missing field `unit_kib`"),
        ("unit_kib = 16", "unit_kib = \"16\"", "invalid type"),
        ("unit_kib = 16", "unit_kib = 18", "line 7: pipeline `text`: unit_kib = 18 must be"),
        ("unit_kib = 16", "unit_kib = 128", "unit_kib = 128 must be"),
        ("request_kib_max = 128", "request_kib_max = 8", "request_kib_max = 8 must be"),
        ("request_kib_max = 128", "request_kib_max = 512", "request_kib_max = 512 must be"),
        ("slots = 8", "slots = 0", "slots = 0 must be"),
        ("slots = 8", "slots = 257", "slots = 257 must be"),
        ("cpu_permille = 250", "cpu_permille = 0", "tenant `acme`: cpu_permille = 0 must be"),
        ("memory_kib_max = 512", "memory_kib_max = 1", "memory_kib_max = 1 must be"),
        ("tenant = \"acme\"", "tenant = \"acne\"", "add a [tenant.acne] table"),
        ("name = \"plain\"", "name = \"text\"", "used by two pipelines"),
        ("name = \"plain\"", "name = \"pl ain\"", "letters, digits"),
        ("actor = \"crc32c\"", "actor = \"crc32\"", "stage 0 (line 32), actor `crc32`: there is no built-in actor"),
        ("actor = \"crc32c\"", "actor = \"./gone.wasm\"", "reading module"),
        ("placement = \"host\"", "placement = \"moon\"", "unknown variant `moon`"),
        ("class = \"latency-sensitive\"", "class = 3", "line 20"),
        ("params = { engine = \"intrinsic\" }", "params = { engine = 1.5 }", "`engine` is a float"),
        ("params = { engine = \"intrinsic\" }", "params = { a = [true] }", "the list `a` may hold"),
        ("params = { engine = \"intrinsic\" }", "params = { \"a b\" = 1 }", "the key `a b` must be"),
        ("key = 1", "key = -1", "invalid value"),
        ("engine = \"fast\"", "engine = \"\"", "engine: the name"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let found = refusal(&text);
        assert!(found.contains(said), "{from} -> {to}: {found}");
        assert!(found.starts_with("p.toml: "), "{found}");
    }
    assert!(refusal(&GOOD.replace("slots = 8", "slots = 8\nslotz = 9")).contains("line 12"), "the line is told");
    let nine = "[[pipeline.stage]]\nactor = \"crc32c\"\n".repeat(8);
    assert!(refusal(&format!("{GOOD}{nine}")).contains("it has 9 stages"));
    let none = "[[pipeline]]\nname=\"x\"\nunit_kib=4\nrequest_kib_max=4\nslots=1\nstage=[]";
    assert!(refusal(none).contains("it has 0 stages"));
    let long = format!("params = {{ a = \"{}\" }}", "x".repeat(1100));
    assert!(refusal(&GOOD.replace("params = { engine = \"intrinsic\" }", &long)).contains("bytes in normal form"));
}

#[test]
fn parameters_have_one_form() {
    let table: toml::Table =
        "z = true\nb = -5\na-_9 = \"q\\\"\\\\\\n\\t\\r\\u0001\\u00e9\"\nl = [1, \"x\"]\ne = []".parse().unwrap();
    let text = normal_params(&table).unwrap();
    assert_eq!(text, "a-_9 = \"q\\\"\\\\\\n\\t\\r\\u0001é\"\nb = -5\ne = []\nl = [1, \"x\"]\nz = true\n");
}

#[test]
fn modules_are_pinned_by_content() {
    let directory = tempfile::tempdir().unwrap();
    let text = GOOD.replace("actor = \"crc32c\"", "actor = \"./m.wasm\"");
    std::fs::write(directory.path().join("m.wasm"), b"one").unwrap();
    let one = parse_in(&text, directory.path()).unwrap();
    std::fs::write(directory.path().join("m.wasm"), b"two").unwrap();
    let two = parse_in(&text, directory.path()).unwrap();
    assert_ne!(one.pipelines[1].stages[0].source, two.pipelines[1].stages[0].source);
    assert!(!one.pipelines[1].stages[0].trusted);
    let mut registry = Registry::new();
    registry.adopt(&one);
    assert_eq!(registry.adopt(&two)[1], ("plain".to_owned(), Change::Changed));
    let store = ModuleStore::new(directory.path().join("modules"));
    let Source::Stored(digest) = &one.pipelines[1].stages[0].source else { panic!("a built-in") };
    assert_eq!(store.get(digest).unwrap(), b"one", "the old one is still there to decode with");
    std::fs::write(directory.path().join("modules").join(format!("{digest}.wasm")), b"ome").unwrap();
    assert!(matches!(store.get(digest), Err(ModuleStoreError::Damaged { .. })));
    let trusted = text.replace("trusted = false", "trusted = true");
    let refused = parse_in(&trusted, directory.path()).unwrap_err().to_string();
    assert!(refused.contains("for built-in actors only"), "{refused}");
}

#[test]
fn a_changed_definition_gets_another_tag_and_the_old_one_stays() {
    let mut registry = Registry::new();
    let config = parse(GOOD).unwrap();
    assert_eq!(registry.adopt(&config), [("text".to_owned(), Change::Added), ("plain".to_owned(), Change::Added)]);
    let first = registry.clone();
    assert!(registry.adopt(&config).iter().all(|(_, change)| *change == Change::Kept));
    assert_eq!(registry, first);
    let tuned = parse(&GOOD.replace("slots = 8", "slots = 9").replace("placement = \"host\"", "")).unwrap();
    assert_eq!(registry.adopt(&tuned)[0].1, Change::Tuned);
    assert_eq!(registry.entries()[0].tag, first.entries()[0].tag);
    let changed = parse(&GOOD.replace("engine = \"intrinsic\"", "engine = \"wasm\"")).unwrap();
    assert_eq!(registry.adopt(&changed)[0].1, Change::Changed);
    let tags: Vec<u32> = registry.entries().iter().map(|e| e.tag).collect();
    assert_eq!(tags.len(), 3);
    let pipelines = registry.pipelines(&changed.tenants).unwrap();
    assert_eq!(pipelines.current("text").unwrap().tag, tags[2]);
    assert_eq!(pipelines.of_tag(Tag(tags[0]).with_skipped(2)).unwrap().version, 1);
    assert_eq!(pipelines.plan().actors(), 7);
    assert_eq!(pipelines.layout(), Layout { slots: 12, request_blocks_max: 32, unit_blocks: 4 });
    // Back to what it was: the tag that it had.
    assert_eq!(registry.adopt(&config)[0].1, Change::Changed);
    assert_eq!(registry.pipelines(&config.tenants).unwrap().current("text").unwrap().tag, tags[0]);
    // Withdrawn while extents of it are left, then forgotten.
    let nothing = Config { pipelines: Vec::new(), tenants: config.tenants };
    assert!(registry.adopt(&nothing).iter().all(|(_, change)| *change == Change::Withdrawn));
    let in_use = Tag(tags[2]).with_skipped(1);
    assert_eq!(registry.retire(&[in_use]), [Tag(tags[0]), Tag(tags[1])]);
    assert_eq!(registry.entries().len(), 1);
}

#[test]
fn a_registry_survives_its_text_and_damage_is_found() {
    let mut registry = Registry::new();
    registry.adopt(&parse(GOOD).unwrap());
    let text = registry.encode();
    assert_eq!(Registry::decode(&text).unwrap(), registry);
    assert_eq!(Registry::decode(&Registry::new().encode()).unwrap(), Registry::new());
    // With the right checksum, so that the other checks are met.
    let changed = |from: &str, to: &str| {
        let (_, rest) = text.split_once('\n').unwrap();
        let bad = rest.replacen(from, to, 1);
        assert_ne!(bad, rest, "{from}: {text}");
        Registry::decode(&format!("{CHECKSUM_KEY}{:08x}\"\n{bad}", crc32c::crc32c(bad.as_bytes())))
    };
    assert!(matches!(changed("format = 1", "format = 2"), Err(RegistryError::Newer(2))));
    for (from, to) in [
        ("unit_kib = 16", "unit_kib = 17"),
        ("slots = 8", "slots = 0"),
        ("builtin = \"lz4\"", "builtin = \"lz5\""),
        ("version = 1", "wersion = 1"),
        ("format = 1", ""),
    ] {
        assert!(matches!(changed(from, to), Err(RegistryError::Damaged(_))), "{from}");
    }
    let tag = registry.entries()[0].tag;
    assert!(matches!(changed(&format!("tag = {tag}"), "tag = 16777216"), Err(RegistryError::Damaged(_))));
}

#[test]
fn every_flipped_bit_of_a_registry_is_found() {
    let mut registry = Registry::new();
    registry.adopt(&parse(GOOD).unwrap());
    let text = registry.encode();
    for bit in 0..text.len() * 8 {
        let mut bytes = text.clone().into_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // What is no text any more is refused by who reads the file.
        let Ok(bad) = String::from_utf8(bytes) else { continue };
        assert!(matches!(Registry::decode(&bad), Err(RegistryError::Damaged(_))), "bit {bit}");
    }
}

#[test]
fn tags_are_stable_and_never_collide() {
    let mut registry = Registry::new();
    let mut config = parse(GOOD).unwrap();
    // The tag lies on media: a change of how it is made would lose data.
    registry.adopt(&config);
    assert_eq!(registry.entries().iter().map(|e| e.tag).collect::<Vec<_>>(), [16_304_408, 11_091_400]);
    for unit_kib in (4..=64).step_by(4) {
        for slots in 1..=3 {
            config.pipelines[0].unit_kib = unit_kib;
            config.pipelines[0].stages[0].key = Some(slots);
            registry.adopt(&config);
        }
    }
    let tags: std::collections::BTreeSet<u32> = registry.entries().iter().map(|e| e.tag).collect();
    assert_eq!(tags.len(), registry.entries().len());
    assert!(tags.iter().all(|tag| (1..1 << 24).contains(tag)));
    assert!(matches!(registry.pipelines(&config.tenants), Err(RegistryError::TooManyActors(_))));
}

#[test]
fn actors_are_found_by_what_people_call_them() {
    let mut registry = Registry::new();
    let config = parse(GOOD).unwrap();
    registry.adopt(&config);
    let pipelines = registry.pipelines(&config.tenants).unwrap();
    for name in ["text/1:lz4", "text/1", "text/lz4"] {
        assert_eq!(pipelines.find_actor(name), Some(ActorId(1)), "{name}");
    }
    assert_eq!(pipelines.find_actor("text/9"), None);
    assert!(pipelines.actors().iter().all(|a| a.memory_name().len() <= 32));
}
