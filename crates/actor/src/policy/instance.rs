//! One policy: an instance of a module, its calls, and the functions that it imports.

use osier_cache::{Eviction, Frames, ParameterValues, PolicyFault, Recall, Shape};
use wasmtime::{Caller, Instance, InstancePre, Linker, Memory, ResourceLimiter, Store, Trap, TypedFunc};

use super::module::Problem;
use super::{
    EVENT_ALIGN, EVENT_BYTES, EVENTS_MAX, FUEL_CALL, FUEL_MAX, FUEL_NEW, FUEL_NEW_PER_FRAME, FUEL_PER_EVENT,
    FUEL_PER_EVENT_AND_WAY, MEMORY_BYTES_BASE, MEMORY_BYTES_PER_FRAME, PARAMETER_NAME_BYTES_MAX, PARAMETERS_MAX,
    POLICY_ABI_VERSION, TABLE_ENTRIES_MAX,
};
use crate::abi::{IMPORT_MODULE, LOG_BYTES_MAX};
use crate::sandbox::describe;

/// Messages of one instance that go to the log; the last one is kept in any case.
const LOGS_MAX: u32 = 64;

/// What an event says, as its second word begins.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Event {
    Inserted = 0,
    Touched = 1,
    Removed = 2,
}

/// What the imports work with.
pub(super) struct Host {
    module: String,
    shape: Shape,
    /// The parameters that were given; nothing once the policy is made.
    given: Option<ParameterValues>,
    /// The parameters that were asked for.
    asked: Vec<String>,
    /// The frames, while a victim is being asked for.
    frames: Option<Frames<'static>>,
    /// What it logged last.
    said: Option<String>,
    logs: u32,
}

impl Host {
    fn memory_bytes_max(&self) -> u64 {
        MEMORY_BYTES_BASE + MEMORY_BYTES_PER_FRAME * u64::from(self.shape.frames())
    }
}

impl ResourceLimiter for Host {
    fn memory_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let most = self.memory_bytes_max();
        if desired as u64 <= most {
            return Ok(true);
        }
        // An answer of -1 would end in some trap of the guest's allocator that says nothing.
        Err(wasmtime::Error::msg(format!(
            "it asks for {desired} bytes of memory, a policy of {} frames may have {most}",
            self.shape.frames()
        )))
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        if desired <= TABLE_ENTRIES_MAX {
            return Ok(true);
        }
        Err(wasmtime::Error::msg(format!(
            "it asks for a table of {desired} entries, at most {TABLE_ENTRIES_MAX} are possible"
        )))
    }
}

/// A policy that is an instance of a module. It has 16 KiB of events besides the module's memory.
pub struct WasmPolicy {
    store: Store<Host>,
    memory: Memory,
    events: TypedFunc<u32, ()>,
    victim: TypedFunc<(u32, u32, u32), i32>,
    incoming: Option<TypedFunc<(u32, u32, u64, u32), i32>>,
    /// Where the module wants the events.
    events_at: usize,
    /// Events that it has not seen.
    pending: Vec<u8>,
    ways: u32,
    /// Fuel of the latest call.
    fuel: u64,
    failure: Option<String>,
}

impl std::fmt::Debug for WasmPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WasmPolicy({})", self.store.data().module)
    }
}

/// A call of one function while a policy is made.
fn called<T>(function: &'static str, store: &Store<Host>, result: wasmtime::Result<T>) -> Result<T, Problem> {
    let fuel = fuel_new(store.data().shape);
    result.map_err(|error| Problem::Failed { function, reason: reason(store, &error, fuel) })
}

fn fuel_new(shape: Shape) -> u64 {
    (FUEL_NEW + FUEL_NEW_PER_FRAME * u64::from(shape.frames())).min(FUEL_MAX)
}

impl WasmPolicy {
    pub(super) fn new(
        module: &str,
        ready: &InstancePre<Host>,
        shape: Shape,
        given: &ParameterValues,
        seed: u64,
    ) -> Result<WasmPolicy, Problem> {
        let host = Host {
            module: module.to_owned(),
            shape,
            given: Some(given.clone()),
            asked: Vec::new(),
            frames: None,
            said: None,
            logs: 0,
        };
        let mut store = Store::new(ready.module().engine(), host);
        store.limiter(|host| host);
        give_fuel(&mut store, fuel_new(shape));
        let instance = ready.instantiate(&mut store);
        let instance = called("start", &store, instance)?;
        let abi = function::<(), i32>(&instance, &mut store, "osier_policy_abi")?.call(&mut store, ());
        let abi = called("osier_policy_abi", &store, abi)?;
        if abi != POLICY_ABI_VERSION {
            return Err(Problem::Abi(abi));
        }
        let new = function::<(u32, u32, u32, u64), i32>(&instance, &mut store, "osier_policy_new")?;
        let events_at = new.call(&mut store, (shape.sets, shape.ways, shape.pages_per_set, seed));
        let events_at = called("osier_policy_new", &store, events_at)?;
        let memory = instance.get_memory(&mut store, "memory").ok_or(Problem::MissingExport("memory"))?;
        let events_at = events_place(&store, &memory, events_at)?;
        all_known(&mut store)?;
        let has_incoming = instance.get_func(&mut store, "osier_policy_incoming").is_some();
        let incoming = has_incoming.then(|| function(&instance, &mut store, "osier_policy_incoming")).transpose()?;
        Ok(WasmPolicy {
            events_at,
            memory,
            events: function(&instance, &mut store, "osier_policy_events")?,
            victim: function(&instance, &mut store, "osier_policy_victim")?,
            incoming,
            pending: Vec::with_capacity(EVENTS_MAX * EVENT_BYTES),
            ways: shape.ways,
            fuel: 0,
            failure: None,
            store,
        })
    }

    #[inline]
    fn note(&mut self, event: Event, frame: u32, recall: Recall, page: u64) {
        if self.pending.len() == EVENTS_MAX * EVENT_BYTES {
            self.flush();
        }
        let frame = frame.to_le_bytes();
        let page = page.to_le_bytes();
        self.pending.extend_from_slice(&[frame[0], frame[1], frame[2], frame[3], event as u8, recall.get(), 0, 0]);
        self.pending.extend_from_slice(&page);
    }

    #[cold]
    fn flush(&mut self) {
        if let Some(count) = self.hand_over() {
            let result = self.events.call(&mut self.store, count);
            self.answer("osier_policy_events", result);
        }
    }

    /// Puts the events before the module and says how many; nothing once it has failed.
    #[inline]
    fn hand_over(&mut self) -> Option<u32> {
        // A reference that a call left behind when it was unwound is never looked at.
        self.store.data_mut().frames = None;
        let bytes = self.pending.len();
        if self.failure.is_some() {
            self.pending.clear();
            return None;
        }
        // The place was checked when the policy was made, and no memory shrinks.
        let memory = self.memory.data_mut(&mut self.store);
        memory[self.events_at..self.events_at + bytes].copy_from_slice(&self.pending);
        self.pending.clear();
        let count = bytes / EVENT_BYTES;
        let each = FUEL_PER_EVENT + FUEL_PER_EVENT_AND_WAY * u64::from(self.ways);
        self.fuel = (FUEL_CALL + (count as u64 + 1) * each).min(FUEL_MAX);
        give_fuel(&mut self.store, self.fuel);
        Some(count as u32)
    }

    /// The result of a call; a failure is kept.
    #[inline]
    fn answer<T>(&mut self, function: &str, result: wasmtime::Result<T>) -> Option<T> {
        match result {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.fail(function, &reason(&self.store, &error, self.fuel));
                None
            }
        }
    }

    #[cold]
    fn fail(&mut self, function: &str, reason: &str) {
        self.failure = Some(format!("cache policy {}: `{function}` failed: {reason}", self.store.data().module));
    }
}

impl Eviction for WasmPolicy {
    fn incoming(&mut self, set: u32, page: u64, demanded: bool) -> Recall {
        let Some(function) = self.incoming.clone() else { return Recall::NOTHING };
        let Some(count) = self.hand_over() else { return Recall::NOTHING };
        let result = function.call(&mut self.store, (count, set, page, u32::from(demanded)));
        match self.answer("osier_policy_incoming", result) {
            Some(recall @ 0..=3) => Recall::new(recall as u8),
            Some(other) => {
                self.fail("osier_policy_incoming", &format!("it answered {other}, a recall is 0 to 3"));
                Recall::NOTHING
            }
            None => Recall::NOTHING,
        }
    }

    #[inline]
    fn inserted(&mut self, _: u32, frame: u32, page: u64, recall: Recall) {
        self.note(Event::Inserted, frame, recall, page);
    }

    #[inline]
    fn touched(&mut self, _: u32, frame: u32) {
        self.note(Event::Touched, frame, Recall::NOTHING, 0);
    }

    fn victim(&mut self, set: u32, recall: Recall, frames: &Frames<'_>) -> Option<u32> {
        let count = self.hand_over()?;
        // SAFETY: only the lifetime changes. The import that reads the frames runs within the call below, while the
        // caller's reference lives; they are taken away after it, and before any other entry into the module.
        let frames = unsafe { std::mem::transmute::<Frames<'_>, Frames<'static>>(*frames) };
        self.store.data_mut().frames = Some(frames);
        let result = self.victim.call(&mut self.store, (count, set, u32::from(recall.get())));
        self.store.data_mut().frames = None;
        // A number below zero is none. Whether the frame can leave, the cache checks.
        self.answer("osier_policy_victim", result).and_then(|frame| u32::try_from(frame).ok())
    }

    #[inline]
    fn removed(&mut self, _: u32, frame: u32) {
        self.note(Event::Removed, frame, Recall::NOTHING, 0);
    }

    fn overruled(&mut self, fault: &PolicyFault) {
        // It names nothing because it failed: then that is the reason.
        if self.failure.is_none() {
            self.fail("osier_policy_victim", &fault.to_string());
        }
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

fn give_fuel(store: &mut Store<Host>, fuel: u64) {
    let given = store.set_fuel(fuel);
    assert!(given.is_ok(), "the engine of policies counts fuel");
}

fn function<P, R>(instance: &Instance, store: &mut Store<Host>, name: &'static str) -> Result<TypedFunc<P, R>, Problem>
where
    P: wasmtime::WasmParams,
    R: wasmtime::WasmResults,
{
    instance.get_typed_func(store, name).map_err(|_| Problem::MissingExport(name))
}

/// That every parameter that was given is one that the module asked for.
fn all_known(store: &mut Store<Host>) -> Result<(), Problem> {
    let host = store.data_mut();
    let given = host.given.take().unwrap_or_default();
    match given.into_keys().find(|key| !host.asked.contains(key)) {
        None => Ok(()),
        Some(key) if host.asked.is_empty() => Err(Problem::UnknownParameter { key, known: "it has none".to_owned() }),
        Some(key) => Err(Problem::UnknownParameter { key, known: format!("it has {}", host.asked.join(", ")) }),
    }
}

/// Where the events go, from what `osier_policy_new` answered.
fn events_place(store: &Store<Host>, memory: &Memory, answer: i32) -> Result<usize, Problem> {
    if answer == -1 {
        return Err(Problem::Refused(store.data().said.clone().unwrap_or_else(|| "it does not say why".to_owned())));
    }
    let place = answer.cast_unsigned();
    let end = u64::from(place) + (EVENTS_MAX * EVENT_BYTES) as u64;
    if place == 0 || !place.is_multiple_of(EVENT_ALIGN) || end > memory.data_size(store) as u64 {
        let room = EVENTS_MAX * EVENT_BYTES;
        let reason = format!(
            "it answered {place}, which is no place for {room} bytes of events in its memory, at a multiple of {EVENT_ALIGN}"
        );
        return Err(Problem::Failed { function: "osier_policy_new", reason });
    }
    Ok(place as usize)
}

/// Why a call failed, on one line.
fn reason(store: &Store<Host>, error: &wasmtime::Error, fuel: u64) -> String {
    let what = match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => {
            format!("it did not end within {fuel} instructions; it loops, or does too much in one call")
        }
        _ => describe(error),
    };
    match &store.data().said {
        Some(said) => format!("{what}; it said: {said}"),
        None => what,
    }
}

/// The imports.
pub(super) fn add_imports(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    type C<'a> = Caller<'a, Host>;
    linker.func_wrap(IMPORT_MODULE, "log", |mut caller: C<'_>, at: u32, bytes: u32| {
        let text = text(&mut caller, at, bytes, LOG_BYTES_MAX)?;
        let host = caller.data_mut();
        if host.logs < LOGS_MAX {
            host.logs += 1;
            tracing::info!(policy = host.module, "{text}");
        }
        host.said = Some(text);
        wasmtime::Result::Ok(())
    })?;
    linker.func_wrap(
        IMPORT_MODULE,
        "parameter",
        |mut caller: C<'_>, at: u32, bytes: u32, default: u64, least: u64, most: u64| {
            let name = text(&mut caller, at, bytes, PARAMETER_NAME_BYTES_MAX)?;
            parameter(caller.data_mut(), name, default, least..=most)
        },
    )?;
    linker.func_wrap(IMPORT_MODULE, "is_dirty", |caller: C<'_>, frame: u32| {
        let host = caller.data();
        let Some(frames) = host.frames.filter(|_| frame < host.shape.frames()) else {
            return Err(wasmtime::Error::msg(format!(
                "`is_dirty` was asked for frame {frame} of {}, or outside of `osier_policy_victim`",
                host.shape.frames()
            )));
        };
        Ok(u32::from(frames.is_dirty(frame)))
    })?;
    Ok(())
}

fn parameter(
    host: &mut Host,
    name: String,
    default: u64,
    allowed: std::ops::RangeInclusive<u64>,
) -> wasmtime::Result<u64> {
    let Some(given) = &host.given else {
        return Err(wasmtime::Error::msg("a parameter is asked for only in `osier_policy_new`"));
    };
    let value = given.get(&name).copied().unwrap_or(default);
    if !allowed.contains(&value) {
        let (least, most) = allowed.into_inner();
        return Err(wasmtime::Error::msg(format!("parameter `{name}` is {value}, which is outside {least}..={most}")));
    }
    if host.asked.len() == PARAMETERS_MAX {
        return Err(wasmtime::Error::msg(format!("it asks for more than {PARAMETERS_MAX} parameters")));
    }
    host.asked.push(name);
    Ok(value)
}

/// Text in the module's memory, cut to `most` bytes.
fn text(caller: &mut Caller<'_, Host>, at: u32, bytes: u32, most: usize) -> wasmtime::Result<String> {
    let outside = || wasmtime::Error::msg(format!("an import was given {bytes} bytes at {at}, outside of the memory"));
    let memory = caller.get_export("memory").and_then(wasmtime::Extern::into_memory).ok_or_else(outside)?;
    let memory = memory.data(&caller).get(at as usize..).and_then(|rest| rest.get(..bytes as usize));
    let text = memory.ok_or_else(outside)?;
    Ok(String::from_utf8_lossy(&text[..text.len().min(most)]).into_owned())
}
