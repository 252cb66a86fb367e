//! Pods that ask, by the annotation `hawser.dev/socket-hooks: "off"`, that their sockets are left alone:
//! their packets are translated where they leave the pod. It is meant for pods with a proxy of their own that
//! looks at the addresses to which a program connects.
//!
//! The kernel knows a pod by the cookie of its network namespace, which is found through a process of the
//! pod: one whose cgroup has the pod's UID in its path. Pods in the host's network namespace are never
//! exempt, since that would exempt the whole node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use userspace_dataplane::{netns_cookie, own_netns_cookie};

use crate::limits;

const ANNOTATION: &str = "hawser.dev/socket-hooks";
const OFF: &str = "off";

/// Cookies of network namespaces whose sockets are left alone. Clones share them.
#[derive(Clone, Debug)]
pub struct Exemptions(watch::Receiver<BTreeSet<u64>>);

impl Default for Exemptions {
    /// Returns a set that is always empty.
    fn default() -> Self {
        Self(watch::channel(BTreeSet::new()).1)
    }
}

impl Exemptions {
    /// Returns a set that never changes.
    pub fn fixed(cookies: BTreeSet<u64>) -> Self {
        Self(watch::channel(cookies).1)
    }

    /// Watches the node's pods until shutdown. Without permission to do so, none is exempt.
    pub fn watch(client: Client, node_name: &str, shutdown: CancellationToken) -> Self {
        let (sender, receiver) = watch::channel(BTreeSet::new());
        let selection = watcher::Config::default().fields(&format!("spec.nodeName={node_name}"));
        tokio::spawn(async move {
            let pods = watcher(Api::<PartialObjectMeta<Pod>>::all(client), selection);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                () = follow(pods, &sender) => {}
            }
        });
        Self(receiver)
    }

    pub fn get(&self) -> BTreeSet<u64> {
        self.0.borrow().clone()
    }

    /// Waits until the set has changed since the last call; for ever if it is fixed.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Names of pods, for messages, by UID.
type Wanted = BTreeMap<String, String>;

async fn follow(
    pods: impl futures::Stream<Item = watcher::Result<Event<PartialObjectMeta<Pod>>>> + Send,
    cookies: &watch::Sender<BTreeSet<u64>>,
) {
    let mut pods = std::pin::pin!(pods);
    let (mut wanted, mut listed) = (Wanted::new(), Wanted::new());
    let mut said = BTreeSet::new();
    let mut refused = false;
    let mut due = None;
    loop {
        let next = due.unwrap_or_else(tokio::time::Instant::now);
        tokio::select! {
            biased;
            event = pods.next() => match event {
                Some(Ok(event)) => {
                    if note(event, &mut wanted, &mut listed) {
                        due = Some(tokio::time::Instant::now());
                    }
                }
                Some(Err(error)) => pause(&error, &mut refused).await,
                None => return,
            },
            () = tokio::time::sleep_until(next), if due.is_some() => {
                let uids: BTreeSet<String> = wanted.keys().cloned().collect();
                let found = if uids.is_empty() {
                    Found::default()
                } else {
                    spawn_blocking(move || find(&Proc, &uids)).await.unwrap_or_default()
                };
                said.retain(|uid| wanted.contains_key(uid));
                log_found(&found, &wanted, &mut said);
                due = found.next(&wanted).map(|pause| tokio::time::Instant::now() + pause);
                let all: BTreeSet<u64> = found.cookies.values().flatten().copied().collect();
                cookies.send_if_modified(|old| {
                    let changed = *old != all;
                    *old = all;
                    changed
                });
            }
        }
    }
}

/// Applies a watch event. Returns `true` if the pods that ask to be exempt have changed.
fn note(event: Event<PartialObjectMeta<Pod>>, wanted: &mut Wanted, listed: &mut Wanted) -> bool {
    let entry = |pod: &PartialObjectMeta<Pod>| {
        let metadata = &pod.metadata;
        let name = [metadata.namespace.as_deref(), metadata.name.as_deref()].map(Option::unwrap_or_default);
        Some((metadata.uid.clone()?, name.join("/")))
    };
    let wants = |pod: &PartialObjectMeta<Pod>| {
        let annotations = pod.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(ANNOTATION)).is_some_and(|value| value == OFF)
    };
    match event {
        Event::Init => {
            listed.clear();
            false
        }
        Event::InitApply(pod) => {
            listed.extend(entry(&pod).filter(|_| wants(&pod)));
            false
        }
        Event::InitDone => {
            let new = std::mem::take(listed);
            let changed = *wanted != new;
            *wanted = new;
            changed
        }
        Event::Apply(pod) => match entry(&pod) {
            Some((uid, name)) if wants(&pod) => wanted.insert(uid, name).is_none(),
            Some((uid, _)) => wanted.remove(&uid).is_some(),
            None => false,
        },
        Event::Delete(pod) => entry(&pod).is_some_and(|(uid, _)| wanted.remove(&uid).is_some()),
    }
}

async fn pause(error: &watcher::Error, refused: &mut bool) {
    let cause = match error {
        watcher::Error::InitialListFailed(cause)
        | watcher::Error::WatchStartFailed(cause)
        | watcher::Error::WatchFailed(cause) => Some(cause),
        _ => None,
    };
    let forbidden = matches!(cause, Some(kube::Error::Api(status)) if matches!(status.code, 401 | 403));
    if forbidden {
        if !std::mem::replace(refused, true) {
            info!("cannot watch pods: the annotation {ANNOTATION} has no effect on this node");
        }
        tokio::time::sleep(limits::ABSENT_PAUSE).await;
    } else {
        debug!(error = error as &dyn std::error::Error, "cannot watch pods");
        tokio::time::sleep(limits::ERROR_PAUSE).await;
    }
}

/// The result of the search for the pods that ask to be exempt.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    cookies: BTreeMap<String, BTreeSet<u64>>,
    /// Pods in the host's network namespace.
    host: BTreeSet<String>,
}

impl Found {
    /// Returns the pause until the next search; `None` if no pod asks to be exempt.
    fn next(&self, wanted: &Wanted) -> Option<Duration> {
        let known = |uid: &String| self.cookies.contains_key(uid) || self.host.contains(uid);
        if wanted.is_empty() {
            None
        } else if wanted.keys().all(known) {
            Some(limits::EXEMPT_LATER)
        } else {
            Some(limits::EXEMPT_SOON)
        }
    }
}

/// Logs the result for a pod, once.
fn log_found(found: &Found, wanted: &Wanted, said: &mut BTreeSet<String>) {
    for (uid, name) in wanted {
        if found.host.contains(uid) && said.insert(uid.clone()) {
            warn!(pod = %name, "the pod is in the host's network namespace: its sockets cannot be exempt");
        } else if found.cookies.contains_key(uid) && said.insert(uid.clone()) {
            info!(pod = %name, "the pod's sockets are exempt; its packets are translated on its interface");
        }
    }
}

/// The queries to the machine.
trait Machine {
    /// Returns the processes, each with the text of `/proc/PID/cgroup`.
    fn processes(&self) -> Vec<(u32, String)>;
    /// Returns the cookie of a process's network namespace.
    fn cookie(&self, process: u32) -> io::Result<u64>;
    /// Returns the cookie of the host's.
    fn own_cookie(&self) -> io::Result<u64>;
}

/// This machine.
struct Proc;

impl Machine for Proc {
    fn processes(&self) -> Vec<(u32, String)> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        // A process may end at any time.
        numbers
            .filter_map(|pid| Some((pid, fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)))
            .collect()
    }

    fn cookie(&self, process: u32) -> io::Result<u64> {
        netns_cookie(&PathBuf::from(format!("/proc/{process}/ns/net")))
    }

    fn own_cookie(&self) -> io::Result<u64> {
        own_netns_cookie()
    }
}

/// Finds the namespaces of these pods, as far as they have processes.
fn find(machine: &dyn Machine, uids: &BTreeSet<String>) -> Found {
    let mut found = Found::default();
    let own = match machine.own_cookie() {
        Ok(own) => own,
        Err(error) => {
            debug!(%error, "the own network namespace has no cookie: no pod can be told from the node");
            return found;
        }
    };
    // The cgroupfs driver writes the UID unchanged, the systemd driver with underscores.
    let spellings: Vec<(String, &String)> =
        uids.iter().flat_map(|uid| [(uid.clone(), uid), (uid.replace('-', "_"), uid)]).collect();
    for (process, cgroup) in machine.processes() {
        let Some((_, uid)) = spellings.iter().find(|(spelling, _)| cgroup.contains(spelling.as_str())) else {
            continue;
        };
        match machine.cookie(process) {
            Ok(cookie) if cookie == own => drop(found.host.insert((*uid).clone())),
            Ok(cookie) => drop(found.cookies.entry((*uid).clone()).or_default().insert(cookie)),
            Err(error) => debug!(process, %error, "a pod's process has no network namespace to enter"),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const WEB: &str = "0f7e3f4a-1111-2222-3333-444455556666";
    const AGENT: &str = "aaaaaaaa-1111-2222-3333-444455556666";

    struct Made {
        processes: Vec<(u32, String)>,
        cookies: BTreeMap<u32, u64>,
    }

    impl Machine for Made {
        fn processes(&self) -> Vec<(u32, String)> {
            self.processes.clone()
        }

        fn cookie(&self, process: u32) -> io::Result<u64> {
            self.cookies.get(&process).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn own_cookie(&self) -> io::Result<u64> {
            Ok(1)
        }
    }

    fn pod(uid: &str, value: Option<&str>) -> PartialObjectMeta<Pod> {
        let annotations = value.map(|value| serde_json::json!({ANNOTATION: value}));
        serde_json::from_value(serde_json::json!({
            "apiVersion": "meta.k8s.io/v1",
            "kind": "PartialObjectMetadata",
            "metadata": {"namespace": "default", "name": "web", "uid": uid, "annotations": annotations},
        }))
        .unwrap()
    }

    #[test]
    fn pods_are_found_by_either_spelling_and_never_in_the_hosts_namespace() {
        let systemd = format!("0::/kubepods.slice/kubepods-pod{}.slice/cri-1.scope\n", WEB.replace('-', "_"));
        let machine = Made {
            processes: vec![
                (10, systemd),
                (11, format!("0::/kubepods/burstable/pod{AGENT}/c2\n")),
                (12, "0::/system.slice/ssh.service\n".to_owned()),
                (13, format!("0::/kubepods/pod{WEB}/c3\n")),
            ],
            cookies: BTreeMap::from([(10, 7), (11, 1), (12, 1)]),
        };
        let uids = BTreeSet::from([WEB.to_owned(), AGENT.to_owned()]);
        let found = find(&machine, &uids);
        assert_eq!(found.cookies, BTreeMap::from([(WEB.to_owned(), BTreeSet::from([7]))]));
        assert_eq!(found.host, BTreeSet::from([AGENT.to_owned()]));
    }

    #[test]
    fn the_machine_is_looked_at_only_while_somebody_wants_it() {
        let wanted = Wanted::from([(WEB.to_owned(), "default/web".to_owned())]);
        let mut found = Found::default();
        assert_eq!(found.next(&Wanted::new()), None);
        assert_eq!(found.next(&wanted), Some(limits::EXEMPT_SOON));
        found.cookies.insert(WEB.to_owned(), BTreeSet::from([7]));
        assert_eq!(found.next(&wanted), Some(limits::EXEMPT_LATER));
    }

    #[test]
    fn annotations_come_and_go() {
        let (mut wanted, mut listed) = (Wanted::new(), Wanted::new());
        let mut take = |event| note(event, &mut wanted, &mut listed);
        assert!(!take(Event::Init));
        assert!(!take(Event::InitApply(pod(WEB, Some("off")))));
        assert!(!take(Event::InitApply(pod(AGENT, None))));
        assert!(take(Event::InitDone));
        assert!(!take(Event::Apply(pod(AGENT, Some("on")))));
        assert!(take(Event::Apply(pod(AGENT, Some("off")))));
        assert!(!take(Event::Apply(pod(AGENT, Some("off")))));
        assert!(take(Event::Apply(pod(AGENT, None))));
        assert!(take(Event::Delete(pod(WEB, Some("off")))));
        assert!(wanted.is_empty());
    }

    #[tokio::test]
    async fn this_process_is_found_by_its_cgroup() {
        // Reads the real machine: our own process is there, with some cgroup.
        assert!(Proc.processes().iter().any(|(pid, _)| *pid == std::process::id()));
    }
}
