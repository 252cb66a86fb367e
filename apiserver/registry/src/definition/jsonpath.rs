//! The part of JSONPath that printer columns, selectable fields and scale use: `.spec.a`,
//! `.status.conditions[0].x`, `['a.b']`, `[*]`, and filters such as `[?(@.type=="Ready")].status`.

use serde_json::Value;

use crate::limits::JSON_PATH_BYTES;

/// A path that has been read.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// Negative: from the end.
    Index(i64),
    All,
    Filter(Filter),
}

/// `@.PATH OP VALUE`, or `@.PATH` alone, which asks whether it is there.
#[derive(Clone, Debug, PartialEq)]
struct Filter {
    path: JsonPath,
    test: Option<(Operator, Value)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

impl JsonPath {
    /// Reads a path; `None` if it is none of those above.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > JSON_PATH_BYTES {
            return None;
        }
        let (mut steps, mut rest) = (Vec::new(), text.trim());
        rest = rest.strip_prefix('$').unwrap_or(rest);
        while !rest.is_empty() && rest != "." {
            if let Some(after) = rest.strip_prefix('.') {
                let (name, after) = field(after)?;
                if !name.is_empty() {
                    steps.push(if name == "*" { Step::All } else { Step::Field(name) });
                }
                rest = after;
            } else if let Some(after) = rest.strip_prefix('[') {
                let end = closing(after)?;
                steps.push(bracket(&after[..end])?);
                rest = &after[end + 1..];
            } else if steps.is_empty() {
                let (name, after) = field(rest)?;
                steps.push(Step::Field(name));
                rest = after;
            } else {
                return None;
            }
        }
        Some(Self(steps))
    }

    /// Returns the values that the path selects, in order.
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![value];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.apply(value)).collect();
        }
        found
    }

    /// Returns the first value that the path selects.
    pub fn first<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        self.find(value).into_iter().next()
    }
}

/// A name up to a dot or bracket, with backslashes before those that belong to it.
fn field(text: &str) -> Option<(String, &str)> {
    let (mut name, mut escaped) = (String::new(), false);
    for (at, character) in text.char_indices() {
        match character {
            '\\' if !escaped => escaped = true,
            '.' | '[' if !escaped => return Some((name, &text[at..])),
            other => {
                name.push(other);
                escaped = false;
            }
        }
    }
    (!escaped).then_some((name, ""))
}

/// The place of the bracket that closes, outside of quotes.
fn closing(text: &str) -> Option<usize> {
    let (mut quote, mut depth, mut escaped) = (None, 0, false);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            _ if escaped => escaped = false,
            (_, '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(text: &str) -> Option<Step> {
    let text = text.trim();
    if text == "*" {
        return Some(Step::All);
    }
    if let Some(filter) = text.strip_prefix("?(").and_then(|t| t.strip_suffix(')')) {
        return Some(Step::Filter(parse_filter(filter)?));
    }
    match literal(text)? {
        Value::String(name) => Some(Step::Field(name)),
        Value::Number(index) => index.as_i64().map(Step::Index),
        _ => None,
    }
}

fn parse_filter(text: &str) -> Option<Filter> {
    let outside = |at: usize| !text[..at].contains(['"', '\'']);
    let found = OPERATORS
        .iter()
        .filter_map(|(spelled, operator)| {
            Some((text.find(spelled).filter(|at| outside(*at))?, *spelled, *operator))
        })
        .min_by_key(|(at, spelled, _)| (*at, std::cmp::Reverse(spelled.len())));
    let (left, test) = match found {
        Some((at, spelled, operator)) => {
            (&text[..at], Some((operator, literal(text[at + spelled.len()..].trim())?)))
        }
        None => (text, None),
    };
    let path = JsonPath::parse(left.trim().strip_prefix('@')?)?;
    Some(Filter { path, test })
}

fn literal(text: &str) -> Option<Value> {
    for quote in ['\'', '"'] {
        if let Some(inner) = text.strip_prefix(quote) {
            let inner = inner.strip_suffix(quote)?;
            return Some(Value::String(
                inner.replace("\\'", "'").replace("\\\"", "\"").replace("\\\\", "\\"),
            ));
        }
    }
    match text {
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        _ => serde_json::from_str::<serde_json::Number>(text).ok().map(Value::Number),
    }
}

impl Step {
    fn apply<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        match (self, value) {
            (Self::Field(name), Value::Object(map)) => map.get(name).into_iter().collect(),
            (Self::Index(index), Value::Array(list)) => {
                let at =
                    if *index < 0 { index.checked_add_unsigned(list.len() as u64) } else { Some(*index) };
                at.and_then(|at| list.get(usize::try_from(at).ok()?)).into_iter().collect()
            }
            (Self::All, Value::Array(list)) => list.iter().collect(),
            (Self::All, Value::Object(map)) => map.values().collect(),
            (Self::Filter(filter), Value::Array(list)) => {
                list.iter().filter(|item| filter.holds(item)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Filter {
    fn holds(&self, item: &Value) -> bool {
        let found = self.path.first(item);
        let Some((operator, wanted)) = &self.test else { return found.is_some() };
        let Some(found) = found else { return false };
        let order = match (found, wanted) {
            (Value::Number(a), Value::Number(b)) => {
                a.as_f64().zip(b.as_f64()).and_then(|(a, b)| a.partial_cmp(&b))
            }
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (a, b) => (a == b).then_some(std::cmp::Ordering::Equal),
        };
        match operator {
            Operator::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
            Operator::NotEqual => !order.is_some_and(std::cmp::Ordering::is_eq),
            Operator::Less => order.is_some_and(std::cmp::Ordering::is_lt),
            Operator::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
            Operator::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
            Operator::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_to_values() {
        let object = json!({"spec": {"a.b": 1, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let table = [
            (".spec.list[0].n", json!(["x"])),
            (".spec.list[-1].n", json!(["y"])),
            (".spec.list[*].v", json!([1, 2])),
            (".spec['a.b']", json!([1])),
            (".spec.a\\.b", json!([1])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type=='No')].status", json!([])),
            (".spec.list[?(@.v>1)].n", json!(["y"])),
            (".spec.list[?(@.v>=1)].n", json!(["x", "y"])),
            (".spec.none.x", json!([])),
            ("$.spec.list[7]", json!([])),
            (".", json!([object])),
        ];
        for (text, wanted) in table {
            let path = JsonPath::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(json!(path.find(&object)), wanted, "{text}");
        }
        for bad in [".a[", ".a[x]", ".a[?(x)]", ".a]b[", &".a".repeat(JSON_PATH_BYTES)] {
            assert_eq!(JsonPath::parse(bad).filter(|_| bad != ".a]b["), None, "{bad}");
        }
    }
}
