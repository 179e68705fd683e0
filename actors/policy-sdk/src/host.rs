//! What the host offers; compiled for anything but WebAssembly, what a test says in its place.

#[cfg(target_family = "wasm")]
mod imports {
    #[link(wasm_import_module = "osier")]
    unsafe extern "C" {
        pub(super) safe fn log(text: usize, bytes: usize);
        pub(super) safe fn parameter(name: usize, bytes: usize, default: u64, least: u64, most: u64) -> u64;
        pub(super) safe fn is_dirty(frame: u32) -> u32;
    }
}

/// Says something: the host logs it, and shows the last of it if the policy fails.
pub fn log(text: &str) {
    #[cfg(target_family = "wasm")]
    imports::log(text.as_ptr().addr(), text.len());
    #[cfg(not(target_family = "wasm"))]
    eprintln!("{text}");
}

#[cfg(target_family = "wasm")]
pub(crate) fn log_panic(file: &str, line: u32) {
    let digits = |number: u32| (1..10).fold((1, number / 10), |(n, rest), _| (n + usize::from(rest > 0), rest / 10)).0;
    let mut text = alloc::string::String::with_capacity(file.len() + 24);
    text.push_str("panicked at ");
    text.push_str(file);
    text.push(':');
    for place in (0..digits(line) as u32).rev() {
        text.push((b'0' + (line / 10_u32.pow(place) % 10) as u8) as char);
    }
    log(&text);
}

/// The parameters that the user gave.
#[derive(Debug, Default)]
pub struct Parameters {
    #[cfg(not(target_family = "wasm"))]
    given: Vec<(String, u64)>,
}

impl Parameters {
    /// Those of a test.
    #[cfg(not(target_family = "wasm"))]
    pub fn of(given: &[(&str, u64)]) -> Parameters {
        Parameters { given: given.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect() }
    }

    /// The value of a parameter, or its default. One outside of `least..=most` is refused; so is, after
    /// [`crate::Policy::new`], one that was given and never asked for.
    pub fn get(&self, name: &str, default: u64, least: u64, most: u64) -> u64 {
        #[cfg(target_family = "wasm")]
        return imports::parameter(name.as_ptr().addr(), name.len(), default, least, most);
        #[cfg(not(target_family = "wasm"))]
        {
            let given = self.given.iter().find(|(known, _)| known == name);
            let value = given.map_or(default, |(_, value)| *value);
            assert!((least..=most).contains(&value), "parameter `{name}` is {value}, outside {least}..={most}");
            value
        }
    }
}

/// A look at the frames, while a victim is being chosen.
#[derive(Debug, Default)]
pub struct Frames {
    #[cfg(not(target_family = "wasm"))]
    dirty: Vec<u32>,
    #[cfg(target_family = "wasm")]
    _private: (),
}

impl Frames {
    /// Those of a test: which of them are dirty.
    #[cfg(not(target_family = "wasm"))]
    pub fn with_dirty(dirty: &[u32]) -> Frames {
        Frames { dirty: dirty.to_vec() }
    }

    /// Whether the page in a frame that the policy has must be written before it can leave.
    pub fn is_dirty(&self, frame: u32) -> bool {
        #[cfg(target_family = "wasm")]
        return imports::is_dirty(frame) != 0;
        #[cfg(not(target_family = "wasm"))]
        self.dirty.contains(&frame)
    }
}
