//! Warnings to users of deprecated versions, and metrics of their use.

use apiserver_kinds::lifecycle;
use apiserver_registry::Resource;

use crate::context::Context;

/// Warns the client of a deprecated version and takes note of its use.
pub fn note(context: &Context, resource: &Resource) {
    let (warning, removed) = match &resource.custom {
        Some(custom) => match custom.deprecation() {
            Some(warning) => (warning, String::new()),
            None => return,
        },
        None => match lifecycle::deprecation(&resource.group, &resource.version, &resource.kind) {
            Some(row) => (row.warning(), row.removed_release()),
            None => return,
        },
    };
    context.warn(warning);
    let (info, metrics) = (&context.info, context.server.metrics());
    let known = resource.subresources.iter().any(|sub| sub.name == info.subresource);
    let subresource = if known { info.subresource.as_str() } else { "" };
    metrics.deprecated([&resource.group, &removed, &resource.plural, subresource, &resource.version]);
}
