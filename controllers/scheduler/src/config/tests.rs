use super::*;
use crate::framework::Sampling;

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

fn parse(fields: &str) -> Result<Configuration, String> {
    Configuration::parse(&format!("{HEAD}{fields}")).map_err(|error| error.to_string())
}

/// Returns the first profile of a document.
fn profile(fields: &str) -> Profile {
    parse(fields).unwrap().profiles.remove(0)
}

fn refused(fields: &str) -> String {
    parse(fields).err().unwrap()
}

/// Returns the names of the plugins of a list.
fn names(profile: &Profile, list: &[usize]) -> Vec<&'static str> {
    list.iter().map(|index| profile.plugin(*index).name()).collect()
}

/// Returns the names of plugins that score, with their weights.
fn scores(profile: &Profile) -> Vec<(&'static str, i64)> {
    profile.score.iter().map(|(index, weight)| (profile.plugin(*index).name(), *weight)).collect()
}

#[test]
fn document_without_profiles_means_the_default_one() {
    let (default, read) = (default_profile(), profile(""));
    assert_eq!(read.name, "default-scheduler");
    assert_eq!(scores(&read), scores(&default));
    assert_eq!(names(&read, &read.filter), names(&default, &default.filter));
    assert!(scores(&read).contains(&("TaintToleration", 3)));
    assert_eq!(read.sampling, Sampling::All, "a sample is taken only if it is asked for");
}

#[test]
fn plugins_are_disabled_at_one_point_or_at_all() {
    let one = profile("profiles: [{plugins: {score: {disabled: [{name: TaintToleration}]}}}]");
    assert!(!scores(&one).iter().any(|(name, _)| *name == "TaintToleration"));
    assert!(names(&one, &one.filter).contains(&"TaintToleration"));
    let all = profile("profiles: [{plugins: {multiPoint: {disabled: [{name: TaintToleration}]}}}]");
    assert!(!names(&all, &all.filter).contains(&"TaintToleration"));
    let none = profile("profiles: [{plugins: {score: {disabled: [{name: '*'}]}}}]");
    assert_eq!(scores(&none), []);
    let only = profile(
        "profiles: [{plugins: {score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality, weight: 7}]}}}]",
    );
    assert_eq!(scores(&only), [("ImageLocality", 7)]);
}

#[test]
fn plugins_enabled_again_come_first_with_their_new_weights() {
    let profile = profile("profiles: [{plugins: {score: {enabled: [{name: ImageLocality, weight: 9}]}}}]");
    assert_eq!(scores(&profile)[0], ("ImageLocality", 9));
    assert_eq!(scores(&profile).len(), scores(&default_profile()).len());
    let elsewhere = super::tests::profile(
        "profiles: [{plugins: {multiPoint: {enabled: [{name: TaintToleration, weight: 5}]}}}]",
    );
    assert_eq!(
        scores(&elsewhere).iter().find(|(name, _)| *name == "TaintToleration"),
        Some(&("TaintToleration", 5))
    );
}

#[test]
fn plugins_run_at_permit_and_post_bind_only_if_they_can() {
    let permit = "profiles: [{plugins: {permit: {enabled: [{name: GangScheduling}]}}}]";
    assert!(refused(permit).contains("plugins.permit.enabled: plugin \"GangScheduling\" does not exist"));
    for point in ["permit", "postBind"] {
        let error =
            refused(&format!("profiles: [{{plugins: {{{point}: {{enabled: [{{name: NodeName}}]}}}}}}]"));
        let expected =
            format!("plugins.{point}.enabled: plugin \"NodeName\" does not run at this extension point");
        assert!(error.contains(&expected), "{error}");
    }
    let default = default_profile();
    assert!(default.permit.is_empty() && default.post_bind.is_empty(), "nothing runs there by default");
}

#[test]
fn gangs_have_a_plugin_at_the_end_of_the_profile_if_their_gate_is_on() {
    let gates = Gates { generic_workload: true, gang_scheduling: true, ..Gates::default() };
    let with_gates = |fields: &str| {
        let document = Configuration::read(&format!("{HEAD}{fields}")).unwrap();
        Configuration::with_gates(document, gates).unwrap()
    };
    let read = with_gates("");
    assert_eq!(read.gates, gates);
    let one = &read.profiles[0];
    assert_eq!(names(one, &one.permit), ["GangScheduling"]);
    assert_eq!(names(one, &one.pre_enqueue).last(), Some(&"GangScheduling"));
    let without = with_gates("profiles: [{plugins: {permit: {disabled: [{name: GangScheduling}]}}}]");
    let without = &without.profiles[0];
    assert!(without.permit.is_empty() && names(without, &without.pre_enqueue).contains(&"GangScheduling"));
    let alone = Gates { gang_scheduling: false, ..gates };
    assert!(default_profile_with(alone).permit.is_empty());
    let shown = with_defaults(Configuration::read(HEAD).unwrap(), gates);
    let enabled = shown["profiles"][0]["plugins"]["multiPoint"]["enabled"].as_array().unwrap().clone();
    assert_eq!(enabled.last().unwrap()["name"], "GangScheduling");
}

#[test]
fn several_profiles_need_names_of_their_own() {
    let two =
        parse("profiles: [{schedulerName: a}, {schedulerName: b, percentageOfNodesToScore: 30}]").unwrap();
    let found: Vec<(&str, Sampling)> =
        two.profiles.iter().map(|profile| (profile.name.as_str(), profile.sampling)).collect();
    assert_eq!(found, [("a", Sampling::All), ("b", Sampling::Percent(30))]);
    assert!(
        refused("profiles: [{schedulerName: a}, {schedulerName: a}]").contains("profiles[1].schedulerName")
    );
    assert!(refused("profiles: [{schedulerName: a}, {}]").contains("profiles[1].schedulerName: is required"));
}

#[test]
fn errors_name_every_field_that_is_wrong() {
    let error = refused(
        "podInitialBackoffSeconds: 20\npodMaxBackoffSeconds: 5\nprofiles: [{pluginConfig: [
          {name: DefaultPreemption, args: {minCandidateNodesPercentage: 101}},
          {name: NodeResourcesFit, args: {scoringStrategy: {type: Best}}}]}]",
    );
    for field in [
        "podMaxBackoffSeconds: must be greater",
        "profiles[0].pluginConfig[0].args.minCandidateNodesPercentage: 101",
        "profiles[0].pluginConfig[1].args.scoringStrategy.type: \"Best\"",
    ] {
        assert!(error.contains(field), "{field} in {error}");
    }
    assert!(refused("podBackoff: 1").contains("podBackoff"), "unknown fields are refused");
    assert!(
        refused("profiles: [{plugins: {filter: {enabled: [{name: Foo}]}}}]")
            .contains("\"Foo\" does not exist")
    );
    assert!(Configuration::parse("kind: Pod\napiVersion: v1").is_err());
}

#[test]
fn queue_and_election_take_the_given_times() {
    let read = parse(
        "podInitialBackoffSeconds: 2\npodMaxBackoffSeconds: 60\nleaderElection: {leaderElect: false, leaseDuration: 30s}",
    )
    .unwrap();
    assert_eq!(read.queue.initial_backoff, Duration::from_secs(2));
    assert_eq!(read.queue.max_backoff, Duration::from_secs(60));
    assert_eq!(read.leader_election.leader_elect, Some(false));
    assert_eq!(read.leader_election.lease_duration, Some(Duration::from_secs(30)));
    assert!(refused("leaderElection: {leaseDuration: soon}").contains("leaderElection.leaseDuration"));
}

#[test]
fn extenders_are_validated_in_the_words_of_kubernetes() {
    let extender = |fields: &str| format!("{{urlPrefix: 'http://127.0.0.1:1', {fields}}}");
    let of = |all: &[String]| format!("extenders: [{}]", all.join(", "));
    assert!(parse(&of(&[extender("filterVerb: filter")])).unwrap().queue.has_extenders);
    let text = |fields: &str| refused(&of(&[extender(fields)]));
    let expect = |error: String, expected: &str| assert!(error.ends_with(expected), "{error}");
    let weight = "extenders[0].weight: Invalid value: -1: must have a positive weight applied to it";
    expect(text("prioritizeVerb: p, weight: -1"), weight);
    let zero = "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it";
    expect(text("prioritizeVerb: p"), zero);
    let twice = "extenders[0].managedResources[1].name: Invalid value: \"foo.com/a\": duplicate extender managed resource name";
    expect(text("managedResources: [{name: foo.com/a}, {name: foo.com/a}]"), twice);
    let native =
        "extenders[0].managedResources[0].name: Invalid value: \"cpu\": is an invalid extended resource name";
    expect(text("managedResources: [{name: cpu}]"), native);
    assert!(
        text("managedResources: [{name: a/b/c}]").contains("\"a/b/c\": a valid label key must consist of")
    );
    assert!(text("managedResources: [{name: /b}]").contains("\"/b\": prefix part must be non-empty"));
    let two = [extender("bindVerb: a"), extender("bindVerb: b")];
    let binders = "extenders: Invalid value: \"found 2 extenders implementing bind\": only one extender can implement bind";
    expect(refused(&of(&two)), binders);
    assert!(text("httpTimeout: -1s").contains("extenders[0].httpTimeout"));
    assert!(text("httpTimeout: soon").contains("soon"));
}
