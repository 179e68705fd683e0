//! The three traps of placing a linear memory outside of Wasmtime, and the bounds of what was placed.

use wasmtime::{Config, Engine, Instance, Module, Store};

use super::*;
use crate::segment::Mapping;

/// A module with a data segment at 16, a counter at 0, and a function that looks anywhere.
const COUNTER: &str = r#"(module
    (memory (export "memory") 1)
    (data (i32.const 16) "initial")
    (func (export "count") (result i32)
      (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1))) (i32.load (i32.const 0)))
    (func (export "peek") (param i32) (result i32) (i32.load (local.get 0)))
    (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"#;

struct Twin {
    store: Store<()>,
    instance: Instance,
    memory: Memory,
}

impl Twin {
    fn new(engine: &Engine, module: &Module) -> Twin {
        let mut store = Store::new(engine, ());
        let instance = Instance::new(&mut store, module, &[]).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        Twin { store, instance, memory }
    }

    fn call(&mut self, name: &str, argument: i32) -> wasmtime::Result<i32> {
        if name == "count" {
            return self.instance.get_typed_func::<(), i32>(&mut self.store, name)?.call(&mut self.store, ());
        }
        self.instance.get_typed_func::<i32, i32>(&mut self.store, name)?.call(&mut self.store, argument)
    }
}

fn engine(cow: bool) -> (Engine, Arc<Creator>) {
    let creator = Arc::new(Creator::default());
    let mut config = Config::new();
    config.with_host_memory(creator.clone()).memory_init_cow(cow);
    config.memory_reservation(RESERVATION_BYTES).memory_guard_size(GUARD_BYTES);
    (Engine::new(&config).unwrap(), creator)
}

fn module(engine: &Engine, wat: &str) -> Module {
    Module::new(engine, wat::parse_str(wat).unwrap()).unwrap()
}

fn segments() -> [Segment; 2] {
    [Segment::anonymous(c"own", PAGE_BYTES).unwrap(), Segment::anonymous(c"arena", 2 * PAGE_BYTES).unwrap()]
}

/// Trap 1: images that are mapped copy-on-write do not go together with a creator. If this test fails, upstream
/// has mended it, and the setting in `compile.rs` may be dropped.
#[test]
fn trap_one_copy_on_write_images_do_not_work_with_placed_memories() {
    let (engine, _creator) = engine(true);
    let module = module(&engine, COUNTER);
    let instantiate = std::panic::AssertUnwindSafe(|| {
        let mut store = Store::new(&engine, ());
        Instance::new(&mut store, &module, &[]).is_ok()
    });
    assert!(!matches!(std::panic::catch_unwind(instantiate), Ok(true)), "it works now");
    let (engine, _creator) = self::engine(false);
    let mut twin = Twin::new(&engine, &self::module(&engine, COUNTER));
    assert_eq!(twin.call("peek", 16).unwrap(), i32::from_le_bytes(*b"init"));
}

/// Trap 2: a memory that the host makes does not come from the creator, so that an imported one could not be
/// placed. The install check refuses modules that import theirs.
#[test]
fn trap_two_memories_made_by_the_host_ignore_the_creator() {
    let (engine, creator) = engine(false);
    let mut store = Store::new(&engine, ());
    let _host = Memory::new(&mut store, MemoryType::new(1, None)).unwrap();
    assert_eq!(creator.alive(), 0);
    let _twin = Twin::new(&engine, &module(&engine, COUNTER));
    assert_eq!(creator.alive(), 1);
}

/// Trap 3: instantiating applies the data segments, so a twin must not be instantiated over live bytes. It is
/// instantiated on private pages and attached afterwards.
#[test]
fn trap_three_a_twin_made_later_does_not_overwrite_what_lives() {
    let (engine, creator) = engine(false);
    let module = module(&engine, COUNTER);
    let pieces = segments();
    let mut first = Twin::new(&engine, &module);
    creator.attach(&mut first.store, &first.memory, &pieces, false).unwrap();
    assert_eq!(first.call("peek", 16).unwrap(), 0, "attached to an empty object: whoever owns it fills it");
    for expected in 1..=5 {
        assert_eq!(first.call("count", 0).unwrap(), expected);
    }
    let mut second = Twin::new(&engine, &module);
    assert_eq!(second.call("count", 0).unwrap(), 1, "on private pages");
    creator.attach(&mut second.store, &second.memory, &pieces, true).unwrap();
    assert_eq!(second.call("count", 0).unwrap(), 6);
    assert_eq!(first.call("count", 0).unwrap(), 7);
    assert_eq!(first.call("peek", 16).unwrap(), 0, "the second instantiation wrote its segments elsewhere");
}

#[test]
fn pieces_lie_one_behind_the_other_and_beyond_them_is_a_trap() {
    let (engine, creator) = engine(false);
    let mut twin = Twin::new(&engine, &module(&engine, COUNTER));
    let pieces = segments();
    let [own, arena] = pieces.each_ref().map(|s| Mapping::new(s).unwrap());
    creator.attach(&mut twin.store, &twin.memory, &pieces, false).unwrap();
    own.write(65_532, b"last");
    arena.write(0, b"head");
    arena.write(2 * PAGE_BYTES - 4, b"tail");
    for (at, expected) in [(65_532, b"last"), (65_536, b"head"), (3 * 65_536 - 4, b"tail")] {
        assert_eq!(twin.call("peek", at).unwrap(), i32::from_le_bytes(*expected));
    }
    for at in [3 * 65_536 - 3, 3 * 65_536, 1 << 30, i32::MAX, i32::MIN, -4, -1] {
        let trap = twin.call("peek", at).unwrap_err();
        assert_eq!(trap.downcast_ref::<wasmtime::Trap>(), Some(&wasmtime::Trap::MemoryOutOfBounds), "{at}");
    }
    assert_eq!(twin.call("count", 0).unwrap(), 1, "and it goes on");
}

#[test]
fn a_guest_does_not_grow_its_memory_before_or_after() {
    let (engine, creator) = engine(false);
    let mut twin = Twin::new(&engine, &module(&engine, COUNTER));
    assert_eq!(twin.call("grow", 1).unwrap(), -1);
    creator.attach(&mut twin.store, &twin.memory, &segments(), false).unwrap();
    for pages in [1, 2, 65_535] {
        assert_eq!(twin.call("grow", pages).unwrap(), -1);
    }
    assert_eq!(twin.call("grow", 0).unwrap(), 3);
}

#[test]
fn pieces_that_do_not_fit_are_refused() {
    let (engine, creator) = engine(false);
    let [own, arena] = segments();
    let mut twin = Twin::new(&engine, &module(&engine, COUNTER));
    let short = creator.attach(&mut twin.store, &twin.memory, &[own.part(0, 4096)], false);
    assert!(matches!(short, Err(PlaceError::Short { given: 4096, wanted: PAGE_BYTES })));
    let bounded = COUNTER.replace("\"memory\") 1", "\"memory\") 1 2");
    let mut twin = Twin::new(&engine, &module(&engine, &bounded));
    let grown = creator.attach(&mut twin.store, &twin.memory, &[own, arena], false);
    assert!(matches!(grown, Err(PlaceError::Grow { pages: 1, more: 2 })));
}

#[test]
fn address_space_comes_back_with_the_instance() {
    let (engine, creator) = engine(false);
    let module = module(&engine, COUNTER);
    for _ in 0..300 {
        let mut twin = Twin::new(&engine, &module);
        creator.attach(&mut twin.store, &twin.memory, &segments(), false).unwrap();
    }
    assert_eq!(creator.alive(), 0);
    assert!(creator.places.lock().unwrap().len() <= 1);
}
