//! Targets for the input of clients and webhooks to the API server.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use apiserver_apply::{FieldManager, FieldSet, Managers, NeedsConversion, Versions};
use apiserver_cel::rules::Rules;
use apiserver_cel::{DeviceAttribute, DeviceSelector, DeviceValue, Document, Params, TypedPolicy};
use apiserver_kinds::certificate::CertificateUser;
use apiserver_meta::cron::Schedule;
use apiserver_meta::{quantity, time};
use apiserver_registry::definition;
use apiserver_registry::definition::{Custom, Definition, JsonPath};
use apiserver_registry::{FieldSelector, LabelSelector};
use apiserver_schema::protobuf;
use apiserver_schema::schema::shape::{Builtin, Shape, Untyped};
use apiserver_server::parsers;
use apiserver_structural::{Pattern, Structural};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use url::Url;

use crate::{choice, parts};

/// Input: a media type and a body.
pub fn body(bytes: &[u8]) {
    let [media, body] = parts::<2>(bytes);
    let media = String::from_utf8_lossy(media);
    if let Ok((value, _)) = parsers::object(&media, body) {
        let text = value.to_string();
        let (again, repeated) = parsers::object("application/json", text.as_bytes()).expect("its own text");
        assert_eq!(again, value);
        assert!(repeated.is_empty(), "a tree has no key twice: {repeated:?}");
    }
    let _ = parsers::configuration(body);
    let _ = parsers::stored(body);
}

const PATCHES: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"];
const SCHEMAS: [&str; 4] = [
    "io.k8s.api.core.v1.Pod",
    "io.k8s.api.apps.v1.Deployment",
    "io.k8s.api.core.v1.Service",
    "io.k8s.api.core.v1.ConfigMap",
];

/// Input: a byte that chooses patch type and schema, an object, and a patch.
pub fn patch(bytes: &[u8]) {
    let (choice, rest) = choice(bytes);
    let media = PATCHES[usize::from(choice) % PATCHES.len()];
    let schema = SCHEMAS[usize::from(choice) / PATCHES.len() % SCHEMAS.len()];
    let [old, patch] = parts::<2>(rest);
    let Ok(old) = serde_json::from_slice::<Value>(old) else { return };
    let Ok(new) = parsers::patch(media, schema, &old, patch) else { return };
    if media == PATCHES[1] {
        let again = parsers::patch(media, schema, &new, patch).expect("it fitted before");
        assert_eq!(again, new, "a merge patch changes nothing the second time");
    }
}

struct OneVersion<S>(S);

impl<S: Shape> Versions<S> for OneVersion<S> {
    fn shape(&self, version: &str) -> Option<S> {
        (version == "v1").then_some(self.0)
    }

    fn convert(&self, object: &Value, version: &str) -> Result<Option<Value>, NeedsConversion> {
        Ok((version == "v1").then(|| object.clone()))
    }
}

/// Input: a byte that chooses the schema, an object with managed fields, and a configuration; or the byte `f`
/// and two sets of fields.
pub fn apply(bytes: &[u8]) {
    let (choice, rest) = choice(bytes);
    if choice == b'f' {
        return fields(rest);
    }
    let [live, config] = parts::<2>(rest);
    let Ok(live) = serde_json::from_slice::<Value>(live) else { return };
    let Ok((config, _)) = parsers::configuration(config) else { return };
    if !live.is_object() {
        return;
    }
    let schema = SCHEMAS[usize::from(choice) % SCHEMAS.len()];
    match Builtin::of(schema).filter(|_| choice < 128) {
        Some(shape) => applied(shape, &live, &config),
        None => applied(Untyped, &live, &config),
    }
}

fn applied<S: Shape>(shape: S, live: &Value, config: &Value) {
    let fields = FieldManager {
        versions: &OneVersion(shape),
        shape,
        api_version: "v1",
        kind: "Pod",
        subresource: "",
        reset: &FieldSet::new(),
        now: jiff::Timestamp::UNIX_EPOCH,
    };
    let Ok(once) = fields.apply(Some(live), config, "fuzz", true) else { return };
    let managers = Managers::of(&once).expect("what was written can be read");
    let twice = fields.apply(Some(&once), config, "fuzz", true).expect("it was applied before");
    // Once nobody owns anything, everything that remains counts as older than the first apply.
    if !managers.0.is_empty() {
        assert_eq!(twice, once, "applying again changes nothing");
    }
    let mut updated = live.clone();
    fields.update(Some(&once), &mut updated, "other").expect("one version needs no conversion");
    Managers::of(&updated).expect("what was written can be read");
}

/// Input: two sets of fields.
fn fields(bytes: &[u8]) {
    let [a, b] = parts::<2>(bytes);
    let read = |bytes: &[u8]| {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let set = FieldSet::from_fields_v1(&value).ok()?;
        let again = FieldSet::from_fields_v1(&set.to_fields_v1()).expect("its own encoding");
        assert_eq!(again, set);
        Some(set)
    };
    let Some(a) = read(a) else { return };
    let b = read(b).unwrap_or_else(FieldSet::new);
    let (both, either) = (a.intersection(&b), a.union(&b));
    assert_eq!(both, b.intersection(&a));
    assert_eq!(either, b.union(&a));
    assert_eq!(a.difference(&b).union(&both), a);
    assert!(both.difference(&a).is_empty());
    assert_eq!(a.paths().len(), a.len());
}

/// Input: a request line, a label selector, a field selector, an `Accept` header, a continue token and a
/// ServiceAccount token.
pub fn request(bytes: &[u8]) {
    let [line, labels, fields, accept, token, credential] = parts::<6>(bytes);
    credentials(credential);
    let line = String::from_utf8_lossy(line);
    let (method, target) = line.split_once(' ').unwrap_or(("GET", &line));
    let _ = parsers::request(method, target);
    if let Ok(selector) = LabelSelector::parse(&String::from_utf8_lossy(labels)) {
        let text = selector.to_string();
        let again = LabelSelector::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(again.to_string(), text);
    }
    if let Ok(value) = serde_json::from_slice::<Value>(labels) {
        let _ = LabelSelector::from_meta(&value);
    }
    let _ = FieldSelector::parse(&String::from_utf8_lossy(fields));
    let _ = parsers::accept(accept);
    let token = String::from_utf8_lossy(token);
    if let Ok((revision, key, again)) = parsers::continue_token(&token) {
        assert_eq!(parsers::continue_token(&again).expect("its own token").0, revision);
        assert!(!key.split('/').any(|part| part == ".."), "{key} leads out");
    }
}

/// Input: a quantity, a time, a pattern with a text, a JSON path with a value, a schedule, and a selector.
pub fn texts(bytes: &[u8]) {
    let [amount, moment, pattern, text, path, value, schedule, selector] = parts::<8>(bytes);
    if let Ok(quantity) = quantity::parse(&String::from_utf8_lossy(amount)) {
        let written = quantity.to_string();
        let again = quantity::parse(&written).unwrap_or_else(|_| panic!("{written}"));
        assert_eq!(again.nano(), quantity.nano(), "{written}");
        let _ = (quantity.value(), quantity.milli(), quantity.saturating_add(again));
    }
    if let Some(moment) = time::parse(&String::from_utf8_lossy(moment)) {
        assert!(time::parse(&time::rfc3339(moment)).is_some());
    }
    let _ = Pattern::new(&String::from_utf8_lossy(pattern)).is_match(&String::from_utf8_lossy(text));
    if let Some(path) = JsonPath::parse(&String::from_utf8_lossy(path)) {
        let value: Value = serde_json::from_slice(value).unwrap_or_default();
        let found = path.find(&value).len();
        assert_eq!(path.first(&value).is_some(), found > 0);
    }
    if let Ok(schedule) = Schedule::parse(&String::from_utf8_lossy(schedule), &TimeZone::UTC) {
        let first = schedule.next(Timestamp::UNIX_EPOCH);
        assert!(first.and_then(|first| schedule.next(first)).is_none_or(|second| Some(second) > first));
    }
    // The autoscaler reads what the API server has written.
    let selector = String::from_utf8_lossy(selector);
    let labels = BTreeMap::from(["a", "b", "weight"].map(|key| (key.to_owned(), "7".to_owned())));
    if let Ok(known) = LabelSelector::parse(&selector) {
        let selects = controllers_manager::parsers::scale_selector(&selector, &labels);
        assert_eq!(selects, Some(known.matches(&labels)), "{selector}");
    } else {
        let _ = controllers_manager::parsers::scale_selector(&selector, &labels);
    }
}

/// Input: any bytes as an envelope. Both ways to JSON must give the same object, and what was decoded can be
/// encoded and decoded again, also by the reader of clients.
pub fn envelope(bytes: &[u8]) {
    let client = |bytes| {
        protobuf::Encoded::open(bytes).map(|object| object.read::<Value>(protobuf::Reading::default()))
    };
    let _ = client(bytes);
    let Ok(object) = protobuf::from_envelope(bytes) else { return };
    if let Ok(text) = protobuf::to_json(bytes) {
        // Numbers beyond the range of a tree are only preserved as text.
        if let Ok(other) = serde_json::from_slice::<Value>(&text) {
            assert_eq!(other, object);
        }
    }
    let again = protobuf::to_envelope(&object).expect("what was read can be written");
    protobuf::from_envelope(&again).expect("what was written can be read");
    client(&again).expect("the kind is known").expect("what was written can be read by clients");
}

/// Input: a schema, an object and its previous state.
pub fn crd(bytes: &[u8]) {
    let [schema, object, old] = parts::<3>(bytes);
    let Ok(schema) = serde_json::from_slice::<Value>(schema) else { return };
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "frobs.example.com", "uid": "u"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "frobs", "singular": "frob", "kind": "Frob", "listKind": "FrobList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    definition::default(&mut definition);
    // Invalid definitions may still be in a store that another server filled.
    let sound = definition::validate(&definition).is_empty();
    definition["status"] = json!({
        "acceptedNames": definition["spec"]["names"], "conditions": [{"type": "Established", "status": "True"}],
    });
    let source: definition::Source = Arc::new(definition.to_string().into_bytes());
    let Some(read) = Definition::read(source).map(Arc::new) else { return };
    let Some(custom) = read.resources().first().and_then(|resource| resource.custom.clone()) else { return };
    let custom: &Custom = &custom;
    let Ok(mut object) = serde_json::from_slice::<Value>(object) else { return };
    custom.adopt(&mut object);
    let mut again = object.clone();
    custom.adopt(&mut again);
    assert!(!sound || again == object, "adopting again changes nothing: {object} {again}");
    let _ = custom.validate(&object);
    if let Ok(old) = serde_json::from_slice::<Value>(old) {
        let _ = custom.validate_change(&object, &old, apiserver_registry::Written::Main);
    }
}

/// Input: an expression, and the object that it is evaluated on. It is also tried as a selector of devices.
pub fn cel(bytes: &[u8]) {
    let [rule, object, old] = parts::<3>(bytes);
    let rule = String::from_utf8_lossy(rule);
    let schema = json!({
        "type": "object",
        "x-kubernetes-validations": [{"rule": rule, "messageExpression": rule}],
        "properties": {
            "a": {"type": "string"}, "n": {"type": "integer"}, "f": {"type": "number"}, "b": {"type": "boolean"},
            "l": {"type": "array", "items": {"type": "string"}},
            "m": {"type": "object", "additionalProperties": {"type": "string"}},
            "o": {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "integer"}}}},
            "t": {"type": "string", "format": "date-time"},
            "i": {"x-kubernetes-int-or-string": true},
        },
    });
    let schema = Structural::compile(&schema);
    let _ = apiserver_cel::rules::rule_errors(&schema, "spec", &[], &mut Default::default());
    if apiserver_cel::device(&rule).is_ok() {
        let selector = DeviceSelector::compile(&rule).expect("it is one that may be written");
        let attributes = [("a", DeviceAttribute::Bool(true)), ("d.com/t", DeviceAttribute::Text("x"))];
        let device = DeviceValue::new("d.com", true, attributes, [("c", "1Gi")]);
        let _ = selector.matches(&device.expect("it has nothing odd"));
    }
    let Some(rules) = Rules::compile(&schema) else { return };
    let object = serde_json::from_slice::<Value>(object).unwrap_or_else(|_| json!({"a": "x", "l": ["y"]}));
    let old = serde_json::from_slice::<Value>(old).ok();
    // Rules run on objects that the rest of the schema accepts.
    if schema.validate(&object).is_empty() && old.as_ref().is_none_or(|old| schema.validate(old).is_empty()) {
        let _ = rules.errors(&schema, &object, old.as_ref());
    }
}

/// Input: an expression, and an OpenAPI document that tells what its objects and parameters are.
pub fn kinds(bytes: &[u8]) {
    let [source, document] = parts::<2>(bytes);
    let source = String::from_utf8_lossy(source);
    let Ok(document) = Document::read(document) else { return };
    let Ok(kind) = document.declaration("g", "v1", "Kind") else { return };
    let mut policy = TypedPolicy::new(&kind, Params::Of(&kind));
    let before = policy.check(&source);
    policy.variable("v", &source);
    let after = policy.check(&source);
    assert!(source.contains("variables") || before == after, "a variable that nobody uses: {source}");
    let _ = policy.check("variables.v == object");
}

/// Input: a ServiceAccount token.
fn credentials(bytes: &[u8]) {
    use apiserver_auth::authentication::pki::Pki;
    use apiserver_auth::authentication::tokens::Issuer;
    static ISSUER: OnceLock<Issuer> = OnceLock::new();
    let issuer = ISSUER.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("hawser-fuzz-{}", std::process::id()));
        let pki = Pki::open(&directory, &apiserver_meta::ambient::Ambient::system()).expect("a directory");
        let issuer = Issuer::open(&pki, "https://issuer", &[]).expect("a key");
        std::fs::remove_dir_all(&directory).expect("it was just made");
        issuer
    });
    let text = String::from_utf8_lossy(bytes);
    assert!(issuer.verify(&text).is_err(), "nobody can guess a signature: {text}");
}

/// Input: a client certificate in DER; the same bytes are also used as a certificate request (PKCS #10).
pub fn certificate(bytes: &[u8]) {
    if let Ok(user) = CertificateUser::read(bytes) {
        assert!(!user.name.is_empty(), "a user without a name");
    }
    parsers::signing_request(bytes);
    let _ = controllers_manager::parsers::signing_request(bytes);
}

/// Input: a byte that chooses the version of the review, an object to convert, and the answer of a conversion
/// webhook. An accepted answer is the same object in the requested version.
pub fn conversion(bytes: &[u8]) {
    let (choice, rest) = choice(bytes);
    let [sent, answer] = parts::<2>(rest);
    let Ok(sent) = serde_json::from_slice::<Value>(sent) else { return };
    if !sent["metadata"].is_object() {
        return;
    }
    let review = if choice % 2 == 0 { "v1" } else { "v1beta1" };
    let asked = parsers::Conversion { review, uid: "u", wanted: "example.com/v2", kind: "Frob" };
    let sent = [sent];
    let Ok(converted) = asked.read(&sent, answer) else { return };
    let [object] = converted.as_slice() else { panic!("one object was sent: {converted:?}") };
    assert_eq!((&object["apiVersion"], &object["kind"]), (&json!("example.com/v2"), &json!("Frob")));
    for (field, value) in sent[0]["metadata"].as_object().expect("it was looked at") {
        if field != "labels" && field != "annotations" {
            assert_eq!(&object["metadata"][field], value, "{field} is not the webhook's to change");
        }
    }
    let fields = object["metadata"].as_object().expect("an object's metadata");
    assert!(fields.keys().all(|field| {
        matches!(field.as_str(), "labels" | "annotations") || sent[0]["metadata"].get(field).is_some()
    }));
    let again = json!({
        "apiVersion": format!("apiextensions.k8s.io/{review}"), "kind": "ConversionReview",
        "response": {"uid": "u", "result": {"status": "Success"}, "convertedObjects": converted},
    });
    let twice = asked.read(&sent, again.to_string().as_bytes()).expect("it was taken before");
    assert_eq!(twice, converted, "what was taken is taken as it is");
}

/// Input: a byte for the length of the chunks, a page of a pod, a redirect, and the requested path.
pub fn page(bytes: &[u8]) {
    const PREFIX: &str = "/api/v1/namespaces/ns/pods/p/proxy";
    let pod = parsers::Proxied { prefix: PREFIX, backend: "10.0.0.1:80", asked: "api.example:6443" };
    let (size, rest) = choice(bytes);
    let [page, location, below] = parts::<3>(rest);
    let whole = pod.page([page]);
    assert_eq!(pod.page(page.chunks(usize::from(size).max(1))), whole, "pieces of {size}");
    let links = page.iter().filter(|byte| **byte == b'=').count();
    // Growth by the prefix and quotes; and one character may be written as `&quot;`.
    assert!(whole.len() <= 6 * page.len() + links * (PREFIX.len() + 2), "{} of {}", whole.len(), page.len());
    // The path is normalized as browsers do, and the redirect is followed as they do.
    let (location, below) = (String::from_utf8_lossy(location), String::from_utf8_lossy(below));
    let Ok(asked) = Url::parse(&format!("https://api.example:6443{PREFIX}/{below}")) else { return };
    if !asked.path().starts_with(&format!("{PREFIX}/")) {
        return;
    }
    if let Some(location) = pod.redirect(&location, asked.path()) {
        let followed = asked.join(&location).expect("a reference that clients can follow");
        assert_eq!(followed.origin(), asked.origin(), "{location:?}");
        let path = followed.path();
        assert!(path == PREFIX || path.starts_with(&format!("{PREFIX}/")), "{location:?} leads to {path}");
    }
}
