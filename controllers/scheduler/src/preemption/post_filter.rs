//! The stage PostFilter, for a pod that fits nowhere.

use super::{Candidate, Found, pick, preempt};
use crate::cluster::Cluster;
use crate::framework::{Code, Diagnosis, Profile};
use crate::pod::PodInfo;

/// Runs the plugins' PostFilter, and adds what they say to the diagnosis. Returns what the search for pods to preempt has
/// found; `None` if there was no search.
pub fn post_filter(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    diagnosis: &mut Diagnosis,
    random: u64,
) -> Option<Found> {
    let mut choose = |candidates: Vec<Candidate>| pick(&candidates).cloned();
    post_filter_by(profile, pod, cluster, diagnosis, random, &mut choose)
}

/// Runs the plugins' PostFilter as [`post_filter`] does, with the candidates for a preemption given to `choose`.
pub fn post_filter_by(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    diagnosis: &mut Diagnosis,
    random: u64,
    choose: &mut dyn FnMut(Vec<Candidate>) -> Option<Candidate>,
) -> Option<Found> {
    let mut preemption = None;
    let mut messages = Vec::new();
    for &index in &profile.post_filter {
        let plugin = profile.plugin(index);
        if let Some(finding) = plugin.post_filter(pod, cluster, diagnosis) {
            if !has_prepared(profile, index, diagnosis) {
                // kube-scheduler's plugins lack what PreFilter leaves for them then, say so, and end the search.
                messages.push("not found".to_owned());
                break;
            }
            messages.push(finding.message.to_owned());
            diagnosis.cleanups.extend(finding.cleanup);
        }
        if let Some(args) = plugin.preemption() {
            let found = preempt(profile, pod, cluster, diagnosis, (args, random), choose);
            // Neither a success nor an error leaves anything of what other plugins have said.
            let is_over = matches!(found, Found::Candidate(_) | Found::Failed(_));
            if is_over {
                messages.clear();
            }
            messages.extend(found.message());
            preemption = Some(found);
            if is_over {
                break;
            }
        }
    }
    diagnosis.post_filter = messages;
    preemption
}

/// Returns `false` if the PreFilter of another plugin has refused the pod for good before a plugin came to its own.
fn has_prepared(profile: &Profile, index: usize, diagnosis: &Diagnosis) -> bool {
    let Some(refusal) = diagnosis.pre_filter.as_ref().filter(|refusal| refusal.code != Code::Unschedulable)
    else {
        return true;
    };
    let own = profile.pre_filter.iter().position(|other| *other == index);
    let refusing =
        profile.pre_filter.iter().position(|other| profile.plugin(*other).name() == refusal.plugin);
    own.is_none() || refusing >= own
}
