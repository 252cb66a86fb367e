//! Bounds of the program itself: of the times for which commands and the start of components wait, and of the sizes
//! that they read. Those of the components are in the `limits` modules of their crates.

use std::time::Duration;

// Joining and certificates.
/// Time for one connection to an API server, with TLS, before `join` trusts it.
pub const JOIN_CONNECT: Duration = Duration::from_secs(10);
/// Time for one request of `join` or `leave` to an API server, with its answer.
pub const JOIN_REQUEST: Duration = Duration::from_secs(10);
/// Bytes of an answer that `join` reads before it knows whose it is; a kubeconfig with its authorities takes a few KiB.
pub const JOIN_ANSWER: usize = 1 << 20;
/// Time for which the signature of a token may be missing: a controller makes it after the token.
pub const JOIN_SIGNATURE: Duration = Duration::from_secs(5);
/// Pause before `join` looks for the signature again.
pub const JOIN_SIGNATURE_PAUSE: Duration = Duration::from_millis(200);
/// Time for the request for the keys of the cluster, which a control node makes that joins.
pub const KEYS_REQUEST: Duration = Duration::from_secs(10);
/// First pause before a node tries again to use a certificate that was replaced; it doubles up to the next value.
pub const SWAP_RETRY: Duration = Duration::from_secs(1);
/// Longest pause before a node tries again to use a certificate that was replaced.
pub const SWAP_RETRY_MAX: Duration = Duration::from_secs(60);
/// Bytes that are read of a file with a token, which has 23 characters.
pub const TOKEN_FILE: u64 = 1024;
/// Time for one handshake with an API server, to learn the names of its certificate.
pub const NAMES_HANDSHAKE: Duration = Duration::from_secs(10);
/// Pause between attempts to learn the names of an API server.
pub const NAMES_PAUSE: Duration = Duration::from_secs(2);
/// Pause between attempts to read the authorities of clients from the API server.
pub const AUTHORITIES_PAUSE: Duration = Duration::from_secs(2);
/// Time to ask for the API servers before the components of a node start; without an answer, the node begins with the
/// one that it was given.
pub const SERVERS_REQUEST: Duration = Duration::from_secs(5);
/// Pause between attempts to write the ConfigMap `cluster-info`.
pub const CLUSTER_INFO_RETRY: Duration = Duration::from_secs(1);
/// Interval between checks whether the API server in `cluster-info` still lives.
pub const CLUSTER_INFO_CHECK: Duration = Duration::from_secs(30);
/// Pause between attempts to write the Service of the cluster's DNS server.
pub const DNS_SERVICE_RETRY: Duration = Duration::from_secs(2);
/// Pause between attempts to write the default StorageClass.
pub const STORAGE_CLASS_RETRY: Duration = Duration::from_secs(2);

// Start and end.
/// Time after which a daemon has finished the work that it does only once, and releases the pages of the binary that
/// only this needed.
pub const STARTED: Duration = Duration::from_secs(5);
/// Worker threads of `hawser proxy`. Threads that block on the kernel are additional.
pub const PROXY_THREADS: usize = 2;
/// Time to wait for the lock of the data plane: a pod that is replaced may still be ending when the next one starts.
pub const LOCK_WAIT: Duration = Duration::from_secs(30);
/// Pause between attempts to take that lock.
pub const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// Time to wait for the lock of a data directory, which a process holds that was killed until the kernel has ended it.
pub const DATA_DIR_WAIT: Duration = Duration::from_secs(30);
/// Time for which a lock may be held by a child of this process that does not run its program yet.
pub const FORK_WAIT: Duration = Duration::from_secs(1);
/// Time that a lease of controllers or scheduler counts without being renewed, where several control nodes elect one.
pub const LEASE: Duration = Duration::from_secs(10);
/// Time after which a holder that cannot renew its lease stops: less than the lease, for clocks that differ.
pub const LEASE_RENEW_DEADLINE: Duration = Duration::from_secs(7);
/// Interval at which a lease is renewed, and at which others try to get it.
pub const LEASE_RENEW: Duration = Duration::from_millis(1500);
/// Time for a component to end after SIGTERM; beyond it `leave` ends with an error.
pub const COMPONENT_END: Duration = Duration::from_secs(60);
/// Pause between looks whether a component has ended.
pub const COMPONENT_END_PAUSE: Duration = Duration::from_millis(200);
/// Pause between looks whether the pods of a node that is drained are gone.
pub const DRAIN_PAUSE: Duration = Duration::from_secs(1);
/// Attempts to delete the Node of a control node that leaves: with the pauses more than an election of etcd takes.
pub const NODE_DELETIONS: u32 = 6;
/// Pause between attempts to delete the Node.
pub const NODE_DELETION_PAUSE: Duration = Duration::from_secs(2);

// etcd.
/// Interval between checks whether etcd runs.
pub const ETCD_CHECK: Duration = Duration::from_secs(1);
/// First pause before etcd is started again; it doubles with every restart up to the next value.
pub const ETCD_RESTART: Duration = Duration::from_secs(1);
/// Longest pause before etcd is started again.
pub const ETCD_RESTART_MAX: Duration = Duration::from_secs(30);
/// Time after which a process of etcd has worked, so that the pause is the first one again.
pub const ETCD_STEADY: Duration = Duration::from_secs(60);
/// Time for etcd to end after SIGTERM, and again after SIGKILL.
pub const ETCD_END: Duration = Duration::from_secs(10);
/// Pause between looks whether etcd has ended.
pub const ETCD_END_PAUSE: Duration = Duration::from_millis(50);
/// Interval between looks at the certificates of etcd, which live for a year.
pub const ETCD_CERTIFICATES: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes of the log of etcd above which it begins anew with the next start.
pub const ETCD_LOG: u64 = 16 << 20;
/// Pause between attempts to change the members of etcd.
pub const MEMBERSHIP_PAUSE: Duration = Duration::from_millis(300);
/// Time for which the cluster may refuse another member: it takes one learner at a time, and only while all members
/// answer.
pub const MEMBERSHIP_ADMISSION: Duration = Duration::from_secs(120);
/// Time after which a learner that has never started is given up: its machine died while it joined, and the cluster
/// takes no other one meanwhile.
pub const LEARNER_ABANDONED: Duration = Duration::from_secs(60);
/// Time for which the cluster may refuse to let a member go.
pub const MEMBERSHIP_LEAVING: Duration = Duration::from_secs(60);
/// Interval between looks at the members, which are remembered for the next start.
pub const MEMBERS_CHECK: Duration = Duration::from_secs(30);
/// Time after which a start that waits for other members says so.
pub const MEMBERS_SILENCE: Duration = Duration::from_secs(10);
/// Objects that `store` reads from etcd at a time.
pub const STORE_PAGE: usize = 500;

// Commands that look at the data plane.
/// Interval between checks of the configuration file of `hawser proxy`.
pub const CONFIG_FILE_CHECK: Duration = Duration::from_secs(10);
/// Shortest interval of `top`, in seconds: reading the tables takes time, too.
pub const TOP_INTERVAL_MIN: f64 = 0.1;
/// The pause after a reading, as a multiple of its duration: on a node with very many connections and network
/// namespaces, `top` takes a tenth of a processor for readings and shows older numbers.
pub const TOP_PAUSE: u32 = 9;
/// Interval between checks of what `trace` is attached to: interfaces come and go, and the proxy may restart.
pub const TRACE_ATTACH: Duration = Duration::from_secs(1);
/// Interval between reads of the trace log.
pub const TRACE_READ: Duration = Duration::from_millis(50);
/// Pause between requests of `hawser proxy events` while it follows.
pub const EVENTS_PAUSE: Duration = Duration::from_millis(500);
/// Time for the proxy's answer to `hawser proxy events`.
pub const EVENTS_TIMEOUT: Duration = Duration::from_secs(5);
/// Names that are shown in place of one that does not exist.
pub const SIMILAR_NAMES: usize = 5;
/// Connections that are sorted before they are printed. More are printed as they are read.
pub const ROWS_SORTED: usize = 10_000;
/// Answers about readers of a component's pages that are remembered, and for how long, as in the components of
/// Kubernetes.
pub const REVIEWS: usize = 64;
pub const REVIEW_LIFE: Duration = Duration::from_secs(10);
/// Time for the API server to answer about a reader.
pub const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
/// Refusals that are remembered, 40 bytes each, and for how long: a token or a role may be made a moment later.
pub const REFUSALS: usize = 1024;
pub const REFUSAL_LIFE: Duration = Duration::from_secs(5);
/// Time after the end of a lease from which the process that should have renewed it is not healthy.
pub const LEASE_OVERDUE: Duration = Duration::from_secs(20);
/// Readers about whom the API server is asked at the same time.
pub const OPEN_REVIEWS: usize = 8;
