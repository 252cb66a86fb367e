//! Preemptions that extenders take part in: one after another chooses among the candidates.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::desk::{Inquiry, Stage};
use super::{Answer, Scheduler, Subject, Update};
use crate::cluster::Cluster;
use crate::extenders::{CallError, Extender};
use crate::framework::{Code, Diagnosis, Profile, Stage as Point, Status};
use crate::pod::PodInfo;
use crate::preemption::{Answered, Candidate, Found, pick, post_filter_by, still_helpful};

/// A preemption whose candidates extenders are asked about.
pub(super) struct Preemption {
    diagnosis: Diagnosis,
    /// Texts that other plugins add to the diagnosis if nothing is preempted.
    messages: Vec<String>,
    candidates: Vec<Candidate>,
    /// Extenders that are still to be asked, the first of them last; the last of them is being asked.
    remaining: Vec<usize>,
    /// Time that the plugins have taken to find the candidates.
    took: Duration,
}

impl Scheduler {
    /// Looks for pods to preempt for a pod that fits nowhere, and asks extenders about them.
    pub(super) fn refuse_or_ask(&mut self, index: usize, inquiry: Inquiry, mut diagnosis: Diagnosis) {
        let extenders = &self.desk.extenders;
        let preempting = |index: &usize| extenders.get(*index).preempts();
        let remaining: Vec<usize> = inquiry.interested.iter().copied().filter(preempting).rev().collect();
        if remaining.is_empty() || diagnosis.nodes == 0 || diagnosis.is_error() {
            self.refuse(index, &inquiry.pod, diagnosis);
            return self.desk.leave(&inquiry);
        }
        let profiles = Arc::clone(&self.profiles);
        let (profile, pod) = (&profiles[index], Arc::clone(&inquiry.pod));
        let random = self.ambient.random.next_u64();
        let mut candidates = Vec::new();
        let mut choose = |found: Vec<Candidate>| {
            let best = pick(&found).cloned();
            candidates = found;
            best
        };
        let began = Instant::now();
        let found = post_filter_by(profile, &pod, &mut self.cluster, &mut diagnosis, random, &mut choose);
        self.free(&pod, &mut diagnosis);
        if candidates.is_empty() {
            self.meter.ended(Point::PostFilter, status(found.as_ref()));
            self.refused(index, &pod, &diagnosis, found);
            return self.desk.leave(&inquiry);
        }
        let messages = messages(profile, &pod, &self.cluster, &diagnosis);
        let took = began.elapsed();
        self.ask_victims(inquiry, Preemption { diagnosis, messages, candidates, remaining, took });
    }

    /// Asks the next extender.
    fn ask_victims(&mut self, mut inquiry: Inquiry, preemption: Preemption) {
        let Some(&asked) = preemption.remaining.last() else { return };
        let candidates: Vec<Answered> =
            preemption.candidates.iter().map(|candidate| named(candidate, &self.cluster)).collect();
        let victims = preemption.candidates.iter().flat_map(|candidate| &candidate.victims);
        let victims: Vec<Arc<PodInfo>> = victims.cloned().collect();
        let (extenders, objects) = (self.desk.extenders.clone(), self.desk.objects());
        let pod = Arc::clone(&inquiry.pod);
        inquiry.stage = Stage::Victims(Box::new(preemption));
        inquiry.measured = self.meter.interrupt();
        let (updates, number) = (self.updates.clone(), self.desk.send(inquiry));
        tokio::spawn(async move {
            let answer = match objects.pod(&pod).await {
                Ok(Some(text)) => {
                    let extender = extenders.get(asked);
                    Answer::Victims(extender.choose_victims(&text, &candidates, victims, &objects).await)
                }
                Ok(None) => Answer::Gone,
                Err(error) => Answer::Victims(Err(error)),
            };
            updates.put(Subject::Consultation(number), Update::Consulted(number, answer));
        });
    }

    /// Takes a preemption up again with the answer of an extender.
    pub(super) fn victims_answered(
        &mut self,
        index: usize,
        mut inquiry: Inquiry,
        answer: Result<Vec<Answered>, CallError>,
    ) {
        let stage = std::mem::replace(&mut inquiry.stage, Stage::Nodes { nominated: false });
        let Stage::Victims(mut preemption) = stage else { return self.abandon(&inquiry) };
        let Some(asked) = preemption.remaining.pop() else { return self.abandon(&inquiry) };
        let extender = self.desk.extenders.get(asked);
        match left(answer, extender, &self.cluster) {
            Ok(Some(candidates)) => preemption.candidates = candidates,
            // An extender that is ignored changes nothing.
            Ok(None) => {}
            Err(error) => {
                let found = Found::Failed(error);
                preemption.diagnosis.post_filter = found.message().into_iter().collect();
                self.meter.ended_after(Point::PostFilter, status(Some(&found)), preemption.took);
                self.refused(index, &inquiry.pod, &preemption.diagnosis, Some(found));
                return self.desk.leave(&inquiry);
            }
        }
        if preemption.candidates.is_empty() || preemption.remaining.is_empty() {
            self.preempt_answered(index, &inquiry, *preemption);
        } else {
            self.ask_victims(inquiry, *preemption);
        }
    }

    /// Preempts pods on the best node that extenders have left, if that still helps.
    fn preempt_answered(&mut self, index: usize, inquiry: &Inquiry, preemption: Preemption) {
        let Preemption { mut diagnosis, messages, candidates, took, remaining: _ } = preemption;
        let profile = &self.profiles[index];
        let candidates = still_helpful(profile, &inquiry.pod, &mut self.cluster, candidates);
        let found = match pick(&candidates) {
            Some(best) => Found::Candidate(best.clone()),
            None => {
                let found = Found::NotEligible("no candidate node for preemption");
                diagnosis.post_filter = messages.into_iter().chain(found.message()).collect();
                found
            }
        };
        self.meter.ended_after(Point::PostFilter, status(Some(&found)), took);
        self.refused(index, &inquiry.pod, &diagnosis, Some(found));
        self.desk.leave(inquiry);
    }
}

/// Returns the result of PostFilter.
fn status(found: Option<&Found>) -> Status {
    match found {
        Some(Found::Candidate(_)) => Status::Success,
        Some(Found::Failed(_)) => Status::Refused(Code::Error),
        Some(Found::NotEligible(_) | Found::Nothing(_)) | None => Status::Refused(Code::Unschedulable),
    }
}

/// Returns a candidate by names.
fn named(candidate: &Candidate, cluster: &Cluster) -> Answered {
    Answered {
        node: cluster.node(candidate.node).name.to_string(),
        victims: candidate.victims.iter().map(|victim| victim.uid.to_string()).collect(),
        violations: i64::try_from(candidate.violations).unwrap_or(i64::MAX),
    }
}

/// Returns the candidates that an extender has left; `None` if it is ignored.
fn left(
    answer: Result<Vec<Answered>, CallError>,
    extender: &Extender,
    cluster: &Cluster,
) -> Result<Option<Vec<Candidate>>, String> {
    let resolved = answer.map_err(|error| error.to_string()).and_then(|answer| {
        let resolve = |one: &Answered| one.resolve(cluster, extender.name());
        Ok((answer.iter().map(resolve).collect::<Result<Vec<_>, _>>()?, answer))
    });
    let (mut candidates, answer) = match resolved {
        Ok(resolved) => resolved,
        Err(error) if extender.is_ignorable() => {
            tracing::info!(extender = extender.name(), error, "the extender is ignored");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    if let Some(empty) = answer.iter().find(|one| one.victims.is_empty() && !extender.is_ignorable()) {
        return Err(format!("expected at least one victim pod on node {:?}", empty.node));
    }
    candidates.retain(|candidate| !candidate.victims.is_empty());
    Ok(Some(candidates))
}

/// Returns what the plugins before the one that preempts add to the diagnosis.
fn messages(profile: &Profile, pod: &PodInfo, cluster: &Cluster, diagnosis: &Diagnosis) -> Vec<String> {
    let plugins = profile.post_filter.iter().map(|index| profile.plugin(*index));
    let before = plugins.take_while(|plugin| plugin.preemption().is_none());
    let findings = before.filter_map(|plugin| plugin.post_filter(pod, cluster, diagnosis));
    findings.map(|finding| finding.message.to_owned()).collect()
}
