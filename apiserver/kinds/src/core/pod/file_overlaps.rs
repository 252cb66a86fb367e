//! Warnings about files of a volume that are in each other's place.

use apiserver_schema::validation::{given, items, text};
use serde_json::Value;

use crate::limits::{OVERLAP_FILES, WARNINGS};

/// A file of a volume: its path, and where it comes from if that is to be said.
struct File {
    path: String,
    source: String,
}

impl File {
    fn shown(&self) -> String {
        if self.source.is_empty() {
            format!("{:?}", self.path)
        } else {
            format!("{:?} ({})", self.path, self.source)
        }
    }

    /// Returns `true` if both files are the same, or one is where the other needs a directory.
    fn overlaps(&self, other: &Self) -> bool {
        let below = |path: &str, directory: &str| {
            path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        below(&self.path, &other.path) || below(&other.path, &self.path)
    }
}

/// Warnings about the volumes of the spec of a pod.
pub(crate) fn overlaps(spec: &Value, warnings: &mut Vec<String>) {
    for volume in items(spec, "volumes") {
        let name = text(volume, "name");
        for (kind, field, of) in [("configMap", "name", "ConfigMap"), ("secret", "secretName", "Secret")] {
            if let Some(source) = given(volume, kind) {
                compare(files(source, ""), name, &format!("{of} {:?}", text(source, field)), warnings);
            }
        }
        if let Some(source) = given(volume, "downwardAPI") {
            compare(files(source, ""), name, "DownwardAPI", warnings);
        }
        if let Some(source) = given(volume, "projected") {
            let mut all = Vec::new();
            for source in items(source, "sources") {
                let none = source.as_object().is_none_or(|kinds| kinds.values().all(Value::is_null));
                if none && warnings.len() < WARNINGS {
                    warnings.push(format!("volume {name:?} (Projected) has no sources provided"));
                }
                all.extend(projected(source));
            }
            compare(all, name, "Projected", warnings);
        }
    }
}

/// The files of the items of a source.
fn files(source: &Value, of: &str) -> Vec<File> {
    items(source, "items").iter().map(|item| file(text(item, "path"), of)).collect()
}

fn file(path: &str, source: &str) -> File {
    File { path: path.trim_end_matches('/').to_owned(), source: source.to_owned() }
}

/// The files of one source of a projected volume.
fn projected(source: &Value) -> Vec<File> {
    let listed = |kind: &str| given(source, kind).filter(|source| given(source, "items").is_some());
    if let Some(map) = listed("configMap") {
        files(map, &format!("ConfigMap {:?}", text(map, "name")))
    } else if let Some(secret) = listed("secret") {
        files(secret, &format!("Secret {:?}", text(secret, "name")))
    } else if let Some(fields) = listed("downwardAPI") {
        files(fields, "DownwardAPI")
    } else if let Some(token) = given(source, "serviceAccountToken") {
        vec![file(text(token, "path"), "ServiceAccountToken")]
    } else if let Some(bundle) = given(source, "clusterTrustBundle") {
        let name = given(bundle, "name").or_else(|| given(bundle, "signerName"));
        let name = name.and_then(Value::as_str).unwrap_or_default();
        vec![file(text(bundle, "path"), &format!("ClusterTrustBundle {name:?}"))]
    } else if let Some(certificate) = given(source, "podCertificate") {
        let fields = [
            ("certificateChainPath", "chain"),
            ("keyPath", "key"),
            ("credentialBundlePath", "credential bundle"),
        ];
        let named =
            |(field, what): (&str, &str)| file(text(certificate, field), &format!("PodCertificate {what}"));
        fields.into_iter().map(named).collect()
    } else {
        Vec::new()
    }
}

/// Warns of each file that overlaps with one before it.
fn compare(mut files: Vec<File>, volume: &str, of: &str, warnings: &mut Vec<String>) {
    files.retain(|file| !file.path.is_empty());
    files.truncate(OVERLAP_FILES);
    for (index, file) in files.iter().enumerate() {
        for before in files[..index].iter().filter(|before| file.overlaps(before)) {
            if warnings.len() >= WARNINGS {
                return;
            }
            warnings.push(format!(
                "volume {volume:?} ({of}): overlapping paths: {} with {}",
                file.shown(),
                before.shown()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn overlapping_files_raise_warnings() {
        let file = |path: &str| json!({"key": "k", "path": path});
        let spec = json!({"volumes": [
            {"name": "m", "configMap": {"name": "x", "items": [file("a"), file("a/b/"), file("ab"), file("")]}},
            {"name": "s", "secret": {"secretName": "y", "items": [file("a"), file("a")]}},
            {"name": "p", "projected": {"sources": [
                {}, {"secret": {"name": "z", "items": [file("t")]}}, {"serviceAccountToken": {"path": "t"}},
                {"podCertificate": {"keyPath": "t/key"}}]}}]});
        let mut warnings = Vec::new();
        overlaps(&spec, &mut warnings);
        assert_eq!(
            warnings,
            [
                r#"volume "m" (ConfigMap "x"): overlapping paths: "a/b" with "a""#,
                r#"volume "s" (Secret "y"): overlapping paths: "a" with "a""#,
                r#"volume "p" (Projected) has no sources provided"#,
                r#"volume "p" (Projected): overlapping paths: "t" (ServiceAccountToken) with "t" (Secret "z")"#,
                r#"volume "p" (Projected): overlapping paths: "t/key" (PodCertificate key) with "t" (Secret "z")"#,
                r#"volume "p" (Projected): overlapping paths: "t/key" (PodCertificate key) with "t" (ServiceAccountToken)"#,
            ]
        );
    }

    #[test]
    fn warnings_about_many_files_are_bounded() {
        let items = vec![json!({"key": "k", "path": "a"}); 1000];
        let spec = json!({"volumes": [{"name": "m", "configMap": {"name": "x", "items": items}}]});
        let mut warnings = Vec::new();
        overlaps(&spec, &mut warnings);
        assert_eq!(warnings.len(), WARNINGS);
    }
}
