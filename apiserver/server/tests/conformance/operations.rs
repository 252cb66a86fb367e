//! The steps that most tests called "should support … API operations" and "should run through the
//! lifecycle of …" share.

use serde_json::{Value, json};

use crate::api::harness::{Api, Watching};

/// A kind, and objects of it.
pub struct Kind {
    /// `""` for core.
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub namespaced: bool,
    /// A valid object under each of three names.
    pub objects: [Value; 3],
    /// The value that is written to its subresource `status`, if it has one.
    pub status: Option<Value>,
    /// The server writes a condition into each new object.
    pub marked: bool,
    /// New objects get a finalizer, which a controller removes.
    pub protected: bool,
}

impl Kind {
    /// Objects that differ in their names alone.
    pub fn new(group: &'static str, version: &'static str, plural: &'static str, content: &Value) -> Self {
        let named = |name: &str| {
            let mut object = content.clone();
            object["metadata"]["name"] = name.into();
            object
        };
        let objects = ["first", "second", "third"].map(named);
        Self {
            group,
            version,
            plural,
            namespaced: true,
            objects,
            status: None,
            marked: false,
            protected: false,
        }
    }

    pub fn of_cluster(mut self) -> Self {
        self.namespaced = false;
        self
    }

    pub fn with_status(mut self, status: Value) -> Self {
        self.status = Some(status);
        self
    }

    pub fn marked(mut self) -> Self {
        self.marked = true;
        self
    }

    pub fn protected(mut self) -> Self {
        self.protected = true;
        self
    }

    /// Other names, for kinds whose names have a meaning.
    pub fn named(mut self, names: [&str; 3]) -> Self {
        for (object, name) in self.objects.iter_mut().zip(names) {
            object["metadata"]["name"] = name.into();
        }
        self
    }

    fn root(&self) -> String {
        match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }

    fn everywhere(&self) -> String {
        format!("{}/{}", self.root(), self.plural)
    }

    fn here(&self) -> String {
        if self.namespaced {
            format!("{}/namespaces/default/{}", self.root(), self.plural)
        } else {
            self.everywhere()
        }
    }
}

/// Discovery, create, get, list, watch, patch, update, status, delete, deletecollection.
pub async fn operations(kind: Kind) {
    let api = Api::start().await;
    is_discovered(&api, &kind).await;
    let (here, selected) = (kind.here(), format!("{}?labelSelector=special%3Dyes", kind.here()));
    let mut watch = api.watch(&format!("{selected}&watch=true")).await;
    let mut names = Vec::new();
    for object in &kind.objects {
        let mut object = object.clone();
        object["metadata"]["labels"]["special"] = "yes".into();
        let made = api.post(&here, object).await.expect(201);
        assert!(
            made.body["metadata"]["uid"].is_string()
                && made.body["metadata"]["creationTimestamp"].is_string()
        );
        names.push(made.body["metadata"]["name"].as_str().unwrap().to_owned());
        let added = format!("ADDED {}", names.last().unwrap());
        loop {
            let event = watch.brief().await;
            if !kind.marked || !event.starts_with("MODIFIED") {
                assert_eq!(event, added);
                break;
            }
        }
    }
    if kind.marked {
        watch = watch_once_ready(&api, &selected, &names).await;
    }
    let one = format!("{here}/{}", names[0]);
    let read = api.get(&one).await.expect(200).body;
    assert_eq!(read["metadata"]["labels"]["special"], "yes");
    assert_eq!(api.get(&selected).await.expect(200).body["items"].as_array().unwrap().len(), 3);
    let everywhere = api.get(&format!("{}?labelSelector=special%3Dyes", kind.everywhere())).await.expect(200);
    assert_eq!(everywhere.body["items"].as_array().unwrap().len(), 3);
    let patch = json!({"metadata": {"annotations": {"patched": "true"}}});
    let patched = api.patch("merge", &one, patch).await.expect(200).body;
    assert_eq!(patched["metadata"]["annotations"]["patched"], "true");
    sees(&mut watch, "MODIFIED", &names[0]).await;
    let mut whole = patched;
    whole["metadata"]["annotations"]["updated"] = "true".into();
    let updated = api.put(&one, whole.clone()).await.expect(200).body;
    assert_eq!(updated["metadata"]["annotations"]["updated"], "true");
    api.put(&one, whole).await.expect(409);
    sees(&mut watch, "MODIFIED", &names[0]).await;
    if let Some(status) = &kind.status {
        changes_status(&api, &one, status).await;
        sees(&mut watch, "MODIFIED", &names[0]).await;
        sees(&mut watch, "MODIFIED", &names[0]).await;
    }
    if kind.protected {
        for name in &names {
            let free = json!({"metadata": {"finalizers": null}});
            api.patch("merge", &format!("{here}/{name}"), free).await.expect(200);
            sees(&mut watch, "MODIFIED", name).await;
        }
    }
    let options = json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"});
    api.delete(&one, options.clone()).await.expect(200);
    sees(&mut watch, "DELETED", &names[0]).await;
    api.get(&one).await.expect(404);
    api.delete(&selected, options).await.expect(200);
    assert_eq!(api.get(&selected).await.body["items"], json!([]));
    for name in &names[1..] {
        sees(&mut watch, "DELETED", name).await;
    }
}

/// Waits until the server has written conditions to all objects, and returns a watch from there on.
async fn watch_once_ready(api: &Api, selected: &str, names: &[String]) -> Watching {
    loop {
        let list = api.get(selected).await.expect(200);
        let items = list.body["items"].as_array().unwrap();
        if items.len() == names.len() && items.iter().all(|item| item["status"]["conditions"].is_array()) {
            return api.watch(&format!("{selected}&watch=true&resourceVersion={}", list.version())).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

async fn sees(watch: &mut Watching, change: &str, name: &str) {
    assert_eq!(watch.brief().await, format!("{change} {name}"));
}

/// Checks that the documents contain the group, the version and the resource with all verbs.
async fn is_discovered(api: &Api, kind: &Kind) {
    if !kind.group.is_empty() {
        let groups = api.get("/apis").await.expect(200).body;
        assert!(groups["groups"].as_array().unwrap().iter().any(|g| g["name"] == kind.group));
        let group = api.get(&format!("/apis/{}", kind.group)).await.expect(200).body;
        let versions = group["versions"].as_array().unwrap();
        assert!(versions.iter().any(|v| v["version"] == kind.version), "{group}");
    }
    let resources = api.get(&kind.root()).await.expect(200).body;
    let find = |name: &str| {
        let found = resources["resources"].as_array().unwrap().iter().find(|r| r["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is not in {resources}")).clone()
    };
    let found = find(kind.plural);
    for verb in ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"] {
        assert!(found["verbs"].as_array().unwrap().iter().any(|v| v == verb), "{verb}: {found}");
    }
    assert_eq!(found["namespaced"], kind.namespaced);
    if kind.status.is_some() {
        assert_eq!(find(&format!("{}/status", kind.plural))["verbs"], json!(["get", "patch", "update"]));
    }
}

/// The subresource is patched, read and replaced; the rest of the object stays.
async fn changes_status(api: &Api, one: &str, status: &Value) {
    let path = format!("{one}/status");
    let spec = api.get(one).await.body["spec"].clone();
    let patch = json!({"metadata": {"annotations": {"patchedstatus": "true"}}, "status": status});
    let patched = api.patch("merge", &path, patch).await.expect(200).body;
    assert_eq!(patched["metadata"]["annotations"]["patchedstatus"], "true", "{patched}");
    includes(&patched["status"], status);
    let mut read = api.get(&path).await.expect(200).body;
    includes(&read["status"], status);
    read["metadata"]["annotations"]["updatedstatus"] = "true".into();
    let replaced = api.put(&path, read).await.expect(200).body;
    assert_eq!(replaced["metadata"]["annotations"]["updatedstatus"], "true", "{replaced}");
    includes(&replaced["status"], status);
    assert_eq!(replaced["spec"], spec);
}

/// Asserts that everything written is there; the server may have added more.
fn includes(whole: &Value, part: &Value) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            for (key, value) in part {
                includes(whole.get(key).unwrap_or_else(|| panic!("{key} is not in {whole:?}")), value);
            }
        }
        (Value::Array(whole), Value::Array(part)) => {
            assert_eq!(whole.len(), part.len());
            whole.iter().zip(part).for_each(|(whole, part)| includes(whole, part));
        }
        _ => assert_eq!(whole, part),
    }
}

/// A condition as most kinds have it.
pub fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": "E2E", "message": "set by a test",
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// The template of a pod with this label.
pub fn template(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}
