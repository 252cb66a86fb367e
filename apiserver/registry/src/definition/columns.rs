//! Columns of custom resources: the name, and `additionalPrinterColumns` or the age.

use std::sync::Arc;

use serde_json::{Value, json};

use super::JsonPath;
use crate::behaviour::{Cells, Column};
use apiserver_meta::time;
use apiserver_schema::meta;
use apiserver_schema::numbers::normalize_numbers;

/// The columns of a version, and what fills them.
pub fn of(version: &Value) -> (Vec<Column>, Cells) {
    let additional = meta::list(version, "/additionalPrinterColumns");
    let mut columns = vec![Column {
        name: "Name".into(),
        kind: "string".into(),
        format: "name".into(),
        priority: 0,
        description: "Name must be unique within a namespace. Is required when creating resources.".into(),
    }];
    let mut cells: Vec<(String, Option<JsonPath>)> = Vec::new();
    for column in additional {
        let path = text(column, "jsonPath");
        let described = text(column, "description");
        let priority = column.get("priority").and_then(Value::as_i64).unwrap_or_default();
        columns.push(Column {
            name: text(column, "name").to_owned().into(),
            kind: text(column, "type").to_owned().into(),
            format: text(column, "format").to_owned().into(),
            priority: i32::try_from(priority).unwrap_or(i32::MAX),
            description: if described.is_empty() {
                format!("Custom resource definition column (in JSONPath format): {path}").into()
            } else {
                described.to_owned().into()
            },
        });
        cells.push((text(column, "type").to_owned(), JsonPath::parse(path)));
    }
    if additional.is_empty() {
        columns.push(Column {
            name: "Age".into(),
            kind: "date".into(),
            format: "".into(),
            priority: 0,
            description: "Time since the object was created".into(),
        });
        cells.push(("date".to_owned(), JsonPath::parse(".metadata.creationTimestamp")));
    }
    let fill = move |object: &Value, now: jiff::Timestamp| {
        let mut row = vec![json!(meta::name(object))];
        row.extend(cells.iter().map(|(kind, path)| {
            let found = path.as_ref().map(|path| path.find(object)).unwrap_or_default();
            cell(kind, &found, now)
        }));
        row
    };
    (columns, Arc::new(fill))
}

fn text<'v>(column: &'v Value, key: &str) -> &'v str {
    column.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// One value as the column's type shows it; `null` where it does not fit.
fn cell(kind: &str, found: &[&Value], now: jiff::Timestamp) -> Value {
    let Some(value) = found.first() else { return Value::Null };
    match kind {
        "integer" => match value.as_i64() {
            Some(number) => json!(number),
            // Whole part, as Go converts it; the cast saturates.
            None => value.as_f64().map_or(Value::Null, |number| json!(number as i64)),
        },
        "number" => {
            let mut number = value.as_f64().map_or(Value::Null, |number| json!(number));
            normalize_numbers(&mut number);
            number
        }
        "boolean" => value.as_bool().map_or(Value::Null, Value::Bool),
        "date" => match value.as_str() {
            Some(text) if time::parse(text).is_none() => json!("<invalid>"),
            Some(text) => json!(time::age(Some(text), now)),
            None => Value::Null,
        },
        _ => match value {
            Value::Null => Value::Null,
            Value::String(text) => json!(text),
            other => json!(other.to_string()),
        },
    }
}
