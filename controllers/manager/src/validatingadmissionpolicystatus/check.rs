//! Checks the expressions of a policy against the kinds that it is about.

use apiserver_cel::{Declaration, Params, TypedPolicy};
use k8s_openapi::api::admissionregistration::v1::{
    ExpressionWarning, ValidatingAdmissionPolicy, Validation, Variable,
};

use super::plan::Kind;
use crate::limits::WARNINGS_BYTES;

/// The results of one kind: for each expression of the policy the error, if there is one.
#[derive(Debug)]
pub(super) struct Findings {
    pub kind: Kind,
    pub errors: Vec<Option<String>>,
}

/// Returns the expressions of the validations and of their messages, each with the path of its field. Others are not
/// checked, as in Kubernetes.
fn expressions(policy: &ValidatingAdmissionPolicy) -> impl Iterator<Item = (String, &str)> {
    let validations = policy.spec.iter().flat_map(|spec| spec.validations.iter().flatten());
    validations.enumerate().flat_map(|(index, validation)| {
        let Validation { expression, message_expression, .. } = validation;
        let message = message_expression.as_deref().filter(|source| !source.is_empty());
        let own = (format!("spec.validations[{index}].expression"), expression.as_str());
        let message = message.map(|source| (format!("spec.validations[{index}].messageExpression"), source));
        [Some(own), message].into_iter().flatten()
    })
}

/// Checks all expressions against objects of one kind, with parameters of a kind.
pub(super) fn check(
    policy: &ValidatingAdmissionPolicy,
    kind: &Kind,
    object: &Declaration,
    params: Params<'_>,
) -> Findings {
    // Objects and parameters of one kind are of two types, as in Kubernetes.
    let copy = match params {
        Params::Of(params) if std::ptr::eq(params, object) => Some(object.clone()),
        _ => None,
    };
    let mut typed = TypedPolicy::new(object, copy.as_ref().map_or(params, Params::Of));
    let variables = policy.spec.iter().flat_map(|spec| spec.variables.iter().flatten());
    for Variable { name, expression } in variables {
        typed.variable(name, expression);
    }
    let errors = expressions(policy).map(|(_, source)| typed.check(source).err()).collect();
    Findings { kind: kind.clone(), errors }
}

/// Returns the warnings of a policy from what was found with each kind. There are no more of them than fit.
pub(super) fn warnings(policy: &ValidatingAdmissionPolicy, findings: &[Findings]) -> Vec<ExpressionWarning> {
    let mut left = WARNINGS_BYTES;
    let mut warnings = Vec::new();
    for (index, (field_ref, _)) in expressions(policy).enumerate() {
        let errors = findings.iter().filter_map(|one| Some((&one.kind, one.errors.get(index)?.as_ref()?)));
        let texts: Vec<String> = errors.map(|(kind, error)| format!("{kind}: {error}\n")).collect();
        if texts.is_empty() {
            continue;
        }
        let warning = texts.join("\n");
        let Some(rest) = left.checked_sub(field_ref.len() + warning.len()) else { break };
        left = rest;
        warnings.push(ExpressionWarning { field_ref, warning });
    }
    warnings
}
