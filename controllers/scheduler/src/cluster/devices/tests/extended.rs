//! Resources that a class of devices serves.

use std::sync::Arc;

use serde_json::{Value, from_value, json};

use super::super::serve;
use crate::cluster::DeviceClasses;

#[test]
fn sums_of_the_largest_requests_do_not_overflow() {
    let mut classes = DeviceClasses::default();
    let class = json!({"metadata": {"name": "c"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    classes.set(Arc::new(from_value(class).unwrap()));
    let container = |name: &str, less: i64| -> Value {
        let amount = (i64::MAX - less).to_string();
        json!({"name": name, "resources": {"requests": {"example.com/gpu": amount}}})
    };
    let spec = json!({
        "initContainers": [container("i", 0)],
        "containers": [container("a", 1), container("b", 1)],
    });
    let served = serve(&from_value(spec).unwrap(), ["example.com/gpu"].into_iter(), &classes);
    // The init container has what both others have later, which is more than it asks for.
    let mapped: Vec<_> = served.mappings.iter().filter(|mapping| mapping.container_name == "i").collect();
    assert_eq!((served.requests.len(), mapped.len()), (2, 2));
}

/// The classes `c` of `example.com/gpu` and `d` of `example.com/nic`, as far as their names are given.
fn classes(names: &[&str]) -> DeviceClasses {
    let mut classes = DeviceClasses::default();
    for (name, resource) in [("c", "example.com/gpu"), ("d", "example.com/nic")] {
        if names.contains(&name) {
            let class = json!({"metadata": {"name": name}, "spec": {"extendedResourceName": resource}});
            classes.set(Arc::new(from_value(class).unwrap()));
        }
    }
    classes
}

/// Returns the requests, and who has what of them, of a pod with these containers: `init`, `sidecar` or `main`, and what they
/// request as `gpu=1 nic=2`, where `D` is the resource that the class `d` serves without saying so.
fn served(containers: &[(&str, &str)], resources: &[&str], names: &[&str]) -> [String; 2] {
    let full = |resource: &str| match resource {
        "D" => "deviceclass.resource.kubernetes.io/d".to_owned(),
        resource => format!("example.com/{resource}"),
    };
    let container = |(index, (kind, requests)): (usize, &(&str, &str))| {
        let request = |text: &str| {
            let (resource, amount) = text.split_once('=').unwrap();
            (full(resource), json!(amount))
        };
        let requests: serde_json::Map<String, Value> = requests.split(' ').map(request).collect();
        let mut container = json!({"name": format!("{kind}{index}"), "resources": {"requests": requests}});
        if *kind == "sidecar" {
            container["restartPolicy"] = json!("Always");
        }
        (*kind == "main", container)
    };
    let (main, init): (Vec<_>, Vec<_>) =
        containers.iter().enumerate().map(container).partition(|(is_main, _)| *is_main);
    let objects = |list: Vec<(bool, Value)>| list.into_iter().map(|(_, object)| object).collect::<Vec<_>>();
    let spec = from_value(json!({"containers": objects(main), "initContainers": objects(init)})).unwrap();
    let resources: Vec<String> = resources.iter().map(|resource| full(resource)).collect();
    let served = serve(&spec, resources.iter().map(String::as_str), &classes(names));
    let short = |text: &str| text.replace("container-", "").replace("-request-", "/");
    let request = |one: &k8s_openapi::api::resource::v1::DeviceRequest| {
        let exactly = one.exactly.as_ref().unwrap();
        assert_eq!(exactly.allocation_mode.as_deref(), Some("ExactCount"));
        format!("{}={}*{}", short(&one.name), exactly.device_class_name, exactly.count.unwrap())
    };
    let requests: Vec<String> = served.requests.iter().map(request).collect();
    let mapping = |one: &k8s_openapi::api::core::v1::ContainerExtendedResourceRequest| {
        let resource = one.resource_name.rsplit('/').next().unwrap();
        format!("{}:{resource}={}", one.container_name, short(&one.request_name))
    };
    let mut mappings: Vec<String> = served.mappings.iter().map(mapping).collect();
    mappings.sort_unstable();
    [requests.join(" "), mappings.join(" ")]
}

#[test]
fn requests_are_numbered_by_container_and_resource() {
    let (both, classes) = (&["gpu", "nic"], &["c", "d"]);
    let one = &[("main", "gpu=1 nic=2")];
    assert_eq!(served(one, &[], &[]), ["", ""], "nothing is to be served");
    let gpu = ["0/0=c*1", "main0:gpu=0/0"];
    assert_eq!(served(one, &["gpu"], &["c"]), gpu, "one of them is");
    assert_eq!(served(one, both, &["c"]), gpu, "no class serves the other");
    assert_eq!(served(one, both, classes), ["0/0=c*1 0/1=d*2", "main0:gpu=0/0 main0:nic=0/1"]);
    let two = &[("main", "gpu=1"), ("main", "nic=2")];
    assert_eq!(served(two, both, classes), ["0/0=c*1 1/0=d*2", "main0:gpu=0/0 main1:nic=1/0"]);
    let implied = &[("init", "nic=1 D=2")];
    let expected = ["0/0=d*2 0/1=d*1", "init0:d=0/0 init0:nic=0/1"];
    assert_eq!(
        served(implied, &["gpu", "nic", "D"], classes),
        expected,
        "a resource by the name of its class"
    );
}

#[test]
fn init_containers_have_the_largest_of_their_requests_in_common() {
    let (both, classes) = (&["gpu", "nic"], &["c", "d"]);
    let one = &[("init", "nic=2"), ("main", "gpu=1")];
    assert_eq!(served(one, both, classes), ["0/0=d*2 1/0=c*1", "init0:nic=0/0 main1:gpu=1/0"]);
    let two = &[("init", "nic=1"), ("init", "nic=2"), ("main", "gpu=1")];
    let expected = ["1/0=d*2 2/0=c*1", "init0:nic=1/0 init1:nic=1/0 main2:gpu=2/0"];
    assert_eq!(served(two, both, classes), expected);
    let implied = &[("init", "nic=1"), ("init", "D=2"), ("main", "gpu=1")];
    let expected = ["0/0=d*1 1/0=d*2 2/0=c*1", "init0:nic=0/0 init1:d=1/0 main2:gpu=2/0"];
    assert_eq!(served(implied, &["gpu", "nic", "D"], classes), expected, "two names are two resources");
    let sidecar = &[("init", "nic=1"), ("sidecar", "nic=1"), ("init", "nic=2"), ("main", "gpu=1")];
    let expected = ["1/0=d*1 2/0=d*2 3/0=c*1", "init0:nic=1/0 init2:nic=2/0 main3:gpu=3/0 sidecar1:nic=1/0"];
    assert_eq!(served(sidecar, both, classes), expected, "what a sidecar keeps is lent before");
}
