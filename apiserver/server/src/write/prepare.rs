//! Stage `prepare`: what the server decides about an object, and no client: uid and times, a generated name, the
//! generation, and what a kind sets by its hooks `prepare_*`.

use apiserver_cache::encoding;
use apiserver_kinds::labels;
use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::meta;
use apiserver_schema::schema;
use serde_json::{Value, json};

use super::retry::Creation;
use super::{Part, Write};
use crate::context::Context;

/// Sets what the client may not choose.
pub(super) fn prepare(write: &Write<'_>, object: &mut Value) {
    match write.old() {
        None => created(write.context, write.resource, object),
        Some(old) => updated(write, old, object),
    }
}

fn created(context: &Context, resource: &Resource, object: &mut Value) {
    let ambient = context.server.ambient();
    meta::unset(object, "resourceVersion");
    if meta::generation(object) == 0 {
        meta::unset(object, "generation");
    }
    meta::set(object, "uid", ambient.uid());
    meta::set(object, "creationTimestamp", time::rfc3339(ambient.now()));
    if resource.behaviour.generation {
        meta::set(object, "generation", 1);
    }
    let with_status = context.internal || resource.behaviour.created_with_status;
    if resource.behaviour.status_subresource
        && !with_status
        && let Some(map) = object.as_object_mut()
        && map.contains_key("status")
    {
        map.insert("status".to_owned(), json!({}));
    }
    let unnamed = meta::name(object).is_empty() && meta::generate_name(object).is_empty();
    if unnamed && resource.behaviour.optional_name {
        meta::set(object, "name", ambient.uid());
    }
    if let Some(set_requester) = resource.behaviour.set_requester {
        set_requester(object, &context.identity);
    }
    if let Some(warnings) = resource.behaviour.early_warnings {
        warnings(object).into_iter().for_each(|warning| context.warn(warning));
    }
}

/// Returns the object of one attempt at a create: with a name of its own, if it is to be generated.
pub(super) fn candidate(write: &Write<'_>, creation: &mut Creation) -> Value {
    let resource = write.resource;
    let mut object = if creation.generates_name {
        let mut object = creation.object.clone();
        let suffix = write.context.server.ambient().name_suffix();
        let name = generated_name(meta::generate_name(&object), &suffix);
        meta::set(&mut object, "name", name);
        // Some defaults follow from the name.
        (resource.behaviour.default)(&mut object);
        object
    } else {
        std::mem::take(&mut creation.object)
    };
    // Labels of a Job's pods have its name, so this comes after the name.
    (resource.behaviour.prepare_create)(&mut object);
    creation.shared_labels.into_iter().for_each(|at| labels::share_labels(&mut object, at));
    if resource.custom.is_none() {
        schema::complete_status(&resource.schema, &mut object);
    }
    encoding::normalize_as(resource, &mut object);
    meta::name(&object).clone_into(&mut creation.name);
    creation.has_base = !meta::generate_name(&object).is_empty();
    object
}

/// Generates a name of at most 63 bytes, for a base of any length.
fn generated_name(base: &str, suffix: &str) -> String {
    let room = 63 - suffix.len();
    let cut = (0..=base.len().min(room)).rev().find(|&i| base.is_char_boundary(i)).unwrap_or(0);
    format!("{}{suffix}", &base[..cut])
}

/// Sets what a client may not choose in the part that it writes. A whole object was made by this server from
/// the old one.
fn updated(write: &Write<'_>, old: &Value, new: &mut Value) {
    let (resource, now) = (write.resource, write.now());
    match write.part {
        Part::Main => {
            (resource.behaviour.prepare_update)(new, old);
            if let Some(times) = &resource.behaviour.prepare_times {
                times(new, old, now);
            }
        }
        Part::Status => {
            (resource.behaviour.prepare_status)(new, old);
            if let Some(times) = &resource.behaviour.prepare_status_times {
                times(new, old, now);
            }
        }
        Part::Whole | Part::Admitted => {}
    }
    count_generation(resource, write.part, old, new);
}

/// The generation rises with every change outside metadata and a status that is a subresource, and with
/// one of the metadata that the kind counts.
fn count_generation(resource: &Resource, part: Part, old: &Value, new: &mut Value) {
    // Bindings and evictions do not change the desired state.
    if !resource.behaviour.generation || part == Part::Admitted {
        return;
    }
    let of = |object: &Value, field: &str| {
        object["metadata"][field].as_object().filter(|map| !map.is_empty()).cloned()
    };
    let counted = resource.behaviour.counted.filter(|_| part != Part::Status);
    if counted.is_some_and(|field| of(new, field) != of(old, field)) {
        return meta::set(new, "generation", meta::generation(old) + 1);
    }
    let changed = |a: &Value, b: &Value| {
        a.as_object().is_some_and(|map| {
            map.iter().any(|(key, value)| {
                let counts = match key.as_str() {
                    "metadata" => false,
                    "status" => !resource.behaviour.status_subresource,
                    _ => true,
                };
                counts && b.get(key) != Some(value)
            })
        })
    };
    if (changed(old, new) || changed(new, old)) && !same_outside(resource, old, new) {
        meta::set(new, "generation", meta::generation(old) + 1);
    }
}

/// Returns `true` if the objects are the same except for metadata, and for a status that is a subresource.
fn same_outside(resource: &Resource, old: &Value, new: &Value) -> bool {
    let mut other = new.clone();
    let mut keep = |field: &str| match (old.get(field), other.as_object_mut()) {
        (Some(value), Some(map)) => drop(map.insert(field.to_owned(), value.clone())),
        (None, Some(map)) => drop(map.remove(field)),
        _ => {}
    };
    keep("metadata");
    if resource.behaviour.status_subresource {
        keep("status");
    }
    encoding::same(&other, old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_name_of_a_long_base_is_cut_to_63_bytes() {
        assert_eq!(generated_name("web-", "abcde"), "web-abcde");
        assert_eq!(generated_name(&"x".repeat(100), "abcde").len(), 63);
    }
}
