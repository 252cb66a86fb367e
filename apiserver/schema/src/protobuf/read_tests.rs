//! The reader of `apiserver/messages` against the decoder: what clients read is what the API server means.

use serde_json::{Map, Value};

use super::*;
use crate::messages::random::Random;

/// Returns JSON without the members that are `null`, which the reader leaves out. What is in embedded JSON stays.
pub(super) fn without_nulls(message: Message, mut value: Value) -> Value {
    remove_nulls(message, &mut value);
    value
}

fn remove_nulls(message: Message, value: &mut Value) {
    if let Value::Object(map) = value {
        fields(message, map);
    }
}

fn fields(message: Message, map: &mut Map<String, Value>) {
    let names: Vec<String> = map.keys().cloned().collect();
    for name in names {
        let Some((_, field)) = message.member(&name) else { continue };
        let value = &mut map[&name];
        if value.is_null() {
            map.remove(&name);
            continue;
        }
        let Some(inner) = field.kind.message() else { continue };
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| remove_nulls(inner, item)),
            Value::Object(entries) if field.shape == Shape::Map => {
                entries.values_mut().for_each(|entry| remove_nulls(inner, entry));
            }
            value => remove_nulls(inner, value),
        }
    }
}

#[test]
fn every_message_is_read_as_the_decoder_reads_it() {
    for (i, message) in messages().enumerate() {
        for round in 0..12 {
            let mut random = Random::new(3 + i as u64 * 100 + round, 1 + round % 8);
            let object = Value::Object(random.object(message, 5));
            let bytes = encode(message, &object).unwrap();
            let encoded = Encoded { api_version: "", kind: "", message, bytes: &bytes };
            let read: Value = encoded.read(Reading::default()).unwrap();
            let object = without_nulls(message, object);
            assert!(read == object, "{} round {round}:\n{read}\n{object}", message.name());
        }
        let encoded = Encoded { api_version: "", kind: "", message, bytes: &[] };
        let nothing = without_nulls(message, decode(message, &[]).unwrap());
        assert_eq!(encoded.read::<Value>(Reading::default()).unwrap(), nothing, "{}", message.name());
    }
}
