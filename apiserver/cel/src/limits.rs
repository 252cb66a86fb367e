//! Bounds of expressions: of their text, of what is reported about them, and of the work to evaluate them.

/// Maximum length of an expression.
pub(crate) const EXPRESSION_BYTES: usize = 16 * 1024;
/// Maximum depth of the tree of an expression; analysis and evaluation recurse.
pub(crate) const TREE_DEPTH: usize = 200;
/// Depth up to which a selector is evaluated on the stack of the caller.
pub(crate) const SMALL_DEPTH: usize = 32;
/// Time that a deeper one takes longer, in microseconds: a thread is made for it.
pub(crate) const LARGE_STACK_MICROS: u64 = 50;
/// Bytes of an expression that are read in a microsecond.
pub(crate) const READ_A_MICRO: u64 = 4;
/// Units of cost, and nodes of an expression, that are evaluated in a microsecond: 50 ns each.
pub(crate) const COSTS_A_MICRO: u64 = 20;
/// Values that are visited in a microsecond.
pub(crate) const LOOKS_A_MICRO: u64 = 500;
/// Bytes that are written in a microsecond.
pub(crate) const BYTES_A_MICRO: u64 = 1000;
/// Bytes of patterns that are compiled in a microsecond: 8 MiB take some 80 ms.
pub(crate) const COMPILED_A_MICRO: u64 = 100;
/// Maximum nesting of brackets and conditionals; each level takes the parser some ten frames.
pub(crate) const NESTING: usize = 64;
/// Stack of the thread that reads expressions: 200 levels of 10 frames, 2 KiB each without optimization, and
/// as much again.
pub(crate) const STACK_BYTES: usize = 8 * 1024 * 1024;
/// Maximum number of errors that are reported of one expression.
pub(crate) const FAULTS: usize = 100;
/// Number of bytes after which no further errors of an expression are reported: each shows the whole line.
pub(crate) const REPORT: usize = 64 * 1024;
/// Maximum number of the most expensive rules that are named where all together cost too much.
pub(crate) const RULES_NAMED: usize = 4;
/// Maximum length of a message that an expression makes.
pub(crate) const MESSAGE_BYTES: usize = 5 * 1024;
/// Maximum length of the error of an evaluation.
pub(crate) const ERROR_BYTES: usize = 1024;
/// Maximum number of parts of a type.
pub(crate) const TYPE_PARTS: usize = 1000;
/// Maximum number of parts of the schema of a kind, with all that it refers to: a Deployment has 2,500, and each takes
/// some 300 bytes.
pub(crate) const KIND_NODES: usize = 65_536;
/// Maximum depth of that schema: a Deployment has 15 levels.
pub(crate) const KIND_DEPTH: usize = 100;
/// Maximum size of a request: the bound of a value or text that nothing else bounds.
pub(crate) const REQUEST_BYTES: u64 = 3 * 1024 * 1024;
/// Limit on the estimated cost of one rule, for all values that it is run on.
pub(crate) const RULE_COST: u64 = 10_000_000;
/// Limit on the estimated cost of all rules of one schema.
pub(crate) const SCHEMA_COST: u64 = 100_000_000;
/// Limit on the cost of one evaluation.
pub(crate) const CALL_COST: u64 = 1_000_000;
/// Limit on the cost of all evaluations for one object.
pub(crate) const OBJECT_COST: u64 = 10_000_000;
/// Limit on the estimated cost of a device selector.
pub(crate) const DEVICE_COST: u64 = 1_000_000;
/// Maximum number of values that a function is given, counting all that lists and maps hold; a request holds
/// fewer.
pub(crate) const ARGUMENT_VALUES: u64 = 4 << 20;
/// Limit on the values that the functions of one evaluation are given together; visiting one takes some
/// nanoseconds.
pub(crate) const VISITED_VALUES: u64 = 16 * ARGUMENT_VALUES;
/// Limit on the bytes that one evaluation makes, including dropped ones: some times the size of a request.
pub(crate) const MADE_BYTES: usize = 128 << 20;
/// Maximum length of a text that a function makes: more than a request holds.
pub(crate) const TEXT_BYTES: usize = 8 << 20;
/// Maximum number of pieces that a text is split into.
pub(crate) const PIECES: usize = 1 << 20;
/// Bytes of the compiled patterns that are kept; more are compiled again. All of one definition fit, so that
/// none is compiled for each item of a list.
pub(crate) const PATTERN_BYTES: usize = 128 << 20;
