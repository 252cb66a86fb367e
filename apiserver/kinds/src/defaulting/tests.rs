use serde_json::{Value, json};

use super::*;
use apiserver_schema::schema;

fn defaulted(default: fn(&mut Value), mut value: Value) -> Value {
    default(&mut value);
    let once = value.clone();
    default(&mut value);
    assert_eq!(value, once, "defaulting is not idempotent");
    value
}

/// A template's pod spec with nothing but a container, as it is once completed.
fn completed_template_spec() -> Value {
    json!({
        "containers": [{
            "name": "c", "image": "echo:1", "imagePullPolicy": "IfNotPresent", "resources": {},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
        "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
        "securityContext": {}, "terminationGracePeriodSeconds": 30})
}

fn template() -> Value {
    json!({"spec": {"containers": [{"name": "c", "image": "echo:1"}]}})
}

#[test]
fn a_minimal_deployment_becomes_what_kubernetes_stores() {
    let value = defaulted(workload::deployment, json!({"spec": {"template": template()}}));
    assert_eq!(
        value,
        json!({"spec": {
            "replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": {"spec": completed_template_spec()}}})
    );
    let recreate =
        defaulted(workload::deployment, json!({"spec": {"strategy": {"type": "Recreate"}, "replicas": 0}}));
    assert_eq!(recreate["spec"]["strategy"], json!({"type": "Recreate"}));
    assert_eq!(recreate["spec"]["replicas"], 0);
}

#[test]
fn other_workloads() {
    let stateful = defaulted(
        workload::stateful_set,
        json!({"spec": {
        "template": template(), "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}]}}),
    );
    let spec = &stateful["spec"];
    assert_eq!(spec["updateStrategy"], json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}));
    assert_eq!(
        spec["persistentVolumeClaimRetentionPolicy"],
        json!({"whenDeleted": "Retain", "whenScaled": "Retain"})
    );
    assert_eq!(spec["volumeClaimTemplates"][0]["spec"]["volumeMode"], "Filesystem");
    assert_eq!(spec["podManagementPolicy"], "OrderedReady");

    let daemon = defaulted(workload::daemon_set, json!({"spec": {"template": template()}}));
    assert_eq!(
        daemon["spec"]["updateStrategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}})
    );
    let set = defaulted(workload::replica_set, json!({"spec": {"template": template()}}));
    assert_eq!(set["spec"], json!({"replicas": 1, "template": {"spec": completed_template_spec()}}));
    let controller = defaulted(
        workload::replication_controller,
        json!({"metadata": {"name": "a"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}),
    );
    assert_eq!(controller["spec"]["selector"], json!({"a": "b"}));
    assert_eq!(controller["metadata"]["labels"], json!({"a": "b"}));
}

#[test]
fn jobs_run_once_unless_told_otherwise_and_select_their_own_pods() {
    let mut job = defaulted(
        batch::job,
        json!({
        "metadata": {"name": "j", "uid": "u"},
        "spec": {"template": {"metadata": {"labels": {"mine": "x"}}}}}),
    );
    assert_eq!((&job["spec"]["completions"], &job["spec"]["parallelism"]), (&json!(1), &json!(1)));
    assert_eq!(job["spec"]["backoffLimit"], 6);
    assert_eq!(job["metadata"]["labels"], json!({"mine": "x"}));
    batch::prepare_create_job(&mut job);
    assert_eq!(job["metadata"]["labels"], json!({"mine": "x"}));
    assert_eq!(job["spec"]["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}));
    assert_eq!(
        job["spec"]["template"]["metadata"]["labels"],
        json!({"mine": "x", "controller-uid": "u", "job-name": "j",
               "batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "j"})
    );
    let mut bare = defaulted(batch::job, json!({"metadata": {"name": "j", "uid": "u"}, "spec": {}}));
    batch::prepare_create_job(&mut bare);
    assert!(bare["metadata"].get("labels").is_none(), "they are not judged as labels of the job");
    assert_eq!(defaulted(batch::job, bare)["metadata"]["labels"]["job-name"], "j");
    let queue = defaulted(batch::job, json!({"spec": {"parallelism": 5}}));
    assert!(queue["spec"].get("completions").is_none());
    let cron =
        defaulted(batch::cron_job, json!({"spec": {"jobTemplate": {"spec": {"template": template()}}}}));
    assert_eq!(cron["spec"]["concurrencyPolicy"], "Allow");
    assert_eq!(cron["spec"]["jobTemplate"]["spec"]["template"]["spec"], completed_template_spec());
}

#[test]
fn pods_get_requests_probes_volumes_and_ports() {
    let pod = defaulted(
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
        let pod = defaulted(pod::default, json!({"spec": {"containers": [{"name": "c", "image": image}]}}));
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
fn services_of_each_type() {
    let service = |spec: Value| defaulted(service::service, json!({"spec": spec}))["spec"].clone();
    assert_eq!(
        service(json!({"ports": [{"port": 80}]})),
        json!({"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
               "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]})
    );
    let node_port = service(json!({"type": "NodePort", "ports": [{"port": 80, "targetPort": "http"}]}));
    assert_eq!(node_port["externalTrafficPolicy"], "Cluster");
    assert_eq!(node_port["ports"][0]["targetPort"], "http");
    assert!(node_port.get("allocateLoadBalancerNodePorts").is_none());
    assert_eq!(service(json!({"type": "LoadBalancer"}))["allocateLoadBalancerNodePorts"], true);
    let sticky = service(json!({"sessionAffinity": "ClientIP"}));
    assert_eq!(sticky["sessionAffinityConfig"], json!({"clientIP": {"timeoutSeconds": 10800}}));
    let external = service(json!({"type": "ExternalName", "externalName": "x.y"}));
    assert!(external.get("internalTrafficPolicy").is_none());
}

#[test]
fn a_service_that_changes_type_loses_what_the_old_type_had() {
    let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "externalTrafficPolicy": "Cluster",
        "ports": [{"port": 80, "nodePort": 30080}]}});
    let mut new = old.clone();
    new["spec"]["type"] = json!("ClusterIP");
    service::prepare_update_service(&mut new, &old);
    assert_eq!(new["spec"], json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "ports": [{"port": 80}]}));
    let mut same = old.clone();
    service::prepare_update_service(&mut same, &old);
    assert_eq!(same, old);
    // Addresses that others than the server wrote stay, and those that a load balancer wrote go.
    let mut balanced = old.clone();
    balanced["spec"]["type"] = json!("LoadBalancer");
    balanced["spec"]["internalTrafficPolicy"] = json!("Local");
    balanced["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}, "conditions": []});
    let mut named = balanced.clone();
    service::prepare_update_service(&mut named, &balanced);
    assert_eq!(named, balanced);
    named["spec"]["type"] = json!("ExternalName");
    service::prepare_update_service(&mut named, &balanced);
    let spec = json!({"type": "ExternalName", "internalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    assert_eq!(named["spec"], spec);
    assert_eq!(named["status"], json!({"loadBalancer": {}, "conditions": []}));
    // A request for another number is refused with an error.
    let mut other = old.clone();
    other["spec"]["type"] = json!("ClusterIP");
    other["spec"]["ports"][0]["nodePort"] = json!(30081);
    service::prepare_update_service(&mut other, &old);
    assert_eq!(other["spec"]["ports"][0]["nodePort"], 30081);
}

#[test]
fn a_service_keeps_its_health_check_as_long_as_balancers_ask() {
    let old = json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 31000, "ports": [{"port": 80, "nodePort": 30080}]}});
    let changed = |path: &str, value: Value| {
        let mut new = old.clone();
        new["spec"][path] = value;
        service::prepare_update_service(&mut new, &old);
        new["spec"].get("healthCheckNodePort").cloned()
    };
    assert_eq!(changed("externalTrafficPolicy", json!("Cluster")), None);
    assert_eq!(changed("type", json!("NodePort")), None);
    assert_eq!(changed("sessionAffinity", json!("ClientIP")), Some(json!(31000)));
}

#[test]
fn the_class_of_a_pod_is_that_of_its_own_resources_where_it_has_some() {
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
fn secrets_take_plain_text_and_namespaces_their_label() {
    let secret =
        defaulted(cluster::secret, json!({"data": {"a": "eA=="}, "stringData": {"a": "new", "b": "y"}}));
    assert_eq!(secret, json!({"type": "Opaque", "data": {"a": "bmV3", "b": "eQ=="}}));
    let mut space = defaulted(cluster::namespace, json!({"metadata": {"name": "n", "labels": {"a": "b"}}}));
    assert_eq!(space["metadata"]["labels"], json!({"a": "b", "kubernetes.io/metadata.name": "n"}));
    cluster::prepare_create_namespace(&mut space);
    assert_eq!(space["spec"], json!({"finalizers": ["kubernetes"]}));
    assert_eq!(space["status"], json!({"phase": "Active"}));
    let mut changed = json!({"metadata": {"name": "n"}, "spec": {"finalizers": []}});
    cluster::prepare_update_namespace(&mut changed, &space);
    assert_eq!(changed["spec"], space["spec"]);
}

#[test]
fn first_addresses_stand_beside_the_lists() {
    let node = defaulted(cluster::node, json!({"spec": {"podCIDR": "10.1.0.0/24"}}));
    assert_eq!(node["spec"]["podCIDRs"], json!(["10.1.0.0/24"]));
    let node = defaulted(
        cluster::node,
        json!({"spec": {"podCIDRs": ["10.1.0.0/24", "fd00::/64"]},
        "status": {"capacity": {"cpu": "2"}}}),
    );
    assert_eq!(node["spec"]["podCIDR"], "10.1.0.0/24");
    assert_eq!(node["status"]["allocatable"], json!({"cpu": "2"}));
    let pod = defaulted(pod::default, json!({"status": {"podIP": "10.1.0.2"}}));
    assert_eq!(pod["status"]["podIPs"], json!([{"ip": "10.1.0.2"}]));
    let pod = defaulted(pod::default, json!({"status": {"podIPs": [{"ip": "10.1.0.2"}, {"ip": "fd00::2"}]}}));
    assert_eq!(pod["status"]["podIP"], "10.1.0.2");
}

#[test]
fn a_single_address_that_differs_from_the_list_replaces_it() {
    let status =
        |ip: &str| json!({"status": {"podIP": ip, "podIPs": [{"ip": "1.1.1.1"}, {"ip": "fd00::1"}]}});
    let same = defaulted(pod::default, status("1.1.1.1"));
    assert_eq!(same, status("1.1.1.1"));
    let changed = defaulted(pod::default, status("2.2.2.2"));
    assert_eq!(changed, json!({"status": {"podIP": "2.2.2.2", "podIPs": [{"ip": "2.2.2.2"}]}}));
    let node = json!({"spec": {"podCIDR": "10.2.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"]}});
    let node = defaulted(cluster::node, node);
    assert_eq!(node["spec"], json!({"podCIDR": "10.2.0.0/24", "podCIDRs": ["10.2.0.0/24"]}));
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
    let pod = defaulted(pod::default, json!({"metadata": metadata(&old)}));
    assert_eq!(pod["metadata"], json!({}));
    let others = ["pod.beta.kubernetes.io/hostname", "a"];
    let both = [&old[..], &others].concat();
    let pod = defaulted(pod::default, json!({"metadata": metadata(&both)}));
    assert_eq!(pod["metadata"], metadata(&others));
    // The object around a template keeps its own.
    let made = json!({"metadata": metadata(&old), "template": {"metadata": metadata(&both), "spec": {}}});
    let made = defaulted(pod::pod_template, made);
    assert_eq!(made["template"]["metadata"], metadata(&others));
    assert_eq!(made["metadata"], metadata(&old));
}

#[test]
fn slices_policies_bindings_storage() {
    let slice = defaulted(service::endpoint_slice, json!({"ports": [{"port": 1}]}));
    assert_eq!(slice["ports"], json!([{"port": 1, "name": "", "protocol": "TCP"}]));
    let policy = defaulted(
        network::policy,
        json!({"spec": {"podSelector": {}, "egress": [{"ports": [{"port": 1}]}]}}),
    );
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(policy["spec"]["egress"][0]["ports"][0]["protocol"], "TCP");
    let binding = defaulted(
        rbac::binding,
        json!({
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}]}),
    );
    assert_eq!(binding["roleRef"]["apiGroup"], "rbac.authorization.k8s.io");
    assert_eq!(binding["subjects"][0]["apiGroup"], "rbac.authorization.k8s.io");
    assert!(binding["subjects"][1].get("apiGroup").is_none());
    let class = defaulted(storage::class, json!({"provisioner": "p"}));
    assert_eq!(
        class,
        json!({"provisioner": "p", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})
    );
    let limits = defaulted(
        cluster::limit_range,
        json!({"spec": {"limits": [
        {"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}]}}),
    );
    assert_eq!(limits["spec"]["limits"][0]["default"], json!({"cpu": "2"}));
    assert_eq!(limits["spec"]["limits"][0]["defaultRequest"], json!({"cpu": "2", "memory": "1Mi"}));
    let scaler = defaulted(autoscaling::horizontal, json!({"spec": {"behavior": {"scaleUp": {}}}}));
    assert_eq!(scaler["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 80);
    assert_eq!(scaler["spec"]["behavior"]["scaleUp"]["policies"].as_array().unwrap().len(), 2);
}

/// Defaults must themselves be valid fields of the right type.
#[test]
fn defaults_fit_the_schema() {
    for resource in crate::builtin::registry().iter() {
        let mut object = json!({
            "apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {"name": "x", "uid": "u"}});
        if schema::definition(&resource.schema).unwrap().field("spec").is_some() {
            object["spec"] = json!({});
            let spec = schema::definition(&resource.schema).unwrap().field("spec").unwrap().ty().object();
            if spec.is_some_and(|spec| spec.field("template").is_some()) {
                object["spec"]["template"] = template();
            }
            if spec.is_some_and(|spec| spec.field("containers").is_some()) {
                object["spec"]["containers"] = template()["spec"]["containers"].clone();
            }
        }
        (resource.behaviour.default)(&mut object);
        (resource.behaviour.prepare_create)(&mut object);
        let problems = schema::check(&resource.schema, &object);
        assert!(problems.is_empty(), "{}: {problems:?}\n{object}", resource.kind);
    }
}

#[test]
fn what_a_pod_asks_for_as_a_whole() {
    let pod = |resources: Value| {
        let pod = json!({"spec": {"resources": resources,
            "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "3"}}}],
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}, {"name": "b", "resources": {"requests": {"cpu": "1"}}}]}});
        defaulted(pod::default, pod)["spec"]["resources"]["requests"].clone()
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
fn storage_and_policies_in_depth() {
    for (egress, types) in [(json!([]), json!(["Ingress"])), (json!([{}]), json!(["Ingress", "Egress"]))] {
        let policy = defaulted(network::policy, json!({"spec": {"egress": egress}}));
        assert_eq!(policy["spec"]["policyTypes"], types);
    }
    let volume = defaulted(storage::volume, json!({"spec": {"rbd": {"image": "i"}}}));
    assert_eq!(
        volume["spec"]["rbd"],
        json!({"image": "i", "pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"})
    );
    let balancer = json!({"spec": {"type": "LoadBalancer"},
        "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "h"}]}}});
    let balancer = defaulted(service::service, balancer);
    assert_eq!(
        balancer["status"]["loadBalancer"]["ingress"],
        json!([{"ip": "1.2.3.4", "ipMode": "VIP"}, {"hostname": "h"}])
    );
    let created = |spec: Value| {
        let mut claim = json!({"spec": spec});
        storage::prepare_create_claim(&mut claim);
        assert_eq!(claim["status"], json!({"phase": "Pending"}));
        claim["spec"].clone()
    };
    let source = json!({"kind": "PersistentVolumeClaim", "name": "a"});
    let both = json!({"dataSource": source, "dataSourceRef": source});
    assert_eq!(created(json!({"dataSource": source})), both);
    assert_eq!(created(json!({"dataSourceRef": source})), both);
    let foreign = json!({"dataSourceRef": {"kind": "K", "name": "a", "namespace": "n"}});
    assert_eq!(created(foreign.clone()), foreign);
}

#[test]
fn a_volume_knows_since_when_it_is_in_its_phase() {
    let (created, earlier, now) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z");
    let mut volume = json!({"metadata": {"creationTimestamp": created}, "status": {"phase": "Bound"}});
    storage::prepare_create_volume(&mut volume);
    assert_eq!(volume["status"], json!({"phase": "Pending", "lastPhaseTransitionTime": created}));
    for (phase, told, expected) in [
        ("Pending", json!(created), json!(created)),
        ("Available", json!(created), json!(now)),
        ("Available", json!(null), json!(now)),
        ("Available", json!(earlier), json!(earlier)),
    ] {
        let mut new = volume.clone();
        new["status"] = json!({"phase": phase, "lastPhaseTransitionTime": told});
        storage::note_phase(&mut new, &volume, now);
        assert_eq!(new["status"]["lastPhaseTransitionTime"], expected, "{phase} {told}");
    }
}

#[test]
fn endpoints_that_change_lose_their_topology_and_keep_a_node_of_before() {
    use super::service::prepare_update_slice;
    let slice = |topology: Value, ready: bool| json!({"endpoints": [{"addresses": ["a"], "conditions": {"ready": ready}, "deprecatedTopology": topology}]});
    let old = slice(json!({"kubernetes.io/hostname": "n"}), true);
    let mut same = old.clone();
    prepare_update_slice(&mut same, &old);
    assert_eq!(same, old);
    let mut changed = slice(json!({"kubernetes.io/hostname": "n"}), false);
    prepare_update_slice(&mut changed, &old);
    let endpoint = json!({"addresses": ["a"], "conditions": {"ready": false}, "nodeName": "n"});
    assert_eq!(changed["endpoints"], json!([endpoint]));
    let mut another = slice(json!({"kubernetes.io/hostname": "m"}), true);
    prepare_update_slice(&mut another, &old);
    assert_eq!(another["endpoints"][0].get("nodeName"), None);
}
