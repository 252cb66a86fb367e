//! Defaults, preparation, printer columns and warnings of pods.

use serde_json::{Value, json};

use crate::core::{pod, pod_template};
use crate::testing::{NONE, NOW, apply_defaults, cells, row, status_errors, warnings};

#[test]
fn pods_get_default_requests_probes_volumes_and_ports() {
    let pod = apply_defaults(
        pod::default,
        json!({"spec": {
        "hostNetwork": true,
        "serviceAccount": "robot",
        "containers": [{
            "name": "c", "image": "registry:5000/echo",
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
            "ports": [{"containerPort": 80}],
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "readinessProbe": {"httpGet": {"port": 80}, "timeoutSeconds": 0},
            "livenessProbe": {"grpc": {"port": 1}},
            "lifecycle": {"preStop": {"httpGet": {"port": 80, "path": "/bye"}}}}],
        "volumes": [
            {"name": "e"}, {"name": "s", "secret": {"secretName": "x"}}, {"name": "h", "hostPath": {"path": "/"}},
            {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}},
                {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}]}}),
    );
    let spec = &pod["spec"];
    assert_eq!(spec["enableServiceLinks"], true);
    assert_eq!((&spec["serviceAccountName"], &spec["serviceAccount"]), (&json!("robot"), &json!("robot")));
    let container = &spec["containers"][0];
    assert_eq!(container["imagePullPolicy"], "Always");
    assert_eq!(container["resources"]["requests"], json!({"cpu": "500m", "memory": "1Gi"}));
    assert_eq!(container["ports"], json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]));
    assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
    assert_eq!(
        container["readinessProbe"],
        json!({"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1,
               "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3})
    );
    assert_eq!(container["livenessProbe"]["grpc"], json!({"port": 1, "service": ""}));
    assert_eq!(container["lifecycle"]["preStop"]["httpGet"]["scheme"], "HTTP");
    assert_eq!(
        spec["volumes"],
        json!([
        {"name": "e", "emptyDir": {}},
        {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}},
        {"name": "h", "hostPath": {"path": "/", "type": ""}},
        {"name": "p", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}},
            {"downwardAPI": {"items": [
                {"path": "n", "fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v1"}}]}}]}}])
    );
}

#[test]
fn pull_policies_follow_the_tag() {
    let policy = |image: &str| {
        let pod =
            apply_defaults(pod::default, json!({"spec": {"containers": [{"name": "c", "image": image}]}}));
        pod["spec"]["containers"][0]["imagePullPolicy"].as_str().unwrap().to_owned()
    };
    for image in ["echo", "echo:latest", "host:5000/echo"] {
        assert_eq!(policy(image), "Always", "{image}");
    }
    for image in ["echo:1", "host:5000/echo:v2", "echo:latest@sha256:0", "Echo", ""] {
        assert_eq!(policy(image), "IfNotPresent", "{image}");
    }
}

#[test]
fn new_pods_are_pending_with_a_quality_of_service() {
    let class = |resources: Value| {
        let mut pod = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        pod::default(&mut pod);
        pod::prepare_create(&mut pod);
        assert_eq!(pod["status"]["phase"], "Pending");
        pod["status"]["qosClass"].as_str().unwrap().to_owned()
    };
    assert_eq!(class(json!({})), "BestEffort");
    assert_eq!(class(json!({"requests": {"cpu": "0"}})), "BestEffort");
    assert_eq!(class(json!({"requests": {"cpu": "100m"}})), "Burstable");
    assert_eq!(class(json!({"limits": {"cpu": "1", "memory": "1Gi"}})), "Guaranteed");
    assert_eq!(class(json!({"limits": {"cpu": "1"}})), "Burstable");
    assert_eq!(
        class(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}})),
        "Burstable"
    );
    let mut gated = json!({"spec": {"schedulingGates": [{"name": "g"}]}});
    pod::prepare_create(&mut gated);
    assert_eq!(gated["status"]["conditions"][0]["reason"], "SchedulingGated");
}

#[test]
fn resources_of_the_pod_decide_its_quality_of_service() {
    let class = |pod: Value, container: Value| {
        pod::qos_class(&json!({"spec": {"resources": pod, "containers": [{"resources": container}]}}))
    };
    let both = json!({"cpu": "1", "memory": "1Gi"});
    let less = json!({"cpu": "500m", "memory": "1Gi"});
    for (pod, container, expected) in [
        (json!({}), json!({}), "BestEffort"),
        (json!({}), json!({"requests": both, "limits": both}), "Guaranteed"),
        (json!({"requests": both, "limits": both}), json!({}), "Guaranteed"),
        (json!({"requests": less, "limits": both}), json!({"requests": both, "limits": both}), "Burstable"),
        (json!({"requests": {"cpu": "1"}}), json!({}), "Burstable"),
        (json!({"limits": {"example.com/x": "1"}}), json!({"requests": both, "limits": both}), "Guaranteed"),
        (
            json!({"limits": {"hugepages-2Mi": "4Mi"}}),
            json!({"requests": both, "limits": both}),
            "BestEffort",
        ),
    ] {
        assert_eq!(class(pod.clone(), container), expected, "{pod}");
    }
}

#[test]
fn the_first_address_of_a_pod_stands_beside_the_list() {
    let pod = apply_defaults(pod::default, json!({"status": {"podIP": "10.1.0.2"}}));
    assert_eq!(pod["status"]["podIPs"], json!([{"ip": "10.1.0.2"}]));
    let pod =
        apply_defaults(pod::default, json!({"status": {"podIPs": [{"ip": "10.1.0.2"}, {"ip": "fd00::2"}]}}));
    assert_eq!(pod["status"]["podIP"], "10.1.0.2");
}

#[test]
fn a_single_address_that_differs_from_the_list_replaces_it() {
    let status =
        |ip: &str| json!({"status": {"podIP": ip, "podIPs": [{"ip": "1.1.1.1"}, {"ip": "fd00::1"}]}});
    let same = apply_defaults(pod::default, status("1.1.1.1"));
    assert_eq!(same, status("1.1.1.1"));
    let changed = apply_defaults(pod::default, status("2.2.2.2"));
    assert_eq!(changed, json!({"status": {"podIP": "2.2.2.2", "podIPs": [{"ip": "2.2.2.2"}]}}));
}

#[test]
fn annotations_of_old_init_containers_are_dropped() {
    let metadata = |keys: &[&str]| {
        let annotations: Value = keys.iter().map(|key| ((*key).to_owned(), json!("[]"))).collect();
        json!({"annotations": annotations})
    };
    let old = [
        "pod.alpha.kubernetes.io/init-containers",
        "pod.alpha.kubernetes.io/init-container-statuses",
        "pod.beta.kubernetes.io/init-containers",
        "pod.beta.kubernetes.io/init-container-statuses",
    ];
    let pod = apply_defaults(pod::default, json!({"metadata": metadata(&old)}));
    assert_eq!(pod["metadata"], json!({}));
    let others = ["pod.beta.kubernetes.io/hostname", "a"];
    let both = [&old[..], &others].concat();
    let pod = apply_defaults(pod::default, json!({"metadata": metadata(&both)}));
    assert_eq!(pod["metadata"], metadata(&others));
    // The object around a template keeps its own.
    let made = json!({"metadata": metadata(&old), "template": {"metadata": metadata(&both), "spec": {}}});
    let made = apply_defaults(pod_template::default, made);
    assert_eq!(made["template"]["metadata"], metadata(&others));
    assert_eq!(made["metadata"], metadata(&old));
}

#[test]
fn limits_of_a_pod_default_to_the_requests_of_its_containers() {
    let pod = |resources: Value| {
        let pod = json!({"spec": {"resources": resources,
            "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "3"}}}],
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}, {"name": "b", "resources": {"requests": {"cpu": "1"}}}]}});
        apply_defaults(pod::default, pod)["spec"]["resources"]["requests"].clone()
    };
    assert_eq!(pod(json!({"limits": {"cpu": "4", "memory": "1Gi"}})), json!({"cpu": "3", "memory": "1Gi"}));
    assert_eq!(pod(json!({"limits": {"cpu": "4"}, "requests": {"cpu": "3500m"}})), json!({"cpu": "3500m"}));
    assert_eq!(pod(json!({"requests": {"memory": "1"}})), json!({"memory": "1"}));
}

#[test]
fn label_keys_of_affinity_become_expressions() {
    let term = json!({"topologyKey": "z", "labelSelector": {"matchLabels": {"app": "x"}},
        "matchLabelKeys": ["hash", "none"], "mismatchLabelKeys": ["tenant"]});
    let mut new = json!({"metadata": {"labels": {"hash": "1", "tenant": "t"}}, "spec": {
        "topologySpreadConstraints": [{"topologyKey": "z", "labelSelector": {}, "matchLabelKeys": ["hash"]}], "affinity": {"podAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}}});
    pod::prepare_create(&mut new);
    let pointer = "/spec/affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/podAffinityTerm/labelSelector";
    assert_eq!(
        new.pointer(pointer).unwrap()["matchExpressions"],
        json!([{"key": "hash", "operator": "In", "values": ["1"]}, {"key": "tenant", "operator": "NotIn", "values": ["t"]}])
    );
    assert_eq!(
        new["spec"]["topologySpreadConstraints"][0]["labelSelector"],
        json!({"matchExpressions": [{"key": "hash", "operator": "In", "values": ["1"]}]})
    );
}

#[test]
fn terminated_containers_do_not_run_again() {
    let pod = |policy: &str, state: Value| {
        json!({"spec": {"restartPolicy": policy, "containers": [{"name": "c"}]},
               "status": {"containerStatuses": [{"name": "c", "state": state}]}})
    };
    let (ended, running) = (json!({"terminated": {"exitCode": 0}}), json!({"running": {}}));
    for (policy, count) in [("Always", 0), ("OnFailure", 1), ("Never", 1)] {
        let found = status_errors("", "pods", pod(policy, running.clone()), pod(policy, ended.clone()));
        assert_eq!(found.len(), count, "{policy}: {found:?}");
    }
    let mut two = pod("Always", running.clone());
    two["status"]["podIPs"] = json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]);
    two["status"]["hostIPs"] = json!([{"ip": "10.0.0.9"}]);
    assert_eq!(
        status_errors("", "pods", two, pod("Always", running)),
        [
            "status.podIPs: Invalid value: [{\"ip\":\"10.0.0.1\"},{\"ip\":\"10.0.0.2\"}]: may specify no more than one IP for each IP family",
            "status.hostIPs[0].ip: Invalid value: \"10.0.0.9\": must be equal to `hostIP`",
        ]
    );
}

fn pod_status(status: Value) -> (String, String, String) {
    pod_of(
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}, "status": status}),
    )
}

/// Ready, status and restarts.
fn pod_of(pod: Value) -> (String, String, String) {
    let row = cells("", "pods", &pod);
    let get = |i: usize| row[i].1.as_str().unwrap().to_owned();
    (get(1), get(2), get(3))
}

fn shown(ready: &str, status: &str, restarts: &str) -> (String, String, String) {
    (ready.to_owned(), status.to_owned(), restarts.to_owned())
}

#[test]
fn rows_of_pods_show_addresses_and_gates() {
    let pod = json!({
        "metadata": {"name": "web-1", "creationTimestamp": "2024-01-01T00:55:00Z"},
        "spec": {"nodeName": "n1", "containers": [{"name": "a"}], "readinessGates": [{"conditionType": "g"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.5", "podIPs": [{"ip": "10.0.0.5"}],
            "conditions": [{"type": "g", "status": "True"}],
            "containerStatuses": [{"name": "a", "ready": true, "restartCount": 2, "state": {"running": {}},
                "lastState": {"terminated": {"finishedAt": "2024-01-01T00:57:00Z"}}}]}});
    assert_eq!(
        row("", "pods", &pod),
        "web-1 | 1/1 | Running | 2 (3m ago) | 5m | 10.0.0.5 | n1 | <none> | 1/1"
    );
    let registry = crate::registry();
    let columns = &registry.lookup("", "v1", "pods").unwrap().columns;
    let shown: Vec<(&str, i32)> = columns.iter().map(|c| (c.name.as_ref(), c.priority)).collect();
    assert_eq!(
        shown,
        [
            ("Name", 0),
            ("Ready", 0),
            ("Status", 0),
            ("Restarts", 0),
            ("Age", 0),
            ("IP", 1),
            ("Node", 1),
            ("Nominated Node", 1),
            ("Readiness Gates", 1),
        ]
    );
    assert_eq!(columns[0].format, "name");
}

#[test]
fn the_status_column_shows_the_reason_of_the_state() {
    assert_eq!(pod_status(json!({"phase": "Pending"})), shown("0/2", "Pending", "0"));
    assert_eq!(pod_status(json!({"phase": "Failed", "reason": "Evicted"})), shown("0/2", "Evicted", "0"));
    let waiting = |reason: &str| {
        json!({"phase": "Pending", "containerStatuses": [
            {"name": "a", "state": {"waiting": {"reason": reason}}, "restartCount": 4},
            {"name": "b", "ready": true, "state": {"running": {}}, "restartCount": 1}]})
    };
    assert_eq!(pod_status(waiting("ContainerCreating")), shown("1/2", "ContainerCreating", "5"));
    assert_eq!(pod_status(waiting("CrashLoopBackOff")), shown("1/2", "CrashLoopBackOff", "5"));
    let done = |ready: &str| {
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}], "containerStatuses": [
            {"name": "a", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}},
            {"name": "b", "ready": true, "state": {"running": {}}}]})
    };
    assert_eq!(pod_status(done("True")), shown("1/2", "Running", "0"));
    assert_eq!(pod_status(done("False")), shown("1/2", "NotReady", "0"));
    let ended = |state: Value| json!({"phase": "Failed", "containerStatuses": [{"name": "a", "state": {"terminated": state}}]});
    assert_eq!(pod_status(ended(json!({"exitCode": 3}))).1, "ExitCode:3");
    assert_eq!(pod_status(ended(json!({"signal": 9}))).1, "Signal:9");
    assert_eq!(pod_status(ended(json!({"reason": "Error", "exitCode": 1}))).1, "Error");
    let gated = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]});
    assert_eq!(pod_status(gated).1, "SchedulingGated");
}

#[test]
fn deletion_shows_unless_the_pod_has_ended() {
    let pod = |phase: &str| {
        pod_of(
            json!({"metadata": {"name": "p", "deletionTimestamp": NOW}, "spec": {"containers": [{"name": "a"}]},
            "status": {"phase": phase}}),
        )
    };
    assert_eq!(pod("Running").1, "Terminating");
    assert_eq!(pod("Succeeded").1, "Succeeded");
}

#[test]
fn init_containers_and_sidecars_count_toward_readiness() {
    let pod = |init: Value, statuses: Value| {
        pod_of(
            json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}], "initContainers": init},
            "status": {"phase": "Pending", "initContainerStatuses": statuses,
                "containerStatuses": [{"name": "a", "state": {"waiting": {"reason": "PodInitializing"}}}]}}),
        )
    };
    let two = json!([{"name": "i"}, {"name": "j"}]);
    let done = json!({"name": "i", "state": {"terminated": {"exitCode": 0}}});
    let running = json!({"name": "j", "state": {"running": {}}, "restartCount": 2});
    assert_eq!(pod(two.clone(), json!([done, running])), shown("0/1", "Init:1/2", "2"));
    let failed = json!({"name": "i", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}});
    assert_eq!(pod(two.clone(), json!([failed])).1, "Init:Error");
    let crashing = json!({"name": "i", "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
    assert_eq!(pod(two, json!([crashing])).1, "Init:CrashLoopBackOff");
    let sidecar = json!([{"name": "i", "restartPolicy": "Always"}]);
    let started =
        json!({"name": "i", "started": true, "ready": true, "state": {"running": {}}, "restartCount": 1});
    assert_eq!(pod(sidecar, json!([started])), shown("1/2", "PodInitializing", "1"));
}

/// After a node's restart the init containers of a pod run again; their earlier runs do not count.
#[test]
fn restarts_of_init_containers_do_not_count_after_initialization() {
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Initialized", "status": "True"}],
            "initContainerStatuses": [{"name": "i", "restartCount": 3, "state": {"running": {}}}],
            "containerStatuses": [{"name": "a", "restartCount": 1, "ready": true, "state": {"running": {}}}]}});
    assert_eq!(pod_of(pod), shown("1/1", "Init:0/1", "1"));
}

#[test]
fn rows_of_pods_have_a_condition_once_they_have_ended() {
    let of = |plural: &str, phase: &str| {
        crate::table::row_conditions("", plural, &json!({"status": {"phase": phase}}))
    };
    let ended = |reason: &str, message: &str| {
        Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
    };
    assert_eq!(of("pods", "Succeeded"), ended("Succeeded", "The pod has completed successfully."));
    assert_eq!(of("pods", "Failed"), ended("Failed", "The pod failed."));
    assert_eq!(of("pods", "Running"), None);
    assert_eq!(of("namespaces", "Failed"), None);
}

#[test]
fn pods_with_deprecated_or_ignored_fields_raise_warnings() {
    let pod = |spec: Value| json!({"metadata": {"name": "p"}, "spec": spec});
    assert_eq!(warnings("", "pods", &pod(json!({"containers": [{"name": "c"}]}))), NONE);
    let found = warnings(
        "",
        "pods",
        &pod(json!({
            "nodeSelector": {"beta.kubernetes.io/os": "linux"},
            "terminationGracePeriodSeconds": -1,
            "topologySpreadConstraints": [{"topologyKey": "zone"}],
            "volumes": [{"name": "g", "gitRepo": {}}],
            "imagePullSecrets": [{"name": "a"}, {"name": "a"}, {"name": ""}],
            "hostAliases": [{"ip": "fd00::0:1"}],
            "containers": [
                {"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "A", "value": "3"}],
                 "resources": {"limits": {"memory": "100m"}},
                 "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP", "hostPort": 8080}]},
                {"name": "d", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]})),
    );
    assert_eq!(
        found,
        [
            "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
            "spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
            "spec.imagePullSecrets[1].name: duplicate name \"a\"",
            "spec.imagePullSecrets[2].name: invalid empty name \"\"",
            "spec.containers[0].resources.limits[memory]: fractional byte value \"100m\" is invalid, must be an integer",
            "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply",
            "spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
            "spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]",
            "spec.containers[1].ports[0]: overlapping port definition with spec.containers[0].ports[1]",
            "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
            "spec.hostAliases[0].ip: IPv6 address \"fd00::0:1\" should be in RFC 5952 canonical format (\"fd00::1\")",
        ]
    );
    let dotted = json!({"metadata": {"name": "a.b"}, "spec": {}});
    assert!(
        warnings("", "pods", &dotted)[0].starts_with("metadata.name: this is used in the Pod's hostname")
    );
    assert_eq!(crate::table::kind("", "pods").warnings.unwrap()(&dotted, Some(&dotted)), NONE);
}
