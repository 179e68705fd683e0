//! What a window does to the shared memory and finds on its media, for whoever records or replays it.

/// One of them. The media's answers decide what the window does next; the rest follows from its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A page was read for a fill.
    Read(Found),
    /// A page's place was given the bytes of a copy, or zeroes.
    Loaded { page: u64, copy: Option<u64> },
    /// A dirty page was copied for the flash.
    Saved { page: u64, copy: u64, checksum: u32 },
    /// There was no room for a dirty page.
    NotSaved { page: u64 },
    /// A page has left, with the bytes of this copy.
    Left { page: u64, copy: Option<u64> },
}

/// What a read of the media found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The bytes that were saved.
    Whole,
    /// Other bytes.
    Damaged,
    /// None.
    Nothing,
}

/// What happened since it was looked at, if anybody looks.
#[derive(Debug, Default)]
pub(super) struct Trace(Option<Vec<Effect>>);

impl Trace {
    #[inline]
    pub fn note(&mut self, effect: Effect) {
        if let Some(effects) = &mut self.0 {
            effects.push(effect);
        }
    }

    /// Begins to keep what happens, or ends it.
    pub fn keep(&mut self, is_kept: bool) {
        self.0 = is_kept.then(Vec::new);
    }

    /// Moves what happened to the end of `effects`.
    pub fn take(&mut self, effects: &mut Vec<Effect>) {
        if let Some(own) = &mut self.0 {
            effects.append(own);
        }
    }
}
