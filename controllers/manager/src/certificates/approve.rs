//! Approves the certificates of nodes: the client certificates of kubelets if whoever asks may have them by a
//! SubjectAccessReview, their serving certificates if they name nothing but the Node.
//!
//! A request by a bootstrap token is denied at once if the token has ended or the name is that of a living node:
//! a request that stayed open would be approved later, when the node is down or nobody remembers the token.

use std::sync::Arc;
use std::time::Duration;

use apiserver_client::cache::Selection;
use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::nodes::is_ready;
use controllers_runtime::{Attempt, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tracing::info;

use super::serving::{self, Cluster};
use super::{APPROVED, DENIED, has, is_issued, rules};
use crate::authority::Request;
use crate::bootstrap;
use crate::config::Config;
use crate::context::{Context, Tasks};
use crate::limits;
use crate::meta::name;

pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("csrapproving");
    let requests = context.informers.cache::<CertificateSigningRequest>();
    let nodes = context.informers.cache::<Node>();
    let labels = "kubernetes.io/service-name=kubernetes".to_owned();
    let servers =
        context.informers.select_in::<EndpointSlice>("default", Selection { labels, ..Selection::default() });
    // Without the periodic look at all objects: each open request has a time of its own, see `pause`.
    let changed = queue.clone();
    requests.on_change(move |change| changed.add(change.key()));
    follow_addresses(&nodes, &requests, &queue);
    let approver = Approver {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named("certificate-controller"),
        config: Arc::clone(&context.config),
        requests: requests.clone(),
        nodes: nodes.clone(),
        servers: servers.clone(),
    };
    context.start_with(tasks, queue, approver, limits::CERTIFICATE_WORKERS, async move {
        requests.synced().await;
        nodes.synced().await;
        servers.synced().await;
    });
}

/// Looks again at the newest requests of a Node whose addresses have changed: serving certificates may be
/// requested before the Node has its addresses.
fn follow_addresses(
    nodes: &Cache<Node>,
    requests: &Cache<CertificateSigningRequest>,
    queue: &WorkQueue<ObjectKey>,
) {
    let (requests, queue) = (requests.clone(), queue.clone());
    nodes.on_change(move |change| {
        let Change::Applied { old, new } = change else { return };
        let addresses = |node: &Node| node.status.as_ref().and_then(|status| status.addresses.clone());
        if old.as_ref().is_some_and(|old| addresses(old) == addresses(new)) {
            return;
        }
        let user = format!("{}{}", rules::NODE_PREFIX, name(&new.metadata));
        for request in newest_open(requests.list(), &user) {
            queue.add(ObjectKey::of(request.as_ref()));
        }
    });
}

/// Returns the newest open requests of a user: a kubelet waits for the last one, and nodes write their addresses
/// as often as they like.
fn newest_open(
    mut requests: Vec<Arc<CertificateSigningRequest>>,
    user: &str,
) -> Vec<Arc<CertificateSigningRequest>> {
    requests.retain(|request| request.spec.username.as_deref() == Some(user) && !is_decided(request));
    let created =
        |request: &CertificateSigningRequest| request.metadata.creation_timestamp.as_ref().map(|time| time.0);
    requests.sort_by_key(|request| std::cmp::Reverse(created(request)));
    requests.truncate(limits::CERTIFICATE_REQUESTS_OF_NODE);
    requests
}

/// Basis on which a request can be approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ground {
    /// A kubelet replaces its own client certificate.
    SelfNodeClient,
    /// A machine joins.
    NodeClient,
    /// A kubelet asks for its serving certificate.
    Serving,
}

impl Ground {
    /// Returns the subresource of `certificatesigningrequests` that the author must be allowed to create.
    fn permission(self) -> Option<&'static str> {
        match self {
            Self::SelfNodeClient => Some("selfnodeclient"),
            Self::NodeClient => Some("nodeclient"),
            Self::Serving => None,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::SelfNodeClient => {
                "Auto approving self kubelet client certificate after SubjectAccessReview."
            }
            Self::NodeClient => "Auto approving kubelet client certificate after SubjectAccessReview.",
            Self::Serving => {
                "Auto approving kubelet serving certificate: it names the Node and nothing else."
            }
        }
    }
}

fn is_decided(request: &CertificateSigningRequest) -> bool {
    is_issued(request) || has(request, APPROVED) || has(request, DENIED)
}

/// Returns the grounds on which a request may be approved, in the order in which to try them, with what it
/// asks for. Empty for all that is not a kubelet's, or is decided.
fn plan(request: &CertificateSigningRequest) -> (Vec<Ground>, Request) {
    let nothing = (Vec::new(), Request::default());
    let spec = &request.spec;
    let signers = [rules::KUBELET_CLIENT, rules::KUBELET_SERVING];
    if is_decided(request) || !signers.contains(&spec.signer_name.as_str()) {
        return nothing;
    }
    // The API server has checked the form; what cannot be read here is for a person to approve.
    let Ok(asked) = Request::parse(&spec.request.0) else { return nothing };
    let usages = spec.usages.as_deref().unwrap_or_default();
    let own = spec.username.as_deref() == Some(asked.common_name.as_str());
    let grounds = match spec.signer_name.as_str() {
        rules::KUBELET_CLIENT if rules::kubelet_client(&asked, usages).is_err() => Vec::new(),
        rules::KUBELET_CLIENT if own => vec![Ground::SelfNodeClient, Ground::NodeClient],
        rules::KUBELET_CLIENT => vec![Ground::NodeClient],
        _ if own && rules::kubelet_serving(&asked, usages).is_ok() => vec![Ground::Serving],
        _ => Vec::new(),
    };
    (grounds, asked)
}

/// Returns `true` if a request asks for the name of a living node, and is not that node's own: a machine that joins
/// must not stand in for it.
fn is_taken(request: &CertificateSigningRequest, asked: &Request, nodes: &[Arc<Node>]) -> bool {
    let own = request.spec.username.as_deref() == Some(asked.common_name.as_str());
    let node_name = asked.common_name.strip_prefix(rules::NODE_PREFIX).unwrap_or_default();
    !own && nodes.iter().any(|node| name(&node.metadata) == node_name && is_ready(node))
}

/// Reason of the Event and of the condition of a request for the name of a living node.
const NAME_TAKEN: &str = "NodeNameTaken";

/// Returns the denial of a bootstrap token's request, if it must not be approved: the token has ended, or the name
/// is that of a living node.
fn denial(id: &str, alive: bool, taken: bool, asked: &Request) -> Option<Verdict> {
    if !alive {
        let message = format!(
            "bootstrap token {id} has expired or was deleted: join with a new one of `hawser token create`"
        );
        return Some(Verdict::Deny { reason: "BootstrapTokenEnded", message });
    }
    taken.then(|| {
        let message = format!(
            "{} is a node that is alive: join under another name, or once the Node is NotReady or deleted",
            asked.common_name
        );
        Verdict::Deny { reason: NAME_TAKEN, message }
    })
}

/// Result of a look at a request on one ground.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Approve,
    /// It must not be approved later either.
    Deny {
        reason: &'static str,
        message: String,
    },
    /// It may be approved later, or by a person.
    Wait,
}

struct Approver {
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    config: Arc<Config>,
    requests: Cache<CertificateSigningRequest>,
    nodes: Cache<Node>,
    servers: Cache<EndpointSlice>,
}

impl Reconcile for Approver {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(request) = self.requests.get(key) else { return Ok(Outcome::Done) };
        let (grounds, asked) = plan(&request);
        for ground in &grounds {
            match self.judge(*ground, &request, &asked).await? {
                Verdict::Approve => {
                    return self.add_decision(&request, APPROVED, "AutoApproved", ground.message()).await;
                }
                Verdict::Deny { reason, message } => {
                    info!(request = name(&request.metadata), message, "certificate request denied");
                    self.recorder.warning(reference(request.as_ref()), reason, message.clone());
                    return self.add_decision(&request, DENIED, reason, &message).await;
                }
                Verdict::Wait => {}
            }
        }
        if grounds.is_empty() {
            return Ok(Outcome::Done);
        }
        // A role may be bound later, and a Node may get its addresses.
        let created = request.metadata.creation_timestamp.as_ref();
        let open_for = created.map(|created| self.ambient.now().duration_since(created.0));
        let open_for = open_for.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default();
        Ok(Outcome::After(pause(open_for, self.requests.len())))
    }
}

/// Returns the time until the next look at a request that has been open for some time: it doubles, and grows with
/// the number of requests, so that together they are looked at at a bounded rate.
fn pause(open_for: Duration, requests: usize) -> Duration {
    let turn = limits::CERTIFICATE_LOOK.saturating_mul(u32::try_from(requests).unwrap_or(u32::MAX));
    open_for.clamp(limits::CERTIFICATE_RETRY_MIN, limits::CERTIFICATE_RETRY_MAX).max(turn)
}

impl Approver {
    async fn judge(
        &self,
        ground: Ground,
        request: &CertificateSigningRequest,
        asked: &Request,
    ) -> Result<Verdict> {
        let Some(subresource) = ground.permission() else { return Ok(self.judge_serving(request, asked)) };
        if ground == Ground::NodeClient {
            let taken = is_taken(request, asked, &self.nodes.list());
            if let Some(id) = request.spec.username.as_deref().and_then(bootstrap::token_of) {
                // Asked anew each time: the cache may not know a token yet that was just made.
                let alive = bootstrap::is_alive(&self.client, id, self.ambient.now()).await?;
                if let Some(denial) = denial(id, alive, taken, asked) {
                    return Ok(denial);
                }
            } else if taken {
                let why = format!("{} is a node that is alive", asked.common_name);
                info!(request = name(&request.metadata), why, "client certificate not approved");
                self.recorder.warning(reference(request), NAME_TAKEN, why);
                return Ok(Verdict::Wait);
            }
        }
        let allowed = self.is_allowed(request, subresource).await?;
        Ok(if allowed { Verdict::Approve } else { Verdict::Wait })
    }

    fn judge_serving(&self, request: &CertificateSigningRequest, asked: &Request) -> Verdict {
        let nodes = self.nodes.list();
        let (mut servers, server_names) = serving::known_servers(&self.config.api_servers);
        servers.extend(serving::servers(&self.servers.list()));
        let cluster = Cluster {
            nodes: &nodes,
            services: &self.config.service_cidrs,
            servers: &servers,
            server_names: &server_names,
        };
        match serving::check(request, asked, &cluster) {
            Ok(()) => Verdict::Approve,
            Err(why) => {
                info!(request = name(&request.metadata), why, "serving certificate not approved");
                self.recorder.warning(reference(request), "ServingCertificateNotApproved", why);
                Verdict::Wait
            }
        }
    }

    /// Asks the API server whether the author of a request may have it approved.
    async fn is_allowed(&self, request: &CertificateSigningRequest, subresource: &str) -> Result<bool> {
        let spec = &request.spec;
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: spec.username.clone(),
                uid: spec.uid.clone(),
                groups: spec.groups.clone(),
                extra: spec.extra.clone(),
                resource_attributes: Some(ResourceAttributes {
                    group: Some("certificates.k8s.io".to_owned()),
                    resource: Some("certificatesigningrequests".to_owned()),
                    subresource: Some(subresource.to_owned()),
                    verb: Some("create".to_owned()),
                    version: Some("*".to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await;
        let answer = answer
            .attempt(|| format!("review the access of certificate request {}", name(&request.metadata)))?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    /// Adds the condition that approves or denies a request.
    async fn add_decision(
        &self,
        request: &CertificateSigningRequest,
        kind: &str,
        reason: &str,
        message: &str,
    ) -> Result<Outcome> {
        let conditions = request.status.as_ref().and_then(|status| status.conditions.clone());
        let mut conditions = json!(conditions.unwrap_or_default());
        if let Some(list) = conditions.as_array_mut() {
            list.push(json!({"type": kind, "status": "True", "reason": reason, "message": message}));
        }
        let meta = &request.metadata;
        let body = json!({
            "metadata": {"resourceVersion": meta.resource_version, "uid": meta.uid},
            "status": {"conditions": conditions},
        });
        let api: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        api.patch_approval(name(meta), &PatchParams::default(), &Patch::Merge(body))
            .await
            .attempt(|| format!("write condition {kind} of certificate request {}", name(meta)))?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::api::certificates::v1::{
        CertificateSigningRequestCondition, CertificateSigningRequestSpec,
    };

    use super::*;
    use crate::authority::request::tests::pem;

    fn request(signer: &str, author: &str, pem: &str, purpose: &str) -> CertificateSigningRequest {
        CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                request: ByteString(pem.as_bytes().to_vec()),
                signer_name: signer.to_owned(),
                usages: Some(vec!["digital signature".to_owned(), purpose.to_owned()]),
                username: Some(author.to_owned()),
                ..CertificateSigningRequestSpec::default()
            },
            ..CertificateSigningRequest::default()
        }
    }

    #[test]
    fn only_requests_of_kubelets_have_grounds() {
        let (client, serving) = (rules::KUBELET_CLIENT, rules::KUBELET_SERVING);
        let node = pem("system:node:a", &["system:nodes"], &[]);
        let server = pem("system:node:a", &["system:nodes"], &["a"]);
        let masters = pem("system:node:a", &["system:masters"], &[]);
        let (a, b, token) = ("system:node:a", "system:node:b", "system:bootstrap:abcdef");
        for (signer, author, pem, purpose, expected) in [
            (client, token, &node, "client auth", &[Ground::NodeClient][..]),
            (client, a, &node, "client auth", &[Ground::SelfNodeClient, Ground::NodeClient]),
            // A node that asks for another's name is a stranger: only `nodeclient` would allow it.
            (client, b, &node, "client auth", &[Ground::NodeClient]),
            (client, token, &masters, "client auth", &[]),
            (client, token, &node, "server auth", &[]),
            (client, token, &server, "client auth", &[]),
            ("kubernetes.io/kube-apiserver-client", token, &node, "client auth", &[]),
            ("kubernetes.io/kube-apiserver-client", a, &masters, "client auth", &[]),
            (serving, a, &server, "server auth", &[Ground::Serving]),
            (serving, b, &server, "server auth", &[]),
            (serving, token, &server, "server auth", &[]),
            (serving, a, &server, "client auth", &[]),
            (serving, a, &node, "server auth", &[]),
        ] {
            let (grounds, _) = plan(&request(signer, author, pem, purpose));
            assert_eq!(grounds, expected, "{signer} {author} {purpose}");
        }
    }

    #[test]
    fn requests_of_tokens_that_ended_or_for_living_nodes_are_denied() {
        let asked = crate::authority::request::tests::request("system:node:a", &["system:nodes"], &[]);
        let reason = |alive: bool, taken: bool| match denial("abcdef", alive, taken, &asked) {
            Some(Verdict::Deny { reason, message }) => Some((reason, message)),
            other => other.map(|other| panic!("{other:?}")),
        };
        assert_eq!(reason(true, false), None);
        let (why, message) = reason(true, true).unwrap();
        assert!(why == "NodeNameTaken" && message.contains("system:node:a is a node that is alive"));
        for taken in [true, false] {
            let (why, message) = reason(false, taken).unwrap();
            assert!(
                why == "BootstrapTokenEnded" && message.contains("token abcdef has expired"),
                "{message}"
            );
        }
    }

    /// Ten thousand open requests were each looked at every 30 s, and all of them at once every ten minutes.
    #[test]
    fn open_requests_are_looked_at_ever_less_often() {
        let second = Duration::from_secs(1);
        assert_eq!(pause(Duration::ZERO, 1), limits::CERTIFICATE_RETRY_MIN);
        assert_eq!(pause(60 * second, 1), 60 * second);
        assert_eq!(pause(24 * 3600 * second, 1), limits::CERTIFICATE_RETRY_MAX);
        for requests in [1, 1_000, 10_000, 1_000_000] {
            let looks_a_second = requests as f64 / pause(Duration::ZERO, requests).as_secs_f64();
            assert!(looks_a_second <= 20.0, "{requests}: {looks_a_second}");
        }
    }

    #[test]
    fn a_change_of_addresses_concerns_the_newest_requests_of_the_node() {
        let node = pem("system:node:a", &["system:nodes"], &["a"]);
        let requests: Vec<_> = (0..100)
            .map(|second| {
                let mut request = request(rules::KUBELET_SERVING, "system:node:a", &node, "server auth");
                request.metadata.name = Some(format!("r{second}"));
                request.metadata.creation_timestamp = crate::testing::time(second);
                if second == 99 {
                    request.spec.username = Some("system:node:b".to_owned());
                }
                Arc::new(request)
            })
            .collect();
        let newest = newest_open(requests, "system:node:a");
        assert_eq!(newest.len(), limits::CERTIFICATE_REQUESTS_OF_NODE);
        assert_eq!(name(&newest[0].metadata), "r98");
    }

    #[test]
    fn decided_requests_are_left_alone() {
        let node = pem("system:node:a", &["system:nodes"], &[]);
        for kind in [APPROVED, DENIED] {
            let mut request = request(rules::KUBELET_CLIENT, "system:node:a", &node, "client auth");
            let condition =
                CertificateSigningRequestCondition { type_: kind.to_owned(), ..Default::default() };
            request.status.get_or_insert_default().conditions = Some(vec![condition]);
            assert!(plan(&request).0.is_empty(), "{kind}");
        }
    }
}
