//! The parameters of operations, for the documents of built-in kinds, which are made by the build script,
//! and for those of custom ones.

/// The media types of patches of built-in kinds; custom ones lack the strategic merge.
pub const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    STRATEGIC,
];
/// Its lists need the merge keys of types.
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The query parameters of an operation, by its `x-kubernetes-action`.
pub fn of_action(action: &str) -> &'static [&'static str] {
    match action {
        "list" => &[
            "allowWatchBookmarks",
            "continue",
            "fieldSelector",
            "labelSelector",
            "limit",
            "resourceVersion",
            "resourceVersionMatch",
            "sendInitialEvents",
            "timeoutSeconds",
            "watch",
        ],
        "post" | "put" => &["dryRun", "fieldManager", "fieldValidation"],
        "patch" => &["dryRun", "fieldManager", "fieldValidation", "force"],
        "delete" => &[
            "dryRun",
            "gracePeriodSeconds",
            "ignoreStoreReadErrorWithClusterBreakingPotential",
            "orphanDependents",
            "propagationPolicy",
        ],
        "deletecollection" => &[
            "continue",
            "dryRun",
            "fieldSelector",
            "gracePeriodSeconds",
            "ignoreStoreReadErrorWithClusterBreakingPotential",
            "labelSelector",
            "limit",
            "orphanDependents",
            "propagationPolicy",
            "resourceVersion",
            "resourceVersionMatch",
            "sendInitialEvents",
            "timeoutSeconds",
        ],
        _ => &[],
    }
}

/// The type of a parameter and what it does.
pub fn described(name: &str) -> (&'static str, &'static str) {
    match name {
        "allowWatchBookmarks" => ("boolean", "Ask for events of type BOOKMARK in a watch."),
        "continue" => ("string", "The token of the previous page of a list."),
        "dryRun" => ("string", "`All` runs every stage and keeps nothing."),
        "fieldManager" => {
            ("string", "Name of the actor that makes the change, at most 128 printable characters.")
        }
        "fieldSelector" => ("string", "Restricts the result to objects whose fields match."),
        "fieldValidation" => {
            ("string", "What to do with unknown and duplicate fields: `Ignore`, `Warn` or `Strict`.")
        }
        "force" => ("boolean", "Takes over fields that another manager owns; only for apply patches."),
        "gracePeriodSeconds" => ("integer", "Seconds before the object is deleted; 0 deletes at once."),
        "ignoreStoreReadErrorWithClusterBreakingPotential" => {
            ("boolean", "Delete an object that cannot be read from the store; not acted upon.")
        }
        "labelSelector" => ("string", "Restricts the result to objects whose labels match."),
        "limit" => ("integer", "The largest number of objects in one page of a list."),
        "name" => ("string", "name of the object"),
        "namespace" => ("string", "object name and auth scope, such as for teams and projects"),
        "orphanDependents" => ("boolean", "Deprecated, use propagationPolicy."),
        "pretty" => ("string", "Indent the answer."),
        "propagationPolicy" => {
            ("string", "How dependents are deleted: `Orphan`, `Background` or `Foreground`.")
        }
        "resourceVersion" => ("string", "The version that the result may not be older than, or starts from."),
        "resourceVersionMatch" => {
            ("string", "How resourceVersion applies to a list: `NotOlderThan` or `Exact`.")
        }
        "sendInitialEvents" => {
            ("boolean", "Begin a watch with the present objects and a bookmark after them.")
        }
        "timeoutSeconds" => ("integer", "Ends the call after so many seconds, whatever happens."),
        _ => ("boolean", "Answer with a stream of changes."),
    }
}
