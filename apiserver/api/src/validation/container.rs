//! Containers of a pod, of every sort.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Errors, items, names, pod, resources, text};

/// How a container stands in the pod.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Regular,
    Init,
    Ephemeral,
}

/// All containers of the pod spec at `path`, given the names of its volumes.
pub(super) fn containers(spec: &Value, volumes: &BTreeSet<&str>, path: &str, errors: &mut Errors) {
    if items(spec, "containers").is_empty() {
        errors.required(format!("{path}.containers"), "");
    }
    let host_network = spec["hostNetwork"] == true;
    let mut seen = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    let sorts = [
        ("containers", Sort::Regular),
        ("initContainers", Sort::Init),
        ("ephemeralContainers", Sort::Ephemeral),
    ];
    for (list, sort) in sorts {
        for (index, container) in items(spec, list).iter().enumerate() {
            let path = format!("{path}.{list}[{index}]");
            let name = text(container, "name");
            if !name.is_empty() && !seen.insert(name) {
                errors.duplicate(format!("{path}.name"), &json!(name));
            }
            one(container, sort, volumes, &path, errors);
            ports(items(container, "ports"), host_network, &format!("{path}.ports"), errors);
            if sort != Sort::Init {
                conflicts(items(container, "ports"), &mut host_ports, &format!("{path}.ports"), errors);
            }
        }
    }
}

fn one(container: &Value, sort: Sort, volumes: &BTreeSet<&str>, path: &str, errors: &mut Errors) {
    let name = text(container, "name");
    if name.is_empty() {
        errors.required(format!("{path}.name"), "");
    } else {
        errors.faults(&format!("{path}.name"), name, names::dns_label(name));
    }
    let image = text(container, "image");
    if image.is_empty() {
        errors.required(format!("{path}.image"), "");
    } else if image.trim() != image {
        let detail = "must not have leading or trailing whitespace";
        errors.invalid(format!("{path}.image"), &json!(image), detail);
    }
    let policies = ["Always", "IfNotPresent", "Never"];
    errors.one_of(&format!("{path}.imagePullPolicy"), container.get("imagePullPolicy"), &policies);
    errors.one_of(
        &format!("{path}.terminationMessagePolicy"),
        container.get("terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
    );
    environment(items(container, "env"), &format!("{path}.env"), errors);
    environment_from(items(container, "envFrom"), &format!("{path}.envFrom"), errors);
    mounts(items(container, "volumeMounts"), volumes, &format!("{path}.volumeMounts"), errors);
    if let Some(requirements) = container.get("resources") {
        resources::requirements(requirements, &format!("{path}.resources"), errors);
    }
    let context = container.get("securityContext").unwrap_or(&Value::Null);
    for field in ["runAsUser", "runAsGroup"] {
        if let Some(id) = context.get(field).filter(|v| !v.is_null()) {
            pod::user_id(id, &format!("{path}.securityContext.{field}"), errors);
        }
    }
    if context["privileged"] == true && context["allowPrivilegeEscalation"] == false {
        let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        errors.invalid(format!("{path}.securityContext"), context, detail);
    }
    handlers(container, sort, path, errors);
}

fn handlers(container: &Value, sort: Sort, path: &str, errors: &mut Errors) {
    let sidecar = sort == Sort::Init && text(container, "restartPolicy") == "Always";
    if sort == Sort::Init {
        errors.one_of_if_set(&format!("{path}.restartPolicy"), container.get("restartPolicy"), &["Always"]);
    }
    let refused = match sort {
        Sort::Init if !sidecar => Some("may not be set for init containers without restartPolicy=Always"),
        Sort::Ephemeral => Some("cannot be set for an Ephemeral Container"),
        _ => None,
    };
    for field in ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle"] {
        let Some(value) = container.get(field).filter(|v| !v.is_null()) else { continue };
        let path = format!("{path}.{field}");
        if let Some(why) = refused {
            errors.forbidden(path, why);
        } else if field == "lifecycle" {
            for hook in ["postStart", "preStop"] {
                if let Some(hook_value) = value.get(hook) {
                    let kinds = ["exec", "httpGet", "tcpSocket", "sleep"];
                    handler(hook_value, &kinds, &format!("{path}.{hook}"), errors);
                }
            }
        } else {
            probe(value, field, &path, errors);
        }
    }
}

fn probe(probe: &Value, field: &str, path: &str, errors: &mut Errors) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], path, errors);
    for number in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        errors.not_negative(format!("{path}.{number}"), probe.get(number));
    }
    if field != "readinessProbe"
        && let Some(threshold) = probe.get("successThreshold").filter(|t| t.as_i64() != Some(1))
    {
        errors.invalid(format!("{path}.successThreshold"), threshold, "must be 1");
    }
    if let Some(seconds) =
        probe.get("terminationGracePeriodSeconds").filter(|s| s.as_i64().is_some_and(|s| s <= 0))
    {
        errors.invalid(format!("{path}.terminationGracePeriodSeconds"), seconds, "must be greater than 0");
    }
}

/// A probe or hook has exactly one way of asking.
fn handler(handler: &Value, kinds: &[&str], path: &str, errors: &mut Errors) {
    let mut given = kinds.iter().filter(|k| handler.get(**k).is_some_and(|v| !v.is_null()));
    let Some(kind) = given.next() else {
        errors.required(path, "must specify a handler type");
        return;
    };
    for more in given {
        errors.forbidden(format!("{path}.{more}"), "may not specify more than 1 handler type");
    }
    let (path, action) = (format!("{path}.{kind}"), &handler[*kind]);
    match *kind {
        "exec" if items(action, "command").is_empty() => errors.required(format!("{path}.command"), ""),
        "httpGet" => {
            port_reference(&action["port"], &format!("{path}.port"), errors);
            errors.one_of(&format!("{path}.scheme"), action.get("scheme"), &["HTTP", "HTTPS"]);
        }
        "tcpSocket" => port_reference(&action["port"], &format!("{path}.port"), errors),
        "grpc" => {
            let port = action["port"].as_i64().unwrap_or(0);
            for fault in names::port_number(port) {
                errors.invalid(format!("{path}.port"), &json!(port), &fault);
            }
        }
        _ => {}
    }
}

/// A port by number or by name.
pub(super) fn port_reference(port: &Value, path: &str, errors: &mut Errors) {
    let faults = match port {
        Value::String(name) => names::port_name(name),
        other => names::port_number(other.as_i64().unwrap_or(0)),
    };
    for fault in faults {
        errors.invalid(path, port, &fault);
    }
}

fn ports(ports: &[Value], host_network: bool, path: &str, errors: &mut Errors) {
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
            for fault in names::port_number(number) {
                errors.invalid(format!("{path}.containerPort"), &json!(number), &fault);
            }
        }
        let host = port["hostPort"].as_i64().unwrap_or(0);
        if host != 0 {
            for fault in names::port_number(host) {
                errors.invalid(format!("{path}.hostPort"), &json!(host), &fault);
            }
            if host_network && host != number {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid(format!("{path}.hostPort"), &json!(host), detail);
            }
        }
        errors.one_of(&format!("{path}.protocol"), port.get("protocol"), &["SCTP", "TCP", "UDP"]);
    }
}

/// Two containers of a pod cannot have the same port of the host.
fn conflicts(ports: &[Value], seen: &mut BTreeSet<String>, path: &str, errors: &mut Errors) {
    for (index, port) in ports.iter().enumerate() {
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

fn environment(variables: &[Value], path: &str, errors: &mut Errors) {
    for (index, variable) in variables.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let name = text(variable, "name");
        if name.is_empty() {
            errors.required(format!("{path}.name"), "");
        } else {
            errors.faults(&format!("{path}.name"), name, names::environment_name(name));
        }
        let Some(from) = variable.get("valueFrom").filter(|v| !v.is_null()) else { continue };
        let path = format!("{path}.valueFrom");
        let kinds = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
        let count = kinds.iter().filter(|k| from.get(**k).is_some()).count();
        if count == 0 {
            errors.invalid(
                path.as_str(),
                &json!(""),
                "must specify one of: `fieldRef`, `resourceFieldRef`, \
                `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            );
        } else if !text(variable, "value").is_empty() {
            errors.invalid(path.as_str(), &json!(""), "may not be specified when `value` is not empty");
        } else if count > 1 {
            errors.invalid(path.as_str(), &json!(""), "may not have more than one field specified at a time");
        }
        source(from, &path, errors);
    }
}

fn source(from: &Value, path: &str, errors: &mut Errors) {
    if let Some(reference) = from.get("fieldRef") {
        let field = text(reference, "fieldPath");
        let path = format!("{path}.fieldRef.fieldPath");
        if field.is_empty() {
            errors.required(path, "");
        } else if !environment_field(field) {
            let supported = [
                "metadata.name",
                "metadata.namespace",
                "metadata.uid",
                "spec.nodeName",
                "spec.serviceAccountName",
                "status.hostIP",
                "status.hostIPs",
                "status.podIP",
                "status.podIPs",
            ];
            errors.extend([crate::error::FieldError::not_supported(path, &json!(field), &supported)]);
        }
    }
    for kind in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(reference) = from.get(kind) {
            if text(reference, "name").is_empty() {
                errors.required(format!("{path}.{kind}.name"), "");
            }
            let key = text(reference, "key");
            if key.is_empty() {
                errors.required(format!("{path}.{kind}.key"), "");
            } else {
                errors.faults(&format!("{path}.{kind}.key"), key, names::config_key(key));
            }
        }
    }
    if let Some(reference) = from.get("resourceFieldRef")
        && text(reference, "resource").is_empty()
    {
        errors.required(format!("{path}.resourceFieldRef.resource"), "");
    }
}

fn environment_field(field: &str) -> bool {
    let plain = matches!(
        field,
        "metadata.name"
            | "metadata.namespace"
            | "metadata.uid"
            | "spec.nodeName"
            | "spec.serviceAccountName"
            | "status.hostIP"
            | "status.hostIPs"
            | "status.podIP"
            | "status.podIPs"
    );
    let subscript = |prefix: &str| field.strip_prefix(prefix).is_some_and(|rest| rest.ends_with("']"));
    plain || subscript("metadata.labels['") || subscript("metadata.annotations['")
}

fn environment_from(sources: &[Value], path: &str, errors: &mut Errors) {
    for (index, source) in sources.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let given: Vec<&str> =
            ["configMapRef", "secretRef"].into_iter().filter(|k| source.get(*k).is_some()).collect();
        match given.as_slice() {
            [] => errors.invalid(
                path.as_str(),
                &json!(""),
                "must specify one of: `configMapRef` or `secretRef`",
            ),
            [one] if text(&source[*one], "name").is_empty() => {
                errors.required(format!("{path}.{one}.name"), "")
            }
            [_] => {}
            _ => errors.invalid(
                path.as_str(),
                &json!(""),
                "may not have more than one field specified at a time",
            ),
        }
    }
}

fn mounts(mounts: &[Value], volumes: &BTreeSet<&str>, path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, mount) in mounts.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let name = text(mount, "name");
        if name.is_empty() {
            errors.required(format!("{path}.name"), "");
        } else if !volumes.contains(name) {
            errors.not_found(format!("{path}.name"), &json!(name));
        }
        let target = text(mount, "mountPath");
        if target.is_empty() {
            errors.required(format!("{path}.mountPath"), "");
        } else if !seen.insert(target) {
            errors.invalid(format!("{path}.mountPath"), &json!(target), "must be unique");
        }
        let (sub, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
        if !sub.is_empty() && !expression.is_empty() {
            errors.invalid(
                format!("{path}.subPathExpr"),
                &json!(expression),
                "subPathExpr and subPath are mutually exclusive",
            );
        }
        for (field, value) in [("subPath", sub), ("subPathExpr", expression)] {
            relative(value, &format!("{path}.{field}"), errors);
        }
        errors.one_of_if_set(
            &format!("{path}.mountPropagation"),
            mount.get("mountPropagation"),
            &["Bidirectional", "HostToContainer", "None"],
        );
    }
}

/// A path below a volume.
pub(super) fn relative(value: &str, path: &str, errors: &mut Errors) {
    if value.starts_with('/') {
        errors.invalid(path, &json!(value), "must be a relative path");
    }
    if value.split('/').any(|part| part == "..") {
        errors.invalid(path, &json!(value), "must not contain '..'");
    }
}
