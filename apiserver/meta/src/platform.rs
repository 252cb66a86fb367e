//! The machine that this program runs on, in Kubernetes' terms.

/// Returns the architecture in Go's notation, such as `amd64`.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
