//! The stack of the programs, as Linux 6.1 counts it: each frame as a multiple of 32 bytes, all frames of a
//! chain of calls together. Newer kernels count less, so that a program that only they have loaded may be
//! refused there; this is read from the object, without any kernel.

use std::collections::BTreeMap;
use std::fmt;

use ::object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SymbolKind};

use super::object::bytes;
use crate::program::Program;

/// `MAX_BPF_STACK`. The deepest programs use all of it: an additional frame of 32 bytes has to be saved
/// elsewhere.
const STACK: u32 = 512;
/// `MAX_CALL_FRAMES`.
const FRAMES: usize = 8;
/// The unit of frames, see `check_max_stack_depth` of Linux 6.1.
const FRAME: u32 = 32;

/// Bytes of an instruction.
const INSTRUCTION: u64 = 8;
/// The register with the address of the end of the frame.
const R10: usize = 10;
/// Marks the call of another function of the object: its number is not that of a helper.
const PSEUDO_CALL: u8 = 1;

/// Opcodes, as far as they matter here.
mod code {
    pub const CALL: u8 = 0x85;
    /// `dst = src`, `dst += number`, of 64 bits.
    pub const MOVE: u8 = 0xbf;
    pub const ADD: u8 = 0x07;
    /// The class of an instruction.
    pub const CLASS: u8 = 0x07;
    pub const LOAD: u8 = 1;
    pub const STORE_NUMBER: u8 = 2;
    pub const STORE: u8 = 3;
    pub const ARITHMETIC32: u8 = 4;
    pub const ARITHMETIC64: u8 = 7;
    pub const LOAD_NUMBER: u8 = 0;
}

/// The address of a function: the number of its section, and its offset there.
type Place = (usize, u64);

/// A function of the object.
struct Function {
    name: String,
    /// Bytes of its frame, as the kernel counts them.
    frame: u32,
    calls: Vec<Place>,
}

/// A chain of calls, starting with the program.
#[derive(Clone, Default)]
struct Chain {
    bytes: u32,
    functions: Vec<(String, u32)>,
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} frames:", self.bytes, self.functions.len())?;
        self.functions.iter().try_for_each(|(name, frame)| write!(f, "\n  {frame:>4} {name}"))
    }
}

/// Returns all functions of the object, by address.
fn functions(file: &::object::File<'_>) -> BTreeMap<Place, Function> {
    let mut found = BTreeMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0) {
        let index = symbol.section_index().expect("a function is in a section");
        let section = file.section_by_index(index).expect("a section that a symbol names");
        let name = readable(symbol.name().expect("a name"));
        let code = section.data_range(symbol.address(), symbol.size()).expect("data").expect("code");
        let calls = calls(file, &section, symbol.address(), code);
        found.insert((index.0, symbol.address()), Function { name, frame: frame(code), calls });
    }
    found
}

/// Returns the path and the family in the compiler's name of a function, which contains `3dsr7receive` for
/// `dsr::receive`; other names unchanged.
fn readable(name: &str) -> String {
    if !name.starts_with("_R") {
        return name.to_owned();
    }
    let (mut words, mut rest) = (Vec::new(), name);
    while let Some(at) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let digits = rest[at..].bytes().take_while(u8::is_ascii_digit).count();
        let length = rest[at..at + digits].parse::<usize>().unwrap_or(0);
        let word = rest[at + digits..].get(..length).unwrap_or_default().trim_start_matches('_');
        // The digits of disambiguators and of back references are not lengths.
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let begins = word.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
        if ["V4", "V6"].contains(&word) || begins && word.bytes().all(plain) {
            words.push(word);
            rest = &rest[at + digits + length..];
        } else {
            rest = &rest[at + digits..];
        }
    }
    words.retain(|word| !["hawser_ebpf", "kernel", "family"].contains(word));
    words.join("::")
}

/// Returns the targets of the calls in a function.
fn calls(
    file: &::object::File<'_>,
    section: &::object::Section<'_, '_>,
    start: u64,
    code: &[u8],
) -> Vec<Place> {
    let targets: BTreeMap<u64, RelocationTarget> = section
        .relocations()
        .filter(|(at, _)| (start..start + code.len() as u64).contains(at))
        .map(|(at, relocation)| (at, relocation.target()))
        .collect();
    let mut found = Vec::new();
    for (at, instruction) in (start..).step_by(INSTRUCTION as usize).zip(code.chunks_exact(8)) {
        if instruction[0] != code::CALL || instruction[1] >> 4 != PSEUDO_CALL {
            continue;
        }
        let number = i64::from(number(instruction));
        // In instructions, counted from the next one.
        let ahead = at.wrapping_add_signed((number + 1) * INSTRUCTION as i64);
        found.push(match targets.get(&at) {
            Some(RelocationTarget::Symbol(symbol)) => {
                let symbol = file.symbol_by_index(*symbol).expect("a symbol that a relocation names");
                let within = if symbol.kind() == SymbolKind::Section { ahead - at } else { 0 };
                let index = symbol.section_index().expect("a function is in a section");
                (index.0, symbol.address() + within)
            }
            Some(other) => panic!("a relocation to {other:?}"),
            None => (section.index().0, ahead),
        });
    }
    found
}

/// Returns the constant in an instruction.
fn number(instruction: &[u8]) -> i32 {
    i32::from_le_bytes([instruction[4], instruction[5], instruction[6], instruction[7]])
}

/// Returns the bytes of a frame: from its end to the lowest address that the function computes or uses.
fn frame(code: &[u8]) -> u32 {
    // For each register, the distance from the end of the frame, if it points there.
    let mut leads = [None; 11];
    leads[R10] = Some(0_i64);
    let mut lowest = 0;
    for instruction in code.chunks_exact(8) {
        let (destination, source) = (usize::from(instruction[1] & 15), usize::from(instruction[1] >> 4));
        let offset = i64::from(i16::from_le_bytes([instruction[2], instruction[3]]));
        let mut used = |register: usize| {
            lowest = lowest.min(leads[register].map_or(0, |base| base + offset));
        };
        match (instruction[0], instruction[0] & code::CLASS) {
            (code::MOVE, _) => leads[destination] = leads[source],
            (code::ADD, _) => {
                leads[destination] = leads[destination].map(|base| base + i64::from(number(instruction)));
                lowest = lowest.min(leads[destination].unwrap_or(0));
            }
            (code::CALL, _) => leads[..6].fill(None),
            (_, code::LOAD) => {
                used(source);
                leads[destination] = None;
            }
            (_, code::STORE | code::STORE_NUMBER) => used(destination),
            (_, code::ARITHMETIC32 | code::ARITHMETIC64 | code::LOAD_NUMBER) => leads[destination] = None,
            _ => {}
        }
    }
    u32::try_from(-lowest).expect("a frame is small").max(1).next_multiple_of(FRAME)
}

/// Returns the chains from a function on that need most stack, and that have most frames.
fn deepest(all: &BTreeMap<Place, Function>, place: Place, room: usize) -> (Chain, Chain) {
    let function = &all[&place];
    assert!(room > 0, "a chain of calls that leads to itself: {}", function.name);
    let (mut largest, mut longest) = (Chain::default(), Chain::default());
    for call in &function.calls {
        let (large, long) = deepest(all, *call, room - 1);
        if large.bytes > largest.bytes {
            largest = large;
        }
        if long.functions.len() > longest.functions.len() {
            longest = long;
        }
    }
    for chain in [&mut largest, &mut longest] {
        chain.bytes += function.frame;
        chain.functions.insert(0, (function.name.clone(), function.frame));
    }
    (largest, longest)
}

/// Returns the programs' chains.
fn chains() -> Vec<(Program, Chain, Chain)> {
    let file = ::object::File::parse(bytes()).expect("the object is an ELF file");
    let all = functions(&file);
    let chain = |program: Program| {
        let place = all.iter().find(|(_, function)| function.name == program.name());
        let (place, _) = place.unwrap_or_else(|| panic!("the object has no program {}", program.name()));
        let (largest, longest) = deepest(&all, *place, 32);
        (program, largest, longest)
    };
    Program::ALL.into_iter().map(chain).collect()
}

#[test]
fn programs_fit_the_stack_of_linux_6_1() {
    if bytes().is_empty() {
        // Without the built programs there is nothing to measure.
        return;
    }
    let mut report = String::new();
    let mut good = true;
    for (program, largest, longest) in chains() {
        let fits = largest.bytes <= STACK && longest.functions.len() <= FRAMES;
        good &= fits;
        let (mark, name) = (if fits { "ok" } else { "TOO MUCH" }, program.name());
        report += &format!("{mark}: {name}: {} bytes, {} frames\n", largest.bytes, longest.functions.len());
        if !fits {
            report += &format!("{name}, most stack: {largest}\n{name}, most frames: {longest}\n");
        }
    }
    assert!(good, "at most {STACK} bytes and {FRAMES} frames:\n{report}");
}
