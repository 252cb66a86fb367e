//! The controller of HorizontalPodAutoscalers: sets the number of replicas of anything that has a scale by what the
//! APIs of metrics answer.
//!
//! Each autoscaler is judged once a period, whatever changes in between: metrics are averages over about that time.

mod behavior;
mod groups;
mod history;
mod judgement;
mod kinds;
#[cfg(test)]
mod malformed;
mod measure;
mod metric;
mod overlap;
mod replicas;
#[cfg(test)]
mod scenarios;
mod selector;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tables;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, ObjectKey, Recorder, message};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::fnv::fnv1a_64;
use controllers_runtime::{Backoff, Ledger, Outcome, Reconcile, Result, WorkQueue, is_conflict};
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v1::{Scale, ScaleSpec, ScaleStatus};
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus};
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use tokio::time::Instant;

use crate::context::{Context, Tasks};
use crate::index::Pods;
use crate::meta::{Labels, labels, uid};
use crate::metrics::{HPA_DESIRED, HPAS};
use crate::pods::Pod;
use crate::{limits, patch};
use history::{History, may_be_unnoted, unknown_until};
use judgement::{Demand, Event, Judgement, Next, Settings};
use kinds::Kinds;
use overlap::Overlap;
use replicas::Workload;
use selector::Selector;

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    // A failure is not worth an earlier attempt: the next judgement follows soon.
    let period = context.config.autoscalers.period;
    let backoff = Backoff { min: period, max: period };
    let queue = WorkQueue::with_backoff("horizontalpodautoscaler", backoff);
    let hpas = context.informers.cache::<HorizontalPodAutoscaler>();
    let pods = context.pods.cache().clone();
    let inherited = Arc::new(OnceLock::new());
    follow(&hpas, &queue, &inherited, period);
    let controller = Autoscalers {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named("horizontal-pod-autoscaler"),
        hpas: hpas.clone(),
        pods: context.pods.clone(),
        kinds: Kinds::new(context.client.clone(), period),
        settings: Settings::from(&context.config.autoscalers),
        period,
        overlap: Overlap::default(),
        ledger: Ledger::default(),
        memories: Mutex::default(),
        inherited: Arc::clone(&inherited),
    };
    let (counted, wanted) = (hpas.clone(), hpas.clone());
    let metrics = &context.config.metrics;
    metrics.add_gauge(&HPAS, move || vec![(Vec::new(), counted.len() as f64)]);
    metrics.add_gauge(&HPA_DESIRED, move || {
        let judged = |hpa: &Arc<HorizontalPodAutoscaler>| {
            let key = ObjectKey::of(hpa.as_ref());
            let desired = hpa.status.as_ref()?.desired_replicas;
            Some((vec![key.namespace, key.name], f64::from(desired)))
        };
        wanted.list().iter().filter_map(judged).take(limits::SERIES).collect()
    });
    context.start_with(tasks, queue, controller, context.workers(limits::HPA_WORKERS), async move {
        hpas.synced().await;
        pods.synced().await;
        inherited.get_or_init(|| hpas.list().iter().map(|hpa| uid(&hpa.metadata).to_owned()).collect());
    });
}

/// UIDs of the autoscalers that were there at the start, which an earlier controller may have judged. Empty until then.
type Inherited = OnceLock<BTreeSet<String>>;

/// Enqueues autoscalers when they appear and, to be forgotten, when they go. Changes wait for the next judgement.
fn follow(
    hpas: &Cache<HorizontalPodAutoscaler>,
    queue: &WorkQueue<ObjectKey>,
    inherited: &Arc<Inherited>,
    period: Duration,
) {
    let (queue, inherited) = (queue.clone(), Arc::clone(inherited));
    hpas.on_change(move |change| match change {
        // Those that are there from the start are spread over the period.
        Change::Applied { new, .. } if inherited.get().is_none() => {
            queue.add_after(change.key(), offset(uid(&new.metadata), period));
        }
        Change::Applied { .. } => queue.add_after(change.key(), period),
        Change::Deleted(_) => queue.add(change.key()),
    });
}

/// Returns whether the text of a selector selects pods with these labels; `None` if it cannot be parsed.
pub(crate) fn selects(text: &str, labels: &Labels) -> Option<bool> {
    Selector::parse(text).ok().map(|selector| selector.matches(Some(labels)))
}

/// Returns a time within the period, the same for the same autoscaler.
fn offset(uid: &str, period: Duration) -> Duration {
    let period = (period.as_millis() as u64).max(1);
    Duration::from_millis(1 + fnv1a_64(uid.bytes()) % period)
}

/// The memory of an autoscaler between two judgements.
#[derive(Default)]
struct Memory {
    uid: String,
    /// Begins with the first judgement.
    history: Option<History>,
    /// Reasons and messages of recent warnings, and when they were recorded.
    warned: BTreeMap<(&'static str, String), Timestamp>,
}

impl Memory {
    /// Returns `true` if an event is to be recorded: not a warning that has been recorded just now.
    fn is_news(&mut self, event: &Event, now: Timestamp) -> bool {
        if !event.is_warning {
            return true;
        }
        self.warned.retain(|_, at| now.duration_since(*at) < limits::HPA_WARNING_PERIOD);
        let warning = (event.reason, event.message.clone());
        if self.warned.len() >= limits::HPA_WARNINGS || self.warned.contains_key(&warning) {
            return false;
        }
        self.warned.insert(warning, now);
        true
    }
}

struct Autoscalers {
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    hpas: Cache<HorizontalPodAutoscaler>,
    pods: Pods,
    kinds: Kinds,
    settings: Settings,
    /// Interval at which each autoscaler is judged.
    period: Duration,
    overlap: Overlap,
    ledger: Ledger<ObjectKey>,
    memories: Mutex<BTreeMap<ObjectKey, Memory>>,
    inherited: Arc<Inherited>,
}

impl Reconcile for Autoscalers {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(hpa) = self.hpas.get(key) else {
            self.forget(key);
            return Ok(Outcome::Done);
        };
        if !self.ledger.is_shown(key, &self.hpas) {
            return Ok(Outcome::After(limits::STALE));
        }
        self.judge(key, &hpa).await?;
        Ok(Outcome::After(self.period))
    }
}

/// A scale, and the object that it belongs to.
struct Target {
    api: Api<DynamicObject>,
    name: String,
    scale: Scale,
}

impl Target {
    fn replicas(&self) -> i32 {
        self.scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0)
    }

    fn status(&self) -> ScaleStatus {
        self.scale.status.clone().unwrap_or_default()
    }
}

impl Autoscalers {
    fn forget(&self, key: &ObjectKey) {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.overlap.forget(key);
        self.ledger.forget(key);
    }

    /// Calls `f` with the memory of an autoscaler. It begins anew with another object of the same name.
    fn remember<T>(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
        f: impl FnOnce(&mut Memory) -> T,
    ) -> T {
        let mut memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = memories.entry(key.clone()).or_default();
        let uid = uid(&hpa.metadata);
        if memory.uid != uid {
            *memory = Memory { uid: uid.to_owned(), ..Memory::default() };
        }
        f(memory)
    }

    async fn judge(&self, key: &ObjectKey, hpa: &HorizontalPodAutoscaler) -> Result<()> {
        let now = self.ambient.now();
        let mut judgement = Judgement::new(hpa, &self.settings, now);
        let noted = match self.target(key, hpa).await {
            Err(error) => {
                judgement.cannot_get_scale(&error);
                None
            }
            Ok(target) => self.judge_target(key, hpa, target, &mut judgement, now).await?,
        };
        self.publish(key, noted.as_ref().unwrap_or(hpa), judgement, now).await
    }

    /// Returns the autoscaler with another status, if one was written before the scale.
    async fn judge_target(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
        target: Target,
        judgement: &mut Judgement<'_>,
        now: Timestamp,
    ) -> Result<Option<HorizontalPodAutoscaler>> {
        let replicas = target.replicas();
        let inherited = self.inherited.get().is_none_or(|all| all.contains(uid(&hpa.metadata)));
        let unknown = if inherited { unknown_until(hpa.status.as_ref(), replicas, now) } else { None };
        let with_history = |f: &mut dyn FnMut(&mut History)| {
            self.remember(key, hpa, |memory| {
                f(memory.history.get_or_insert_with(|| History::begin(replicas, unknown, now)));
            });
        };
        let is_first = self.remember(key, hpa, |memory| memory.history.is_none());
        if is_first && inherited && may_be_unnoted(hpa.status.as_ref(), replicas) {
            judgement.may_have_changed();
        }
        with_history(&mut |_| {});
        let rescale = match judgement.begin(replicas) {
            Next::Leave => None,
            Next::Rescale(rescale) => Some(rescale),
            Next::Measure => {
                let Some(demand) = self.measure(key, hpa, &target, judgement, now).await else {
                    return Ok(None);
                };
                let mut limited = None;
                with_history(&mut |history| limited = judgement.limit(&demand, history));
                limited
            }
        };
        let Some(rescale) = rescale else {
            judgement.stays();
            return Ok(None);
        };
        let before = self.note(key, hpa, judgement).await?;
        let written = write_scale(target, rescale.replicas).await;
        let noted = self.ambient.now();
        if written.as_ref().err().is_none_or(may_be_done) {
            with_history(&mut |history| history.changed(replicas, rescale.replicas, noted));
        }
        match written {
            Ok(()) => judgement.rescaled(&rescale, noted),
            Err(error) => judgement.cannot_rescale(&rescale, &message(&error)),
        }
        Ok(before)
    }

    /// Notes in the status the number of replicas that others have set, before it is changed. If this controller dies
    /// with that, the next one sees by the difference that there may have been a change.
    async fn note(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
        judgement: &mut Judgement<'_>,
    ) -> Result<Option<HorizontalPodAutoscaler>> {
        match judgement.set_by_others() {
            Some(status) => self.write_status(key, hpa, status).await,
            None => Ok(None),
        }
    }

    /// Returns what the metrics ask for; `None` if the number of replicas must stay.
    async fn measure(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
        target: &Target,
        judgement: &mut Judgement<'_>,
        now: Timestamp,
    ) -> Option<Demand> {
        let status = target.status();
        let text = status.selector.as_deref().unwrap_or_default();
        if text.is_empty() {
            judgement.has_no_selector();
            return None;
        }
        let selector = match Selector::parse(text) {
            Ok(selector) => Arc::new(selector),
            Err(error) => {
                judgement.has_invalid_selector(&error);
                return None;
            }
        };
        let pods = self.selected(&key.namespace, &selector);
        let keys = self.overlap.select(key, &selector, &pods);
        if keys.len() > 1 {
            judgement.is_ambiguous(text, &keys);
            return None;
        }
        let workload = Workload {
            replicas: target.replicas(),
            present: status.replicas,
            pods: &pods,
            tolerances: judgement.tolerances(),
            startup: self.settings.startup,
            now,
        };
        let deadline = Instant::now() + limits::HPA_MEASURING;
        let specs = hpa.spec.metrics.as_deref().unwrap_or_default();
        let mut results = Vec::with_capacity(specs.len());
        for spec in specs {
            results.push(match metric::query(spec) {
                Err(failure) => Err(failure),
                Ok(query) => {
                    let answer = match &query {
                        Some(query) => {
                            let of = (key.namespace.as_str(), text);
                            measure::measure(&self.client, &self.kinds, of, query, deadline).await
                        }
                        None => Err("there is nothing to ask for".to_owned()),
                    };
                    metric::propose(spec, answer, &key.namespace, &workload)
                }
            });
        }
        judgement.measured(results)
    }

    /// Returns the pods of a namespace that a selector matches.
    fn selected(&self, namespace: &str, selector: &Selector) -> Vec<Arc<Pod>> {
        let mut pods = self.pods.labelled(namespace, selector.alternatives());
        pods.retain(|pod| selector.matches(labels(&pod.metadata)));
        pods
    }

    async fn target(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
    ) -> std::result::Result<Target, String> {
        let reference = &hpa.spec.scale_target_ref;
        let version = reference.api_version.as_deref().unwrap_or_default();
        let group = match version.split('/').collect::<Vec<_>>().as_slice() {
            [_] => "",
            [group, _] => *group,
            _ => return Err(format!("unexpected GroupVersion string: {version}")),
        };
        let name = reference.name.as_str();
        // The name becomes a part of a path.
        if matches!(name, "" | "." | "..") || name.contains(['/', '%', '?', '#']) {
            return Err(format!("invalid name of the scale target: {name:?}"));
        }
        let mut first = None;
        for resource in self.kinds.resources(group, &reference.kind).await? {
            let api = self.api(&key.namespace, &resource);
            match api.get_scale(name).await {
                Ok(scale) => return Ok(Target { api, name: name.to_owned(), scale }),
                Err(error) => {
                    let dot = if group.is_empty() { "" } else { "." };
                    let object = format!("{}{dot}{group} {name}", resource.plural);
                    first = first.or_else(|| Some(measure::words(&error, &object)));
                }
            }
        }
        Err(first.unwrap_or_else(|| "unrecognized resource".to_owned()))
    }

    fn api(&self, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }

    /// Writes the status and the events.
    async fn publish(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
        judgement: Judgement<'_>,
        now: Timestamp,
    ) -> Result<()> {
        let (status, events) = judgement.end();
        self.remember(key, hpa, |memory| {
            for event in events.into_iter().filter(|event| memory.is_news(event, now)) {
                self.record(hpa, event);
            }
        });
        match self.write_status(key, hpa, status).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes a status; returns the autoscaler as written, `None` if nothing differed.
    async fn write_status(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
        status: HorizontalPodAutoscalerStatus,
    ) -> Result<Option<HorizontalPodAutoscaler>> {
        let new = HorizontalPodAutoscaler { status: Some(status), ..hpa.clone() };
        let api = Api::namespaced(self.client.clone(), &key.namespace);
        match patch::write_status(&api, hpa, &new).await {
            Ok(written) => {
                written.iter().for_each(|written| self.ledger.wrote(key, written));
                Ok(written)
            }
            Err(error) if error.is_not_found() => Err(error),
            Err(error) => {
                let event =
                    Event { is_warning: true, reason: "FailedUpdateStatus", message: error.api_message() };
                self.record(hpa, event);
                Err(error)
            }
        }
    }

    fn record(&self, hpa: &HorizontalPodAutoscaler, event: Event) {
        let Event { is_warning, reason, message } = event;
        if is_warning {
            self.recorder.warning(reference(hpa), reason, message);
        } else {
            self.recorder.normal(reference(hpa), reason, message);
        }
    }
}

/// Writes another number of replicas. If others have changed the object meanwhile it is tried again, but not if they
/// have changed the number that was judged.
async fn write_scale(target: Target, replicas: i32) -> kube::Result<()> {
    let judged = target.replicas();
    let Target { api, name, mut scale } = target;
    let mut attempts = 1..=limits::HPA_SCALE_ATTEMPTS;
    loop {
        attempts.next();
        scale.spec = Some(ScaleSpec { replicas: Some(replicas) });
        match api.replace_scale(&name, &PostParams::default(), &scale).await {
            Err(error) if is_conflict(&error) && !attempts.is_empty() => {
                tokio::time::sleep(limits::HPA_SCALE_PAUSE).await;
                match api.get_scale(&name).await {
                    Ok(latest) if latest.spec.as_ref().and_then(|spec| spec.replicas) == Some(judged) => {
                        scale = latest
                    }
                    _ => return Err(error),
                }
            }
            done => return done.map(drop),
        }
    }
}

/// Returns `true` if a write that failed may have been carried out.
fn may_be_done(error: &kube::Error) -> bool {
    !matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code))
}
