//! Every generator of `kubectl create`, `run`, `expose` and `autoscale`, and the resulting objects.

use serde_json::json;
use tests_clients::{Api, Kubectl, each_kubectl};

use crate::kubectl::{account, object};

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn every_generator_makes_an_object_that_describes_well() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        account(kubectl);
        workloads(kubectl);
        services(kubectl);
        settings(kubectl);
        access(kubectl);
        tokens(kubectl);
        tables(kubectl);
    })
}

fn workloads(kubectl: &Kubectl<'_>) {
    kubectl.says("create deployment web --image=nginx --replicas=2 --port=80", "deployment.apps/web created");
    let web = object(kubectl, "deployment web");
    assert_eq!(web["spec"]["strategy"]["rollingUpdate"]["maxSurge"], "25%");
    assert_eq!(web["spec"]["template"]["spec"]["containers"][0]["ports"][0]["protocol"], "TCP");
    let said = kubectl.run("run one --image=nginx --labels=app=one --port=80 --expose");
    assert_eq!(said, "service/one created\npod/one created\n");
    kubectl.says("create job j --image=busybox -- echo hi", "job.batch/j created");
    kubectl.says(
        "create cronjob cj --image=busybox --schedule='*/5 * * * *' -- echo hi",
        "cronjob.batch/cj created",
    );
    kubectl.says("create job by-hand --from=cronjob/cj", "job.batch/by-hand created");
    assert_eq!(object(kubectl, "job by-hand")["metadata"]["ownerReferences"][0]["name"], "cj");
    kubectl.says(
        "create pdb guard --selector=app=web --min-available=1",
        "poddisruptionbudget.policy/guard created",
    );
    kubectl.says(
        "create priorityclass high --value=100 --description=x",
        "priorityclass.scheduling.k8s.io/high created",
    );
    kubectl.run("autoscale deployment web --min=1 --max=3 --cpu-percent=50");
    let scaler = object(kubectl, "hpa web");
    assert_eq!(scaler["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 50);
    kubectl.shows(
        "describe deployment web",
        &[
            "StrategyType:           RollingUpdate",
            "RollingUpdateStrategy:  25% max unavailable, 25% max surge",
        ],
    );
    kubectl
        .shows("describe pod one", &["Service Account:  default", "QoS Class:                   BestEffort"]);
    kubectl.shows("describe cronjob cj", &["Concurrency Policy:            Allow"]);
    kubectl.shows("describe hpa web", &["Min replicas:"]);
    kubectl.shows("describe pdb guard", &["Min available:  1"]);
}

fn services(kubectl: &Kubectl<'_>) {
    for (line, made) in [
        ("create service clusterip plain --tcp=80:8080", "service/plain created"),
        ("create service nodeport port --tcp=80:8080", "service/port created"),
        ("create service loadbalancer balanced --tcp=80:8080", "service/balanced created"),
        ("create service externalname outside --external-name=example.com", "service/outside created"),
        ("expose deployment web --port=80 --target-port=8080 --name=exposed", "service/exposed exposed"),
        (
            "create ingress way --rule=example.com/bar=plain:80,tls=pair",
            "ingress.networking.k8s.io/way created",
        ),
    ] {
        kubectl.says(line, made);
    }
    let port = object(kubectl, "service port");
    let number = port["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30000..32768).contains(&number), "{port}");
    let exposed = object(kubectl, "service exposed");
    assert_eq!(exposed["spec"]["selector"], json!({"app": "web"}));
    assert_eq!(exposed["spec"]["clusterIPs"][0], exposed["spec"]["clusterIP"]);
    kubectl.shows(
        "describe service exposed",
        &["IP Family Policy:", "SingleStack", "TargetPort:               8080/TCP"],
    );
    kubectl.shows("describe ingress way", &["pair terminates example.com"]);
    let refused = kubectl.fails("create service clusterip plain --tcp=80:8080");
    assert!(refused.contains("services \"plain\" already exists"), "{refused}");
}

fn settings(kubectl: &Kubectl<'_>) {
    let pair = kubectl.file("pair.pem", "not checked by the server");
    for (line, made) in [
        ("create configmap map --from-literal=a=1 --from-literal=b=2".to_owned(), "configmap/map created"),
        (format!("create configmap file --from-file={pair}"), "configmap/file created"),
        ("create secret generic quiet --from-literal=p=q".to_owned(), "secret/quiet created"),
        (
            "create secret docker-registry pull --docker-server=x --docker-username=u --docker-password=p"
                .to_owned(),
            "secret/pull created",
        ),
        ("create namespace apart".to_owned(), "namespace/apart created"),
        ("create quota limit --hard=cpu=1,pods=2".to_owned(), "resourcequota/limit created"),
    ] {
        kubectl.says(&line, made);
    }
    assert_eq!(object(kubectl, "secret quiet")["data"], json!({"p": "cQ=="}));
    assert_eq!(object(kubectl, "secret pull")["type"], "kubernetes.io/dockerconfigjson");
    assert_eq!(object(kubectl, "namespace apart")["status"]["phase"], "Active");
    kubectl.shows("describe namespace default", &["kubernetes.io/metadata.name=default", "Resource Quotas"]);
}

fn access(kubectl: &Kubectl<'_>) {
    for (line, made) in [
        (
            "create role reader --verb=get,list --resource=pods,deployments.apps",
            "role.rbac.authorization.k8s.io/reader created",
        ),
        (
            "create rolebinding reads --role=reader --user=bob",
            "rolebinding.rbac.authorization.k8s.io/reads created",
        ),
        (
            "create clusterrole nodes --verb=get --resource=nodes",
            "clusterrole.rbac.authorization.k8s.io/nodes created",
        ),
        (
            "create clusterrolebinding nodes --clusterrole=nodes --user=bob",
            "clusterrolebinding.rbac.authorization.k8s.io/nodes created",
        ),
        (
            "set subject rolebinding reads --user=alice",
            "rolebinding.rbac.authorization.k8s.io/reads subjects updated",
        ),
    ] {
        kubectl.says(line, made);
    }
    for (who, what, answer) in [
        ("bob", "get pods", "yes"),
        ("bob", "get nodes", "yes"),
        ("alice", "list deployments.apps", "yes"),
        ("alice", "delete pods", "no"),
        ("eve", "get pods", "no"),
    ] {
        let outcome = kubectl.attempt(&format!("auth can-i {what} --as={who}"), "");
        assert_eq!((outcome.stdout.trim(), outcome.success), (answer, answer == "yes"), "{who} {what}");
    }
    kubectl.shows("auth can-i --list --as=bob", &["deployments.apps", "[get list]", "[/api/*]"]);
    let refused = kubectl.fails("get secrets --as=bob");
    assert!(
        refused.contains(
            "Error from server (Forbidden): secrets is forbidden: User \"bob\" cannot list resource \"secrets\" in \
             API group \"\" in the namespace \"default\""
        ),
        "{refused}"
    );
    let roles = kubectl.file(
        "roles.json",
        &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "reader", "namespace": "default"},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]})
        .to_string(),
    );
    kubectl.shows(&format!("auth reconcile -f {roles}"), &["reader reconciled"]);
    assert_eq!(object(kubectl, "role reader")["rules"].as_array().unwrap().len(), 3);
}

fn tokens(kubectl: &Kubectl<'_>) {
    let token = kubectl.run("create token default --duration=10m");
    let outcome = kubectl.run(&format!(
        "auth whoami -o json --token={} --kubeconfig={}",
        token.trim(),
        anonymous(kubectl)
    ));
    let review: serde_json::Value = serde_json::from_str(&outcome).unwrap();
    assert_eq!(review["status"]["userInfo"]["username"], "system:serviceaccount:default:default");
    kubectl.shows("auth whoami", &["kubernetes-admin", "system:masters"]);
    let refused = kubectl.fails(&format!("get pods --token=abc --kubeconfig={}", anonymous(kubectl)));
    assert!(refused.contains("You must be logged in to the server"), "{refused}");
}

/// Returns a kubeconfig with a cluster and no user.
fn anonymous(kubectl: &Kubectl<'_>) -> String {
    let config = kubectl.run("config view --raw -o json");
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["users"][0]["user"] = json!({});
    kubectl.file("anonymous.json", &config.to_string())
}

fn tables(kubectl: &Kubectl<'_>) {
    for (what, header) in [
        ("deployments", "NAME READY UP-TO-DATE AVAILABLE AGE"),
        ("pods", "NAME READY STATUS RESTARTS AGE"),
        ("services", "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE"),
        ("jobs", "NAME STATUS COMPLETIONS DURATION AGE"),
        ("cronjobs", "NAME SCHEDULE TIMEZONE SUSPEND ACTIVE LAST SCHEDULE AGE"),
        ("hpa", "NAME REFERENCE TARGETS MINPODS MAXPODS REPLICAS AGE"),
        ("ingresses", "NAME CLASS HOSTS ADDRESS PORTS AGE"),
        ("pdb", "NAME MIN AVAILABLE MAX UNAVAILABLE ALLOWED DISRUPTIONS AGE"),
        ("priorityclasses", "NAME VALUE GLOBAL-DEFAULT AGE PREEMPTIONPOLICY"),
        ("configmaps", "NAME DATA AGE"),
        ("secrets", "NAME TYPE DATA AGE"),
        ("serviceaccounts", "NAME SECRETS AGE"),
        ("namespaces", "NAME STATUS AGE"),
        ("quota", "NAME REQUEST LIMIT AGE"),
        ("roles", "NAME CREATED AT"),
        ("rolebindings", "NAME ROLE AGE"),
        ("clusterroles", "NAME CREATED AT"),
    ] {
        let table = kubectl.table(&format!("get {what}"));
        assert_eq!(table[0].join(" "), header);
        assert!(table.len() > 1, "{what}");
    }
}
