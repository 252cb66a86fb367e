//! Texts behind a pointer of Go's: `""` is there, so it is not filled in, and the validation judges it.

use serde_json::{Value, json};

use crate::api::harness::Api;

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLASS: &str = "/apis/storage.k8s.io/v1/storageclasses";
const RULES: &str = "/apis/admissionregistration.k8s.io/v1";

fn pod() -> Value {
    json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

fn claim() -> Value {
    json!({"metadata": {"name": "a"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}})
}

fn volume() -> Value {
    json!({"metadata": {"name": "a"}, "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
        "hostPath": {"path": "/a"}}})
}

fn job() -> Value {
    json!({"metadata": {"name": "a"}, "spec": {"template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i"}]}}}})
}

fn webhooks() -> Value {
    let rule =
        json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
    json!({"metadata": {"name": "a"}, "webhooks": [{"name": "a.example.com", "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://a.example.com"}, "rules": [rule]}]})
}

fn policy() -> Value {
    let rule =
        json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
    json!({"metadata": {"name": "a"}, "spec": {"matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "true"}]}})
}

fn slice() -> Value {
    json!({"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}],
        "ports": [{"port": 80}]})
}

fn service() -> Value {
    json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}})
}

/// Returns the object with `""` at a pointer, creating missing parents.
fn emptied(mut object: Value, pointer: &str) -> Value {
    let mut at = &mut object;
    for step in pointer[1..].split('/') {
        at = match at {
            Value::Array(items) => &mut items[step.parse::<usize>().unwrap()],
            other => &mut other[step],
        };
    }
    *at = "".into();
    object
}

/// A path, an object that is taken, and where in it `""` is refused.
fn table() -> Vec<(&'static str, Value, &'static str)> {
    let services = "/api/v1/namespaces/default/services";
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let volumes = "/api/v1/persistentvolumes";
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let validating = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let mutating = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let admission = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let class = json!({"metadata": {"name": "a"}, "spec": {"controller": "example.com/a",
        "parameters": {"kind": "A", "name": "a"}}});
    let network = json!({"metadata": {"name": "a"}, "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}});
    let storage = json!({"metadata": {"name": "a"}, "provisioner": "example.com/a"});
    let driver = json!({"metadata": {"name": "a.example.com"}, "spec": {}});
    let priority = json!({"metadata": {"name": "a"}, "value": 1});
    let spread = json!([{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"}]);
    let mut spreading = pod();
    spreading["spec"]["topologySpreadConstraints"] = spread;
    let budget = json!({"metadata": {"name": "a"}, "spec": {"maxUnavailable": 1}});
    let scaler = json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 2, "behavior": {"scaleUp": {}},
        "scaleTargetRef": {"kind": "Deployment", "name": "a", "apiVersion": "apps/v1"}}});
    let ingress = json!({"metadata": {"name": "a"}, "spec": {"rules": [{"http": {"paths": [{"path": "/",
        "pathType": "Prefix", "backend": {"service": {"name": "a", "port": {"number": 80}}}}]}}]}});
    vec![
        (services, service(), "/spec/internalTrafficPolicy"),
        (services, service(), "/spec/ipFamilyPolicy"),
        (services, service(), "/spec/trafficDistribution"),
        (claims, claim(), "/spec/volumeMode"),
        (volumes, volume(), "/spec/volumeMode"),
        (jobs, job(), "/spec/completionMode"),
        (jobs, job(), "/spec/podReplacementPolicy"),
        ("/apis/networking.k8s.io/v1/ingressclasses", class, "/spec/parameters/scope"),
        (
            "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
            ingress,
            "/spec/rules/0/http/paths/0/pathType",
        ),
        (policies, network, "/spec/ingress/0/ports/0/protocol"),
        (slices, slice(), "/ports/0/protocol"),
        (slices, slice(), "/ports/0/appProtocol"),
        (slices, slice(), "/endpoints/0/hostname"),
        (slices, slice(), "/endpoints/0/nodeName"),
        (CLASS, storage, "/volumeBindingMode"),
        ("/apis/storage.k8s.io/v1/csidrivers", driver, "/spec/fsGroupPolicy"),
        (validating, webhooks(), "/webhooks/0/failurePolicy"),
        (validating, webhooks(), "/webhooks/0/matchPolicy"),
        (validating, webhooks(), "/webhooks/0/sideEffects"),
        (validating, webhooks(), "/webhooks/0/rules/0/scope"),
        (mutating, webhooks(), "/webhooks/0/reinvocationPolicy"),
        (admission, policy(), "/spec/failurePolicy"),
        (admission, policy(), "/spec/matchConstraints/matchPolicy"),
        (admission, policy(), "/spec/validations/0/reason"),
        ("/apis/scheduling.k8s.io/v1/priorityclasses", priority, "/preemptionPolicy"),
        (PODS, pod(), "/spec/runtimeClassName"),
        (PODS, pod(), "/spec/containers/0/restartPolicy"),
        (PODS, spreading, "/spec/topologySpreadConstraints/0/nodeAffinityPolicy"),
        (
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            budget,
            "/spec/unhealthyPodEvictionPolicy",
        ),
        (
            "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
            scaler,
            "/spec/behavior/scaleUp/selectPolicy",
        ),
    ]
}

#[tokio::test]
async fn an_empty_text_behind_a_pointer_is_not_filled_in_but_refused() {
    let api = Api::start().await;
    for (path, object, pointer) in table() {
        let dry = format!("{path}?dryRun=All");
        api.post(&dry, object.clone()).await.expect(201);
        let reply = api.post(&dry, emptied(object, pointer)).await;
        let causes: Vec<(&str, &str)> = reply.body["details"]["causes"]
            .as_array()
            .unwrap_or_else(|| panic!("{path} {pointer}: {}", reply.text))
            .iter()
            .map(|cause| (cause["field"].as_str().unwrap(), cause["message"].as_str().unwrap()))
            .collect();
        let [(field, says), ..] = causes[..] else { panic!("{path} {pointer}: {causes:?}") };
        let last = pointer.rsplit('/').next().unwrap();
        assert!(reply.code == 422 && field.ends_with(last), "{pointer}: {causes:?}");
        let wanted = match last {
            "preemptionPolicy" => "Required value",
            "runtimeClassName" | "hostname" | "nodeName" | "appProtocol" => "Invalid value: \"\": ",
            _ => "Unsupported value: \"\": supported values: ",
        };
        assert!(says.starts_with(wanted), "{pointer}: {causes:?}");
    }
}

/// Kubernetes' check of a reclaim policy ignores the empty one; a field that is not a pointer gets its
/// default.
#[tokio::test]
async fn an_empty_text_that_means_unset_is_still_taken() {
    let api = Api::start().await;
    let class = json!({"metadata": {"name": "a"}, "provisioner": "example.com/a", "reclaimPolicy": ""});
    assert_eq!(api.post(CLASS, class).await.expect(201).body["reclaimPolicy"], "");
    let mut object = pod();
    object["spec"]["restartPolicy"] = "".into();
    object["spec"]["dnsPolicy"] = "".into();
    let spec = &api.post(PODS, object).await.expect(201).body["spec"];
    assert_eq!((&spec["restartPolicy"], &spec["dnsPolicy"]), (&json!("Always"), &json!("ClusterFirst")));
    let hooks = api.post(&format!("{RULES}/validatingwebhookconfigurations"), webhooks()).await.expect(201);
    assert_eq!(hooks.body["webhooks"][0]["failurePolicy"], "Fail");
}

#[tokio::test]
async fn a_pods_preemption_policy_is_that_of_its_class() {
    let api = Api::start().await;
    let class = json!({"metadata": {"name": "quiet"}, "value": 7, "preemptionPolicy": "Never"});
    api.post("/apis/scheduling.k8s.io/v1/priorityclasses", class).await.expect(201);
    let with = |policy: &str, class: &str| {
        let mut pod = pod();
        pod["metadata"]["name"] = format!("p{}", class.len()).into();
        pod["spec"]["preemptionPolicy"] = policy.into();
        pod["spec"]["priorityClassName"] = class.into();
        pod
    };
    let computed = |given: &str, found: &str| {
        format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
             controller computed {found} from the given PriorityClass name"
        )
    };
    for (policy, class, found) in [
        ("Never", "", "PreemptLowerPriority"),
        ("", "", "PreemptLowerPriority"),
        ("PreemptLowerPriority", "quiet", "Never"),
    ] {
        let refused = api.post(PODS, with(policy, class)).await.expect(403);
        assert!(refused.message().ends_with(&computed(policy, found)), "{}", refused.text);
    }
    api.post(PODS, with("Never", "quiet")).await.expect(201);
    api.post(PODS, with("PreemptLowerPriority", "")).await.expect(201);
}
