//! `kubectl explain`, for every kind that is served.

use std::sync::atomic::{AtomicUsize, Ordering};

use tests_clients::{Api, Kubectl, each_kubectl};

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn every_kind_is_explained_to_its_last_field() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        let kinds: Vec<Vec<String>> = kubectl.table("api-resources --no-headers");
        assert!(kinds.len() > 45, "{kinds:?}");
        let next = AtomicUsize::new(0);
        // Two at a time: each process mostly waits.
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Some(row) = kinds.get(next.fetch_add(1, Ordering::Relaxed)) {
                        // NAME, perhaps SHORTNAMES, APIVERSION NAMESPACED KIND
                        explains(kubectl, &row[0], &row[row.len() - 3]);
                    }
                });
            }
        });
        fields(kubectl);
    })
}

fn explains(kubectl: &Kubectl<'_>, name: &str, version: &str) {
    let text = kubectl.shows(
        &format!("explain {name} --api-version={version} --recursive"),
        &["KIND:", "VERSION:", "DESCRIPTION:", "FIELDS:"],
    );
    // kubectl's text for a schema without a description.
    assert!(!text.contains("<empty>"), "{name}: {text}");
    assert!(text.contains("metadata") && text.contains("apiVersion"), "{name}: {text}");
}

fn fields(kubectl: &Kubectl<'_>) {
    kubectl.shows(
        "explain pod.spec.containers.ports",
        &["FIELD: ports <[]ContainerPort>", "containerPort\t<integer> -required-"],
    );
    kubectl.shows("explain deployments.spec.strategy.type", &["FIELD: type <string>"]);
    kubectl.shows(
        "explain deployment --api-version=apps/v1 --output=plaintext-openapiv2",
        &["KIND:     Deployment", "FIELDS:"],
    );
    let refused = kubectl.fails("explain pod.spec.nope");
    assert!(refused.contains("field \"nope\" does not exist"), "{refused}");
    let refused = kubectl.fails("explain nope");
    assert!(refused.contains("the server doesn't have a resource type \"nope\""), "{refused}");
}
