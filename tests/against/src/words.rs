//! Values that validation rules look at: some right for most fields of a name, and some wrong.

use serde_json::{Value, json};

use crate::seeded::Seeded;

pub const QUANTITIES: &[&str] = &["1", "100m", "2Gi", "1500m", "128Mi", "0", "1.5", "3e2", "1000k", "0.1"];

/// A text for a field of a name.
pub fn string(field: &str, from: &mut Seeded) -> String {
    let of: &[&str] = match field {
        "image" | "reference" => &["registry.example.com/app:1.0", "busybox", "app@sha256:0000"],
        "mountPath" | "path" | "hostPath" => &["/data", "/var/lib/x", "sub/dir"],
        "subPath" | "pdName" => &["a/b", "x"],
        "namespace" => &["default", "other"],
        "apiGroup" | "group" => &["apps", "", "example.com", "rbac.authorization.k8s.io"],
        "apiVersion" | "version" => &["v1", "apps/v1"],
        "kind" => &["Pod", "Deployment", "User", "ServiceAccount"],
        "operator" => &["In", "Exists", "NotIn", "DoesNotExist", "Equal"],
        "key" | "topologyKey" | "labelKey" => &["app", "example.com/zone", "kubernetes.io/hostname"],
        "effect" => &["NoSchedule", "NoExecute"],
        "ip" | "podIP" | "hostIP" | "loadBalancerIP" => &["10.1.2.3", "2001:db8::1", "192.0.2.7"],
        "addresses" | "externalIPs" | "nameservers" => &["10.1.2.3", "192.0.2.8"],
        "cidr" | "cidrs" | "loadBalancerSourceRanges" | "podCIDR" | "podCIDRs" | "except" => {
            &["10.0.0.0/24", "2001:db8::/64", "192.0.2.0/24"]
        }
        "host" | "hostname" | "externalName" => &["www.example.com", "host-a"],
        "url" => &["https://example.com/x", "https://hook.example.com:8443/validate"],
        "expression" | "messageExpression" => {
            &["true", "object.metadata.name == 'x'", "device.driver == 'd.example.com'", "'text'"]
        }
        "driver" | "driverName" | "provisioner" | "attacher" | "controller" | "controllerName" => {
            &["d.example.com", "example.com/c"]
        }
        "signerName" => &["example.com/signer", "kubernetes.io/kube-apiserver-client"],
        "schedule" => &["*/5 * * * *", "@daily", "0 0 1 1 *"],
        "timeZone" => &["Europe/Berlin", "Etc/UTC"],
        "finalizers" => &["example.com/keep", "kubernetes"],
        "fieldPath" => &["metadata.name", "status.podIP", "metadata.labels['a']", "spec.nodeName"],
        "resource" => &["limits.cpu", "requests.memory", "pods", "deployments"],
        "protocol" => &["TCP", "UDP"],
        "type" => &["RuntimeDefault", "Localhost", "Recreate", "Opaque", "Resource"],
        "value" | "operationValue" => &["x", "true", "1"],
        _ => &["name-a", "b", "example.com", "Some text", "c-1"],
    };
    from.pick(of).to_owned()
}

/// A number for a field of a name.
pub fn integer(field: &str, from: &mut Seeded) -> i64 {
    let of: &[i64] = match field {
        field if field.to_lowercase().contains("port") => &[80, 443, 8080, 30080],
        field if field.ends_with("Seconds") => &[1, 10, 30, 600, 3600],
        "defaultMode" | "mode" => &[0o644, 0o400, 0o777],
        _ => &[0, 1, 2, 3, 10, 100],
    };
    *from.choose(of).unwrap_or(&1)
}

/// A key for a map that is the value of a field of a name.
pub fn map_key(field: &str, from: &mut Seeded) -> String {
    let of: &[&str] = match field {
        "limits" | "requests" | "hard" | "capacity" | "default" | "defaultRequest" | "overhead" | "max"
        | "min" => &["cpu", "memory", "ephemeral-storage", "example.com/device", "storage", "pods"],
        "matchLabels" | "labels" | "nodeSelector" | "selector" | "annotations" => {
            &["app", "example.com/part", "tier", "kubernetes.io/os"]
        }
        _ => &["a", "key.b", "example.com/c"],
    };
    from.pick(of).to_owned()
}

/// Texts that rules of some field refuse.
const ODD: &[&str] = &[
    "Bad_Name!",
    "-dash",
    "dash-",
    "a/b",
    "a..b",
    "UPPER",
    "../up",
    "/",
    ".",
    "..",
    "é",
    "a b",
    "line\nbreak",
    "x y/z",
    "example.com/",
    "/name",
    "a.b.c/d/e",
    "0",
    "-1",
    "1.5",
    "*",
    "*.example.com",
    "a=b",
    "$(VAR)",
    "%zz",
    "Sometimes",
    "none",
    "true",
    "null",
    "::1",
    "300.1.1.1",
    "10.0.0.1/33",
    "010.0.0.1",
    "http://x",
    "https://",
    "1h",
    "5s",
    "-5m",
    "1e3",
    "1KiB",
    "0.5m",
    "1Gi1",
    "9999999999999999999Gi",
    "12E",
    "0x10",
    "TCP",
    "Always",
    "2026-13-01T00:00:00Z",
    "yesterday",
    "not base64!",
    "aGVsbG8",
    "example.com/x",
    "kubernetes.io/x",
    "k8s.io/y",
    "system:x",
    "spec.nodeName",
    "metadata.labels[",
    "!!",
    "a,b",
    "'",
    "\"",
    "\\",
    "{}",
    "[]",
];

/// A text in place of another, mostly a wrong one.
pub fn odd_string(was: &str, from: &mut Seeded) -> String {
    match from.below(10) {
        0 => String::new(),
        1 => "a".repeat(64),
        2 => "b".repeat(254),
        3 => format!("{}/{was}", "example.com"),
        4 => was.to_uppercase(),
        _ => from.pick(ODD).to_owned(),
    }
}

/// A number in place of another, mostly a wrong one.
pub fn odd_number(from: &mut Seeded) -> Value {
    let of = [
        json!(0),
        json!(-1),
        json!(1),
        json!(65535),
        json!(65536),
        json!(2_147_483_647),
        json!(2_147_483_648_i64),
        json!(-2_147_483_649_i64),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1.5),
        json!(1e20),
        json!(100),
        json!(101),
        json!(1000),
        json!(999_999_999),
    ];
    from.choose(&of).cloned().unwrap_or_default()
}
