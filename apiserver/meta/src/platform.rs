//! The machine that this program runs on, in Kubernetes' words.

/// The architecture as Go spells it, such as `amd64`.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
