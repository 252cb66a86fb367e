//! The table of the flags of kube-scheduler, in the order of its sections.
//!
//! `--config`, `--bind-address`, `--secure-port`, `--tls-cert-file` and `--tls-private-key-file` are not in it.

use crate::controllers_flags::Effect::{Acts, Nothing, Refused};
use crate::controllers_flags::Flag;
use crate::controllers_flags::Kind::{Bool, Duration, Float, Int, List, Text};

/// All flags.
#[rustfmt::skip]
pub const FLAGS: &[Flag] = &[
    Flag { name: "kubeconfig", kind: Text, path: "clientConnection.kubeconfig", effect: Acts, help: "Path of the kubeconfig of the API server, if the file of --config has none" },
    Flag { name: "master", kind: Text, path: "", effect: Refused(&[""], "put the address into the kubeconfig"), help: "" },
    Flag { name: "write-config-to", kind: Text, path: "", effect: Refused(&[""], "the configuration is served at /configz"), help: "" },
    Flag { name: "leader-elect", kind: Bool, path: "leaderElection.leaderElect", effect: Acts, help: "Work only while this process holds the Lease [true]" },
    Flag { name: "leader-elect-lease-duration", kind: Duration, path: "leaderElection.leaseDuration", effect: Acts, help: "Time without a renewal after which another process may take the Lease [15s]" },
    Flag { name: "leader-elect-renew-deadline", kind: Duration, path: "leaderElection.renewDeadline", effect: Acts, help: "Time for which the leader tries to renew the Lease before it stops working [10s]" },
    Flag { name: "leader-elect-retry-period", kind: Duration, path: "leaderElection.retryPeriod", effect: Acts, help: "Interval between attempts to get or to renew the Lease [2s]" },
    Flag { name: "leader-elect-resource-lock", kind: Text, path: "leaderElection.resourceLock", effect: Acts, help: "Kind of the lock: leases, which is the only one" },
    Flag { name: "leader-elect-resource-name", kind: Text, path: "leaderElection.resourceName", effect: Acts, help: "Name of the Lease [kube-scheduler]" },
    Flag { name: "leader-elect-resource-namespace", kind: Text, path: "leaderElection.resourceNamespace", effect: Acts, help: "Namespace of the Lease [kube-system]" },
    Flag { name: "pod-max-in-unschedulable-pods-duration", kind: Duration, path: "", effect: Acts, help: "Time after which a pod that fits nowhere is tried again though nothing has happened [5m0s]" },
    Flag { name: "feature-gates", kind: List, path: "", effect: Acts, help: "Feature gates, such as GenericWorkload=true,GangScheduling=true; all others but SchedulerAsyncAPICalls, AllAlpha and AllBeta switch nothing" },
    Flag { name: "profiling", kind: Bool, path: "", effect: Nothing, help: "" },
    Flag { name: "contention-profiling", kind: Bool, path: "", effect: Nothing, help: "" },
    Flag { name: "kube-api-content-type", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "kube-api-qps", kind: Float, path: "", effect: Nothing, help: "" },
    Flag { name: "kube-api-burst", kind: Int, path: "", effect: Nothing, help: "" },
];
