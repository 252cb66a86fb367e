//! Tokens and certificates that a node asks for in the name of its pods.

use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::Value;

use super::{NodeRequest, audience, find};
use crate::Operation;
use apiserver_meta::pods::MIRROR;

impl NodeRequest<'_> {
    /// A token is bound to a pod of the node, and for an audience that the pod names.
    pub(super) async fn token(&self) -> Result<(), ApiError> {
        if self.operation() != Operation::Create || self.request.subresource != "token" {
            return Ok(());
        }
        let request = self.request;
        let (name, uid) = match bound_pod(self.object) {
            Ok(bound) => bound,
            Err(why) => return self.refuse(why),
        };
        let namespace = self.request.namespace(self.object);
        let Some(pod) = find(request, ("", "pods"), namespace, name).await? else {
            return Err(ApiError::not_found("", "pods", name));
        };
        self.check(is_own(&pod, uid, self.node))?;
        let audience = match requested_audience(self.object) {
            Ok(audience) => audience,
            Err(why) => return self.refuse(why),
        };
        match audience::is_named(request, &pod, audience).await? {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(why) => return self.refuse(format!("error validating audience {audience:?}: {why}")),
        }
        if audience::is_granted(request, (namespace, self.name()), audience) {
            return Ok(());
        }
        self.refuse(format!(
            "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this \
             audience",
            request.identity.user
        ))
    }

    /// A PodCertificateRequest describes a pod that runs on the node, as it is.
    pub(super) async fn pod_certificate(&self) -> Result<(), ApiError> {
        if self.operation() != Operation::Create {
            return self.refuse(format!("unexpected operation {}", self.operation().name()));
        }
        if !self.request.subresource.is_empty() {
            return self.refuse(format!("unexpected subresource {}", self.request.subresource));
        }
        let (request, spec) = (self.request, &self.object["spec"]);
        let text = |field: &str| spec[field].as_str().unwrap_or_default();
        let namespace = self.request.namespace(self.object);
        if text("nodeName") != self.node {
            return self.refuse(format!(
                "PodCertificateRequest.Spec.NodeName={:?}, which is not the requesting node {:?}",
                text("nodeName"),
                self.node
            ));
        }
        let node = find(request, ("", "nodes"), "", self.node).await?;
        let pod = find(request, ("", "pods"), namespace, text("podName")).await?;
        let account = find(request, ("", "serviceaccounts"), namespace, text("serviceAccountName")).await?;
        let found = Described { node: node.as_ref(), pod: pod.as_ref(), account: account.as_ref() };
        match found.check(spec, namespace) {
            Ok(()) => Ok(()),
            Err(Fault::Wrong(why)) => self.refuse(why),
            // The server may not have seen a change yet: a retry may help.
            Err(Fault::Early(why)) => Err(ApiError::new(500, "", why)),
        }
    }
}

/// Name and uid of the pod that a TokenRequest names.
fn bound_pod(request: &Value) -> Result<(&str, &str), &'static str> {
    let reference = &request["spec"]["boundObjectRef"];
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    if text("apiVersion") != "v1" || text("kind") != "Pod" || text("name").is_empty() {
        return Err("node requested token not bound to a pod");
    }
    if text("uid").is_empty() {
        return Err("node requested token with a pod binding without a uid");
    }
    Ok((text("name"), text("uid")))
}

fn is_own(pod: &Value, uid: &str, node: &str) -> Result<(), String> {
    if meta::uid(pod) != uid {
        return Err(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might \
             have been deleted and then recreated"
        ));
    }
    if meta::text(pod, "/spec/nodeName") != node {
        return Err("node requested token bound to a pod scheduled on a different node".to_owned());
    }
    Ok(())
}

/// The audience of a TokenRequest, empty for that of the API server.
fn requested_audience(request: &Value) -> Result<&str, &'static str> {
    match meta::list(request, "/spec/audiences") {
        [] => Ok(""),
        [one] => Ok(one.as_str().unwrap_or_default()),
        _ => Err("node may only request 0 or 1 audiences"),
    }
}

/// The objects that a PodCertificateRequest describes, as far as they exist.
struct Described<'a> {
    node: Option<&'a Value>,
    pod: Option<&'a Value>,
    account: Option<&'a Value>,
}

/// The fault of a PodCertificateRequest.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// Its description is wrong.
    Wrong(String),
    /// It may describe objects that this server has not seen yet.
    Early(String),
}

impl Described<'_> {
    fn check(&self, spec: &Value, namespace: &str) -> Result<(), Fault> {
        let text = |field: &str| spec[field].as_str().unwrap_or_default();
        let pod_name = format!("{namespace}/{}", text("podName"));
        let gone = |kind: &str, quoted: &str, name: &str| {
            Fault::Early(format!(
                "while retrieving {kind} {quoted:?} named in the PodCertificateRequest: {} {name:?} not found",
                kind.replace(' ', "")
            ))
        };
        let node = self.node.ok_or_else(|| gone("node", text("nodeName"), text("nodeName")))?;
        if meta::uid(node) != text("nodeUID") {
            return Err(Fault::Early(format!(
                "PodCertificateRequest for pod {pod_name:?} names node UID {:?}, inconsistent with the running \
                 node ({:?})",
                text("nodeUID"),
                meta::uid(node)
            )));
        }
        let pod = self.pod.ok_or_else(|| gone("pod", &pod_name, text("podName")))?;
        if meta::uid(pod) != text("podUID") {
            return Err(Fault::Early(format!(
                "PodCertificateRequest for pod {pod_name:?} contains pod UID ({:?}) which differs from running \
                 pod {:?}",
                text("podUID"),
                meta::uid(pod)
            )));
        }
        if meta::text(pod, "/spec/nodeName") != text("nodeName") {
            return Err(Fault::Wrong(format!(
                "pod {pod_name:?} is not running on node {:?} named in the PodCertificateRequest",
                text("nodeName")
            )));
        }
        if meta::annotation(pod, MIRROR).is_some() {
            return Err(Fault::Wrong(format!("pod {pod_name:?} is a mirror pod")));
        }
        let (named, runs_as) = (text("serviceAccountName"), meta::text(pod, "/spec/serviceAccountName"));
        if named != runs_as {
            return Err(Fault::Wrong(format!(
                "PodCertificateRequest for pod {pod_name:?} contains serviceAccountName ({named:?}) that differs \
                 from running pod ({runs_as:?})"
            )));
        }
        let account =
            self.account.ok_or_else(|| gone("service account", &format!("{namespace}/{named}"), named))?;
        if meta::uid(account) != text("serviceAccountUID") {
            return Err(Fault::Early(format!(
                "PodCertificateRequest for pod {pod_name:?} names service account UID {:?}, which differs from the \
                 running service account ({:?})",
                text("serviceAccountUID"),
                meta::uid(account)
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_gets_tokens_that_are_bound_to_a_pod_by_its_uid() {
        let bound = |reference: Value| json!({"spec": {"boundObjectRef": reference}});
        let unbound = Err("node requested token not bound to a pod");
        for (reference, found) in [
            (json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}), Ok(("p", "u"))),
            (json!(null), unbound),
            (json!({"apiVersion": "v1", "kind": "Secret", "name": "p", "uid": "u"}), unbound),
            (json!({"apiVersion": "v1", "kind": "Node", "name": "p", "uid": "u"}), unbound),
            (json!({"kind": "Pod", "name": "p", "uid": "u"}), unbound),
            (json!({"apiVersion": "v1", "kind": "Pod", "uid": "u"}), unbound),
            (
                json!({"apiVersion": "v1", "kind": "Pod", "name": "p"}),
                Err("node requested token with a pod binding without a uid"),
            ),
        ] {
            assert_eq!(bound_pod(&bound(reference.clone())), found, "{reference}");
        }
    }

    #[test]
    fn a_node_gets_tokens_for_its_own_pods_only() {
        let pod = json!({"metadata": {"uid": "u"}, "spec": {"nodeName": "n"}});
        assert_eq!(is_own(&pod, "u", "n"), Ok(()));
        let why = is_own(&pod, "other", "n").unwrap_err();
        assert!(why.starts_with("the UID in the bound object reference (other) does not match"), "{why}");
        let why = is_own(&pod, "u", "m").unwrap_err();
        assert_eq!(why, "node requested token bound to a pod scheduled on a different node");
        let waiting = json!({"metadata": {"uid": "u"}, "spec": {}});
        assert!(is_own(&waiting, "u", "n").is_err());
    }

    #[test]
    fn a_node_asks_for_one_audience_at_most() {
        let request = |audiences: Value| json!({"spec": {"audiences": audiences}});
        assert_eq!(requested_audience(&request(json!(null))), Ok(""));
        assert_eq!(requested_audience(&request(json!([]))), Ok(""));
        assert_eq!(requested_audience(&request(json!(["a"]))), Ok("a"));
        let why = Err("node may only request 0 or 1 audiences");
        assert_eq!(requested_audience(&request(json!(["a", "b"]))), why);
    }

    #[test]
    fn a_pod_certificate_is_for_a_pod_as_it_runs() {
        let spec = json!({"nodeName": "n", "nodeUID": "nu", "podName": "p", "podUID": "pu",
            "serviceAccountName": "a", "serviceAccountUID": "au"});
        let object = |uid: &str| json!({"metadata": {"uid": uid}});
        let pod = |spec: Value| json!({"metadata": {"uid": "pu"}, "spec": spec});
        let (node, account) = (object("nu"), object("au"));
        let good = pod(json!({"nodeName": "n", "serviceAccountName": "a"}));
        let all = Described { node: Some(&node), pod: Some(&good), account: Some(&account) };
        assert_eq!(all.check(&spec, "ns"), Ok(()));
        let other = object("other");
        let elsewhere = pod(json!({"nodeName": "m", "serviceAccountName": "a"}));
        let as_other = pod(json!({"nodeName": "n", "serviceAccountName": "b"}));
        let mut mirror = good.clone();
        mirror["metadata"]["annotations"] = json!({MIRROR: "x"});
        let table = [
            (Described { node: None, ..all }, false, "while retrieving node \"n\""),
            (Described { node: Some(&other), ..all }, false, "names node UID \"nu\""),
            (Described { pod: None, ..all }, false, "while retrieving pod \"ns/p\""),
            (Described { pod: Some(&other), ..all }, false, "contains pod UID (\"pu\")"),
            (Described { pod: Some(&elsewhere), ..all }, true, "is not running on node \"n\""),
            (Described { pod: Some(&mirror), ..all }, true, "is a mirror pod"),
            (Described { pod: Some(&as_other), ..all }, true, "contains serviceAccountName (\"a\")"),
            (Described { account: None, ..all }, false, "serviceaccount \"a\" not found"),
            (Described { account: Some(&other), ..all }, false, "names service account UID \"au\""),
        ];
        for (described, wrong, text) in table {
            match described.check(&spec, "ns").unwrap_err() {
                Fault::Wrong(why) => assert!(wrong && why.contains(text), "{why}"),
                Fault::Early(why) => assert!(!wrong && why.contains(text), "{why}"),
            }
        }
    }
}
