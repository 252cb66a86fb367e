//! Everything that is wrong with a configuration.

use std::fmt::Display;

/// Problems with the fields of a document, each with the path of its field.
#[derive(Debug, Default)]
pub(super) struct Problems {
    path: Vec<String>,
    found: Vec<String>,
}

impl Problems {
    /// Runs a check of what is below a field.
    pub fn within<T>(&mut self, field: impl Display, check: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(field.to_string());
        let result = check(self);
        self.path.pop();
        result
    }

    /// Records a problem with a field here; an empty name means this field itself.
    pub fn add(&mut self, field: impl Display, problem: impl Display) {
        let field = field.to_string();
        let path = self.path.iter().chain((!field.is_empty()).then_some(&field));
        let path: Vec<&str> = path.map(String::as_str).collect();
        self.found.push(format!("{}: {problem}", path.join(".").replace(".[", "[")));
    }

    /// Records a problem unless the field is right.
    pub fn check(&mut self, is_right: bool, field: impl Display, problem: impl Display) {
        if !is_right {
            self.add(field, problem);
        }
    }

    pub fn into_found(self) -> Vec<String> {
        self.found
    }
}
