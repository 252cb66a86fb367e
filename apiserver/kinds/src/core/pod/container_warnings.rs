//! Warnings about containers.

use apiserver_schema::meta;
use apiserver_schema::repeats::repeats;
use apiserver_schema::validation::{given, items, text};
use serde_json::Value;

use crate::core::persistent_volume;
use crate::core::pod::apparmor::{self, ANNOTATION};
use crate::core::pod::security::SECCOMP_CONTAINER;

pub(crate) fn warnings(
    object: &Value,
    container: &Value,
    path: &str,
    prefix: &str,
    warnings: &mut Vec<String>,
) {
    let context = |object: &Value, field: &str| {
        given(object, "securityContext").is_some_and(|c| given(c, field).is_some())
    };
    let name = text(container, "name");
    let key = format!("{SECCOMP_CONTAINER}{name}");
    if !context(container, "seccompProfile") && meta::annotation(object, &key).is_some() {
        warnings.push(format!(
            "{prefix}metadata.annotations[{key}]: non-functional in v1.27+; use the \"seccompProfile\" field instead"
        ));
    }
    // Pods are warned about before the annotations become fields.
    if !prefix.is_empty()
        && !context(container, "appArmorProfile")
        && let Some(annotation) = meta::annotation(object, &format!("{}{name}", ANNOTATION))
    {
        let whole = given(&object["spec"], "securityContext").and_then(|c| given(c, "appArmorProfile"));
        if whole.is_none_or(|whole| apparmor::profile(annotation).as_ref() != Some(whole)) {
            warnings.push(apparmor::deprecated(prefix, name));
        }
    }
    for name in ["memory", "ephemeral-storage"] {
        for list in ["limits", "requests"] {
            let amount = container["resources"][list].get(name);
            warnings
                .extend(persistent_volume::fractional(amount, &format!("{path}.resources.{list}[{name}]")));
        }
    }
    let variables = items(container, "env");
    for index in repeats(variables.iter().map(|variable| text(variable, "name"))) {
        let variable = &variables[index];
        let name = text(variable, "name");
        // Its own earlier value may be part of the new one.
        let (reference, value) = (format!("$({name})"), text(variable, "value"));
        let extends = value.contains(&reference) && value != reference;
        if given(variable, "valueFrom").is_some() || !extends {
            warnings.push(format!(
                "{path}.env[{index}]: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
}
