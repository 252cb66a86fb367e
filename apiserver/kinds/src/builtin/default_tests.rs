//! Defaults of every kind.

use apiserver_schema::schema;
use serde_json::json;

use crate::testing::pod_template;

/// Defaults must themselves be valid fields of the right type.
#[test]
fn defaults_fit_the_schema() {
    for resource in crate::registry().iter() {
        let mut object = json!({
            "apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {"name": "x", "uid": "u"}});
        if schema::definition(&resource.schema).unwrap().field("spec").is_some() {
            object["spec"] = json!({});
            let spec = schema::definition(&resource.schema).unwrap().field("spec").unwrap().ty().object();
            if spec.is_some_and(|spec| spec.field("template").is_some()) {
                object["spec"]["template"] = pod_template();
            }
            if spec.is_some_and(|spec| spec.field("containers").is_some()) {
                object["spec"]["containers"] = pod_template()["spec"]["containers"].clone();
            }
        }
        (resource.behaviour.default)(&mut object);
        (resource.behaviour.prepare_create)(&mut object);
        let problems = schema::check(&resource.schema, &object);
        assert!(problems.is_empty(), "{}: {problems:?}\n{object}", resource.kind);
    }
}
