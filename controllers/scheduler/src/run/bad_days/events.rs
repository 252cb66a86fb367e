//! Events of `events.k8s.io/v1` that tell of pods.

use super::*;

/// Returns all events with the words of one, and the names of the pods that they are about.
fn told(api: &FakeApi) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut told: Vec<String> = api
        .all("events")
        .iter()
        .map(|event| {
            let words = ["type", "reason", "action", "reportingController", "reportingInstance"];
            let words: Vec<String> = words.iter().map(|word| text(&event[*word])).collect();
            let related = match event["related"]["name"].as_str() {
                Some(name) => format!(" with {name}"),
                None => String::new(),
            };
            let about = text(&event["regarding"]["name"]);
            format!("{about}{related}: {}: {}", words.join(" "), text(&event["note"]))
        })
        .collect();
    told.sort();
    told
}

fn config() -> Config {
    Config { host: "control".to_owned(), ..Config::default() }
}

#[tokio::test(start_paused = true)]
async fn placing_refusing_and_preempting_are_told_with_their_actions() {
    let api = FakeApi::new();
    add_node(&api, "n", json!({"cpu": "1"})).await;
    let line = Line::new(&api, vec![]);
    let _life = Life::begin(line.client(), ambient(), config());
    add_pod(&api, "low", "1", json!({})).await;
    line.until(5).await;
    add_pod(&api, "urgent", "1", json!({"spec": {"priority": 10}})).await;
    line.until(20).await;
    let uid = |name: &str| {
        let of = |(_, pod): &(_, Value)| pod["metadata"]["name"] == name;
        api.history("pods").into_iter().find(of).unwrap().1["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let preempted = format!("Preempted by pod {} on node n", uid("urgent"));
    let reporter = "default-scheduler default-scheduler-control";
    let scheduled = |name: &str| {
        format!("{name}: Normal Scheduled Binding {reporter}: Successfully assigned ns/{name} to n")
    };
    let told = told(&api);
    assert!(told.contains(&scheduled("low")), "{told:#?}");
    assert!(told.contains(&scheduled("urgent")), "{told:#?}");
    let expected = format!("low with urgent: Normal Preempted Preempting {reporter}: {preempted}");
    assert!(told.contains(&expected), "{told:#?}");
    let failed = format!("urgent: Warning FailedScheduling Scheduling {reporter}: 0/1 nodes are available");
    assert!(told.iter().any(|event| event.starts_with(&failed)), "{told:#?}");
    let related = api.all("events").into_iter().find(|event| event["reason"] == "Preempted").unwrap();
    assert_eq!(related["related"]["kind"], "Pod");
    assert_eq!(related["related"]["uid"], uid("urgent"));
}

#[tokio::test(start_paused = true)]
async fn refusals_of_a_pod_that_does_not_change_are_one_event_with_a_series() {
    let api = FakeApi::new();
    let line = Line::new(&api, vec![]);
    let _life = Life::begin(line.client(), ambient(), config());
    add_pod(&api, "p", "1", json!({})).await;
    // A pod that nothing wakes is tried again each five minutes.
    line.until(32 * 60).await;
    let events = api.all("events");
    assert!(events.iter().all(|event| event["note"] == "no nodes available to schedule pods"), "{events:?}");
    // The first one is about the pod without the condition that tells of it.
    let series: Vec<&Value> = events.iter().map(|event| &event["series"]["count"]).collect();
    assert_eq!(series.len(), 2, "{events:#?}");
    assert_eq!(series.iter().filter(|count| count.is_null()).count(), 1, "{events:#?}");
    let series = events.iter().find(|event| !event["series"].is_null()).unwrap();
    assert!(series["series"]["count"].as_i64().is_some_and(|count| count >= 2), "{series:#}");
    assert!(series["series"]["lastObservedTime"].as_str() > series["eventTime"].as_str(), "{series:#}");
}
