//! Admin access to devices. Only claims in namespaces that a label allows it may ask for it, or be given it.

use apiserver_registry::Resource;
use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use serde_json::Value;

use super::Part;
use crate::context::Context;
use crate::storage;

/// The label of a namespace whose claims may have admin access.
const LABEL: &str = "resource.kubernetes.io/admin-access";

/// The error of a claim, or a template of claims, that wants admin access in a namespace without the label. `old` is
/// the object before, if there was one.
pub async fn refused(
    context: &Context,
    resource: &Resource,
    part: Part,
    new: &Value,
    old: Option<&Value>,
) -> Result<Option<FieldError>, ApiError> {
    let server = &context.server;
    if resource.group != "resource.k8s.io" || resource.custom.is_some() {
        return Ok(None);
    }
    let Some(path) = wanted(&resource.kind, part, new, old) else { return Ok(None) };
    let Some(namespaces) = server.registry().lookup("", "v1", "namespaces") else { return Ok(None) };
    let namespace = storage::referred(server, namespaces, "", meta::namespace(new)).await?;
    let allowed = namespace.is_some_and(|namespace| namespace["metadata"]["labels"][LABEL] == "true");
    let detail =
        format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
    Ok((!allowed).then(|| FieldError::forbidden(path, &detail)))
}

/// Returns the first field by which a write asks for admin access, or grants it. A request cannot change
/// later, and a grant stays.
fn wanted(kind: &str, part: Part, new: &Value, old: Option<&Value>) -> Option<String> {
    let asked = |requests: &Value| {
        // In `v1beta1` the request itself has the fields that are in `exactly` since.
        let admin =
            |request: &Value| request["exactly"]["adminAccess"] == true || request["adminAccess"] == true;
        let index = requests.as_array()?.iter().position(admin)?;
        Some(format!("spec.devices.requests[{index}].adminAccess"))
    };
    let given = |object: &Value| {
        let results = meta::list(object, "/status/allocation/devices/results");
        results.iter().position(|result| result["adminAccess"] == true)
    };
    match (kind, part, old) {
        ("ResourceClaim", _, None) => asked(&new["spec"]["devices"]["requests"]),
        // The path is that of a claim here, too.
        ("ResourceClaimTemplate", _, None) => asked(&new["spec"]["spec"]["devices"]["requests"]),
        ("ResourceClaim", Part::Status, Some(old)) if given(old).is_none() => {
            given(new).map(|index| format!("status.allocation.devices.results[{index}].adminAccess"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Part, wanted};

    fn claim(requests: Value) -> Value {
        json!({"spec": {"devices": {"requests": requests}}})
    }

    #[test]
    fn new_claims_and_templates_ask_for_admin_access_in_every_version() {
        let v1 = json!([{"name": "a"}, {"exactly": {"adminAccess": true}}]);
        let v1beta1 = json!([{"adminAccess": true}]);
        let wanted = |kind, new: &Value| wanted(kind, Part::Main, new, None);
        let first = Some("spec.devices.requests[0].adminAccess".to_owned());
        let second = Some("spec.devices.requests[1].adminAccess".to_owned());
        assert_eq!(wanted("ResourceClaim", &claim(v1.clone())), second);
        assert_eq!(wanted("ResourceClaim", &claim(v1beta1.clone())), first);
        assert_eq!(wanted("ResourceClaimTemplate", &json!({"spec": claim(v1beta1)})), first);
        let no =
            claim(json!([{"exactly": {"adminAccess": false}}, {"firstAvailable": [{"adminAccess": true}]}]));
        assert_eq!(wanted("ResourceClaim", &no), None);
        assert_eq!(wanted("DeviceClass", &claim(v1)), None);
    }

    #[test]
    fn a_status_gives_admin_access_once() {
        let status = |admin: bool| json!({"status": {"allocation": {"devices": {"results": [{"adminAccess": admin}]}}}});
        let wanted = |part, old: bool| wanted("ResourceClaim", part, &status(true), Some(&status(old)));
        let path = "status.allocation.devices.results[0].adminAccess";
        assert_eq!(wanted(Part::Status, false).as_deref(), Some(path));
        assert_eq!(wanted(Part::Status, true), None);
        assert_eq!(wanted(Part::Main, false), None);
    }
}
