//! ValidatingAdmissionPolicies and MutatingAdmissionPolicies.

use apiserver_cel::{Admission, Expected, Policy};
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, items, names, text};
use serde_json::{Value, json};

use crate::admissionregistration::matching;
use crate::kind::Kind;
use crate::shared::cells::{self, UNSET};
use crate::shared::checks::distinct;
use crate::shared::columns::{AGE, Columns, Header, NAME};
use crate::shared::defaults::{fill_absent, object, with_spec};

pub(crate) static VALIDATING: Kind = Kind {
    group: "admissionregistration.k8s.io",
    plural: "validatingadmissionpolicies",
    category: Some("api-extensions"),
    generation: true,
    needs_version: true,
    default,
    validate: validate_validating,
    columns: VALIDATING_COLUMNS,
    ..Kind::DEFAULT
};

pub(crate) static MUTATING: Kind = Kind {
    group: "admissionregistration.k8s.io",
    plural: "mutatingadmissionpolicies",
    category: Some("api-extensions"),
    generation: true,
    needs_version: true,
    default,
    validate: validate_mutating,
    columns: MUTATING_COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of an admission policy of either sort.
fn default(value: &mut Value) {
    with_spec(value, |spec| {
        fill_absent(spec, "failurePolicy", "Fail");
        if let Some(constraints) = object(spec, "matchConstraints") {
            matching::default_match_resources(constraints);
        }
    });
}

const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];

const MOST_ANNOTATIONS: usize = 20;

/// Longest expression of an audit annotation, bytes.
const VALUE: usize = 5 * 1024;

/// Errors of a ValidatingAdmissionPolicy.
fn validate_validating(object: &Value) -> Vec<FieldError> {
    apiserver_cel::on_large_stack(|| validating_policy(object))
}

fn validating_policy(object: &Value) -> Vec<FieldError> {
    let mut errors = matching::with_any_finalizer(object);
    let spec = &object["spec"];
    let composed = !items(spec, "variables").is_empty();
    let expressions = common(spec, composed, &mut errors);
    let (validations, annotations) = (items(spec, "validations"), items(spec, "auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        for field in ["validations", "auditAnnotations"] {
            let detail = "validations or auditAnnotations must contain at least one item";
            errors.required(format!("spec.{field}"), detail);
        }
    }
    for (index, validation) in validations.iter().enumerate() {
        validation_errors(validation, &format!("spec.validations[{index}]"), &expressions, &mut errors);
    }
    audit(object, annotations, &expressions, &mut errors);
    errors.list()
}

/// The variables of a policy, and the other names that its expressions may use.
struct Expressions {
    policy: Policy,
    has: Admission,
}

impl Expressions {
    fn check(&self, source: &str, expected: Expected) -> Result<(), String> {
        self.policy.expression(source, self.has, expected)
    }
}

/// Validates the fields that both sorts of policies have. Expressions of a policy that is `composed` may name
/// `variables`.
fn common(spec: &Value, composed: bool, errors: &mut Errors) -> Expressions {
    errors.one_of_given("spec.failurePolicy", spec.get("failurePolicy"), &["Fail", "Ignore"]);
    if let Some(kind) = spec.get("paramKind").filter(|k| !k.is_null()) {
        param_kind(kind, errors);
    }
    match spec.get("matchConstraints").filter(|m| !m.is_null()) {
        None => errors.required("spec.matchConstraints", ""),
        Some(constraints) => {
            matching::match_resources(constraints, "spec.matchConstraints", errors);
            // They determine the type of the objects.
            if items(constraints, "resourceRules").is_empty() {
                errors.required("spec.matchConstraints.resourceRules", "");
            }
        }
    }
    let has = Admission {
        params: spec.get("paramKind").is_some_and(|kind| !kind.is_null()),
        authorizer: true,
        patches: false,
    };
    matching::match_conditions(items(spec, "matchConditions"), "spec.matchConditions", has.params, errors);
    let mut policy = Policy::new(composed);
    let variables = items(spec, "variables");
    for (index, variable) in variables.iter().enumerate() {
        let path = format!("spec.variables[{index}]");
        match text(variable, "name") {
            name if name.trim().is_empty() => {
                errors.required(format!("{path}.name"), "name is not specified");
            }
            name if !is_identifier(name) => {
                errors.invalid(format!("{path}.name"), &json!(name), "must be a valid CEL identifier");
            }
            _ => {}
        }
        let path = format!("{path}.expression");
        let check = |source: &str| policy.variable(text(variable, "name"), source, has);
        matching::expression(
            text(variable, "expression"),
            &path,
            "expression is not specified",
            errors,
            check,
        );
    }
    Expressions { policy, has }
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !apiserver_cel::is_reserved(name)
}

fn param_kind(kind: &Value, errors: &mut Errors) {
    let version = text(kind, "apiVersion");
    let path = "spec.paramKind.apiVersion";
    let mut together = |value: &str, faults: names::Faults| {
        if !faults.is_empty() {
            errors.invalid(path, &json!(value), &faults.join(","));
        }
    };
    match version.split('/').collect::<Vec<_>>().as_slice() {
        [""] => errors.required(path, ""),
        [version] => together(version, names::dns_1035_label(version)),
        [group, number] => {
            if !group.is_empty() {
                together(group, names::dns_subdomain(group));
            }
            if number.is_empty() {
                errors.invalid(path, &json!(version), "version must be specified");
            } else {
                together(number, names::dns_1035_label(number));
            }
        }
        _ => errors.invalid(path, &json!(version), &format!("unexpected GroupVersion string: {version}")),
    }
    let kind = text(kind, "kind");
    let faults = names::dns_1035_label(&kind.to_lowercase());
    if kind.is_empty() {
        errors.required("spec.paramKind.kind", "");
    } else if !faults.is_empty() {
        let detail = format!("may have mixed case, but should otherwise match: {}", faults.join(","));
        errors.invalid("spec.paramKind.kind", &json!(kind), &detail);
    }
}

fn validation_errors(validation: &Value, path: &str, expressions: &Expressions, errors: &mut Errors) {
    let (source, message) = (text(validation, "expression"), text(validation, "message"));
    let holds = |source: &str| expressions.check(source, Expected::Bool);
    matching::expression(source, &format!("{path}.expression"), "expression is not specified", errors, holds);
    if let Some(source) =
        validation.get("messageExpression").and_then(Value::as_str).filter(|s| !s.is_empty())
    {
        let path = format!("{path}.messageExpression");
        if source.trim().is_empty() {
            errors.invalid(path, &json!(source), "must be non-empty if specified");
        } else {
            // Everyone may see a message, so the authorizer is not available to it.
            let has = Admission { authorizer: false, ..expressions.has };
            let says = |source: &str| expressions.policy.expression(source, has, Expected::Text);
            matching::expression(source, &path, "", errors, says);
        }
    }
    let at = format!("{path}.message");
    if !message.is_empty() && message.trim().is_empty() {
        errors.invalid(at, &json!(message), "must be non-empty if specified");
    } else if message.trim().contains(['\n', '\r']) {
        errors.invalid(at, &json!(message), "must not contain line breaks");
    }
    errors.one_of_if_given(&format!("{path}.reason"), validation.get("reason"), &REASONS);
}

fn audit(object: &Value, annotations: &[Value], expressions: &Expressions, errors: &mut Errors) {
    let path = "spec.auditAnnotations";
    if annotations.len() > MOST_ANNOTATIONS {
        let detail = format!("must not have more than {MOST_ANNOTATIONS} auditAnnotations");
        errors.invalid(path, &json!(annotations), &detail);
    }
    for (index, annotation) in annotations.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let key = text(annotation, "key");
        let name = meta::name(object);
        if name.is_empty() {
            errors.invalid(format!("{path}.key"), &json!(key), "requires metadata.name be non-empty");
        } else {
            let full = format!("{name}/{key}");
            errors.faults(&format!("{path}.key"), &full, names::qualified_name(&full));
        }
        let source = text(annotation, "valueExpression");
        let path = format!("{path}.valueExpression");
        if source.trim().len() > VALUE {
            // Kubernetes' own reason.
            errors.required(path, &format!("must not exceed {VALUE} bytes in length"));
        } else {
            let says = |source: &str| expressions.check(source, Expected::TextOrNull);
            matching::expression(source, &path, "valueExpression is not specified", errors, says);
        }
    }
    distinct(annotations, "key", path, errors);
}

/// Errors of a MutatingAdmissionPolicy.
fn validate_mutating(object: &Value) -> Vec<FieldError> {
    apiserver_cel::on_large_stack(|| mutating_policy(object))
}

fn mutating_policy(object: &Value) -> Vec<FieldError> {
    let mut errors = matching::with_any_finalizer(object);
    let spec = &object["spec"];
    let mut expressions = common(spec, true, &mut errors);
    mutable_operations(&spec["matchConstraints"], "spec.matchConstraints", &mut errors);
    expressions.has.patches = true;
    let mutations = items(spec, "mutations");
    if mutations.is_empty() {
        errors.required("spec.mutations", "mutations must contain at least one item");
    }
    for (index, one) in mutations.iter().enumerate() {
        mutation(one, &format!("spec.mutations[{index}]"), &expressions, &mut errors);
    }
    errors.one_of("spec.reinvocationPolicy", spec.get("reinvocationPolicy"), &["IfNeeded", "Never"]);
    errors.list()
}

fn mutation(mutation: &Value, path: &str, expressions: &Expressions, errors: &mut Errors) {
    let kinds = ["ApplyConfiguration", "JSONPatch"];
    let chosen = text(mutation, "patchType");
    errors.one_of(&format!("{path}.patchType"), mutation.get("patchType"), &kinds);
    if !kinds.contains(&chosen) {
        return;
    }
    let mut patches = [("ApplyConfiguration", "applyConfiguration"), ("JSONPatch", "jsonPatch")];
    // The patch of the chosen type is validated first.
    patches.sort_by_key(|(kind, _)| *kind != chosen);
    for (kind, field) in patches {
        let path = format!("{path}.{field}");
        match mutation.get(field).filter(|patch| !patch.is_null()) {
            Some(patch) if chosen == kind => {
                let path = format!("{path}.expression");
                let expected =
                    if kind == "JSONPatch" { Expected::JsonPatch } else { Expected::ApplyConfiguration };
                let makes = |source: &str| expressions.check(source, expected);
                matching::expression(text(patch, "expression"), &path, "", errors, makes);
            }
            None if chosen == kind => {
                errors.required(path, &format!("must be specified when patchType is {kind}"));
            }
            Some(_) => {
                let detail = format!("must not be specified when patchType is {chosen}");
                errors.invalid(path, &json!(format!("{{{field}}}")), &detail);
            }
            None => {}
        }
    }
}

/// Refuses DELETE among the operations: an object that is deleted can no longer be changed.
pub(crate) fn mutable_operations(constraints: &Value, path: &str, errors: &mut Errors) {
    const KNOWN: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
    let rules = items(constraints, "resourceRules").iter();
    for operation in rules.flat_map(|rule| items(rule, "operations")) {
        if !operation.as_str().is_some_and(|name| KNOWN.contains(&name)) {
            let path = format!("{path}.resourceRules.operations");
            errors.extend([FieldError::not_supported(path, operation, &KNOWN)]);
        }
    }
}

const PARAM_KIND: Header = ("ParamKind", "string", 0, "Kind of the objects that it takes parameters from");

fn param_kind_cell(object: &Value) -> Value {
    let field = |field: &str| meta::text(object, &format!("/spec/paramKind/{field}"));
    match field("kind") {
        "" => json!(UNSET),
        kind => json!(format!("{}/{kind}", field("apiVersion"))),
    }
}

const VALIDATING_COLUMNS: Columns = Columns {
    headers: &[NAME, ("Validations", "integer", 0, "Number of validations"), PARAM_KIND, AGE],
    cells: |object, now| {
        vec![
            cells::name(object),
            json!(cells::count(object, "/spec/validations")),
            param_kind_cell(object),
            cells::age(object, now),
        ]
    },
};

const MUTATING_COLUMNS: Columns = Columns {
    headers: &[NAME, ("Mutations", "integer", 0, "Number of mutations"), PARAM_KIND, AGE],
    cells: |object, now| {
        vec![
            cells::name(object),
            json!(cells::count(object, "/spec/mutations")),
            param_kind_cell(object),
            cells::age(object, now),
        ]
    },
};
