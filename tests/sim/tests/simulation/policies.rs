//! Types of the expressions of ValidatingAdmissionPolicies: the controller reads the documents of the real API server.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tests_sim::{Simulation, scenario};

fn rule(group: &str, version: &str, resource: &str) -> Value {
    json!({"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE", "UPDATE"], "resources": [resource]})
}

fn of(group: &str, resource: &str, validations: Value) -> Value {
    json!({"matchConstraints": {"resourceRules": [rule(group, "v1", resource)]}, "validations": validations})
}

fn policies(cluster: &Simulation) -> Api<ValidatingAdmissionPolicy> {
    Api::all(cluster.client.clone())
}

/// Writes the policy of a name, and returns its warnings once it has been checked, as (field, text).
async fn checked(cluster: &mut Simulation, name: &str, spec: Value) -> Result<Vec<(String, String)>> {
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": spec});
    let written =
        policies(cluster).patch(name, &PatchParams::apply("test").force(), &Patch::Apply(policy)).await?;
    for _ in 0..600 {
        let status = policies(cluster).get(name).await?.status.unwrap_or_default();
        if status.observed_generation == written.metadata.generation
            && let Some(checked) = status.type_checking
        {
            let warnings = checked.expression_warnings.unwrap_or_default().into_iter();
            return Ok(warnings.map(|warning| (warning.field_ref, warning.warning)).collect());
        }
        cluster.pass(Duration::from_millis(100)).await?;
    }
    bail!("policy {name} is not checked")
}

async fn built_in(cluster: &mut Simulation) -> Result<()> {
    let good = json!([{"expression": "object.spec.replicas > 1"}]);
    let found = checked(cluster, "correct", of("apps", "deployments", good)).await?;
    ensure!(found.is_empty(), "{found:?}");
    let confused = json!([{"expression": "object.spec.replicas > '1'",
        "messageExpression": "'wants more than 1, has ' + object.spec.replicas"}]);
    let found = checked(cluster, "confused", of("apps", "deployments", confused)).await?;
    let expected = [
        (
            "spec.validations[0].expression",
            "apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'\n \
             | object.spec.replicas > '1'\n | .....................^\n",
        ),
        (
            "spec.validations[0].messageExpression",
            "apps/v1, Kind=Deployment: ERROR: <input>:1:27: found no matching overload for '_+_' applied to '(string, int)'\n \
             | 'wants more than 1, has ' + object.spec.replicas\n | ..........................^\n",
        ),
    ];
    ensure!(found == expected.map(|(field, text)| (field.to_owned(), text.to_owned())), "{found:?}");
    // A policy that is mended loses its warnings.
    let mended = json!([{"expression": "object.spec.replicas > 1", "messageExpression": "string(object.spec.replicas)"}]);
    let found = checked(cluster, "confused", of("apps", "deployments", mended)).await?;
    ensure!(found.is_empty(), "{found:?}");
    // Fields of pods and their metadata, with variables and the parameters of a ConfigMap.
    let expressions = [
        "variables.images.all(image, image.startsWith(params.data['registry']))",
        "object.metadata.namespace == request.namespace && object.metadata.labels['a'] == params.metadata.name",
        "object.metadata.creationTimestamp < timestamp(0) && oldObject.status.phase != 'Running'",
        "object.spec.containers.all(c, c.ports.all(p, p.hostPort == 0 && c.livenessProbe.httpGet.port == 'http'))",
        "object.spec.?securityContext.?runAsNonRoot.orValue(false) || authorizer.group('').resource('pods').check('x').allowed()",
        "variables.images[0] == 1",
        "params.data.registry == 1",
        "object.spec.initContainer == null",
    ];
    let mut spec = of("", "pods", json!(expressions.map(|source| json!({"expression": source}))));
    spec["paramKind"] = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    spec["variables"] = json!([{"name": "images", "expression": "object.spec.containers.map(c, c.image)"}]);
    let found = checked(cluster, "pods", spec).await?;
    let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
    ensure!(fields == [5, 6, 7].map(|index| format!("spec.validations[{index}].expression")), "{found:?}");
    ensure!(
        found[2].1.starts_with("/v1, Kind=Pod: ERROR: <input>:1:12: undefined field 'initContainer'"),
        "{found:?}"
    );
    // Nothing is known of what wildcards match.
    let found = checked(cluster, "all", of("*", "*", json!([{"expression": "object.x == 1"}]))).await?;
    ensure!(found.is_empty(), "{found:?}");
    Ok(())
}

#[test]
fn expressions_are_checked_against_built_in_kinds() {
    scenario("policies::expressions_are_checked_against_built_in_kinds").run(1, built_in);
}

/// Policies, and the warnings that the type checker of Kubernetes 1.36.2 gave for them, as `[spec, [[field, text], …]]` a
/// line. Kubernetes' names of types have a number after the kind, which was taken out.
const RECORDED: &str = include_str!("policies.jsonl");

/// The API server refuses some of them, which no type of an object makes right: they never get warnings.
async fn recorded(cluster: &mut Simulation) -> Result<()> {
    let (mut differing, mut compared) = (Vec::new(), 0);
    for (number, line) in RECORDED.lines().enumerate() {
        let (spec, expected): (Value, Vec<(String, String)>) = serde_json::from_str(line)?;
        let found = match checked(cluster, &format!("policy-{number}"), spec.clone()).await {
            Ok(found) => found,
            Err(error) if is_invalid(&error) => continue,
            Err(error) => return Err(error),
        };
        compared += 1;
        if found != expected {
            differing.push(format!("{spec}\n{expected:?}\n{found:?}"));
        }
    }
    ensure!(differing.is_empty(), "{}", differing.join("\n\n"));
    ensure!(compared > 60, "only {compared} are accepted");
    Ok(())
}

fn is_invalid(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 422)
}

#[test]
fn warnings_are_those_of_kubernetes_word_for_word() {
    scenario("policies::warnings_are_those_of_kubernetes_word_for_word").run(1, recorded);
}

fn definition(fields: &Value) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}});
    json!({"metadata": {"name": "crontabs.stable.example.com"}, "spec": {
        "group": "stable.example.com", "scope": "Namespaced", "names": {"plural": "crontabs", "kind": "CronTab"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

async fn custom(cluster: &mut Simulation) -> Result<()> {
    let mut fields = json!({"cronSpec": {"type": "string"}, "replicas": {"type": "integer"},
        "size": {"x-kubernetes-int-or-string": true}});
    let definitions = Api::<CustomResourceDefinition>::all(cluster.client.clone());
    definitions.create(&PostParams::default(), &serde_json::from_value(definition(&fields))?).await?;
    cluster.pass(Duration::from_secs(5)).await?;
    let of = |validations: Value| of("stable.example.com", "crontabs", validations);
    let good = json!([{"expression": "object.spec.replicas > 1 && object.spec.size == '1' && object.metadata.labels.a == 'b'"}]);
    let found = checked(cluster, "correct", of(good)).await?;
    ensure!(found.is_empty(), "{found:?}");
    let confused =
        json!([{"expression": "object.spec.replicas > '1'"}, {"expression": "object.spec.maxRetries < 10"}]);
    let found = checked(cluster, "confused", of(confused)).await?;
    let is_of = |index: usize, text: &str| {
        let (field, warning) = &found[index];
        *field == format!("spec.validations[{index}].expression")
            && warning.starts_with("stable.example.com/v1, Kind=CronTab: ERROR: <input>:1:")
            && warning.contains(text)
    };
    ensure!(found.len() == 2, "{found:?}");
    ensure!(is_of(0, "found no matching overload for '_>_' applied to '(int, string)'"), "{found:?}");
    ensure!(is_of(1, "undefined field 'maxRetries'"), "{found:?}");
    // The field comes: what is checked from then on knows it.
    fields["maxRetries"] = json!({"type": "integer"});
    let patch = json!({"spec": definition(&fields)["spec"]});
    definitions.patch("crontabs.stable.example.com", &PatchParams::default(), &Patch::Merge(patch)).await?;
    cluster.pass(Duration::from_secs(5)).await?;
    let later = json!([{"expression": "object.spec.maxRetries < 10 && object.spec.replicas > 0"}]);
    let found = checked(cluster, "confused", of(later)).await?;
    ensure!(found.is_empty(), "{found:?}");
    Ok(())
}

#[test]
fn expressions_are_checked_against_custom_kinds() {
    scenario("policies::expressions_are_checked_against_custom_kinds").run(1, custom);
}

/// Every kind that discovery names has a schema in the document of its version.
async fn every_kind(cluster: &mut Simulation) -> Result<()> {
    let client = cluster.client.clone();
    let mut versions = vec![("".to_owned(), "v1".to_owned())];
    for group in client.list_api_groups().await?.groups {
        versions.extend(group.versions.into_iter().map(|version| (group.name.clone(), version.version)));
    }
    ensure!(versions.len() > 15, "{versions:?}");
    for (number, (group, version)) in versions.iter().enumerate() {
        let list = match group.as_str() {
            "" => client.list_core_api_resources(version).await?,
            group => client.list_api_group_resources(&format!("{group}/{version}")).await?,
        };
        let resources: Vec<_> = list.resources.iter().filter(|one| !one.name.contains('/')).collect();
        let rules: Vec<Value> = resources.iter().map(|one| rule(group, version, &one.name)).collect();
        let spec = json!({"matchConstraints": {"resourceRules": rules}, "validations": [
            {"expression": "object.nothing == 1 || object.kind == object.metadata.name"}]});
        let found = checked(cluster, &format!("policy-{number}"), spec).await?;
        for resource in resources {
            let text = format!(
                "{group}/{version}, Kind={}: ERROR: <input>:1:7: undefined field 'nothing'\n",
                resource.kind
            );
            ensure!(found.len() == 1 && found[0].1.contains(&text), "{text}: {found:?}");
        }
        ensure!(found[0].1.matches("ERROR").count() == found[0].1.matches("Kind=").count(), "{found:?}");
    }
    Ok(())
}

#[test]
fn every_built_in_kind_has_a_schema_that_expressions_are_checked_against() {
    scenario("policies::every_built_in_kind_has_a_schema_that_expressions_are_checked_against")
        .run(1, every_kind);
}
