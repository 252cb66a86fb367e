//! Targets for the kubelet: pod specs, container logs, and the streams of clients.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Service};
use kubelet_agent::cri_log::{self, Renderer, Selection, tail_offset};
use kubelet_agent::pod::env::{self, EnvContext, Sources, environment, expand};
use kubelet_agent::pod::spec::{ContainerInput, container_config, sub_path};
use kubelet_agent::pod::{self, Role, resources, unsupported};
use kubelet_agent::volumes::{Content, contents, references};
use kubelet_agent::{limits, parsers};

use crate::{choice, parts};

/// Input: a pod, and the ConfigMap, Secret and Service that it may refer to. What containers get is limited
/// and stays within its volume.
pub fn pod(bytes: &[u8]) {
    let [pod, config, secret, service] = parts::<4>(bytes);
    escaped(&String::from_utf8_lossy(pod));
    let Ok(pod) = serde_json::from_slice::<Pod>(pod) else { return };
    let sources = Sources {
        config_maps: named(serde_json::from_slice::<ConfigMap>(config).ok()),
        secrets: named(serde_json::from_slice::<Secret>(secret).ok()),
        services: serde_json::from_slice::<Service>(service).ok().into_iter().map(Arc::new).collect(),
        tokens: references(&pod).tokens.into_iter().map(|key| (key, "token".to_owned())).collect(),
        ..Sources::default()
    };
    let ips = ["10.0.0.2".to_owned(), "fd00::2".to_owned()];
    let context = EnvContext { pod_ips: &ips, host_ips: &ips, allocatable: None };
    let _ = unsupported::unsupported_field(&pod);
    let _ = unsupported::check_sandbox(&pod);
    for (role, container) in pod::all_containers(&pod) {
        started(&pod, role, container, &sources, &context);
    }
    let Ok(volumes) = contents(&pod, &sources, &context) else { return };
    let mut size = 0;
    for content in volumes.values() {
        let Content::Files { files, .. } = content else { continue };
        for (path, file) in files {
            size += file.content.len();
            let parts = parsers::beneath(path).unwrap_or_else(|| panic!("{path:?} leaves its volume"));
            assert_eq!(parts.join("/"), *path, "one file has one path");
        }
    }
    assert!(size <= limits::VOLUME_FILES, "{size} bytes of files");
}

/// Returns a map with an object under the only name by which pods can refer to it.
fn named<T>(object: Option<T>) -> BTreeMap<String, Arc<T>> {
    object.into_iter().map(|object| ("o".to_owned(), Arc::new(object))).collect()
}

/// Computes the configuration of a container.
fn started(pod: &Pod, role: Role, container: &Container, sources: &Sources, context: &EnvContext<'_>) {
    let Ok(environment) = environment(pod, container, sources, context) else { return };
    let mut size: usize = environment.iter().map(|(name, value)| env::size(name, value)).sum();
    assert!(size <= limits::ARGUMENTS, "{size} bytes of environment");
    let variables: BTreeMap<String, String> = environment.iter().cloned().collect();
    assert_eq!(variables.len(), environment.len(), "a variable is set twice");
    for mount in container.volume_mounts.iter().flatten() {
        let Ok(Some(path)) = sub_path(mount, &variables) else { continue };
        let parts = parsers::beneath(&path).unwrap_or_else(|| panic!("{path:?} leaves its volume"));
        assert!(parts.iter().all(|part| part != ".."), "{path:?}");
    }
    let config = container_config(ContainerInput {
        pod,
        role,
        container,
        attempt: 0,
        image: "sha256:1",
        environment,
        mounts: Vec::new(),
        resources: resources::container_resources(pod, container, 1 << 30),
        target: None,
        seccomp_profiles: Path::new("/profiles"),
    });
    let Ok(config) = config else { return };
    size += config.command.iter().chain(&config.args).map(String::len).sum::<usize>();
    assert!(size <= limits::ARGUMENTS, "{size} bytes of environment and arguments");
}

/// Checks that text with doubled dollar signs expands to itself.
fn escaped(text: &str) {
    let expanded = expand(&text.replace('$', "$$"), &BTreeMap::new(), text.len());
    assert_eq!(expanded.as_deref(), Ok(text));
}

/// Input: a byte that chooses the options, a byte for a number, and a log.
pub fn container_log(bytes: &[u8]) {
    let (how, rest) = choice(bytes);
    let (number, log) = choice(rest);
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        let Some(read) = cri_log::parse(line) else { continue };
        let begin = format!("{} {} ", read.time, read.stream);
        assert!(line.starts_with(begin.trim_end_matches(' ').as_bytes()), "{read:?}");
        assert!(line.strip_suffix(b"\n").unwrap_or(line).ends_with(read.text), "{read:?}");
    }
    let since = (how & 2 != 0).then_some(jiff::Timestamp::UNIX_EPOCH);
    let selection = Selection { since, timestamps: how & 1 != 0, limit: None };
    let whole = rendered(log, selection);
    assert!(whole.len() <= log.len() + 1, "no more than a newline is added");
    let limit = u64::from(number) * 8;
    let cut = rendered(log, Selection { limit: Some(limit), ..selection });
    assert_eq!(cut, &whole[..whole.len().min(usize::from(number) * 8)], "the limit cuts, and nothing else");

    let lines = usize::from(number % 16);
    let (offset, earlier) = (tail_offset(log, lines), tail_offset(log, lines + 1));
    assert!(earlier <= offset && offset <= log.len());
    assert!(lines == 0 || offset == 0 || log[offset - 1] == b'\n', "a line begins in its middle");
    let plain = rendered(log, Selection::default());
    assert!(plain.ends_with(&rendered(&log[offset..], Selection::default())), "a tail is a tail");
}

fn rendered(log: &[u8], selection: Selection) -> Vec<u8> {
    let (mut renderer, mut output) = (Renderer::new(selection), Vec::new());
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        renderer.render(line, &mut output);
    }
    assert_eq!(renderer.is_full(), selection.limit.is_some_and(|limit| output.len() as u64 >= limit));
    output
}

/// Input: a byte for the size of the pieces, and WebSocket frames.
pub fn frames(bytes: &[u8]) {
    let (size, frames) = choice(bytes);
    let passed = parsers::without_close_messages([frames]);
    assert!(passed.len() <= frames.len(), "nothing is added");
    let pieces = frames.chunks(usize::from(size).max(1));
    assert_eq!(parsers::without_close_messages(pieces), passed, "pieces of {size}");
    assert_eq!(parsers::without_close_messages([passed.as_slice()]), passed, "nothing is left to drop");
}
