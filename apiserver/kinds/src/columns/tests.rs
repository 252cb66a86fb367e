use serde_json::{Value, json};

const NOW: &str = "2024-01-01T01:00:00Z";

/// The cells of an object by column name.
fn cells(group: &str, plural: &str, object: &Value) -> Vec<(String, Value)> {
    let registry = crate::registry();
    let resource = registry.iter().find(|r| r.group == group && r.plural == plural).unwrap();
    let row = (resource.cells)(object, NOW.parse().unwrap());
    resource.columns.iter().map(|c| c.name.to_string()).zip(row).collect()
}

/// The row as kubectl would print it.
fn line(group: &str, plural: &str, object: &Value) -> String {
    let text = |v: Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    cells(group, plural, object).into_iter().map(|(_, v)| text(v)).collect::<Vec<_>>().join(" | ")
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

fn expect(ready: &str, status: &str, restarts: &str) -> (String, String, String) {
    (ready.to_owned(), status.to_owned(), restarts.to_owned())
}

#[test]
fn pods_wide() {
    let pod = json!({
        "metadata": {"name": "web-1", "creationTimestamp": "2024-01-01T00:55:00Z"},
        "spec": {"nodeName": "n1", "containers": [{"name": "a"}], "readinessGates": [{"conditionType": "g"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.5", "podIPs": [{"ip": "10.0.0.5"}],
            "conditions": [{"type": "g", "status": "True"}],
            "containerStatuses": [{"name": "a", "ready": true, "restartCount": 2, "state": {"running": {}},
                "lastState": {"terminated": {"finishedAt": "2024-01-01T00:57:00Z"}}}]}});
    assert_eq!(
        line("", "pods", &pod),
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
fn what_a_pod_is_doing() {
    assert_eq!(pod_status(json!({"phase": "Pending"})), expect("0/2", "Pending", "0"));
    assert_eq!(pod_status(json!({"phase": "Failed", "reason": "Evicted"})), expect("0/2", "Evicted", "0"));
    let waiting = |reason: &str| {
        json!({"phase": "Pending", "containerStatuses": [
            {"name": "a", "state": {"waiting": {"reason": reason}}, "restartCount": 4},
            {"name": "b", "ready": true, "state": {"running": {}}, "restartCount": 1}]})
    };
    assert_eq!(pod_status(waiting("ContainerCreating")), expect("1/2", "ContainerCreating", "5"));
    assert_eq!(pod_status(waiting("CrashLoopBackOff")), expect("1/2", "CrashLoopBackOff", "5"));
    let done = |ready: &str| {
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}], "containerStatuses": [
            {"name": "a", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}},
            {"name": "b", "ready": true, "state": {"running": {}}}]})
    };
    assert_eq!(pod_status(done("True")), expect("1/2", "Running", "0"));
    assert_eq!(pod_status(done("False")), expect("1/2", "NotReady", "0"));
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
fn init_containers_and_sidecars() {
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
    assert_eq!(pod(two.clone(), json!([done, running])), expect("0/1", "Init:1/2", "2"));
    let failed = json!({"name": "i", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}});
    assert_eq!(pod(two.clone(), json!([failed])).1, "Init:Error");
    let crashing = json!({"name": "i", "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
    assert_eq!(pod(two, json!([crashing])).1, "Init:CrashLoopBackOff");
    let sidecar = json!([{"name": "i", "restartPolicy": "Always"}]);
    let started =
        json!({"name": "i", "started": true, "ready": true, "state": {"running": {}}, "restartCount": 1});
    assert_eq!(pod(sidecar, json!([started])), expect("1/2", "PodInitializing", "1"));
}

#[test]
fn services_and_slices() {
    let service = |spec: Value| line("", "services", &json!({"metadata": {"name": "s"}, "spec": spec}));
    assert_eq!(
        service(
            json!({"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "selector": {"b": "2", "a": "1"},
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]})
        ),
        "s | NodePort | 10.0.0.1 | <none> | 80:30080/TCP,53/UDP | <unknown> | a=1,b=2"
    );
    assert_eq!(
        service(json!({"type": "LoadBalancer"})),
        "s | LoadBalancer | <none> | <pending> | <none> | <unknown> | <none>"
    );
    assert_eq!(
        service(json!({"type": "ExternalName", "externalName": "x.y"})),
        "s | ExternalName | <none> | x.y | <none> | <unknown> | <none>"
    );
    let slice = json!({"metadata": {"name": "s-1"}, "addressType": "IPv4", "ports": [{"port": 80}, {"name": "x"}],
        "endpoints": [{"addresses": ["1.1.1.1"]}, {"addresses": ["2.2.2.2"]}, {"addresses": ["3.3.3.3"]}, {"addresses": ["4.4.4.4"]}]});
    assert_eq!(
        line("discovery.k8s.io", "endpointslices", &slice),
        "s-1 | IPv4 | 80,x | 1.1.1.1,2.2.2.2,3.3.3.3 + 1 more... | <unknown>"
    );
    let endpoints = json!({"metadata": {"name": "e"}, "subsets": [{"addresses": [{"ip": "1.1.1.1"}, {"ip": "fd00::1"}], "ports": [{"port": 80}]}]});
    assert_eq!(line("", "endpoints", &endpoints), "e | 1.1.1.1:80,[fd00::1]:80 | <unknown>");
}

#[test]
fn nodes() {
    let node = json!({
        "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/control-plane": ""},
            "creationTimestamp": "2023-12-30T01:00:00Z"},
        "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "192.168.0.2"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": "Debian 12", "kernelVersion": "6.18",
                "containerRuntimeVersion": "containerd://1.6.20"}}});
    assert_eq!(
        line("", "nodes", &node),
        "n | Ready,SchedulingDisabled | control-plane,worker | 2d | v1.36.0 | 192.168.0.2 | <none> | Debian 12 | 6.18 | containerd://1.6.20"
    );
    assert_eq!(
        line(
            "",
            "nodes",
            &json!({"metadata": {"name": "m"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
        ),
        "m | NotReady | <none> | <unknown> |  | <none> | <none> | <unknown> | <unknown> | <unknown>"
    );
}

#[test]
fn workloads() {
    let template =
        json!({"spec": {"containers": [{"name": "a", "image": "i:1"}, {"name": "b", "image": "j:1"}]}});
    let deployment = json!({"metadata": {"name": "d"},
        "spec": {"replicas": 3, "template": template, "selector": {"matchLabels": {"app": "x"}}},
        "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 2, "replicas": 3}});
    assert_eq!(
        line("apps", "deployments", &deployment),
        "d | 2/3 | 3 | 2 | <unknown> | a,b | i:1,j:1 | app=x"
    );
    assert_eq!(line("apps", "replicasets", &deployment), "d | 3 | 3 | 2 | <unknown> | a,b | i:1,j:1 | app=x");
    assert_eq!(line("apps", "statefulsets", &deployment), "d | 2/3 | <unknown> | a,b | i:1,j:1");
    let controller = json!({"metadata": {"name": "r"}, "spec": {"selector": {"app": "x"}}});
    assert_eq!(line("", "replicationcontrollers", &controller), "r | 0 | 0 | 0 | <unknown> |  |  | app=x");
    let job = json!({"metadata": {"name": "j"}, "spec": {"completions": 2, "template": template},
        "status": {"succeeded": 2, "startTime": "2024-01-01T00:00:00Z", "completionTime": "2024-01-01T00:01:10Z",
            "conditions": [{"type": "Complete", "status": "True"}]}});
    assert_eq!(line("batch", "jobs", &job), "j | Complete | 2/2 | 70s | <unknown> | a,b | i:1,j:1 | <none>");
    let cron = json!({"metadata": {"name": "c"}, "spec": {"schedule": "@daily", "suspend": false},
        "status": {"lastScheduleTime": "2024-01-01T00:00:00Z", "active": [{}]}});
    assert_eq!(
        line("batch", "cronjobs", &cron),
        "c | @daily | <none> | False | 1 | 60m | <unknown> |  |  | <none>"
    );
    let scaler = json!({"metadata": {"name": "h"}, "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"},
        "minReplicas": 1, "maxReplicas": 5, "metrics": [{"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 80}}}]},
        "status": {"currentReplicas": 2, "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": 10}}}]}});
    assert_eq!(
        line("autoscaling", "horizontalpodautoscalers", &scaler),
        "h | Deployment/d | cpu: 10%/80% | 1 | 5 | 2 | <unknown>"
    );
}

#[test]
fn the_rest() {
    let event = json!({"metadata": {"name": "e.1"}, "type": "Normal", "reason": "Pulled", "message": "done\n",
        "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{a}"},
        "source": {"component": "kubelet", "host": "n"}, "count": 3,
        "firstTimestamp": "2024-01-01T00:00:00Z", "lastTimestamp": "2024-01-01T00:59:30Z"});
    assert_eq!(
        line("", "events", &event),
        "30s | Normal | Pulled | pod/p | spec.containers{a} | kubelet, n | done | 60m | 3 | e.1"
    );
    let once = json!({"metadata": {"name": "e.2"}, "eventTime": "2024-01-01T00:59:00.000000Z", "reportingComponent": "sched"});
    assert_eq!(line("", "events", &once), "60s |  |  |  |  | sched |  | 60s | 1 | e.2");
    assert_eq!(
        line("", "namespaces", &json!({"metadata": {"name": "n"}, "status": {"phase": "Active"}})),
        "n | Active | <unknown>"
    );
    assert_eq!(
        line(
            "",
            "configmaps",
            &json!({"metadata": {"name": "c"}, "data": {"a": "1"}, "binaryData": {"b": "2"}})
        ),
        "c | 2 | <unknown>"
    );
    assert_eq!(
        line("", "secrets", &json!({"metadata": {"name": "s"}, "type": "Opaque", "data": {"a": "1"}})),
        "s | Opaque | 1 | <unknown>"
    );
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "view"}, "subjects": [
        {"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]});
    assert_eq!(
        line("rbac.authorization.k8s.io", "rolebindings", &binding),
        "b | ClusterRole/view | <unknown> | u |  | n/s"
    );
    let claim = json!({"metadata": {"name": "c"}, "spec": {"volumeName": "v", "storageClassName": "fast", "volumeMode": "Filesystem"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}});
    assert_eq!(
        line("", "persistentvolumeclaims", &claim),
        "c | Bound | v | 1Gi | RWO,ROX | fast | <unset> | <unknown> | Filesystem"
    );
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    assert_eq!(line("coordination.k8s.io", "leases", &lease), "l | me | <unknown>");
    let role = json!({"metadata": {"name": "r", "creationTimestamp": "2024-01-01T00:59:00Z"}});
    assert_eq!(line("rbac.authorization.k8s.io", "roles", &role), "r | 2024-01-01T00:59:00Z");
}

#[test]
fn metrics_requests_and_balancers() {
    let autoscaler = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 5, "scaleTargetRef": {"kind": "D", "name": "d"}, "metrics": [
        {"type": "External", "external": {"metric": {"name": "q"}, "target": {"averageValue": "3"}}},
        {"type": "Pods", "pods": {"metric": {"name": "p"}, "target": {"averageValue": "7"}}},
        {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 50}}}]},
        "status": {"currentReplicas": 2, "currentMetrics": [{"type": "External", "external": {"current": {"averageValue": "1"}}}]}});
    assert_eq!(
        line("autoscaling", "horizontalpodautoscalers", &autoscaler),
        "h | D/d | 1/3 (avg), <unknown>/7 + 1 more... | <unset> | 5 | 2 | <unknown>"
    );
    let request = |status: Value| {
        let object = json!({"metadata": {"name": "r"}, "spec": {"signerName": "s", "username": "u"}, "status": status});
        cells("certificates.k8s.io", "certificatesigningrequests", &object)[5].1.clone()
    };
    assert_eq!(request(json!({})), "Pending");
    assert_eq!(request(json!({"conditions": [{"type": "Failed"}]})), "Pending,Failed");
    assert_eq!(
        request(json!({"conditions": [{"type": "Approved"}], "certificate": "eA=="})),
        "Approved,Issued"
    );
    let balancer = json!({"metadata": {"name": "s"}, "spec": {"type": "LoadBalancer", "externalIPs": ["9.9.9.9"]},
        "status": {"loadBalancer": {"ingress": [{"ip": "5.6.7.8"}, {"hostname": "1.example"}]}}});
    assert_eq!(cells("", "services", &balancer)[3].1, "1.example,5.6.7.8,9.9.9.9");
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "b"}, "binaryData": {"c": "ZA=="}});
    assert_eq!(cells("", "configmaps", &map)[1].1, json!(2));
}

#[test]
fn odd_rows_read_as_in_kubernetes() {
    let shown = |subsets: Value| {
        cells("", "endpoints", &json!({"metadata": {"name": "e"}, "subsets": subsets}))[1].1.clone()
    };
    // Port by port, and within each the addresses.
    let subset = json!({"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}], "ports": [{"port": 80}, {"port": 443}]});
    assert_eq!(shown(json!([subset])), "10.0.0.1:80,10.0.0.2:80,10.0.0.1:443 + 1 more...");
    assert_eq!(shown(json!([{"addresses": [{"ip": "fd00::1"}]}])), "fd00::1");
    assert_eq!(shown(json!([{"notReadyAddresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}])), "");
    assert_eq!(shown(json!([])), "<none>");

    let event =
        json!({"metadata": {"name": "e"}, "reportingComponent": "kubelet", "reportingInstance": "n1"});
    assert_eq!(cells("", "events", &event)[5].1, "kubelet, n1");

    // A claim that names a volume of which nothing is known yet.
    let claim =
        json!({"metadata": {"name": "c"}, "spec": {"volumeName": "v"}, "status": {"phase": "Pending"}});
    assert_eq!(cells("", "persistentvolumeclaims", &claim)[3].1, "0");

    let parent = |parent: Value| {
        let object = json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": parent}});
        cells("networking.k8s.io", "ipaddresses", &object)[1].1.clone()
    };
    let service = json!({"resource": "services", "namespace": "default", "name": "kubernetes"});
    assert_eq!(parent(service), "services/default/kubernetes");
    assert_eq!(
        parent(json!({"group": "gateway.example.com", "resource": "gateways", "name": "g"})),
        "gateways.gateway.example.com/g"
    );
}

/// After a node's restart the init containers of a pod run again; their earlier runs do not count.
#[test]
fn of_an_initialized_pod_the_restarts_of_init_containers_do_not_count() {
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Initialized", "status": "True"}],
            "initContainerStatuses": [{"name": "i", "restartCount": 3, "state": {"running": {}}}],
            "containerStatuses": [{"name": "a", "restartCount": 1, "ready": true, "state": {"running": {}}}]}});
    assert_eq!(pod_of(pod), expect("1/1", "Init:0/1", "1"));
}

#[test]
fn rows_of_pods_say_whether_they_have_ended() {
    let of =
        |plural: &str, phase: &str| super::row_conditions("", plural, &json!({"status": {"phase": phase}}));
    let ended = |reason: &str, message: &str| {
        Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
    };
    assert_eq!(of("pods", "Succeeded"), ended("Succeeded", "The pod has completed successfully."));
    assert_eq!(of("pods", "Failed"), ended("Failed", "The pod failed."));
    assert_eq!(of("pods", "Running"), None);
    assert_eq!(of("namespaces", "Failed"), None);
}

#[test]
fn classes_levels_and_hosts() {
    let class = |plural: &str, key: &str| {
        let object = json!({"metadata": {"name": "c", "annotations": {key: "true"}}});
        cells("storage.k8s.io", plural, &object)[0].1.clone()
    };
    assert_eq!(class("storageclasses", "storageclass.kubernetes.io/is-default-class"), "c (default)");
    let alpha = "volumeattributesclass.alpha.kubernetes.io/is-default-class";
    assert_eq!(class("volumeattributesclasses", alpha), "c (default)");
    assert_eq!(class("volumeattributesclasses", "other"), "c");
    let flow = |plural: &str, spec: Value| {
        line("flowcontrol.apiserver.k8s.io", plural, &json!({"metadata": {"name": "f"}, "spec": spec}))
    };
    let level = "prioritylevelconfigurations";
    assert_eq!(
        flow(level, json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 5}})),
        "f | Exempt | <none> | <none> | <none> | <none> | <unknown>"
    );
    let queuing = json!({"queues": 64, "handSize": 6, "queueLengthLimit": 50});
    let limited = json!({"nominalConcurrencyShares": 30, "limitResponse": {"queuing": queuing}});
    assert_eq!(
        flow(level, json!({"type": "Limited", "limited": limited})),
        "f | Limited | 30 | 64 | 6 | 50 | <unknown>"
    );
    let hosts = |hosts: &[&str]| {
        let rules: Vec<Value> = hosts.iter().map(|host| json!({"host": host})).collect();
        let object = json!({"metadata": {"name": "i"}, "spec": {"rules": rules}});
        cells("networking.k8s.io", "ingresses", &object)[2].1.clone()
    };
    assert_eq!(hosts(&[]), "*");
    assert_eq!(hosts(&["", "a", "b", "c"]), "a,b,c");
    assert_eq!(hosts(&["a", "b", "c", "", "e"]), "a,b,c + 2 more...");
    let driver = json!({"metadata": {"name": "d"}, "spec": {"attachRequired": true}});
    assert_eq!(cells("storage.k8s.io", "csidrivers", &driver)[6].1, "<none>");
}
