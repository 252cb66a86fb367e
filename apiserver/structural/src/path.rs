//! The path of a value: kept on the stack during a walk, and formatted only for an error.

use std::fmt;

/// A place in an object.
#[derive(Clone, Copy)]
pub enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
    /// A key of a map, `[key]`.
    Key(&'a Path<'a>, &'a str),
}

impl<'a> Path<'a> {
    pub fn field(&'a self, name: &'a str) -> Self {
        Self::Field(self, name)
    }

    pub fn index(&'a self, index: usize) -> Self {
        Self::Index(self, index)
    }

    pub fn key(&'a self, key: &'a str) -> Self {
        Self::Key(self, key)
    }

    pub fn is_root(&self) -> bool {
        matches!(self, Self::Root)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Path::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
            Self::Key(parent, key) => write!(f, "{parent}[{key}]"),
        }
    }
}

/// `parent.child`, or the child alone.
pub fn child(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

/// Reads a simple JSON path such as `.spec.a['b']` against a schema: the names on the way and the
/// schema at its end. Errors are in the words of Kubernetes.
pub fn field_path<'s>(
    text: &str,
    schema: &'s super::Structural,
    brackets: bool,
) -> Result<(Vec<String>, &'s super::Structural), String> {
    let (mut names, mut schema, mut rest) = (Vec::new(), schema, text);
    while !rest.is_empty() {
        let name;
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[', ']']).unwrap_or(after.len());
            if end == 0 {
                return Err("unexpected end of JSON path".to_owned());
            }
            name = after[..end].to_owned();
            rest = &after[end..];
        } else if let Some(after) = rest.strip_prefix('[') {
            if !brackets {
                return Err("array notation is not allowed".to_owned());
            }
            (name, rest) = quoted(after)?;
        } else {
            let token = rest.split(['.', '[', ']']).next().filter(|t| !t.is_empty()).unwrap_or(rest);
            return Err(format!("expected [ or . but got: {token}"));
        }
        let found =
            if schema.properties.is_empty() { schema.field(&name) } else { schema.properties.get(&name) };
        schema = found.ok_or_else(|| "does not refer to a valid field".to_owned())?;
        names.push(name);
    }
    Ok((names, schema))
}

/// `'name']…`: the name, and what follows the bracket.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let unexpected = || "unexpected end of JSON path".to_owned();
    let Some(inner) = text.strip_prefix('\'') else {
        let token = text.split(']').next().unwrap_or_default();
        return Err(if token.is_empty() {
            unexpected()
        } else {
            format!("expected single quoted string but got {token}")
        });
    };
    let (mut name, mut escaped) = (String::new(), false);
    for (at, character) in inner.char_indices() {
        match character {
            '\'' if !escaped => {
                let rest = &inner[at + 1..];
                return rest.strip_prefix(']').map(|rest| (name, rest)).ok_or_else(|| {
                    if rest.is_empty() { unexpected() } else { format!("expected ] but got {rest}") }
                });
            }
            '\\' if !escaped => {
                escaped = true;
                continue;
            }
            '\\' | '\'' => name.push(character),
            other if escaped => match other {
                'a' => name.push('\u{7}'),
                'b' => name.push('\u{8}'),
                'f' => name.push('\u{c}'),
                'n' => name.push('\n'),
                'r' => name.push('\r'),
                't' => name.push('\t'),
                'v' => name.push('\u{b}'),
                other => return Err(format!("invalid string literal: invalid escape char \\{other}")),
            },
            other => name.push(other),
        }
        escaped = false;
    }
    Err(unexpected())
}
