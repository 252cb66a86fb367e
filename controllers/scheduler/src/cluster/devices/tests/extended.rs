//! Resources that a class of devices serves.

use std::sync::Arc;

use serde_json::{Value, from_value, json};

use super::super::serve;
use crate::cluster::DeviceClasses;

#[test]
fn sums_of_the_largest_requests_do_not_overflow() {
    let mut classes = DeviceClasses::default();
    let class = json!({"metadata": {"name": "c"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    classes.set(Arc::new(from_value(class).unwrap()));
    let container = |name: &str, less: i64| -> Value {
        let amount = (i64::MAX - less).to_string();
        json!({"name": name, "resources": {"requests": {"example.com/gpu": amount}}})
    };
    let spec = json!({
        "initContainers": [container("i", 0)],
        "containers": [container("a", 1), container("b", 1)],
    });
    let served = serve(&from_value(spec).unwrap(), ["example.com/gpu"].into_iter(), &classes);
    // The init container has what both others have later, which is more than it asks for.
    let mapped: Vec<_> = served.mappings.iter().filter(|mapping| mapping.container_name == "i").collect();
    assert_eq!((served.requests.len(), mapped.len()), (2, 2));
}
