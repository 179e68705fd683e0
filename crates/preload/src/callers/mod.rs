//! Who calls: the rules of where allocations lie (`osier_client::placement`), and which call sites take the window.
//!
//! Rules name modules and functions. What these are is looked up in the tables of symbols when the program begins, and
//! again once an address calls that nobody knows, or something was unloaded: a call is then a look into a sorted table.
//!
//! While something here is locked nothing else is waited for but files; the linker's lock is never asked for then, as
//! who holds that may allocate.

mod counts;
mod frames;
mod modules;
mod table;

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use osier_client::placement::{CallSites, Placement, Rule};

use crate::locked::Locked;
use counts::{Asked, Counts};
pub use frames::Call;
use frames::{Step, Steps};
use modules::{Function, Module};
use table::Table;

/// The bit of an address that lies in a module.
const KNOWN: u64 = 1 << 63;
const _: () = assert!(osier_client::placement::RULES_MAX < u64::BITS as usize);

/// What the program was started with.
struct Watch {
    sites: CallSites,
    /// The rules of every call site.
    any: u64,
    /// Those of each depth, ascending.
    depths: Vec<(u8, u64)>,
}

/// None as long as nobody asks for call sites.
static WATCH: AtomicPtr<Watch> = AtomicPtr::new(std::ptr::null_mut());
static TABLE: Table = Table::new();
static STEPS: Steps = Steps::new();
static COUNTS: Counts = Counts::new();
static LOADED: Locked<Loaded> = Locked::new(Loaded { generation: (0, 0), modules: Vec::new() });
/// By rule: it has named something, it has decided something.
static FOUND: AtomicU64 = AtomicU64::new(0);
static USED: AtomicU64 = AtomicU64::new(0);
/// Ranges that the table had no room for.
static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// Addresses, and the rules that they are of.
type Bits = (Range<usize>, u64);

/// What is loaded, and which rules are of it.
struct Loaded {
    generation: (u64, u64),
    modules: Vec<(Module, Vec<Bits>)>,
}

fn watch() -> Option<&'static Watch> {
    // SAFETY: what is there came from a box, and is never freed.
    unsafe { WATCH.load(Ordering::Acquire).as_ref() }
}

/// From now on calls are looked at, if somebody asks for it.
pub fn begin(sites: &CallSites) {
    if sites.rules.is_empty() && sites.shown == 0 {
        return;
    }
    let mut watch = Watch { sites: sites.clone(), any: 0, depths: Vec::new() };
    for (index, rule) in sites.rules.iter().enumerate() {
        if rule.is_any() {
            watch.any |= 1 << index;
            continue;
        }
        match watch.depths.iter_mut().find(|(depth, _)| *depth == rule.depth) {
            Some((_, rules)) => *rules |= 1 << index,
            None => watch.depths.push((rule.depth, 1 << index)),
        }
    }
    watch.depths.sort_unstable();
    FOUND.store(watch.any, Ordering::Relaxed);
    WATCH.store(Box::into_raw(Box::new(watch)), Ordering::Release);
    refresh();
}

/// Where an allocation of so many bytes lies by the first rule that fits.
pub fn decide(bytes: usize, call: Call) -> Option<Placement> {
    let watch = watch()?;
    let rule = watch.first_of(bytes as u64, call)?;
    if USED.load(Ordering::Relaxed) >> rule & 1 == 0 {
        USED.fetch_or(1 << rule, Ordering::Relaxed);
    }
    Some(watch.sites.rules[rule].placement)
}

/// Whether there are rules.
pub fn has_rules() -> bool {
    watch().is_some_and(|watch| !watch.sites.rules.is_empty())
}

/// Counts bytes of the window that were asked for.
pub fn count(bytes: usize, call: Call) {
    let Some(watch) = watch().filter(|watch| watch.sites.shown > 0) else { return };
    if let Some(call) = up(call, watch.sites.depth) {
        COUNTS.add(call.returns_to(), bytes as u64);
    }
}

impl Watch {
    fn first_of(&self, bytes: u64, mut call: Call) -> Option<usize> {
        let fits = |rules: u64| {
            let mut left = rules;
            while left != 0 {
                let rule = left.trailing_zeros() as usize;
                if self.sites.rules[rule].bytes.contains(&bytes) {
                    return rule;
                }
                left &= left - 1;
            }
            usize::MAX
        };
        let mut first = fits(self.any);
        let mut at = 0;
        for (depth, rules) in &self.depths {
            if rules.trailing_zeros() as usize > first {
                continue;
            }
            let Some(caller) = up(call, depth - at) else { break };
            (call, at) = (caller, *depth);
            first = first.min(fits(bits_of(call.returns_to()) & rules));
        }
        (first != usize::MAX).then_some(first)
    }
}

/// The rules that a return address is of: it belongs to the call before it.
fn bits_of(address: usize) -> u64 {
    let bits = TABLE.look_up(address - 1);
    if bits & KNOWN != 0 {
        return bits;
    }
    refresh();
    TABLE.look_up(address - 1)
}

/// A call so many callers further up.
fn up(call: Call, count: u8) -> Option<Call> {
    (0..count).try_fold(call, |call, _| {
        let address = call.returns_to();
        let step = STEPS.get(address).unwrap_or_else(|| find_step(address));
        call.up(step)
    })
}

fn find_step(address: usize) -> Step {
    // What was loaded meanwhile is looked for first.
    if address == 0 || bits_of(address) & KNOWN == 0 {
        return Step::Unknown;
    }
    LOADED.with(|loaded| {
        let module = loaded.modules.iter().find(|(module, _)| module.has_code(address - 1));
        let step = module.map_or(Step::Unknown, |(module, _)| Step::of(module, address));
        STEPS.keep(address, step);
        step
    })
}

/// Looks again what is loaded, if that has changed.
pub fn refresh() {
    let Some(watch) = watch() else { return };
    let generation = modules::generation();
    if LOADED.with(|loaded| loaded.generation == generation) {
        return;
    }
    let modules = modules::loaded();
    LOADED.with(|loaded| {
        // Whoever was faster has seen more.
        if loaded.generation >= generation {
            return;
        }
        let was_unloaded = loaded.generation.1 != generation.1;
        let mut before = std::mem::take(&mut loaded.modules);
        loaded.generation = generation;
        for module in modules {
            let known = before.iter().position(|(known, _)| *known == module);
            let rules = match known {
                Some(index) => before.swap_remove(index).1,
                None => watch.rules_of(&module),
            };
            loaded.modules.push((module, rules));
        }
        let code = loaded.modules.iter().flat_map(|(module, _)| module.code.iter().map(|range| (range.clone(), KNOWN)));
        let all: Vec<Bits> = code.chain(loaded.modules.iter().flat_map(|(_, rules)| rules.iter().cloned())).collect();
        if was_unloaded {
            STEPS.forget();
        }
        DROPPED.fetch_max(TABLE.replace(&all), Ordering::Relaxed);
    });
}

impl Watch {
    /// Where a module has call sites of rules.
    fn rules_of(&self, module: &Module) -> Vec<Bits> {
        let name = module.name().to_string_lossy();
        let of_module: Vec<(u64, &Rule)> = (0..)
            .zip(&self.sites.rules)
            .filter(|(_, rule)| !rule.is_any() && rule.is_of_module(&name))
            .map(|(index, rule)| (1 << index, rule))
            .collect();
        let mut found = Vec::new();
        for (bit, rule) in of_module.iter().filter(|(_, rule)| rule.symbol.is_none()) {
            match rule.offset {
                None => found.extend(module.code.iter().map(|range| (range.clone(), *bit))),
                Some(offset) => {
                    let call = module.base.wrapping_add(offset as usize).wrapping_sub(1);
                    if module.has_code(call) {
                        found.push((call..call + 1, *bit));
                    }
                }
            }
        }
        if of_module.iter().any(|(_, rule)| rule.symbol.is_some()) {
            module.each_function(|Function { name, addresses }| {
                let of_name = of_module.iter().filter(|(_, rule)| rule.is_of_symbol(name));
                let bits = of_name.fold(0, |all, (bit, _)| all | bit);
                let ours = (addresses, bits);
                if bits != 0 && !found.contains(&ours) {
                    found.push(ours);
                }
            });
        }
        FOUND.fetch_or(found.iter().fold(0, |all, (_, bits)| all | bits), Ordering::Relaxed);
        found
    }
}

/// A child has what its parent has; nobody is in the middle of it.
pub fn before_fork() {
    LOADED.lock();
}

pub fn after_fork() {
    LOADED.unlock();
}

/// A call site, as it is said at the end.
struct Site {
    module: String,
    offset: usize,
    /// The function, and how far into it.
    function: Option<(String, usize)>,
    asked: Asked,
}

/// The call sites with most bytes, how many there are, and what those together asked for that found no room.
fn sites(watch: &Watch) -> (Vec<Site>, usize, Asked) {
    refresh();
    let (all, others) = COUNTS.all();
    let sites = all.iter().take(watch.sites.shown as usize).map(|(address, asked)| {
        let found = LOADED.with(|loaded| {
            loaded.modules.iter().map(|(module, _)| module).find(|module| module.has_code(address - 1)).cloned()
        });
        let Some(module) = found else {
            return Site { module: "?".to_owned(), offset: *address, function: None, asked: *asked };
        };
        let mut function = None;
        module.each_function(|candidate| {
            if candidate.addresses.contains(&(address - 1)) {
                let name = String::from_utf8_lossy(candidate.name).into_owned();
                function.get_or_insert((name, address - candidate.addresses.start));
            }
        });
        let offset = address.wrapping_sub(module.base);
        Site { module: module.name().to_string_lossy().into_owned(), offset, function, asked: *asked }
    });
    (sites.collect(), all.len(), others)
}

/// What is said of the rules that named nothing, or decided nothing, a line each.
pub fn unused(who: &str) -> String {
    let mut text = String::new();
    let Some(watch) = watch() else { return text };
    refresh();
    let pid = std::process::id();
    let (found, used) = (FOUND.load(Ordering::Relaxed), USED.load(Ordering::Relaxed));
    for (index, rule) in watch.sites.rules.iter().enumerate() {
        let has = |bits: u64| bits >> index & 1 == 1;
        if !has(found) {
            _ = writeln!(text, "{who}: process {pid}: the rule `{rule}` names nothing that was loaded");
        } else if !has(used) {
            _ = writeln!(text, "{who}: process {pid}: the rule `{rule}` decided nothing");
        }
    }
    let dropped = DROPPED.load(Ordering::Relaxed);
    if dropped > 0 {
        _ = writeln!(text, "{who}: process {pid}: rules name too much: {dropped} functions or modules found no room");
    }
    text
}

/// The call sites with most bytes, a line each.
pub fn text(who: &str) -> String {
    let mut text = String::new();
    let Some(watch) = watch().filter(|watch| watch.sites.shown > 0) else { return text };
    let (sites, count, others) = sites(watch);
    _ = writeln!(text, "{who}: {count} call sites asked for bytes of the window; those with most:");
    for Site { module, offset, function, asked } in sites {
        _ = write!(text, "{who}: {:>14} bytes in {:>10} calls: {module}+{offset:#x}", asked.bytes, asked.calls);
        _ = match function {
            Some((name, into)) => writeln!(text, " ({name}+{into:#x})"),
            None => writeln!(text),
        };
    }
    if others.calls > 0 {
        let Asked { calls, bytes } = others;
        _ = writeln!(text, "{who}: {bytes:>14} bytes in {calls:>10} calls: call sites that found no room in the table");
    }
    text
}

/// The rules, and the call sites with most bytes, as members of an object of JSON.
pub fn json(quoted: impl Fn(&str) -> String) -> String {
    let Some(watch) = watch() else { return String::new() };
    let mut text = String::new();
    let (found, used) = (FOUND.load(Ordering::Relaxed), USED.load(Ordering::Relaxed));
    let rules = watch.sites.rules.iter().enumerate().map(|(index, rule)| {
        let has = |bits: u64| bits >> index & 1 == 1;
        format!("{{\"rule\": {}, \"found\": {}, \"used\": {}}}", quoted(&rule.to_string()), has(found), has(used))
    });
    if has_rules() {
        _ = write!(text, "\"rules\": [{}], ", rules.collect::<Vec<_>>().join(", "));
    }
    if watch.sites.shown > 0 {
        let (sites, count, others) = sites(watch);
        let sites = sites.iter().map(|Site { module, offset, function, asked }| {
            let function = function.as_ref().map_or_else(String::new, |(name, into)| {
                format!("\"symbol\": {}, \"symbol_offset\": {into}, ", quoted(name))
            });
            format!(
                "{{\"module\": {}, \"offset\": {offset}, {function}\"bytes\": {}, \"calls\": {}}}",
                quoted(module),
                asked.bytes,
                asked.calls
            )
        });
        _ = write!(
            text,
            "\"call_sites_all\": {count}, \"call_sites\": [{}], \"call_sites_without_room\": {{\"bytes\": {}, \"calls\": {}}}, ",
            sites.collect::<Vec<_>>().join(", "),
            others.bytes,
            others.calls
        );
    }
    text
}
