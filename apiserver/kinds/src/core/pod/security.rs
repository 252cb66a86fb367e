//! Security contexts of pods and containers.

use std::collections::BTreeSet;

use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, given, items, text};
use serde_json::{Value, json};

use crate::core::pod::apparmor::{ANNOTATION, PROFILE_LENGTH};
use crate::core::pod::windows;
use crate::shared::paths;

/// Ids of users and groups end here.
const INT32_MAX: i64 = i32::MAX as i64;

/// Longest name of a sysctl.
const SYSCTL_LENGTH: usize = 253;

const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

/// Annotations that are older than the fields.
pub(crate) const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";

pub(crate) const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// A numeric user or group.
fn user_id(context: &Value, field: &str, path: &str, errors: &mut Errors) {
    if let Some(id) = given(context, field) {
        one_id(id, &format!("{path}.{field}"), errors);
    }
}

fn one_id(id: &Value, path: &str, errors: &mut Errors) {
    if !id.as_i64().is_some_and(|id| (0..=INT32_MAX).contains(&id)) {
        errors.invalid(path, id, &format!("must be between 0 and {INT32_MAX}, inclusive"));
    }
}

/// `spec.securityContext` at `path`; `stored` is whether it is that of a pod that exists.
pub(crate) fn pod(spec: &Value, stored: bool, path: &str, errors: &mut Errors) {
    let Some(context) = given(spec, "securityContext") else { return };
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        user_id(context, field, path, errors);
    }
    for (index, group) in items(context, "supplementalGroups").iter().enumerate() {
        one_id(group, &format!("{path}.supplementalGroups[{index}]"), errors);
    }
    if spec["shareProcessNamespace"] == true && spec["hostPID"] == true {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(format!("{path}.shareProcessNamespace"), &json!(true), detail);
    }
    sysctls(spec, items(context, "sysctls"), &format!("{path}.sysctls"), errors);
    let one_of = |field: &str, supported: &[&str], errors: &mut Errors| {
        if let Some(value) =
            given(context, field).filter(|v| !v.as_str().is_some_and(|v| supported.contains(&v)))
        {
            errors.not_supported(format!("{path}.{field}"), value, supported);
        }
    };
    one_of("fsGroupChangePolicy", &["Always", "OnRootMismatch"], errors);
    seccomp(context, &format!("{path}.seccompProfile"), errors);
    windows::options(context, &format!("{path}.windowsOptions"), errors);
    apparmor_profile(context, &format!("{path}.appArmorProfile"), errors);
    one_of("supplementalGroupsPolicy", &["Merge", "Strict"], errors);
    // Mounting with a label of SELinux is behind a gate that is off; pods from before keep it.
    let policies: &[&str] = if stored { &["MountOption", "Recursive"] } else { &["Recursive"] };
    one_of("seLinuxChangePolicy", policies, errors);
}

fn is_sysctl(name: &str) -> bool {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let segment = |part: &str| {
        part.bytes().next().is_some_and(lower)
            && part.bytes().last().is_some_and(lower)
            && part.bytes().all(|b| lower(b) || b == b'-' || b == b'_')
    };
    name.len() <= SYSCTL_LENGTH && name.split(['.', '/']).all(segment)
}

fn sysctls(spec: &Value, sysctls: &[Value], path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, sysctl) in sysctls.iter().enumerate() {
        let path = format!("{path}[{index}].name");
        let name = text(sysctl, "name");
        if name.is_empty() {
            errors.required(path.as_str(), "");
        } else if !is_sysctl(name) {
            let detail = format!(
                "must have at most {SYSCTL_LENGTH} characters and match regex \
                 ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
            );
            errors.invalid(path.as_str(), &json!(name), &detail);
        } else if seen.contains(name) {
            errors.duplicate(path.as_str(), &json!(name));
        }
        // A setting of a namespace is the host's where the namespace is the host's.
        let dotted = name.replace('/', ".");
        let ipc = ["kernel.sem", "kernel.shm", "kernel.msg", "fs.mqueue."];
        if spec["hostNetwork"] == true && dotted.starts_with("net.") {
            errors.invalid(path, &json!(name), "may not be specified when 'hostNetwork' is true");
        } else if spec["hostIPC"] == true && ipc.iter().any(|p| dotted.starts_with(p)) {
            errors.invalid(path, &json!(name), "may not be specified when 'hostIPC' is true");
        }
        seen.insert(name);
    }
}

fn seccomp(context: &Value, path: &str, errors: &mut Errors) {
    let Some(profile) = given(context, "seccompProfile") else { return };
    let kind = text(profile, "type");
    if kind.is_empty() {
        errors.required(format!("{path}.type"), "type is required when seccompProfile is set");
    } else if !PROFILE_TYPES.contains(&kind) {
        errors.not_supported(format!("{path}.type"), &json!(kind), &PROFILE_TYPES);
    }
    let local = given(profile, "localhostProfile");
    let path = format!("{path}.localhostProfile");
    match (kind == "Localhost", local) {
        (true, None) => errors.required(path, "must be set when seccomp type is Localhost"),
        (true, Some(local)) => paths::relative(local.as_str().unwrap_or_default(), &path, errors),
        (false, Some(_)) => {
            errors.invalid(path, profile, "can only be set when seccomp type is Localhost");
        }
        (false, None) => {}
    }
}

fn apparmor_profile(context: &Value, path: &str, errors: &mut Errors) {
    let Some(profile) = given(context, "appArmorProfile") else { return };
    let local = given(profile, "localhostProfile");
    let at = format!("{path}.localhostProfile");
    match text(profile, "type") {
        "Localhost" => {
            let name = local.and_then(Value::as_str).unwrap_or_default();
            if name.trim() != name {
                errors.invalid(at.as_str(), &json!(name), "must not be padded with whitespace");
            } else if name.is_empty() {
                errors.required(at.as_str(), "must be set when AppArmor type is Localhost");
            }
            if name.len() > PROFILE_LENGTH {
                errors.too_long(at, PROFILE_LENGTH);
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if let Some(local) = local {
                errors.invalid(at, local, "can only be set when AppArmor type is Localhost");
            }
        }
        "" => errors.required(format!("{path}.type"), "type is required when appArmorProfile is set"),
        other => errors.not_supported(format!("{path}.type"), &json!(other), &PROFILE_TYPES),
    }
}

/// A container's security context at `path`.
pub(crate) fn container(context: &Value, host_users: bool, path: &str, errors: &mut Errors) {
    user_id(context, "runAsUser", path, errors);
    user_id(context, "runAsGroup", path, errors);
    if let Some(mount) = given(context, "procMount") {
        let path = format!("{path}.procMount");
        if mount != "Default" && mount != "Unmasked" {
            errors.not_supported(path.as_str(), mount, &["Default", "Unmasked"]);
        }
        if host_users && mount == "Unmasked" {
            errors.invalid(path, mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    seccomp(context, &format!("{path}.seccompProfile"), errors);
    if context["allowPrivilegeEscalation"] == false {
        if context["privileged"] == true {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.invalid(path, context, detail);
        }
        let added = context.get("capabilities").map_or(&[][..], |c| items(c, "add"));
        if added.iter().any(|c| c == "CAP_SYS_ADMIN") {
            let detail =
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.invalid(path, context, detail);
        }
    }
    windows::options(context, &format!("{path}.windowsOptions"), errors);
    apparmor_profile(context, &format!("{path}.appArmorProfile"), errors);
}

/// The reason for refusing, in a pod with a user namespace of its own, fields that only make sense with the
/// host's users.
const UNMAPPED: &str = "when `hostUsers` is false";

/// A pod with users of its own shares no other namespace with the host, nor its devices.
pub(crate) fn host_users(spec: &Value, path: &str, errors: &mut Errors) {
    if spec["hostUsers"] != false {
        return;
    }
    for (field, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if spec[field] == true {
            errors.forbidden(format!("{path}.{shown}"), UNMAPPED);
        }
    }
    for (container, path) in each_container(spec, path) {
        if !items(container, "volumeDevices").is_empty() {
            errors.forbidden(format!("{path}.volumeDevices"), UNMAPPED);
        }
    }
}

/// Every container of a pod spec with its path.
pub(crate) fn each_container<'a>(spec: &'a Value, path: &str) -> Vec<(&'a Value, String)> {
    ["initContainers", "containers", "ephemeralContainers"]
        .iter()
        .flat_map(|list| {
            items(spec, list).iter().enumerate().map(move |(i, c)| (c, format!("{path}.{list}[{i}]")))
        })
        .collect()
}

/// Validates that annotations agree with the fields that they duplicate. `object` has the metadata; the pod
/// spec is at `path`.
pub(crate) fn annotations_match(object: &Value, spec: &Value, path: &str, errors: &mut Errors) {
    if meta::annotations(object).is_none_or(serde_json::Map::is_empty) {
        return;
    }
    let pod_context = given(spec, "securityContext");
    let pod_seccomp = pod_context.and_then(|c| given(c, "seccompProfile"));
    if let (Some(profile), Some(annotation)) = (pod_seccomp, meta::annotation(object, SECCOMP_POD)) {
        let path = format!("{path}.securityContext.seccompProfile");
        same_profile("seccomp", profile, annotation, "localhost/", &path, errors);
    }
    let containers = each_container(spec, path);
    for (container, path) in &containers {
        let profile = given(container, "securityContext").and_then(|c| given(c, "seccompProfile"));
        let key = format!("{SECCOMP_CONTAINER}{}", text(container, "name"));
        if let (Some(profile), Some(annotation)) = (profile, meta::annotation(object, &key)) {
            let path = format!("{path}.securityContext.seccompProfile");
            same_profile("seccomp", profile, annotation, "localhost/", &path, errors);
        }
    }
    if spec["os"]["name"] == "windows" {
        return;
    }
    let pod_apparmor = pod_context.and_then(|c| given(c, "appArmorProfile"));
    for (container, path) in &containers {
        let own = given(container, "securityContext").and_then(|c| given(c, "appArmorProfile"));
        let key = format!("{}{}", ANNOTATION, text(container, "name"));
        if let (Some(profile), Some(annotation)) = (own.or(pod_apparmor), meta::annotation(object, &key)) {
            let path = format!("{path}.securityContext.appArmorProfile");
            same_profile("apparmor", profile, annotation, "localhost/", &path, errors);
        }
    }
}

fn same_profile(
    what: &str,
    profile: &Value,
    annotation: &str,
    prefix: &str,
    path: &str,
    errors: &mut Errors,
) {
    let same = match text(profile, "type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => {
            annotation == "runtime/default" || (what == "seccomp" && annotation == "docker/default")
        }
        "Localhost" => match annotation.strip_prefix(prefix) {
            Some(name) if name == text(profile, "localhostProfile") => true,
            Some(_) => {
                let detail = format!("{what} profile in annotation and field must match");
                errors.forbidden(format!("{path}.localhostProfile"), &detail);
                return;
            }
            None => false,
        },
        _ => true,
    };
    if !same {
        let detail = format!("{what} type in annotation and field must match");
        errors.forbidden(format!("{path}.type"), &detail);
    }
}

/// Annotations of a pod or template that have a grammar. `path` is that of the annotations.
pub(crate) fn annotations(object: &Value, spec: &Value, path: &str, errors: &mut Errors) {
    let all = each_container(spec, "");
    let containers: BTreeSet<&str> = all.iter().map(|(container, _)| text(container, "name")).collect();
    for (key, value) in meta::annotations(object).into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            let known = matches!(value, "runtime/default" | "docker/default" | "unconfined");
            match value.strip_prefix("localhost/") {
                Some(local) => paths::relative(local, &format!("{path}.{key}"), errors),
                None if !known => {
                    errors.invalid(format!("{path}.{key}"), &json!(value), "must be a valid seccomp profile");
                }
                None => {}
            }
        } else if let Some(container) = key.strip_prefix(ANNOTATION) {
            let path = format!("{path}[{key}]");
            if !containers.contains(container) {
                errors.invalid(path.as_str(), &json!(container), "container not found");
            }
            if !matches!(value, "" | "runtime/default" | "unconfined") && !value.starts_with("localhost/") {
                let detail = format!("invalid AppArmor profile name: {value:?}");
                errors.invalid(path, &json!(value), &detail);
            }
        } else if key == "controller.kubernetes.io/pod-deletion-cost" {
            let number = value.parse::<i32>().is_ok_and(|n| n.to_string() == value);
            if !number {
                errors.invalid(format!("{path}[{key}]"), &json!(value), "must be a 32bit integer");
            }
        }
    }
}
