//! Label selectors, from query parameters and from `metav1.LabelSelector`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value};

use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_schema::validation::names;

/// The comparison of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The key of the label.
    pub key: String,
    /// The comparison with its value.
    pub operator: Operator,
    /// Empty for `Exists` and `DoesNotExist`, one integer for the comparisons.
    pub values: BTreeSet<String>,
}

impl Requirement {
    fn matches(&self, value: Option<&str>) -> bool {
        let compare = |ordering: fn(&i64, &i64) -> bool| {
            let bound = self.values.first().and_then(|v| v.parse::<i64>().ok());
            let value = value.and_then(|v| v.parse::<i64>().ok());
            matches!((value, bound), (Some(value), Some(bound)) if ordering(&value, &bound))
        };
        match self.operator {
            Operator::In => value.is_some_and(|v| self.values.contains(v)),
            Operator::NotIn => value.is_none_or(|v| !self.values.contains(v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => compare(i64::gt),
            Operator::LessThan => compare(i64::lt),
        }
    }
}

/// Conditions that must all hold. Without conditions it matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl LabelSelector {
    /// Matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Matches no object; what a missing `metav1.LabelSelector` means.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// Reads the query parameter's form: `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>3`. Errors are 400.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let mut parser = Parser { tokens: tokens(text), at: 0 };
        let mut requirements = Vec::new();
        if *parser.peek() == Token::End {
            return Ok(Self::everything());
        }
        loop {
            if !matches!(parser.peek(), Token::Word(_) | Token::Not) {
                return Err(unexpected(parser.peek(), "!, identifier, or 'end of string'"));
            }
            requirements.push(parser.requirement()?);
            match parser.next() {
                Token::End => break,
                Token::Comma => {
                    // A comma must be followed by another requirement.
                    if !matches!(parser.peek(), Token::Word(_) | Token::Not) {
                        return Err(unexpected(parser.peek(), "identifier after ','"));
                    }
                }
                other => return Err(unexpected(&other, "',' or 'end of string'")),
            }
        }
        requirements.sort_by(|a: &Requirement, b| a.key.cmp(&b.key));
        Ok(Self { requirements, nothing: false })
    }

    /// Reads a `metav1.LabelSelector`. `null` selects nothing, `{}` everything. Errors are 400.
    pub fn from_meta(selector: &Value) -> Result<Self, ApiError> {
        let Value::Object(selector) = selector else { return Ok(Self::nothing()) };
        let mut requirements = Vec::new();
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let value = value.as_str().unwrap_or_default().to_owned();
            requirements.push(requirement(key.clone(), Operator::In, [value].into())?);
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let operator = match expression["operator"].as_str() {
                Some("In") => Operator::In,
                Some("NotIn") => Operator::NotIn,
                Some("Exists") => Operator::Exists,
                Some("DoesNotExist") => Operator::DoesNotExist,
                other => {
                    let shown = other.unwrap_or_default();
                    return Err(ApiError::bad_request(format!(
                        "\"{shown}\" is not a valid label selector operator"
                    )));
                }
            };
            let key = expression["key"].as_str().unwrap_or_default().to_owned();
            let values = expression["values"].as_array().into_iter().flatten();
            let values = values.filter_map(Value::as_str).map(str::to_owned).collect();
            requirements.push(requirement(key, operator, values)?);
        }
        Ok(Self { requirements, nothing: false })
    }

    /// All of these labels with these values, as `spec.selector` of a Service means it.
    pub fn from_map(labels: &Map<String, Value>) -> Self {
        let requirements = labels
            .iter()
            .map(|(key, value)| Requirement {
                key: key.clone(),
                operator: Operator::In,
                values: [value.as_str().unwrap_or_default().to_owned()].into(),
            })
            .collect();
        Self { requirements, nothing: false }
    }

    /// Returns `true` if every object matches.
    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// The conditions.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Returns `true` if the labels match; `label` looks up the value of a key.
    pub fn matches_with<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(label(&r.key)))
    }

    /// Returns `true` if a map of labels matches.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(|key| labels.get(key).map(String::as_str))
    }

    /// Returns `true` if an object's `metadata.labels` match.
    pub fn matches_object(&self, object: &Value) -> bool {
        let labels = meta::labels(object);
        self.matches_with(|key| labels?.get(key)?.as_str())
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            let Requirement { key, operator, values } = requirement;
            let list = values.iter().map(String::as_str).collect::<Vec<_>>().join(",");
            match operator {
                Operator::In if values.len() == 1 => write!(f, "{key}={list}")?,
                Operator::In => write!(f, "{key} in ({list})")?,
                Operator::NotIn if values.len() == 1 => write!(f, "{key}!={list}")?,
                Operator::NotIn => write!(f, "{key} notin ({list})")?,
                Operator::Exists => f.write_str(key)?,
                Operator::DoesNotExist => write!(f, "!{key}")?,
                Operator::GreaterThan => write!(f, "{key}>{list}")?,
                Operator::LessThan => write!(f, "{key}<{list}")?,
            }
        }
        Ok(())
    }
}

fn requirement(key: String, operator: Operator, values: BTreeSet<String>) -> Result<Requirement, ApiError> {
    let refuse = |path: &str, value: &str, why: &str| {
        Err(ApiError::bad_request(format!(
            "unable to parse requirement: {path}: Invalid value: \"{value}\": {why}"
        )))
    };
    if let Some(why) = names::qualified_name(&key).first() {
        return refuse("<nil>", &key, why);
    }
    match operator {
        Operator::In | Operator::NotIn if values.is_empty() => {
            return refuse("values", "[]", "for 'in', 'notin' operators, values set can't be empty");
        }
        Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
            return refuse("values", &key, "values set must be empty for exists and does not exist");
        }
        Operator::GreaterThan | Operator::LessThan
            if values.first().is_none_or(|v| v.parse::<i64>().is_err()) =>
        {
            let shown = values.first().map(String::as_str).unwrap_or_default();
            return refuse("values[0]", shown, "for 'Gt', 'Lt' operators, the value must be an integer");
        }
        _ => {}
    }
    for (index, value) in values.iter().enumerate() {
        if let Some(why) = names::label_value(value).first() {
            return refuse(&format!("values[{index}][{key}]"), value, why);
        }
    }
    Ok(Requirement { key, operator, values })
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Not,
    Comma,
    Open,
    Close,
    Equals,
    NotEquals,
    Greater,
    Less,
    End,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Word(word) => word,
            Self::Not => "!",
            Self::Comma => ",",
            Self::Open => "(",
            Self::Close => ")",
            Self::Equals => "=",
            Self::NotEquals => "!=",
            Self::Greater => ">",
            Self::Less => "<",
            Self::End => "",
        }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '!' if rest.starts_with("!=") => (Token::NotEquals, 2),
            '!' => (Token::Not, 1),
            '=' if rest.starts_with("==") => (Token::Equals, 2),
            '=' => (Token::Equals, 1),
            '>' => (Token::Greater, 1),
            '<' => (Token::Less, 1),
            ',' => (Token::Comma, 1),
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            _ => {
                let end = rest
                    .find(|c: char| c.is_whitespace() || matches!(c, '!' | '=' | '>' | '<' | ',' | '(' | ')'))
                    .unwrap_or(rest.len());
                (Token::Word(rest[..end].to_owned()), end)
            }
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    tokens.push(Token::End);
    tokens
}

/// Something else than a requirement was found.
fn unexpected(found: &Token, what: &str) -> ApiError {
    ApiError::bad_request(format!("found '{}', expected: {what}", found.text()))
}

/// Something was found in a requirement that does not belong there.
fn expected(found: &Token, what: &str) -> ApiError {
    ApiError::bad_request(format!("unable to parse requirement: found '{}', expected: {what}", found.text()))
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).unwrap_or(&Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, ApiError> {
        let absent = *self.peek() == Token::Not;
        if absent {
            self.at += 1;
        }
        let key = match self.next() {
            Token::Word(word) => word,
            other => return Err(expected(&other, "identifier")),
        };
        if absent {
            return requirement(key, Operator::DoesNotExist, BTreeSet::new());
        }
        match self.peek().clone() {
            Token::End | Token::Comma => requirement(key, Operator::Exists, BTreeSet::new()),
            Token::Equals => {
                self.at += 1;
                requirement(key, Operator::In, [self.word()?].into())
            }
            Token::NotEquals => {
                self.at += 1;
                requirement(key, Operator::NotIn, [self.word()?].into())
            }
            Token::Greater => {
                self.at += 1;
                requirement(key, Operator::GreaterThan, [self.word()?].into())
            }
            Token::Less => {
                self.at += 1;
                requirement(key, Operator::LessThan, [self.word()?].into())
            }
            Token::Word(word) if word == "in" || word == "notin" => {
                self.at += 1;
                let operator = if word == "in" { Operator::In } else { Operator::NotIn };
                let values = self.values()?;
                requirement(key, operator, values)
            }
            other => Err(expected(&other, "in, notin, =, ==, !=, gt, lt")),
        }
    }

    /// The value after a comparison; may be empty where the requirement ends.
    fn word(&mut self) -> Result<String, ApiError> {
        match self.peek().clone() {
            Token::Word(word) => {
                self.at += 1;
                Ok(word)
            }
            Token::End | Token::Comma => Ok(String::new()),
            other => Err(expected(&other, "identifier")),
        }
    }

    fn values(&mut self) -> Result<BTreeSet<String>, ApiError> {
        match self.next() {
            Token::Open => {}
            other => return Err(expected(&other, "'('")),
        }
        let mut values = BTreeSet::new();
        if !matches!(self.peek(), Token::Word(_) | Token::Comma | Token::Close) {
            return Err(expected(self.peek(), "',', ')' or identifier"));
        }
        loop {
            values.insert(if *self.peek() == Token::Close { String::new() } else { self.word()? });
            match self.next() {
                Token::Comma => {}
                Token::Close => return Ok(values),
                other => return Err(expected(&other, "',' or ')'")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn every_operator_matches_as_documented() {
        let object = labels(&[("app", "web"), ("tier", "front"), ("weight", "7"), ("empty", "")]);
        let cases = [
            ("", true),
            ("app=web", true),
            ("app==web,tier=front", true),
            ("app=db", false),
            ("app!=db", true),
            ("missing!=db", true),
            ("app in (db, web)", true),
            ("app notin (db,web)", false),
            ("missing notin (x)", true),
            ("missing in (x)", false),
            ("app", true),
            ("!app", false),
            ("!missing", true),
            ("weight>6,weight<8", true),
            ("weight>7", false),
            ("app>1", false),
            ("empty=", true),
            ("empty", true),
            ("empty in ()", true),
            ("  app = web , tier", true),
        ];
        for (text, matches) in cases {
            let selector = LabelSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(selector.matches(&object), matches, "{text}");
            assert_eq!(LabelSelector::parse(&selector.to_string()).unwrap(), selector, "{text}");
        }
    }

    #[test]
    fn malformed_selectors_are_bad_requests() {
        for text in
            ["=", "a=b,", ",a", "a in", "a in (b", "a b", "a=b c", "a>x", "!", "-a", "a=-b", "a/b/c", "!a=b"]
        {
            let error = LabelSelector::parse(text).expect_err(text);
            assert_eq!((error.code, error.reason), (400, "BadRequest"), "{text}");
        }
        for (text, message) in [
            ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a===b", "unable to parse requirement: found '=', expected: identifier"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            // Characters between requirements are not part of one.
            ("=b", "found '=', expected: !, identifier, or 'end of string'"),
            ("(a)", "found '(', expected: !, identifier, or 'end of string'"),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            ("a=b,", "found '', expected: identifier after ','"),
        ] {
            assert_eq!(LabelSelector::parse(text).expect_err(text).message, message);
        }
        let long = "x".repeat(64);
        assert_eq!(
            LabelSelector::parse(&format!("a={long}")).unwrap_err().message,
            format!(
                "unable to parse requirement: values[0][a]: Invalid value: \"{long}\": must be no more than 63 bytes"
            )
        );
        for (text, values) in [("a in ()", &[""][..]), ("a in (b,)", &["", "b"]), ("a=", &[""])] {
            let selector = LabelSelector::parse(text).unwrap();
            assert!(selector.requirements()[0].values.iter().eq(values), "{text}");
        }
    }

    #[test]
    fn selectors_in_objects() {
        let object = json!({"metadata": {"labels": {"app": "web"}}});
        let selects = |selector: Value| LabelSelector::from_meta(&selector).unwrap().matches_object(&object);
        assert!(!selects(Value::Null));
        assert!(selects(json!({})));
        assert!(selects(json!({"matchLabels": {"app": "web"}})));
        assert!(!selects(json!({"matchLabels": {"app": "web", "x": "y"}})));
        assert!(selects(
            json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]})
        ));
        assert!(!selects(json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]})));
        let bad = json!({"matchExpressions": [{"key": "app", "operator": "Near"}]});
        assert_eq!(
            LabelSelector::from_meta(&bad).unwrap_err().message,
            "\"Near\" is not a valid label selector operator"
        );
        assert!(
            LabelSelector::from_meta(&json!({"matchExpressions": [{"key": "a", "operator": "In"}]})).is_err()
        );
    }
}
