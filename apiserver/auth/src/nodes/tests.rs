//! Tables of what a node may do, with the reasons of refusals.

use apiserver_meta::identity::Identity;
use apiserver_registry::FieldSelector;

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

const UNRELATED: &str = "no relationship found between node 'n' and this object";
const GET_ONLY: &str = "can only get individual resources of this type";
const READ_ONLY: &str = "can only read resources of this type";
const TOKENS_ONLY: &str = "can only create tokens for individual service accounts";

/// Requests, and why they are refused.
const REFUSED: &[(&str, &str)] = &[
    ("get -/secrets ns other", UNRELATED),
    ("get -/secrets vault other", UNRELATED),
    ("get -/secrets elsewhere own", UNRELATED),
    ("watch -/secrets ns other", UNRELATED),
    ("list -/secrets ns -", "No Object name found"),
    ("list -/secrets - -", "can only read namespaced object of this type"),
    ("list -/secrets - own", "can only read namespaced object of this type"),
    ("update -/secrets ns own", READ_ONLY),
    ("delete -/secrets ns own", READ_ONLY),
    ("get -/secrets/status ns own", "cannot read subresource"),
    ("get -/configmaps ns other", UNRELATED),
    ("patch -/configmaps ns own", READ_ONLY),
    ("get -/persistentvolumeclaims ns other", UNRELATED),
    ("list -/persistentvolumeclaims ns own", GET_ONLY),
    ("update -/persistentvolumeclaims ns own", GET_ONLY),
    ("patch -/persistentvolumeclaims/status ns other", UNRELATED),
    ("get -/persistentvolumeclaims/status ns own", "can only get/update/patch this type"),
    ("get -/persistentvolumes - other", UNRELATED),
    ("list -/persistentvolumes - -", GET_ONLY),
    ("update -/persistentvolumes - own", GET_ONLY),
    ("get -/persistentvolumes/status - own", "cannot get subresource"),
    ("get resource.k8s.io/resourceclaims ns other", UNRELATED),
    ("list resource.k8s.io/resourceclaims ns -", GET_ONLY),
    ("update resource.k8s.io/resourceclaims/status ns own", GET_ONLY),
    ("get storage.k8s.io/volumeattachments - other", UNRELATED),
    ("list storage.k8s.io/volumeattachments - -", GET_ONLY),
    ("get -/serviceaccounts ns other", UNRELATED),
    ("list -/serviceaccounts ns -", TOKENS_ONLY),
    ("create -/serviceaccounts ns -", TOKENS_ONLY),
    ("create -/serviceaccounts ns own", "can only create token subresource of serviceaccount"),
    ("update -/serviceaccounts ns own", TOKENS_ONLY),
    ("create -/serviceaccounts/token ns other", UNRELATED),
    ("get -/serviceaccounts/token ns own", TOKENS_ONLY),
    ("get -/pods ns other", UNRELATED),
    ("get -/pods/log ns own", ""),
    ("list -/pods - -", "can only list/watch pods with spec.nodeName field selector"),
    ("list -/pods - - spec.nodeName=m", "can only list/watch pods with spec.nodeName field selector"),
    ("list -/pods - - spec.nodeName!=n", "can only list/watch pods with spec.nodeName field selector"),
    ("watch -/pods ns other metadata.name=other", UNRELATED),
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
    ("update resource.k8s.io/resourceslices - other", UNRELATED),
    ("get resource.k8s.io/resourceslices - other", UNRELATED),
    (
        "list resource.k8s.io/resourceslices - -",
        "can only list/watch/deletecollection resourceslices with nodeName field selector",
    ),
    (
        "deletecollection resource.k8s.io/resourceslices - - spec.nodeName=m",
        "can only list/watch/deletecollection resourceslices with nodeName field selector",
    ),
    ("get resource.k8s.io/resourceslices/status - own", "cannot authorize ResourceSlice subresources"),
    ("get certificates.k8s.io/podcertificaterequests ns other", UNRELATED),
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

#[test]
fn a_node_may_nothing_else_and_hears_why() {
    for (request, why) in REFUSED {
        assert_eq!(ask(request), Err((*why).to_owned()), "{request}");
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

#[test]
fn a_node_opens_its_own_tunnel_and_no_other() {
    let node = Identity::authenticated("system:node:n", &["system:nodes"]);
    let ask = |identity: &Identity, verb: &str, path: &str| {
        authorizer().authorize(&Attributes::path(identity, verb, path)).map_err(Cow::into_owned)
    };
    assert_eq!(ask(&node, "post", "/hawser/v1/nodes/n/tunnel"), Ok(()));
    for (verb, path) in [
        ("post", "/hawser/v1/nodes/m/tunnel"),
        ("post", "/hawser/v1/nodes/%6e/tunnel"),
        ("get", "/hawser/v1/nodes/n/tunnel"),
        ("delete", "/hawser/v1/nodes/n/tunnel"),
    ] {
        let why = "node 'n' can only open its own tunnel";
        assert_eq!(ask(&node, verb, path), Err(why.to_owned()), "{verb} {path}");
    }
    for path in ["/hawser/v1/nodes/n/tunnel/", "/hawser/v1/nodes/n", "//hawser/v1/nodes/n/tunnel"] {
        assert_eq!(ask(&node, "post", path), Err(String::new()), "{path}");
    }
    // A resource of such a name is none.
    let path = "/hawser/v1/nodes/n/tunnel";
    let resource = Attributes { path, ..Attributes::resource(&node, "post", "hawser", "nodes") };
    assert!(authorizer().authorize(&resource).is_err());
    let jane = Identity::authenticated("jane", &["system:nodes"]);
    assert!(ask(&jane, "post", path).is_err());
}
