use std::collections::BTreeSet;

use controllers_runtime::metrics::Value;

use super::*;

#[test]
fn queues_are_read_when_asked_and_forgotten_with_their_controllers() {
    let (metrics, queue) = (Metrics::default(), WorkQueue::new("job"));
    metrics.add_controller("job-controller");
    metrics.add_queue(&queue);
    queue.add("key");
    let [(name, read)] = metrics.queues().try_into().unwrap();
    assert_eq!((name, read.adds, read.depth), ("job", 1, 1));
    assert_eq!(metrics.controllers(), ["job-controller"]);
    metrics.clear();
    assert!(metrics.queues().is_empty() && metrics.controllers().is_empty());
}

#[test]
fn values_are_kept_by_their_labels_and_bounded() {
    let metrics = Metrics::default();
    metrics.count(&SLICE_SYNCS, &["success"]);
    metrics.add(&SLICE_SYNCS, &["success"], 2);
    metrics.count(&SLICE_SYNCS, &["error"]);
    metrics.time(&CRON_JOB_SKEW, &[], Duration::from_secs(2));
    metrics.observe(&CRON_JOB_SKEW, &[], 1000.0);
    metrics.add_gauge(&SLICES, || vec![(Vec::new(), 7.0)]);
    let found = metrics.series();
    let syncs = &found[0].values;
    assert_eq!(syncs[&vec!["success".to_owned()]], Value::Number(3.0));
    assert_eq!(syncs[&vec!["error".to_owned()]], Value::Number(1.0));
    let mut counts = vec![0; 11];
    (counts[1], counts[10]) = (1, 1);
    assert_eq!(found[1].values[&Vec::new()], Value::Histogram { counts, sum: 1002.0 });
    assert_eq!(found[2].values[&Vec::new()], Value::Number(7.0));
    for zone in 0..2 * limits::SERIES {
        metrics.count(&NODE_EVICTIONS, &[&zone.to_string()]);
    }
    assert_eq!(metrics.series()[2].values.len(), limits::SERIES);
}

#[test]
fn controllers_are_healthy_until_one_of_their_tasks_fails() {
    let metrics = Metrics::default();
    metrics.add_controller("job-controller");
    metrics.add_controller("ttl-controller");
    metrics.fail("ttl-controller");
    assert_eq!(metrics.health(), [("job-controller", true), ("ttl-controller", false)]);
}

/// Name, type, stability, labels, and bounds of buckets: as Kubernetes 1.36 documents its metrics.
const DOCUMENTED: &str = include_str!("documented.txt");

#[test]
fn names_types_labels_and_bounds_are_those_of_kubernetes() {
    let mut names = BTreeSet::new();
    for measure in ALL {
        assert!(names.insert(measure.name), "{} is there twice", measure.name);
        assert_eq!(measure.differs_from(DOCUMENTED), None);
    }
}
