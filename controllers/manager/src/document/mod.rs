//! The configuration of the controllers as a document: `KubeControllerManagerConfiguration` of
//! `kubecontrollermanager.config.k8s.io/v1alpha1`, which kube-controller-manager shows at `/configz`.
//!
//! ```text
//!  defaults ─▶ file (strict) ─▶ flags ─▶ Document ─▶ Config, and the page /configz
//! ```
//!
//! Flags and files set the same fields, so that both mean the same.

mod config;
mod fields;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

pub use fields::{API_VERSION, Document, KIND, SignerFiles};

/// Fields that are understood and have no effect: a whole section, or one field of it.
const WITHOUT_EFFECT: &[&str] = &[
    "Generic.Port",
    "Generic.Address",
    "Generic.ClientConnection.acceptContentTypes",
    "Generic.ClientConnection.contentType",
    "Generic.ClientConnection.qps",
    "Generic.ClientConnection.burst",
    "Generic.ControllerStartInterval",
    "Generic.Debugging",
    "Generic.LeaderMigration",
    "KubeCloudShared.AllowUntaggedCloud",
    "KubeCloudShared.RouteReconciliationPeriod",
    "KubeCloudShared.NodeMonitorPeriod",
    "KubeCloudShared.ClusterName",
    "KubeCloudShared.ConfigureCloudRoutes",
    "KubeCloudShared.NodeSyncPeriod",
    "AttachDetachController",
    "GarbageCollectorController.GCIgnoredResources",
    "NodeLifecycleController.PodEvictionTimeout",
    "PersistentVolumeBinderController.VolumeConfiguration",
    "ServiceController",
];

/// The document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("cannot parse the configuration as YAML")]
    Yaml(#[source] Box<serde_saphyr::Error>),
    #[error("the configuration is {found}, not a {API_VERSION} {KIND}")]
    Kind { found: String },
    /// Everything that is wrong with the fields.
    #[error("the configuration has fields that cannot be used: {}", .0.join("; "))]
    Fields(Vec<String>),
}

impl Document {
    /// Reads the text of a file, YAML or JSON. Fields that the file leaves out keep their defaults. Names match
    /// regardless of case, as in Go's decoder, so that `generic` is `Generic`.
    ///
    /// Returns the document with the names of the fields of the file that have no effect.
    ///
    /// # Errors
    ///
    /// Fails if the text is not such a document, and if a field is unknown, is there twice, or has a value of another
    /// type. The error names all these fields.
    pub fn parse(text: &str) -> Result<(Self, Vec<String>), DocumentError> {
        let given: Value =
            serde_saphyr::from_str(text).map_err(|error| DocumentError::Yaml(Box::new(error)))?;
        let Value::Object(mut given) = given else {
            return Err(DocumentError::Kind { found: "empty or not an object".to_owned() });
        };
        let mut of = |field: &str| match given.remove(field) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        let (api_version, kind) = (of("apiVersion"), of("kind"));
        if (api_version.as_str(), kind.as_str()) != (API_VERSION, KIND) {
            return Err(DocumentError::Kind {
                found: format!("a {:?}", format!("{api_version} {kind}").trim()),
            });
        }
        let (mut document, mut problems) = (Self::default(), Vec::new());
        let mut set = Vec::new();
        leaves(&given, &document.to_value(), "", &mut set, &mut problems);
        for (path, value) in &set {
            if let Err(problem) = document.set(path, value.clone()) {
                problems.push(problem);
            }
        }
        if !problems.is_empty() {
            return Err(DocumentError::Fields(problems));
        }
        let idle = set.into_iter().map(|(path, _)| path).filter(|path| !has_effect(path)).collect();
        Ok((document, idle))
    }

    /// Sets the field with this path, such as `Generic.MinResyncPeriod`.
    ///
    /// # Errors
    ///
    /// Fails if there is no such field, or if the value is not of its type.
    pub fn set(&mut self, path: &str, value: Value) -> Result<(), String> {
        let mut all = self.to_value();
        let place = all.pointer_mut(&format!("/{}", path.replace('.', "/")));
        *place.ok_or_else(|| format!("{path}: unknown field"))? = value;
        *self = serde_json::from_value(all).map_err(|error| format!("{path}: {error}"))?;
        Ok(())
    }

    /// Returns the document as it is written, with all fields.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Returns `true` unless the field with this path is understood without an effect.
pub fn has_effect(path: &str) -> bool {
    let within =
        |idle: &&&str| path.strip_prefix(**idle).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    WITHOUT_EFFECT.iter().find(within).is_none()
}

/// Collects the fields of `given` that are no sections, with the paths that `known` has them at.
fn leaves(
    given: &Map<String, Value>,
    known: &Value,
    path: &str,
    set: &mut Vec<(String, Value)>,
    problems: &mut Vec<String>,
) {
    let Value::Object(known) = known else { return };
    let mut seen = Vec::new();
    for (name, value) in given {
        let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let Some((name, known)) = known.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) else {
            problems.push(format!("{}: unknown field", at(name)));
            continue;
        };
        let path = at(name);
        if seen.contains(&name) {
            problems.push(format!("{path}: the field is there twice"));
        }
        seen.push(name);
        match (value, known) {
            // A field without a value keeps its default.
            (Value::Null, _) => {}
            (Value::Object(value), Value::Object(_)) => leaves(value, known, &path, set, problems),
            (_, Value::Object(_)) => problems.push(format!("{path}: an object is expected")),
            _ => set.push((path, value.clone())),
        }
    }
}
