//! Attempts that extenders take part in. The loop never waits for an extender: it hands an attempt out to a task, goes on
//! with other pods, and takes the attempt up again with the answer, which it checks against the cluster as it is by then.
//!
//! ```text
//!   attempt ──▶ feasible nodes ──▶ (filter, prioritize) ──▶ still feasible? ──▶ assume
//!                    │ none              │ none left             │ none: begin anew
//!                    ▼                   ▼
//!               candidates ──▶ (preempt) ──▶ still helpful? ──▶ evict
//! ```
//!
//! In parentheses is what tasks do. For the queue, the attempt goes on all the time.

mod bind;
mod desk;
mod preempt;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tracing::info;

pub(super) use self::bind::{ExtenderBinder, bind};
pub(super) use self::desk::Desk;
use self::desk::{Entered, Inquiry, Stage};
use super::Scheduler;
use super::follow::{Subject, Update};
use crate::cluster::NodeId;
use crate::extenders::{CallError, Consulted};
use crate::framework::{
    Diagnosis, Feasible, NominatedFirst, Profile, all_feasible, best, diagnose, find_feasible, score,
};
use crate::limits;
use crate::pod::PodInfo;
use crate::preemption::Answered;
use crate::queue::{Attempting, EXTENDER};

/// The outcome of a task that asks extenders.
pub(super) enum Answer {
    /// The pod is gone.
    Gone,
    Nodes(Result<Consulted, CallError>),
    /// The answer of one extender about candidates for a preemption.
    Victims(Result<Vec<Answered>, CallError>),
}

impl Scheduler {
    /// Begins the attempt of a pod that extenders take part in, now or when it is its turn; returns `false` for other pods.
    pub(super) fn consult(&mut self, attempting: &Attempting) -> bool {
        match self.desk.enter(attempting) {
            Entered::Not => return false,
            Entered::Now(inquiry) => self.inquire(inquiry),
            Entered::Later => {}
        }
        true
    }

    /// Begins one attempt that has waited for its turn; returns `false` if there is none.
    pub(super) fn serve(&mut self) -> bool {
        let Some(inquiry) = self.desk.next() else { return false };
        match self.current(&inquiry.pod) {
            Some(pod) => {
                self.begin();
                self.inquire(Inquiry { pod, ..inquiry });
            }
            None => self.abandon(&inquiry),
        }
        true
    }

    /// Returns the newest version of a pod, if it still waits for a node.
    fn current(&self, pod: &PodInfo) -> Option<Arc<PodInfo>> {
        let current = self.pods.get(&pod.key()).filter(|current| current.uid == pod.uid)?;
        let waits = current.node.is_none() && !current.is_finished && !current.is_terminating();
        (waits && self.cluster.place_of(&current).is_none()).then_some(current)
    }

    /// Ends the attempt of a pod that needs no node any more.
    fn abandon(&mut self, inquiry: &Inquiry) {
        self.queue.done(&inquiry.pod.uid);
        self.desk.leave(inquiry);
    }

    fn profile_with_index(&self, pod: &PodInfo) -> Option<(Arc<[Profile]>, usize)> {
        Some((Arc::clone(&self.profiles), self.profile_of(pod)?))
    }

    fn inquire(&mut self, inquiry: Inquiry) {
        self.inquire_with(inquiry, NominatedFirst::Yes);
    }

    /// Looks for feasible nodes, and asks extenders about them.
    fn inquire_with(&mut self, mut inquiry: Inquiry, first: NominatedFirst) {
        let pod = Arc::clone(&inquiry.pod);
        let Some((profiles, index)) = self.profile_with_index(&pod) else { return self.abandon(&inquiry) };
        let profile = &profiles[index];
        let (cluster, views) = (&mut self.cluster, &mut self.views);
        let found = find_feasible(profile, &pod, cluster, views, self.start, first, &mut self.meter);
        let feasible = match found {
            Ok(feasible) => feasible,
            Err(diagnosis) => return self.refuse_or_ask(index, inquiry, *diagnosis),
        };
        self.start = (self.start + feasible.evaluated) % cluster.capacity().max(1);
        let nodes = feasible.list();
        let extenders = inquiry.interested.iter().map(|index| self.desk.extenders.get(*index));
        let is_asked = |(filters, scores)| filters || scores && nodes.len() > 1;
        if !extenders.map(|one| (one.filters(), one.scores())).any(is_asked) {
            return self.place_consulted(index, &inquiry, &feasible, &Consulted::default());
        }
        let nominated = pod.nominated.as_deref().filter(|_| first == NominatedFirst::Yes);
        let nominated = nominated.and_then(|name| self.cluster.named(name)).map(|node| node.id);
        inquiry.stage = Stage::Nodes { nominated: nominated.is_some_and(|id| nodes == [id]) };
        inquiry.measured = self.meter.interrupt();
        self.ask_nodes(inquiry, nodes);
    }

    fn ask_nodes(&mut self, inquiry: Inquiry, nodes: &[NodeId]) {
        let names = nodes.iter().map(|id| self.cluster.node(*id).name.to_string()).collect();
        let (extenders, objects) = (self.desk.extenders.clone(), self.desk.objects());
        let (pod, interested) = (Arc::clone(&inquiry.pod), inquiry.interested.clone());
        let (updates, number) = (self.updates.clone(), self.desk.send(inquiry));
        tokio::spawn(async move {
            let answer = match objects.pod(&pod).await {
                Ok(Some(text)) => Answer::Nodes(extenders.consult(&interested, &text, names, &objects).await),
                Ok(None) => Answer::Gone,
                Err(error) => Answer::Nodes(Err(error)),
            };
            updates.put(Subject::Consultation(number), Update::Consulted(number, answer));
        });
    }

    /// Takes an attempt up again.
    pub(super) fn consulted(&mut self, number: u64, answer: Answer) {
        let Some(mut inquiry) = self.desk.answered(number) else { return };
        let Some(pod) = self.current(&inquiry.pod) else { return self.abandon(&inquiry) };
        self.resume(std::mem::take(&mut inquiry.measured));
        let inquiry = Inquiry { pod, ..inquiry };
        let Some(index) = self.profile_of(&inquiry.pod) else { return self.abandon(&inquiry) };
        match answer {
            Answer::Gone => self.abandon(&inquiry),
            Answer::Nodes(answer) => self.nodes_answered(index, inquiry, answer),
            Answer::Victims(answer) => self.victims_answered(index, inquiry, answer),
        }
    }

    fn nodes_answered(&mut self, index: usize, inquiry: Inquiry, answer: Result<Consulted, CallError>) {
        if matches!(inquiry.stage, Stage::Nodes { nominated: true })
            && answer.as_ref().map_or(true, |consulted| consulted.nodes.is_empty())
        {
            if let Err(error) = answer {
                info!(pod = %inquiry.pod.key(), %error, "extenders cannot judge the nominated node");
            }
            return self.inquire_with(inquiry, NominatedFirst::No);
        }
        match answer {
            Err(error) => self.fail(index, &inquiry, error.to_string()),
            Ok(consulted) if consulted.nodes.is_empty() => {
                let diagnosis = self.diagnose_consulted(index, &inquiry.pod, consulted);
                self.meter.skip();
                self.refuse_or_ask(index, inquiry, diagnosis);
            }
            Ok(consulted) => {
                let fitting = self.still_feasible(index, &inquiry.pod, &consulted.nodes);
                self.meter.skip();
                if !fitting.nodes.is_empty() {
                    self.place_consulted(index, &inquiry, &fitting, &consulted);
                } else if inquiry.rounds < limits::CONSULTATION_ROUNDS {
                    self.inquire(Inquiry { rounds: inquiry.rounds + 1, ..inquiry });
                } else {
                    let text = "no node that extenders have left is feasible any more";
                    self.fail(index, &inquiry, text.to_owned());
                }
            }
        }
    }

    /// Ends an attempt by an error.
    fn fail(&mut self, index: usize, inquiry: &Inquiry, error: String) {
        let diagnosis = Diagnosis { nodes: self.cluster.len(), error: Some(error), ..Diagnosis::default() };
        self.refused(index, &inquiry.pod, &diagnosis, None);
        self.desk.leave(inquiry);
    }

    /// Returns those of the nodes that the pod fits on in the cluster as it is.
    fn still_feasible(&mut self, index: usize, pod: &PodInfo, names: &[String]) -> Feasible {
        let profile = &self.profiles[index];
        let Ok(feasible) = all_feasible(profile, pod, &mut self.cluster, &mut self.views) else {
            return Feasible::from_iter([]);
        };
        let ids = names.iter().filter_map(|name| self.cluster.named(name)).map(|node| node.id);
        ids.filter(|id| feasible.contains(*id)).collect()
    }

    /// Places a pod on the best of the nodes, by the scores of plugins and of extenders.
    fn place_consulted(&mut self, index: usize, inquiry: &Inquiry, nodes: &Feasible, consulted: &Consulted) {
        let pod = &inquiry.pod;
        let profile = &self.profiles[index];
        let chosen = nodes.only().or_else(|| {
            let (views, meter) = (&mut self.views, &mut self.meter);
            let mut totals = score(profile, pod, &self.cluster, views, nodes, meter);
            for (total, id) in totals.iter_mut().zip(nodes.list()) {
                let extra = consulted.scores.get(&*self.cluster.node(*id).name);
                *total = total.wrapping_add(extra.copied().unwrap_or_default());
            }
            best(nodes.list(), &totals, self.ambient.random.next_u64())
        });
        let attempting = Attempting { pod: Arc::clone(pod), ..inquiry.attempting.clone() };
        self.assume(index, &attempting, chosen.expect("there are feasible nodes"));
        self.desk.leave(inquiry);
    }

    /// Returns why no node is left, by the plugins in the cluster as it is and by extenders.
    fn diagnose_consulted(&mut self, index: usize, pod: &PodInfo, consulted: Consulted) -> Diagnosis {
        let mut diagnosis = diagnose(&self.profiles[index], pod, &mut self.cluster);
        if diagnosis.pre_filter.is_none() {
            for (name, refusal) in consulted.refusals {
                let Some(node) = self.cluster.named(&name) else { continue };
                if diagnosis.refusals.get(node.id).is_none() {
                    diagnosis.refuse(node.id, refusal);
                }
            }
        }
        if consulted.has_refused {
            diagnosis.plugins.insert(EXTENDER);
        }
        diagnosis
    }
}
