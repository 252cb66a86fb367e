use serde_json::{Value, json};

use crate::batch::{cron_job, job};
use crate::testing::{
    NONE, apply_defaults, completed_template_spec, edited, errors, pod_template, row, stored, update_errors,
    warnings, with,
};

#[test]
fn jobs_run_once_by_default_and_select_their_own_pods() {
    let mut job = apply_defaults(
        job::default,
        json!({
        "metadata": {"name": "j", "uid": "u"},
        "spec": {"template": {"metadata": {"labels": {"mine": "x"}}}}}),
    );
    assert_eq!((&job["spec"]["completions"], &job["spec"]["parallelism"]), (&json!(1), &json!(1)));
    assert_eq!(job["spec"]["backoffLimit"], 6);
    assert_eq!(job["metadata"]["labels"], json!({"mine": "x"}));
    job::prepare_create(&mut job);
    assert_eq!(job["metadata"]["labels"], json!({"mine": "x"}));
    assert_eq!(job["spec"]["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}));
    assert_eq!(
        job["spec"]["template"]["metadata"]["labels"],
        json!({"mine": "x", "controller-uid": "u", "job-name": "j",
               "batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "j"})
    );
    let mut bare = apply_defaults(job::default, json!({"metadata": {"name": "j", "uid": "u"}, "spec": {}}));
    job::prepare_create(&mut bare);
    assert!(bare["metadata"].get("labels").is_none(), "they are not taken for labels of the job");
    assert_eq!(apply_defaults(job::default, bare)["metadata"]["labels"]["job-name"], "j");
    let queue = apply_defaults(job::default, json!({"spec": {"parallelism": 5}}));
    assert!(queue["spec"].get("completions").is_none());
    let cron = apply_defaults(
        cron_job::default,
        json!({"spec": {"jobTemplate": {"spec": {"template": pod_template()}}}}),
    );
    assert_eq!(cron["spec"]["concurrencyPolicy"], "Allow");
    assert_eq!(cron["spec"]["jobTemplate"]["spec"]["template"]["spec"], completed_template_spec());
}

fn job() -> Value {
    json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}})
}

#[test]
fn jobs_with_wrong_fields_are_refused() {
    let check = |spec: Value, wanted: &[&str]| {
        let mut object = job();
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        assert_eq!(errors("batch", "jobs", &object), wanted, "{spec}");
    };
    check(
        json!({"completionMode": "Indexed", "completions": 3, "parallelism": 200_000}),
        &[
            "spec.parallelism: Invalid value: 200000: must be less than or equal to 100000 when completion mode is Indexed",
        ],
    );
    check(
        json!({"backoffLimitPerIndex": 1, "maxFailedIndexes": 2}),
        &[
            "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
            "spec.maxFailedIndexes: Invalid value: 2: requires indexed completion mode",
        ],
    );
    check(
        json!({"managedBy": "me", "completionMode": "Indexed", "completions": 1, "maxFailedIndexes": 2}),
        &[
            "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
            "spec.managedBy: Invalid value: \"me\": must be a domain-prefixed path (such as \"acme.io/foo\")",
            "spec.maxFailedIndexes: Invalid value: 2: must be less than or equal to completions",
        ],
    );
    check(
        json!({"podFailurePolicy": {"rules": [
        {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [3, 0, 3], "containerName": "x"}},
        {"action": "Ignore"},
        {"action": "Shrug", "onPodConditions": [{"type": "A"}], "onExitCodes": {"operator": "NotIn", "values": [1]}}]},
        "podReplacementPolicy": "TerminatingOrFailed"}),
        &[
            "spec.podFailurePolicy.rules[0].action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set",
            "spec.podFailurePolicy.rules[0].onExitCodes.containerName: Invalid value: \"x\": must be one of the container or initContainer names in the pod template",
            "spec.podFailurePolicy.rules[0].onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator",
            "spec.podFailurePolicy.rules[0].onExitCodes.values[2]: Duplicate value: 3",
            "spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [3,0,3]: must be ordered",
            "spec.podFailurePolicy.rules[1]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
            "spec.podFailurePolicy.rules[2].action: Unsupported value: \"Shrug\": supported values: \"Count\", \"FailIndex\", \"FailJob\", \"Ignore\"",
            "spec.podFailurePolicy.rules[2]: Invalid value: specifying both OnExitCodes and OnPodConditions is not supported",
            "spec.podReplacementPolicy: Unsupported value: \"TerminatingOrFailed\": supported values: \"Failed\"",
        ],
    );
    check(
        json!({"completionMode": "Indexed", "completions": 5, "successPolicy": {"rules": [
        {}, {"succeededIndexes": "1,3-4", "succeededCount": 4}, {"succeededIndexes": "4,3"}, {"succeededIndexes": "7"}]}}),
        &[
            "spec.successPolicy.rules[0]: Required value: at least one of succeededCount or succeededIndexes must be specified",
            "spec.successPolicy.rules[1].succeededCount: Invalid value: 4: must be less than or equal to 3 (the number of indexes in the specified succeededIndexes field)",
            "spec.successPolicy.rules[2].succeededIndexes: Invalid value: \"4,3\": error parsing succeededIndexes: non-increasing order, previous: 4, current: 3",
            "spec.successPolicy.rules[3].succeededIndexes: Invalid value: \"7\": error parsing succeededIndexes: too large index: \"7\"",
        ],
    );
    let mut long = edited(&job(), &[("/metadata/name", json!("j".repeat(62)))]);
    long["spec"]["completionMode"] = json!("Indexed");
    long["spec"]["completions"] = json!(10);
    assert!(errors("batch", "jobs", &long)[0].contains("will not able to create pod with invalid DNS label"));
}

#[test]
fn selectors_of_jobs_are_made_by_the_server() {
    let made = |edits: &[(&str, Value)]| {
        let mut object = edited(&with(job(), "/metadata/uid", json!("u-1")), edits);
        job::prepare_create(&mut object);
        errors("batch", "jobs", &object)
    };
    assert_eq!(made(&[]), NONE);
    assert_eq!(
        made(&[("/spec/template/metadata", json!({"labels": {"job-name": "other"}}))]).len(),
        1,
        "a label that says something else"
    );
    let foreign = made(&[("/spec/selector", json!({"matchLabels": {"a": "b"}}))]);
    assert!(foreign[0].ends_with("`selector` not auto-generated"), "{foreign:?}");
    let manual = [
        ("/spec/selector", json!({"matchLabels": {"a": "b"}})),
        ("/spec/manualSelector", json!(true)),
        ("/spec/template/metadata", json!({"labels": {"a": "b"}})),
    ];
    assert_eq!(made(&manual), NONE);
}

#[test]
fn jobs_refuse_changes_of_immutable_fields() {
    let old = stored(
        "batch",
        "jobs",
        edited(
            &job(),
            &[
                ("/spec/completionMode", json!("Indexed")),
                ("/spec/completions", json!(3)),
                ("/spec/parallelism", json!(3)),
            ],
        ),
    );
    let check = |old: &Value, edits: &[(&str, Value)], wanted: &[&str]| {
        let found = update_errors("batch", "jobs", &edited(old, edits), old);
        let fields: Vec<String> = found.iter().map(|e| e.split(": ").next().unwrap().to_owned()).collect();
        assert_eq!(fields, wanted, "{edits:?} {found:?}");
    };
    check(&old, &[("/spec/completions", json!(5)), ("/spec/parallelism", json!(5))], &[]);
    check(&old, &[("/spec/completions", json!(5))], &["spec.completions"]);
    check(
        &old,
        &[("/spec/backoffLimitPerIndex", json!(5)), ("/spec/managedBy", json!("a/b"))],
        &["spec.backoffLimitPerIndex", "spec.managedBy"],
    );
    check(&old, &[("/spec/template/spec/nodeSelector", json!({"a": "b"}))], &["spec.template"]);
    let suspended = with(old.clone(), "/spec/suspend", json!(true));
    for (pointer, value) in [
        ("/spec/template/spec/nodeSelector", json!({"a": "b"})),
        ("/spec/template/spec/affinity", json!({"nodeAffinity": {}})),
        ("/spec/template/metadata", json!({"annotations": {"a": "b"}, "labels": {"c": "d"}})),
        ("/spec/template/spec/containers/0/resources", json!({"requests": {"cpu": "1"}})),
    ] {
        check(&suspended, &[(pointer, value)], &[]);
    }
    check(&suspended, &[("/spec/template/spec/containers/0/image", json!("x"))], &["spec.template.spec"]);
    let running =
        with(suspended.clone(), "/status", json!({"startTime": "2024-01-01T00:00:00Z", "active": 1}));
    check(&running, &[("/spec/template/spec/nodeSelector", json!({"a": "b"}))], &["spec.template"]);
}

#[test]
fn cron_jobs_with_wrong_fields_are_refused() {
    let cron = json!({"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job()["spec"]}}});
    let check = |edits: &[(&str, Value)], wanted: &[&str]| {
        assert_eq!(errors("batch", "cronjobs", &edited(&cron, edits)), wanted, "{edits:?}");
    };
    check(&[], &[]);
    check(
        &[("/spec/timeZone", json!("")), ("/spec/schedule", json!("CRON_TZ=UTC * * * * *"))],
        &[
            "spec.schedule: Invalid value: \"CRON_TZ=UTC * * * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
            "spec.timeZone: Invalid value: \"\": timeZone must be nil or non-empty string",
        ],
    );
    check(
        &[("/spec/timeZone", json!("local"))],
        &[
            "spec.timeZone: Invalid value: \"local\": timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
            "spec.timeZone: Invalid value: \"local\": unknown time zone local",
        ],
    );
    check(
        &[("/spec/jobTemplate/spec/manualSelector", json!(true)), ("/metadata/name", json!("c".repeat(53)))],
        &[
            "spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: \"nil\", \"false\"",
            &format!(
                "metadata.name: Invalid value: \"{}\": must be no more than 52 characters",
                "c".repeat(53)
            ),
        ],
    );
}

#[test]
fn jobs_and_schedules_with_wrong_fields_are_refused() {
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    assert_eq!(errors("batch", "jobs", &job), NONE);
    let always = with(job.clone(), "/spec/template/spec/restartPolicy", json!("Always"));
    assert_eq!(
        errors("batch", "jobs", &always),
        ["spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""]
    );
    let more = with(job.clone(), "/spec/completions", json!(7));
    assert_eq!(
        update_errors("batch", "jobs", &more, &job),
        ["spec.completions: Invalid value: 7: field is immutable"]
    );
    let image = with(job.clone(), "/spec/template/spec/containers/0/image", json!("j"));
    assert_eq!(update_errors("batch", "jobs", &image, &job).len(), 1);
    let suspended = with(job.clone(), "/spec/suspend", json!(true));
    let placed = with(suspended.clone(), "/spec/template/spec/nodeSelector", json!({"a": "b"}));
    assert_eq!(update_errors("batch", "jobs", &placed, &suspended), NONE);

    let cron = |schedule: &str| {
        errors(
            "batch",
            "cronjobs",
            &json!({"metadata": {"name": "c"}, "spec": {
            "schedule": schedule, "jobTemplate": {"spec": job["spec"]}}}),
        )
    };
    for good in ["*/5 * * * *", "0 0 1,15 jan-mar SUN", "@daily", "@every 1h", "0-30/10 2 ? * 1-5"] {
        assert_eq!(cron(good), NONE, "{good}");
    }
    for bad in [
        "",
        "* * * *",
        "60 * * * *",
        "*/0 * * * *",
        "@sometimes",
        "5-1 * * * *",
        "TZ=UTC * * * * *",
        "x * * * *",
    ] {
        assert_eq!(cron(bad).len(), 1, "{bad}");
    }
}

#[test]
fn rows_of_jobs_show_their_completions_and_duration() {
    let template =
        json!({"spec": {"containers": [{"name": "a", "image": "i:1"}, {"name": "b", "image": "j:1"}]}});
    let job = json!({"metadata": {"name": "j"}, "spec": {"completions": 2, "template": template},
        "status": {"succeeded": 2, "startTime": "2024-01-01T00:00:00Z", "completionTime": "2024-01-01T00:01:10Z",
            "conditions": [{"type": "Complete", "status": "True"}]}});
    assert_eq!(row("batch", "jobs", &job), "j | Complete | 2/2 | 70s | <unknown> | a,b | i:1,j:1 | <none>");
}

#[test]
fn rows_of_cron_jobs_show_their_schedule_and_last_run() {
    let cron = json!({"metadata": {"name": "c"}, "spec": {"schedule": "@daily", "suspend": false},
        "status": {"lastScheduleTime": "2024-01-01T00:00:00Z", "active": [{}]}});
    assert_eq!(
        row("batch", "cronjobs", &cron),
        "c | @daily | <none> | False | 1 | 60m | <unknown> |  |  | <none>"
    );
}

#[test]
fn unchanged_templates_of_cron_jobs_raise_no_warnings() {
    let template = json!({"spec": {"terminationGracePeriodSeconds": -1}});
    let object = json!({"metadata": {"name": "d"}, "spec": {"template": template}});
    let warn = crate::table::kind("apps", "deployments").warnings.unwrap();
    assert_eq!(
        warn(&object, None),
        [
            "spec.template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ]
    );
    assert_eq!(warn(&object, Some(&object)), NONE);
    let cron = json!({"metadata": {"name": "c"}, "spec": {"schedule": "TZ=UTC * * * * *", "jobTemplate": {"spec": {"template": template}}}});
    let found = warnings("batch", "cronjobs", &cron);
    assert!(found[0].starts_with("spec.jobTemplate.spec.template.spec.terminationGracePeriodSeconds"));
    assert!(found[1].starts_with("CRON_TZ or TZ used in spec.schedule"));
}
