//! Admission, aggregation, flow control, trust, leases and storage versions.

use serde_json::{Value, json};

use super::{AGE, DEFAULT, Layout, NAME, NONE, UNSET, age, condition, count, marked, name, number, text_or};
use apiserver_registry::LabelSelector;
use apiserver_schema::meta;

pub(super) fn layout(group: &str, plural: &str) -> Layout {
    match (group, plural) {
        (_, "mutatingwebhookconfigurations" | "validatingwebhookconfigurations") => WEBHOOKS,
        (_, "validatingadmissionpolicies") => VALIDATING,
        (_, "mutatingadmissionpolicies") => MUTATING,
        (_, "validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings") => BINDINGS,
        (_, "apiservices") => API_SERVICES,
        (_, "flowschemas") => FLOW_SCHEMAS,
        (_, "prioritylevelconfigurations") => LEVELS,
        ("certificates.k8s.io", "clustertrustbundles") => BUNDLES,
        ("certificates.k8s.io", "podcertificaterequests") => POD_REQUESTS,
        ("coordination.k8s.io", "leasecandidates") => CANDIDATES,
        ("internal.apiserver.k8s.io", "storageversions") => STORAGE_VERSIONS,
        ("storagemigration.k8s.io", "storageversionmigrations") => MIGRATIONS,
        ("storage.k8s.io", "volumeattributesclasses") => ATTRIBUTES,
        ("storage.k8s.io", "csistoragecapacities") => CAPACITIES,
        _ => DEFAULT,
    }
}

const WEBHOOKS: Layout = Layout {
    head: &[NAME, ("Webhooks", "integer", 0, "Number of webhooks"), AGE],
    cells: |object, now| vec![name(object), json!(count(object, "/webhooks")), age(object, now)],
};

const PARAM_KIND: super::Head =
    ("ParamKind", "string", 0, "Kind of the objects that it takes parameters from");

fn param_kind(object: &Value) -> Value {
    let field = |field: &str| meta::text(object, &format!("/spec/paramKind/{field}"));
    match field("kind") {
        "" => json!(UNSET),
        kind => json!(format!("{}/{kind}", field("apiVersion"))),
    }
}

const VALIDATING: Layout = Layout {
    head: &[NAME, ("Validations", "integer", 0, "Number of validations"), PARAM_KIND, AGE],
    cells: |object, now| {
        vec![name(object), json!(count(object, "/spec/validations")), param_kind(object), age(object, now)]
    },
};

const MUTATING: Layout = Layout {
    head: &[NAME, ("Mutations", "integer", 0, "Number of mutations"), PARAM_KIND, AGE],
    cells: |object, now| {
        vec![name(object), json!(count(object, "/spec/mutations")), param_kind(object), age(object, now)]
    },
};

const BINDINGS: Layout = Layout {
    head: &[
        NAME,
        ("PolicyName", "string", 0, "Policy that it puts into force"),
        ("ParamRef", "string", 0, "Object that parameters are taken from"),
        AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            text_or(object, "/spec/policyName", ""),
            json!(param_ref(object)),
            age(object, now),
        ]
    },
};

fn param_ref(object: &Value) -> String {
    let Some(parameter) = object.pointer("/spec/paramRef").filter(|p| !p.is_null()) else {
        return UNSET.to_owned();
    };
    let namespace = match meta::text(parameter, "/namespace") {
        "" => "*",
        namespace => namespace,
    };
    let selected = || {
        let selector = parameter.get("selector").and_then(|s| LabelSelector::from_meta(s).ok());
        selector.map(|s| s.to_string()).unwrap_or_default()
    };
    match meta::text(parameter, "/name") {
        "" => selected(),
        name => format!("{namespace}/{name}"),
    }
}

const API_SERVICES: Layout = Layout {
    head: &[
        NAME,
        ("Service", "string", 0, "Service that answers, or Local"),
        ("Available", "string", 0, "Whether it answers"),
        AGE,
    ],
    cells: |object, now| {
        let service = object.pointer("/spec/service").filter(|s| !s.is_null());
        let service = service.map_or("Local".to_owned(), |service| {
            format!("{}/{}", meta::text(service, "/namespace"), meta::text(service, "/name"))
        });
        let available = match condition(object, "Available") {
            None => "Unknown".to_owned(),
            Some(condition) if condition["status"] == "True" => "True".to_owned(),
            Some(condition) => {
                format!("{} ({})", meta::text(condition, "/status"), meta::text(condition, "/reason"))
            }
        };
        vec![name(object), json!(service), json!(available), age(object, now)]
    },
};

const FLOW_SCHEMAS: Layout = Layout {
    head: &[
        NAME,
        ("PriorityLevel", "string", 0, "Priority level of the requests that match"),
        ("MatchingPrecedence", "string", 0, "Which of several that match counts: the lowest"),
        ("DistinguisherMethod", "string", 0, "What flows are told apart by"),
        AGE,
        ("MissingPL", "string", 0, "Whether the priority level is missing"),
    ],
    cells: |object, now| {
        let dangling = condition(object, "Dangling").map_or("?", |c| meta::text(c, "/status"));
        vec![
            name(object),
            text_or(object, "/spec/priorityLevelConfiguration/name", ""),
            number(object, "/spec/matchingPrecedence"),
            text_or(object, "/spec/distinguisherMethod/type", NONE),
            age(object, now),
            json!(dangling),
        ]
    },
};

const LEVELS: Layout = Layout {
    head: &[
        NAME,
        ("Type", "string", 0, "Exempt or Limited"),
        ("NominalConcurrencyShares", "string", 0, "Share of the seats that it has by itself"),
        ("Queues", "string", 0, "Number of queues"),
        ("HandSize", "string", 0, "Queues that a flow may be put in"),
        ("QueueLengthLimit", "string", 0, "Requests that a queue holds"),
        AGE,
    ],
    cells: |object, now| {
        // A level that is exempt shows no seats, although it has some.
        let shown = |pointer: &str| match object.pointer(pointer) {
            Some(Value::Number(number)) => json!(number),
            _ => json!(NONE),
        };
        let queuing = |field: &str| shown(&format!("/spec/limited/limitResponse/queuing/{field}"));
        vec![
            name(object),
            text_or(object, "/spec/type", ""),
            shown("/spec/limited/nominalConcurrencyShares"),
            queuing("queues"),
            queuing("handSize"),
            queuing("queueLengthLimit"),
            age(object, now),
        ]
    },
};

const BUNDLES: Layout = Layout {
    head: &[NAME, ("SignerName", "string", 0, "Signer that the certificates belong to")],
    cells: |object, _| vec![name(object), text_or(object, "/spec/signerName", NONE)],
};

const POD_REQUESTS: Layout = Layout {
    head: &[
        NAME,
        ("PodName", "string", 0, "Pod that the certificate is for"),
        ("ServiceAccountName", "string", 0, "ServiceAccount of the pod"),
        ("NodeName", "string", 0, "Node that asks"),
        ("SignerName", "string", 0, "Who is asked to sign"),
        ("State", "string", 0, "Pending, Issued, Denied or Failed"),
    ],
    cells: |object, _| {
        let ends = ["Issued", "Denied", "Failed"];
        let state = ends.into_iter().find(|kind| condition(object, kind).is_some()).unwrap_or("Pending");
        let text = |field: &str| text_or(object, &format!("/spec/{field}"), "");
        vec![
            name(object),
            text("podName"),
            text("serviceAccountName"),
            text("nodeName"),
            text("signerName"),
            json!(state),
        ]
    },
};

const CANDIDATES: Layout = Layout {
    head: &[
        NAME,
        ("LeaseName", "string", 0, "Lease that it stands for"),
        ("BinaryVersion", "string", 0, "Version of its program"),
        ("EmulationVersion", "string", 0, "Version that it behaves like"),
        AGE,
    ],
    cells: |object, now| {
        let text = |field: &str| text_or(object, &format!("/spec/{field}"), "");
        vec![
            name(object),
            text("leaseName"),
            text("binaryVersion"),
            text("emulationVersion"),
            age(object, now),
        ]
    },
};

const STORAGE_VERSIONS: Layout = Layout {
    head: &[
        NAME,
        ("CommonEncodingVersion", "string", 0, "Version that all servers write"),
        ("StorageVersions", "string", 0, "Versions that each server writes"),
        AGE,
    ],
    cells: |object, now| {
        let servers = meta::list(object, "/status/storageVersions");
        let shown = |server: &Value| {
            format!("{}={}", meta::text(server, "/apiServerID"), meta::text(server, "/encodingVersion"))
        };
        let mut all: Vec<String> = servers.iter().take(3).map(shown).collect();
        if servers.len() > 3 {
            all.push(format!("{} more...", servers.len() - 3));
        }
        vec![
            name(object),
            text_or(object, "/status/commonEncodingVersion", UNSET),
            json!(if all.is_empty() { UNSET.to_owned() } else { all.join(",") }),
            age(object, now),
        ]
    },
};

const MIGRATIONS: Layout = Layout {
    head: &[NAME, ("Resource", "string", 0, "What is written anew"), AGE],
    cells: |object, now| {
        let field = |field: &str| meta::text(object, &format!("/spec/resource/{field}"));
        let shown = match field("group") {
            "" => field("resource").to_owned(),
            group => format!("{}.{group}", field("resource")),
        };
        vec![name(object), json!(shown), age(object, now)]
    },
};

const ATTRIBUTES: Layout = Layout {
    head: &[NAME, ("DriverName", "string", 0, "Driver that the attributes are for"), AGE],
    cells: |object, now| {
        let key = "volumeattributesclass.alpha.kubernetes.io/is-default-class";
        vec![marked(object, &[key]), text_or(object, "/driverName", ""), age(object, now)]
    },
};

const CAPACITIES: Layout = Layout {
    head: &[
        NAME,
        ("StorageClassName", "string", 0, "Class of storage"),
        ("Capacity", "string", 0, "How much there is"),
    ],
    cells: |object, _| {
        let amount = text_or(object, "/capacity", UNSET);
        vec![name(object), text_or(object, "/storageClassName", ""), amount]
    },
};
