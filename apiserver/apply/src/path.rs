//! The path of a field: the steps from the root of an object, their order and their notation.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

use super::value;

/// One step down. The order is that of Kubernetes' own sets: fields, keys, values, indexes.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A field of an object, or a key of a map.
    Field(Box<str>),
    /// The item of a keyed list with these values; sorted by name.
    Key(Box<[(Box<str>, Value)]>),
    /// The item of a set with this value.
    Value(Box<Value>),
    /// The item of an atomic list at this place. Parsed, but never written.
    Index(i64),
}

/// From the root to a field.
pub type Path = Vec<PathElement>;

/// A step that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("\"{0}\" is shorter than a path element can be")]
    Short(String),
    #[error("\"{0}\" has no colon after its type")]
    Colon(String),
    #[error("\"{0}\" does not hold what its type promises")]
    Content(String),
}

impl PathElement {
    /// The step to a field.
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// The step to an item of a keyed list; sorts the keys.
    pub fn key(mut fields: Vec<(Box<str>, Value)>) -> Self {
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        Self::Key(fields.into())
    }

    /// Reads `f:NAME`, `k:{…}`, `v:VALUE` or `i:INDEX`; `None` for types of a later time, which
    /// are passed over.
    pub fn parse(text: &str) -> Result<Option<Self>, PathError> {
        let bytes = text.as_bytes();
        if bytes.len() < 2 {
            return Err(PathError::Short(text.to_owned()));
        }
        if bytes[1] != b':' {
            return Err(PathError::Colon(text.to_owned()));
        }
        let content = &text[2..];
        let bad = || PathError::Content(text.to_owned());
        Ok(Some(match bytes[0] {
            b'f' => Self::field(content),
            b'v' => Self::Value(Box::new(serde_json::from_str(content).map_err(|_| bad())?)),
            b'k' => {
                let map: serde_json::Map<String, Value> = serde_json::from_str(content).map_err(|_| bad())?;
                Self::key(map.into_iter().map(|(name, value)| (name.into(), value)).collect())
            }
            b'i' => Self::Index(content.parse().map_err(|_| bad())?),
            _ => return Ok(None),
        }))
    }

    /// The spelling in FieldsV1.
    pub fn encode(&self) -> String {
        match self {
            // Most are these, and every write encodes dozens of them.
            Self::Field(name) => ["f:", name].concat(),
            Self::Key(fields) => {
                let mut out = String::from("k:{");
                for (at, (name, value)) in fields.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    value::encode_text(name, &mut out);
                    out.push(':');
                    match value {
                        Value::String(text) => value::encode_text(text, &mut out),
                        other => out.push_str(&value::encode(other)),
                    }
                }
                out.push('}');
                out
            }
            Self::Value(value) => format!("v:{}", value::encode(value)),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                for ((name, value), (other_name, other_value)) in a.iter().zip(b.iter()) {
                    let order = name.cmp(other_name).then_with(|| value::compare(value, other_value));
                    if order != Ordering::Equal {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            (Self::Value(a), Self::Value(b)) => value::compare(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement {}

/// Formats the element as messages show it: `.name`, `[containerPort=80,protocol="TCP"]`, `[="x"]`, `[2]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                f.write_str("[")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={value}")?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A whole path as messages spell it.
pub fn display(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_spelled_as_in_kubernetes() {
        let table = [
            (r#"f:name"#, ".name"),
            (r#"f:"#, "."),
            (r#"f:a.b/c:d"#, ".a.b/c:d"),
            (r#"k:{"containerPort":80,"protocol":"TCP"}"#, r#"[containerPort=80,protocol="TCP"]"#),
            (r#"v:"x""#, r#"[="x"]"#),
            (r#"v:7"#, "[=7]"),
            (r#"v:true"#, "[=true]"),
            (r#"i:3"#, "[3]"),
        ];
        for (text, shown) in table {
            let element = PathElement::parse(text).unwrap().unwrap();
            assert_eq!(element.encode(), text);
            assert_eq!(element.to_string(), shown);
        }
        let unsorted = PathElement::parse(r#"k:{"b":1,"a":"<&>"}"#).unwrap().unwrap();
        assert_eq!(unsorted.encode(), r#"k:{"a":"\u003c\u0026\u003e","b":1}"#);
        assert_eq!(PathElement::parse("x:later").unwrap(), None);
        for bad in ["", "f", "name", "k:[]", "k:{", "v:", "v:1 2", "i:one"] {
            assert!(PathElement::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn fields_come_before_keys_values_and_indexes() {
        let texts = [
            "f:a",
            "f:b",
            r#"k:{"a":1}"#,
            r#"k:{"a":1,"b":0}"#,
            r#"k:{"a":2}"#,
            r#"k:{"a":"1"}"#,
            "v:9",
            "v:10",
            r#"v:"a""#,
            "v:false",
            "i:0",
        ];
        let sorted: Vec<PathElement> =
            texts.iter().map(|text| PathElement::parse(text).unwrap().unwrap()).collect();
        assert!(sorted.is_sorted());
        assert!(sorted.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
