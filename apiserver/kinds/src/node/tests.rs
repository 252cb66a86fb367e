use serde_json::json;

use crate::testing::{NONE, errors, update_errors, with};

#[test]
fn runtime_classes_refuse_changes_of_their_handler() {
    let class = json!({"metadata": {"name": "c"}, "handler": "runc"});
    assert_eq!(errors("node.k8s.io", "runtimeclasses", &class), NONE);
    assert_eq!(
        update_errors("node.k8s.io", "runtimeclasses", &with(class.clone(), "/handler", json!("x")), &class)
            .len(),
        1
    );
}
