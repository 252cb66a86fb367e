//! The default roles and bindings. One line a rule, see `parse_rule`.

/// (name, the role that it is aggregated into, rules)
pub(super) type ClusterRole = (&'static str, Option<&'static str>, &'static [&'static str]);

/// Roles that consist of others: (name, the role that they are themselves aggregated into).
pub(super) const AGGREGATED: &[(&str, Option<&str>)] =
    &[("admin", None), ("edit", Some("admin")), ("view", Some("edit"))];

pub(super) const CLUSTER_ROLES: &[ClusterRole] = &[
    ("cluster-admin", None, &["* * *", "* url *"]),
    // The DNS server of this project listens on the address of its Node, and answers the clients of all.
    ("hawser:dns", None, &["list,watch core nodes"]),
    // The service proxy of this project also looks for pods that ask to be left alone.
    (
        "hawser:proxy",
        None,
        &["list,watch core namespaces,pods", "list,watch networking.k8s.io networkpolicies"],
    ),
    (
        "system:aggregate-to-admin",
        Some("admin"),
        &[
            "create authorization.k8s.io localsubjectaccessreviews",
            "READ,WRITE rbac.authorization.k8s.io rolebindings,roles",
        ],
    ),
    (
        "system:aggregate-to-edit",
        Some("edit"),
        &[
            "READ core pods/attach,pods/exec,pods/portforward,pods/proxy,secrets,services/proxy",
            "impersonate core serviceaccounts",
            "WRITE core pods,pods/attach,pods/exec,pods/portforward,pods/proxy",
            "create core pods/eviction,serviceaccounts/token",
            "WRITE core configmaps,events,persistentvolumeclaims,replicationcontrollers,replicationcontrollers/scale,secrets,serviceaccounts,services,services/proxy",
            "WRITE apps daemonsets,deployments,deployments/rollback,deployments/scale,replicasets,replicasets/scale,statefulsets,statefulsets/scale",
            "WRITE autoscaling horizontalpodautoscalers",
            "WRITE batch cronjobs,jobs",
            "WRITE policy poddisruptionbudgets",
            "WRITE networking.k8s.io ingresses,networkpolicies",
            "READ,WRITE coordination.k8s.io leases",
            "WRITE resource.k8s.io resourceclaims,resourceclaimtemplates",
        ],
    ),
    (
        "system:aggregate-to-view",
        Some("view"),
        &[
            "READ core configmaps,endpoints,persistentvolumeclaims,persistentvolumeclaims/status,pods,replicationcontrollers,replicationcontrollers/scale,serviceaccounts,services,services/status",
            "READ core bindings,events,limitranges,namespaces/status,pods/log,pods/status,replicationcontrollers/status,resourcequotas,resourcequotas/status",
            "READ core namespaces",
            "READ discovery.k8s.io endpointslices",
            "READ apps controllerrevisions,daemonsets,daemonsets/status,deployments,deployments/scale,deployments/status,replicasets,replicasets/scale,replicasets/status,statefulsets,statefulsets/scale,statefulsets/status",
            "READ autoscaling horizontalpodautoscalers,horizontalpodautoscalers/status",
            "READ batch cronjobs,cronjobs/status,jobs,jobs/status",
            "READ policy poddisruptionbudgets,poddisruptionbudgets/status",
            "READ networking.k8s.io ingresses,ingresses/status,networkpolicies",
            "READ resource.k8s.io resourceclaims,resourceclaims/status,resourceclaimtemplates",
        ],
    ),
    (
        "system:auth-delegator",
        None,
        &["create authentication.k8s.io tokenreviews", "create authorization.k8s.io subjectaccessreviews"],
    ),
    (
        "system:basic-user",
        None,
        &[
            "create authorization.k8s.io selfsubjectaccessreviews,selfsubjectrulesreviews",
            "create authentication.k8s.io selfsubjectreviews",
        ],
    ),
    (
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        None,
        &["create certificates.k8s.io certificatesigningrequests/nodeclient"],
    ),
    (
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        None,
        &["create certificates.k8s.io certificatesigningrequests/selfnodeclient"],
    ),
    (
        "system:certificates.k8s.io:kube-apiserver-client-approver",
        None,
        &["approve certificates.k8s.io signers kubernetes.io/kube-apiserver-client"],
    ),
    (
        "system:certificates.k8s.io:kube-apiserver-client-kubelet-approver",
        None,
        &["approve certificates.k8s.io signers kubernetes.io/kube-apiserver-client-kubelet"],
    ),
    (
        "system:certificates.k8s.io:kubelet-serving-approver",
        None,
        &["approve certificates.k8s.io signers kubernetes.io/kubelet-serving"],
    ),
    (
        "system:certificates.k8s.io:legacy-unknown-approver",
        None,
        &["approve certificates.k8s.io signers kubernetes.io/legacy-unknown"],
    ),
    (
        "system:discovery",
        None,
        &["get url /api,/api/*,/apis,/apis/*,/healthz,/livez,/openapi,/openapi/*,/readyz,/version,/version/"],
    ),
    ("system:kube-aggregator", None, &["READ core endpoints,services"]),
    (
        "system:kube-controller-manager",
        None,
        &[
            "create,patch,update core,events.k8s.io events",
            "create coordination.k8s.io leases",
            "get,update coordination.k8s.io leases kube-controller-manager",
            "create,get,update core secrets,serviceaccounts",
            "delete core secrets",
            "get core configmaps,namespaces",
            "create authentication.k8s.io tokenreviews",
            "create authorization.k8s.io subjectaccessreviews",
            "list,watch * *",
            "create core serviceaccounts/token",
        ],
    ),
    (
        "system:kube-dns",
        None,
        // The cluster's DNS reads slices; endpoints stay for servers of other makes.
        &["list,watch core endpoints,services,namespaces,pods", "list,watch discovery.k8s.io endpointslices"],
    ),
    (
        "system:kube-scheduler",
        None,
        &[
            "create,patch,update core,events.k8s.io events",
            "create coordination.k8s.io leases",
            "get,list,watch,update coordination.k8s.io leases kube-scheduler",
            "READ,WRITE coordination.k8s.io leasecandidates",
            "READ core nodes,namespaces,replicationcontrollers,services,persistentvolumeclaims,persistentvolumes",
            "READ,delete core pods",
            "create core bindings,pods/binding",
            "patch,update core pods/status",
            "READ apps replicasets,statefulsets",
            "READ policy poddisruptionbudgets",
            "create authentication.k8s.io tokenreviews",
            "create authorization.k8s.io subjectaccessreviews",
            "READ storage.k8s.io csinodes,csidrivers,csistoragecapacities,volumeattachments",
            "READ resource.k8s.io deviceclasses,resourceslices",
            // Finalizers and allocations of claims, and claims for extended resources that devices serve.
            "READ,create,patch,update,delete resource.k8s.io resourceclaims",
            "READ,patch,update resource.k8s.io resourceclaims/status",
            "patch,update resource.k8s.io resourceclaims/binding",
            "update core pods/finalizers",
        ],
    ),
    (
        "system:kubelet-api-admin",
        None,
        &[
            "READ,proxy core nodes",
            "* core nodes/log,nodes/metrics,nodes/proxy,nodes/stats,nodes/healthz,nodes/pods,nodes/configz",
        ],
    ),
    (
        "system:monitoring",
        None,
        &["get url /healthz,/healthz/*,/livez,/livez/*,/metrics,/metrics/slis,/readyz,/readyz/*"],
    ),
    // Not bound to anybody: the Node authorizer gives these rules to nodes, and narrows them to objects that
    // are related to the node, see the module `nodes`.
    (
        "system:node",
        None,
        &[
            "create authentication.k8s.io tokenreviews",
            "create authorization.k8s.io localsubjectaccessreviews,subjectaccessreviews",
            "READ core services",
            "READ,create,patch,update core nodes",
            "patch,update core nodes/status",
            "create,patch,update core,events.k8s.io events",
            "READ,create,delete core pods",
            "patch,update core pods/status",
            "create core pods/eviction",
            "READ core configmaps,secrets",
            "get core persistentvolumeclaims,persistentvolumes,endpoints",
            "get,patch,update core persistentvolumeclaims/status",
            "READ,create certificates.k8s.io certificatesigningrequests",
            "create,delete,get,patch,update coordination.k8s.io leases",
            "get storage.k8s.io volumeattachments",
            "create core serviceaccounts/token",
            "READ storage.k8s.io csidrivers",
            "create,delete,get,patch,update storage.k8s.io csinodes",
            "READ node.k8s.io runtimeclasses",
            "get resource.k8s.io resourceclaims",
            "deletecollection resource.k8s.io resourceslices",
            "get core serviceaccounts",
        ],
    ),
    ("system:node-bootstrapper", None, &["READ,create certificates.k8s.io certificatesigningrequests"]),
    (
        "system:node-problem-detector",
        None,
        &["get core nodes", "patch core nodes/status", "create,patch,update core,events.k8s.io events"],
    ),
    (
        "system:node-proxier",
        None,
        &[
            "list,watch core endpoints,services",
            "READ core nodes",
            "create,patch,update core,events.k8s.io events",
            "list,watch discovery.k8s.io endpointslices",
            "list,watch networking.k8s.io servicecidrs",
        ],
    ),
    (
        "system:persistent-volume-provisioner",
        None,
        &[
            "READ,create,delete core persistentvolumes",
            "READ,update core persistentvolumeclaims",
            "READ storage.k8s.io storageclasses",
            "watch core events",
            "create,patch,update core,events.k8s.io events",
        ],
    ),
    ("system:public-info-viewer", None, &["get url /healthz,/livez,/readyz,/version,/version/"]),
    (
        "system:service-account-issuer-discovery",
        None,
        &["get url /.well-known/openid-configuration,/openid/v1/jwks"],
    ),
    (
        "system:volume-scheduler",
        None,
        &[
            "READ,patch,update core persistentvolumes,persistentvolumeclaims",
            "READ storage.k8s.io storageclasses",
        ],
    ),
];

/// Each binds the role of its own name: (name, subjects).
pub(super) const CLUSTER_ROLE_BINDINGS: &[(&str, &[&str])] = &[
    ("cluster-admin", &["group:system:masters"]),
    ("hawser:dns", &["user:system:kube-dns"]),
    ("hawser:proxy", &["user:system:kube-proxy"]),
    ("system:basic-user", &["group:system:authenticated"]),
    // The approver of this project also approves serving certificates that name the node and nothing else.
    ("system:certificates.k8s.io:kubelet-serving-approver", &["user:system:kube-controller-manager"]),
    ("system:discovery", &["group:system:authenticated"]),
    ("system:kube-controller-manager", &["user:system:kube-controller-manager"]),
    ("system:kube-dns", &["serviceaccount:kube-system/kube-dns", "user:system:kube-dns"]),
    ("system:kube-scheduler", &["user:system:kube-scheduler"]),
    // Kubelets of other makes ask what the API server may do when it calls them.
    ("system:kubelet-api-admin", &["user:kube-apiserver-kubelet-client"]),
    ("system:monitoring", &["group:system:monitoring"]),
    ("system:node", &[]),
    ("system:node-proxier", &["user:system:kube-proxy"]),
    ("system:public-info-viewer", &["group:system:authenticated", "group:system:unauthenticated"]),
    ("system:service-account-issuer-discovery", &["group:system:serviceaccounts"]),
    ("system:volume-scheduler", &["user:system:kube-scheduler"]),
];

const LEADER_RULES: &[&str] = &["create,get,list,update,watch coordination.k8s.io leases,leasecandidates"];

/// (namespace, name, rules)
pub(super) const ROLES: &[(&str, &str, &[&str])] = &[
    (
        "kube-public",
        "system:controller:bootstrap-signer",
        &[
            "READ core configmaps",
            "update core configmaps cluster-info",
            "create,patch,update core,events.k8s.io events",
        ],
    ),
    (
        "kube-system",
        "extension-apiserver-authentication-reader",
        &["READ core configmaps extension-apiserver-authentication"],
    ),
    // The DNS servers write the endpoints of the cluster's DNS Service.
    ("kube-system", "hawser:dns", &["create,delete,get,update discovery.k8s.io endpointslices"]),
    ("kube-system", "hawser:proxy", &["READ core configmaps ip-masq-agent"]),
    ("kube-system", "system::leader-locking-kube-controller-manager", LEADER_RULES),
    ("kube-system", "system::leader-locking-kube-scheduler", LEADER_RULES),
    ("kube-system", "system:controller:bootstrap-signer", &["READ core secrets"]),
    ("kube-system", "system:controller:cloud-provider", &["create,get,list,watch core configmaps"]),
    (
        "kube-system",
        "system:controller:token-cleaner",
        &["READ,delete core secrets", "create,patch,update core,events.k8s.io events"],
    ),
];

/// Each binds the role of its own name and namespace: (namespace, name, subjects).
pub(super) const ROLE_BINDINGS: &[(&str, &str, &[&str])] = &[
    (
        "kube-public",
        "system:controller:bootstrap-signer",
        &["serviceaccount:kube-system/bootstrap-signer", "user:system:kube-controller-manager"],
    ),
    (
        "kube-system",
        "extension-apiserver-authentication-reader",
        &["user:system:kube-controller-manager", "user:system:kube-scheduler"],
    ),
    ("kube-system", "hawser:dns", &["user:system:kube-dns"]),
    ("kube-system", "hawser:proxy", &["user:system:kube-proxy"]),
    (
        "kube-system",
        "system::leader-locking-kube-controller-manager",
        &["user:system:kube-controller-manager", "serviceaccount:kube-system/kube-controller-manager"],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-scheduler",
        &["user:system:kube-scheduler", "serviceaccount:kube-system/kube-scheduler"],
    ),
    (
        "kube-system",
        "system:controller:bootstrap-signer",
        &["serviceaccount:kube-system/bootstrap-signer", "user:system:kube-controller-manager"],
    ),
    ("kube-system", "system:controller:cloud-provider", &["serviceaccount:kube-system/cloud-provider"]),
    (
        "kube-system",
        "system:controller:token-cleaner",
        &["serviceaccount:kube-system/token-cleaner", "user:system:kube-controller-manager"],
    ),
];
