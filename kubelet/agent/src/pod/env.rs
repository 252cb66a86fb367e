//! Environment variables of a container: services, `envFrom`, `env`, and the references_are_expanded_unless_unknown_or_escaped of `$(NAME)`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::{
    api::core::v1::{
        ConfigMap, Container, EnvVarSource, ObjectFieldSelector, PersistentVolume, Pod,
        ResourceFieldSelector, Secret, Service,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use super::{container as find_container, name, namespace, resources, spec, uid};
use crate::limits;

/// Audience and lifetime of a service account token that a pod requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenKey {
    /// Audience; the API server if empty.
    pub audience: String,
    /// Lifetime in seconds.
    pub expiration: i64,
}

/// Current objects that a pod refers to. Objects that are missing here do not exist.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// ConfigMaps of the pod's namespace, by name.
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    /// Secrets of the pod's namespace, by name.
    pub secrets: BTreeMap<String, Arc<Secret>>,
    /// Services of the pod's namespace, and `default/kubernetes`.
    pub services: Vec<Arc<Service>>,
    /// Service account tokens, by audience and lifetime.
    pub tokens: BTreeMap<TokenKey, String>,
    /// Volumes that are bound to the claims of the pod, by the name of the claim.
    pub claims: BTreeMap<String, Arc<PersistentVolume>>,
}

/// Facts about the pod's environment that its variables may refer to.
#[derive(Clone, Debug, Default)]
pub struct EnvContext<'a> {
    /// Addresses of the pod, primary IP family first.
    pub pod_ips: &'a [String],
    /// Addresses of the node, primary IP family first.
    pub host_ips: &'a [String],
    /// `status.allocatable` of the node, used as the limit of containers without one.
    pub allocatable: Option<&'a BTreeMap<String, Quantity>>,
}

/// A variable cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    #[error("configmap \"{0}\" not found")]
    ConfigMap(String),
    #[error("secret \"{0}\" not found")]
    Secret(String),
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    Key { kind: &'static str, namespace: String, name: String, key: String },
    #[error("field path {0} is not supported")]
    Field(String),
    #[error("resource {0} is not supported")]
    Resource(String),
    #[error(
        "environment and arguments take more than the {} bytes that the kernel gives to a process; use fewer or \
         shorter variables and references to them",
        limits::ARGUMENTS
    )]
    TooLong,
}

/// Returns all variables of a container. Of several variables with the same name, the last one wins.
pub fn environment(
    pod: &Pod,
    container: &Container,
    sources: &Sources,
    context: &EnvContext<'_>,
) -> Result<Vec<(String, String)>, EnvError> {
    let mut variables = Variables::new();
    let links = spec(pod).enable_service_links.unwrap_or(true);
    for service in &sources.services {
        let of_apiserver = service.metadata.name.as_deref() == Some("kubernetes")
            && service.metadata.namespace.as_deref() == Some("default");
        if links || of_apiserver {
            service_variables(service, &mut variables)?;
        }
    }
    from_whole_objects(container, sources, &mut variables)?;
    for entry in container.env.iter().flatten() {
        let value = match (&entry.value, &entry.value_from) {
            (Some(value), _) => Some(expand(value, &variables.by_name, variables.room)?),
            (None, Some(source)) => referenced(pod, container, source, sources, context)?,
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            variables.set(&entry.name, value)?;
        }
    }
    Ok(variables.into_list())
}

/// Expands `$(NAME)` to the value of the variable; `$$` is a dollar sign, and references to unknown variables
/// are left as they are. Fails if the result is longer than `room` bytes.
pub fn expand(text: &str, variables: &BTreeMap<String, String>, room: usize) -> Result<String, EnvError> {
    let expanded = expand_with(text, room, |name, result| match variables.get(name) {
        Some(value) => result.push_str(value),
        None => result.extend(["$(", name, ")"]),
    });
    expanded.ok_or(EnvError::TooLong)
}

/// Like [`expand`] for a path, but references to unknown or empty variables are errors.
pub fn expand_path(text: &str, variables: &BTreeMap<String, String>) -> Result<String, String> {
    let mut missing = BTreeSet::new();
    let expanded = expand_with(text, limits::PATH, |name, result| match variables.get(name) {
        Some(value) if !value.is_empty() => result.push_str(value),
        _ => {
            missing.insert(name.to_owned());
        }
    });
    if !missing.is_empty() {
        return Err(format!("missing value for {}", missing.into_iter().collect::<Vec<_>>().join(", ")));
    }
    expanded.ok_or_else(|| format!("the path has more than {} bytes", limits::PATH))
}

/// Returns `None` as soon as the result exceeds `room` bytes: since values may themselves consist of
/// references, the result can grow exponentially.
fn expand_with(text: &str, room: usize, mut append: impl FnMut(&str, &mut String)) -> Option<String> {
    let mut result = String::with_capacity(text.len().min(room));
    let mut rest = text;
    while let Some(index) = rest.find('$') {
        result.push_str(&rest[..index]);
        rest = &rest[index + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            result.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            append(name, &mut result);
            rest = after;
        } else {
            result.push('$');
        }
        if result.len() > room {
            return None;
        }
    }
    result.push_str(rest);
    (result.len() <= room).then_some(result)
}

/// Returns the bytes that a variable takes in the environment of a process.
pub fn size(name: &str, value: &str) -> usize {
    name.len() + "=".len() + value.len() + limits::ARGUMENT_OVERHEAD
}

/// Variables in the order in which they were first set.
struct Variables {
    order: Vec<String>,
    by_name: BTreeMap<String, String>,
    /// Bytes that are left for further variables.
    room: usize,
}

impl Variables {
    fn new() -> Self {
        Self { order: Vec::new(), by_name: BTreeMap::new(), room: limits::ARGUMENTS }
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), EnvError> {
        let before = self.by_name.get(name).map_or(0, |before| size(name, before));
        self.room = (self.room + before).checked_sub(size(name, &value)).ok_or(EnvError::TooLong)?;
        if self.by_name.insert(name.to_owned(), value).is_none() {
            self.order.push(name.to_owned());
        }
        Ok(())
    }

    fn into_list(mut self) -> Vec<(String, String)> {
        self.order
            .into_iter()
            .filter_map(|name| self.by_name.remove(&name).map(|value| (name, value)))
            .collect()
    }
}

fn service_variables(service: &Service, variables: &mut Variables) -> Result<(), EnvError> {
    let Some(spec) = &service.spec else { return Ok(()) };
    let Some(address) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else {
        return Ok(());
    };
    let ports = spec.ports.as_deref().unwrap_or_default();
    let Some(first) = ports.first() else { return Ok(()) };
    let upper = |text: &str| text.to_uppercase().replace('-', "_");
    let prefix = upper(service.metadata.name.as_deref().unwrap_or_default());
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    let mut set = |suffix: &str, value: String| variables.set(&format!("{prefix}_{suffix}"), value);
    set("SERVICE_HOST", address.to_owned())?;
    set("SERVICE_PORT", first.port.to_string())?;
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            set(&format!("SERVICE_PORT_{}", upper(name)), port.port.to_string())?;
        }
    }
    let protocol = |port: &k8s_openapi::api::core::v1::ServicePort| {
        port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())
    };
    let url = |port| format!("{}://{host}:{}", protocol(port).to_lowercase(), port.port);
    set("PORT", url(first))?;
    for port in ports {
        let name = format!("PORT_{}_{}", port.port, protocol(port).to_uppercase());
        set(&name, url(port))?;
        set(&format!("{name}_PROTO"), protocol(port).to_lowercase())?;
        set(&format!("{name}_PORT"), port.port.to_string())?;
        set(&format!("{name}_ADDR"), address.to_owned())?;
    }
    Ok(())
}

fn from_whole_objects(
    container: &Container,
    sources: &Sources,
    variables: &mut Variables,
) -> Result<(), EnvError> {
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let mut set = |key: &str, value: String| {
            let name = format!("{prefix}{key}");
            // Skip names that no process could read.
            if !name.is_empty() && !name.contains(['=', '\0']) {
                variables.set(&name, value)?;
            }
            Ok(())
        };
        if let Some(reference) = &from.config_map_ref {
            match sources.config_maps.get(&reference.name) {
                Some(object) => {
                    object.data.iter().flatten().try_for_each(|(key, value)| set(key, value.clone()))?;
                }
                None if reference.optional == Some(true) => {}
                None => return Err(EnvError::ConfigMap(reference.name.clone())),
            }
        }
        if let Some(reference) = &from.secret_ref {
            match sources.secrets.get(&reference.name) {
                Some(object) => {
                    let mut data = object.data.iter().flatten();
                    data.try_for_each(|(key, value)| {
                        set(key, String::from_utf8_lossy(&value.0).into_owned())
                    })?;
                }
                None if reference.optional == Some(true) => {}
                None => return Err(EnvError::Secret(reference.name.clone())),
            }
        }
    }
    Ok(())
}

/// Returns the value behind a reference; `None` if the reference is optional and the object or key does not
/// exist.
fn referenced(
    pod: &Pod,
    container: &Container,
    source: &EnvVarSource,
    sources: &Sources,
    context: &EnvContext<'_>,
) -> Result<Option<String>, EnvError> {
    let missing_key = |kind, name: &str, key: &str| EnvError::Key {
        kind,
        namespace: namespace(pod).to_owned(),
        name: name.to_owned(),
        key: key.to_owned(),
    };
    if let Some(selector) = &source.config_map_key_ref {
        let object = sources.config_maps.get(&selector.name);
        let value = object.and_then(|object| object.data.as_ref()?.get(&selector.key).cloned());
        return match (object, value) {
            (_, Some(value)) => Ok(Some(value)),
            _ if selector.optional == Some(true) => Ok(None),
            (None, None) => Err(EnvError::ConfigMap(selector.name.clone())),
            (Some(_), None) => Err(missing_key("ConfigMap", &selector.name, &selector.key)),
        };
    }
    if let Some(selector) = &source.secret_key_ref {
        let object = sources.secrets.get(&selector.name);
        let value = object.and_then(|object| object.data.as_ref()?.get(&selector.key));
        return match (object, value) {
            (_, Some(value)) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
            _ if selector.optional == Some(true) => Ok(None),
            (None, None) => Err(EnvError::Secret(selector.name.clone())),
            (Some(_), None) => Err(missing_key("Secret", &selector.name, &selector.key)),
        };
    }
    if let Some(field) = &source.field_ref {
        return field_value(pod, field, context).map(Some);
    }
    if let Some(resource) = &source.resource_field_ref {
        return resource_value(pod, container, resource, context).map(Some);
    }
    Ok(Some(String::new()))
}

/// Returns the value of a field of the pod.
pub fn field_value(
    pod: &Pod,
    field: &ObjectFieldSelector,
    context: &EnvContext<'_>,
) -> Result<String, EnvError> {
    let path = field.field_path.as_str();
    let metadata = &pod.metadata;
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let entries = match map {
            "metadata.labels" => &metadata.labels,
            "metadata.annotations" => &metadata.annotations,
            _ => return Err(EnvError::Field(path.to_owned())),
        };
        return Ok(entries.as_ref().and_then(|entries| entries.get(key)).cloned().unwrap_or_default());
    }
    let first = |list: &[String]| list.first().cloned().unwrap_or_default();
    Ok(match path {
        "metadata.name" => name(pod).to_owned(),
        "metadata.namespace" => namespace(pod).to_owned(),
        "metadata.uid" => uid(pod).to_owned(),
        "metadata.labels" => lines(metadata.labels.as_ref()),
        "metadata.annotations" => lines(metadata.annotations.as_ref()),
        "spec.nodeName" => spec(pod).node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => spec(pod).service_account_name.clone().unwrap_or_default(),
        "status.podIP" => first(context.pod_ips),
        "status.podIPs" => context.pod_ips.join(","),
        "status.hostIP" => first(context.host_ips),
        "status.hostIPs" => context.host_ips.join(","),
        _ => return Err(EnvError::Field(path.to_owned())),
    })
}

/// Formats entries as lines of `key="value"`, sorted by key.
fn lines(entries: Option<&BTreeMap<String, String>>) -> String {
    let line = |(key, value): (&String, &String)| format!("{key}={value:?}");
    entries.into_iter().flatten().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the value of a request or limit in units of the divisor, rounded up.
pub fn resource_value(
    pod: &Pod,
    container: &Container,
    selector: &ResourceFieldSelector,
    context: &EnvContext<'_>,
) -> Result<String, EnvError> {
    let unknown = || EnvError::Resource(selector.resource.clone());
    let container = match selector.container_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => find_container(pod, name).map(|(_, container)| container).ok_or_else(unknown)?,
        None => container,
    };
    let (kind, resource) = selector.resource.split_once('.').ok_or_else(unknown)?;
    let scale = |quantity: &Quantity| resources::scaled(quantity, resource);
    let of_node = || context.allocatable.and_then(|list| list.get(resource)).and_then(scale);
    let amount = match kind {
        "limits" => resources::limit(container, resource).or_else(of_node).unwrap_or_default(),
        "requests" => resources::request(container, resource).unwrap_or_default(),
        _ => return Err(unknown()),
    };
    let unit = if resource == "cpu" { 1000 } else { 1 };
    let divisor = selector.divisor.as_ref().and_then(scale).filter(|divisor| *divisor > 0).unwrap_or(unit);
    Ok(u64::try_from(amount).unwrap_or_default().div_ceil(divisor.unsigned_abs()).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::testing::pod;

    fn sources() -> Sources {
        let config: ConfigMap =
            serde_json::from_value(json!({"data": {"COLOR": "red", "SIZE": "xl"}})).unwrap();
        let secret: Secret = serde_json::from_value(json!({"data": {"PASSWORD": "aHVudGVyMg=="}})).unwrap();
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "my-db", "namespace": "shop"},
            "spec": {"clusterIP": "10.96.0.7", "ports": [{"name": "sql", "port": 5432}]},
        }))
        .unwrap();
        Sources {
            config_maps: BTreeMap::from([("config".to_owned(), Arc::new(config))]),
            secrets: BTreeMap::from([("secret".to_owned(), Arc::new(secret))]),
            services: vec![Arc::new(service)],
            ..Sources::default()
        }
    }

    fn variables(container: Value) -> Result<BTreeMap<String, String>, EnvError> {
        let mut pod = pod(json!({"containers": [container], "nodeName": "n1"}));
        pod.metadata.labels = Some(BTreeMap::from([("app".to_owned(), "web".to_owned())]));
        let container = spec(&pod).containers[0].clone();
        let context = EnvContext {
            pod_ips: &["10.0.0.2".to_owned(), "fd00::2".to_owned()],
            host_ips: &["192.0.2.1".to_owned()],
            allocatable: Some(&BTreeMap::from([("cpu".to_owned(), Quantity("4".to_owned()))])),
        };
        Ok(environment(&pod, &container, &sources(), &context)?.into_iter().collect())
    }

    #[test]
    fn references_are_expanded_unless_unknown_or_escaped() {
        let known = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        for (text, expected) in [
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("$", "$"),
        ] {
            assert_eq!(expand(text, &known, 100).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn expansion_fails_beyond_the_given_length() {
        let known = BTreeMap::from([("A".to_owned(), "12345".to_owned())]);
        assert_eq!(expand("$(A)x$(A)", &known, 11).as_deref(), Ok("12345x12345"));
        assert_eq!(expand("$(A)x$(A)", &known, 10), Err(EnvError::TooLong));
        assert_eq!(expand("12345678901", &known, 10), Err(EnvError::TooLong));
        let path = "$(A)/".repeat(limits::PATH / 6 + 1);
        assert!(expand_path(&path, &known).unwrap_err().contains("4096 bytes"));
    }

    #[test]
    fn exponentially_growing_variables_are_refused() {
        let mut env = vec![json!({"name": "V0", "value": "x".repeat(1024)})];
        env.extend((1..20).map(|n| {
            let value = format!("$(V{0})$(V{0})", n - 1);
            json!({"name": format!("V{n}"), "value": value})
        }));
        assert_eq!(variables(json!({"name": "a", "env": env})), Err(EnvError::TooLong));
        assert!(variables(json!({"name": "a", "env": env[..10]})).is_ok());
        // Without doubling in each step, many variables may still repeat a long one.
        let mut env = vec![json!({"name": "LONG", "value": "x".repeat(100_000)})];
        env.extend((0..100).map(|n| json!({"name": format!("V{n}"), "value": "$(LONG)"})));
        assert_eq!(variables(json!({"name": "a", "env": env})), Err(EnvError::TooLong));
        // Setting a variable again frees the bytes of its old value.
        let again: Vec<_> = (0..100).map(|_| json!({"name": "SAME", "value": "$(LONG)"})).collect();
        let env = [&env[..1], &again].concat();
        assert!(variables(json!({"name": "a", "env": env})).is_ok());
    }

    #[test]
    fn later_variables_win_and_can_refer_to_earlier_ones() {
        let variables = variables(json!({"name": "a",
            "envFrom": [{"configMapRef": {"name": "config"}}, {"prefix": "S_", "secretRef": {"name": "secret"}}],
            "env": [{"name": "SIZE", "value": "s"}, {"name": "BOTH", "value": "$(COLOR)-$(SIZE)-$(S_PASSWORD)"},
                    {"name": "URL", "value": "$(MY_DB_PORT)"}],
        }))
        .unwrap();
        assert_eq!(variables["BOTH"], "red-s-hunter2");
        assert_eq!(variables["URL"], "tcp://10.96.0.7:5432");
        assert_eq!(variables["MY_DB_SERVICE_PORT_SQL"], "5432");
        assert_eq!(variables["MY_DB_PORT_5432_TCP_ADDR"], "10.96.0.7");
    }

    #[test]
    fn fields_and_resources_are_resolved() {
        let field =
            |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let resource = |name: &str, resource: &str, divisor: &str| json!({"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}});
        let variables = variables(json!({"name": "a",
            "resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "250m"}},
            "env": [field("NAME", "metadata.name"), field("APP", "metadata.labels['app']"),
                    field("IPS", "status.podIPs"), field("HOST", "status.hostIP"), field("NODE", "spec.nodeName"),
                    resource("MI", "limits.memory", "1Mi"), resource("CPU", "requests.cpu", "0"),
                    resource("MILLI", "requests.cpu", "1m"), resource("ALL", "limits.cpu", "1")],
        }))
        .unwrap();
        for (name, value) in [
            ("NAME", "web"),
            ("APP", "web"),
            ("IPS", "10.0.0.2,fd00::2"),
            ("HOST", "192.0.2.1"),
            ("NODE", "n1"),
            ("MI", "64"),
            ("CPU", "1"),
            ("MILLI", "250"),
            ("ALL", "4"),
        ] {
            assert_eq!(variables[name], value, "{name}");
        }
    }

    #[test]
    fn references_to_missing_objects_fail_unless_optional() {
        let key = |name: &str, key: &str, optional: bool| {
            json!({"name": "a", "env": [{"name": "X", "valueFrom":
                {"configMapKeyRef": {"name": name, "key": key, "optional": optional}}}]})
        };
        assert_eq!(variables(key("none", "k", false)), Err(EnvError::ConfigMap("none".into())));
        let error = variables(key("config", "k", false)).unwrap_err();
        assert_eq!(error.to_string(), "couldn't find key k in ConfigMap shop/config");
        assert!(!variables(key("config", "k", true)).unwrap().contains_key("X"));
        let whole = json!({"name": "a", "envFrom": [{"secretRef": {"name": "none"}}]});
        assert_eq!(variables(whole), Err(EnvError::Secret("none".into())));
    }
}
