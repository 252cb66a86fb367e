use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::config::Config;

const HEAD: &str = "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1\n\
    kind: KubeControllerManagerConfiguration\n";

fn parse(text: &str) -> Result<(Document, Vec<String>), DocumentError> {
    Document::parse(&format!("{HEAD}{text}"))
}

fn config(text: &str) -> Result<Config, String> {
    let (document, _) = parse(text).map_err(|error| error.to_string())?;
    document.config("us").map_err(|error| error.to_string())
}

/// Returns the paths of all fields that are no sections, with their values.
fn fields(value: &Value, path: &str, all: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields_of) => {
            for (name, value) in fields_of {
                fields(value, &if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, all);
            }
        }
        _ => all.push((path.to_owned(), value.clone())),
    }
}

#[test]
fn file_of_an_administrator_is_read_regardless_of_case() {
    let found = config(
        "generic:\n  controllers: ['*', -ttl-controller]\n  minResyncPeriod: 1h\n  leaderElection:\n    \
         leaseDuration: 30s\n    renewDeadline: 20s\n    resourceName: other\n\
         kubeCloudShared: {clusterCIDR: '10.1.0.0/16,fd00::/48'}\n\
         JobController: {ConcurrentJobSyncs: 3}\n\
         HPAController: {HorizontalPodAutoscalerTolerance: 0.2, horizontalPodAutoscalerSyncPeriod: 30s}\n\
         PodGCController: {TerminatedPodGCThreshold: -1}\n\
         garbageCollectorController: {enableGarbageCollector: false}\n\
         NodeIPAMController: {NodeCIDRMaskSizeIPv4: 25, NodeCIDRMaskSizeIPv6: 80}\n\
         EndpointSliceController: {MaxEndpointsPerSlice: 7}\n",
    )
    .unwrap();
    assert_eq!((found.workers["job-controller"], found.resync), (3, Duration::from_secs(3600)));
    assert_eq!((found.node_mask_ipv4, found.node_mask_ipv6, found.cluster_cidrs.len()), (25, 80, 2));
    assert!(!found.controllers.runs("ttl-controller", true));
    assert!(!found.controllers.runs("garbage-collector-controller", true));
    assert!(found.controllers.runs("job-controller", true));
    let election = found.leader_election.unwrap();
    assert_eq!((election.lease_duration.as_secs(), election.renew_deadline.as_secs()), (30, 20));
    assert_eq!((election.name.as_str(), election.namespace.as_str()), ("other", "kube-system"));
    assert_eq!((found.terminated_pods, found.slicing.per_slice), (0, 7));
    assert_eq!((found.autoscalers.tolerance, found.autoscalers.period.as_secs()), (0.2, 30));
}

#[test]
fn everything_that_is_wrong_with_the_fields_is_named() {
    let error = parse(
        "generic: {leaderElect: true, minResyncPeriod: 5}\njobController: {concurrentJobSyncs: many}\n\
         HPAController: [1]\nhpa: {}\nCSRSigningController: {kubeletServingSignerConfiguration: {file: x}}\n",
    )
    .unwrap_err()
    .to_string();
    for expected in [
        "Generic.leaderElect: unknown field",
        "Generic.MinResyncPeriod: invalid type: integer `5`",
        "JobController.ConcurrentJobSyncs: invalid type: string \"many\"",
        "HPAController: an object is expected",
        "hpa: unknown field",
        "CSRSigningController.KubeletServingSignerConfiguration.file: unknown field",
    ] {
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let twice = parse("generic: {port: 1}\nGeneric: {port: 2}\n").unwrap_err().to_string();
    assert!(twice.contains("Generic: the field is there twice"), "{twice}");
    assert!(matches!(parse("generic: {port: 1}\ngeneric: {port: 2}\n"), Err(DocumentError::Yaml(_))));
}

#[test]
fn files_that_are_no_such_document_are_refused() {
    for (text, found) in [
        ("", "empty or not an object"),
        ("- a\n", "empty or not an object"),
        ("apiVersion: v1\nkind: ConfigMap\n", "a \"v1 ConfigMap\""),
        ("generic: {}\n", "a \"\""),
    ] {
        let error = Document::parse(text).unwrap_err().to_string();
        assert!(error.contains(found), "{text:?}: {error}");
    }
    assert!(matches!(Document::parse("{"), Err(DocumentError::Yaml(_))));
}

#[test]
fn values_out_of_range_are_refused_by_the_path_of_their_field() {
    for (text, path) in [
        ("jobController: {concurrentJobSyncs: 0}", "JobController.ConcurrentJobSyncs"),
        ("generic: {minResyncPeriod: 0s}", "Generic.MinResyncPeriod"),
        ("generic: {minResyncPeriod: -1s}", "Generic.MinResyncPeriod"),
        ("generic: {controllers: [jobs]}", "Generic.Controllers"),
        ("generic: {leaderElection: {renewDeadline: 15s}}", "Generic.LeaderElection.renewDeadline"),
        ("generic: {leaderElection: {retryPeriod: 9s}}", "Generic.LeaderElection.retryPeriod"),
        ("generic: {leaderElection: {resourceLock: endpoints}}", "Generic.LeaderElection.resourceLock"),
        ("generic: {leaderElection: {resourceName: ''}}", "Generic.LeaderElection.resourceName"),
        ("kubeCloudShared: {clusterCIDR: 10.1.0.0}", "KubeCloudShared.ClusterCIDR"),
        ("kubeCloudShared: {clusterCIDR: '10.1.0.0/16,10.2.0.0/16'}", "KubeCloudShared.ClusterCIDR"),
        ("nodeIPAMController: {nodeCIDRMaskSizeIPv4: 33}", "NodeIPAMController.NodeCIDRMaskSizeIPv4"),
        ("nodeLifecycleController: {nodeEvictionRate: -1}", "NodeLifecycleController.NodeEvictionRate"),
        (
            "nodeLifecycleController: {unhealthyZoneThreshold: 2}",
            "NodeLifecycleController.UnhealthyZoneThreshold",
        ),
        (
            "endpointSliceController: {maxEndpointsPerSlice: 1001}",
            "EndpointSliceController.MaxEndpointsPerSlice",
        ),
        ("csrSigningController: {clusterSigningDuration: 0s}", "CSRSigningController.ClusterSigningDuration"),
        ("csrSigningController: {clusterSigningCertFile: /a}", "CSRSigningController.ClusterSigningKeyFile"),
        (
            "csrSigningController: {kubeletServingSignerConfiguration: {keyFile: /a}}",
            "CSRSigningController.KubeletServingSignerConfiguration",
        ),
        (
            "csrSigningController: {clusterSigningCertFile: /a, clusterSigningKeyFile: /b, \
             legacyUnknownSignerConfiguration: {certFile: /a, keyFile: /b}}",
            "CSRSigningController.LegacyUnknownSignerConfiguration",
        ),
    ] {
        let error = config(text).unwrap_err();
        assert!(error.contains(&format!("{path}: ")), "{text}: {error}");
    }
    let off = config("generic: {leaderElection: {leaderElect: false}}").unwrap();
    assert!(off.leader_election.is_none());
    assert!(config("kubeCloudShared: {allocateNodeCIDRs: false}").unwrap().cluster_cidrs.is_empty());
}

#[test]
fn defaults_of_the_document_are_those_of_the_configuration() {
    let mut ours = Document::default().config("us").unwrap();
    let plain = Config::default();
    assert_eq!(ours.cluster_cidrs.len(), 1);
    assert!(ours.workers.iter().all(|(name, count)| match *name {
        "resourcequota-controller" => *count == crate::limits::QUOTA_WORKERS,
        "validatingadmissionpolicy-status-controller" => *count == crate::limits::POLICY_WORKERS,
        _ => *count == crate::limits::WORKERS,
    }));
    assert!(ours.resyncs.iter().all(|(name, period)| match *name {
        "resourcequota-controller" => *period == crate::limits::QUOTA_RESYNC,
        _ => *period == plain.resync,
    }));
    // The fields that no document leaves as they are without one.
    ours.cluster_cidrs.clear();
    ours.service_cidrs.clear();
    ours.workers.clone_from(&plain.workers);
    ours.resyncs.clone_from(&plain.resyncs);
    ours.controllers = plain.controllers.clone();
    ours.leader_election = None;
    assert_eq!(format!("{ours:?}"), format!("{plain:?}"));
}

#[test]
fn one_authority_signs_for_all_signers_or_each_has_its_own_or_none() {
    let files = |section: &str| {
        let (document, _) = parse(&format!("csrSigningController: {{{section}}}\n")).unwrap();
        document.config("us").unwrap();
        let files = document.signing_files().into_iter();
        files.map(|(signer, (cert, key))| format!("{signer} {cert} {key}")).collect::<Vec<_>>()
    };
    let all = files("clusterSigningCertFile: /a, clusterSigningKeyFile: /b");
    assert_eq!(
        all,
        [
            "kubernetes.io/kube-apiserver-client /a /b",
            "kubernetes.io/kube-apiserver-client-kubelet /a /b",
            "kubernetes.io/kubelet-serving /a /b",
            "kubernetes.io/legacy-unknown /a /b"
        ]
    );
    let some = files(
        "kubeletServingSignerConfiguration: {certFile: /c, keyFile: /d}, \
         kubeAPIServerClientSignerConfiguration: {certFile: /e, keyFile: /f}",
    );
    assert_eq!(some, ["kubernetes.io/kube-apiserver-client /e /f", "kubernetes.io/kubelet-serving /c /d"]);
    assert!(files("").is_empty());
}

/// Fields that take effect in the process around the controllers: files, and the user that writes.
const AROUND: [&str; 7] = [
    "Generic.ClientConnection.kubeconfig",
    "KubeCloudShared.UseServiceAccountCredentials",
    "CSRSigningController.ClusterSigningCertFile",
    "CSRSigningController.ClusterSigningKeyFile",
    "CSRSigningController.ClusterSigningDuration",
    "SAController.ServiceAccountKeyFile",
    "SAController.RootCAFile",
];

#[test]
fn each_field_acts_or_is_refused_or_is_listed_as_without_effect() {
    let mut all = Vec::new();
    fields(&Document::default().to_value(), "", &mut all);
    assert!(all.len() > 100, "{}", all.len());
    let plain = format!("{:?}", Document::default().config("us").unwrap());
    for (path, value) in all {
        if ["apiVersion", "kind"].contains(&path.as_str()) {
            continue;
        }
        let other = match &value {
            Value::Bool(flag) => json!(!flag),
            Value::Number(number) if number.is_i64() => json!(number.as_i64().unwrap() + 1),
            Value::Number(number) => json!(number.as_f64().unwrap() / 2.0 + 0.001),
            Value::String(text) if text.ends_with('s') && text.starts_with(|c: char| c.is_ascii_digit()) => {
                json!("4s")
            }
            Value::String(text) if text.contains('/') => json!("10.9.0.0/16"),
            Value::String(_) if path.ends_with("SecondaryServiceCIDR") => json!("fd00::/112"),
            Value::String(text) => json!(format!("{text}x")),
            Value::Array(_) if path.ends_with("Controllers") => json!(["job-controller"]),
            _ => json!([]),
        };
        let mut document = Document::default();
        document.set(&path, other).unwrap_or_else(|error| panic!("{error}"));
        let acts = document.config("us").map_or(true, |config| format!("{config:?}") != plain);
        let expected = has_effect(&path) && !AROUND.contains(&path.as_str());
        if path.ends_with("KeyFile") || path.ends_with("CertFile") {
            assert!(acts || AROUND.contains(&path.as_str()), "{path}");
            continue;
        }
        assert_eq!(acts, expected, "{path}");
    }
}

#[test]
fn fields_without_effect_are_returned_and_written_documents_are_read_back() {
    let (_, idle) =
        parse("generic: {port: 1, debugging: {enableProfiling: true}, minResyncPeriod: 1h}\n").unwrap();
    assert_eq!(idle, ["Generic.Debugging.enableProfiling", "Generic.Port"]);
    let mut document = Document::default();
    document.set("JobController.ConcurrentJobSyncs", json!(4)).unwrap();
    let text = document.to_value().to_string();
    assert_eq!(Document::parse(&text).unwrap().0, document);
    assert!(document.set("JobController.Syncs", json!(4)).is_err());
}
