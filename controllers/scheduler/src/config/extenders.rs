//! Extenders of a document: what is wrong with them, and what they change in the profiles.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::document::{Extender, PluginConfig, Profile};
use super::problems::Problems;
use crate::resources::is_extended;

/// The plugin that leaves the resources of extenders alone.
const FIT: &str = "NodeResourcesFit";
const LONGEST_NAME: usize = 63;
const LONGEST_PREFIX: usize = 253;

/// Reports what is wrong with extenders, in the words of kube-scheduler.
pub(super) fn validate(extenders: &[Extender], problems: &mut Problems) {
    let mut resources = BTreeSet::new();
    for (index, extender) in extenders.iter().enumerate() {
        problems.within(format_args!("extenders[{index}]"), |problems| {
            if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
                let text = "must have a positive weight applied to it";
                problems.add("weight", format_args!("Invalid value: {}: {text}", extender.weight));
            }
            let is_right = extender.http_timeout.is_none_or(|timeout| timeout.duration().is_some());
            problems.check(is_right, "httpTimeout", "must not be negative");
            for (index, resource) in extender.managed_resources.iter().enumerate() {
                let name = resource.name.as_str();
                let mut invalid = |text: &str| {
                    let field = format!("managedResources[{index}].name");
                    problems.add(field, format_args!("Invalid value: {name:?}: {text}"));
                };
                let unqualified = unqualified(name);
                if unqualified.is_empty() && !is_extended(name) {
                    invalid("is an invalid extended resource name");
                }
                unqualified.iter().for_each(|text| invalid(text));
                if !resources.insert(name) {
                    invalid("duplicate extender managed resource name");
                }
            }
        });
    }
    let binders = extenders.iter().filter(|extender| !extender.bind_verb.is_empty()).count();
    if binders > 1 {
        let value = format!("found {binders} extenders implementing bind");
        let text = "only one extender can implement bind";
        problems.add("extenders", format_args!("Invalid value: {value:?}: {text}"));
    }
}

/// Makes NodeResourcesFit of each profile leave the resources to the extenders that ask for it. They take the place of those
/// that its arguments name.
pub(super) fn leave_resources(extenders: &[Extender], profiles: &mut Vec<Profile>) {
    let managed = extenders.iter().flat_map(|extender| &extender.managed_resources);
    let ignored: Vec<&str> =
        managed.filter(|one| one.ignored_by_scheduler).map(|one| one.name.as_str()).collect();
    if ignored.is_empty() {
        return;
    }
    if profiles.is_empty() {
        profiles.push(Profile::default());
    }
    for profile in profiles {
        let index = profile.plugin_config.iter().position(|config| config.name == FIT).unwrap_or_else(|| {
            profile.plugin_config.push(PluginConfig { name: FIT.to_owned(), args: Value::Null });
            profile.plugin_config.len() - 1
        });
        let args = &mut profile.plugin_config[index].args;
        if args.is_null() {
            *args = json!({});
        }
        if let Some(args) = args.as_object_mut() {
            args.insert("ignoredResources".to_owned(), json!(ignored));
        }
    }
}

/// Returns why a name is not `name` or `prefix/name` (`IsQualifiedName`); nothing if it is.
fn unqualified(text: &str) -> Vec<String> {
    const EMPTY: &str = "must be non-empty";
    let grammar = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
         character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
         '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let too_long = |most: usize| format!("must be no more than {most} bytes");
    let mut problems = Vec::new();
    let name = match text.split('/').collect::<Vec<_>>().as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                problems.push(format!("prefix part {EMPTY}"));
            } else {
                if prefix.len() > LONGEST_PREFIX {
                    problems.push(format!("prefix part {}", too_long(LONGEST_PREFIX)));
                }
                if !is_subdomain(prefix) {
                    problems.push(
                        "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
                         '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used \
                         for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                            .to_owned(),
                    );
                }
            }
            *name
        }
        _ => {
            let rest = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {grammar} {rest}")];
        }
    };
    if name.is_empty() {
        problems.push(format!("name part {EMPTY}"));
    } else if name.len() > LONGEST_NAME {
        problems.push(format!("name part {}", too_long(LONGEST_NAME)));
    }
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    if !is_framed(name, |byte| byte.is_ascii_alphanumeric()) || !name.as_bytes().iter().all(inner) {
        problems.push(format!("name part {grammar}"));
    }
    problems
}

fn is_subdomain(text: &str) -> bool {
    let is_end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.split('.').all(|label| {
        is_framed(label, is_end) && label.as_bytes().iter().all(|byte| is_end(byte) || *byte == b'-')
    })
}

/// Returns `true` if a text is not empty, and its first and last byte may be ends.
fn is_framed(text: &str, is_end: impl Fn(&u8) -> bool) -> bool {
    text.as_bytes().first().is_some_and(&is_end) && text.as_bytes().last().is_some_and(&is_end)
}
