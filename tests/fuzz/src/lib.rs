//! Fuzz targets for every parser of untrusted bytes, with the properties that must hold. Nothing may panic,
//! recurse without bounds or run on; what was decoded can be encoded and decoded again; what is created does
//! not exceed its limit.
//!
//! `tests/corpus.rs` runs them over the corpus, `program` is the fuzzer.

mod apiserver;
mod dns;
mod kubelet;
mod proxy;
mod store;

/// A target, which accepts any bytes.
pub type Target = fn(&[u8]);

/// All targets by name, which is also the name of their corpus.
pub const ALL: &[(&str, Target)] = &[
    ("body", apiserver::body),
    ("patch", apiserver::patch),
    ("apply", apiserver::apply),
    ("request", apiserver::request),
    ("texts", apiserver::texts),
    ("protobuf", apiserver::envelope),
    ("definition", apiserver::crd),
    ("cel", apiserver::cel),
    ("kinds", apiserver::kinds),
    ("certificate", apiserver::certificate),
    ("conversion", apiserver::conversion),
    ("page", apiserver::page),
    ("store", store::log),
    ("snapshot", store::snapshot),
    ("pod", kubelet::pod),
    ("container-log", kubelet::container_log),
    ("frames", kubelet::frames),
    ("service", proxy::service),
    ("dns-query", dns::query),
    ("dns-reply", dns::reply),
];

/// Splits an input at lines of `---`.
fn parts<const N: usize>(bytes: &[u8]) -> [&[u8]; N] {
    let mut rest = bytes;
    std::array::from_fn(|i| {
        const MARK: &[u8] = b"\n---\n";
        let found = rest.windows(MARK.len()).position(|window| window == MARK).filter(|_| i + 1 < N);
        let Some(at) = found else { return std::mem::take(&mut rest) };
        let part = &rest[..at];
        rest = &rest[at + MARK.len()..];
        part
    })
}

/// Splits an input into its first byte and the rest.
fn choice(bytes: &[u8]) -> (u8, &[u8]) {
    bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest))
}
