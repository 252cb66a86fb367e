//! Taints of devices, and the requests that tolerate them.

use k8s_openapi::api::resource::v1::{Device, DeviceTaint, DeviceToleration};

/// Returns `true` if a taint of a device forbids a request to have it.
pub fn forbid(device: &Device, tolerations: Option<&Vec<DeviceToleration>>) -> bool {
    let mut taints = device.taints.iter().flatten();
    taints.any(|taint| {
        // Other effects, among them none, keep nobody away.
        matches!(taint.effect.as_str(), "NoExecute" | "NoSchedule")
            && !tolerations.into_iter().flatten().any(|toleration| tolerates(toleration, taint))
    })
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let is_any_or = |wanted: Option<&String>, actual: &str| {
        wanted.is_none_or(|wanted| wanted.is_empty() || wanted == actual)
    };
    is_any_or(toleration.effect.as_ref(), &taint.effect)
        && is_any_or(toleration.key.as_ref(), &taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => {
                toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
            }
            "Exists" => true,
            _ => false,
        }
}
