//! Validation of pods for one operating system.

use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, given, names, text};
use serde_json::{Value, json};

use crate::core::pod::security;

/// Longest GMSA credential specification, in KiB.
const CREDENTIALS_KIB: usize = 64;

const DOMAIN_LENGTH: usize = 256;

const USER_LENGTH: usize = 104;

/// `windowsOptions` of a security context.
pub(crate) fn options(context: &Value, path: &str, errors: &mut Errors) {
    let Some(options) = given(context, "windowsOptions") else { return };
    if let Some(name) = given(options, "gmsaCredentialSpecName").and_then(Value::as_str) {
        errors.faults(&format!("{path}.gmsaCredentialSpecName"), name, names::dns_subdomain(name));
    }
    if let Some(spec) = given(options, "gmsaCredentialSpec").and_then(Value::as_str) {
        let path = format!("{path}.gmsaCredentialSpec");
        if spec.is_empty() {
            errors.invalid(path, &json!(spec), "gmsaCredentialSpec cannot be an empty string");
        } else if spec.len() > CREDENTIALS_KIB * 1024 {
            let detail = format!("gmsaCredentialSpec size must be under {CREDENTIALS_KIB} KiB");
            errors.invalid(path, &json!(spec), &detail);
        }
    }
    if let Some(user) = given(options, "runAsUserName").and_then(Value::as_str) {
        user_name(user, &format!("{path}.runAsUserName"), errors);
    }
}

fn user_name(name: &str, path: &str, errors: &mut Errors) {
    let mut refuse = |detail: &str| errors.invalid(path, &json!(name), detail);
    if name.is_empty() {
        return refuse("runAsUserName cannot be an empty string");
    }
    if name.chars().any(|c| c.is_ascii_control()) {
        return refuse("runAsUserName cannot contain control characters");
    }
    let (domain, user) = match name.split_once('\\') {
        Some((_, user)) if user.contains('\\') => {
            return refuse("runAsUserName cannot contain more than one backslash");
        }
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    if let Some(domain) = domain {
        if domain.len() >= DOMAIN_LENGTH {
            refuse(&format!("runAsUserName's Domain length must be under {DOMAIN_LENGTH} characters"));
        }
        if !is_netbios(domain) && !is_dns(domain) {
            refuse("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
        }
    }
    if user.is_empty() {
        refuse("runAsUserName's User cannot be empty");
    } else if user.len() > USER_LENGTH {
        refuse(&format!("runAsUserName's User length must not be longer than {USER_LENGTH} characters"));
    }
    if !user.is_empty() && user.chars().all(|c| c == '.' || c == ' ') {
        refuse("runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        refuse("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
}

fn is_netbios(domain: &str) -> bool {
    let length = domain.chars().count();
    (1..=15).contains(&length)
        && !domain.starts_with('.')
        && !domain.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|'])
}

fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|label| names::dns_label(&label.to_ascii_lowercase()).is_empty())
}

/// Containers of the host's own kind: all of a pod or none, and with the host's network.
pub(crate) fn host_process(spec: &Value, path: &str, errors: &mut Errors) {
    let asked = |object: &Value| meta::at(object, "/securityContext/windowsOptions/hostProcess")?.as_bool();
    let of_pod = asked(spec);
    let containers = security::each_container(spec, path);
    let mut count = 0;
    for (container, path) in &containers {
        let own = asked(container);
        if let (Some(pod), Some(own)) = (of_pod, own)
            && pod != own
        {
            let detail = format!("pod hostProcess value must be identical if both are specified, was {pod}");
            let path = format!("{path}.securityContext.windowsOptions.hostProcess");
            errors.invalid(path, &json!(own), &detail);
        }
        count += usize::from(own.or(of_pod) == Some(true));
    }
    if count == 0 {
        return;
    }
    if count != containers.len() {
        let detail =
            "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.invalid(path, &json!(""), detail);
    }
    if spec["hostNetwork"] != true {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.invalid(format!("{path}.hostNetwork"), &json!(false), detail);
    }
}

/// `spec.os`, and what its system does not know.
pub(crate) fn operating_system(spec: &Value, path: &str, errors: &mut Errors) {
    let Some(os) = given(spec, "os") else { return };
    match text(os, "name") {
        "" => errors.required(format!("{path}.os.name"), ""),
        "linux" => linux(spec, path, errors),
        "windows" => windows(spec, path, errors),
        other => errors.not_supported(format!("{path}.os"), &json!(other), &["linux", "windows"]),
    }
}

fn linux(spec: &Value, path: &str, errors: &mut Errors) {
    let pod = [(spec, path.to_owned())];
    for (object, path) in pod.into_iter().chain(security::each_container(spec, path)) {
        if given(object, "securityContext").is_some_and(|c| given(c, "windowsOptions").is_some()) {
            let path = format!("{path}.securityContext.windowsOptions");
            errors.forbidden(path, "windows options cannot be set for a linux pod");
        }
    }
}

fn windows(spec: &Value, path: &str, errors: &mut Errors) {
    const WHY: &str = "cannot be set for a windows pod";
    const POD: [&str; 15] = [
        "securityContext.appArmorProfile",
        "securityContext.seLinuxOptions",
        "hostUsers",
        "hostPID",
        "hostIPC",
        "securityContext.seccompProfile",
        "securityContext.fsGroup",
        "securityContext.fsGroupChangePolicy",
        "securityContext.sysctls",
        "shareProcessNamespace",
        "securityContext.runAsUser",
        "securityContext.runAsGroup",
        "securityContext.supplementalGroups",
        "securityContext.supplementalGroupsPolicy",
        "securityContext.seLinuxChangePolicy",
    ];
    const CONTAINER: [&str; 10] = [
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "capabilities",
        "readOnlyRootFilesystem",
        "privileged",
        "allowPrivilegeEscalation",
        "procMount",
        "runAsUser",
        "runAsGroup",
    ];
    for field in POD {
        let value = spec.pointer(&format!("/{}", field.replace('.', "/")));
        // Namespaces that are not shared and lists without entries are as good as absent.
        let absent = match value {
            None | Some(Value::Null) => true,
            Some(Value::Bool(set)) => !set && matches!(field, "hostPID" | "hostIPC"),
            Some(Value::Array(list)) => list.is_empty() && field.ends_with("sysctls"),
            Some(_) => false,
        };
        if !absent {
            errors.forbidden(format!("{path}.{field}"), WHY);
        }
    }
    for (container, path) in security::each_container(spec, path) {
        let Some(context) = given(container, "securityContext") else { continue };
        for field in CONTAINER {
            if given(context, field).is_some() {
                errors.forbidden(format!("{path}.securityContext.{field}"), WHY);
            }
        }
    }
}
