//! Metrics of the ways to nodes. Kubernetes has no such figures.

use userspace_daemon::metrics::Exposition;

/// The figures about the ways to nodes when the page is made.
#[derive(Default)]
pub struct Tunnels {
    /// Tunnels that nodes keep to this server.
    pub open: usize,
    /// Attempts to reach a kubelet, by way and outcome.
    pub kubelets: Vec<(&'static str, &'static str, u64)>,
    /// Attempts to reach a pod, by way and outcome.
    pub pods: Vec<(&'static str, &'static str, u64)>,
}

impl Tunnels {
    pub(super) fn add(&self, page: &mut Exposition) {
        page.family(
            "hawser_apiserver_node_tunnels",
            "gauge",
            "[ALPHA] Tunnels that nodes keep to this server.",
            |s| s.value(&[], self.open as f64),
        );
        for (name, help, dials) in [
            (
                "hawser_apiserver_kubelet_dials_total",
                "[ALPHA] Attempts to reach a kubelet, by way (direct or tunnel) and outcome.",
                &self.kubelets,
            ),
            (
                "hawser_apiserver_pod_dials_total",
                "[ALPHA] Attempts to reach a pod for webhooks and proxies, by way (direct or tunnel) and outcome.",
                &self.pods,
            ),
        ] {
            page.family(name, "counter", help, |s| {
                for (way, outcome, count) in dials {
                    s.value(&[("outcome", outcome), ("way", way)], *count as f64);
                }
            });
        }
    }
}
