//! Limits on concurrent streams per pod and per namespace. All streams come from the API server, so tenants
//! are distinguished by the namespace of the pod.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{limits, machine::PodPlace};

/// The namespace of system pods, for which streams are reserved.
const SYSTEM: &str = "kube-system";

/// Maximum numbers of concurrent streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    all: usize,
    /// Streams reserved for `kube-system`.
    system: usize,
    namespace: usize,
    pod: usize,
}

/// Numbers of open streams that are relevant for another stream to some pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Open {
    all: usize,
    namespace: usize,
    pod: usize,
}

/// The limit that has been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Node,
    Namespace,
    Pod,
}

impl Refusal {
    /// Returns the message of the answer.
    pub(super) fn text(self, place: &PodPlace) -> String {
        let whose = match self {
            Self::Node => String::new(),
            Self::Namespace => format!(" to pods of namespace {}", place.namespace),
            Self::Pod => format!(" to pod {}/{}", place.namespace, place.name),
        };
        format!("too many streams{whose} are open on this node, try again later")
    }
}

impl Bounds {
    /// Decides whether another stream may be opened. A namespace other than `kube-system` may hold at most as
    /// many streams as are still free, so several namespaces together cannot take all of them and there is
    /// always room for those that have few.
    fn admit(self, open: Open, is_system: bool) -> Result<(), Refusal> {
        let free = if is_system { self.all } else { self.all - self.system }.saturating_sub(open.all);
        let namespace = if is_system { self.namespace } else { self.namespace.min(free) };
        if free == 0 {
            Err(Refusal::Node)
        } else if open.pod >= self.pod {
            Err(Refusal::Pod)
        } else if open.namespace >= namespace {
            Err(Refusal::Namespace)
        } else {
            Ok(())
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// Number of streams by namespace and pod; pods and namespaces without streams have no entry.
    namespaces: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Counts {
    fn open(&self, place: &PodPlace) -> Open {
        let pods = self.namespaces.get(&place.namespace);
        Open {
            all: self.all,
            namespace: pods.map_or(0, |pods| pods.values().sum()),
            pod: pods.and_then(|pods| pods.get(&place.name)).copied().unwrap_or_default(),
        }
    }

    fn add(&mut self, place: &PodPlace) {
        self.all += 1;
        let pods = self.namespaces.entry(place.namespace.clone()).or_default();
        *pods.entry(place.name.clone()).or_default() += 1;
    }

    fn remove(&mut self, place: &PodPlace) {
        self.all -= 1;
        let Some(pods) = self.namespaces.get_mut(&place.namespace) else { return };
        if let Some(count) = pods.get_mut(&place.name) {
            *count -= 1;
        }
        pods.retain(|_, count| *count > 0);
        if pods.is_empty() {
            self.namespaces.remove(&place.namespace);
        }
    }
}

/// A limited pool of streams. Cheap to clone; clones share all state.
#[derive(Clone, Debug)]
pub(super) struct StreamPool {
    bounds: Bounds,
    counts: Arc<Mutex<Counts>>,
}

impl StreamPool {
    fn new(bounds: Bounds) -> Self {
        Self { bounds, counts: Arc::default() }
    }

    /// Returns the pool for streams of any kind.
    pub(super) fn of_streams() -> Self {
        Self::new(Bounds {
            all: limits::STREAMS,
            system: limits::SYSTEM_STREAMS,
            namespace: limits::NAMESPACE_STREAMS,
            pod: limits::POD_STREAMS,
        })
    }

    /// Returns the pool for logs that are not followed.
    pub(super) fn of_bounded_logs() -> Self {
        Self::new(Bounds {
            all: limits::RESERVED_LOGS,
            system: limits::RESERVED_LOGS / 8,
            namespace: limits::RESERVED_LOGS / 4,
            pod: limits::RESERVED_LOGS / 8,
        })
    }

    /// Takes a stream to a pod; it is returned when the result is dropped.
    pub(super) fn take(&self, place: &PodPlace) -> Result<PooledStream, Refusal> {
        let mut counts = self.lock();
        self.bounds.admit(counts.open(place), place.namespace == SYSTEM)?;
        counts.add(place);
        Ok(PooledStream { pool: self.clone(), place: place.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream to a pod, taken from the pool.
#[derive(Debug)]
pub(super) struct PooledStream {
    pool: StreamPool,
    place: PodPlace,
}

impl Drop for PooledStream {
    fn drop(&mut self) {
        self.pool.lock().remove(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str) -> PodPlace {
        PodPlace { namespace: namespace.to_owned(), name: name.to_owned(), ..PodPlace::default() }
    }

    /// Opens streams to the pods in turn until none of them gets another one.
    fn fill(pool: &StreamPool, pods: &[PodPlace]) -> Vec<PooledStream> {
        let mut open = Vec::new();
        loop {
            let before = open.len();
            open.extend(pods.iter().filter_map(|pod| pool.take(pod).ok()));
            if open.len() == before {
                return open;
            }
        }
    }

    #[test]
    fn one_pod_cannot_take_the_streams_of_its_neighbours() {
        let pool = StreamPool::of_streams();
        let open = fill(&pool, &[pod("a", "greedy")]);
        assert_eq!(open.len(), limits::POD_STREAMS);
        let refusal = pool.take(&pod("a", "greedy")).unwrap_err();
        assert_eq!(
            (refusal, refusal.text(&pod("a", "greedy")).as_str()),
            (Refusal::Pod, "too many streams to pod a/greedy are open on this node, try again later")
        );
        assert!(pool.take(&pod("a", "other")).is_ok() && pool.take(&pod("b", "greedy")).is_ok());
    }

    #[test]
    fn one_namespace_cannot_take_the_streams_of_others() {
        let pool = StreamPool::of_streams();
        let pods: Vec<PodPlace> = (0..110).map(|index| pod("a", &format!("p{index}"))).collect();
        let open = fill(&pool, &pods);
        assert_eq!(open.len(), limits::NAMESPACE_STREAMS);
        let refusal = pool.take(&pod("a", "new")).unwrap_err();
        assert_eq!(
            (refusal, refusal.text(&pod("a", "new")).as_str()),
            (
                Refusal::Namespace,
                "too many streams to pods of namespace a are open on this node, try again later"
            )
        );
        for other in ["b", "kube-system"] {
            assert!(fill(&pool, &[pod(other, "p")]).len() == limits::POD_STREAMS, "{other}");
        }
    }

    #[test]
    fn colluding_namespaces_leave_streams_for_another_and_for_the_system() {
        for namespaces in [2, 4, 10, 50] {
            let pool = StreamPool::of_streams();
            let pods: Vec<PodPlace> = (0..namespaces)
                .flat_map(|namespace| {
                    (0..4).map(move |index| pod(&namespace.to_string(), &format!("p{index}")))
                })
                .collect();
            let open = fill(&pool, &pods);
            assert!(open.len() <= limits::STREAMS - limits::SYSTEM_STREAMS);
            let newcomer = pool.take(&pod("new", "p"));
            assert!(newcomer.is_ok(), "beside {} streams of {namespaces} namespaces", open.len());
            assert!(fill(&pool, &[pod("kube-system", "p")]).len() >= limits::SYSTEM_STREAMS);
        }
    }

    #[test]
    fn a_stream_that_ends_returns_its_permit() {
        let pool = StreamPool::of_bounded_logs();
        let pods = [pod("a", "p"), pod("b", "p"), pod("kube-system", "p")];
        drop(fill(&pool, &pods));
        let counts = pool.lock();
        assert!(counts.all == 0 && counts.namespaces.is_empty());
    }
}
