//! Metrics of the memory that clients hold, and of refusals. Kubernetes has no such figures.

use userspace_daemon::metrics::Exposition;

/// The figures about clients when the page is made.
#[derive(Default)]
pub struct Clients {
    /// Bytes held, by class.
    pub held: Vec<(&'static str, usize)>,
    /// Open connections, by state.
    pub connections: Vec<(&'static str, usize)>,
    /// Connections closed by the server, by reason.
    pub closed: Vec<(&'static str, u64)>,
    /// Answers cut off because their clients did not read them.
    pub cut: u64,
    /// Requests refused because of what their clients held.
    pub refused: u64,
}

impl Clients {
    pub(super) fn add(&self, page: &mut Exposition) {
        page.family(
            "hawser_apiserver_held_bytes",
            "gauge",
            "[ALPHA] Bytes of requests being received and of answers not yet sent, by class of client.",
            |s| self.held.iter().for_each(|(class, bytes)| s.value(&[("class", class)], *bytes as f64)),
        );
        page.family(
            "hawser_apiserver_connections",
            "gauge",
            "[ALPHA] Open connections: in the TLS handshake, without an authenticated request, and others.",
            |s| self.connections.iter().for_each(|(state, n)| s.value(&[("state", state)], *n as f64)),
        );
        page.family(
            "hawser_apiserver_connections_closed_total",
            "counter",
            "[ALPHA] Connections closed by the server to make room, when idle, or because of floods of frames.",
            |s| self.closed.iter().for_each(|(reason, n)| s.value(&[("reason", reason)], *n as f64)),
        );
        page.family(
            "hawser_apiserver_stalled_answers_total",
            "counter",
            "[ALPHA] Answers cut off because their clients did not read them.",
            |s| s.value(&[], self.cut as f64),
        );
        page.family(
            "hawser_apiserver_memory_rejected_requests_total",
            "counter",
            "[ALPHA] Requests refused with 429 because of the bytes that their clients held.",
            |s| s.value(&[], self.refused as f64),
        );
    }
}
