//! Admin access to devices: the writes that ask for it, or grant it.

use apiserver_registry::Written;
use apiserver_schema::meta;
use serde_json::Value;

/// Returns the first field by which a write of a ResourceClaim asks for admin access, or grants it. A request
/// cannot change later, and a grant stays.
pub(crate) fn of_claim(new: &Value, old: Option<&Value>, written: Written) -> Option<String> {
    match (old, written) {
        (None, _) => requested(&new["spec"]["devices"]["requests"]),
        (Some(old), Written::Status) if granted(old).is_none() => {
            granted(new).map(|index| format!("status.allocation.devices.results[{index}].adminAccess"))
        }
        (Some(_), _) => None,
    }
}

/// Returns the first field by which a new ResourceClaimTemplate asks for admin access. The path is that of a claim
/// here, too.
pub(crate) fn of_template(new: &Value, old: Option<&Value>, _: Written) -> Option<String> {
    if old.is_some() { None } else { requested(&new["spec"]["spec"]["devices"]["requests"]) }
}

fn requested(requests: &Value) -> Option<String> {
    // In `v1beta1` the request itself has the fields that are in `exactly` since.
    let admin = |request: &Value| request["exactly"]["adminAccess"] == true || request["adminAccess"] == true;
    let index = requests.as_array()?.iter().position(admin)?;
    Some(format!("spec.devices.requests[{index}].adminAccess"))
}

/// Returns the index of the first result with admin access.
fn granted(claim: &Value) -> Option<usize> {
    let results = meta::list(claim, "/status/allocation/devices/results");
    results.iter().position(|result| result["adminAccess"] == true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(requests: Value) -> Value {
        json!({"spec": {"devices": {"requests": requests}}})
    }

    #[test]
    fn new_claims_and_templates_in_every_version_show_their_requests() {
        let v1 = json!([{"name": "a"}, {"exactly": {"adminAccess": true}}]);
        let v1beta1 = json!([{"adminAccess": true}]);
        let wanted = |new: &Value| of_claim(new, None, Written::Main);
        let first = Some("spec.devices.requests[0].adminAccess".to_owned());
        let second = Some("spec.devices.requests[1].adminAccess".to_owned());
        assert_eq!(wanted(&claim(v1)), second);
        assert_eq!(wanted(&claim(v1beta1.clone())), first);
        let template = json!({"spec": claim(v1beta1)});
        assert_eq!(of_template(&template, None, Written::Main), first);
        assert_eq!(of_template(&template, Some(&template), Written::Main), None);
        let no =
            claim(json!([{"exactly": {"adminAccess": false}}, {"firstAvailable": [{"adminAccess": true}]}]));
        assert_eq!(wanted(&no), None);
    }

    #[test]
    fn status_grants_admin_access_once() {
        let status = |admin: bool| json!({"status": {"allocation": {"devices": {"results": [{"adminAccess": admin}]}}}});
        let wanted = |part, old: bool| of_claim(&status(true), Some(&status(old)), part);
        let path = "status.allocation.devices.results[0].adminAccess";
        assert_eq!(wanted(Written::Status, false).as_deref(), Some(path));
        assert_eq!(wanted(Written::Status, true), None);
        assert_eq!(wanted(Written::Main, false), None);
    }
}
