use serde_json::{Value, json};

use crate::core::{limit_range, namespace, node, replication_controller, secret};
use crate::shared::defaults::restore_spec;
use crate::testing::{NONE, apply_defaults, cells, errors, row, update_errors, warnings, with};

#[test]
fn replication_controllers_select_the_labels_of_their_template() {
    let controller = apply_defaults(
        replication_controller::default,
        json!({"metadata": {"name": "a"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}),
    );
    assert_eq!(controller["spec"]["selector"], json!({"a": "b"}));
    assert_eq!(controller["metadata"]["labels"], json!({"a": "b"}));
}

#[test]
fn secrets_take_plain_text() {
    let secret =
        apply_defaults(secret::default, json!({"data": {"a": "eA=="}, "stringData": {"a": "new", "b": "y"}}));
    assert_eq!(secret, json!({"type": "Opaque", "data": {"a": "bmV3", "b": "eQ=="}}));
}

#[test]
fn namespaces_get_their_label_and_finalizer() {
    let mut space =
        apply_defaults(namespace::default, json!({"metadata": {"name": "n", "labels": {"a": "b"}}}));
    assert_eq!(space["metadata"]["labels"], json!({"a": "b", "kubernetes.io/metadata.name": "n"}));
    namespace::prepare_create(&mut space);
    assert_eq!(space["spec"], json!({"finalizers": ["kubernetes"]}));
    assert_eq!(space["status"], json!({"phase": "Active"}));
    let mut changed = json!({"metadata": {"name": "n"}, "spec": {"finalizers": []}});
    restore_spec(&mut changed, &space);
    assert_eq!(changed["spec"], space["spec"]);
}

#[test]
fn the_first_range_of_a_node_stands_beside_the_list() {
    let node = apply_defaults(node::default, json!({"spec": {"podCIDR": "10.1.0.0/24"}}));
    assert_eq!(node["spec"]["podCIDRs"], json!(["10.1.0.0/24"]));
    let node = apply_defaults(
        node::default,
        json!({"spec": {"podCIDRs": ["10.1.0.0/24", "fd00::/64"]},
        "status": {"capacity": {"cpu": "2"}}}),
    );
    assert_eq!(node["spec"]["podCIDR"], "10.1.0.0/24");
    assert_eq!(node["status"]["allocatable"], json!({"cpu": "2"}));
}

#[test]
fn a_single_range_of_a_node_that_differs_from_the_list_replaces_it() {
    let node = json!({"spec": {"podCIDR": "10.2.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"]}});
    let node = apply_defaults(node::default, node);
    assert_eq!(node["spec"], json!({"podCIDR": "10.2.0.0/24", "podCIDRs": ["10.2.0.0/24"]}));
}

#[test]
fn limits_become_default_requests() {
    let limits = apply_defaults(
        limit_range::default,
        json!({"spec": {"limits": [
        {"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}]}}),
    );
    assert_eq!(limits["spec"]["limits"][0]["default"], json!({"cpu": "2"}));
    assert_eq!(limits["spec"]["limits"][0]["defaultRequest"], json!({"cpu": "2", "memory": "1Mi"}));
}

#[test]
fn quotas_and_limit_ranges_with_wrong_fields_are_refused() {
    let quota = |spec: Value| errors("", "resourcequotas", &json!({"metadata": {"name": "q"}, "spec": spec}));
    assert_eq!(
        quota(json!({"hard": {"pods": "3", "requests.nvidia.com/gpu": "1", "count/jobs.batch": "2"}})),
        NONE
    );
    assert_eq!(
        quota(
            json!({"hard": {"pods": "1500m", "storage": "1", "apples": "1"}, "scopes": ["BestEffort", "NotBestEffort", "Odd"]})
        ),
        [
            "spec.hard[apples]: Invalid value: \"apples\": must be a standard resource type or fully qualified",
            "spec.hard[apples]: Invalid value: \"apples\": must be a standard resource for quota",
            "spec.hard[pods]: Invalid value: \"1500m\": must be an integer",
            "spec.hard[storage]: Invalid value: \"storage\": must be a standard resource for quota",
            "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\",\"Odd\"]: unsupported scope",
            "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\",\"Odd\"]: conflicting scopes",
        ]
    );
    assert_eq!(
        quota(json!({"hard": {"services": "1"}, "scopeSelector": {"matchExpressions": [
            {"scopeName": "Terminating", "operator": "In"}]}})),
        [
            "spec.scopeSelector.matchExpressions: Invalid value: {\"matchExpressions\":[{\"operator\":\"In\",\"scopeName\":\"Terminating\"}]}: unsupported scope applied to resource",
            "spec.scopeSelector.matchExpressions.operator: Invalid value: \"In\": must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
            "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
        ]
    );
    let limits = |limits: Value| {
        errors("", "limitranges", &json!({"metadata": {"name": "l"}, "spec": {"limits": limits}}))
    };
    assert_eq!(
        limits(
            json!([{"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}, "default": {"cpu": "3"}, "defaultRequest": {"cpu": "4"}, "maxLimitRequestRatio": {"cpu": "500m"}}])
        ),
        [
            "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
            "spec.limits[0].defaultRequest[cpu]: Invalid value: \"4\": default request value 4 is greater than max value 1",
            "spec.limits[0].defaultRequest[cpu]: Invalid value: \"4\": default request value 4 is greater than default limit value 3",
            "spec.limits[0].default[cpu]: Invalid value: \"1\": default value 3 is greater than max value 1",
            "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1",
        ]
    );
    assert_eq!(
        limits(
            json!([{"type": "Pod", "default": {"cpu": "1"}}, {"type": "PersistentVolumeClaim"}, {"type": "Pod"}, {"type": "Thing"}])
        ),
        [
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
            "spec.limits[1].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
            "spec.limits[2].type: Duplicate value: \"Pod\"",
            "spec.limits[3].type: Invalid value: \"Thing\": must be a standard limit type or fully qualified",
        ]
    );
}

#[test]
fn nodes_with_wrong_amounts_and_ranges_are_refused() {
    assert_eq!(
        errors(
            "",
            "nodes",
            &json!({"metadata": {"name": "n"}, "spec": {"podCIDRs": ["10.1.0.0/24", "10.2.0.0/24"]}, "status": {"capacity": {"pods": "1500m"}}})
        ),
        [
            "status.capacity.pods: Invalid value: \"1500m\": must be an integer",
            "status.allocatable.pods: Invalid value: \"1500m\": must be an integer",
            "spec.podCIDRs: Invalid value: [\"10.1.0.0/24\",\"10.2.0.0/24\"]: may specify no more than one CIDR for each IP family",
        ]
    );
}

#[test]
fn namespaces_with_bare_finalizers_are_refused() {
    assert_eq!(
        errors(
            "",
            "namespaces",
            &json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["mine", "a/b"]}})
        ),
        [
            "spec.finalizers: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully qualified"
        ]
    );
}

#[test]
fn events_with_a_time_need_a_reporter() {
    assert_eq!(
        errors(
            "",
            "events",
            &json!({"metadata": {"name": "E_1", "namespace": "default"}, "eventTime": "2024-01-01T00:00:00.000000Z", "reason": "r".repeat(129)})
        ),
        [
            "reportingComponent: Required value",
            "reportingComponent: Invalid value: \"\": name part must be non-empty",
            "reportingComponent: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            "reportingInstance: Required value",
            "action: Required value",
            "reason: Invalid value: \"\": can have at most 128 characters",
        ]
    );
}

#[test]
fn docker_configuration_that_is_no_map_is_refused() {
    assert_eq!(
        errors(
            "",
            "secrets",
            &json!({"metadata": {"name": "s"}, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "W10="}})
        ),
        [
            "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": json: cannot unmarshal into Go value of type map[string]interface {}"
        ]
    );
}

#[test]
fn endpoint_subsets_without_addresses_are_refused() {
    assert_eq!(
        errors("", "endpoints", &json!({"metadata": {"name": "e"}, "subsets": [{}]})),
        ["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"]
    );
}

#[test]
fn config_maps_and_secrets_with_wrong_fields_are_refused() {
    let old = json!({"metadata": {"name": "c"}, "immutable": true, "data": {"a": "b"}});
    let new = json!({"metadata": {"name": "c"}, "data": {"a": "c"}});
    assert_eq!(
        update_errors("", "configmaps", &new, &old),
        [
            "immutable: Forbidden: field is immutable when `immutable` is set",
            "data: Forbidden: field is immutable when `immutable` is set",
        ]
    );
    assert_eq!(update_errors("", "configmaps", &old, &old), NONE);
    let entry = with(old.clone(), "/data/none", json!(""));
    let frozen = ["data: Forbidden: field is immutable when `immutable` is set"];
    assert_eq!(update_errors("", "configmaps", &entry, &old), frozen);
    assert_eq!(update_errors("", "configmaps", &old, &entry), frozen);
    assert_eq!(
        errors("", "secrets", &json!({"metadata": {"name": "s"}, "type": "kubernetes.io/tls"})),
        ["data[tls.crt]: Required value", "data[tls.key]: Required value"]
    );
    let secret = json!({"metadata": {"name": "s"}, "type": "Opaque"});
    assert_eq!(
        update_errors("", "secrets", &with(secret.clone(), "/type", json!("other")), &secret),
        ["type: Invalid value: \"other\": field is immutable"]
    );
    let large = json!({"metadata": {"name": "c"}, "data": {"a": "x".repeat(1024 * 1024 + 1)}});
    assert_eq!(errors("", "configmaps", &large), [": Too long: may not be more than 1048576 bytes"]);
}

#[test]
fn names_of_namespaces_must_not_contain_dots() {
    assert!(
        errors("", "namespaces", &json!({"metadata": {"name": "a.b"}}))[0].contains("must not contain dots")
    );
}

#[test]
fn nodes_with_repeated_taints_and_moved_ranges_are_refused() {
    let node = json!({"metadata": {"name": "n"}, "spec": {"podCIDRs": ["10.1.0.0/24"], "taints": [
        {"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "Shrug"}]}});
    let found = errors("", "nodes", &node);
    assert_eq!(found.len(), 2, "{found:?}");
    let moved = with(node.clone(), "/spec/podCIDRs", json!(["10.2.0.0/24"]));
    // The two faults of the taints are found once more.
    assert_eq!(update_errors("", "nodes", &moved, &node).len(), 3);
}

#[test]
fn events_outside_the_namespace_of_their_object_are_refused() {
    let event = json!({"metadata": {"name": "e", "namespace": "a"}, "involvedObject": {"namespace": "b"}});
    assert_eq!(
        errors("", "events", &event),
        ["involvedObject.namespace: Invalid value: \"b\": does not match event.namespace"]
    );
}

#[test]
fn rows_of_endpoints_bracket_ipv6_addresses() {
    let endpoints = json!({"metadata": {"name": "e"}, "subsets": [{"addresses": [{"ip": "1.1.1.1"}, {"ip": "fd00::1"}], "ports": [{"port": 80}]}]});
    assert_eq!(row("", "endpoints", &endpoints), "e | 1.1.1.1:80,[fd00::1]:80 | <unknown>");
}

#[test]
fn rows_of_nodes_show_state_roles_and_addresses() {
    let node = json!({
        "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/control-plane": ""},
            "creationTimestamp": "2023-12-30T01:00:00Z"},
        "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "192.168.0.2"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": "Debian 12", "kernelVersion": "6.18",
                "containerRuntimeVersion": "containerd://1.6.20"}}});
    assert_eq!(
        row("", "nodes", &node),
        "n | Ready,SchedulingDisabled | control-plane,worker | 2d | v1.36.0 | 192.168.0.2 | <none> | Debian 12 | 6.18 | containerd://1.6.20"
    );
    assert_eq!(
        row(
            "",
            "nodes",
            &json!({"metadata": {"name": "m"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
        ),
        "m | NotReady | <none> | <unknown> |  | <none> | <none> | <unknown> | <unknown> | <unknown>"
    );
}

#[test]
fn rows_of_replication_controllers_show_plain_selectors() {
    let controller = json!({"metadata": {"name": "r"}, "spec": {"selector": {"app": "x"}}});
    assert_eq!(row("", "replicationcontrollers", &controller), "r | 0 | 0 | 0 | <unknown> |  |  | app=x");
}

#[test]
fn rows_of_events_show_source_and_count() {
    let event = json!({"metadata": {"name": "e.1"}, "type": "Normal", "reason": "Pulled", "message": "done\n",
        "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{a}"},
        "source": {"component": "kubelet", "host": "n"}, "count": 3,
        "firstTimestamp": "2024-01-01T00:00:00Z", "lastTimestamp": "2024-01-01T00:59:30Z"});
    assert_eq!(
        row("", "events", &event),
        "30s | Normal | Pulled | pod/p | spec.containers{a} | kubelet, n | done | 60m | 3 | e.1"
    );
    let once = json!({"metadata": {"name": "e.2"}, "eventTime": "2024-01-01T00:59:00.000000Z", "reportingComponent": "sched"});
    assert_eq!(row("", "events", &once), "60s |  |  |  |  | sched |  | 60s | 1 | e.2");
}

#[test]
fn rows_of_namespaces_show_their_phase() {
    assert_eq!(
        row("", "namespaces", &json!({"metadata": {"name": "n"}, "status": {"phase": "Active"}})),
        "n | Active | <unknown>"
    );
}

#[test]
fn rows_of_config_maps_count_text_and_binary_entries() {
    assert_eq!(
        row(
            "",
            "configmaps",
            &json!({"metadata": {"name": "c"}, "data": {"a": "1"}, "binaryData": {"b": "2"}})
        ),
        "c | 2 | <unknown>"
    );
}

#[test]
fn rows_of_secrets_show_type_and_count() {
    assert_eq!(
        row("", "secrets", &json!({"metadata": {"name": "s"}, "type": "Opaque", "data": {"a": "1"}})),
        "s | Opaque | 1 | <unknown>"
    );
}

#[test]
fn rows_of_config_maps_count_binary_entries() {
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "b"}, "binaryData": {"c": "ZA=="}});
    assert_eq!(cells("", "configmaps", &map)[1].1, json!(2));
}

#[test]
fn rows_of_endpoints_show_the_first_three_addresses() {
    let shown = |subsets: Value| {
        cells("", "endpoints", &json!({"metadata": {"name": "e"}, "subsets": subsets}))[1].1.clone()
    };
    // Port by port, and within each the addresses.
    let subset = json!({"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}], "ports": [{"port": 80}, {"port": 443}]});
    assert_eq!(shown(json!([subset])), "10.0.0.1:80,10.0.0.2:80,10.0.0.1:443 + 1 more...");
    assert_eq!(shown(json!([{"addresses": [{"ip": "fd00::1"}]}])), "fd00::1");
    assert_eq!(shown(json!([{"notReadyAddresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}])), "");
    assert_eq!(shown(json!([])), "<none>");
}

#[test]
fn rows_of_new_events_show_their_reporter() {
    let event =
        json!({"metadata": {"name": "e"}, "reportingComponent": "kubelet", "reportingInstance": "n1"});
    assert_eq!(cells("", "events", &event)[5].1, "kubelet, n1");
}

#[test]
fn secrets_without_certificates_raise_warnings() {
    let secret = json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "eA==", "tls.key": "eA=="}});
    assert_eq!(warnings("", "secrets", &secret), ["tls: failed to find any PEM data in certificate input"]);
}
