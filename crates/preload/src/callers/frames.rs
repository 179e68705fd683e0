//! From a call to the call before it: by the tables that modules have of their frames.
//!
//! What a table says of a return address is kept by that address, so that a step is a look into a small table, and
//! nothing is allocated. Frames whose table says more than how far the stack goes are not gone beyond.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, NativeEndian, Pointer, RegisterRule, UnwindContext, UnwindSection,
    X86_64,
};

use super::modules::Module;

/// A call, as the function that was called finds it.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The stack as it was before the call: below it lies the return address.
    pub stack: usize,
    /// The frame pointer, which may be used for anything else.
    pub frame: usize,
}

/// How a frame is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The tables do not say it.
    Unknown,
    /// The stack before the call of this function is so far from the stack, or from the frame pointer; the caller's
    /// frame pointer is so far below, or is still there.
    Known { by_frame: bool, bytes: i32, saved: Option<i32> },
}

const WORD: usize = size_of::<usize>();
/// The largest frame that is believed.
const FRAME_MAX: usize = 8 << 20;

impl Call {
    /// The address that it returns to.
    pub fn returns_to(self) -> usize {
        // SAFETY: the stack below a call has its return address.
        unsafe { ((self.stack - WORD) as *const usize).read() }
    }

    /// The call of the function that called.
    pub fn up(self, step: Step) -> Option<Call> {
        let Step::Known { by_frame, bytes, saved } = step else { return None };
        let from = if by_frame { self.frame } else { self.stack };
        let stack = from.wrapping_add_signed(bytes as isize);
        let is_beyond = stack > self.stack && stack - self.stack <= FRAME_MAX && stack.is_multiple_of(WORD);
        if !is_beyond {
            return None;
        }
        let saved = saved.map(|offset| stack.wrapping_add_signed(offset as isize));
        // SAFETY: it lies in a frame of this stack, where the table of the function says.
        let read = |at: usize| (at >= self.stack && at < stack).then(|| unsafe { (at as *const usize).read() });
        let frame = saved.map_or(Some(self.frame), read)?;
        Some(Call { stack, frame })
    }
}

/// Steps by return address.
pub struct Steps {
    places: [(AtomicUsize, AtomicU64); Steps::PLACES],
}

impl Steps {
    const PLACES: usize = 4096;

    pub const fn new() -> Steps {
        Steps { places: [const { (AtomicUsize::new(0), AtomicU64::new(0)) }; Steps::PLACES] }
    }

    fn place(&self, address: usize) -> &(AtomicUsize, AtomicU64) {
        &self.places[(address ^ address >> 12) % Steps::PLACES]
    }

    /// What is kept of an address.
    pub fn get(&self, address: usize) -> Option<Step> {
        let (key, value) = self.place(address);
        let before = key.load(Ordering::Acquire);
        let step = value.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (before == address && key.load(Ordering::Relaxed) == address).then(|| Step::decode(step))
    }

    /// Keeps it. One thread at a time.
    pub fn keep(&self, address: usize, step: Step) {
        let (key, value) = self.place(address);
        key.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        value.store(step.encode(), Ordering::Relaxed);
        key.store(address, Ordering::Release);
    }

    /// Keeps nothing any more: other code may be where some was.
    pub fn forget(&self) {
        self.places.iter().for_each(|(key, _)| key.store(0, Ordering::Relaxed));
    }
}

impl Step {
    /// Distances are of frames that are believed: they fit into 28 bits.
    fn encode(self) -> u64 {
        const SMALL: u64 = (1 << 28) - 1;
        match self {
            Step::Unknown => 0,
            Step::Known { by_frame, bytes, saved } => {
                1 | u64::from(by_frame) << 1
                    | u64::from(saved.is_some()) << 2
                    | (bytes as u64 & SMALL) << 8
                    | (saved.unwrap_or(0) as u64 & SMALL) << 36
            }
        }
    }

    fn decode(word: u64) -> Step {
        if word & 1 == 0 {
            return Step::Unknown;
        }
        let small = |at: u32| ((word >> at) as u32) << 4;
        let number = |at: u32| small(at) as i32 >> 4;
        Step::Known { by_frame: word >> 1 & 1 == 1, bytes: number(8), saved: (word >> 2 & 1 == 1).then(|| number(36)) }
    }

    /// What a module's tables say of a return address.
    pub fn of(module: &Module, address: usize) -> Step {
        Step::read(module, address).unwrap_or(Step::Unknown)
    }

    fn read(module: &Module, address: usize) -> Option<Step> {
        let header = module
            .frames
            .clone()
            .filter(|range| module.loaded.start <= range.start && range.end <= module.loaded.end)?;
        // SAFETY: what is loaded of a module whose code runs stays where it is.
        let bytes = |start: usize, end: usize| unsafe { std::slice::from_raw_parts(start as *const u8, end - start) };
        let bases = BaseAddresses::default().set_eh_frame_hdr(header.start as u64);
        let parsed = EhFrameHdr::new(bytes(header.start, header.end), NativeEndian).parse(&bases, WORD as u8).ok()?;
        let Pointer::Direct(frames) = parsed.eh_frame_ptr() else { return None };
        let end = module.loaded.end;
        let frames = usize::try_from(frames).ok().filter(|at| module.loaded.start <= *at && *at < end)?;
        let bases = bases.set_eh_frame(frames as u64);
        let section = EhFrame::new(bytes(frames, end), NativeEndian);
        let mut context = UnwindContext::new();
        // The call, and not what comes after it, which may be another function's.
        let row = parsed.table()?.unwind_info_for_address(
            &section,
            &bases,
            &mut context,
            address as u64 - 1,
            EhFrame::cie_from_offset,
        );
        let row = row.ok()?;
        let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { return None };
        let is_below = matches!(row.register(X86_64::RA), Some(RegisterRule::Offset(-8)));
        let saved = match row.register(X86_64::RBP) {
            None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => None,
            Some(RegisterRule::Offset(offset)) => Some(small(offset)?),
            Some(_) => return None,
        };
        let by_frame = register == X86_64::RBP;
        (is_below && (by_frame || register == X86_64::RSP)).then_some(())?;
        Some(Step::Known { by_frame, bytes: small(offset)?, saved })
    }
}

fn small(offset: i64) -> Option<i32> {
    i32::try_from(offset).ok().filter(|offset| offset.unsigned_abs() as usize <= FRAME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_kept_as_it_was() {
        let steps = Box::new(Steps::new());
        let limit = FRAME_MAX as i32;
        let all = [(false, 16, None), (true, -8, Some(-16)), (true, limit, Some(-limit)), (false, -limit, Some(limit))];
        for (index, (by_frame, bytes, saved)) in (1..).zip(all) {
            let (address, step) = (index * 7919, Step::Known { by_frame, bytes, saved });
            assert_eq!(steps.get(address), None);
            steps.keep(address, step);
            assert_eq!((steps.get(address), steps.get(address + Steps::PLACES)), (Some(step), None));
        }
        steps.keep(7, Step::Unknown);
        assert_eq!(steps.get(7), Some(Step::Unknown));
        steps.forget();
        assert_eq!(steps.get(7), None);
    }

    #[test]
    fn a_frame_that_goes_nowhere_is_not_gone_beyond() {
        let words = [1_usize, 2, 3, 4];
        let stack = words.as_ptr() as usize;
        let call = Call { stack, frame: stack + 16 };
        let step = |by_frame, bytes, saved| {
            call.up(Step::Known { by_frame, bytes, saved }).map(|up| (up.stack - stack, up.frame))
        };
        assert_eq!(step(false, 24, Some(-16)), Some((24, 2)));
        assert_eq!(step(true, 8, None), Some((24, stack + 16)));
        assert_eq!(step(false, 0, None), None, "the stack rises");
        assert_eq!(step(false, -8, None), None);
        assert_eq!(step(false, 12, None), None, "by whole words");
        assert_eq!(step(false, 24, Some(0)), None, "what was saved lies in the frame");
        assert_eq!(step(false, 24, Some(-32)), None);
        assert!(call.up(Step::Unknown).is_none());
    }
}
