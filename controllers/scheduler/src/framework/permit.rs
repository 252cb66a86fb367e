//! Permit: the last word of plugins on a pod that is placed and reserved, before it is bound.

use std::time::Duration;

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;

use super::meter::{Meter, Stage, Status};
use super::plugin::Refusal;
use super::profile::Profile;
use crate::cluster::{Cluster, NodeId};
use crate::limits;
use crate::pod::PodInfo;

/// A plugin's answer about a placed pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Permit {
    /// The pod may be bound.
    #[default]
    Allow,
    /// The pod keeps its place, and is bound once the plugin allows it; it loses its place after the timeout.
    Wait { reason: String, timeout: Duration },
    /// The pod loses its place.
    Refuse(Refusal),
}

/// A plugin's answer about a placed pod, with what it decides about others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permission {
    pub answer: Permit,
    /// Waiting pods that the plugin allows.
    pub allows: Vec<Uid>,
    /// A PodGroup all of whose waiting pods the plugin allows.
    pub allows_group: Option<ObjectKey>,
    /// Waiting pods that the plugin rejects, with the reasons.
    pub rejects: Vec<(Uid, String)>,
    /// Pods without a node that are to be tried at once.
    pub activates: Vec<Uid>,
    /// A PodGroup all of whose pods without a node are to be tried at once, if they have been tried before.
    pub activates_group: Option<ObjectKey>,
}

impl Permission {
    /// Refuses the pod itself, and decides nothing about others.
    pub fn refuse(refusal: Refusal) -> Self {
        Self { answer: Permit::Refuse(refusal), ..Self::default() }
    }

    fn status(&self) -> Status {
        match &self.answer {
            Permit::Allow => Status::Success,
            Permit::Wait { .. } => Status::Wait,
            Permit::Refuse(refusal) => Status::Refused(refusal.code),
        }
    }
}

/// The plugins that a placed pod waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// With the time after which each of them rejects the pod.
    pub plugins: Vec<(&'static str, Duration)>,
    /// The reasons as one text; empty if the pod waits for nobody.
    pub message: String,
}

/// The answers of all plugins about a placed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permitted {
    /// The plugins that the pod waits for, or the refusal of one.
    pub answer: Result<Waits, Refusal>,
    /// Waiting pods that plugins allow, with the plugins.
    pub allows: Vec<(Uid, &'static str)>,
    /// PodGroups whose waiting pods plugins allow, with the plugins.
    pub allowed_groups: Vec<(ObjectKey, &'static str)>,
    /// Waiting pods that plugins reject.
    pub rejects: Vec<(Uid, Refusal)>,
    /// Pods without a node that are to be tried at once.
    pub activates: Vec<Uid>,
    /// PodGroups whose pods without a node are to be tried at once.
    pub activated_groups: Vec<ObjectKey>,
}

/// Asks the plugins if a placed pod may be bound (`RunPermitPlugins`). The first refusal ends it.
pub fn permit(
    profile: &Profile,
    pod: &PodInfo,
    node: NodeId,
    cluster: &Cluster,
    meter: &mut Meter,
) -> Permitted {
    let mut waits = Waits::default();
    let mut all = Permitted {
        answer: Ok(Waits::default()),
        allows: vec![],
        allowed_groups: vec![],
        rejects: vec![],
        activates: vec![],
        activated_groups: vec![],
    };
    for &index in &profile.permit {
        let plugin = profile.plugin(index);
        let at = (Stage::Permit, index);
        let given = meter.time(at, 1, || plugin.permit(pod, node, cluster), Permission::status);
        let name = plugin.name();
        all.allows.extend(given.allows.into_iter().map(|uid| (uid, name)));
        all.allowed_groups.extend(given.allows_group.map(|group| (group, name)));
        let rejects = given.rejects.into_iter();
        all.rejects.extend(rejects.map(|(uid, reason)| (uid, Refusal::unschedulable(reason).by(name))));
        all.activates.extend(given.activates);
        all.activated_groups.extend(given.activates_group);
        match given.answer {
            Permit::Allow => {}
            Permit::Wait { reason, timeout } => {
                waits.plugins.push((name, timeout.min(limits::PERMIT_WAIT)));
                // The message is that of the last plugin that waits.
                waits.message =
                    format!("{reason}, one or more plugins asked to wait and no plugin rejected pod");
            }
            Permit::Refuse(refusal) => {
                all.answer = Err(refusal.by(name));
                return all;
            }
        }
    }
    all.answer = Ok(waits);
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::framework::{Code, Plugin};
    use crate::testing;

    /// Answers with a permission for each pod.
    struct Fixed(&'static str, Permission);

    impl Plugin for Fixed {
        fn name(&self) -> &'static str {
            self.0
        }

        fn permit(&self, _: &PodInfo, _: NodeId, _: &Cluster) -> Permission {
            self.1.clone()
        }
    }

    fn wait(seconds: u64) -> Permission {
        let timeout = Duration::from_secs(seconds);
        Permission {
            answer: Permit::Wait { reason: format!("waits {seconds}"), timeout },
            ..Permission::default()
        }
    }

    fn asked(answers: Vec<(&'static str, Permission)>) -> Permitted {
        let plugins = answers.into_iter().map(|(name, answer)| {
            let plugin: Box<dyn Plugin> = Box::new(Fixed(name, answer));
            (plugin, 0)
        });
        let profile = crate::plugins::profile("p", plugins.collect());
        let cluster = testing::cluster(&[testing::node("n", json!({}))], &[]);
        let node = testing::named(&cluster, "n").id;
        permit(&profile, &testing::pod("p", json!({})), node, &cluster, &mut Meter::default())
    }

    #[test]
    fn pod_waits_for_each_plugin_that_says_so_and_for_none_if_all_allow() {
        assert_eq!(asked(vec![("A", Permission::default())]).answer, Ok(Waits::default()));
        let answer = asked(vec![("A", wait(1)), ("B", Permission::default()), ("C", wait(3600))]).answer;
        let message = "waits 3600, one or more plugins asked to wait and no plugin rejected pod".to_owned();
        let plugins = vec![("A", Duration::from_secs(1)), ("C", limits::PERMIT_WAIT)];
        assert_eq!(answer, Ok(Waits { plugins, message }), "no wait is longer than the longest");
    }

    #[test]
    fn refusal_and_error_end_the_round_whoever_waits() {
        for code in [Code::Unschedulable, Code::Unresolvable, Code::Error] {
            let refusal = Refusal::new(code, "no");
            let mut later = wait(1);
            later.allows.push("w".into());
            let all = asked(vec![("A", wait(1)), ("B", Permission::refuse(refusal.clone())), ("C", later)]);
            assert_eq!(all.answer, Err(refusal.by("B")));
            assert!(all.allows.is_empty(), "later plugins are not asked");
        }
    }

    #[test]
    fn decisions_about_other_pods_carry_the_name_of_the_plugin() {
        let others = Permission {
            allows: vec!["a".into()],
            rejects: vec![("r".into(), "gone".to_owned())],
            activates: vec!["t".into()],
            allows_group: Some(ObjectKey::new("ns", "allowed")),
            activates_group: Some(ObjectKey::new("ns", "tried")),
            ..Permission::default()
        };
        let all = asked(vec![("A", others)]);
        assert_eq!(all.allows, [(Uid::from("a"), "A")]);
        assert_eq!(all.rejects, [(Uid::from("r"), Refusal::unschedulable("gone").by("A"))]);
        assert_eq!(all.activates, [Uid::from("t")]);
        assert_eq!(all.allowed_groups, [(ObjectKey::new("ns", "allowed"), "A")]);
        assert_eq!(all.activated_groups, [ObjectKey::new("ns", "tried")]);
    }
}
