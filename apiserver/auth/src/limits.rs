//! Bounds of authentication and authorization.

/// Tokens whose signature is remembered, and as many certificates. With about 1 KiB each this is
/// 8 MiB at most; the largest clusters foreseen use 2,000 tokens and 5,000 nodes at a time.
pub(crate) const REMEMBERED_CREDENTIALS: usize = 4096;
/// Maximum size of a token. Ours have about 900 bytes.
pub(crate) const TOKEN_BYTES: usize = 16 * 1024;
/// Number of Secrets whose tokens' uses wait to be recorded.
pub(crate) const TOKEN_USES: usize = 1024;
/// Minimum lifetime of a token that a client requests.
pub(crate) const TOKEN_SECONDS_MIN: i64 = 600;
/// Maximum lifetime of a token that a client requests.
pub(crate) const TOKEN_SECONDS_MAX: i64 = 1 << 32;
/// Number of bytes up to which the rules that a role's author lacks are listed, including the one that crosses
/// it.
pub(crate) const MISSING_RULES_TEXT: usize = 16 * 1024;
/// Maximum number of pairs of verb and resource that are listed as missing.
pub(crate) const MISSING_RULES: usize = 50;
/// Maximum number of comparisons of two sets of rules: words of 64 held rules each. A quarter of a second,
/// where users hold some dozens of rules and grant less at a time.
pub(crate) const RULE_COMPARISONS: usize = 16 * 1024 * 1024;
