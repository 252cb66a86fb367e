//! Selectors of pods as a scale names them: the text of `status.selector`.

use std::collections::BTreeSet;

use crate::meta::Labels;

/// A text that is not a selector. Its message is that of Kubernetes' parser.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SelectorError {
    #[error("found '{found}', expected: !, identifier, or 'end of string'")]
    Start { found: String },
    #[error("found '{found}', expected: ',' or 'end of string'")]
    End { found: String },
    #[error("found '{found}', expected: identifier after ','")]
    AfterComma { found: String },
    #[error("unable to parse requirement: found '{found}', expected: {expected}")]
    Requirement { found: String, expected: &'static str },
    #[error("unable to parse requirement: {field}: Invalid value: \"{value}\"")]
    Invalid { field: &'static str, value: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

impl Test {
    fn holds(&self, value: Option<&String>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Exists => value.is_some(),
            Self::Absent => value.is_none(),
            Self::Greater(bound) => number().is_some_and(|number| number > *bound),
            Self::Less(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// Conditions on labels that must all hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selector(Vec<(String, Test)>);

impl Selector {
    /// Parses the form of query parameters: `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>3`. The empty text selects all.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser { tokens: tokens(text), at: 0 };
        let mut conditions = Vec::new();
        if parser.peek() == END {
            return Ok(Self(conditions));
        }
        if !parser.is_at_requirement() {
            return Err(SelectorError::Start { found: parser.found() });
        }
        loop {
            conditions.push(parser.requirement()?);
            match parser.next() {
                END => return Ok(Self(conditions)),
                "," if parser.is_at_requirement() => {}
                "," => return Err(SelectorError::AfterComma { found: parser.found() }),
                other => return Err(SelectorError::End { found: other.to_owned() }),
            }
        }
    }

    /// Returns `true` if all conditions hold for these labels.
    pub fn matches(&self, labels: Option<&Labels>) -> bool {
        self.0.iter().all(|(key, test)| test.holds(labels.and_then(|labels| labels.get(key))))
    }

    /// Returns alternatives: keys with values of which every selected object has at least one as a label.
    pub fn alternatives(&self) -> impl Iterator<Item = (&str, &BTreeSet<String>)> {
        self.0.iter().filter_map(|(key, test)| match test {
            Test::In(values) => Some((key.as_str(), values)),
            _ => None,
        })
    }
}

const END: &str = "";

/// Splits a text into words and operators.
fn tokens(text: &str) -> Vec<&str> {
    let is_operator = |c: char| matches!(c, '!' | '=' | '>' | '<' | ',' | '(' | ')');
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("!=") || rest.starts_with("==") {
            2
        } else if is_operator(first) {
            1
        } else {
            rest.find(|c: char| c.is_whitespace() || is_operator(c)).unwrap_or(rest.len())
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

fn is_word(token: &str) -> bool {
    token != END && !matches!(token, "!" | "=" | "==" | "!=" | ">" | "<" | "," | "(" | ")")
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or(END)
    }

    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn found(&self) -> String {
        self.peek().to_owned()
    }

    fn is_at_requirement(&self) -> bool {
        self.peek() == "!" || is_word(self.peek())
    }

    fn expected<T>(&self, found: &str, expected: &'static str) -> Result<T, SelectorError> {
        Err(SelectorError::Requirement { found: found.to_owned(), expected })
    }

    fn requirement(&mut self) -> Result<(String, Test), SelectorError> {
        let is_absent = self.peek() == "!";
        if is_absent {
            self.at += 1;
        }
        let key = self.next();
        if !is_word(key) {
            return self.expected(key, "identifier");
        }
        if !is_valid(key, "-_./", 253 + 1 + 63) {
            return Err(SelectorError::Invalid { field: "<nil>", value: key.to_owned() });
        }
        let test = if is_absent { Test::Absent } else { self.test()? };
        Ok((key.to_owned(), test))
    }

    fn test(&mut self) -> Result<Test, SelectorError> {
        if matches!(self.peek(), END | ",") {
            return Ok(Test::Exists);
        }
        match self.next() {
            "=" | "==" => Ok(Test::In(BTreeSet::from([self.value()?]))),
            "!=" => Ok(Test::NotIn(BTreeSet::from([self.value()?]))),
            "in" => Ok(Test::In(self.values()?)),
            "notin" => Ok(Test::NotIn(self.values()?)),
            ">" => Ok(Test::Greater(self.number()?)),
            "<" => Ok(Test::Less(self.number()?)),
            other => self.expected(other, "in, notin, =, ==, !=, gt, lt"),
        }
    }

    /// Returns the value after an operator, which may be empty.
    fn value(&mut self) -> Result<String, SelectorError> {
        let value = match self.peek() {
            END | "," | ")" => "",
            word if is_word(word) => self.next(),
            other => return self.expected(other, "identifier"),
        };
        if !is_valid(value, "-_.", 63) {
            return Err(SelectorError::Invalid { field: "values[0]", value: value.to_owned() });
        }
        Ok(value.to_owned())
    }

    fn number(&mut self) -> Result<i64, SelectorError> {
        let value = self.value()?;
        value.parse().map_err(|_| SelectorError::Invalid { field: "values[0]", value })
    }

    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        let open = self.next();
        if open != "(" {
            return self.expected(open, "'('");
        }
        let mut values = BTreeSet::new();
        loop {
            values.insert(self.value()?);
            match self.next() {
                "," => {}
                ")" => return Ok(values),
                other => return self.expected(other, "',' or ')'"),
            }
        }
    }
}

fn is_valid(text: &str, further: &str, longest: usize) -> bool {
    text.len() <= longest && text.chars().all(|c| c.is_ascii_alphanumeric() || further.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::labels;
    use proptest::prelude::*;

    #[test]
    fn every_operator_matches_as_documented() {
        let object = labels(&[("app", "web"), ("tier", "front"), ("weight", "7"), ("empty", "")]);
        for (text, matches) in [
            ("", true),
            ("app=web", true),
            (" app == web , tier=front ", true),
            ("app=db", false),
            ("app!=db", true),
            ("missing!=db", true),
            ("app in (db, web)", true),
            ("app in (db,web),tier notin (front)", false),
            ("missing notin (x)", true),
            ("missing in (x)", false),
            ("app", true),
            ("!app", false),
            ("!missing,app", true),
            ("weight>6,weight<8", true),
            ("weight>7", false),
            ("app>1", false),
            ("empty=", true),
            ("empty in ()", true),
            ("example.com/name=x", false),
        ] {
            let selector = Selector::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(selector.matches(Some(&object)), matches, "{text}");
        }
        assert!(!Selector::parse("app").unwrap().matches(None));
    }

    #[test]
    fn texts_that_are_no_selectors_are_refused_in_the_words_of_kubernetes() {
        for (text, words) in [
            (
                "cheddar cheese",
                "unable to parse requirement: found 'cheese', expected: in, notin, =, ==, !=, gt, lt",
            ),
            ("=web", "found '=', expected: !, identifier, or 'end of string'"),
            ("app=web tier", "found 'tier', expected: ',' or 'end of string'"),
            ("app=web,", "found '', expected: identifier after ','"),
            ("app in web", "unable to parse requirement: found 'web', expected: '('"),
            ("app in (web", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("app==(", "unable to parse requirement: found '(', expected: identifier"),
            ("!=x", "found '!=', expected: !, identifier, or 'end of string'"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            ("a%=b", "unable to parse requirement: <nil>: Invalid value: \"a%\""),
            ("a>b", "unable to parse requirement: values[0]: Invalid value: \"b\""),
        ] {
            assert_eq!(Selector::parse(text).unwrap_err().to_string(), words, "{text}");
        }
    }

    #[test]
    fn alternatives_are_the_labels_of_which_one_is_there() {
        let selector = Selector::parse("app=web,tier in (a,b),x!=y,z").unwrap();
        let found: Vec<_> = selector.alternatives().map(|(key, values)| (key, values.len())).collect();
        assert_eq!(found, [("app", 1), ("tier", 2)]);
    }

    proptest! {
        #[test]
        fn any_text_is_a_selector_or_refused(text in "[a-z!=<>,() \\PC]{0,40}") {
            if let Ok(selector) = Selector::parse(&text) {
                let labels = selector.alternatives().filter_map(|(key, values)| {
                    Some((key.to_owned(), values.first()?.clone()))
                });
                // Whatever it says, it must be possible to compare it.
                selector.matches(Some(&labels.collect()));
            }
        }
    }
}
