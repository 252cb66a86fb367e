//! The pods of a kubelet, for others in its process.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

/// Returns `true` if an address is that of a pod that runs on this node.
type Has = Box<dyn Fn(SocketAddr) -> bool + Send + Sync>;

/// The pods of a kubelet, as it knows them at the moment of the question: there is no copy that could be old. Empty until
/// the kubelet runs, and once it has ended.
#[derive(Clone, Default)]
pub struct OwnPods(Arc<OnceLock<Has>>);

impl fmt::Debug for OwnPods {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OwnPods").finish_non_exhaustive()
    }
}

impl OwnPods {
    /// Makes the pods those of a kubelet that starts.
    pub(crate) fn become_those_of(&self, has: impl Fn(SocketAddr) -> bool + Send + Sync + 'static) {
        // A configuration is for one kubelet.
        let _ = self.0.set(Box::new(has));
    }

    /// Returns `true` if `address` is that of a pod that runs on this node.
    pub fn have(&self, address: SocketAddr) -> bool {
        self.0.get().is_some_and(|has| has(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelet_that_does_not_run_has_no_pods() {
        let (pods, pod) = (OwnPods::default(), SocketAddr::from(([10, 244, 1, 5], 80)));
        assert!(!pods.have(pod));
        let others = pods.clone();
        pods.become_those_of(move |address| address == pod);
        assert!(others.have(pod) && !others.have(SocketAddr::from(([10, 244, 1, 6], 80))));
    }
}
