//! Containers of a pod, of every sort.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_schema::validation::{Errors, given, items, names, same, text};
use serde_json::{Map, Value, json};

use crate::core::pod::image::LATEST;
use crate::core::pod::{environment, handlers, image, mounts, requirements, security};
use crate::shared::defaults::{Object, each_object, fill, fill_zero, object};

pub(crate) fn default(container: &mut Object) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = pull_policy(image);
    fill(container, "imagePullPolicy", policy);
    fill(container, "terminationMessagePath", "/dev/termination-log");
    fill(container, "terminationMessagePolicy", "File");
    fill(container, "resources", Map::new());
    each_object(container, "ports", |port| fill(port, "protocol", "TCP"));
    each_object(container, "env", |env| {
        if let Some(from) = object(env, "valueFrom") {
            field_reference(from);
        }
    });
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = object(container, name) {
            self::probe(probe);
        }
    }
    if let Some(lifecycle) = object(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(hook) = object(lifecycle, hook) {
                http_get(hook);
            }
        }
    }
}

/// Returns `Always` for the tag `latest` and for no tag, and `IfNotPresent` for other tags, for digests, and
/// for texts that are not an image reference.
pub(crate) fn pull_policy(image: &str) -> &'static str {
    if image::tag(image) == Some(LATEST) { "Always" } else { "IfNotPresent" }
}

fn probe(probe: &mut Object) {
    fill_zero(probe, "timeoutSeconds", 1);
    fill_zero(probe, "periodSeconds", 10);
    fill_zero(probe, "successThreshold", 1);
    fill_zero(probe, "failureThreshold", 3);
    http_get(probe);
    if let Some(grpc) = object(probe, "grpc")
        && !grpc.contains_key("service")
    {
        grpc.insert("service".into(), "".into());
    }
}

fn http_get(handler: &mut Object) {
    if let Some(get) = object(handler, "httpGet") {
        fill(get, "path", "/");
        fill(get, "scheme", "HTTP");
    }
}

pub(crate) fn field_reference(parent: &mut Object) {
    if let Some(reference) = object(parent, "fieldRef") {
        fill(reference, "apiVersion", "v1");
    }
}

/// Most rules of one container's restarts, and most exit codes of one rule (KEP-5307).
const RESTART_RULES: usize = 20;

const EXIT_CODES: usize = 255;

/// The properties of a pod that its containers must agree with.
pub(crate) struct Pod<'a> {
    /// Volumes by name.
    pub volumes: BTreeMap<&'a str, &'a Value>,
    /// Names of the resource claims.
    pub claims: BTreeSet<&'a str>,
    /// True if the pod uses the user namespace of the host.
    pub host_users: bool,
}

/// All containers of the pod spec at `path`.
pub(crate) fn containers(spec: &Value, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    let grace = spec["terminationGracePeriodSeconds"].as_i64();
    regular(spec, pod, grace, &format!("{path}.containers"), errors);
    init(spec, pod, grace, &format!("{path}.initContainers"), errors);
    ephemeral(spec, pod, &format!("{path}.ephemeralContainers"), errors);
}

fn regular(spec: &Value, pod: &Pod<'_>, grace: Option<i64>, path: &str, errors: &mut Errors) {
    let list = items(spec, "containers");
    if list.is_empty() {
        errors.required(path, "");
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, container) in list.iter().enumerate() {
        let path = format!("{path}[{index}]");
        common(container, spec, pod, &path, errors);
        let name = text(container, "name");
        if !seen.insert(name) {
            errors.duplicate(format!("{path}.name"), &json!(name));
        }
        handlers::all(container, grace, &path, errors);
        restarts(container, &path, errors);
    }
    let mut taken = BTreeSet::new();
    for (index, container) in list.iter().enumerate() {
        conflicts(container, &mut taken, &format!("{path}[{index}].ports"), errors);
    }
}

fn init(spec: &Value, pod: &Pod<'_>, grace: Option<i64>, path: &str, errors: &mut Errors) {
    let mut seen: BTreeSet<&str> = items(spec, "containers").iter().map(|c| text(c, "name")).collect();
    for (index, container) in items(spec, "initContainers").iter().enumerate() {
        let path = format!("{path}[{index}]");
        common(container, spec, pod, &path, errors);
        restarts(container, &path, errors);
        let name = text(container, "name");
        if seen.contains(name) {
            errors.duplicate(format!("{path}.name"), &json!(name));
        } else if !name.is_empty() {
            seen.insert(name);
        }
        // They run one after the other, so each has the ports for itself.
        conflicts(container, &mut BTreeSet::new(), &format!("{path}.ports"), errors);
        if is_sidecar(container) {
            handlers::all(container, grace, &path, errors);
        } else {
            let why = "may not be set for init containers without restartPolicy=Always";
            handlers::none(container, why, &path, errors);
        }
    }
}

/// Returns `true` if an init container goes on running beside the main containers.
pub(crate) fn is_sidecar(container: &Value) -> bool {
    text(container, "restartPolicy") == "Always"
}

fn ephemeral(spec: &Value, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    const REFUSED: [&str; 9] = [
        "ports",
        "resources",
        "resizePolicy",
        "restartPolicy",
        "restartPolicyRules",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
    ];
    const WHY: &str = "cannot be set for an Ephemeral Container";
    let others: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| items(spec, list))
        .map(|c| text(c, "name"))
        .collect();
    let mut seen = others.clone();
    for (index, container) in items(spec, "ephemeralContainers").iter().enumerate() {
        let path = format!("{path}[{index}]");
        common(container, spec, pod, &path, errors);
        trimmed_image(container, &path, errors);
        let name = text(container, "name");
        if !seen.insert(name) {
            errors.duplicate(format!("{path}.name"), &json!(name));
        }
        let target = text(container, "targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            errors.not_found(format!("{path}.targetContainerName"), &json!(target));
        }
        for field in REFUSED {
            if container.get(field).is_some_and(|v| !same(Some(v), None)) {
                errors.forbidden(format!("{path}.{field}"), WHY);
            }
        }
        for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
            for field in ["subPath", "subPathExpr"] {
                if !text(mount, field).is_empty() {
                    errors.forbidden(format!("{path}.volumeMounts[{index}].{field}"), WHY);
                }
            }
        }
    }
}

fn common(container: &Value, spec: &Value, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    errors.name(&format!("{path}.name"), text(container, "name"), names::dns_label);
    if text(container, "image").is_empty() {
        errors.required(format!("{path}.image"), "");
    }
    errors.one_of(
        &format!("{path}.terminationMessagePolicy"),
        container.get("terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
    );
    ports(items(container, "ports"), &format!("{path}.ports"), errors);
    environment::variables(items(container, "env"), &format!("{path}.env"), errors);
    environment::sources(items(container, "envFrom"), &format!("{path}.envFrom"), errors);
    mounts::mounts(container, pod, &format!("{path}.volumeMounts"), errors);
    mounts::devices(container, pod, &format!("{path}.volumeDevices"), errors);
    let policies = ["Always", "IfNotPresent", "Never"];
    errors.one_of(&format!("{path}.imagePullPolicy"), container.get("imagePullPolicy"), &policies);
    if let Some(requirements) = given(container, "resources") {
        requirements::requirements(requirements, &pod.claims, &format!("{path}.resources"), errors);
    }
    resize(container, text(spec, "restartPolicy"), &format!("{path}.resizePolicy"), errors);
    if let Some(context) = given(container, "securityContext") {
        security::container(context, pod.host_users, &format!("{path}.securityContext"), errors);
    }
}

/// Pods, unlike templates, refuse images with white space around them.
pub(crate) fn trimmed_image(container: &Value, path: &str, errors: &mut Errors) {
    let image = text(container, "image");
    if image.trim() != image {
        let detail = "must not have leading or trailing whitespace";
        errors.invalid(format!("{path}.image"), &json!(image), detail);
    }
}

fn resize(container: &Value, restart_policy: &str, path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, policy) in items(container, "resizePolicy").iter().enumerate() {
        let resource = text(policy, "resourceName");
        if !seen.insert(resource) {
            errors.duplicate(format!("{path}[{index}]"), &json!(resource));
        }
        errors.one_of(path, policy.get("resourceName"), &["cpu", "memory"]);
        let restart = policy.get("restartPolicy");
        errors.one_of(path, restart, &["NotRequired", "RestartContainer"]);
        if restart_policy == "Never" && restart.is_some_and(|r| r != "NotRequired") {
            let detail = "must be 'NotRequired' when `restartPolicy` is 'Never'";
            errors.invalid(path, &json!(text(policy, "restartPolicy")), detail);
        }
    }
}

/// A container's own restart policy and its rules (KEP-5307).
fn restarts(container: &Value, path: &str, errors: &mut Errors) {
    errors.one_of_if_given(
        &format!("{path}.restartPolicy"),
        container.get("restartPolicy"),
        &["Always", "Never", "OnFailure"],
    );
    let rules = items(container, "restartPolicyRules");
    if rules.is_empty() {
        return;
    }
    if given(container, "restartPolicy").is_none() {
        errors.required(
            format!("{path}.restartPolicy"),
            "must specify restartPolicy when restart rules are used",
        );
    }
    let path = format!("{path}.restartPolicyRules");
    if rules.len() > RESTART_RULES {
        errors.too_many(path.as_str(), rules.len(), RESTART_RULES);
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = format!("{path}[{index}]");
        errors.one_of(&format!("{path}.action"), rule.get("action"), &["Restart", "RestartAllContainers"]);
        let Some(codes) = given(rule, "exitCodes") else {
            errors.required(format!("{path}.exitCodes"), "must be specified");
            continue;
        };
        let path = format!("{path}.exitCodes");
        errors.one_of(&format!("{path}.operator"), codes.get("operator"), &["In", "NotIn"]);
        let values = items(codes, "values");
        if values.len() > EXIT_CODES {
            errors.too_many(format!("{path}.values"), values.len(), EXIT_CODES);
        }
    }
}

fn ports(ports: &[Value], path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let name = text(port, "name");
        if !name.is_empty() {
            let faults = names::port_name(name);
            if faults.is_empty() && !seen.insert(name) {
                errors.duplicate(format!("{path}.name"), &json!(name));
            }
            errors.faults(&format!("{path}.name"), name, faults);
        }
        let number = port["containerPort"].as_i64().unwrap_or(0);
        if number == 0 {
            errors.required(format!("{path}.containerPort"), "");
        } else {
            handlers::port_reference(&json!(number), &format!("{path}.containerPort"), errors);
        }
        let host = port["hostPort"].as_i64().unwrap_or(0);
        if host != 0 {
            handlers::port_reference(&json!(host), &format!("{path}.hostPort"), errors);
        }
        errors.one_of(&format!("{path}.protocol"), port.get("protocol"), &["SCTP", "TCP", "UDP"]);
    }
}

/// With the host's network a port of the container is that port of the host. A template may leave
/// it out.
pub(crate) fn host_network_ports(spec: &Value, is_pod: bool, path: &str, errors: &mut Errors) {
    if spec["hostNetwork"] != true {
        return;
    }
    for (index, container) in items(spec, "containers").iter().enumerate() {
        for (number, port) in items(container, "ports").iter().enumerate() {
            let host = port["hostPort"].as_i64().unwrap_or(0);
            if (is_pod || host != 0) && host != port["containerPort"].as_i64().unwrap_or(0) {
                let path = format!("{path}.containers[{index}].ports[{number}].hostPort");
                errors.invalid(path, &json!(host), "must match `containerPort` when `hostNetwork` is true");
            }
        }
    }
}

/// Two containers of a pod cannot have the same port of the host.
fn conflicts(container: &Value, seen: &mut BTreeSet<String>, path: &str, errors: &mut Errors) {
    for (index, port) in items(container, "ports").iter().enumerate() {
        let number = port["hostPort"].as_i64().unwrap_or(0);
        if number != 0 {
            let key = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
            if seen.contains(&key) {
                errors.duplicate(format!("{path}[{index}].hostPort"), &json!(key));
            }
            seen.insert(key);
        }
    }
}
