//! PriorityLevelConfigurations.

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, text, with_metadata};
use serde_json::{Value, json};

use crate::flowcontrol::flow_schema;
use crate::kind::{Kind, METADATA_OF_STATUS};
use crate::shared::cells::{self, NONE};
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{fill, fill_zero, has_text, object, object_or_insert, with_spec};

pub(crate) static KIND: Kind = Kind {
    group: "flowcontrol.apiserver.k8s.io",
    plural: "prioritylevelconfigurations",
    generation: true,
    default,
    validate,
    validate_status: Some(flow_schema::validate_status),
    columns: COLUMNS,
    unowned: METADATA_OF_STATUS,
    ..Kind::DEFAULT
};

/// Defaults of a PriorityLevelConfiguration.
fn default(value: &mut Value) {
    with_spec(value, |spec| {
        if has_text(spec, "type", "Exempt")
            && let Some(exempt) = object_or_insert(spec, "exempt")
        {
            fill(exempt, "nominalConcurrencyShares", 0);
            fill(exempt, "lendablePercent", 0);
        }
        let Some(limited) = object(spec, "limited") else { return };
        fill(limited, "nominalConcurrencyShares", 30);
        fill(limited, "lendablePercent", 0);
        let Some(queuing) = object(limited, "limitResponse").and_then(|r| object(r, "queuing")) else {
            return;
        };
        for (field, number) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
            fill_zero(queuing, field, number);
        }
    });
}

const MOST_QUEUES: i64 = 10_000_000;

/// The number of bits of the hash that assigns requests to queues.
const HASH_BITS: u32 = 60;

/// Errors of a PriorityLevelConfiguration.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let kind = text(spec, "type");
    if (meta::name(object) == "exempt") != (kind == "Exempt") {
        let detail = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.invalid("spec.type", &json!(kind), detail);
    }
    let has = |field: &str| spec.get(field).is_some_and(|v| !v.is_null());
    match kind {
        "Exempt" => {
            if has("limited") {
                errors.forbidden("spec.limited", "must be nil if the type is not Limited");
            }
            shares(&spec["exempt"], "spec.exempt", &mut errors);
        }
        "Limited" => {
            if has("exempt") {
                errors.forbidden("spec.exempt", "must be nil if the type is Limited");
            }
            if has("limited") {
                limited(&spec["limited"], &mut errors);
            } else {
                errors.required("spec.limited", "must not be empty when type is Limited");
            }
        }
        _ => errors.extend([FieldError::not_supported("spec.type", &json!(kind), &["Exempt", "Limited"])]),
    }
    flow_schema::conditions(&object["status"], &mut errors);
    errors.list()
}

fn shares(level: &Value, path: &str, errors: &mut Errors) {
    let negative = |value: &Value| value.as_i64().is_some_and(|n| n < 0);
    let shares = &level["nominalConcurrencyShares"];
    if negative(shares) {
        errors.invalid(format!("{path}.nominalConcurrencyShares"), shares, "must be a non-negative integer");
    }
    let lendable = &level["lendablePercent"];
    if lendable.as_i64().is_some_and(|n| !(0..=100).contains(&n)) {
        errors.invalid(format!("{path}.lendablePercent"), lendable, "must be between 0 and 100, inclusive");
    }
    let limit = &level["borrowingLimitPercent"];
    if negative(limit) {
        let detail = "if specified, must be a non-negative integer";
        errors.invalid(format!("{path}.borrowingLimitPercent"), limit, detail);
    }
}

fn limited(limited: &Value, errors: &mut Errors) {
    shares(limited, "spec.limited", errors);
    let response = &limited["limitResponse"];
    let path = "spec.limited.limitResponse.queuing";
    let queuing = response.get("queuing").filter(|q| !q.is_null());
    match (text(response, "type"), queuing) {
        ("Reject", Some(_)) => {
            errors.forbidden(path, "must be nil if limited.limitResponse.type is not Limited");
        }
        ("Queue", None) => {
            errors.required(path, "must not be empty if limited.limitResponse.type is Limited");
        }
        ("Queue", Some(queuing)) => queues(queuing, path, errors),
        ("Reject", None) => {}
        (other, _) => {
            let path = "spec.limited.limitResponse.type";
            errors.extend([FieldError::not_supported(path, &json!(other), &["Queue", "Reject"])]);
        }
    }
}

fn queues(queuing: &Value, path: &str, errors: &mut Errors) {
    let number = |field: &str| queuing[field].as_i64().unwrap_or(0);
    let mut refuse = |field: &str, detail: &str| {
        errors.invalid(format!("{path}.{field}"), &json!(number(field)), detail);
    };
    if number("queueLengthLimit") <= 0 {
        refuse("queueLengthLimit", "must be positive");
    }
    let (queues, hand) = (number("queues"), number("handSize"));
    if queues <= 0 {
        refuse("queues", "must be positive");
    } else if queues > MOST_QUEUES {
        refuse("queues", &format!("must not be greater than {MOST_QUEUES}"));
    }
    if hand <= 0 {
        refuse("handSize", "must be positive");
    } else if hand > queues {
        refuse("handSize", &format!("should not be greater than queues ({queues})"));
    } else if hand_exceeds_hash(queues, hand) {
        let detail = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        refuse("handSize", &detail);
    }
}

/// Returns `true` if a hash has too few bits to deal a hand of this size from this deck.
fn hand_exceeds_hash(deck: i64, hand: i64) -> bool {
    let (deck, hand) = (u128::try_from(deck).unwrap_or(0), u32::try_from(hand).unwrap_or(u32::MAX));
    deck.checked_pow(hand).is_none_or(|hands| hands > 1 << HASH_BITS)
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Type", "string", 0, "Exempt or Limited"),
        ("NominalConcurrencyShares", "string", 0, "Share of the seats that it has by itself"),
        ("Queues", "string", 0, "Number of queues"),
        ("HandSize", "string", 0, "Queues that a flow may be put in"),
        ("QueueLengthLimit", "string", 0, "Requests that a queue holds"),
        AGE,
    ],
    cells: |object, now| {
        // A level that is exempt shows no seats, although it has some.
        let shown = |pointer: &str| match object.pointer(pointer) {
            Some(Value::Number(number)) => json!(number),
            _ => json!(NONE),
        };
        let queuing = |field: &str| shown(&format!("/spec/limited/limitResponse/queuing/{field}"));
        vec![
            cells::name(object),
            cells::text_or(object, "/spec/type", ""),
            shown("/spec/limited/nominalConcurrencyShares"),
            queuing("queues"),
            queuing("handSize"),
            queuing("queueLengthLimit"),
            cells::age(object, now),
        ]
    },
};
