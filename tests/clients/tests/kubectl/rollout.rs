//! `kubectl rollout`: what it writes itself, and how controllers react.

use tests_clients::{Api, Kubectl, each_kubectl};
use tests_e2e::eventually;

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn rollouts_are_paused_restarted_undone_and_told() -> anyhow::Result<()> {
    each_kubectl(Api::with_controllers, |kubectl| {
        kubectl.run("create deployment web --image=nginx:1");
        revisions(kubectl, 1);
        kubectl.says("rollout pause deployment web", "deployment.apps/web paused");
        let refused = kubectl.fails("rollout pause deployment web");
        assert!(refused.contains("is already paused"), "{refused}");
        kubectl.run("set image deployment web nginx=nginx:2");
        kubectl.says("rollout resume deployment web", "deployment.apps/web resumed");
        revisions(kubectl, 2);
        kubectl.says("rollout restart deployment web", "deployment.apps/web restarted");
        kubectl.shows(
            "get deployment web -o jsonpath='{.spec.template.metadata.annotations}'",
            &["kubectl.kubernetes.io/restartedAt"],
        );
        revisions(kubectl, 3);
        kubectl.shows("rollout history deployment web --revision=1", &["revision #1", "nginx:1"]);
        kubectl.says("rollout undo deployment web --to-revision=1", "deployment.apps/web rolled back");
        revisions(kubectl, 4);
        kubectl.says("get deployment web -o jsonpath='{.spec.template.spec.containers[0].image}'", "nginx:1");
        kubectl.shows(
            "rollout status deployment web --watch=false",
            &["Waiting for deployment \"web\" rollout to finish"],
        );
        // Nothing runs pods here; the rollout ends once the test reports them ready.
        all_ready(kubectl);
        kubectl.shows(
            "rollout status deployment web --timeout=60s",
            &["deployment \"web\" successfully rolled out"],
        );
        kubectl.shows("describe deployment web", &["deployment.kubernetes.io/revision: 4", "NewReplicaSet:"]);
        kubectl.shows("get events", &["ScalingReplicaSet", "Scaled up replica set web-"]);
    })
}

/// Waits until a revision is the last one.
fn revisions(kubectl: &Kubectl<'_>, last: u32) {
    eventually("a revision is there", || {
        let history = kubectl.run("rollout history deployment web");
        Ok(history
            .trim()
            .lines()
            .last()
            .is_some_and(|line| line.starts_with(&last.to_string()))
            .then_some(()))
    })
    .unwrap();
}

/// Sets the status of every pod to ready until no old one is left.
fn all_ready(kubectl: &Kubectl<'_>) {
    let status = r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#;
    eventually("the rollout is over", || {
        for pod in kubectl.run("get pods -o name").lines() {
            // It may be gone by now.
            kubectl.attempt(&format!("patch {pod} --subresource=status --type=merge -p '{status}'"), "");
        }
        let client_path = kubectl.run("rollout status deployment web --watch=false");
        Ok(client_path.contains("successfully rolled out").then_some(()))
    })
    .unwrap();
}
