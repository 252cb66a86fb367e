//! Information about the build: `/version`, and the metric of the same content.

use serde_json::{Value, json};

/// The version of Kubernetes whose API is served.
pub const KUBERNETES: (&str, &str, &str) = ("1", "36", "0");
/// The oldest minor version whose behaviour the API keeps compatible with.
const COMPATIBLE: (&str, &str) = ("1", "35");

/// The facts recorded by the build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// Hash of the commit; empty where it is not known.
    pub commit: &'static str,
    /// `clean`, `dirty`, `archive` for sources without a history, or empty.
    pub tree_state: &'static str,
    /// RFC 3339
    pub date: &'static str,
    /// Name and version.
    pub compiler: &'static str,
}

impl Default for Build {
    /// Returns unknown values, in Kubernetes' words.
    fn default() -> Self {
        Self { commit: "", tree_state: "", date: "1970-01-01T00:00:00Z", compiler: "rustc" }
    }
}

/// The fields of [`Build::version`] in the order of their type.
const FIELDS: [&str; 13] = [
    "major",
    "minor",
    "emulationMajor",
    "emulationMinor",
    "minCompatibilityMajor",
    "minCompatibilityMinor",
    "gitVersion",
    "gitCommit",
    "gitTreeState",
    "buildDate",
    "goVersion",
    "compiler",
    "platform",
];

impl Build {
    /// Returns the body of `/version`.
    pub fn version_text(&self) -> String {
        let version = self.version();
        let fields: Vec<String> =
            FIELDS.iter().map(|field| format!("  \"{field}\": {}", version[*field])).collect();
        format!("{{\n{}\n}}", fields.join(",\n"))
    }

    /// Returns the answer of `/version`. The Rust compiler is in the field that names Go's.
    pub fn version(&self) -> Value {
        let (major, minor, patch) = KUBERNETES;
        let Self { commit, tree_state, date, compiler } = self;
        json!({
            "major": major, "minor": minor,
            "emulationMajor": major, "emulationMinor": minor,
            "minCompatibilityMajor": COMPATIBLE.0, "minCompatibilityMinor": COMPATIBLE.1,
            "gitVersion": format!("v{major}.{minor}.{patch}+hawser.{}", env!("CARGO_PKG_VERSION")),
            "gitCommit": commit, "gitTreeState": tree_state, "buildDate": date,
            "goVersion": compiler, "compiler": "rustc",
            "platform": format!("{}/{}", std::env::consts::OS, apiserver_meta::platform::architecture()),
        })
    }
}
