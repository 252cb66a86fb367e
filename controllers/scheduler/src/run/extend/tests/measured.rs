//! The metrics of attempts that are taken up again with an answer.

use super::*;
use crate::run::tests::metric;

const PROFILE: &str = "default-scheduler";

/// Returns how often each extension point has run, as `NAME STATUS NUMBER`.
fn points(world: &World) -> Vec<String> {
    let name = "scheduler_framework_extension_point_duration_seconds";
    let mut points = Vec::new();
    for point in ["PreFilter", "Filter", "PostFilter", "Score", "Reserve"] {
        for status in ["Success", "Unschedulable", "UnschedulableAndUnresolvable", "Error"] {
            if let Some(number) = metric(&world.scheduler, name, &[point, status, PROFILE]) {
                points.push(format!("{point} {status} {number}"));
            }
        }
    }
    points
}

fn algorithms(world: &World) -> Option<f64> {
    metric(&world.scheduler, "scheduler_scheduling_algorithm_duration_seconds", &[])
}

fn evaluations(world: &World, plugin: &str, point: &str) -> Option<f64> {
    metric(&world.scheduler, "scheduler_plugin_evaluation_total", &[plugin, point, PROFILE])
}

#[tokio::test]
async fn attempt_counts_what_has_run_before_the_answer_and_after_it() {
    let server = passing(&["a", "b"]).await;
    let mut world = World::new(json!([filter(&server)]), &["a", "b", "c"]).await;
    world.create("p", json!({}));
    world.until_bound("p").await;
    let expected = ["PreFilter Success 1", "Filter Success 1", "Score Success 1", "Reserve Success 1"];
    assert_eq!((points(&world), algorithms(&world)), (expected.map(str::to_owned).to_vec(), Some(1.0)));
    for (point, number) in [("PreFilter", 0.0), ("Filter", 1.0), ("Score", 1.0)] {
        let shown = evaluations(&world, "NodeResourcesFit", point);
        assert!(shown.is_none_or(|shown| shown == number), "{point}: {shown:?}");
    }
    assert_eq!(evaluations(&world, "NodeResourcesFit", "Filter"), Some(1.0));
}

#[tokio::test]
async fn attempt_that_extenders_end_counts_what_has_run() {
    let broken = Server::start(|_, _| Reply::Json(json!({"Error": "the rack is on fire"}))).await;
    let refused = ["PreFilter Success 1", "Filter Success 1", "PostFilter Unschedulable 1"];
    for (server, expected) in [(passing(&[]).await, &refused[..]), (broken, &refused[..2])] {
        let mut world = World::new(json!([filter(&server)]), &["a", "b"]).await;
        world.create("p", json!({}));
        world.until_told("p").await;
        assert_eq!(
            (points(&world), algorithms(&world)),
            (expected.iter().map(|one| (*one).to_owned()).collect(), Some(1.0))
        );
    }
}

#[tokio::test]
async fn attempts_between_question_and_answer_count_for_themselves() {
    let server = passing(&["a"]).await;
    let mut world = World::new(json!([of_gpus(&server)]), &["a", "b"]).await;
    world.create("gpu", using("example.com/gpu", "1"));
    let attempting = world.scheduler.queue.pop(Instant::now()).unwrap();
    world.scheduler.attempt(&attempting);
    world.create("plain", json!({}));
    let attempting = world.scheduler.queue.pop(Instant::now()).unwrap();
    world.scheduler.attempt(&attempting);
    let of_plain = ["PreFilter Success 1", "Filter Success 1", "Score Success 1", "Reserve Success 1"]
        .map(str::to_owned);
    assert_eq!((points(&world), algorithms(&world)), (of_plain.to_vec(), Some(1.0)));
    assert_eq!(world.until_bound("gpu").await, "a");
    let of_both = ["PreFilter Success 2", "Filter Success 2", "Score Success 1", "Reserve Success 2"];
    assert_eq!((points(&world), algorithms(&world)), (of_both.map(str::to_owned).to_vec(), Some(2.0)));
}

#[tokio::test]
async fn nodes_are_filtered_once_more_if_the_nominated_one_is_refused() {
    let server = passing(&["b"]).await;
    let mut world = World::new(json!([filter(&server)]), &["a", "b"]).await;
    world.create("p", json!({"status": {"nominatedNodeName": "a"}}));
    world.until_bound("p").await;
    let expected = ["PreFilter Success 1", "Filter Success 2", "Reserve Success 1"];
    assert_eq!(points(&world), expected.map(str::to_owned).to_vec());
}
