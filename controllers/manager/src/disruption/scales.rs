//! The sum of the scales of the controllers of some pods: those of the built-in kinds from the caches, those of all
//! others from their `scale` subresource.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_client::ObjectKey;
use controllers_runtime::{Attempt, Error, Result, is_not_found};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList, OwnerReference};
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};
use tokio::time::Instant;

use super::workloads::{Scale, Workloads, group_version};
use crate::limits::SCALES_REMEMBERED;
use crate::meta::{controller_of, is_segment, name};
use crate::pods::Pod;

/// Resources by API version, with the time of the server's answer.
type Served = BTreeMap<String, (Instant, Arc<Vec<APIResource>>)>;

/// The scales of the controllers of pods.
pub(super) struct Scales {
    client: Client,
    workloads: Workloads,
    /// The resources of the API versions that were asked for. Only versions that the server has are stored, so that
    /// there are not more than of those.
    served: Mutex<Served>,
}

/// The scale of a budget's pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub replicas: i32,
    /// Names of the pods without a controller.
    pub unmanaged: Vec<String>,
}

impl Scales {
    pub fn new(client: Client, workloads: Workloads) -> Self {
        Self { client, workloads, served: Mutex::default() }
    }

    /// Returns the sum of the scales of the controllers of these pods, each counted once.
    pub async fn sum(&self, budget: &ObjectKey, pods: &[Arc<Pod>]) -> Result<Sum> {
        let (mut owners, mut scales, mut unmanaged) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        for pod in pods {
            let Some(owner) = controller_of(&pod.metadata) else {
                unmanaged.push(name(&pod.metadata).to_owned());
                continue;
            };
            if !owners.insert(&owner.uid) {
                continue;
            }
            let Some(scale) = self.find(budget, owner).await? else {
                return Err(unusable(
                    budget,
                    format!("found no controllers for pod {:?}", name(&pod.metadata)),
                ));
            };
            // Several ReplicaSets have one Deployment.
            scales.insert(scale.uid, i64::from(scale.replicas));
        }
        let replicas = i32::try_from(scales.values().sum::<i64>()).unwrap_or(i32::MAX);
        Ok(Sum { replicas, unmanaged })
    }

    async fn find(&self, budget: &ObjectKey, owner: &OwnerReference) -> Result<Option<Scale>> {
        if let Some(found) = self.workloads.find(&budget.namespace, owner) {
            return Ok(Some(found));
        }
        let Some((group, version)) = group_version(&owner.api_version) else {
            let problem = format!("unexpected GroupVersion string: {}", owner.api_version);
            return Err(unusable(budget, problem));
        };
        // Who creates pods writes these texts, and they become a part of a path.
        let is_plain = is_segment(version) && (group.is_empty() || is_segment(group));
        let resources = if is_plain { self.resources(group, version).await? } else { None };
        let resources = resources.as_deref().map(Vec::as_slice).unwrap_or_default();
        let Some(plural) = plural(resources, &owner.kind) else {
            let problem = format!("no matches for kind {:?} in version {:?}", owner.kind, owner.api_version);
            return Err(unusable(budget, problem));
        };
        let qualified = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        if !has_scale(resources, plural) {
            let problem = format!("{qualified} does not implement the scale subresource");
            return Err(unusable(budget, problem));
        }
        if !is_segment(&owner.name) {
            return Ok(None);
        }
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: owner.api_version.trim_start_matches('/').to_owned(),
            kind: owner.kind.clone(),
            plural: plural.to_owned(),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &budget.namespace, &resource);
        let scale = match api.get_scale(&owner.name).await {
            Err(error) if is_not_found(&error) => return Ok(None),
            other => other.attempt(|| format!("get the scale of {qualified} {}", owner.name))?,
        };
        let replicas = scale.spec.and_then(|spec| spec.replicas).unwrap_or(0);
        let found = scale.metadata.uid.filter(|uid| *uid == owner.uid);
        Ok(found.map(|uid| Scale { uid, replicas }))
    }

    /// Returns the resources of an API version; `None` if the server does not have it.
    async fn resources(&self, group: &str, version: &str) -> Result<Option<Arc<Vec<APIResource>>>> {
        let key = format!("{group}/{version}");
        let known = self.served(|served| served.get(&key).cloned());
        if let Some((_, resources)) = known.filter(|(at, _)| at.elapsed() < SCALES_REMEMBERED) {
            return Ok(Some(resources));
        }
        let answer = if group.is_empty() {
            self.client.list_core_api_resources(version).await
        } else {
            self.client.list_api_group_resources(&key).await
        };
        let APIResourceList { resources, .. } = match answer {
            Err(error) if is_not_found(&error) => {
                self.served(|served| served.remove(&key));
                return Ok(None);
            }
            other => other.attempt(|| format!("discover the resources of {key}"))?,
        };
        let resources = Arc::new(resources);
        self.served(|served| served.insert(key, (Instant::now(), Arc::clone(&resources))));
        Ok(Some(resources))
    }

    fn served<T>(&self, f: impl FnOnce(&mut Served) -> T) -> T {
        f(&mut self.served.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the error about a budget that cannot be judged. `problem` is in the words of Kubernetes.
pub(super) fn unusable(budget: &ObjectKey, problem: String) -> Error {
    Error::Unusable { object: format!("PodDisruptionBudget {budget}"), problem }
}

/// Returns the name of the resource of a kind.
fn plural<'a>(resources: &'a [APIResource], kind: &str) -> Option<&'a str> {
    let mut names = resources.iter().filter(|one| one.kind == kind).map(|one| one.name.as_str());
    names.find(|name| is_segment(name))
}

/// Returns `true` if a resource has a `scale` subresource in the form that this controller reads.
fn has_scale(resources: &[APIResource], plural: &str) -> bool {
    let scale = resources.iter().find(|one| one.name.strip_suffix("/scale") == Some(plural));
    scale.is_some_and(|scale| {
        scale.kind == "Scale"
            && scale.group.as_deref() == Some("autoscaling")
            && scale.version.as_deref() == Some("v1")
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::testing::pod;

    const LIST: &str = "/apis/example.com/v1";
    const SCALE: &str = "/apis/example.com/v1/namespaces/ns/gamesets/g/scale";

    /// Returns a client of a server that has GameSets, of which `g` wants three pods, and GameMaps, which have no
    /// scale; and the paths that were requested of it.
    fn server() -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().to_string();
            seen.lock().unwrap().push(path.clone());
            let resource = |name: &str, kind: &str| {
                json!({"name": name, "kind": kind, "namespaced": true, "singularName": "",
                    "verbs": []})
            };
            let mut scale = resource("gamesets/scale", "Scale");
            scale["group"] = json!("autoscaling");
            scale["version"] = json!("v1");
            let (code, body) = match path.as_str() {
                LIST => (
                    200,
                    json!({"groupVersion": "example.com/v1", "resources": [
                    resource("gamesets", "GameSet"), scale, resource("gamemaps", "GameMap")]}),
                ),
                SCALE => (200, json!({"metadata": {"name": "g", "uid": "uid-g"}, "spec": {"replicas": 3}})),
                _ => (
                    404,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                    "reason": "NotFound", "message": "not found"}),
                ),
            };
            let body = Body::from(body.to_string().into_bytes());
            async move { Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap()) }
        });
        (Client::new(service, "default"), asked)
    }

    fn of(name: &str, (api_version, kind, owner, uid): (&str, &str, &str, &str)) -> Arc<Pod> {
        let mut pod = pod(name);
        pod.metadata.owner_references = Some(vec![OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: owner.to_owned(),
            uid: uid.to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        }]);
        Arc::new(pod.into())
    }

    #[tokio::test(start_paused = true)]
    async fn scale_of_a_custom_controller_is_counted_once_and_its_kind_is_remembered_for_a_while() {
        let (client, asked) = server();
        let scales = Scales::new(client, Workloads::default());
        let owner = ("example.com/v1", "GameSet", "g", "uid-g");
        let pods = [of("a", owner), of("b", owner), Arc::new(pod("c").into())];
        let budget = ObjectKey::new("ns", "b");
        let wanted = Sum { replicas: 3, unmanaged: vec!["c".to_owned()] };
        for expected in [&[LIST, SCALE][..], &[SCALE]] {
            assert_eq!(scales.sum(&budget, &pods).await.unwrap(), wanted);
            assert_eq!(std::mem::take(&mut *asked.lock().unwrap()), expected);
        }
        tokio::time::advance(SCALES_REMEMBERED + Duration::from_secs(1)).await;
        scales.sum(&budget, &pods).await.unwrap();
        assert_eq!(*asked.lock().unwrap(), [LIST, SCALE]);
    }

    #[tokio::test(start_paused = true)]
    async fn owners_that_cannot_be_found_are_errors_and_lead_to_no_other_path() {
        let (client, asked) = server();
        let scales = Scales::new(client, Workloads::default());
        let (known, none) = ("example.com/v1", "found no controllers for pod \"p\"");
        for (owner, problem) in [
            ((known, "GameSet", "g", "uid-former"), none),
            ((known, "GameSet", "h", "uid-h"), none),
            ((known, "GameSet", "g/../../../secrets/s", "uid-g"), none),
            ((known, "GameSet", "g?x=", "uid-g"), none),
            (
                (known, "GameMap", "m", "uid-m"),
                "gamemaps.example.com does not implement the scale subresource",
            ),
            ((known, "Game", "m", "uid-m"), "no matches for kind \"Game\" in version \"example.com/v1\""),
            (("test.io/v1", "Game", "m", "uid-m"), "no matches for kind \"Game\" in version \"test.io/v1\""),
            (("a/b/c", "Game", "m", "uid-m"), "unexpected GroupVersion string: a/b/c"),
            (("a/..", "Game", "m", "uid-m"), "no matches for kind \"Game\" in version \"a/..\""),
            (("v1?x", "Game", "m", "uid-m"), "no matches for kind \"Game\" in version \"v1?x\""),
        ] {
            match scales.sum(&ObjectKey::new("ns", "b"), &[of("p", owner)]).await {
                Err(Error::Unusable { problem: found, .. }) => assert_eq!(found, problem),
                other => panic!("{owner:?}: {other:?}"),
            }
        }
        let paths = std::mem::take(&mut *asked.lock().unwrap());
        let absent = "/apis/example.com/v1/namespaces/ns/gamesets/h/scale";
        assert_eq!(paths, [LIST, SCALE, absent, "/apis/test.io/v1"]);
    }

    fn resources(value: serde_json::Value) -> Vec<APIResource> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_kind_has_a_scale_only_in_the_form_that_is_read() {
        let scale = |group: &str, version: &str, kind: &str| {
            resources(json!([
                {"name": "sets/status", "kind": "Set", "namespaced": true, "singularName": "", "verbs": []},
                {"name": "sets", "kind": "Set", "namespaced": true, "singularName": "", "verbs": []},
                {"name": "sets/scale", "kind": kind, "group": group, "version": version, "namespaced": true,
                    "singularName": "", "verbs": []},
            ]))
        };
        let known = scale("autoscaling", "v1", "Scale");
        assert_eq!(plural(&known, "Set"), Some("sets"));
        assert_eq!(plural(&known, "Other"), None);
        assert!(has_scale(&known, "sets"));
        assert!(!has_scale(&known[..2], "sets"));
        assert!(!has_scale(&known, "set"));
        for (group, version, kind) in
            [("autoscaling", "v2", "Scale"), ("", "v1", "Set"), ("apps", "v1", "Scale")]
        {
            assert!(!has_scale(&scale(group, version, kind), "sets"), "{group}/{version} {kind}");
        }
    }

    #[test]
    fn texts_of_tenants_are_parts_of_a_path_only_as_single_segments() {
        for plain in ["web", "example.com", "v1", "a:b", "web-0", "_x", "a..b"] {
            assert!(is_segment(plain), "{plain}");
        }
        for hostile in ["", ".", "..", "a/b", "../secrets", "a?b", "a#b", "a%2fb", "a b", "a\\b", "ü", "a\nb"]
        {
            assert!(!is_segment(hostile), "{hostile}");
        }
    }
}
