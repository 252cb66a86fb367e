//! Reading and writing `KubeProxyConfiguration`.

use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

use crate::kube_proxy::{API_VERSION, KIND, KubeProxyConfiguration};

/// The content of a configuration file.
#[derive(Clone, Debug)]
pub struct File {
    /// The configuration, with the defaults for fields that the file leaves out.
    pub configuration: KubeProxyConfiguration,
    /// Parts that a strict reader refuses. Like kube-proxy, we read such a file nevertheless and report them.
    pub oddities: Vec<Oddity>,
}

/// A part of a file that has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Oddity {
    #[error("unknown field {0}")]
    Unknown(String),
    #[error("duplicate field, the last one is used: {0}")]
    Twice(String),
}

/// The file is not a configuration of kube-proxy.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot parse the configuration as YAML")]
    Yaml(#[source] Box<serde_saphyr::Error>),
    #[error("the configuration is a {found:?}, not a {API_VERSION} {KIND}")]
    Kind { found: String },
    #[error("the configuration is empty; it has to be a {API_VERSION} {KIND}")]
    Empty,
    #[error("the configuration has no apiVersion and kind; it has to be a {API_VERSION} {KIND}")]
    Nameless,
    #[error("a field of the configuration has a value of the wrong type")]
    Field(#[source] serde_json::Error),
    #[error("the configuration cannot be written as YAML")]
    Write(#[source] serde_saphyr::ser::Error),
}

impl File {
    /// Parses the text of a file: YAML or JSON.
    ///
    /// # Errors
    /// Fails if the text is not YAML or not a `KubeProxyConfiguration`, or if a value has the wrong type.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let mut oddities = Vec::new();
        let lenient = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
        let mut value: Value = serde_saphyr::from_str_with_options(text, lenient)
            .map_err(|error| FileError::Yaml(Box::new(error)))?;
        // Plain data accepts every field, so that a second read can fail only because of such fields.
        if let Err(error) = serde_saphyr::from_str::<Value>(text) {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            // The rest of the line is advice to the authors of the program.
            let place = line.split(", set ").next().unwrap_or(line);
            oddities.push(Oddity::Twice(place.to_owned()));
        }
        if value.is_null() {
            return Err(FileError::Empty);
        }
        let of = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
        if (of("apiVersion"), of("kind")) != (API_VERSION, KIND) {
            if of("apiVersion").is_empty() && of("kind").is_empty() {
                return Err(FileError::Nameless);
            }
            return Err(FileError::Kind {
                found: format!("{} {}", of("apiVersion"), of("kind")).trim().to_owned(),
            });
        }
        drop_nulls(&mut value);
        let mut configuration: KubeProxyConfiguration =
            serde_json::from_value(emptied(&value)).map_err(FileError::Field)?;
        // The output has every field of the API, so that a field missing from it is unknown.
        let known = serde_json::to_value(&configuration).map_err(FileError::Field)?;
        unknown(&value, &known, "", &mut oddities);
        configuration.set_defaults();
        Ok(Self { configuration, oddities })
    }
}

/// Returns the configuration with all defaults, as `--write-config-to` writes it.
///
/// # Errors
/// Fails if a value has no form in YAML.
pub fn write(configuration: KubeProxyConfiguration) -> Result<String, FileError> {
    let complete = serde_json::to_value(configuration.complete()).map_err(FileError::Field)?;
    serde_saphyr::to_string(&complete).map_err(FileError::Write)
}

/// Returns a configuration in which omitted fields are empty, not at their defaults, until [`File::parse`]
/// sets those: an empty bind address and an omitted one mean the same.
fn emptied(given: &Value) -> Value {
    let mut full = given.clone();
    if let Value::Object(fields) = &mut full {
        for text in ["bindAddress", "healthzBindAddress", "metricsBindAddress"] {
            fields.entry(text).or_insert_with(|| Value::from(""));
        }
    }
    full
}

/// Removes nulls, which stand for omitted fields.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(elements) => elements.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn unknown(given: &Value, known: &Value, path: &str, oddities: &mut Vec<Oddity>) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            for (name, value) in given {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match known.get(name) {
                    Some(known) => unknown(value, known, &path, oddities),
                    None => oddities.push(Oddity::Unknown(path)),
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (n, (given, known)) in given.iter().zip(known).enumerate() {
                unknown(given, known, &format!("{path}[{n}]"), oddities);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    #[test]
    fn configuration_of_kubeadm_is_read_without_warnings() {
        let text = include_str!("../tests/data/kubeadm.yaml");
        let File { configuration, oddities } = File::parse(text).unwrap();
        assert_eq!(oddities, []);
        assert_eq!(configuration.client_connection.kubeconfig, "/var/lib/kube-proxy/kubeconfig.conf");
        assert_eq!(configuration.cluster_cidr, "10.244.0.0/16");
        assert_eq!(configuration.metrics_bind_address, "127.0.0.1:10249");
        assert_eq!(configuration.iptables.localhost_node_ports, Some(true));
    }

    #[test]
    fn unknown_and_repeated_fields_are_said_and_read_over() {
        let text = format!(
            "{HEAD}mode: ipvs\nudpIdleTimeout: 250ms\nipvs: {{strictARP: true, strictArp: true}}\nmode: nftables\n"
        );
        let File { configuration, oddities } = File::parse(&text).unwrap();
        assert_eq!(configuration.mode, "nftables");
        assert!(configuration.ipvs.strict_arp);
        let unknown: Vec<_> = oddities.iter().filter(|one| matches!(one, Oddity::Unknown(_))).collect();
        let expected = ["ipvs.strictArp", "udpIdleTimeout"].map(|path| Oddity::Unknown(path.to_owned()));
        assert_eq!(unknown, expected.iter().collect::<Vec<_>>());
        assert_eq!(oddities[0], Oddity::Twice("line 6 column 1: duplicate mapping key: mode".to_owned()));
    }

    #[test]
    fn another_kind_and_wrong_types_are_refused() {
        let error = File::parse("apiVersion: v1\nkind: ConfigMap\n").unwrap_err();
        assert!(error.to_string().contains("\"v1 ConfigMap\""), "{error}");
        for empty in ["", "\n", "# nothing\n", "---\n"] {
            assert!(matches!(File::parse(empty), Err(FileError::Empty)), "{empty:?}");
        }
        assert!(matches!(File::parse("mode: ipvs\n"), Err(FileError::Nameless)));
        assert!(matches!(File::parse("{"), Err(FileError::Yaml(_))));
        let wrong = format!("{HEAD}iptables: {{syncPeriod: 30}}\n");
        assert!(matches!(File::parse(&wrong), Err(FileError::Field(_))));
        let wrong = format!("{HEAD}oomScoreAdj: low\n");
        assert!(matches!(File::parse(&wrong), Err(FileError::Field(_))));
    }

    #[test]
    fn written_configuration_is_read_back() {
        let text = write(KubeProxyConfiguration::default()).unwrap();
        let File { configuration, oddities } = File::parse(&text).unwrap();
        assert_eq!(oddities, []);
        assert_eq!(configuration, KubeProxyConfiguration::default().complete());
        // The written configuration is the one that runs, and settings that nobody named are left as they are
        // on the machine.
        let runs = crate::adjust::sysctls(&KubeProxyConfiguration::default().conntrack, 4);
        assert_eq!(crate::adjust::sysctls(&configuration.conntrack, 4), runs);
        assert!(text.contains("maxPerCore: 0") && text.contains("tcpEstablishedTimeout: 0s"), "{text}");
        assert_eq!(crate::notes(&configuration), [], "defaults that are written out mean no less");
    }

    #[test]
    fn json_will_do() {
        let text = r#"{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration",
            "nodePortAddresses":["primary"],"logging":{"vmodule":[{"filePattern":"proxy","verbosity":4}]}}"#;
        let File { configuration, oddities } = File::parse(text).unwrap();
        assert_eq!((configuration.node_port_addresses, oddities), (vec!["primary".to_owned()], vec![]));
        assert_eq!(configuration.logging.vmodule[0].verbosity, 4);
    }
}
