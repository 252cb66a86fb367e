//! A role for each controller, bound to its ServiceAccount in kube-system and to the controller
//! manager's user, under which they all run by default. Who may update may also patch: that is
//! how these controllers write.

/// The permissions of every controller that reports events.
pub(super) const EVENTS: &[&str] = &["create,patch,update core,events.k8s.io events"];

/// Returns `true` if `controller` reports events.
pub(super) fn writes_events(controller: &str) -> bool {
    !matches!(
        controller,
        "clusterrole-aggregation-controller"
            | "legacy-service-account-token-cleaner"
            | "namespace-controller"
    )
}

/// (ServiceAccount, rules); the role is `system:controller:NAME`.
pub(super) const ROLES: &[(&str, &[&str])] = &[
    (
        "attachdetach-controller",
        &[
            "list,watch core persistentvolumes,persistentvolumeclaims,pods",
            "READ core nodes",
            "patch,update core nodes/status",
            "READ,create,delete storage.k8s.io volumeattachments",
            "READ storage.k8s.io csidrivers,csinodes",
        ],
    ),
    (
        "certificate-controller",
        &[
            "READ,delete certificates.k8s.io certificatesigningrequests",
            "update,patch certificates.k8s.io certificatesigningrequests/approval,certificatesigningrequests/status",
            "approve certificates.k8s.io signers kubernetes.io/kube-apiserver-client-kubelet",
            "sign certificates.k8s.io signers \
             kubernetes.io/kube-apiserver-client,kubernetes.io/kube-apiserver-client-kubelet,\
             kubernetes.io/kubelet-serving,kubernetes.io/legacy-unknown",
            "create authorization.k8s.io subjectaccessreviews",
        ],
    ),
    (
        "clusterrole-aggregation-controller",
        &["escalate,get,list,patch,update,watch rbac.authorization.k8s.io clusterroles"],
    ),
    (
        "cronjob-controller",
        &[
            "READ,update,patch batch cronjobs",
            "READ,create,update,delete,patch batch jobs",
            "update,patch batch cronjobs/status",
            "patch,update batch cronjobs/finalizers",
            "list,delete core pods",
        ],
    ),
    (
        "daemon-set-controller",
        &[
            "READ apps daemonsets",
            "update,patch apps daemonsets/status",
            "patch,update apps daemonsets/finalizers",
            "list,watch core nodes",
            "READ,create,delete,patch core pods",
            "create core pods/binding",
            "READ,create,delete,update,patch apps controllerrevisions",
        ],
    ),
    (
        "deployment-controller",
        &[
            "READ,patch,update apps deployments",
            "update,patch apps deployments/status",
            "patch,update apps deployments/finalizers",
            "READ,create,update,patch,delete apps replicasets",
            "READ,patch,update core pods",
        ],
    ),
    (
        "device-taint-eviction-controller",
        &[
            "READ,delete core pods",
            "patch,update core pods/status",
            "READ resource.k8s.io deviceclasses,devicetaintrules,resourceclaims,resourceslices",
            "patch,update resource.k8s.io devicetaintrules/status",
        ],
    ),
    (
        "disruption-controller",
        &[
            "READ apps deployments,replicasets,statefulsets",
            "READ core replicationcontrollers",
            "READ policy poddisruptionbudgets",
            "update,patch policy poddisruptionbudgets/status",
            "patch,update core pods/status",
            "get * */scale",
        ],
    ),
    (
        "endpoint-controller",
        &[
            "READ core pods,services",
            "READ,create,patch,update,delete core endpoints",
            "create core endpoints/restricted",
        ],
    ),
    (
        "endpointslice-controller",
        &[
            "READ core nodes,pods,services",
            "patch,update core services/finalizers",
            "READ,create,update,patch,delete,deletecollection discovery.k8s.io endpointslices",
            "create discovery.k8s.io endpointslices/restricted",
        ],
    ),
    (
        "endpointslicemirroring-controller",
        &[
            "READ core endpoints,services",
            "patch,update core services/finalizers,endpoints/finalizers",
            "READ,create,update,patch,delete discovery.k8s.io endpointslices",
            "create discovery.k8s.io endpointslices/restricted",
        ],
    ),
    (
        "ephemeral-volume-controller",
        &["READ core pods", "patch,update core pods/finalizers", "READ,create core persistentvolumeclaims"],
    ),
    (
        "expand-controller",
        &[
            "READ,update,patch core persistentvolumes",
            "READ core persistentvolumeclaims",
            "update,patch core persistentvolumeclaims/status",
        ],
    ),
    ("generic-garbage-collector", &["READ,patch,update,delete * *"]),
    (
        "horizontal-pod-autoscaler",
        &[
            "READ autoscaling horizontalpodautoscalers",
            "update,patch autoscaling horizontalpodautoscalers/status",
            "get,update * */scale",
            "list,watch core pods",
            "list,watch metrics.k8s.io pods",
            "READ custom.metrics.k8s.io *",
            "READ external.metrics.k8s.io *",
        ],
    ),
    (
        "job-controller",
        &[
            "READ,update,patch batch jobs",
            "update,patch batch jobs/status",
            "patch,update batch jobs/finalizers",
            "READ,create,delete,patch core pods",
        ],
    ),
    // Ours. The one request to kubelets is the removal of a directory; what runs in pods needs other verbs.
    (
        "local-path-provisioner",
        &[
            "READ,create,update,patch,delete core persistentvolumes",
            "READ,update,patch core persistentvolumeclaims",
            "READ core nodes",
            "READ storage.k8s.io storageclasses",
            "delete core nodes/proxy",
        ],
    ),
    (
        "legacy-service-account-token-cleaner",
        &[
            "get core configmaps kube-apiserver-legacy-service-account-token-tracking",
            "patch,delete core secrets",
        ],
    ),
    (
        "namespace-controller",
        &[
            "READ,delete core namespaces",
            "patch,update core namespaces/finalize,namespaces/status",
            "get,list,delete,deletecollection * *",
        ],
    ),
    (
        "node-controller",
        &[
            "READ,update,patch,delete core nodes",
            "update,patch core nodes/status",
            "patch,update core pods/status",
            "READ,delete core pods",
            "READ coordination.k8s.io leases",
        ],
    ),
    (
        "persistent-volume-binder",
        &[
            "READ,update,patch core persistentvolumes",
            "update,patch core persistentvolumes/status",
            "READ,update,patch core persistentvolumeclaims",
            "update,patch core persistentvolumeclaims/status",
            "READ core pods",
            "READ storage.k8s.io storageclasses",
        ],
    ),
    ("pod-garbage-collector", &["READ,delete core pods", "READ core nodes", "patch,update core pods/status"]),
    ("pv-protection-controller", &["READ,update,patch core persistentvolumes"]),
    (
        "pvc-protection-controller",
        &[
            "READ,update,patch core persistentvolumeclaims",
            "update,patch core persistentvolumeclaims/status",
            "READ core pods",
        ],
    ),
    (
        "replicaset-controller",
        &[
            "READ,patch,update apps replicasets",
            "update,patch apps replicasets/status",
            "patch,update apps replicasets/finalizers",
            "READ,create,delete,patch core pods",
        ],
    ),
    (
        "replication-controller",
        &[
            "READ,patch,update core replicationcontrollers",
            "update,patch core replicationcontrollers/status",
            "patch,update core replicationcontrollers/finalizers",
            "READ,create,delete,patch core pods",
        ],
    ),
    (
        "resource-claim-controller",
        &[
            "READ core pods",
            "patch,update core pods/finalizers,pods/status",
            "READ,create,delete,patch,update resource.k8s.io resourceclaims",
            "patch,update resource.k8s.io resourceclaims/binding,resourceclaims/status",
        ],
    ),
    (
        "resourcepoolstatusrequest-controller",
        &[
            "READ,delete resource.k8s.io resourcepoolstatusrequests",
            "patch,update resource.k8s.io resourcepoolstatusrequests/status",
            "READ resource.k8s.io resourceclaims,resourceslices",
        ],
    ),
    (
        "resourcequota-controller",
        // Any kind may be counted.
        &["list,watch * *", "update,patch core resourcequotas/status"],
    ),
    ("root-ca-cert-publisher", &["READ,create,patch,update core configmaps", "list,watch core namespaces"]),
    ("service-account-controller", &["READ,create core serviceaccounts", "list,watch core namespaces"]),
    (
        "service-controller",
        &["READ core services", "patch,update core services/status", "list,watch core nodes"],
    ),
    // Ours, in the place of a cloud's: it also writes the finalizer of Services.
    (
        "service-load-balancer-controller",
        &["READ,patch,update core services", "patch,update core services/status"],
    ),
    (
        "statefulset-controller",
        &[
            "READ apps statefulsets",
            "update,patch apps statefulsets/status",
            "patch,update apps statefulsets/finalizers",
            "READ,create,delete,update,patch core pods",
            "patch,update core pods/finalizers",
            "READ,create,delete,update,patch apps controllerrevisions",
            "READ,create,patch,update,delete core persistentvolumeclaims",
        ],
    ),
    ("ttl-controller", &["update,patch,list,watch core nodes"]),
    ("ttl-after-finished-controller", &["READ,delete batch jobs"]),
    (
        "validatingadmissionpolicy-status-controller",
        &[
            "READ admissionregistration.k8s.io validatingadmissionpolicies",
            "get,patch,update admissionregistration.k8s.io validatingadmissionpolicies/status",
        ],
    ),
    (
        "volumeattributesclass-protection-controller",
        &[
            "READ core persistentvolumeclaims",
            "READ core persistentvolumes",
            "READ,update,patch storage.k8s.io volumeattributesclasses",
        ],
    ),
];
