//! The paths of health probes.

/// The kinds of health checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Healthz,
    Livez,
    Readyz,
}

impl Kind {
    /// Returns the path without its slash.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }
}

/// `/readyz/ping` to readyz and `ping`.
pub fn probe(path: &str) -> Option<(Kind, &str)> {
    [Kind::Healthz, Kind::Livez, Kind::Readyz].into_iter().find_map(|kind| {
        let rest = path.strip_prefix('/')?.strip_prefix(kind.name())?;
        match rest.strip_prefix('/') {
            None => rest.is_empty().then_some((kind, "")),
            // Kubernetes knows each path with a slash at the end for another one.
            Some(check) => (!check.is_empty()).then_some((kind, check)),
        }
    })
}
