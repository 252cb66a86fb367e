//! Tests of discovery and OpenAPI in every form: each must describe the served APIs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use k8s_pb::api::apidiscovery::v2::APIGroupDiscoveryList;
use k8s_pb::apimachinery::pkg::apis::meta::v1::{APIGroup, APIGroupList, APIResourceList, APIVersions};
use serde_json::{Value, json};

use crate::api::crds::{establish, widgets};
use crate::api::envelope::open;
use crate::api::harness::Api;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn aggregated(media: &str, version: &str) -> String {
    format!("{media};g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList")
}

async fn raw(api: &Api, path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap, Bytes) {
    let request = headers.iter().fold(Request::builder().uri(path), |r, (key, value)| r.header(*key, *value));
    let (parts, body) = api.send(request.body(Bytes::new()).unwrap()).await.into_parts();
    (parts.status.as_u16(), parts.headers, body.collect().await.unwrap().to_bytes())
}

/// GROUP/VERSION/NAME and its kind and verbs, of kinds and subresources.
type Served = BTreeMap<String, (String, Vec<String>)>;

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

async fn legacy(api: &Api) -> Served {
    let mut versions = vec![("".to_owned(), "/api/v1".to_owned())];
    for group in api.get("/apis").await.expect(200).body["groups"].as_array().unwrap() {
        let name = group["name"].as_str().unwrap();
        assert_eq!(group["preferredVersion"], group["versions"][0]);
        let alone = api.get(&format!("/apis/{name}")).await.expect(200).body;
        assert_eq!((&alone["versions"], &alone["kind"]), (&group["versions"], &json!("APIGroup")));
        for version in group["versions"].as_array().unwrap() {
            let path = format!("/apis/{}", version["groupVersion"].as_str().unwrap());
            versions.push((name.to_owned(), path));
        }
    }
    let mut served = Served::new();
    for (group, path) in versions {
        let list = api.get(&path).await.expect(200).body;
        let version = list["groupVersion"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        for resource in list["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            assert!(resource["singularName"].is_string(), "{name}");
            let kind = resource["kind"].as_str().unwrap().to_owned();
            served.insert(format!("{group}/{version}/{name}"), (kind, texts(&resource["verbs"])));
        }
    }
    served
}

fn of_aggregated(list: &Value, served: &mut Served) {
    for group in list["items"].as_array().unwrap() {
        let name = group["metadata"]["name"].as_str().unwrap_or_default();
        for version in group["versions"].as_array().unwrap() {
            assert_eq!(version["freshness"], "Current");
            let version_name = version["version"].as_str().unwrap();
            for resource in version["resources"].as_array().unwrap() {
                let plural = resource["resource"].as_str().unwrap();
                let mut add = |name: String, entry: &Value| {
                    let kind = entry["responseKind"]["kind"].as_str().unwrap().to_owned();
                    served.insert(name, (kind, texts(&entry["verbs"])));
                };
                add(format!("{name}/{version_name}/{plural}"), resource);
                for sub in resource["subresources"].as_array().into_iter().flatten() {
                    let of = sub["subresource"].as_str().unwrap();
                    add(format!("{name}/{version_name}/{plural}/{of}"), sub);
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn all_forms_of_discovery_say_the_same() {
    let api = Api::start().await;
    establish(&api, widgets()).await;
    let old = legacy(&api).await;
    assert!(
        old.contains_key("apps/v1/deployments/scale") && old.contains_key("example.com/v1/widgets/status")
    );
    for version in ["v2", "v2beta1"] {
        let (mut in_json, mut in_protobuf) = (Served::new(), BTreeSet::new());
        for path in ["/api", "/apis"] {
            let accept = aggregated("application/json", version);
            let reply = api.get_as(path, &accept).await.expect(200);
            assert_eq!(reply.headers["content-type"], accept.as_str());
            assert_eq!(reply.headers["vary"], "Accept");
            assert_eq!(reply.body["apiVersion"], format!("apidiscovery.k8s.io/{version}"));
            of_aggregated(&reply.body, &mut in_json);
            let accept = aggregated(PROTOBUF, version);
            let (code, headers, bytes) = raw(&api, path, &[("accept", &accept)]).await;
            assert_eq!((code, &headers["content-type"]), (200, &accept.parse().unwrap()));
            let (api_version, kind, list): (_, _, APIGroupDiscoveryList) = open(&bytes);
            let expected = format!("apidiscovery.k8s.io/{version}");
            assert_eq!((api_version, kind.as_str()), (expected, "APIGroupDiscoveryList"));
            for group in &list.items {
                let name = group.metadata.as_ref().and_then(|m| m.name.clone()).unwrap_or_default();
                for version in &group.versions {
                    for resource in &version.resources {
                        in_protobuf.insert(format!("{name}/{}/{}", version.version(), resource.resource()));
                    }
                }
            }
            // A client that has the document does not get it again.
            for accept in [aggregated("application/json", version), accept] {
                let (_, headers, _) = raw(&api, path, &[("accept", &accept)]).await;
                let etag = headers["etag"].to_str().unwrap().to_owned();
                let weak = format!("\"other\", W/{etag}");
                for known in [etag.as_str(), "*", weak.as_str()] {
                    let (code, headers, bytes) =
                        raw(&api, path, &[("accept", &accept), ("if-none-match", known)]).await;
                    assert_eq!(
                        (code, bytes.len(), headers["etag"].to_str().unwrap()),
                        (304, 0, etag.as_str())
                    );
                }
                let (code, ..) =
                    raw(&api, path, &[("accept", &accept), ("if-none-match", "\"other\"")]).await;
                assert_eq!(code, 200);
            }
        }
        assert_eq!(in_json, old, "{version}");
        let kinds: BTreeSet<String> =
            old.keys().filter(|name| name.matches('/').count() == 2).cloned().collect();
        assert_eq!(in_protobuf, kinds, "{version}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_older_documents_in_protobuf_and_yaml() {
    let api = Api::start().await;
    let get = async |path: &str| raw(&api, path, &[("accept", PROTOBUF)]).await.2;
    let versions: APIVersions = open(&get("/api").await).2;
    assert_eq!(versions.versions, ["v1"]);
    let groups: APIGroupList = open(&get("/apis").await).2;
    assert!(groups.groups.iter().any(|group| group.name() == "apps"));
    let group: APIGroup = open(&get("/apis/autoscaling").await).2;
    assert_eq!(group.preferred_version.unwrap().group_version(), "autoscaling/v2");
    let list: APIResourceList = open(&get("/api/v1").await).2;
    let pods = list.resources.iter().find(|r| r.name() == "pods").unwrap();
    assert_eq!((pods.singular_name(), &pods.short_names[..]), ("pod", &["po".to_owned()][..]));
    let text = api.get_as("/apis/apps", "application/yaml").await.expect(200);
    assert!(text.text.contains("kind: APIGroup\n"), "{}", text.text);
    api.get_as("/apis", "text/html").await.expect(406);
    // Unknown forms of it are passed over for those that are known.
    let accept = format!("{},application/json", aggregated("application/json", "v3"));
    assert_eq!(api.get_as("/apis", &accept).await.expect(200).body["kind"], "APIGroupList");
    api.get_as("/apis", &aggregated("application/json", "v3")).await.expect(406);
}

/// Values that Kubernetes publishes.
#[tokio::test(start_paused = true)]
async fn kinds_carry_their_names_and_the_hash_of_their_storage() {
    let api = Api::start().await;
    establish(&api, widgets()).await;
    let table = [
        ("/api/v1", "pods", "xPOwRZ+Yhw8="),
        ("/api/v1", "events", "r2yiGXH7wu8="),
        ("/apis/apps/v1", "deployments", "8aSe+NMegvE="),
        ("/apis/autoscaling/v1", "horizontalpodautoscalers", "qwQve8ut294="),
        ("/apis/autoscaling/v2", "horizontalpodautoscalers", "qwQve8ut294="),
    ];
    for (path, name, hash) in table {
        let body = api.get(path).await;
        // A version may not be served yet.
        if body.code == 404 {
            continue;
        }
        let list = body.body["resources"].as_array().unwrap().clone();
        let resource = list.iter().find(|r| r["name"] == name).unwrap();
        assert_eq!(resource["storageVersionHash"], hash, "{path} {name}");
        assert!(
            list.iter()
                .filter(|r| r["name"].as_str().unwrap().contains('/'))
                .all(|r| r.get("storageVersionHash").is_none())
        );
    }
    let list = api.get("/apis/example.com/v1").await.expect(200).body;
    let widgets = &list["resources"][0];
    assert_eq!((&widgets["shortNames"], &widgets["categories"]), (&json!(["wd"]), &json!(["toys"])));
    assert!(widgets["storageVersionHash"].is_string());
    let root = texts(&api.get("/").await.expect(200).body["paths"]);
    for path in [
        "/api",
        "/api/v1",
        "/apis",
        "/apis/",
        "/apis/apps",
        "/apis/apps/v1",
        "/apis/example.com/v1",
        "/openapi/v3",
        "/version",
    ] {
        assert!(root.iter().any(|p| p == path), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn openapi_v3_moves_with_its_hash_and_comes_in_protobuf() {
    let api = Api::start().await;
    establish(&api, widgets()).await;
    let index = api.get("/openapi/v3").await.expect(200);
    let etag = index.headers["etag"].to_str().unwrap();
    api.call("GET", "/openapi/v3", &[("if-none-match", etag)], "").await.expect(304);
    let media = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
    for (path, entry) in index.body["paths"].as_object().unwrap() {
        let url = entry["serverRelativeURL"].as_str().unwrap();
        let hash = url.rsplit("hash=").next().unwrap();
        let document = api.get(url).await.expect(200);
        assert_eq!(document.headers["cache-control"], "public, immutable");
        assert_eq!(document.headers["etag"], format!("\"{hash}\"").as_str());
        let plain = api.get(&format!("/openapi/v3/{path}")).await.expect(200);
        assert_eq!(plain.headers["cache-control"], "no-cache, private");
        assert_eq!(plain.text, document.text);
        let moved = api.get(&format!("/openapi/v3/{path}?hash=0123")).await.expect(301);
        assert_eq!(moved.headers["location"], url);
        api.call("GET", url, &[("if-none-match", &format!("\"{hash}\""))], "").await.expect(304);
        for accept in [media, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"] {
            let (code, headers, bytes) = raw(&api, url, &[("accept", accept)]).await;
            assert_eq!((code, &headers["content-type"]), (200, &media.parse().unwrap()), "{path}");
            assert_eq!(headers["etag"], format!("\"{hash}\"").as_str());
            // `openapi` is field 1, and each schema is named in the message.
            assert!(bytes.starts_with(b"\x0a\x053.0.0"), "{path}");
            for (name, _) in document.body["components"]["schemas"].as_object().into_iter().flatten() {
                assert!(contains(&bytes, name), "{path} {name}");
            }
        }
    }
    api.get_as("/openapi/v3/api/v1", "text/html").await.expect(406);
    api.get("/openapi/v3/apis/none/v1?hash=x").await.expect(404);
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(start_paused = true)]
async fn openapi_v2_in_protobuf_has_custom_resources_too() {
    let api = Api::start().await;
    let accept = ("accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf");
    let (_, headers, before) = raw(&api, "/openapi/v2", &[accept]).await;
    let etag = headers["etag"].to_str().unwrap().to_owned();
    let name = "com.example.v1.Widget";
    assert!(!contains(&before, name) && contains(&before, "io.k8s.api.core.v1.Pod"));
    establish(&api, widgets()).await;
    let (code, headers, after) = raw(&api, "/openapi/v2", &[accept, ("if-none-match", &etag)]).await;
    assert_eq!(code, 200);
    assert!(after.starts_with(&before));
    for text in [
        name,
        "listExampleComV1WidgetForAllNamespaces",
        "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}/scale",
    ] {
        assert!(contains(&after, text), "{text}");
    }
    let (_, packed, zipped) = raw(&api, "/openapi/v2", &[accept, ("accept-encoding", "gzip")]).await;
    assert_eq!(packed["content-encoding"], "gzip");
    let mut plain = Vec::new();
    GzDecoder::new(&zipped[..]).read_to_end(&mut plain).unwrap();
    assert_eq!(plain, after);
    let etag = headers["etag"].to_str().unwrap();
    assert_eq!(raw(&api, "/openapi/v2", &[accept, ("if-none-match", etag)]).await.0, 304);
    let json = api.get("/openapi/v2").await.expect(200);
    assert!(json.body["definitions"][name].is_object());
    assert_ne!(json.headers["etag"], etag);
}

#[tokio::test(start_paused = true)]
async fn documents_of_custom_kinds_have_what_they_refer_to_and_no_more() {
    let api = Api::start().await;
    establish(&api, widgets()).await;
    let custom = api.get("/openapi/v3/apis/example.com/v1").await.expect(200).body;
    let schemas = custom["components"]["schemas"].as_object().unwrap();
    let text = custom.to_string();
    for target in text.split("\"#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(schemas.contains_key(target), "{target}");
    }
    // None that nothing refers to, and of the types of every version only the legacy ones.
    assert!(!schemas.keys().any(|name| name.ends_with(".WatchEvent")));
    let options = &schemas["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"];
    assert_eq!(options["x-kubernetes-group-version-kind"].as_array().unwrap().len(), 1);
}

/// The operation of a document of v3 or v2.
fn operation<'a>(document: &'a Value, path: &str, method: &str) -> &'a Value {
    let found = &document["paths"][path][method];
    assert!(found.is_object(), "no {method} {path}");
    found
}

#[tokio::test(start_paused = true)]
async fn openapi_says_which_values_media_types_and_parameters_are_taken() {
    let api = Api::start().await;
    establish(&api, widgets()).await;
    let core = api.get("/openapi/v3/api/v1").await.expect(200).body;
    let container = &core["components"]["schemas"]["io.k8s.api.core.v1.Container"]["properties"];
    assert_eq!(container["imagePullPolicy"]["enum"], json!(["Always", "IfNotPresent", "Never"]));
    let text = container["imagePullPolicy"]["description"].as_str().unwrap();
    assert!(text.contains("Possible enum values:\n - `\"Always\"`"), "{text}");
    let custom = api.get("/openapi/v3/apis/example.com/v1").await.expect(200).body;
    let fields = &custom["components"]["schemas"]["com.example.v1.Widget"]["x-kubernetes-selectable-fields"];
    assert_eq!(fields, &json!([{"fieldPath": "spec.color"}]));
    let v2 = api.get("/openapi/v2").await.expect(200).body;
    assert_eq!(v2["definitions"]["com.example.v1.Widget"]["x-kubernetes-selectable-fields"], *fields);

    let pods = "/api/v1/namespaces/{namespace}/pods";
    let widgets = "/apis/example.com/v1/namespaces/{namespace}/widgets";
    for (document, collection, strategic) in [(&core, pods, true), (&custom, widgets, false)] {
        let one = format!("{collection}/{{name}}");
        let mut media = vec![
            "application/apply-patch+yaml",
            "application/json-patch+json",
            "application/merge-patch+json",
        ];
        media.extend(strategic.then_some("application/strategic-merge-patch+json"));
        let content = operation(document, &one, "patch")["requestBody"]["content"].as_object().unwrap();
        assert_eq!(content.keys().map(String::as_str).collect::<Vec<_>>(), media, "{one}");
        let mut consumed = texts(&operation(&v2, &one, "patch")["consumes"]);
        consumed.sort();
        assert!(consumed.iter().eq(media.iter()), "{one} {consumed:?}");
        // Kubernetes documents collections of custom objects like lists, and without a body.
        let removal = if strategic { "propagationPolicy" } else { "limit" };
        let delete = operation(document, collection, "delete");
        assert_eq!(delete.get("requestBody").is_some(), strategic, "{delete}");
        for (path, method, wanted) in [
            (collection, "get", vec!["sendInitialEvents", "watch", "limit", "resourceVersionMatch"]),
            (collection, "delete", vec![removal, "labelSelector"]),
            (collection, "post", vec!["fieldManager", "fieldValidation"]),
            (&one, "patch", vec!["force", "fieldValidation"]),
            (&one, "delete", vec!["gracePeriodSeconds", "propagationPolicy"]),
        ] {
            for document in [document, &v2] {
                let resolved = |parameter: &Value| match parameter["$ref"].as_str() {
                    Some(target) => document.pointer(&target[1..]).unwrap().clone(),
                    None => parameter.clone(),
                };
                let all = |holder: &Value| -> Vec<Value> {
                    holder["parameters"].as_array().unwrap().iter().map(resolved).collect()
                };
                let parameters = all(operation(document, path, method));
                for name in &wanted {
                    let found = parameters.iter().find(|parameter| parameter["name"] == *name);
                    let found = found.unwrap_or_else(|| panic!("{method} {path} {name}"));
                    assert!(found["description"].as_str().is_some_and(|text| text.len() > 10));
                }
                let shared = all(&document["paths"][path]);
                assert!(shared.iter().any(|parameter| parameter["name"] == "pretty"), "{path}");
            }
        }
        assert!(operation(document, collection, "post")["responses"]["201"].is_object());
    }
    let watched = texts(&operation(&v2, pods, "get")["produces"]);
    assert!(watched.iter().any(|media| media == "application/json;stream=watch"), "{watched:?}");
}

/// A definition may add to a group that has built-in kinds.
#[tokio::test(start_paused = true)]
async fn a_group_of_built_in_kinds_may_have_custom_ones() {
    let api = Api::start().await;
    let path = "/openapi/v3/apis/networking.k8s.io/v1";
    let before = api.get(path).await.expect(200);
    let mut lanes = widgets();
    lanes["metadata"] = json!({"name": "lanes.networking.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/1"}});
    lanes["spec"]["group"] = "networking.k8s.io".into();
    lanes["spec"]["names"] = json!({"plural": "lanes", "kind": "Lane"});
    establish(&api, lanes).await;
    let after = api.get(path).await.expect(200);
    assert_ne!(before.headers["etag"], after.headers["etag"]);
    let schemas = after.body["components"]["schemas"].as_object().unwrap();
    assert!(schemas.contains_key("io.k8s.networking.v1.Lane"), "{:?}", schemas.keys());
    for (name, schema) in before.body["components"]["schemas"].as_object().unwrap() {
        assert_eq!(&schemas[name], schema, "{name}");
    }
    operation(&after.body, "/apis/networking.k8s.io/v1/namespaces/{namespace}/lanes", "post");
    operation(&after.body, "/apis/networking.k8s.io/v1/namespaces/{namespace}/ingresses", "post");
    let index = api.get("/openapi/v3").await.expect(200).body;
    let url = index["paths"]["apis/networking.k8s.io/v1"]["serverRelativeURL"].as_str().unwrap();
    assert_eq!(after.headers["etag"], format!("\"{}\"", url.rsplit("hash=").next().unwrap()).as_str());
    assert_eq!(api.get(url).await.expect(200).text, after.text);
}

/// Clients look for short names in this order.
#[tokio::test(start_paused = true)]
async fn groups_come_in_the_order_of_kubernetes_priorities() {
    let api = Api::start().await;
    establish(&api, widgets()).await;
    let wanted = [
        "apiregistration.k8s.io",
        "apps",
        "events.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "networking.k8s.io",
        "policy",
        "rbac.authorization.k8s.io",
        "storage.k8s.io",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "scheduling.k8s.io",
        "coordination.k8s.io",
        "node.k8s.io",
        "discovery.k8s.io",
        "resource.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "internal.apiserver.k8s.io",
        "storagemigration.k8s.io",
        "example.com",
    ];
    let named = |list: &Value, path: &str| {
        let names = list.as_array().unwrap().iter().map(|group| group.pointer(path).unwrap().clone());
        names.map(|name| name.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let legacy = api.get("/apis").await.expect(200).body;
    assert_eq!(named(&legacy["groups"], "/name"), wanted);
    let newer = api.get_as("/apis", &aggregated("application/json", "v2")).await.expect(200).body;
    assert_eq!(named(&newer["items"], "/metadata/name"), wanted);
}

/// A definition may choose the name of its lists: every form of a list, and every schema, uses it.
#[tokio::test(start_paused = true)]
async fn lists_are_called_as_the_definition_says() {
    let api = Api::start().await;
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
    let names = json!({"plural": "mice", "singular": "mouse", "kind": "Mouse", "listKind": "Mice"});
    let definition = json!({"metadata": {"name": "mice.example.com"}, "spec": {"group": "example.com",
        "scope": "Cluster", "names": names, "versions": [version("v1", true), version("v2", false)]}});
    establish(&api, definition).await;
    let mouse = json!({"apiVersion": "example.com/v1", "kind": "Mouse", "metadata": {"name": "a"}});
    api.post("/apis/example.com/v1/mice", mouse).await.expect(201);
    for path in ["/apis/example.com/v1/mice", "/apis/example.com/v2/mice"] {
        let list = api.get(path).await.expect(200);
        assert_eq!((&list.body["kind"], list.names()), (&json!("Mice"), vec!["a"]), "{path}");
    }
    let yaml = api.get_as("/apis/example.com/v1/mice", "application/yaml").await.expect(200).text;
    assert!(yaml.contains("kind: Mice\n"), "{yaml}");
    let v2 = api.get("/openapi/v2").await.expect(200).body;
    let v3 = api.get("/openapi/v3/apis/example.com/v1").await.expect(200).body;
    for schemas in [&v2["definitions"], &v3["components"]["schemas"]] {
        let list = &schemas["com.example.v1.Mice"];
        assert_eq!(list["description"], "Mice is a list of Mouse");
        assert_eq!(list["x-kubernetes-group-version-kind"][0]["kind"], "Mice");
        assert_eq!(schemas["com.example.v1.MouseList"], Value::Null);
    }
    let answer = &v2["paths"]["/apis/example.com/v1/mice"]["get"]["responses"]["200"]["schema"]["$ref"];
    assert_eq!(answer, "#/definitions/com.example.v1.Mice");
    assert_eq!(api.delete("/apis/example.com/v1/mice", Value::Null).await.expect(200).body["kind"], "Mice");
}
