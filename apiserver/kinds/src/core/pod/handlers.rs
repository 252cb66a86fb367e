//! Probes and hooks of a container.

use apiserver_schema::validation::{Errors, given, items, names, text};
use serde_json::{Value, json};

const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

const SIGNALS: [&str; 2] = ["exec", "httpGet"];

/// Hooks and probes of a container that may have them. `grace` is the pod's grace period.
pub(crate) fn all(container: &Value, grace: Option<i64>, path: &str, errors: &mut Errors) {
    if let Some(lifecycle) = given(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(value) = given(lifecycle, hook) {
                let kinds = [SIGNALS[0], SIGNALS[1], "tcpSocket", "sleep"];
                handler(value, &kinds, grace, &format!("{path}.lifecycle.{hook}"), errors);
            }
        }
    }
    for field in PROBES {
        if let Some(value) = given(container, field) {
            probe(value, field, grace, &format!("{path}.{field}"), errors);
        }
    }
}

/// Refuses hooks and probes.
pub(crate) fn none(container: &Value, why: &str, path: &str, errors: &mut Errors) {
    for field in ["lifecycle", PROBES[0], PROBES[1], PROBES[2]] {
        if given(container, field).is_some() {
            errors.forbidden(format!("{path}.{field}"), why);
        }
    }
}

fn probe(probe: &Value, field: &str, grace: Option<i64>, path: &str, errors: &mut Errors) {
    handler(probe, &[SIGNALS[0], SIGNALS[1], "tcpSocket", "grpc"], grace, path, errors);
    for number in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        errors.not_negative(format!("{path}.{number}"), probe.get(number));
    }
    let seconds = given(probe, "terminationGracePeriodSeconds");
    if let Some(seconds) = seconds.filter(|s| s.as_i64().is_some_and(|s| s <= 0)) {
        errors.invalid(format!("{path}.terminationGracePeriodSeconds"), seconds, "must be greater than 0");
    }
    if field == "readinessProbe" {
        if let Some(seconds) = seconds {
            let detail = "must not be set for readinessProbes";
            errors.invalid(format!("{path}.terminationGracePeriodSeconds"), seconds, detail);
        }
    } else if let Some(threshold) = given(probe, "successThreshold").filter(|t| t.as_i64() != Some(1)) {
        errors.invalid(format!("{path}.successThreshold"), threshold, "must be 1");
    }
}

/// Validates that a probe or hook has exactly one handler, such as `exec` or `httpGet`, and the handler itself.
fn handler(handler: &Value, kinds: &[&str], grace: Option<i64>, path: &str, errors: &mut Errors) {
    let mut seen = false;
    for kind in kinds {
        let Some(action) = given(handler, kind) else { continue };
        let path = format!("{path}.{kind}");
        if seen {
            errors.forbidden(path, "may not specify more than 1 handler type");
            continue;
        }
        seen = true;
        match *kind {
            "exec" if items(action, "command").is_empty() => errors.required(format!("{path}.command"), ""),
            "httpGet" => http_get(action, &path, errors),
            "tcpSocket" => port_reference(&action["port"], &format!("{path}.port"), errors),
            "grpc" => {
                let port = action["port"].as_i64().unwrap_or(0);
                port_reference(&json!(port), &format!("{path}.port"), errors);
            }
            "sleep" => {
                let seconds = action["seconds"].as_i64().unwrap_or(0);
                if let Some(grace) = grace.filter(|grace| seconds < 0 || seconds > *grace) {
                    let detail =
                        format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    errors.invalid(path, &json!(seconds), &detail);
                }
            }
            _ => {}
        }
    }
    if !seen {
        errors.required(path, "must specify a handler type");
    }
}

fn http_get(action: &Value, path: &str, errors: &mut Errors) {
    if text(action, "path").is_empty() {
        errors.required(format!("{path}.path"), "");
    }
    port_reference(&action["port"], &format!("{path}.port"), errors);
    let scheme = text(action, "scheme");
    if !matches!(scheme, "HTTP" | "HTTPS") {
        errors.not_supported(format!("{path}.scheme"), &json!(scheme), &["HTTP", "HTTPS"]);
    }
    for header in items(action, "httpHeaders") {
        let name = text(header, "name");
        errors.faults(&format!("{path}.httpHeaders"), name, names::http_header(name));
    }
}

/// A port by number or by name.
pub(crate) fn port_reference(port: &Value, path: &str, errors: &mut Errors) {
    let faults = match port {
        Value::String(name) => names::port_name(name),
        other => names::port_number(other.as_i64().unwrap_or(0)),
    };
    let shown = if port.is_null() { &json!(0) } else { port };
    for fault in faults {
        errors.invalid(path, shown, &fault);
    }
}
