//! Translates the security contexts of pods and containers to those of the runtime.

use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile,
};
use kubelet_cri::{Image, SecurityContext, SecurityProfile, SelinuxLabel};

use super::{all_containers, ephemeral_as_container, ephemeral_containers, spec, spec::namespaces};

/// Annotation that specified the AppArmor profile of a container before there was a field.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Paths that are hidden from containers.
const MASKED_PATHS: [&str; 11] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Paths that are read-only in containers.
const READ_ONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Returns the supplementary groups of all processes of a pod.
pub fn groups(context: &PodSecurityContext) -> Vec<i64> {
    context.supplemental_groups.iter().flatten().copied().chain(context.fs_group).collect()
}

/// Returns `true` if supplementary groups that images define are ignored.
pub fn strict_groups(pod: &Pod) -> bool {
    let context = spec(pod).security_context.as_ref();
    context.and_then(|context| context.supplemental_groups_policy.as_deref()) == Some("Strict")
}

/// Returns the SELinux label that a security context asks for.
pub fn selinux(options: Option<&SELinuxOptions>) -> Option<SelinuxLabel> {
    let options = options?.clone();
    Some(SelinuxLabel {
        user: options.user.unwrap_or_default(),
        role: options.role.unwrap_or_default(),
        kind: options.type_.unwrap_or_default(),
        level: options.level.unwrap_or_default(),
    })
}

/// Returns the security context of a container. Localhost seccomp profiles are files below `profiles`.
pub fn security_context(pod: &Pod, container: &Container, profiles: &Path) -> SecurityContext {
    let of_pod = spec(pod).security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let privileged = own.privileged == Some(true);
    let capabilities = own.capabilities.unwrap_or_default();
    let plain = |list: Option<Vec<String>>| -> Vec<String> {
        list.unwrap_or_default().iter().map(|name| name.trim_start_matches("CAP_").to_owned()).collect()
    };
    let hidden = !privileged && own.proc_mount.as_deref() != Some("Unmasked");
    let paths = |list: &[&str]| -> Vec<String> {
        if hidden { list.iter().map(|path| (*path).to_owned()).collect() } else { Vec::new() }
    };
    let wanted = own.seccomp_profile.as_ref().or(of_pod.seccomp_profile.as_ref());
    let seccomp = wanted.map_or(SecurityProfile::Unconfined, |profile| seccomp(profile, profiles));
    SecurityContext {
        add_capabilities: plain(capabilities.add),
        drop_capabilities: plain(capabilities.drop),
        privileged,
        run_as_user: own.run_as_user.or(of_pod.run_as_user),
        run_as_group: own.run_as_group.or(of_pod.run_as_group),
        supplemental_groups: groups(&of_pod),
        strict_groups: strict_groups(pod),
        read_only_root: own.read_only_root_filesystem.unwrap_or_default(),
        no_new_privileges: own.allow_privilege_escalation == Some(false) && !privileged,
        masked_paths: paths(&MASKED_PATHS),
        read_only_paths: paths(&READ_ONLY_PATHS),
        seccomp: Some(if privileged { SecurityProfile::Unconfined } else { seccomp }),
        apparmor: apparmor(pod, container),
        selinux: selinux(own.se_linux_options.as_ref().or(of_pod.se_linux_options.as_ref())),
        namespaces: namespaces(pod),
    }
}

fn seccomp(profile: &SeccompProfile, profiles: &Path) -> SecurityProfile {
    match profile.type_.as_str() {
        "RuntimeDefault" => SecurityProfile::RuntimeDefault,
        "Localhost" => {
            let name = Path::new(profile.localhost_profile.as_deref().unwrap_or_default());
            // Components that lead out of the directory are dropped, like Go's path joining does.
            let parts = name.components().filter(|part| matches!(part, Component::Normal(_)));
            let file: PathBuf = parts.collect();
            SecurityProfile::Localhost(profiles.join(file).to_string_lossy().into_owned())
        }
        _ => SecurityProfile::Unconfined,
    }
}

/// Returns the AppArmor profile of a container: that of its own context, its annotation, or its pod's
/// context.
fn apparmor(pod: &Pod, container: &Container) -> Option<SecurityProfile> {
    let of_field = |profile: &AppArmorProfile| match profile.type_.as_str() {
        "RuntimeDefault" => SecurityProfile::RuntimeDefault,
        "Localhost" => SecurityProfile::Localhost(
            profile.localhost_profile.clone().unwrap_or_default().trim().to_owned(),
        ),
        _ => SecurityProfile::Unconfined,
    };
    let annotation = || {
        let annotations = pod.metadata.annotations.as_ref()?;
        match annotations.get(&format!("{APPARMOR_ANNOTATION}{}", container.name))?.as_str() {
            "runtime/default" => Some(SecurityProfile::RuntimeDefault),
            "unconfined" => Some(SecurityProfile::Unconfined),
            other => other.strip_prefix("localhost/").map(|name| SecurityProfile::Localhost(name.to_owned())),
        }
    };
    let own = container.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    let of_pod = spec(pod).security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    own.map(of_field).or_else(annotation).or_else(|| of_pod.map(of_field))
}

/// Refuses a pod whose AppArmor profiles cannot be enforced; the error is a message for the user.
pub fn check_apparmor(pod: &Pod, enabled: bool) -> Result<(), String> {
    let ephemeral: Vec<Container> = ephemeral_containers(pod).map(ephemeral_as_container).collect();
    let mut containers = all_containers(pod).map(|(_, container)| container).chain(&ephemeral);
    containers.try_for_each(|container| check_apparmor_of(pod, container, enabled))
}

/// Refuses a container whose AppArmor profile cannot be enforced; the error is a message for the user.
pub fn check_apparmor_of(pod: &Pod, container: &Container, enabled: bool) -> Result<(), String> {
    let why = match apparmor(pod, container) {
        None | Some(SecurityProfile::Unconfined) => return Ok(()),
        _ if !enabled => "AppArmor is not enabled on the host",
        Some(SecurityProfile::Localhost(name)) if name.is_empty() => "invalid empty AppArmor profile name",
        Some(_) => return Ok(()),
    };
    Err(format!("Cannot enforce AppArmor: {why}"))
}

/// Checks that an image may be used by a container with `runAsNonRoot`; the error is a message for the user.
pub fn verify_non_root(pod: &Pod, container: &Container, image: &Image) -> Result<(), String> {
    let of_pod = spec(pod).security_context.as_ref();
    let own = container.security_context.as_ref();
    let required = own.and_then(|c| c.run_as_non_root).or_else(|| of_pod.and_then(|c| c.run_as_non_root));
    if required != Some(true) {
        return Ok(());
    }
    let user = own.and_then(|c| c.run_as_user).or_else(|| of_pod.and_then(|c| c.run_as_user));
    match (user, image.uid, image.username.as_str()) {
        (Some(0), _, _) => Err("container's runAsUser breaks non-root policy".to_owned()),
        (Some(_), _, _) => Ok(()),
        (None, Some(uid), _) if uid != 0 => Ok(()),
        (None, None, user) if !user.is_empty() => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
        )),
        (None, _, _) => Err("container has runAsNonRoot and image will run as root".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::testing::pod;

    #[test]
    fn run_as_non_root_is_verified_against_pod_and_image() {
        let verdict = |user: Option<i64>, image: Image| {
            let pod = pod(
                json!({"securityContext": {"runAsNonRoot": true, "runAsUser": user}, "containers": [{"name": "a"}]}),
            );
            verify_non_root(&pod, &spec(&pod).containers[0], &image).is_ok()
        };
        let numbered = |uid| Image { uid: Some(uid), ..Image::default() };
        assert!(verdict(Some(7), numbered(0)) && verdict(None, numbered(7)));
        assert!(
            !verdict(Some(0), numbered(7)) && !verdict(None, numbered(0)) && !verdict(None, Image::default())
        );
        assert!(!verdict(None, Image { username: "web".into(), ..Image::default() }));
    }

    fn context(of_pod: Value, own: Value) -> SecurityContext {
        let pod =
            pod(json!({"securityContext": of_pod, "containers": [{"name": "a", "securityContext": own}]}));
        security_context(&pod, &spec(&pod).containers[0], Path::new("/profiles"))
    }

    #[test]
    fn profiles_and_labels_reach_the_runtime() {
        let wanted = json!({
            "seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"},
            "appArmorProfile": {"type": "Localhost", "localhostProfile": "mine"},
            "seLinuxOptions": {"type": "t", "level": "s0"},
        });
        for context in [context(wanted.clone(), json!({})), context(json!({}), wanted)] {
            assert_eq!(context.seccomp, Some(SecurityProfile::Localhost("/profiles/a/b.json".into())));
            assert_eq!(context.apparmor, Some(SecurityProfile::Localhost("mine".into())));
            let label = SelinuxLabel { kind: "t".into(), level: "s0".into(), ..SelinuxLabel::default() };
            assert_eq!(context.selinux, Some(label));
        }
        assert!(context(json!({"supplementalGroupsPolicy": "Strict"}), json!({})).strict_groups);
        let profile = |path: &str| {
            let wanted = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": path}});
            context(wanted, json!({})).seccomp
        };
        for path in ["/etc/x", "../../etc/x", "etc/x"] {
            assert_eq!(profile(path), Some(SecurityProfile::Localhost("/profiles/etc/x".into())), "{path}");
        }
        let plain = context(json!({}), json!({}));
        assert_eq!((plain.apparmor, plain.selinux, plain.strict_groups), (None, None, false));
    }

    /// An empty name used to run containers unconfined (CVE-2023-2431). The directory is not a profile, so
    /// the runtime refuses it; unknown types are refused by the API.
    #[test]
    fn a_seccomp_profile_without_a_name_is_not_unconfined() {
        for profile in [json!({"type": "Localhost"}), json!({"type": "Localhost", "localhostProfile": ""})] {
            let context = context(json!({}), json!({"seccompProfile": profile}));
            assert_eq!(context.seccomp, Some(SecurityProfile::Localhost("/profiles/".into())));
        }
    }

    #[test]
    fn apparmor_is_enforced_or_refused() {
        let check = |of_pod: Value, annotation: Option<&str>, enabled: bool| {
            let mut pod = pod(json!({"securityContext": of_pod, "containers": [{"name": "a"}]}));
            pod.metadata.annotations =
                annotation.map(|text| [(format!("{APPARMOR_ANNOTATION}a"), text.to_owned())].into());
            check_apparmor(&pod, enabled)
        };
        let profile = |kind: &str| json!({"appArmorProfile": {"type": kind, "localhostProfile": "x"}});
        let refused = Err("Cannot enforce AppArmor: AppArmor is not enabled on the host".to_owned());
        for kind in ["RuntimeDefault", "Localhost"] {
            assert_eq!(check(profile(kind), None, false), refused);
            assert_eq!(check(profile(kind), None, true), Ok(()));
        }
        assert_eq!(check(profile("Unconfined"), None, false), Ok(()));
        assert_eq!(check(json!({}), Some("runtime/default"), false), refused);
        assert_eq!(check(json!({}), Some("unconfined"), false), Ok(()));
        let nameless = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": " "}});
        assert!(check(nameless, None, true).is_err());
    }
}
