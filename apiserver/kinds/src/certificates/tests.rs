use serde_json::{Value, json};

use crate::testing::{NONE, cells, defaulted_at, errors, with};

#[test]
fn pod_certificates_live_for_a_day_by_default() {
    let path = "certificates.k8s.io/v1beta1/podcertificaterequests";
    let base = json!({"spec": {"signerName": "example.com/s", "podName": "p", "podUID": "u", "serviceAccountName": "s",
        "serviceAccountUID": "v", "nodeName": "n", "nodeUID": "w", "pkixPublicKey": "MAYCAQECAQI="}});
    assert_eq!(defaulted_at(path, &base)["spec"]["maxExpirationSeconds"], 86_400);
}

/// A request for a certificate.
const PKCS10: &str = include_str!("../../../../tests/clients/tests/kubectl/joe.csr.base64");

#[test]
fn signing_requests_with_wrong_usages_are_refused() {
    let request = json!({"metadata": {"name": "system:x"}, "spec": {
        "request": PKCS10.trim(), "usages": ["client auth"], "signerName": "kubernetes.io/kube-apiserver-client"}});
    assert_eq!(errors("certificates.k8s.io", "certificatesigningrequests", &request), NONE);
    let bad = with(request.clone(), "/spec", json!({"signerName": "nobody"}));
    assert_eq!(errors("certificates.k8s.io", "certificatesigningrequests", &bad).len(), 3);
    let bad = with(request, "/spec/usages", json!(["q", "any", "any"]));
    assert_eq!(errors("certificates.k8s.io", "certificatesigningrequests", &bad).len(), 2);
}

#[test]
fn rows_of_signing_requests_show_their_conditions() {
    let request = |status: Value| {
        let object = json!({"metadata": {"name": "r"}, "spec": {"signerName": "s", "username": "u"}, "status": status});
        cells("certificates.k8s.io", "certificatesigningrequests", &object)[5].1.clone()
    };
    assert_eq!(request(json!({})), "Pending");
    assert_eq!(request(json!({"conditions": [{"type": "Failed"}]})), "Pending,Failed");
    assert_eq!(
        request(json!({"conditions": [{"type": "Approved"}], "certificate": "eA=="})),
        "Approved,Issued"
    );
}
