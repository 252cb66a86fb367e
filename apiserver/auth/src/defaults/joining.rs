//! The roles and bindings by which machines join, under the names that kubeadm gives them. They exist where
//! bootstrap tokens are accepted.

use serde_json::{Value, json};

use super::{bind, parse_rule, with_metadata};

/// Group of the tokens that `kubeadm token create` and `hawser token create` make.
const JOINING: &str = "group:system:bootstrappers:kubeadm:default-node-token";
const NODES: &str = "group:system:nodes";
const CLUSTER_INFO: &str = "kubeadm:bootstrap-signer-clusterinfo";
const GET_NODES: &str = "kubeadm:get-nodes";

/// (name, role, subject)
const BINDINGS: [(&str, &str, &str); 6] = [
    // Machines with a token may request certificates, ...
    ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", JOINING),
    // ... those of kubelets are approved, ...
    (
        "kubeadm:node-autoapprove-bootstrap",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        JOINING,
    ),
    // ... and so are those by which a kubelet replaces its own.
    (
        "kubeadm:node-autoapprove-certificate-rotation",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        NODES,
    ),
    // A name that is taken is told before anything is requested.
    (GET_NODES, GET_NODES, JOINING),
    // The service proxy of a node that has joined uses the node's certificate.
    ("hawser:node-proxier", "system:node-proxier", NODES),
    // It enforces network policies, whose peers are pods of any node.
    ("hawser:node-proxy", "hawser:proxy", NODES),
];

/// (name, role, subject) in `kube-system`
const SYSTEM_BINDINGS: [(&str, &str, &str); 2] = [
    // The server of a node that has joined believes the clients that the API server believes.
    ("hawser:node-client-authorities", "extension-apiserver-authentication-reader", NODES),
    // Its proxy masquerades by the rules that the proxies of other nodes have.
    ("hawser:node-proxier", "hawser:proxy", NODES),
];

/// Returns the roles and bindings, in the order in which to write them.
pub fn objects() -> Vec<Value> {
    let mut get_nodes = with_metadata("ClusterRole", GET_NODES, None);
    get_nodes["rules"] = json!([parse_rule("get core nodes")]);
    let mut objects = vec![get_nodes];
    objects.extend(BINDINGS.iter().map(|(name, role, subject)| {
        bind(with_metadata("ClusterRoleBinding", name, None), "ClusterRole", role, &[subject])
    }));
    let namespaced = |kind: &str, namespace: &str, name: &str| {
        let mut object = with_metadata(kind, name, None);
        object["metadata"]["namespace"] = json!(namespace);
        object
    };
    objects.extend(SYSTEM_BINDINGS.iter().map(|(name, role, subject)| {
        bind(namespaced("RoleBinding", "kube-system", name), "Role", role, &[subject])
    }));
    // Machines that do not know the cluster yet read who signs its certificates.
    let public = |kind: &str| namespaced(kind, "kube-public", CLUSTER_INFO);
    let mut role = public("Role");
    role["rules"] = json!([parse_rule("get core configmaps cluster-info")]);
    objects.push(role);
    objects.push(bind(public("RoleBinding"), "Role", CLUSTER_INFO, &["user:system:anonymous"]));
    objects
}

#[cfg(test)]
mod tests {
    use apiserver_meta::identity::Identity;

    use super::*;
    use crate::attributes::Attributes;
    use crate::authorizer::Authorizer;

    #[test]
    fn machines_that_join_may_request_certificates_and_nodes_read_two_config_maps() {
        let authorizer = Authorizer::new();
        for object in super::super::objects().into_iter().chain(objects()) {
            authorizer.apply(object["kind"].as_str().unwrap(), &object);
        }
        let default = "system:bootstrappers:kubeadm:default-node-token";
        let token = Identity::authenticated("system:bootstrap:abcdef", &["system:bootstrappers", default]);
        let other = Identity::authenticated("system:bootstrap:abcdef", &["system:bootstrappers"]);
        let node = Identity::authenticated("system:node:a", &["system:nodes"]);
        let anonymous = Identity::anonymous();
        let csr = ("certificates.k8s.io", "certificatesigningrequests");
        let system = "kube-system/configmaps";
        for (identity, verb, (group, resource), subresource, name, expected) in [
            (&token, "create", csr, "", "", true),
            (&token, "watch", csr, "", "", true),
            (&token, "create", csr, "nodeclient", "", true),
            (&token, "create", csr, "selfnodeclient", "", false),
            (&token, "update", csr, "approval", "", false),
            (&token, "get", ("", "nodes"), "", "a", true),
            (&token, "list", ("", "nodes"), "", "", false),
            (&token, "create", ("", "nodes"), "", "", false),
            (&token, "get", ("", "secrets"), "", "bootstrap-token-abcdef", false),
            (&other, "create", csr, "", "", false),
            (&other, "create", csr, "nodeclient", "", false),
            (&node, "create", csr, "selfnodeclient", "", true),
            (&node, "create", csr, "nodeclient", "", false),
            (&node, "watch", ("discovery.k8s.io", "endpointslices"), "", "", true),
            (&node, "update", ("discovery.k8s.io", "endpointslices"), "", "", false),
            (&node, "get", ("", system), "", "extension-apiserver-authentication", true),
            (&node, "update", ("", system), "", "extension-apiserver-authentication", false),
            (&node, "get", ("", system), "", "ip-masq-agent", true),
            (&node, "list", ("", system), "", "ip-masq-agent", true),
            (&node, "watch", ("", system), "", "ip-masq-agent", true),
            (&node, "update", ("", system), "", "ip-masq-agent", false),
            (&node, "get", ("", system), "", "other", false),
            (&node, "list", ("", system), "", "", false),
            (&token, "get", ("", system), "", "extension-apiserver-authentication", false),
            (&node, "list", ("", "pods"), "", "", true),
            (&node, "watch", ("networking.k8s.io", "networkpolicies"), "", "", true),
            (&node, "update", ("networking.k8s.io", "networkpolicies"), "", "", false),
            (&node, "list", ("", "secrets"), "", "", false),
            (&anonymous, "get", ("", "configmaps"), "", "cluster-info", true),
            (&anonymous, "get", ("", "configmaps"), "", "other", false),
            (&anonymous, "list", ("", "configmaps"), "", "", false),
            (&anonymous, "create", csr, "", "", false),
        ] {
            let (namespace, resource) = match resource.split_once('/') {
                Some(pair) => pair,
                None if resource == "configmaps" => ("kube-public", resource),
                None => ("", resource),
            };
            let attributes = Attributes {
                subresource,
                name,
                namespace,
                ..Attributes::resource(identity, verb, group, resource)
            };
            let decision = authorizer.authorize(&attributes);
            assert_eq!(decision.allowed, expected, "{} {verb} {resource}/{subresource}", identity.user);
        }
    }

    #[test]
    fn every_binding_has_its_role() {
        let all: Vec<Value> = super::super::objects().into_iter().chain(objects()).collect();
        for binding in objects().iter().filter(|object| object["kind"].as_str().unwrap().ends_with("Binding"))
        {
            let role = &binding["roleRef"];
            assert!(
                all.iter().any(|o| o["kind"] == role["kind"] && o["metadata"]["name"] == role["name"]),
                "{binding}"
            );
        }
    }
}
