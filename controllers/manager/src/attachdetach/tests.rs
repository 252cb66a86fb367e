//! Tables of cases: what is due on which node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::memory::Memories;
use super::names::{attachment_name, split, unique_name};
use super::plan::{self, Attachment, Facts, Place, Step, View, multi_attach, steps};
use crate::limits;
use crate::pods::Pod;
use crate::testing::pod;

const UNIQUE: &str = "kubernetes.io/csi/d.example.com^h";

fn healthy() -> Option<Facts> {
    Some(Facts { is_managed: true, is_healthy: true, is_out_of_service: false })
}

fn unready() -> Option<Facts> {
    Some(Facts { is_managed: true, ..Facts::default() })
}

fn attached() -> Option<Attachment> {
    Some(Attachment { is_attached: true, ..Attachment::default() })
}

fn requested() -> Option<Attachment> {
    Some(Attachment::default())
}

fn deleted() -> Option<Attachment> {
    Some(Attachment { is_attached: true, is_deleted: true, ..Attachment::default() })
}

fn failed(error: &str) -> Option<Attachment> {
    Some(Attachment { attach_error: Some(error.to_owned()), ..Attachment::default() })
}

/// Returns a healthy node without the volume and without pods that want it.
fn place() -> Place {
    Place { node: healthy(), volume: "v".to_owned(), ..Place::default() }
}

/// Returns a place with a pod, which is named after the node.
fn wanted(node: &str) -> Place {
    Place { pods: vec![Arc::new(pod(&format!("p-{node}")).into())], ..place() }
}

fn view(places: Vec<(&str, Place)>) -> View {
    let places = places.into_iter().map(|(node, place)| (node.to_owned(), place));
    View { unique: UNIQUE.to_owned(), is_exclusive: true, is_attachable: true, places: places.collect() }
}

fn due(places: Vec<(&str, Place)>) -> Vec<(String, Step)> {
    steps(&view(places))
}

/// Returns the steps of the only node.
fn due_on(place: Place) -> Vec<Step> {
    due(vec![("n1", place)]).into_iter().map(|(_, step)| step).collect()
}

#[test]
fn names_are_those_that_attachers_and_kubelets_compute() {
    // printf %s vol-1testnode | sha256sum
    let unique = unique_name("test", "vol-1");
    assert_eq!(unique, "kubernetes.io/csi/test^vol-1");
    let name = attachment_name(&unique, "node").unwrap();
    assert_eq!(name, "csi-eb7f8ca47e793c576e09e3c0209be0fd459fb8ca07529063535a29e08cc3bc5a");
    assert_eq!(split("kubernetes.io/csi/d^a^b"), Some(("d", "a^b")));
    for foreign in ["kubernetes.io/iscsi/x", "kubernetes.io/csi/d", "kubernetes.io/csid^h", ""] {
        assert_eq!(split(foreign), None, "{foreign}");
        assert_eq!(attachment_name(foreign, "n"), None);
    }
}

#[test]
fn volume_that_pods_want_is_requested_awaited_and_reported() {
    let waits = |seconds| Step::AwaitAttach(Duration::from_secs(seconds));
    let timeout = "timed out waiting for external-attacher of d.example.com CSI driver to attach volume h";
    let unmanaged = Some(Facts { is_managed: false, ..healthy().unwrap() });
    for (case, place, expected) in [
        ("nothing yet", wanted("n1"), vec![Step::Attach]),
        ("no pods", place(), vec![]),
        ("a node that attaches by itself", Place { node: unmanaged, ..wanted("n1") }, vec![]),
        ("no node", Place { node: None, ..wanted("n1") }, vec![]),
        ("requested", Place { attachment: requested(), ..wanted("n1") }, vec![waits(120)]),
        (
            "too long",
            Place { attachment: requested(), waiting: limits::ATTACH_WAIT, ..wanted("n1") },
            vec![Step::Fail(timeout.to_owned())],
        ),
        ("failed", Place { attachment: failed("no"), ..wanted("n1") }, vec![Step::Fail("no".to_owned())]),
        ("attached", Place { attachment: attached(), ..wanted("n1") }, vec![Step::Report]),
        ("done", Place { attachment: attached(), is_reported: true, ..wanted("n1") }, vec![]),
        ("attached, node gone", Place { attachment: attached(), node: None, ..wanted("n1") }, vec![]),
        (
            "reported, but gone",
            Place { is_reported: true, ..wanted("n1") },
            vec![Step::Attach, Step::Withdraw],
        ),
        (
            "reported, but not attached",
            Place { attachment: requested(), is_reported: true, ..wanted("n1") },
            vec![Step::Withdraw, waits(120)],
        ),
        (
            "somebody deletes it",
            Place { attachment: deleted(), is_reported: true, ..wanted("n1") },
            vec![Step::Withdraw, waits(120)],
        ),
        (
            "somebody has been deleting it for long",
            Place { attachment: deleted(), waiting: limits::ATTACH_WAIT, ..wanted("n1") },
            vec![Step::Fail("volume attachment is being deleted".to_owned())],
        ),
    ] {
        assert_eq!(due_on(place), expected, "{case}");
    }
}

#[test]
fn volume_that_no_pod_wants_is_detached_once_it_is_not_in_use() {
    let long = limits::UNMOUNT_WAIT + Duration::from_secs(1);
    let short = limits::UNMOUNT_WAIT;
    let off = Some(Facts { is_out_of_service: true, ..unready().unwrap() });
    let left = |seconds| Step::AwaitUnmount(Some(Duration::from_secs(seconds) + limits::STALE));
    let detach = |is_forced| vec![Step::Detach { is_forced }];
    let used = |node, waiting| Place { attachment: attached(), is_in_use: true, node, waiting, ..place() };
    let free = |node, waiting| Place { attachment: attached(), node, waiting, ..place() };
    for (case, place, expected) in [
        ("not in use", free(healthy(), Duration::ZERO), detach(false)),
        ("only reported", Place { is_reported: true, ..place() }, vec![Step::Withdraw]),
        (
            "only reported, in use",
            Place { is_reported: true, is_in_use: true, ..place() },
            vec![Step::Withdraw],
        ),
        ("in use", used(healthy(), Duration::ZERO), vec![Step::AwaitUnmount(None)]),
        ("in use for long, but healthy", used(healthy(), long), vec![Step::AwaitUnmount(None)]),
        ("in use, unhealthy", used(unready(), Duration::from_secs(60)), vec![left(300)]),
        ("exactly six minutes", used(unready(), short), vec![left(0)]),
        ("unhealthy for long", used(unready(), long), detach(true)),
        ("out of service", used(off, Duration::ZERO), detach(true)),
        ("node gone, was in use", used(None, Duration::ZERO), vec![left(360)]),
        ("node gone for long", used(None, long), detach(true)),
        ("node gone, was not in use", free(None, Duration::ZERO), detach(false)),
        ("a request", Place { attachment: requested(), ..place() }, detach(false)),
        ("a failed request", Place { attachment: failed("no"), ..place() }, detach(false)),
        ("being detached", Place { attachment: deleted(), ..place() }, vec![]),
        (
            "being detached, but reported",
            Place { attachment: deleted(), is_reported: true, is_in_use: true, ..place() },
            vec![Step::Withdraw],
        ),
    ] {
        assert_eq!(due_on(place), expected, "{case}");
    }
}

#[test]
fn driver_without_attachments_gets_none_and_loses_those_there_are() {
    let mut one = view(vec![("n1", wanted("n1")), ("n2", Place { attachment: attached(), ..wanted("n2") })]);
    one.is_attachable = false;
    assert_eq!(steps(&one), [("n2".to_owned(), Step::Detach { is_forced: false })]);
}

#[test]
fn exclusive_volume_goes_to_another_node_only_when_it_is_nowhere_else() {
    let to = |node: &str, step| (node.to_owned(), step);
    let blocked = |by: &str| to("n2", Step::Blocked(vec![by.to_owned()]));
    let detach = || to("n1", Step::Detach { is_forced: false });
    let report = || to("n1", Step::Report);
    let fail = to("n1", Step::Fail("no".to_owned()));
    let wait = to("n1", Step::AwaitAttach(limits::ATTACH_WAIT));
    let on = |attachment, place: Place| Place { attachment, ..place };
    for (case, first, expected) in [
        ("nowhere", place(), vec![to("n2", Step::Attach)]),
        ("two ask at once", wanted("n1"), vec![to("n1", Step::Attach)]),
        ("attached and wanted", on(attached(), wanted("n1")), vec![report(), blocked("n1")]),
        ("requested and wanted", on(requested(), wanted("n1")), vec![wait]),
        ("failed and wanted", on(failed("no"), wanted("n1")), vec![fail, blocked("n1")]),
        ("to be detached", on(attached(), place()), vec![detach()]),
        ("being detached", on(deleted(), place()), vec![]),
        (
            "still in use",
            Place { is_in_use: true, ..on(attached(), place()) },
            vec![to("n1", Step::AwaitUnmount(None)), blocked("n1")],
        ),
        (
            "only its node says so",
            Place { is_reported: true, is_in_use: true, ..place() },
            vec![to("n2", Step::Attach), to("n1", Step::Withdraw)],
        ),
        (
            "in use after a forced detachment",
            Place { is_in_use: true, node: unready(), ..place() },
            vec![to("n2", Step::Attach)],
        ),
    ] {
        assert_eq!(due(vec![("n1", first), ("n2", wanted("n2"))]), expected, "{case}");
    }
}

#[test]
fn shared_volume_is_attached_wherever_it_is_wanted() {
    let mut shared = view(vec![
        ("n1", Place { attachment: attached(), is_reported: true, ..wanted("n1") }),
        ("n2", wanted("n2")),
        ("n3", wanted("n3")),
    ]);
    shared.is_exclusive = false;
    assert_eq!(steps(&shared), [("n2".to_owned(), Step::Attach), ("n3".to_owned(), Step::Attach)]);
}

#[test]
fn multi_attach_error_names_pods_of_the_own_namespace_only() {
    let at = |name: &str, space: &str| {
        let mut pod = pod(name);
        pod.metadata.namespace = Some(space.to_owned());
        Arc::new(Pod::from(pod))
    };
    let others = ["n1".to_owned(), "n2".to_owned()];
    let exclusive = "Volume is already exclusively attached to one node and can't be attached to another";
    for (pods, expected) in [
        (vec![], exclusive.to_owned()),
        (vec![at("a", "ns")], "Volume is already used by pod(s) a".to_owned()),
        (vec![at("a", "ns"), at("b", "ns")], "Volume is already used by pod(s) a, b".to_owned()),
        (
            vec![at("a", "ns"), at("b", "other"), at("c", "more")],
            "Volume is already used by pod(s) a and 2 pod(s) in different namespaces".to_owned(),
        ),
        (vec![at("b", "other")], "Volume is already used by 1 pod(s) in different namespaces".to_owned()),
    ] {
        let found = view(vec![("n1", Place { attachment: attached(), pods, ..place() })]);
        let message = multi_attach(&found, &at("new", "ns"), "v", &others);
        assert_eq!(message, format!("Multi-Attach error for volume \"v\" {expected}"));
    }
}

#[test]
fn messages_have_the_words_of_kubernetes() {
    assert_eq!(plan::failure("v", "no"), "AttachVolume.Attach failed for volume \"v\" : no");
    assert_eq!(plan::success("v"), "AttachVolume.Attach succeeded for volume \"v\" ");
}

#[tokio::test(start_paused = true)]
async fn waits_begin_with_their_reason_and_end_with_it() {
    let memories = Memories::default();
    let start = Instant::now();
    let recall = |place: Place, seconds: u64| {
        let mut one = view(vec![("n1", place)]);
        memories.recall(&mut one, start + Duration::from_secs(seconds), |_| true);
        one.places["n1"].waiting.as_secs()
    };
    let leaving = || Place { attachment: attached(), is_in_use: true, ..place() };
    let asking = || Place { attachment: requested(), ..wanted("n1") };
    assert_eq!((recall(leaving(), 0), recall(leaving(), 100)), (0, 100));
    // A pod that comes back ends the wait, and the next one begins anew.
    assert_eq!(recall(Place { attachment: attached(), ..wanted("n1") }, 200), 0);
    assert_eq!((recall(leaving(), 300), recall(leaving(), 310)), (0, 10));
    assert_eq!((recall(asking(), 320), recall(asking(), 330)), (0, 10), "another reason");
    memories.restart(UNIQUE, "n1", start + Duration::from_secs(340));
    assert_eq!(recall(asking(), 345), 5);
    memories.recall(&mut view(vec![]), start, |_| true);
    assert_eq!(recall(asking(), 400), 0, "a place that was forgotten");
}

#[test]
fn pods_are_told_once_that_other_nodes_have_their_volume() {
    let memories = Memories::default();
    memories.recall(&mut view(vec![("n1", wanted("n1"))]), Instant::now(), |_| true);
    let told = [true, true, false, true].map(|is_blocked| memories.is_news(UNIQUE, "n1", is_blocked));
    assert_eq!(told, [true, false, false, true]);
}

#[test]
fn attachment_that_the_cache_never_showed_is_not_forgotten() {
    let memories = Memories::default();
    let now = Instant::now();
    memories.recall(&mut view(vec![("n1", wanted("n1"))]), now, |_| true);
    memories.created(UNIQUE, "n1", 7);
    // The pod has moved, and the cache is behind.
    memories.recall(&mut view(vec![("n2", wanted("n2"))]), now, |version| version < 7);
    assert_eq!(memories.unseen(UNIQUE, "n2"), ["n1"]);
    assert!(memories.unseen(UNIQUE, "n1").is_empty());
    memories.is_gone(UNIQUE, "n1");
    assert!(memories.unseen(UNIQUE, "n2").is_empty());
    memories.created(UNIQUE, "n2", 9);
    memories.recall(&mut view(vec![]), now, |_| true);
    assert!(memories.unseen(UNIQUE, "n1").is_empty(), "the cache shows it");
}

/// The same decision is reached from any order of nodes: what is taken is known before anything is asked for.
#[test]
fn exclusive_volume_is_asked_for_once_among_many_nodes() {
    for holder in 0..4 {
        let nodes: Vec<String> = (0..4).map(|number| format!("n{number}")).collect();
        let places: BTreeMap<String, Place> = nodes
            .iter()
            .enumerate()
            .map(|(number, node)| {
                let attachment = if number == holder { attached() } else { None };
                (node.clone(), Place { attachment, ..wanted(node) })
            })
            .collect();
        let found =
            steps(&View { unique: UNIQUE.to_owned(), is_exclusive: true, is_attachable: true, places });
        assert!(!found.iter().any(|(_, step)| *step == Step::Attach), "{found:?}");
        let blocked = found.iter().filter(|(_, step)| matches!(step, Step::Blocked(_)));
        assert_eq!(blocked.count(), 3);
    }
}
