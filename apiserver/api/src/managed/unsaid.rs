//! Values that a client leaves out of lists which are compared as a whole. Kubernetes compares such lists as Go
//! holds them, where a quantity that nobody wrote differs from a stored `0`: who leaves it out owns the list.

use serde_json::Value;

/// Where the specs of pods stand in objects.
const SPECS: [&str; 4] =
    ["/spec", "/spec/template/spec", "/spec/jobTemplate/spec/template/spec", "/template/spec"];
const FIELD: &str = "divisor";
const ZERO: &str = "0";

/// The references to resources in an object, by their pointers, whose divisor is left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unsaid(Vec<String>);

impl Unsaid {
    /// Those of an object as it was sent, of the volumes of a pod or of a template.
    pub fn of(object: &Value) -> Self {
        let mut found = Vec::new();
        for spec in SPECS {
            each(object, &format!("{spec}/volumes"), &mut |volume, path| {
                files(volume, &format!("{path}/downwardAPI"), &mut found);
                each(volume, &format!("{path}/projected/sources"), &mut |source, path| {
                    files(source, &format!("{path}/downwardAPI"), &mut found);
                });
            });
        }
        Self(found)
    }

    /// Leaves them out of the object that was made of what was sent.
    pub fn leave_out(&self, object: &mut Value) {
        for pointer in &self.0 {
            if let Some(Value::Object(reference)) = object.pointer_mut(pointer)
                && reference.get(FIELD).is_some_and(|divisor| divisor == ZERO)
            {
                reference.remove(FIELD);
            }
        }
    }

    /// Puts back what was left out.
    pub fn put_back(&self, object: &mut Value) {
        for pointer in &self.0 {
            if let Some(Value::Object(reference)) = object.pointer_mut(pointer) {
                reference.entry(FIELD).or_insert_with(|| ZERO.into());
            }
        }
    }
}

/// Calls `visit` with the object and the pointer of each item of the list at `pointer`.
fn each(object: &Value, pointer: &str, visit: &mut dyn FnMut(&Value, &str)) {
    let items = object.pointer(pointer).and_then(Value::as_array).map_or(0, Vec::len);
    for index in 0..items {
        visit(object, &format!("{pointer}/{index}"));
    }
}

fn files(object: &Value, pointer: &str, found: &mut Vec<String>) {
    each(object, &format!("{pointer}/items"), &mut |object, path| {
        let path = format!("{path}/resourceFieldRef");
        let reference = object.pointer(&path).and_then(Value::as_object);
        if reference.is_some_and(|reference| reference.get(FIELD).is_none_or(Value::is_null)) {
            found.push(path);
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn divisors_that_were_left_out_are_left_out_again_and_put_back() {
        let files = |divisor: Value| {
            json!({"items": [{"path": "a", "resourceFieldRef": {"resource": "limits.cpu", "divisor": divisor}},
                             {"path": "b", "fieldRef": {"fieldPath": "metadata.name"}}]})
        };
        let object = |divisor: Value| {
            json!({"spec": {"template": {"spec": {"volumes": [
                {"name": "v", "downwardAPI": files(divisor.clone())},
                {"name": "w", "projected": {"sources": [{"secret": {}}, {"downwardAPI": files(divisor)}]}},
                {"name": "x", "downwardAPI": files(json!("1"))}]}}}})
        };
        let unsaid = Unsaid::of(&object(Value::Null));
        let volumes = "/spec/template/spec/volumes";
        assert_eq!(
            unsaid,
            Unsaid(vec![
                format!("{volumes}/0/downwardAPI/items/0/resourceFieldRef"),
                format!("{volumes}/1/projected/sources/1/downwardAPI/items/0/resourceFieldRef"),
            ])
        );
        let complete = object(json!("0"));
        let mut written = complete.clone();
        unsaid.leave_out(&mut written);
        assert_eq!(Unsaid::of(&written), unsaid);
        unsaid.put_back(&mut written);
        assert_eq!(written, complete);
        assert_eq!(Unsaid::of(&complete), Unsaid::default());
    }
}
