//! Conflicts: fields that a configuration sets and another manager owns.

use std::collections::BTreeMap;

use serde_json::json;

use super::managers::{ManagerId, Operation};
use super::path::{Path, display};
use apiserver_schema::error::ApiError;

/// One field and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub manager: ManagerId,
    pub field: Path,
}

/// 409 with a cause a field.
pub fn refusal(conflicts: &[Conflict]) -> ApiError {
    let mut error = ApiError::new(409, "Conflict", message(conflicts));
    let causes: Vec<_> = conflicts
        .iter()
        .map(|conflict| {
            json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {}", called(&conflict.manager)),
                "field": display(&conflict.field),
            })
        })
        .collect();
    error.details = Some(json!({ "causes": causes }));
    error
}

fn message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        let (manager, field) = (called(&only.manager), display(&only.field));
        return format!("Apply failed with 1 conflict: conflict with {manager}: {field}");
    }
    let mut by_manager: BTreeMap<&ManagerId, Vec<String>> = BTreeMap::new();
    for conflict in conflicts {
        by_manager.entry(&conflict.manager).or_default().push(display(&conflict.field));
    }
    let mut lines = Vec::new();
    for (manager, fields) in by_manager {
        lines.push(format!("conflicts with {}:", called(manager)));
        lines.extend(fields.into_iter().map(|field| format!("- {field}")));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

fn called(manager: &ManagerId) -> String {
    let mut text = format!("{:?}", manager.name);
    if !manager.subresource.is_empty() {
        text.push_str(&format!(" with subresource {:?}", manager.subresource));
    }
    if manager.operation == Operation::Update {
        text.push_str(&format!(" using {}", manager.api_version));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PathElement;

    fn conflict(manager: ManagerId, field: &[&str]) -> Conflict {
        Conflict { manager, field: field.iter().map(|name| PathElement::field(name)).collect() }
    }

    #[test]
    fn conflicts_are_spelled_as_in_kubernetes() {
        let kubectl = ManagerId::new("kubectl-client-side-apply", Operation::Update, "apps/v1", "");
        let one = refusal(&[conflict(kubectl.clone(), &["spec", "replicas"])]);
        assert_eq!((one.code, one.reason), (409, "Conflict"));
        assert_eq!(
            one.message,
            "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using apps/v1: .spec.replicas"
        );
        let causes = &one.details.unwrap()["causes"];
        assert_eq!(causes[0]["reason"], "FieldManagerConflict");
        assert_eq!(causes[0]["message"], "conflict with \"kubectl-client-side-apply\" using apps/v1");
        assert_eq!(causes[0]["field"], ".spec.replicas");
        let scaler = ManagerId::new("hpa", Operation::Update, "apps/v1", "scale");
        let applier = ManagerId::new("argo", Operation::Apply, "apps/v1", "");
        let several = refusal(&[
            conflict(kubectl.clone(), &["a"]),
            conflict(scaler, &["b"]),
            conflict(kubectl, &["c"]),
            conflict(applier, &["d"]),
        ]);
        assert_eq!(
            several.message,
            "Apply failed with 4 conflicts: conflicts with \"argo\":\n- .d\n\
             conflicts with \"hpa\" with subresource \"scale\" using apps/v1:\n- .b\n\
             conflicts with \"kubectl-client-side-apply\" using apps/v1:\n- .a\n- .c"
        );
    }
}
