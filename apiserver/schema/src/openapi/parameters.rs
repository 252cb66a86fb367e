//! The parameters of operations, for the documents of built-in kinds, which are made by the build script,
//! and for those of custom ones.

/// A line for each: its name, with `@` and the subresource or kind if several differ, its type, and its
/// description as published by Kubernetes.
const TEXTS: &str = include_str!("../../data/parameters.txt");

/// The media types of patches of built-in kinds; custom ones lack the strategic merge.
pub const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    STRATEGIC,
    "application/apply-patch+yaml",
];
/// Its lists need the merge keys of types.
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The query parameters of an operation, by its `x-kubernetes-action`, without `pretty`, which all have.
pub fn of_action(action: &str) -> &'static [&'static str] {
    match action {
        "list" | "watch" | "watchlist" => &[
            "allowWatchBookmarks",
            "continue",
            "fieldSelector",
            "labelSelector",
            "limit",
            "resourceVersion",
            "resourceVersionMatch",
            "sendInitialEvents",
            "shardSelector",
            "timeoutSeconds",
            "watch",
        ],
        "post" | "put" => &["dryRun", "fieldManager", "fieldValidation"],
        "patch" => &["dryRun", "fieldManager@patch", "fieldValidation", "force"],
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
            "shardSelector",
            "timeoutSeconds",
        ],
        _ => &[],
    }
}

/// Returns the type and the description of a parameter; both are empty for unknown ones.
pub fn described(key: &str) -> (&'static str, String) {
    let parts = |line: &'static str| {
        let (name, rest) = line.split_once('\t')?;
        let (ty, text) = rest.split_once('\t')?;
        (name == key).then_some((ty, text))
    };
    let (ty, text) = TEXTS.lines().find_map(parts).unwrap_or_default();
    // The texts have line breaks.
    (ty, text.replace("\\n", "\n"))
}

/// The name of a parameter from its key.
pub fn name(key: &str) -> &str {
    key.split_once('@').map_or(key, |(name, _)| name)
}
