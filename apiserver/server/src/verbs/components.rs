//! `componentstatuses`: the health of the parts of the control plane, checked on request. Nothing of it is
//! stored.

use std::sync::Arc;

use apiserver_registry::Resource;
use apiserver_registry::{FieldSelector, LabelSelector};
use apiserver_schema::meta;
use apiserver_schema::ordered;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::components;
use crate::context::Context;
use crate::errors;
use crate::negotiate;
use crate::object_answer::object_answer;
use crate::respond;
use crate::respond::Answer;
use crate::table;
use crate::table::Rows;
use apiserver_cache::form::Shape;

/// One component; 404 for a name that is none.
pub async fn get(context: &Context, resource: &Resource) -> Answer {
    let name = &context.info.name;
    let health =
        components::check_one(&context.server.config().components, context.server.objects().store(), name)
            .await;
    let health = health.ok_or_else(|| errors::not_found(resource, name))?;
    let mut object = status(name, &health);
    object["kind"] = resource.kind.as_str().into();
    object["apiVersion"] = resource.api_version().into();
    object_answer(context, resource, 200, Bytes::from(ordered::json_text(&object)))
}

/// Returns all components that the selectors choose.
pub async fn list(context: &Context, resource: &Arc<Resource>) -> Answer {
    let wanted = negotiate::wanted(&context.headers, resource)?.of_list(resource)?;
    let (labels, fields) = (context.query.get("labelSelector"), context.query.get("fieldSelector"));
    let labels = labels.map_or(Ok(LabelSelector::everything()), LabelSelector::parse)?;
    let fields = fields.map_or(Ok(FieldSelector::everything()), FieldSelector::parse)?;
    fields.supported(resource)?;
    let mut items = Vec::new();
    for (name, health) in
        components::check_all(&context.server.config().components, context.server.objects().store()).await
    {
        let object = status(&name, &health);
        if labels.matches_object(&object) && fields.matches(&object, resource) {
            items.push(object);
        }
    }
    let value = match wanted.shape {
        Shape::Object => json!({
            "kind": resource.list_kind(), "apiVersion": resource.api_version(),
            "metadata": {}, "items": items,
        }),
        Shape::Table => {
            let rows = Rows::of(context, resource, wanted.meta)?;
            let cells: Vec<Value> = items.iter().map(|object| rows.row(object)).collect();
            json!({
                "kind": "Table", "apiVersion": wanted.meta, "metadata": {},
                "columnDefinitions": rows.columns(), "rows": cells,
            })
        }
        Shape::Metadata | Shape::MetadataList => {
            let items: Vec<Value> =
                items.iter().map(|object| table::metadata_only(object, wanted.meta)).collect();
            json!({
                "kind": "PartialObjectMetadataList", "apiVersion": wanted.meta, "metadata": {},
                "items": items,
            })
        }
    };
    Ok(respond::bytes(200, wanted.format.media(), respond::encoded(wanted.format, &value)?))
}

/// Returns a ComponentStatus. The condition's message is the result of the check; a check that failed to run
/// gives its error instead.
fn status(name: &str, health: &Result<String, components::Unhealthy>) -> Value {
    let mut condition = json!({"type": "Healthy", "status": "True"});
    match health {
        Ok(message) => condition["message"] = message.as_str().into(),
        Err(components::Unhealthy::Reported(message)) => {
            (condition["status"], condition["message"]) = ("False".into(), message.as_str().into());
        }
        Err(components::Unhealthy::Unreachable(error)) => {
            (condition["status"], condition["error"]) = ("False".into(), error.as_str().into());
        }
    }
    let mut object = json!({"metadata": {}, "conditions": [condition]});
    meta::set(&mut object, "name", name);
    object
}
