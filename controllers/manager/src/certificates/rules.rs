//! The requests that Kubernetes' signers sign.

use std::collections::BTreeSet;

use crate::authority::Request;
pub(super) use crate::authority::{CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY};

/// Group of all nodes.
pub(super) const NODES: &str = "system:nodes";
/// Prefix of the users of nodes.
pub(super) const NODE_PREFIX: &str = "system:node:";

const DIGITAL_SIGNATURE: &str = "digital signature";
const KEY_ENCIPHERMENT: &str = "key encipherment";
const CLIENT_AUTH: &str = "client auth";
const SERVER_AUTH: &str = "server auth";

/// Checks that a signer may sign a request for `usages`. `None` if the signer is not one of Kubernetes'; the
/// error becomes the message of the condition `Failed`.
pub(super) fn check(signer: &str, request: &Request, usages: &[String]) -> Option<Result<(), String>> {
    match signer {
        CLIENT => Some(client_usages(usages)),
        KUBELET_CLIENT => Some(kubelet_client(request, usages)),
        KUBELET_SERVING => Some(kubelet_serving(request, usages)),
        LEGACY => Some(Ok(())),
        _ => None,
    }
}

/// Checks that a request is for the client certificate of a kubelet.
pub(super) fn kubelet_client(request: &Request, usages: &[String]) -> Result<(), String> {
    of_nodes(request)?;
    let forbidden = [
        ("DNS", !request.dns_names.is_empty()),
        ("Email", !request.emails.is_empty()),
        ("IP", !request.addresses.is_empty()),
        ("URI", !request.uris.is_empty()),
    ];
    refuse_names(&forbidden)?;
    names_node(request)?;
    exactly(usages, CLIENT_AUTH)
}

/// Checks that a request is for the serving certificate of a kubelet.
pub(super) fn kubelet_serving(request: &Request, usages: &[String]) -> Result<(), String> {
    of_nodes(request)?;
    if request.dns_names.is_empty() && request.addresses.is_empty() {
        return Err("DNS or IP subjectAltName is required".to_owned());
    }
    refuse_names(&[("Email", !request.emails.is_empty()), ("URI", !request.uris.is_empty())])?;
    exactly(usages, SERVER_AUTH)?;
    names_node(request)
}

fn client_usages(usages: &[String]) -> Result<(), String> {
    for usage in usages {
        if ![DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, CLIENT_AUTH].contains(&usage.as_str()) {
            return Err(format!("invalid usage for client certificate: {usage}"));
        }
    }
    if !usages.iter().any(|usage| usage == CLIENT_AUTH) {
        return Err(format!("missing required usage for client certificate: {CLIENT_AUTH}"));
    }
    Ok(())
}

fn of_nodes(request: &Request) -> Result<(), String> {
    if request.organizations != [NODES] {
        return Err(format!("subject organization is not {NODES}"));
    }
    Ok(())
}

fn names_node(request: &Request) -> Result<(), String> {
    if !request.common_name.starts_with(NODE_PREFIX) {
        return Err(format!("subject common name does not begin with {NODE_PREFIX}"));
    }
    Ok(())
}

fn refuse_names(kinds: &[(&str, bool)]) -> Result<(), String> {
    match kinds.iter().find(|(_, present)| *present) {
        Some((kind, _)) => Err(format!("{kind} subjectAltNames are not allowed")),
        None => Ok(()),
    }
}

/// Checks that the usages are `purpose` and a signature; encipherment may be there, for RSA keys.
fn exactly(usages: &[String], purpose: &str) -> Result<(), String> {
    let given: BTreeSet<&str> = usages.iter().map(String::as_str).collect();
    let mut wanted = BTreeSet::from([purpose, DIGITAL_SIGNATURE]);
    let without_rsa = given == wanted;
    wanted.insert(KEY_ENCIPHERMENT);
    if without_rsa || given == wanted {
        return Ok(());
    }
    let list: Vec<&str> = wanted.into_iter().collect();
    Err(format!("usages did not match [{}]", list.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::request::tests::request;

    fn usages(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn client_certificates_of_kubelets_name_a_node_and_nothing_else() {
        let good = request("system:node:a", &[NODES], &[]);
        for list in
            [&[DIGITAL_SIGNATURE, CLIENT_AUTH][..], &[CLIENT_AUTH, KEY_ENCIPHERMENT, DIGITAL_SIGNATURE]]
        {
            assert_eq!(kubelet_client(&good, &usages(list)), Ok(()));
        }
        let wrong: [&[&str]; 5] = [
            &[],
            &[CLIENT_AUTH],
            &[DIGITAL_SIGNATURE, SERVER_AUTH],
            &[DIGITAL_SIGNATURE, CLIENT_AUTH, SERVER_AUTH],
            &[DIGITAL_SIGNATURE, CLIENT_AUTH, "cert sign"],
        ];
        for list in wrong {
            let error = kubelet_client(&good, &usages(list)).unwrap_err();
            assert_eq!(error, "usages did not match [client auth digital signature key encipherment]");
        }
        let list = usages(&[DIGITAL_SIGNATURE, CLIENT_AUTH]);
        for (user, groups, names, why) in [
            ("system:node:a", &["system:masters"][..], &[][..], "subject organization is not system:nodes"),
            ("system:node:a", &[NODES, "system:masters"], &[], "subject organization is not system:nodes"),
            ("system:node:a", &[], &[], "subject organization is not system:nodes"),
            ("admin", &[NODES], &[], "subject common name does not begin with system:node:"),
            ("system:node:a", &[NODES], &["a"], "DNS subjectAltNames are not allowed"),
            ("system:node:a", &[NODES], &["192.0.2.1"], "IP subjectAltNames are not allowed"),
        ] {
            assert_eq!(kubelet_client(&request(user, groups, names), &list).unwrap_err(), why);
        }
    }

    #[test]
    fn serving_certificates_of_kubelets_need_a_name_and_serve_only() {
        let list = usages(&[DIGITAL_SIGNATURE, SERVER_AUTH]);
        assert_eq!(kubelet_serving(&request("system:node:a", &[NODES], &["a", "192.0.2.1"]), &list), Ok(()));
        let bare = request("system:node:a", &[NODES], &[]);
        assert_eq!(kubelet_serving(&bare, &list).unwrap_err(), "DNS or IP subjectAltName is required");
        let both = usages(&[DIGITAL_SIGNATURE, SERVER_AUTH, CLIENT_AUTH]);
        assert!(kubelet_serving(&request("system:node:a", &[NODES], &["a"]), &both).is_err());
        assert!(kubelet_serving(&request("a", &[NODES], &["a"]), &list).is_err());
    }

    #[test]
    fn the_signer_for_clients_signs_nothing_that_serves_or_signs() {
        let user = request("jane", &["team"], &[]);
        assert_eq!(check(CLIENT, &user, &usages(&[CLIENT_AUTH])), Some(Ok(())));
        for usage in [SERVER_AUTH, "cert sign", "any"] {
            let error = check(CLIENT, &user, &usages(&[CLIENT_AUTH, usage])).unwrap().unwrap_err();
            assert_eq!(error, format!("invalid usage for client certificate: {usage}"));
        }
        let error = check(CLIENT, &user, &usages(&[DIGITAL_SIGNATURE])).unwrap().unwrap_err();
        assert_eq!(error, "missing required usage for client certificate: client auth");
        assert_eq!(check("example.com/own", &user, &[]), None);
        assert_eq!(check(LEGACY, &user, &usages(&["any"])), Some(Ok(())));
    }
}
