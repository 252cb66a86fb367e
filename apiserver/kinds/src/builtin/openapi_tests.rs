use std::collections::BTreeSet;
use std::io::Read as _;

use flate2::read::GzDecoder;
use serde_json::Value;

use apiserver_registry::Verb;
use apiserver_schema::openapi::*;

fn unpack(bytes: &[u8]) -> Value {
    let mut text = String::new();
    GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Every target of a `$ref` below `value`.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get("$ref") {
                found.insert(target.clone());
            }
            map.values().for_each(|v| references(v, found));
        }
        Value::Array(list) => list.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

#[test]
fn the_index_names_a_document_for_each_group_and_version_served() {
    let names: Vec<&str> = v3_names().collect();
    for resource in crate::registry().iter() {
        let name = v3_name(&resource.group, &resource.version);
        assert!(names.contains(&name.as_str()), "{name}");
        assert_eq!(v3_hash(&name).map(str::len), Some(32));
        assert!(v3_gz(&name).is_some());
    }
    // The documents of groups and of single paths, as in Kubernetes.
    for name in ["api", "apis", "apis/apps", "version", "openid/v1/jwks", ".well-known/openid-configuration"]
    {
        let document = unpack(v3_gz(name).unwrap());
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.keys().collect::<Vec<_>>(), [&format!("/{name}/")]);
    }
    assert!(v3_gz("apis/no.such.group/v1").is_none());
    assert_eq!(v2_hash().len(), 32);
}

#[test]
fn v3_documents_are_closed_under_references_and_describe_every_operation() {
    for resource in crate::registry().iter() {
        let document = unpack(v3_gz(&v3_name(&resource.group, &resource.version)).unwrap());
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for target in found {
            let name = target.strip_prefix("#/components/schemas/").unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
        let prefix = if resource.group.is_empty() { "/api/" } else { "/apis/" };
        let scope = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
        let path = format!("{prefix}{}/{scope}{}", resource.api_version(), resource.plural);
        let item = &document["paths"][&path];
        assert_eq!(resource.verbs.contains(&Verb::List), item.get("get").is_some(), "{path}");
        let gvk = serde_json::json!([
            {"group": resource.group, "version": resource.version, "kind": resource.kind}]);
        assert_eq!(schemas[&resource.schema]["x-kubernetes-group-version-kind"], gvk);
        if !resource.verbs.contains(&Verb::Patch) {
            continue;
        }
        let patch = &document["paths"][&format!("{path}/{{name}}")]["patch"];
        assert_eq!(patch["x-kubernetes-action"], "patch");
        assert_eq!(patch["x-kubernetes-group-version-kind"], gvk[0]);
        let parameters = patch["parameters"].as_array().unwrap();
        // kubectl looks for this one before it leaves validation to the server.
        assert!(parameters.iter().any(|p| p["name"] == "fieldValidation" && p["in"] == "query"), "{path}");
    }
}

#[test]
fn v3_keeps_descriptions_beside_references_and_carries_merge_semantics() {
    let document = unpack(v3_gz("apis/apps/v1").unwrap());
    let schemas = &document["components"]["schemas"];
    let selector = &schemas["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]["selector"];
    assert!(selector["description"].as_str().unwrap().starts_with("Label selector"));
    assert_eq!(
        selector["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"
    );
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-list-map-keys"], serde_json::json!(["name"]));
    let container = &schemas["io.k8s.api.core.v1.Container"]["properties"];
    let policies = serde_json::json!(["Always", "IfNotPresent", "Never"]);
    assert_eq!(container["imagePullPolicy"]["enum"], policies);
    let text = container["imagePullPolicy"]["description"].as_str().unwrap();
    assert!(
        text.contains("Possible enum values:\n - `\"Always\"` means that kubelet always attempts"),
        "{text}"
    );
    let v2 = &unpack(v2_gz())["definitions"]["io.k8s.api.core.v1.Container"]["properties"];
    assert_eq!(v2["imagePullPolicy"], container["imagePullPolicy"]);
    let modes = &schemas["io.k8s.api.core.v1.PersistentVolumeClaimSpec"]["properties"]["accessModes"];
    assert_eq!(modes["items"]["enum"][0], "ReadOnlyMany");
    let port = &schemas["io.k8s.apimachinery.pkg.util.intstr.IntOrString"];
    assert_eq!(port["format"], "int-or-string");
    assert_eq!(port["oneOf"][0]["type"], "integer");
}

#[test]
fn v2_is_one_closed_document() {
    let document = unpack(v2_gz());
    assert_eq!(document["swagger"], "2.0");
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    for target in &found {
        assert!(document.pointer(&target[1..]).is_some(), "{target}");
    }
    assert!(found.len() > 300);
    let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    let parameters = patch["parameters"].as_array().unwrap();
    assert!(parameters.iter().any(|p| p["name"] == "fieldValidation" && p["type"] == "string"));
    assert_eq!(parameters[0]["$ref"], "#/parameters/body-78PwaGsr");
    assert_eq!(patch["consumes"], serde_json::json!(parameters::PATCHES));
    let list = &document["paths"]["/api/v1/pods"]["get"]["produces"];
    assert!(list.as_array().unwrap().contains(&"application/json;stream=watch".into()), "{list}");
    assert!(document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/log"]["get"].is_object());
}

/// The fields of a message whose fields are all of the wire types 0 and 2: number and content.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (first, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let content = match key & 7 {
            0 => {
                let start = bytes;
                varint(&mut bytes);
                &start[..start.len() - bytes.len()]
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (content, rest) = bytes.split_at(length);
                bytes = rest;
                content
            }
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, content));
    }
    found
}

fn all(message: &[u8], number: u64) -> Vec<&[u8]> {
    fields(message).into_iter().filter(|(n, _)| *n == number).map(|(_, content)| content).collect()
}

fn one(message: &[u8], number: u64) -> Option<&[u8]> {
    let found = all(message, number);
    assert!(found.len() < 2, "field {number} occurs {} times", found.len());
    found.first().copied()
}

fn string(message: &[u8], number: u64) -> Option<Value> {
    one(message, number).map(|s| std::str::from_utf8(s).unwrap().into())
}

fn pairs(message: &[u8], number: u64) -> impl Iterator<Item = (String, &[u8])> {
    all(message, number)
        .into_iter()
        .map(|pair| (string(pair, 1).unwrap().as_str().unwrap().to_owned(), one(pair, 2).unwrap()))
}

/// A `Schema` message back in JSON.
fn schema(message: &[u8]) -> Value {
    let mut out = serde_json::Map::new();
    for (number, _) in fields(message) {
        assert!([1, 2, 4, 19, 20, 21, 22, 23, 25, 31].contains(&number), "field {number} of a schema");
    }
    for (number, key) in [(1, "$ref"), (2, "format"), (4, "description")] {
        out.extend(string(message, number).map(|value| (key.to_owned(), value)));
    }
    let required: Value =
        all(message, 19).into_iter().map(|s| std::str::from_utf8(s).unwrap()).collect::<Vec<_>>().into();
    if required.as_array().is_some_and(|list| !list.is_empty()) {
        out.insert("required".into(), required);
    }
    let values: Vec<Value> = all(message, 20)
        .into_iter()
        .map(|any| serde_json::from_slice(one(any, 2).unwrap()).unwrap())
        .collect();
    if !values.is_empty() {
        out.insert("enum".into(), values.into());
    }
    if let Some(item) = one(message, 21) {
        out.insert("additionalProperties".into(), schema(one(item, 1).unwrap()));
    }
    if let Some(item) = one(message, 22) {
        out.insert("type".into(), string(item, 1).unwrap());
    }
    if let Some(item) = one(message, 23) {
        out.insert("items".into(), schema(one(item, 1).unwrap()));
    }
    if let Some(properties) = one(message, 25) {
        let map = pairs(properties, 1).map(|(name, value)| (name, schema(value))).collect();
        out.insert("properties".into(), Value::Object(map));
    }
    for (name, any) in pairs(message, 31) {
        out.insert(name, serde_json::from_slice(one(any, 2).unwrap()).unwrap());
    }
    Value::Object(out)
}

fn unpack_message() -> Vec<u8> {
    let mut message = Vec::new();
    GzDecoder::new(v2_default_protobuf_gz()).read_to_end(&mut message).unwrap();
    message
}

#[test]
fn v2_as_protobuf_has_the_same_definitions() {
    let document = unpack(v2_default_gz());
    let message = unpack_message();
    assert_eq!(string(&message, 1).unwrap(), "2.0");
    let definitions: serde_json::Map<String, Value> =
        pairs(one(&message, 9).unwrap(), 1).map(|(name, value)| (name, schema(value))).collect();
    let expected = document["definitions"].as_object().unwrap();
    assert_eq!(definitions.len(), expected.len());
    for (name, schema) in expected {
        let mut schema = schema.clone();
        // An empty list and no list are the same on the wire.
        if schema["required"].as_array().is_some_and(Vec::is_empty) {
            schema.as_object_mut().unwrap().remove("required");
        }
        assert_eq!(definitions[name], schema, "{name}");
    }
    assert_ne!(v2_default_protobuf_hash(), v2_default_hash());
}

/// A parameter, also where it is referred to.
fn resolved<'a>(document: &'a Value, parameter: &'a Value) -> &'a Value {
    let shared = parameter["$ref"].as_str().map(|target| document.pointer(&target[1..]).unwrap());
    shared.unwrap_or(parameter)
}

/// The names of the operations, kinds and parameters are those of Kubernetes.
#[test]
fn subresources_that_pass_requests_on_have_an_operation_for_each_method() {
    let pod = "/api/v1/namespaces/{namespace}/pods/{name}";
    let service = "/api/v1/namespaces/{namespace}/services/{name}";
    let all = ["delete", "get", "head", "options", "patch", "post", "put"];
    let streams = ["container", "name", "namespace", "stderr", "stdin", "stdout", "tty"];
    for document in [unpack(v2_default_gz()), unpack(v3_gz("api/v1").unwrap())] {
        for (path, id, kind, methods, parameters) in [
            (
                format!("{pod}/proxy"),
                "NamespacedPodProxy",
                "PodProxyOptions",
                &all[..],
                &["name", "namespace", "path"][..],
            ),
            (
                format!("{pod}/proxy/{{path}}"),
                "NamespacedPodProxyWithPath",
                "PodProxyOptions",
                &all,
                &["name", "namespace", "path", "path"],
            ),
            (
                format!("{service}/proxy/{{path}}"),
                "NamespacedServiceProxyWithPath",
                "ServiceProxyOptions",
                &all,
                &["name", "namespace", "path", "path"],
            ),
            (
                "/api/v1/nodes/{name}/proxy".to_owned(),
                "NodeProxy",
                "NodeProxyOptions",
                &all,
                &["name", "path"],
            ),
            (format!("{pod}/attach"), "NamespacedPodAttach", "PodAttachOptions", &["get", "post"], &streams),
            (
                format!("{pod}/portforward"),
                "NamespacedPodPortforward",
                "PodPortForwardOptions",
                &["get", "post"],
                &["name", "namespace", "ports"],
            ),
        ] {
            let item = document["paths"][&path].as_object().unwrap_or_else(|| panic!("{path}"));
            let mut found: Vec<&str> =
                item.keys().map(String::as_str).filter(|key| *key != "parameters").collect();
            found.sort_unstable();
            assert_eq!(found, methods, "{path}");
            let parameters_of = item["parameters"].as_array().unwrap().iter();
            let mut names: Vec<&str> = parameters_of
                .map(|parameter| resolved(&document, parameter)["name"].as_str().unwrap())
                .collect();
            names.sort_unstable();
            assert_eq!(names, parameters, "{path}");
            for method in methods {
                let word = format!("{}{}", method[..1].to_uppercase(), &method[1..]);
                let operation = &item[*method];
                assert_eq!(operation["operationId"], format!("connectCoreV1{word}{id}"));
                assert_eq!(operation["x-kubernetes-group-version-kind"]["kind"], kind);
            }
        }
    }
}

#[test]
fn v2_as_protobuf_has_the_same_operations() {
    let document = unpack(v2_default_gz());
    let message = unpack_message();
    let paths: Vec<(String, &[u8])> = pairs(one(&message, 8).unwrap(), 2).collect();
    assert_eq!(paths.len(), document["paths"].as_object().unwrap().len());
    for (path, item) in paths {
        for (number, method) in
            [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (6, "options"), (7, "head"), (8, "patch")]
        {
            let expected = &document["paths"][&path][method];
            let Some(operation) = one(item, number) else {
                assert!(expected.is_null(), "{method} {path}");
                continue;
            };
            assert_eq!(string(operation, 5).unwrap(), expected["operationId"]);
            let extensions: Vec<(String, &[u8])> = pairs(operation, 13).collect();
            let kind = extensions.iter().find(|(name, _)| name == "x-kubernetes-group-version-kind");
            let kind = kind.map(|(_, kind)| serde_json::from_slice(one(kind, 2).unwrap()).unwrap());
            assert_eq!(kind.as_ref(), expected.get("x-kubernetes-group-version-kind"));
            let parameters = all(operation, 8);
            let wanted = expected.get("parameters").and_then(Value::as_array).cloned().unwrap_or_default();
            assert_eq!(parameters.len(), wanted.len());
            for (parameter, wanted) in parameters.into_iter().zip(&wanted) {
                if wanted["$ref"].is_string() {
                    let reference = one(parameter, 2).unwrap();
                    assert_eq!(string(reference, 1).unwrap(), wanted["$ref"]);
                    continue;
                }
                let parameter = one(parameter, 1).unwrap();
                if let Some(body) = one(parameter, 1) {
                    assert_eq!(string(body, 2).unwrap(), wanted["name"]);
                    assert_eq!(schema(one(body, 5).unwrap()), wanted["schema"]);
                } else {
                    let query = one(one(parameter, 2).unwrap(), 3).unwrap();
                    assert_eq!(string(query, 2).unwrap(), "query");
                    assert_eq!(string(query, 4).unwrap(), wanted["name"]);
                    assert_eq!(string(query, 6).unwrap(), wanted["type"]);
                }
            }
        }
    }
}

/// The names have a hash of the whole parameter, so equal names are equal texts.
#[test]
fn shared_parameters_have_the_names_of_kubernetes() {
    let document = unpack(v2_gz());
    let parameters = document["parameters"].as_object().unwrap();
    for name in [
        "allowWatchBookmarks-HC2hJt-J",
        "body-2Y1dVQaQ",
        "command-Py3eQybp",
        "container-_Q-EJ3nR",
        "continue-QfD61s0i",
        "fieldManager-7c6nTn1T",
        "fieldManager-Qy4HdaTW",
        "fieldSelector-xIcQKXFG",
        "force-tOGGb0Yi",
        "gracePeriodSeconds--K5HaBOS",
        "ignoreStoreReadErrorWithClusterBreakingPotential-QbNkfIqj",
        "insecureSkipTLSVerifyBackend-gM00jVbe",
        "labelSelector-5Zw57w4C",
        "limit-1NfNmdNH",
        "namespace-vgWSWtn3",
        "orphanDependents-uRB25kX5",
        "path-QCf0eosM",
        "path-z6Ciiujn",
        "pretty-tJGM1-ng",
        "propagationPolicy-6jk3prlO",
        "resourceVersion-5WAnf1kx",
        "resourceVersionMatch-t8XhRHeC",
        "sendInitialEvents-rLXlEK_k",
        "shardSelector-Kgyki_3_",
        "stream-l-48cgXv",
        "timeoutSeconds-yvYezaOC",
        "watch-XNNPZGbK",
    ] {
        assert!(parameters.contains_key(name), "{name}");
    }
    assert_eq!(parameters.len(), 47);
}

#[test]
fn descriptions_are_those_of_kubectl_explain() {
    let document = unpack(v2_gz());
    let definitions = &document["definitions"];
    let services = &definitions["io.k8s.api.core.v1.ServiceList"];
    assert_eq!(services["properties"]["items"]["description"], "List of services");
    assert_eq!(services["description"], "ServiceList holds a list of services.");
    let path = &document["paths"]["/api/v1/namespaces/{namespace}/services"];
    assert_eq!(path["get"]["description"], "list or watch objects of kind Service");
    assert_eq!(path["post"]["description"], "create a Service");
    assert_eq!(path["delete"]["operationId"], "deleteCoreV1CollectionNamespacedService");
    // Parameters that all operations of a path share are at the path.
    assert_eq!(path["parameters"][1]["$ref"], "#/parameters/pretty-tJGM1-ng");
    let watch = &document["paths"]["/api/v1/watch/namespaces/{namespace}/services/{name}"];
    assert_eq!(watch["get"]["operationId"], "watchCoreV1NamespacedService");
    assert_eq!(watch["parameters"].as_array().unwrap().len(), 14);
    let scale = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"]["get"];
    assert_eq!(scale["x-kubernetes-group-version-kind"]["group"], "autoscaling");
    let v3 = unpack(v3_gz("api/v1").unwrap());
    let service = &v3["components"]["schemas"]["io.k8s.api.core.v1.Service"]["properties"];
    assert_eq!(service["spec"]["default"], serde_json::json!({}));
    let claim = &v3["components"]["schemas"]["io.k8s.api.core.v1.ContainerPort"]["properties"];
    assert_eq!(
        (&claim["protocol"]["default"], &claim["containerPort"]["default"]),
        (&"TCP".into(), &0.into())
    );
    assert_eq!(
        definitions["io.k8s.api.core.v1.ContainerPort"]["properties"]["protocol"].get("default"),
        None
    );
}

#[test]
fn documents_of_the_default_versions_are_closed() {
    let (all, default) = (unpack(v2_gz()), unpack(v2_default_gz()));
    let mut found = BTreeSet::new();
    references(&default, &mut found);
    for target in &found {
        assert!(default.pointer(&target[1..]).is_some(), "{target}");
    }
    let paths = |document: &Value| -> BTreeSet<String> {
        document["paths"].as_object().unwrap().keys().cloned().collect()
    };
    let early = |path: &String| {
        path.contains("/v1alpha")
            || path.contains("/v1beta")
            // Groups without a version that is done.
            || ["/apis/internal.apiserver.k8s.io/", "/apis/storagemigration.k8s.io/"].contains(&path.as_str())
    };
    assert_eq!(paths(&default), paths(&all).into_iter().filter(|path| !early(path)).collect());
    let names = |document: &Value| document["definitions"].as_object().unwrap().len();
    assert!(names(&default) < names(&all));
    assert!(all["definitions"].get("io.k8s.api.networking.v1beta1.ServiceCIDR").is_some());
    assert!(default["definitions"].get("io.k8s.api.networking.v1beta1.ServiceCIDR").is_none());
    assert!(default["definitions"].get("io.k8s.api.networking.v1.ServiceCIDR").is_some());
}

#[test]
fn single_resources_are_removed_from_a_document_of_v3() {
    let mut document = unpack(v3_gz("apis/apps/v1").unwrap());
    reduce::without(&mut document, &|_, _, plural| plural == "daemonsets");
    assert!(!document["paths"].as_object().unwrap().keys().any(|path| path.contains("daemonsets")));
    let schemas = document["components"]["schemas"].as_object().unwrap();
    assert!(!schemas.contains_key("io.k8s.api.apps.v1.DaemonSet"));
    assert!(schemas.contains_key("io.k8s.api.core.v1.PodTemplateSpec"), "Deployments have one too");
}
