//! Tests of the rights to approve, sign and attest for a signer, and of requests that nobody may make of it.

use apiserver_meta::identity::Identity;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use crate::api::harness::{Api, Reply};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// A request for a certificate with these names and groups.
fn request(name: &str, signer: &str, common_names: &[&str], groups: &[&str]) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for common_name in common_names {
        params.distinguished_name.push(DnType::CommonName, *common_name);
    }
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    json!({"metadata": {"name": name}, "spec": {
        "request": STANDARD.encode(pem), "signerName": signer, "usages": ["client auth"]}})
}

/// Returns a user that may write all kinds about certificates, and has the verb on signers of these names.
async fn with_rights(api: &Api, user: &str, verb: &str, signers: &[&str]) -> Api {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let mut rules = vec![json!({"verbs": ["*"], "apiGroups": ["certificates.k8s.io"], "resources": [
        "certificatesigningrequests", "certificatesigningrequests/approval",
        "certificatesigningrequests/status", "clustertrustbundles", "podcertificaterequests",
        "podcertificaterequests/status"]})];
    if !signers.is_empty() {
        rules.push(json!({"verbs": [verb], "apiGroups": ["certificates.k8s.io"], "resources": ["signers"],
            "resourceNames": signers}));
    }
    let role = json!({"metadata": {"name": user}, "rules": rules});
    api.post(&format!("{rbac}/clusterroles"), role).await.expect(201);
    let binding = json!({"metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
    api.post(&format!("{rbac}/clusterrolebindings"), binding).await.expect(201);
    api.as_user(Identity::authenticated(user, &[]))
}

/// Each way to write `status` of an object through a subresource.
async fn every_way(api: &Api, path: &str, subresource: &str, status: Value) -> Vec<Reply> {
    let path = format!("{path}/{subresource}");
    let mut whole = api.get(&path).await.expect(200).body;
    whole["status"] = status.clone();
    let put = api.put(&path, whole.clone()).await;
    let patch = json!({"status": status});
    let merged = api.patch("merge", &path, patch.clone()).await;
    let strategic = api.patch("strategic-merge", &path, patch).await;
    let add = json!([{"op": "add", "path": "/status", "value": status}]);
    let json_patch = api.patch("json", &path, add).await;
    let applied = json!({"apiVersion": whole["apiVersion"], "kind": whole["kind"],
        "metadata": {"name": whole["metadata"]["name"]}, "status": status});
    let headers = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{path}?fieldManager=me&force=true");
    let applied = api.call("PATCH", &path, &headers, applied.to_string()).await;
    vec![put, merged, strategic, json_patch, applied]
}

#[tokio::test(start_paused = true)]
async fn to_approve_takes_the_verb_on_the_signer() {
    let api = Api::start().await;
    let none = with_rights(&api, "none", "approve", &[]).await;
    let other = with_rights(&api, "other", "approve", &["example.com/other", "example.org/*"]).await;
    let signer = with_rights(&api, "signer", "sign", &["example.com/x"]).await;
    let approved = || json!({"conditions": [{"type": "Approved", "status": "True", "reason": "Test"}]});
    api.post(REQUESTS, request("r", "example.com/x", &["x"], &[])).await.expect(201);
    for user in [&none, &other, &signer] {
        for refused in every_way(user, &format!("{REQUESTS}/r"), "approval", approved()).await {
            let why = "user not permitted to approve requests with signerName \"example.com/x\"";
            assert_eq!(refused.code, 403, "{}", refused.text);
            assert!(refused.message().ends_with(why), "{}", refused.text);
        }
    }
    let named = with_rights(&api, "named", "approve", &["example.com/x"]).await;
    let domain = with_rights(&api, "domain", "approve", &["example.com/*"]).await;
    for (name, user) in [("a", &named), ("b", &domain)] {
        api.post(REQUESTS, request(name, "example.com/x", &["x"], &[])).await.expect(201);
        let path = format!("{REQUESTS}/{name}/approval");
        let done = user.patch("merge", &path, json!({"status": approved()})).await.expect(200).body;
        assert_eq!(done["status"]["conditions"][0]["type"], "Approved");
    }
}

#[tokio::test(start_paused = true)]
async fn to_sign_takes_the_verb_on_the_signer() {
    let api = Api::start().await;
    api.post(REQUESTS, request("r", "example.com/x", &["x"], &[])).await.expect(201);
    let path = format!("{REQUESTS}/r");
    let pem = include_str!("../../../kinds/src/certificates/testdata/leaf.pem");
    let certificate = json!({"certificate": STANDARD.encode(pem)});
    let failed = json!({"conditions": [{"type": "Failed", "status": "True", "reason": "Test"}]});
    let approver = with_rights(&api, "approver", "approve", &["example.com/x"]).await;
    for status in [certificate.clone(), failed] {
        for refused in every_way(&approver, &path, "status", status).await {
            let why = "user not permitted to sign requests with signerName \"example.com/x\"";
            assert_eq!(refused.code, 403, "{}", refused.text);
            assert!(refused.message().ends_with(why), "{}", refused.text);
        }
    }
    let note = json!({"metadata": {"annotations": {"note": "x"}}});
    approver.patch("merge", &format!("{path}/status"), note).await.expect(200);
    let signer = with_rights(&api, "signer", "sign", &["example.com/*"]).await;
    let patch = json!({"status": certificate});
    let signed = signer.patch("merge", &format!("{path}/status"), patch).await.expect(200).body;
    assert_eq!(signed["status"]["certificate"], certificate["certificate"]);
}

#[tokio::test(start_paused = true)]
async fn nobody_asks_the_client_signer_for_the_group_of_masters() {
    let api = Api::start().await;
    let why = "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
    for (name, groups) in [("a", &["system:masters"][..]), ("b", &["team", "system:masters"])] {
        let refused = api.post(REQUESTS, request(name, CLIENT_SIGNER, &["x"], groups)).await.expect(403);
        assert!(refused.message().ends_with(why), "{}", refused.text);
    }
    api.post(REQUESTS, request("c", CLIENT_SIGNER, &["x"], &["team"])).await.expect(201);
    api.post(REQUESTS, request("d", "example.com/x", &["x"], &["system:masters"])).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn a_request_hidden_behind_another_one_is_refused() {
    let api = Api::start().await;
    let decoded = |object: &Value| STANDARD.decode(object["spec"]["request"].as_str().unwrap()).unwrap();
    let mut first = request("r", CLIENT_SIGNER, &["x"], &["team"]);
    let second = request("s", CLIENT_SIGNER, &["x"], &["system:masters"]);
    // Some programs look for a block at the beginning of a line, others anywhere.
    let both = [b"x".to_vec(), decoded(&first), decoded(&second)].concat();
    first["spec"]["request"] = STANDARD.encode(both).into();
    let refused = api.post(REQUESTS, first).await.expect(403);
    assert!(refused.message().contains("failed to parse CSR"), "{}", refused.text);
}

#[tokio::test(start_paused = true)]
async fn a_node_asks_for_certificates_in_its_own_name_only() {
    let api = Api::start().await;
    let node = api.as_user(Identity::authenticated("system:node:n1", &["system:nodes"]));
    for signer in ["kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"] {
        let ask = |name: &'static str, names: &'static [&'static str]| {
            node.post(REQUESTS, request(name, signer, names, &["system:nodes"]))
        };
        let why = "can only create a node CSR with CN=system:node:n1";
        for names in [&["system:node:n2"][..], &["admin"], &[], &["system:node:n1", "system:node:n2"]] {
            let refused = ask("refused", names).await.expect(403);
            assert!(refused.message().ends_with(why), "{}", refused.text);
        }
        let name = if signer.ends_with("serving") { "serving" } else { "client" };
        ask(name, &["system:node:n1"]).await.expect(201);
        let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}});
        node.patch("merge", &format!("{REQUESTS}/{name}/approval"), approved).await.expect(403);
    }
}

#[tokio::test(start_paused = true)]
async fn to_write_a_bundle_takes_the_verb_on_its_signer() {
    let api = Api::start().await;
    let bundles = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
    let pem = include_str!("../../../kinds/src/certificates/testdata/authority.pem");
    let bundle = |name: &str, signer: &str| {
        let spec = if signer.is_empty() {
            json!({"trustBundle": pem})
        } else {
            json!({"trustBundle": pem, "signerName": signer})
        };
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let none = with_rights(&api, "none", "attest", &["example.com/other"]).await;
    let why = "user not permitted to attest for signerName \"example.com/x\"";
    let refused = none.post(bundles, bundle("example.com:x:b", "example.com/x")).await.expect(403);
    assert!(refused.message().ends_with(why), "{}", refused.text);
    none.post(bundles, bundle("plain", "")).await.expect(201);
    let attester = with_rights(&api, "attester", "attest", &["example.com/x"]).await;
    attester.post(bundles, bundle("example.com:x:b", "example.com/x")).await.expect(201);
    let path = format!("{bundles}/example.com:x:b");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let refused = none.patch("merge", &path, label.clone()).await.expect(403);
    assert!(refused.message().ends_with(why), "{}", refused.text);
    none.patch("merge", &path, json!({"metadata": {"finalizers": ["example.com/f"]}})).await.expect(200);
    attester.patch("merge", &path, label).await.expect(200);
}
