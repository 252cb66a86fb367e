//! The pods that a Job creates.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{self, Container, EnvVar, EnvVarSource, ObjectFieldSelector};

use super::indexes::{FAILURES, IGNORED_FAILURES, INDEX, failures_after};
use super::plan::FINALIZER;
use crate::meta::name;
use crate::pods::{Pod, of_template};

/// Environment variable with the completion index.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// Longest prefix of a generated name: five characters are added to it.
const PREFIX_LENGTH: usize = 58;

/// Returns a pod of the Job, for a completion index if it has those. `replaced` is the failed pod of the same index.
pub(super) fn new_pod(job: &Job, spec: &JobSpec, index: Option<usize>, replaced: Option<&Pod>) -> v1::Pod {
    let mut pod = of_template(job, spec.template.clone());
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    if let Some(index) = index {
        number(&mut pod, name(&job.metadata), index);
        if spec.backoff_limit_per_index.is_some() {
            let (counted, ignored) = failures_after(spec, replaced);
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(FAILURES.to_owned(), counted.to_string());
            if ignored > 0 {
                annotations.insert(IGNORED_FAILURES.to_owned(), ignored.to_string());
            }
        }
    }
    pod
}

/// Makes a pod that of a completion index.
fn number(pod: &mut v1::Pod, job: &str, index: usize) {
    let meta = &mut pod.metadata;
    meta.labels.get_or_insert_default().insert(INDEX.to_owned(), index.to_string());
    meta.annotations.get_or_insert_default().insert(INDEX.to_owned(), index.to_string());
    meta.generate_name = Some(prefix(job, index));
    let Some(spec) = &mut pod.spec else { return };
    spec.hostname = Some(format!("{job}-{index}"));
    spec.init_containers.iter_mut().flatten().for_each(tell_index);
    spec.containers.iter_mut().for_each(tell_index);
}

fn prefix(job: &str, index: usize) -> String {
    let suffix = format!("-{index}-");
    let longest = PREFIX_LENGTH - suffix.len();
    let name: String = job.chars().take(longest).collect();
    name + &suffix
}

fn tell_index(container: &mut Container) {
    let env = container.env.get_or_insert_default();
    if env.iter().any(|variable| variable.name == INDEX_VARIABLE) {
        return;
    }
    let field_path = format!("metadata.labels['{INDEX}']");
    let source = EnvVarSource {
        field_ref: Some(ObjectFieldSelector { field_path, ..ObjectFieldSelector::default() }),
        ..EnvVarSource::default()
    };
    env.push(EnvVar { name: INDEX_VARIABLE.to_owned(), value_from: Some(source), ..EnvVar::default() });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json, to_value};

    fn pod(spec: Value, index: Option<usize>) -> Value {
        let job: Job =
            from_value(json!({"metadata": {"name": "j", "namespace": "ns", "uid": "u"}, "spec": spec}))
                .unwrap();
        to_value(new_pod(&job, job.spec.as_ref().unwrap(), index, None)).unwrap()
    }

    #[test]
    fn pods_have_a_finalizer_an_owner_and_what_tells_their_index() {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "c", "env": [{"name": INDEX_VARIABLE, "value": "own"}]}]}});
        let plain = pod(json!({"template": template}), None);
        assert_eq!(plain["metadata"]["finalizers"], json!([FINALIZER]));
        assert_eq!(plain["metadata"]["generateName"], "j-");
        assert_eq!(plain["metadata"]["ownerReferences"][0]["uid"], "u");
        assert!(plain["metadata"]["annotations"].is_null() && plain["spec"]["hostname"].is_null());

        let numbered = pod(json!({"template": template, "backoffLimitPerIndex": 1}), Some(7));
        assert_eq!(numbered["metadata"]["labels"], json!({"a": "b", INDEX: "7"}));
        assert_eq!(numbered["metadata"]["annotations"], json!({INDEX: "7", FAILURES: "0"}));
        assert_eq!(numbered["metadata"]["generateName"], "j-7-");
        assert_eq!(numbered["spec"]["hostname"], "j-7");
        let field = format!("metadata.labels['{INDEX}']");
        let variable = json!({"name": INDEX_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": field}}});
        assert_eq!(numbered["spec"]["initContainers"][0]["env"], json!([variable]));
        assert_eq!(numbered["spec"]["containers"][0]["env"][0]["value"], "own");
    }

    #[test]
    fn prefixes_of_names_are_cut_before_the_index() {
        assert_eq!(prefix("short", 3), "short-3-");
        let long = prefix(&"x".repeat(63), 12_345);
        assert_eq!((long.len(), long.ends_with("x-12345-")), (58, true));
    }
}
