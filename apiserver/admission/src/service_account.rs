//! ServiceAccount: a pod has one, and its token is mounted.

use std::sync::Arc;

use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::limits;
use apiserver_auth::nodes::references::Pod;
use apiserver_cache::{Cache, Trigger};
use apiserver_meta::pods::MIRROR;

use crate::{AdmissionRequest, Operation, Phase, Plugin};

/// The account of pods that name none. A controller makes it in every namespace.
const DEFAULT: &str = "default";
const PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Lifetime of the token, seconds: an hour, and a while in which the kubelet renews it.
const TOKEN_SECONDS: i64 = 3607;

/// Gives a new pod its ServiceAccount and that account's token.
pub struct ServiceAccount;

#[async_trait]
impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        phase == Phase::Admit && request.is(Operation::Create, "Pod")
    }

    async fn admit(&self, request: &AdmissionRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
        mutate(request, object).await
    }
}

/// Names the account, checks that it exists, and mounts its token where the pod wants it.
async fn mutate(request: &AdmissionRequest<'_>, pod: &mut Value) -> Result<(), ApiError> {
    let cluster = request.cluster;
    if meta::annotation(pod, MIRROR).is_some() {
        return mirror(pod);
    }
    if meta::text(pod, "/spec/serviceAccountName").is_empty() {
        pod["spec"]["serviceAccountName"] = DEFAULT.into();
    }
    let name = meta::text(pod, "/spec/serviceAccountName").to_owned();
    pod["spec"]["serviceAccount"] = name.as_str().into();
    let namespace = meta::namespace(pod).to_owned();
    let Some(accounts) = cluster.kind("", "v1", "serviceaccounts") else { return Ok(()) };
    let mut account = cluster.referred(accounts, &namespace, &name).await?;
    if account.is_none() && name == DEFAULT {
        let cache = cluster.cache(accounts)?;
        cluster.aside(Box::pin(made(&cache, &namespace))).await?;
        account = cluster.referred(accounts, &namespace, &name).await?;
    }
    let Some(account) = account else {
        let why = format!(
            "error looking up service account {namespace}/{name}: serviceaccount \"{name}\" not found"
        );
        return Err(ApiError::forbidden("", "pods", crate::shown_name(pod, meta::name(pod)), &why));
    };
    let automount = pod["spec"]["automountServiceAccountToken"]
        .as_bool()
        .or(account["automountServiceAccountToken"].as_bool())
        .unwrap_or(true);
    if automount {
        mount(pod, &cluster.ambient().name_suffix());
    }
    let secrets = meta::list(&account, "/imagePullSecrets");
    if meta::list(pod, "/spec/imagePullSecrets").is_empty() && !secrets.is_empty() {
        pod["spec"]["imagePullSecrets"] = Value::Array(secrets.to_vec());
    }
    Ok(())
}

/// Waits until the namespace has its ServiceAccount `default`, or has had the time to get one.
async fn made(accounts: &Arc<Cache>, namespace: &str) {
    let key = accounts.resource.short_key(namespace, DEFAULT);
    let (state, mut changes) = accounts.subscribe_now(Trigger::Object(key.clone()));
    if !state.objects.contains_key(key.as_str()) {
        // After any change the caller looks again.
        let _ = tokio::time::timeout(limits::DEFAULT_ACCOUNT_WAIT, changes.next()).await;
    }
}

/// Checks that a mirror pod, whoever creates it, does not give its node the right to read anything.
fn mirror(pod: &Value) -> Result<(), ApiError> {
    let refused =
        |why: &str| Err(ApiError::forbidden("", "pods", crate::shown_name(pod, meta::name(pod)), why));
    if !meta::text(pod, "/spec/serviceAccountName").is_empty() {
        return refused("a mirror pod may not reference service accounts");
    }
    let Ok(read) = Pod::deserialize(pod) else { return refused("a mirror pod must be readable") };
    if read.secrets().any(|name| !name.is_empty()) {
        return refused("a mirror pod may not reference secrets");
    }
    let volumes = meta::list(pod, "/spec/volumes").iter();
    let mut sources = volumes.flat_map(|volume| meta::list(volume, "/projected/sources"));
    if sources.any(|source| source.get("serviceAccountToken").is_some_and(|token| !token.is_null())) {
        return refused("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

/// Adds the projected volume and mounts it into each container that has nothing at its path.
fn mount(pod: &mut Value, suffix: &str) {
    let present = meta::list(pod, "/spec/volumes").iter().find_map(|volume| {
        volume["name"].as_str().filter(|name| name.starts_with("kube-api-access-")).map(str::to_owned)
    });
    let volume = present.clone().unwrap_or_else(|| format!("kube-api-access-{suffix}"));
    let mut used = false;
    for field in ["initContainers", "containers"] {
        for container in pod["spec"].get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            let mounts = &mut container["volumeMounts"];
            if mounts.is_null() {
                *mounts = json!([]);
            }
            let Some(mounts) = mounts.as_array_mut() else { continue };
            if !mounts.iter().any(|m| m["mountPath"] == PATH) {
                mounts.push(json!({"name": volume, "mountPath": PATH, "readOnly": true}));
                used = true;
            }
        }
    }
    if used && present.is_none() {
        let volumes = &mut pod["spec"]["volumes"];
        if volumes.is_null() {
            *volumes = json!([]);
        }
        if let Some(volumes) = volumes.as_array_mut() {
            volumes.push(access_volume(&volume));
        }
    }
}

fn access_volume(name: &str) -> Value {
    let namespace =
        json!({"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}});
    json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_pod_refers_to_neither_accounts_nor_secrets_whoever_makes_it() {
        let token = json!({"serviceAccountToken": {"path": "t"}});
        for (spec, why) in [
            (json!({}), ""),
            (json!({"serviceAccountName": "x"}), "may not reference service accounts"),
            (json!({"imagePullSecrets": [{"name": "x"}]}), "may not reference secrets"),
            (json!({"volumes": [{"name": "v", "secret": {"secretName": "x"}}]}), "may not reference secrets"),
            (
                json!({"volumes": [{"name": "v", "projected": {"sources": [token]}}]}),
                "may not use ServiceAccountToken volume projections",
            ),
        ] {
            let pod = json!({"metadata": {"name": "p"}, "spec": spec});
            let found = mirror(&pod).err().map(|error| error.message).unwrap_or_default();
            assert!(found.ends_with(why) && found.is_empty() == why.is_empty(), "{spec}: {found}");
        }
    }

    #[test]
    fn the_token_is_mounted_once_and_not_over_a_mount_of_the_pods_own() {
        let mut pod = json!({"spec": {
            "containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"name": "own", "mountPath": PATH}]}],
            "initContainers": [{"name": "i"}]}});
        mount(&mut pod, "abcde");
        mount(&mut pod, "fghij");
        assert_eq!(pod["spec"]["volumes"].as_array().unwrap().len(), 1);
        assert_eq!(pod["spec"]["containers"][0]["volumeMounts"][0]["name"], "kube-api-access-abcde");
        assert_eq!(pod["spec"]["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
        assert_eq!(pod["spec"]["initContainers"][0]["volumeMounts"].as_array().unwrap().len(), 1);
    }
}
