use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use apiserver_schema::schema::*;

const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";
const POD: &str = "io.k8s.api.core.v1.Pod";

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "25%"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{
                    "name": "c", "image": "i",
                    "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}},
                    "ports": [{"containerPort": 80}],
                }]},
            },
        },
    })
}

#[test]
fn every_kind_and_all_it_refers_to_is_in_the_graph() {
    for resource in crate::registry().iter() {
        let definition = definition(&resource.schema).unwrap_or_else(|| panic!("{}", resource.schema));
        assert!(definition.field("metadata").is_some(), "{}", resource.schema);
        let problems = check(
            &resource.schema,
            &json!({
            "apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {"name": "x"}}),
        );
        assert!(problems.is_empty(), "{}: {problems:?}", resource.schema);
    }
    assert!(definitions().count() > 400);
}

#[test]
fn types_and_merge_semantics_are_those_of_the_api() {
    let field = |name: &str, field: &str| definition(name).unwrap().field(field).unwrap();
    let spec = "io.k8s.api.core.v1.PodSpec";
    let containers = field(spec, "containers");
    assert!(containers.required() && containers.merge().patch_merge());
    assert_eq!(containers.merge().patch_key(), Some("name"));
    assert_eq!(containers.merge().list_type(), ListType::Map);
    assert_eq!(containers.ty().element().unwrap().object().unwrap().short_name(), "Container");
    assert!(field(spec, "volumes").merge().retain_keys());
    assert!(field(spec, "nodeSelector").merge().atomic());
    assert_eq!(field(spec, "tolerations").merge().list_type(), ListType::Atomic);
    assert!(!field(spec, "tolerations").merge().patch_merge());
    let ports = field("io.k8s.api.core.v1.ServiceSpec", "ports").merge();
    assert_eq!(ports.patch_key(), Some("port"));
    assert_eq!(ports.list_map_keys().collect::<Vec<_>>(), ["port", "protocol"]);
    let finalizers = field("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "finalizers").merge();
    assert!(finalizers.patch_merge() && finalizers.patch_key().is_none());
    assert!(definition("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector").unwrap().atomic());
    assert_eq!(field("io.k8s.api.core.v1.Secret", "data").ty().element(), Some(Type::Bytes));
    assert_eq!(field("io.k8s.api.core.v1.ServicePort", "targetPort").ty(), Type::IntOrString);
    assert_eq!(field("io.k8s.api.coordination.v1.LeaseSpec", "renewTime").ty(), Type::MicroTime);
    assert_eq!(field("io.k8s.api.apps.v1.ControllerRevision", "data").ty(), Type::Any);
    let retained: BTreeSet<&str> = definitions()
        .flat_map(|d| d.fields())
        .filter(|f| f.merge().retain_keys())
        .map(|f| f.name())
        .collect();
    assert!(retained.contains("strategy") && retained.contains("volumes"), "{retained:?}");
}

#[test]
fn a_valid_object_has_no_problems() {
    assert_eq!(check(DEPLOYMENT, &deployment()), Problems::default());
    assert_eq!(check("no.such.Definition", &json!({"a": 1})), Problems::default());
}

#[test]
fn wrong_types_read_as_those_of_the_decoder() {
    let cases = [
        (
            "/spec/replicas",
            json!("three"),
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "/spec/replicas",
            json!(1.5),
            "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "/spec/replicas",
            json!(3_000_000_000_u64),
            "json: cannot unmarshal number 3000000000 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "/spec/template/spec/containers/0/ports/0/containerPort",
            json!(true),
            "json: cannot unmarshal bool into Go struct field \
             ContainerPort.spec.template.spec.containers.ports.containerPort of type int32",
        ),
        (
            "/spec/template/spec/containers",
            json!({}),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container",
        ),
        (
            "/metadata/labels/app",
            json!(7),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            "/spec/template/spec/containers/0/resources/limits/memory",
            json!("1 GiB"),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ];
    for (pointer, value, message) in cases {
        let mut object = deployment();
        *object.pointer_mut(pointer).unwrap() = value;
        assert_eq!(check(DEPLOYMENT, &object).type_errors, [message], "{pointer}");
    }
    assert_eq!(
        check(POD, &json!([])).type_errors,
        ["json: cannot unmarshal array into Go value of type v1.Pod"]
    );
    let secret = check("io.k8s.api.core.v1.Secret", &json!({"data": {"a": "not base64!"}}));
    assert_eq!(secret.type_errors, ["illegal base64 data at input byte 3"]);
}

#[test]
fn unknown_fields_are_named_with_their_path_and_dropped() {
    let mut object = deployment();
    object["spec"]["colour"] = json!("red");
    object["spec"]["template"]["spec"]["containers"][0]["imagee"] = json!("x");
    object["spec"]["template"]["spec"]["containers"][0]["env"] = Value::Null;
    object["metadata"]["creationTimestamp"] = Value::Null;
    let mut problems = check(DEPLOYMENT, &object);
    problems.unknown_fields.sort();
    assert_eq!(problems.unknown_fields, ["spec.colour", "spec.template.spec.containers[0].imagee"]);
    drop_unknown(DEPLOYMENT, &mut object);
    let mut expected = deployment();
    expected["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"limits": {"cpu": "500m", "memory": "1Gi"}});
    assert_eq!(object, expected);
}

#[test]
fn times_are_written_as_the_api_writes_them() {
    let mut lease = json!({
        "metadata": {"creationTimestamp": "2024-01-01T01:00:00.5+01:00"},
        "spec": {"renewTime": "2024-01-01T00:00:00Z"}});
    drop_unknown("io.k8s.api.coordination.v1.Lease", &mut lease);
    assert_eq!(lease["metadata"]["creationTimestamp"], "2024-01-01T00:00:00Z");
    assert_eq!(lease["spec"]["renewTime"], "2024-01-01T00:00:00.000000Z");
    let bad = check(POD, &json!({"metadata": {"creationTimestamp": "now"}}));
    assert_eq!(bad.type_errors.len(), 1);
    assert!(bad.type_errors[0].starts_with("parsing time \"now\""));
}

#[test]
fn open_objects_keep_unknown_fields() {
    let mut revision = json!({"data": {"anything": [1, null, {"x": null}]}, "revision": 1});
    let before = revision.clone();
    assert!(check("io.k8s.api.apps.v1.ControllerRevision", &revision).is_empty());
    drop_unknown("io.k8s.api.apps.v1.ControllerRevision", &mut revision);
    assert_eq!(revision, before);
}

#[test]
fn duplicate_keys_are_found_in_the_text() {
    let text = br#"{"a": 1, "spec": {"x": [{"n": 1, "n": 2}], "x": []}, "a": {"b": 1}}"#;
    assert_eq!(
        duplicate_fields(text),
        ["duplicate field \"spec.x[0].n\"", "duplicate field \"spec.x\"", "duplicate field \"a\""]
    );
    assert!(duplicate_fields(b"{\"a\": 1, \"b\": [1, 1]}").is_empty());
    assert!(duplicate_fields(b"{not json").is_empty());
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let key = prop_oneof![
            Just("spec".to_owned()),
            Just("metadata".to_owned()),
            Just("containers".to_owned()),
            Just("template".to_owned()),
            Just("labels".to_owned()),
            Just("name".to_owned()),
            "[a-z]{1,3}",
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    /// For any input there is no panic, no unknown field is left, and one pass drops them all.
    #[test]
    fn after_dropping_nothing_unknown_is_left(mut object in json_value()) {
        drop_unknown(DEPLOYMENT, &mut object);
        prop_assert_eq!(check(DEPLOYMENT, &object).unknown_fields, Vec::<String>::new());
        let again = object.clone();
        drop_unknown(DEPLOYMENT, &mut object);
        prop_assert_eq!(object, again);
    }
}
