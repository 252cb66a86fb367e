//! The comparison of two servers' answers: a pure function.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

/// The answer of a server.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
    /// The texts of the `Warning` headers.
    pub warnings: Vec<String>,
}

/// One place where two answers differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// A path of the answer, without indices.
    pub place: String,
    pub ours: String,
    pub theirs: String,
}

/// The result of comparing two answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Equal, messages included.
    Same,
    /// Equal, but a refusal speaks in Go's decoder's words, which name types of Go.
    Decoder(Difference),
    /// Equal but for what messages say to people.
    Words(Vec<Difference>),
    Different(Vec<Difference>),
}

/// Fields that a server draws or allocates, unless the request asks for a value.
const ALLOCATED: [&str; 4] = ["clusterIP", "clusterIPs", "nodePort", "healthCheckNodePort"];
/// Fields of metadata that no two servers have alike.
const OWN: [&str; 3] = ["uid", "resourceVersion", "creationTimestamp"];
/// A time this near to the present is the server's clock, not the request's.
const NEAR: SignedDuration = SignedDuration::from_hours(6);

/// An answer without what may differ between two servers: times, and what each draws or allocates for itself.
/// `known` are texts that stand for something of this server, such as the uid of the object that is changed.
pub fn normalize(answer: &Answer, request: &str, known: &[(String, &str)], now: Timestamp) -> Answer {
    let mut of = known.to_vec();
    if let Some(uid) =
        answer.body["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty() && !request.contains(*uid))
    {
        of.push((uid.to_owned(), "<uid>"));
    }
    let metadata = &answer.body["metadata"];
    if let (Some(prefix), Some(name)) = (metadata["generateName"].as_str(), metadata["name"].as_str())
        && name.len() > prefix.len().min(58)
        && !request.contains(name)
    {
        of.push((name.to_owned(), "<generated>"));
    }
    let asked: Value = serde_json::from_str(request).unwrap_or_default();
    let said = &asked["metadata"];
    let unnamed = said["name"].as_str().unwrap_or_default().is_empty();
    if let (true, Some(_), Some(name)) =
        (unnamed, said["generateName"].as_str(), answer.body["details"]["name"].as_str())
    {
        of.push((name.to_owned(), "<generated>"));
    }
    let mut normal = answer.clone();
    unordered(&mut normal.body);
    clean(&mut normal.body, "", request, &of, now);
    if let Some(metadata) = normal.body.get_mut("metadata").and_then(Value::as_object_mut) {
        OWN.iter().for_each(|field| drop(metadata.remove(*field)));
        if let Some(entries) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) {
            entries.retain(|entry| !is_of_a_server(entry));
            entries.iter_mut().filter_map(Value::as_object_mut).for_each(|entry| drop(entry.remove("time")));
        }
    }
    normal.warnings = normal.warnings.iter().map(|text| replace(text, &of)).collect();
    normal.warnings.sort();
    normal
}

/// Returns `true` if an entry of managed fields is of a controller of kube-apiserver that writes the status of
/// definitions and FlowSchemas at a time of its own.
fn is_of_a_server(entry: &Value) -> bool {
    let managers = ["kube-apiserver", "api-priority-and-fairness-config-consumer-v1"];
    entry["subresource"] == "status" && entry["manager"].as_str().is_some_and(|name| managers.contains(&name))
}

/// The ConfigMap that an OpenShift build of kube-apiserver mounts into pods beside Kubernetes' own.
const OPENSHIFT_CA: &str = "openshift-service-ca.crt";

/// Sorts lists that come in any order, and takes out what only an OpenShift build adds: that ConfigMap, and everybody's
/// right to read about the issuer of tokens.
fn unordered(body: &mut Value) {
    for list in ["resourceRules", "nonResourceRules"] {
        if let Some(rules) =
            body.get_mut("status").and_then(|status| status.get_mut(list)).and_then(Value::as_array_mut)
        {
            rules.retain(|rule| rule["nonResourceURLs"] != json!(["/.well-known", "/.well-known/*"]));
            rules.sort_by_key(Value::to_string);
        }
    }
    for volume in body.pointer_mut("/spec/volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(sources) = volume.pointer_mut("/projected/sources").and_then(Value::as_array_mut) {
            sources.retain(|source| source["configMap"]["name"] != OPENSHIFT_CA);
        }
    }
}

fn clean(value: &mut Value, field: &str, request: &str, known: &[(String, &str)], now: Timestamp) {
    match value {
        Value::String(text) => {
            *text = replace(text, known);
            let near = text.parse::<Timestamp>().is_ok_and(|time| time.duration_since(now).abs() < NEAR);
            if near {
                "<now>".clone_into(text);
            } else if allocated(field, text, request) {
                "<allocated>".clone_into(text);
            }
        }
        Value::Number(number) if allocated(field, &number.to_string(), request) => {
            *value = json!("<allocated>")
        }
        Value::Array(items) => items.iter_mut().for_each(|item| clean(item, field, request, known, now)),
        Value::Object(fields) => {
            let keys: Vec<String> = fields.keys().filter(|key| key.contains(TOKEN)).cloned().collect();
            for key in keys {
                let value = fields.remove(&key).unwrap_or_default();
                fields.insert(replace(&key, known), value);
            }
            fields.iter_mut().for_each(|(key, value)| clean(value, key, request, known, now));
        }
        _ => {}
    }
}

fn allocated(field: &str, text: &str, request: &str) -> bool {
    ALLOCATED.contains(&field) && text != "None" && !text.is_empty() && !request.contains(text)
}

/// Prefix of the volume of a pod's token, before five random letters.
const TOKEN: &str = "kube-api-access-";

fn replace(text: &str, known: &[(String, &str)]) -> String {
    let mut text = text.to_owned();
    for (own, stand_in) in known {
        if !own.is_empty() {
            text = text.replace(own, stand_in);
        }
    }
    let mut from = 0;
    while let Some(at) = text[from..].find(TOKEN).map(|at| from + at + TOKEN.len()) {
        let end = text[at..].char_indices().nth(5).map_or(text.len(), |(index, _)| at + index);
        text.replace_range(at..end, "xxxxx");
        from = at;
    }
    text
}

/// Compares normalized answers.
pub fn compare(ours: &Answer, theirs: &Answer) -> Verdict {
    let mut found = Vec::new();
    let mut words = Vec::new();
    if ours.status != theirs.status {
        let difference = Difference {
            place: format!("status {} in place of {}", ours.status, theirs.status),
            ours: gist(ours),
            theirs: gist(theirs),
        };
        return Verdict::Different(vec![difference]);
    }
    if ours.body["kind"] == "Status" && theirs.body["kind"] == "Status" {
        statuses(&ours.body, &theirs.body, &mut found, &mut words);
    } else {
        values(&ours.body, &theirs.body, "", &mut found);
    }
    if ours.warnings != theirs.warnings {
        let (a, b): (BTreeSet<_>, BTreeSet<_>) =
            (ours.warnings.iter().collect(), theirs.warnings.iter().collect());
        let only = |a: &BTreeSet<&String>, b: &BTreeSet<&String>| {
            json!(a.difference(b).collect::<Vec<_>>()).to_string()
        };
        found.push(Difference { place: "warnings".to_owned(), ours: only(&a, &b), theirs: only(&b, &a) });
    }
    match (found.is_empty(), words.is_empty()) {
        (false, _) => Verdict::Different(found),
        (true, true) => Verdict::Same,
        (true, false) if decoder(&ours.body) || decoder(&theirs.body) => Verdict::Decoder(words.remove(0)),
        (true, false) if words.iter().all(is_structure) => Verdict::Decoder(words.remove(0)),
        (true, false) => Verdict::Words(words),
    }
}

/// A refusal in short: its reason, and the causes or the message.
fn gist(answer: &Answer) -> String {
    if answer.body["kind"] != "Status" {
        return format!("{} {}", answer.status, answer.body["kind"].as_str().unwrap_or("body"));
    }
    let message = answer.body["message"].as_str().unwrap_or_default();
    format!("{} {}: {message}", answer.status, answer.body["reason"].as_str().unwrap_or_default())
}

/// True if a refusal names types of Go, or is what a decoder of Go says about JSON or shows of an object.
fn decoder(status: &Value) -> bool {
    const WORDS: [&str; 12] = [
        "json: cannot unmarshal",
        "Go struct field",
        "Go value of type",
        "cannot unmarshal",
        "invalid character",
        "unexpected end of JSON",
        "valueUnstructured",
        "illegal base64",
        "cannot parse",
        "cannot convert",
        "unrecognized type",
        "unable to unmarshal",
    ];
    // The result of a patch is shown as Go encodes it, with the versions of each server's objects.
    if causes(status).iter().any(|(field, ..)| field == "patch") {
        return true;
    }
    let message = status["message"].as_str().unwrap_or_default();
    WORDS.iter().any(|word| message.contains(word))
}

/// Returns `true` if two messages differ only in a structure: Kubernetes shows its internal types, with their
/// names of fields, and compares two of them line by line.
fn is_structure(words: &Difference) -> bool {
    without_structures(&words.ours) == without_structures(&words.theirs)
}

fn without_structures(message: &str) -> String {
    let end = ["\n@@ ", " (changed: "].iter().filter_map(|mark| message.find(mark)).min();
    let message = &message[..end.unwrap_or(message.len())];
    let Some((before, shown)) =
        message.split_once("value: ").filter(|(_, shown)| shown.starts_with(['{', '[']))
    else {
        return message.to_owned();
    };
    let mut values = serde_json::Deserializer::from_str(shown).into_iter::<Value>();
    match values.next() {
        Some(Ok(_)) => format!("{before}value: {{}}{}", &shown[values.byte_offset()..]),
        _ => message.to_owned(),
    }
}

fn statuses(ours: &Value, theirs: &Value, found: &mut Vec<Difference>, words: &mut Vec<Difference>) {
    for field in ["status", "reason", "code"] {
        values(&ours[field], &theirs[field], field, found);
    }
    for field in ["name", "group", "kind", "retryAfterSeconds"] {
        values(&ours["details"][field], &theirs["details"][field], &format!("details.{field}"), found);
    }
    let (a, b) = (causes(ours), causes(theirs));
    let short = |all: &[(String, String, String)], others: &[(String, String, String)]| {
        let strange = |one: &&(String, String, String)| {
            let alike = |of: &[(String, String, String)]| {
                of.iter().filter(|other| (&other.0, &other.1) == (&one.0, &one.1)).count()
            };
            alike(all) != alike(others)
        };
        all.iter()
            .filter(strange)
            .map(|(field, reason, message)| format!("{field}: {reason}: {message}"))
            .collect::<Vec<_>>()
    };
    let (only_ours, only_theirs) = (short(&a, &b), short(&b, &a));
    if !only_ours.is_empty() || !only_theirs.is_empty() {
        let first = only_theirs.first().or(only_ours.first()).cloned().unwrap_or_default();
        found.push(Difference {
            place: format!("causes {first}"),
            ours: only_ours.join("; "),
            theirs: only_theirs.join("; "),
        });
    }
    for (one, other) in a.iter().zip(&b).filter(|(one, other)| one.2 != other.2) {
        words.push(Difference {
            place: format!("words {}", other.0),
            ours: one.2.clone(),
            theirs: other.2.clone(),
        });
    }
    // With causes, the message is made of them; their order counts.
    if words.is_empty() && ours["message"] != theirs["message"] {
        let text = |status: &Value| status["message"].as_str().unwrap_or_default().to_owned();
        words.push(Difference { place: "words".to_owned(), ours: text(ours), theirs: text(theirs) });
    }
}

/// Field, reason and message of each cause, in one order.
fn causes(status: &Value) -> Vec<(String, String, String)> {
    let word = |cause: &Value, field: &str| cause[field].as_str().unwrap_or_default().to_owned();
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    let mut all: Vec<_> = causes.map(|c| (word(c, "field"), word(c, "reason"), word(c, "message"))).collect();
    all.sort();
    all
}

/// Finds the places in which two values differ; absent and `null` are not alike.
fn values(ours: &Value, theirs: &Value, place: &str, found: &mut Vec<Difference>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            let absent = |fields: &Map<String, Value>, key: &String| {
                fields.get(key).cloned().unwrap_or(json!("<absent>"))
            };
            for key in keys.into_iter().filter(|key| a.get(*key) != b.get(*key)) {
                values(&absent(a, key), &absent(b, key), &format!("{place}.{key}"), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (one, other) in a.iter().zip(b) {
                values(one, other, &format!("{place}[]"), found);
            }
        }
        _ if ours != theirs => {
            found.push(Difference {
                place: place.to_owned(),
                ours: ours.to_string(),
                theirs: theirs.to_string(),
            });
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Answer, Verdict, compare, normalize};

    fn answer(status: u16, body: Value) -> Answer {
        Answer { status, body, warnings: Vec::new() }
    }

    fn refusal(causes: Value, message: &str) -> Answer {
        answer(
            422,
            json!({"kind": "Status", "status": "Failure", "code": 422, "reason": "Invalid", "message": message,
            "details": {"name": "p", "kind": "Pod", "causes": causes}}),
        )
    }

    fn normal(body: Value, request: &str) -> Value {
        let now = "2026-06-01T00:00:00Z".parse().unwrap();
        normalize(&answer(201, body), request, &[("old-uid".to_owned(), "<base>")], now).body
    }

    #[test]
    fn generated_values_are_left_out_of_the_comparison() {
        let object = |uid: &str, ip: &str, time: &str| {
            json!({"metadata": {"uid": uid, "name": "a", "resourceVersion": "7", "creationTimestamp": time,
                "labels": {"owner": uid, "base": "old-uid"},
                "managedFields": [{"manager": "m", "time": time}]},
                "spec": {"clusterIP": ip, "since": time, "volumes": [{"name": "kube-api-access-abcde"}],
                    "ports": [{"nodePort": 31000}]}})
        };
        let one = normal(object("u-1", "10.0.0.1", "2026-06-01T00:00:01Z"), "{}");
        let other = normal(object("u-2", "10.0.0.2", "2026-05-31T23:59:59Z"), "{}");
        assert_eq!(one, other);
        assert_eq!(one["metadata"]["labels"], json!({"owner": "<uid>", "base": "<base>"}));
        assert_eq!(one["spec"]["ports"][0]["nodePort"], "<allocated>");
    }

    #[test]
    fn requested_values_are_compared() {
        let asked =
            normal(json!({"metadata": {}, "spec": {"clusterIP": "10.0.0.1"}}), r#"{"clusterIP":"10.0.0.1"}"#);
        assert_eq!(asked["spec"]["clusterIP"], "10.0.0.1");
        let time = normal(json!({"metadata": {}, "spec": {"at": "2026-01-02T03:04:05Z"}}), "{}");
        assert_eq!(time["spec"]["at"], "2026-01-02T03:04:05Z");
    }

    #[test]
    fn generated_names_are_alike_and_prefixes_are_not() {
        let named = |name: &str, prefix: &str| {
            normal(json!({"metadata": {"generateName": prefix, "name": name}}), "{}")
        };
        assert_eq!(named("a-bcdfg", "a-"), named("a-22222", "a-"));
        assert_ne!(named("a-bcdfg", "a-"), named("b-22222", "b-"));
    }

    #[test]
    fn another_status_reason_field_or_object_is_different() {
        let base = refusal(json!([{"field": "spec.a", "reason": "FieldValueRequired", "message": "m"}]), "m");
        let mut field = base.clone();
        field.body["details"]["causes"][0]["field"] = json!("spec.b");
        let mut reason = base.clone();
        reason.body["reason"] = json!("BadRequest");
        let created = answer(201, json!({"kind": "Pod", "spec": {"a": [{"b": 1}]}}));
        let other = answer(201, json!({"kind": "Pod", "spec": {"a": [{"b": 2}]}}));
        for (one, two) in [(&base, &field), (&base, &reason), (&base, &created), (&created, &other)] {
            assert!(matches!(compare(one, two), Verdict::Different(_)), "{one:?} {two:?}");
        }
        let Verdict::Different(found) = compare(&created, &other) else { panic!() };
        assert_eq!((found[0].place.as_str(), found[0].ours.as_str()), (".spec.a[].b", "1"));
        assert_eq!(compare(&base, &base), Verdict::Same);
    }

    #[test]
    fn the_order_of_causes_is_a_matter_of_words() {
        let cause = |field: &str| json!({"field": field, "reason": "FieldValueRequired", "message": "m"});
        let one = refusal(json!([cause("a"), cause("b")]), "[a: m, b: m]");
        let other = refusal(json!([cause("b"), cause("a")]), "[b: m, a: m]");
        assert!(matches!(compare(&one, &other), Verdict::Words(_)));
    }

    #[test]
    fn words_of_rules_count_and_those_of_decoders_are_set_aside() {
        let cause = json!([{"field": "a", "reason": "FieldValueInvalid", "message": "must be small"}]);
        let other = json!([{"field": "a", "reason": "FieldValueInvalid", "message": "must be tiny"}]);
        let Verdict::Words(found) = compare(&refusal(cause, "x"), &refusal(other, "y")) else { panic!() };
        assert_eq!(found[0].theirs, "must be tiny");
        let bad = |message: &str| {
            answer(400, json!({"kind": "Status", "reason": "BadRequest", "code": 400, "message": message}))
        };
        let ours = bad("Pod in version \"v1\" cannot be handled as a Pod: wrong type");
        let theirs = bad("json: cannot unmarshal string into Go struct field PodSpec.spec.x of type int");
        assert!(matches!(compare(&ours, &theirs), Verdict::Decoder(_)));
    }

    #[test]
    fn structures_that_are_shown_differently_are_set_aside_and_other_words_are_not() {
        let told = |ours: &str, theirs: &str| {
            let bad = |message: &str| {
                answer(
                    422,
                    json!({"kind": "Status", "details": {"causes": [{"field": "spec", "message": message}]}}),
                )
            };
            compare(&bad(ours), &bad(theirs))
        };
        let theirs = r#"Invalid value: {"Type":"x","RollingUpdate":null}: must be y"#;
        assert!(matches!(told(r#"Invalid value: {"type":"x"}: must be y"#, theirs), Verdict::Decoder(_)));
        assert!(matches!(told(r#"Invalid value: {"type":"x"}: must be z"#, theirs), Verdict::Words(_)));
        let theirs = "Forbidden: may not change\n@@ -1 +1 @@\n-a\n+b\n";
        assert!(matches!(told("Forbidden: may not change (changed: a)", theirs), Verdict::Decoder(_)));
        assert!(matches!(told("Forbidden: may change", theirs), Verdict::Words(_)));
    }

    #[test]
    fn warnings_are_compared_in_any_order() {
        let with = |texts: &[&str]| Answer {
            warnings: texts.iter().map(|text| (*text).to_owned()).collect(),
            ..answer(201, json!({"kind": "Pod"}))
        };
        let now = "2026-06-01T00:00:00Z".parse().unwrap();
        let normal = |of: Answer| normalize(&of, "", &[], now);
        assert_eq!(compare(&normal(with(&["a", "b"])), &normal(with(&["b", "a"]))), Verdict::Same);
        assert!(matches!(compare(&with(&["a"]), &with(&[])), Verdict::Different(_)));
    }
}
