//! Tables of what a node may do, with the reasons of refusals.

use apiserver_api::auth::Identity;
use apiserver_api::selector::FieldSelector;

use super::graph::References;
use super::*;

/// Node `n` with one pod that refers to an object of each kind, named `own`; node `m` with `other` of each.
fn authorizer() -> NodeAuthorizer {
    let authorizer = NodeAuthorizer::default();
    let mut graph = authorizer.write();
    for (node, name) in [("n", "own"), ("m", "other")] {
        let kinds = [
            Kind::Secret,
            Kind::ConfigMap,
            Kind::ServiceAccount,
            Kind::ResourceClaim,
            Kind::PersistentVolumeClaim,
        ];
        let references: References = kinds.into_iter().map(|kind| (kind, name.to_owned())).collect();
        graph.place(Kind::Pod, ("ns", name), node, &references);
        graph.bind(name, ("ns", name), &[("vault".to_owned(), name.to_owned())].into());
        graph.place(Kind::VolumeAttachment, ("", name), node, &References::new());
        graph.place(Kind::ResourceSlice, ("", name), node, &References::new());
        graph.place(Kind::PodCertificateRequest, ("ns", name), node, &References::new());
    }
    drop(graph);
    authorizer
}

/// `VERB GROUP/RESOURCE[/SUB] NAMESPACE NAME [FIELDS]`, `-` for empty.
fn ask_as(identity: &Identity, text: &str) -> Result<(), String> {
    let words: Vec<&str> = text.split(' ').map(|word| if word == "-" { "" } else { word }).collect();
    let mut parts = words[1].split('/');
    let (group, resource) = (parts.next().unwrap().trim_matches('-'), parts.next().unwrap());
    let fields = words.get(4).map(|text| FieldSelector::parse(text).unwrap());
    let attributes = Attributes {
        subresource: parts.next().unwrap_or_default(),
        namespace: words[2],
        name: words[3],
        fields: fields.as_ref(),
        ..Attributes::resource(identity, words[0], group, resource)
    };
    authorizer().authorize(&attributes).map_err(Cow::into_owned)
}

fn ask(text: &str) -> Result<(), String> {
    ask_as(&Identity::authenticated("system:node:n", &["system:nodes"]), text)
}

#[test]
fn a_node_may_what_its_pods_need() {
    for request in [
        "get -/secrets ns own",
        "list -/secrets ns own",
        "watch -/secrets ns own",
        "get -/secrets vault own",
        "get -/configmaps ns own",
        "watch -/configmaps ns own",
        "get -/persistentvolumeclaims ns own",
        "update -/persistentvolumeclaims/status ns own",
        "patch -/persistentvolumeclaims/status ns own",
        "get -/persistentvolumes - own",
        "get resource.k8s.io/resourceclaims ns own",
        "get storage.k8s.io/volumeattachments - own",
        "get -/serviceaccounts ns own",
        "create -/serviceaccounts/token ns own",
        "get -/pods ns own",
        "watch -/pods ns own metadata.name=own",
        "list -/pods - - spec.nodeName=n",
        "watch -/pods ns - status.phase!=Failed,spec.nodeName=n",
        "create -/pods ns -",
        "delete -/pods ns any",
        "update -/pods/status ns any",
        "patch -/pods/status ns any",
        "create -/pods/eviction ns any",
        "get -/nodes - n",
        "list -/nodes - n",
        "watch -/nodes - n",
        "create -/nodes - -",
        "patch -/nodes - n",
        "update -/nodes/status - n",
        "create coordination.k8s.io/leases kube-node-lease -",
        "get coordination.k8s.io/leases kube-node-lease n",
        "update coordination.k8s.io/leases kube-node-lease n",
        "delete coordination.k8s.io/leases kube-node-lease n",
        "create storage.k8s.io/csinodes - -",
        "patch storage.k8s.io/csinodes - n",
        "create resource.k8s.io/resourceslices - -",
        "update resource.k8s.io/resourceslices - own",
        "watch resource.k8s.io/resourceslices - - spec.nodeName=n",
        "deletecollection resource.k8s.io/resourceslices - - spec.nodeName=n",
        "create certificates.k8s.io/podcertificaterequests ns -",
        "get certificates.k8s.io/podcertificaterequests ns own",
        "list certificates.k8s.io/podcertificaterequests - - spec.nodeName=n",
        "create certificates.k8s.io/certificatesigningrequests - -",
        "list -/services - -",
        "create -/events ns -",
        "get storage.k8s.io/csidrivers - d",
        "watch node.k8s.io/runtimeclasses - -",
        "create authentication.k8s.io/tokenreviews - -",
        "create authorization.k8s.io/subjectaccessreviews - -",
    ] {
        assert_eq!(ask(request), Ok(()), "{request}");
    }
}

#[test]
fn a_node_may_nothing_else_and_hears_why() {
    let unrelated = "no relationship found between node 'n' and this object";
    let get_only = "can only get individual resources of this type";
    let read_only = "can only read resources of this type";
    let tokens_only = "can only create tokens for individual service accounts";
    let table = [
        ("get -/secrets ns other", unrelated),
        ("get -/secrets vault other", unrelated),
        ("get -/secrets elsewhere own", unrelated),
        ("watch -/secrets ns other", unrelated),
        ("list -/secrets ns -", "No Object name found"),
        ("list -/secrets - -", "can only read namespaced object of this type"),
        ("list -/secrets - own", "can only read namespaced object of this type"),
        ("update -/secrets ns own", read_only),
        ("delete -/secrets ns own", read_only),
        ("get -/secrets/status ns own", "cannot read subresource"),
        ("get -/configmaps ns other", unrelated),
        ("patch -/configmaps ns own", read_only),
        ("get -/persistentvolumeclaims ns other", unrelated),
        ("list -/persistentvolumeclaims ns own", get_only),
        ("update -/persistentvolumeclaims ns own", get_only),
        ("patch -/persistentvolumeclaims/status ns other", unrelated),
        ("get -/persistentvolumeclaims/status ns own", "can only get/update/patch this type"),
        ("get -/persistentvolumes - other", unrelated),
        ("list -/persistentvolumes - -", get_only),
        ("update -/persistentvolumes - own", get_only),
        ("get -/persistentvolumes/status - own", "cannot get subresource"),
        ("get resource.k8s.io/resourceclaims ns other", unrelated),
        ("list resource.k8s.io/resourceclaims ns -", get_only),
        ("update resource.k8s.io/resourceclaims/status ns own", get_only),
        ("get storage.k8s.io/volumeattachments - other", unrelated),
        ("list storage.k8s.io/volumeattachments - -", get_only),
        ("get -/serviceaccounts ns other", unrelated),
        ("list -/serviceaccounts ns -", tokens_only),
        ("create -/serviceaccounts ns -", tokens_only),
        ("create -/serviceaccounts ns own", "can only create token subresource of serviceaccount"),
        ("update -/serviceaccounts ns own", tokens_only),
        ("create -/serviceaccounts/token ns other", unrelated),
        ("get -/serviceaccounts/token ns own", tokens_only),
        ("get -/pods ns other", unrelated),
        ("get -/pods/log ns own", ""),
        ("list -/pods - -", "can only list/watch pods with spec.nodeName field selector"),
        ("list -/pods - - spec.nodeName=m", "can only list/watch pods with spec.nodeName field selector"),
        ("list -/pods - - spec.nodeName!=n", "can only list/watch pods with spec.nodeName field selector"),
        ("watch -/pods ns other metadata.name=other", unrelated),
        ("update -/pods ns own", ""),
        ("patch -/pods ns own", ""),
        ("deletecollection -/pods ns - spec.nodeName=n", ""),
        ("create -/pods/binding ns own", ""),
        ("create -/pods/exec ns own", ""),
        ("get -/pods/exec ns own", ""),
        ("update -/pods/resize ns own", ""),
        ("patch -/pods/ephemeralcontainers ns own", ""),
        ("list -/nodes - -", "node 'n' cannot read all nodes, only its own Node object"),
        ("get -/nodes - m", "node 'n' cannot read 'm', only its own Node object"),
        ("delete -/nodes - n", ""),
        ("get -/nodes/proxy - n", ""),
        ("get -/nodes/status - n", ""),
        (
            "list coordination.k8s.io/leases kube-node-lease n",
            "can only get, create, update, patch, or delete a node lease",
        ),
        (
            "get coordination.k8s.io/leases kube-node-lease m",
            "can only access node lease with the same name as the requesting node",
        ),
        (
            "update coordination.k8s.io/leases kube-system n",
            "can only access leases in the \"kube-node-lease\" system namespace",
        ),
        (
            "update storage.k8s.io/csinodes - m",
            "can only access CSINode with the same name as the requesting node",
        ),
        ("list storage.k8s.io/csinodes - n", "can only get, create, update, patch, or delete a CSINode"),
        ("get storage.k8s.io/csinodes/status - n", "cannot authorize CSINode subresources"),
        ("update resource.k8s.io/resourceslices - other", unrelated),
        ("get resource.k8s.io/resourceslices - other", unrelated),
        (
            "list resource.k8s.io/resourceslices - -",
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
        ),
        (
            "deletecollection resource.k8s.io/resourceslices - - spec.nodeName=m",
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
        ),
        ("get resource.k8s.io/resourceslices/status - own", "cannot authorize ResourceSlice subresources"),
        ("get certificates.k8s.io/podcertificaterequests ns other", unrelated),
        (
            "list certificates.k8s.io/podcertificaterequests - -",
            "can only list/watch podcertificaterequests with nodeName field selector",
        ),
        (
            "update certificates.k8s.io/podcertificaterequests/status ns own",
            "nodes may not access the status subresource of PodCertificateRequests",
        ),
        (
            "delete certificates.k8s.io/podcertificaterequests ns own",
            "nodes may not delete podcertificaterequests",
        ),
        ("update certificates.k8s.io/certificatesigningrequests/approval - c", ""),
        ("update certificates.k8s.io/certificatesigningrequests/status - c", ""),
        ("create rbac.authorization.k8s.io/clusterrolebindings - -", ""),
        ("list -/namespaces - -", ""),
        ("update -/services ns s", ""),
        ("get apps/secrets ns own", ""),
    ];
    for (request, why) in table {
        assert_eq!(ask(request), Err(why.to_owned()), "{request}");
    }
}

#[test]
fn a_node_is_who_has_both_the_name_and_the_group() {
    for (user, groups, why) in [
        ("system:node:n", &[][..], ""),
        ("jane", &["system:nodes"][..], ""),
        ("system:nodes:n", &["system:nodes"][..], ""),
        ("system:node:", &["system:nodes"][..], "unknown node for user \"system:node:\""),
    ] {
        let identity = Identity::authenticated(user, groups);
        for request in ["get -/secrets ns own", "list -/services - -", "create -/events ns -"] {
            assert_eq!(ask_as(&identity, request), Err(why.to_owned()), "{user} {groups:?}: {request}");
        }
    }
    let node = Identity::authenticated("system:node:n", &["system:nodes"]);
    assert!(authorizer().authorize(&Attributes::path(&node, "get", "/metrics")).is_err());
}
