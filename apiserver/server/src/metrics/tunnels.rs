//! Metrics of the ways to nodes. Kubernetes has no such figures.

use userspace_daemon::metrics::Exposition;

/// The figures about the ways to nodes when the page is made.
#[derive(Default)]
pub struct Tunnels {
    /// Tunnels that nodes keep to this server.
    pub open: usize,
    /// Attempts to reach a kubelet, by way and outcome.
    pub dials: Vec<(&'static str, &'static str, u64)>,
}

impl Tunnels {
    pub(super) fn add(&self, page: &mut Exposition) {
        page.family(
            "hawser_apiserver_node_tunnels",
            "gauge",
            "[ALPHA] Tunnels that nodes keep to this server.",
            |s| s.value(&[], self.open as f64),
        );
        page.family(
            "hawser_apiserver_kubelet_dials_total",
            "counter",
            "[ALPHA] Attempts to reach a kubelet, by way (direct or tunnel) and outcome.",
            |s| {
                for (way, outcome, count) in &self.dials {
                    s.value(&[("outcome", outcome), ("way", way)], *count as f64);
                }
            },
        );
    }
}
