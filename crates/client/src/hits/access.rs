//! Which address a thread waited for, from where it was interrupted: the instructions there and its registers.
//!
//! A processor takes an interrupt between two instructions, when the oldest one under way has retired, or before that
//! one, which is then begun again. So the access that was waited for is in the instruction before, or in the one at
//! which the thread was interrupted: which of both is measured ([`Skid`]). Where the instruction before has overwritten
//! the register that it took its address from, as each step along a list does, the next access from there on stands for
//! it. On the way there the usual instructions that compute addresses are followed.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Bytes before the interrupted instruction that are decoded to find where the one before begins.
pub const BEFORE_BYTES: usize = 48;
/// Bytes from there on in which the next access is looked for.
pub const AFTER_BYTES: usize = 80;
/// Instructions that are followed for it, at most.
const FOLLOWED_MAX: usize = 32;
/// Bytes of an instruction, at most (AMD64 manual, volume 3, section 1.1).
const INSTRUCTION_MAX: usize = 15;

/// General registers, by their numbers in instructions: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
pub type Registers = [u64; 16];
/// The same while instructions are followed, as far as they are known.
type Values = [Option<u64>; 16];

/// Where the instruction is that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skid {
    /// At the address of the interrupt.
    At,
    /// Before it.
    Before,
}

/// Some bytes of a program.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// The address of the first.
    pub at: u64,
    /// As many as could be read.
    pub bytes: &'a [u8],
}

/// What an instruction does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    None,
    /// Of the stack: not what is waited for.
    Stack,
    /// The address cannot be told.
    Unknown,
    /// Of one place, or of two.
    At(u64, u64),
}

impl Code<'_> {
    fn decode(&self, at: u64) -> Option<Instruction> {
        let from = usize::try_from(at.checked_sub(self.at)?).ok()?;
        let bytes = self.bytes.get(from..).filter(|bytes| !bytes.is_empty())?;
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// The instruction that ends where another begins. Instructions have no mark where they begin; but whoever begins
    /// to decode at a wrong place is soon in step, so the one at which most beginnings come out is it.
    fn before(&self, end: u64) -> Option<Instruction> {
        let length = usize::try_from(end.checked_sub(self.at)?).ok()?.min(BEFORE_BYTES);
        let first = end - length as u64;
        // By byte: where the last instruction before the end begins, for who begins to decode here.
        let mut last = [None; BEFORE_BYTES];
        let mut votes = [0_u8; BEFORE_BYTES];
        for from in (0..length).rev() {
            let Some(instruction) = self.decode(first + from as u64) else { continue };
            let next = from + instruction.len();
            last[from] = if next == length { Some(from) } else { last.get(next).copied().flatten() };
            if let Some(place) = last[from].filter(|_| next <= length) {
                votes[place] += 1;
            }
        }
        let (place, count) = votes.iter().enumerate().max_by_key(|(_, count)| **count)?;
        if *count == 0 { None } else { self.decode(first + place as u64) }
    }
}

/// Where the instructions before those at which threads were interrupted begin: they are the same again and again, and
/// to find one takes dozens of decodings.
pub struct Places {
    /// By the low bits of an address: the address, and of the instruction before.
    known: [(u64, u64); PLACES],
}

const PLACES: usize = 256;

impl Places {
    /// None.
    pub fn new() -> Places {
        Places { known: [(0, 0); PLACES] }
    }

    fn before(&mut self, code: Code<'_>, rip: u64) -> Option<Instruction> {
        let place = &mut self.known[rip as usize % PLACES];
        // What a program has put in the code's place since is looked at anew.
        if let (at, begin) = *place
            && at == rip
            && let Some(instruction) = code.decode(begin).filter(|instruction| instruction.next_ip() == rip)
        {
            return Some(instruction);
        }
        let found = code.before(rip)?;
        *place = (rip, found.ip());
        Some(found)
    }
}

/// The address, among those that `is_wanted`, for which a thread waited that was interrupted at `rip`.
pub fn accessed(
    code: Code<'_>,
    rip: u64,
    registers: &Registers,
    (skid, places): (Skid, &mut Places),
    is_wanted: impl Fn(u64) -> bool,
) -> Option<u64> {
    let choose = |one: u64, other: u64| [one, other].into_iter().find(|address| is_wanted(*address));
    let here = code.decode(rip)?;
    // A string instruction is interrupted between two of its steps, and goes on.
    if skid == Skid::At || (here.has_rep_prefix() && here.is_string_instruction()) {
        return match access(&here, &registers.map(Some)) {
            Access::At(one, other) => choose(one, other),
            _ => None,
        };
    }
    let before = places.before(code, rip)?;
    let written = written(&before);
    let values: Values = std::array::from_fn(|number| (written >> number & 1 == 0).then_some(registers[number]));
    match access(&before, &values) {
        Access::At(one, other) => choose(one, other),
        Access::Unknown => match next_access(code, rip, registers)? {
            Access::At(one, other) => choose(one, other),
            _ => None,
        },
        Access::None | Access::Stack => None,
    }
}

/// The next access beside the stack's whose address can be told. Loops are taken to go on.
fn next_access(code: Code<'_>, rip: u64, registers: &Registers) -> Option<Access> {
    let (mut at, mut values) = (rip, registers.map(Some));
    for _ in 0..FOLLOWED_MAX {
        let instruction = code.decode(at)?;
        if let found @ Access::At(..) = access(&instruction, &values) {
            return Some(found);
        }
        let result = computed(&instruction, &values);
        let written = written(&instruction);
        for (number, value) in values.iter_mut().enumerate().filter(|(number, _)| written >> number & 1 != 0) {
            *value = result.filter(|(to, _)| *to == number).map(|(_, result)| result);
        }
        let target = (instruction.op0_kind() == OpKind::NearBranch64).then(|| instruction.near_branch_target());
        at = match instruction.flow_control() {
            FlowControl::Next => instruction.next_ip(),
            FlowControl::UnconditionalBranch => target?,
            FlowControl::ConditionalBranch => target.filter(|to| *to <= at).unwrap_or(instruction.next_ip()),
            _ => return None,
        };
    }
    None
}

/// The register that an instruction computes, and its value, if it is a usual one.
fn computed(instruction: &Instruction, values: &Values) -> Option<(usize, u64)> {
    let to = (instruction.op0_kind() == OpKind::Register).then(|| instruction.op0_register())?;
    let number = number(to)?;
    let operand = |operand: u32| match instruction.op_kind(operand) {
        OpKind::Register => {
            let register = instruction.op_register(operand);
            let value = values[self::number(register)?]?;
            match register.size() {
                8 => Some(value),
                4 => Some(value & u64::from(u32::MAX)),
                _ => None,
            }
        }
        OpKind::Immediate8
        | OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => Some(instruction.immediate(operand)),
        _ => None,
    };
    let is_short = instruction.op_count() < 3;
    let bits = to.size() as u32 * 8;
    let result = match instruction.mnemonic() {
        Mnemonic::Lea => match plain(instruction, values) {
            Access::At(address, _) => address,
            _ => return None,
        },
        Mnemonic::Mov => operand(1)?,
        Mnemonic::Movsxd => i64::from(operand(1)? as i32) as u64,
        Mnemonic::Add => operand(0)?.wrapping_add(operand(1)?),
        Mnemonic::Sub => operand(0)?.wrapping_sub(operand(1)?),
        Mnemonic::And => operand(0)? & operand(1)?,
        Mnemonic::Or => operand(0)? | operand(1)?,
        Mnemonic::Xor => operand(0)? ^ operand(1)?,
        Mnemonic::Inc => operand(0)?.wrapping_add(1),
        Mnemonic::Dec => operand(0)?.wrapping_sub(1),
        Mnemonic::Shl => operand(0)? << (operand(1)? as u32 % bits),
        Mnemonic::Shr => operand(0)? >> (operand(1)? as u32 % bits),
        Mnemonic::Imul if is_short => operand(0)?.wrapping_mul(operand(1)?),
        Mnemonic::Imul => operand(1)?.wrapping_mul(operand(2)?),
        // They write flags alone.
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Bt => values[number]?,
        _ => return None,
    };
    // What is computed in 32 bits is the whole register (AMD64 manual, volume 1, section 3.1.2).
    match bits {
        64 => Some((number, result)),
        32 => Some((number, result & u64::from(u32::MAX))),
        _ => None,
    }
}

fn number(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

/// What is accessed.
fn access(instruction: &Instruction, values: &Values) -> Access {
    let is_none = [Mnemonic::Lea, Mnemonic::Nop, Mnemonic::INVALID].contains(&instruction.mnemonic());
    let kinds = (0..instruction.op_count()).map(|operand| instruction.op_kind(operand));
    let mut found = Access::None;
    for kind in kinds.filter(|_| !is_none) {
        let this = match kind {
            OpKind::Memory => plain(instruction, values),
            OpKind::MemorySegRSI => of_register(Register::RSI, values),
            OpKind::MemoryESRDI => of_register(Register::RDI, values),
            _ => continue,
        };
        found = match (found, this) {
            (Access::At(one, _), Access::At(other, _)) => Access::At(one, other),
            (Access::None, _) => this,
            _ => Access::Unknown,
        };
    }
    found
}

fn of_register(register: Register, values: &Values) -> Access {
    number(register).and_then(|number| values[number]).map_or(Access::Unknown, |value| Access::At(value, value))
}

/// An operand of base, index and displacement.
fn plain(instruction: &Instruction, values: &Values) -> Access {
    let base = instruction.memory_base().full_register();
    if [Register::RSP, Register::RBP].contains(&base) && instruction.memory_index() == Register::None {
        return Access::Stack;
    }
    // Thread-local, or several addresses at once.
    if [Register::FS, Register::GS].contains(&instruction.memory_segment()) || instruction.is_vsib() {
        return Access::Unknown;
    }
    let mut address = instruction.memory_displacement64();
    let scale = u64::from(instruction.memory_index_scale());
    // What is relative to the instruction pointer has been added up by the decoder.
    for (register, scale) in [(base, 1), (instruction.memory_index().full_register(), scale)] {
        if register == Register::None || instruction.is_ip_rel_memory_operand() {
            continue;
        }
        let Some(value) = number(register).and_then(|number| values[number]) else { return Access::Unknown };
        address = address.wrapping_add(value.wrapping_mul(scale));
    }
    Access::At(address, address)
}

/// A bit for each register that an instruction may have written; rather one too many.
fn written(instruction: &Instruction) -> u16 {
    let bit = |register: Register| number(register).map_or(0, |number| 1_u16 << number);
    let operand = |operand: u32| {
        let is_register = operand < instruction.op_count() && instruction.op_kind(operand) == OpKind::Register;
        if is_register { bit(instruction.op_register(operand)) } else { 0 }
    };
    let (rax, rdx) = (bit(Register::RAX), bit(Register::RDX));
    let implied = match instruction.mnemonic() {
        Mnemonic::Mul | Mnemonic::Imul | Mnemonic::Div | Mnemonic::Idiv | Mnemonic::Cmpxchg => rax | rdx,
        Mnemonic::Cwd | Mnemonic::Cdq | Mnemonic::Cqo => rdx,
        Mnemonic::Cbw | Mnemonic::Cwde | Mnemonic::Cdqe => rax,
        Mnemonic::Xchg | Mnemonic::Xadd | Mnemonic::Mulx => operand(1),
        _ if instruction.is_string_instruction() => rax | bit(Register::RCX) | bit(Register::RSI) | bit(Register::RDI),
        _ => 0,
    };
    operand(0) | implied
}

const _: () = assert!(BEFORE_BYTES > 2 * INSTRUCTION_MAX, "there is room to come into step");

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x40_0000;

    /// Who was interrupted at the `rip`th byte of a program, whose registers have the value 0x1000 times their number
    /// plus one; all addresses are wanted.
    fn waited(bytes: &[u8], rip: u64, skid: Skid) -> Option<u64> {
        let registers = std::array::from_fn(|number| 0x1000 * (number as u64 + 1));
        let mut places = Places::new();
        let mut ask = || accessed(Code { at: AT, bytes }, AT + rip, &registers, (skid, &mut places), |_| true);
        let found = ask();
        assert_eq!(found, ask(), "what is remembered is the same");
        found
    }

    const RAX: u64 = 0x1000;
    const RCX: u64 = 0x2000;
    const RDI: u64 = 0x8000;

    #[test]
    fn the_instruction_before_names_the_address() {
        // nop x 16; mov rdx, [rdi + rcx*8 + 16]; add rax, rdx
        let code = [&[0x90; 16][..], &[0x48, 0x8b, 0x54, 0xcf, 0x10], &[0x48, 0x01, 0xd0]].concat();
        assert_eq!(waited(&code, 21, Skid::Before), Some(RDI + 8 * RCX + 16));
        assert_eq!(waited(&code, 16, Skid::At), Some(RDI + 8 * RCX + 16));
        assert_eq!(waited(&code, 16, Skid::Before), None, "it waited for a nop");
        assert_eq!(waited(&code, 21, Skid::At), None, "it waited for an addition");
    }

    #[test]
    fn a_step_along_a_list_is_its_next_one() {
        // mov rax, [rax]; dec rcx; jne to the first; ret
        let code = [0x48, 0x8b, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf8, 0xc3];
        assert_eq!(waited(&code, 3, Skid::Before), Some(RAX));
        // The same with a jump forwards: nothing is said of what is behind it.
        let code = [0x48, 0x8b, 0x00, 0x48, 0xff, 0xc9, 0x75, 0x00, 0xc3];
        assert_eq!(waited(&code, 3, Skid::Before), None);
        // mov rax, [rax]; mov rax, [rdi]; mov rdx, [rax]: the first whose address is known.
        let code = [0x48, 0x8b, 0x00, 0x48, 0x8b, 0x07, 0x48, 0x8b, 0x10];
        assert_eq!(waited(&code, 3, Skid::Before), Some(RDI));
        // mov rax, [rax]; mov rdi, rax; mov rdx, [rdi]
        let code = [0x48, 0x8b, 0x00, 0x48, 0x89, 0xc7, 0x48, 0x8b, 0x17, 0xc3];
        assert_eq!(waited(&code, 3, Skid::Before), Some(RAX));
        // mov rax, [rax]; popcnt rdi, rax; mov rdx, [rdi]: what it computes is not known.
        let code = [0x48, 0x8b, 0x00, 0xf3, 0x48, 0x0f, 0xb8, 0xf8, 0x48, 0x8b, 0x17, 0xc3];
        assert_eq!(waited(&code, 3, Skid::Before), None);
    }

    #[test]
    fn addresses_that_are_computed_are_followed() {
        // shr rdi, 3; cmp rdi, r14; jae behind; mov rdi, [r15 + rdi*8]; dec rax; jne to the first; ret
        let code = [
            0x48, 0xc1, 0xef, 0x03, 0x4c, 0x39, 0xf7, 0x73, 0x09, 0x49, 0x8b, 0x3c, 0xff, 0x48, 0xff, 0xc8, 0x75, 0xee,
            0xc3,
        ];
        assert_eq!(waited(&code, 13, Skid::Before), Some(0x10_000 + RDI / 8 * 8));
        // mov rdi, [rdi]; then in 32 bits: lea eax, [rdi + rdi*4]; sub eax, 0x28001; shl eax, 4; movsxd rcx, eax;
        // mov rdx, [rcx]. Five times 0x8000 less 0x28001 is -1, and 16 of that -16.
        let code = [
            0x48, 0x8b, 0x3f, 0x8d, 0x04, 0xbf, 0x2d, 0x01, 0x80, 0x02, 0x00, 0xc1, 0xe0, 0x04, 0x48, 0x63, 0xc8, 0x48,
            0x8b, 0x11,
        ];
        assert_eq!(waited(&code, 3, Skid::Before), Some(-16_i64 as u64));
    }

    #[test]
    fn the_stack_and_what_is_no_access_are_not_waited_for() {
        // mov rax, [rsp+8]; then lea rax, [rdi]; then nop dword [rax]
        let code = [0x48, 0x8b, 0x44, 0x24, 0x08, 0x48, 0x8d, 0x07, 0x0f, 0x1f, 0x00, 0xc3];
        for rip in [5, 8, 11] {
            assert_eq!(waited(&code, rip, Skid::Before), None);
        }
    }

    #[test]
    fn both_places_of_a_copy_are_looked_at() {
        // rep movsb, with rsi = 0x7000 and rdi = 0x8000
        let code = [0xf3, 0xa4, 0xc3];
        let registers: Registers = std::array::from_fn(|number| 0x1000 * (number as u64 + 1));
        for wanted in [0x7000, RDI] {
            let found = {
                let skid = (Skid::Before, &mut Places::new());
                accessed(Code { at: AT, bytes: &code }, AT, &registers, skid, |at| at == wanted)
            };
            assert_eq!(found, Some(wanted));
        }
    }

    #[test]
    fn any_bytes_are_borne() {
        let mut random = 1_u64;
        for _ in 0..20_000 {
            let bytes: [u8; BEFORE_BYTES + AFTER_BYTES] = std::array::from_fn(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) as u8
            });
            let length = (random >> 20) as usize % bytes.len();
            let rip = (random >> 40) % (bytes.len() as u64 + 1);
            for skid in [Skid::At, Skid::Before] {
                waited(&bytes[..length], rip, skid);
            }
        }
    }
}
