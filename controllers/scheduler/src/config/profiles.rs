//! From the profiles of a document to those that run: plugins of the default profile, with what the document enables and
//! disables, by extension point.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::document::{self, Plugin as Named, PluginSet};
use super::problems::Problems;
use super::registry::{Point, Registry};
use crate::framework::{Plugin, Profile, Sampling};

/// Names every plugin.
const ALL: &str = "*";

/// Returns the profile of a document.
pub(super) fn profile(
    name: String,
    given: document::Profile,
    percentage: Option<i64>,
    registry: Registry,
    problems: &mut Problems,
) -> Profile {
    let plugins = given.plugins;
    let multi_point =
        problems.within("plugins.multiPoint", |problems| merged(plugins.multi_point, registry, problems));
    let mut lists = BTreeMap::new();
    let sets = [
        (Point::PreEnqueue, "preEnqueue", plugins.pre_enqueue),
        (Point::QueueSort, "queueSort", plugins.queue_sort),
        (Point::PreFilter, "preFilter", plugins.pre_filter),
        (Point::Filter, "filter", plugins.filter),
        (Point::PostFilter, "postFilter", plugins.post_filter),
        (Point::PreScore, "preScore", plugins.pre_score),
        (Point::Score, "score", plugins.score),
        (Point::Reserve, "reserve", plugins.reserve),
        (Point::Permit, "permit", plugins.permit),
        (Point::PreBind, "preBind", plugins.pre_bind),
        (Point::Bind, "bind", plugins.bind),
        (Point::PostBind, "postBind", plugins.post_bind),
    ];
    for (point, field, set) in sets {
        let list = problems.within(format_args!("plugins.{field}"), |problems| {
            expanded(point, &set, &multi_point, registry, problems)
        });
        lists.insert(point, list);
    }
    let args = arguments(given.plugin_config, registry, problems);
    let sampling = sampling(given.percentage_of_nodes_to_score.or(percentage), problems);
    made(name, (&lists, &args), sampling, registry, problems)
}

/// Returns how many nodes are scored. Without a percentage all are: a sample is no quicker here.
pub(super) fn sampling(percentage: Option<i64>, problems: &mut Problems) -> Sampling {
    let Some(percentage) = percentage else { return Sampling::All };
    let field = "percentageOfNodesToScore";
    problems.check((0..=100).contains(&percentage), field, "not in valid range [0-100]");
    match u8::try_from(percentage) {
        Ok(percent) if percent < 100 => Sampling::Percent(percent),
        _ => Sampling::All,
    }
}

fn unsupported(plugin: &Named, problems: &mut Problems) {
    problems.add("enabled", format_args!("plugin {:?} does not run at this extension point", plugin.name));
}

/// The plugins of each extension point.
type Lists = BTreeMap<Point, Vec<Named>>;
/// The arguments by plugin, with their index in the document.
type Arguments = BTreeMap<String, (usize, Value)>;

/// Returns the plugins of the default profile as a document changes them: what is disabled is left out, what is enabled
/// again takes its place, and others follow.
pub(super) fn merged(custom: PluginSet, registry: Registry, problems: &mut Problems) -> Vec<Named> {
    let disabled: BTreeSet<&str> = custom.disabled.iter().map(|plugin| plugin.name.as_str()).collect();
    let mut replaced = BTreeSet::new();
    let mut plugins = Vec::new();
    let is_enabled = |name| !disabled.contains(ALL) && !disabled.contains(name);
    for entry in registry.entries().filter(|entry| is_enabled(entry.name)) {
        let again = custom.enabled.iter().position(|plugin| plugin.name == entry.name);
        replaced.extend(again);
        let default = Named { name: entry.name.to_owned(), weight: Some(entry.weight) };
        plugins.push(again.map_or(default, |index| custom.enabled[index].clone()));
    }
    let others = custom.enabled.iter().enumerate().filter(|(index, _)| !replaced.contains(index));
    plugins.extend(others.map(|(_, plugin)| plugin.clone()));
    let mut seen = BTreeSet::new();
    for plugin in &plugins {
        let (is_known, is_new) = (registry.named(&plugin.name).is_some(), seen.insert(plugin.name.as_str()));
        problems.check(is_known, "enabled", format_args!("plugin {:?} does not exist", plugin.name));
        problems.check(is_new, "enabled", format_args!("plugin {:?} is there twice", plugin.name));
    }
    plugins.retain(|plugin| registry.named(&plugin.name).is_some());
    plugins
}

/// Returns the plugins of an extension point: those that `set` enables and `multi_point` has too, then the others of
/// `multi_point`, then the others of `set` (`expandMultiPointPlugins`).
fn expanded(
    point: Point,
    set: &PluginSet,
    multi_point: &[Named],
    registry: Registry,
    problems: &mut Problems,
) -> Vec<Named> {
    let mut explicit = Vec::new();
    for plugin in &set.enabled {
        match registry.named(&plugin.name) {
            None => problems.add("enabled", format_args!("plugin {:?} does not exist", plugin.name)),
            Some(entry) if !entry.points.contains(&point) => unsupported(plugin, problems),
            Some(_) => explicit.push(plugin.clone()),
        }
    }
    let disables = |name: &str| set.disabled.iter().any(|plugin| plugin.name == name);
    if disables(ALL) {
        return explicit;
    }
    let runs =
        |plugin: &&Named| registry.named(&plugin.name).is_some_and(|entry| entry.points.contains(&point));
    let spread: Vec<&Named> =
        multi_point.iter().filter(runs).filter(|plugin| !disables(&plugin.name)).collect();
    let is_spread = |plugin: &Named| spread.iter().any(|other| other.name == plugin.name);
    let (overriding, others): (Vec<Named>, Vec<Named>) = explicit.into_iter().partition(is_spread);
    let remaining = spread.iter().filter(|plugin| overriding.iter().all(|other| other.name != plugin.name));
    let remaining: Vec<Named> = remaining.map(|plugin| (*plugin).clone()).collect();
    overriding.into_iter().chain(remaining).chain(others).collect()
}

/// Returns the arguments by plugin.
fn arguments(given: Vec<document::PluginConfig>, registry: Registry, problems: &mut Problems) -> Arguments {
    let mut arguments = BTreeMap::new();
    for (index, config) in given.into_iter().enumerate() {
        let field = format!("pluginConfig[{index}]");
        problems.check(
            registry.named(&config.name).is_some(),
            &field,
            format_args!("plugin {:?} does not exist", config.name),
        );
        let before = arguments.insert(config.name.clone(), (index, config.args));
        problems.check(before.is_none(), &field, format_args!("{:?} is there twice", config.name));
    }
    arguments
}

/// Makes the plugins, each once.
fn made(
    name: String,
    (lists, args): (&Lists, &Arguments),
    sampling: Sampling,
    registry: Registry,
    problems: &mut Problems,
) -> Profile {
    let wanted: BTreeSet<&str> = lists.values().flatten().map(|plugin| plugin.name.as_str()).collect();
    let mut plugins: Vec<Box<dyn Plugin>> = Vec::new();
    let mut indices: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in registry.entries().filter(|entry| wanted.contains(entry.name)) {
        let Some(make) = entry.make else { continue };
        let none = (0, Value::Null);
        let (index, of) = args.get(entry.name).unwrap_or(&none);
        let plugin =
            problems.within(format_args!("pluginConfig[{index}].args"), |problems| make(of, problems));
        indices.insert(entry.name, plugins.len());
        plugins.push(plugin);
    }
    let index = |plugin: &Named| indices.get(plugin.name.as_str()).copied();
    let list = |point: Point| lists[&point].iter().filter_map(index).collect();
    // A weight of zero is none.
    let weight = |plugin: &Named| plugin.weight.filter(|weight| *weight != 0).unwrap_or(1);
    let score =
        lists[&Point::Score].iter().filter_map(|plugin| Some((index(plugin)?, weight(plugin)))).collect();
    Profile {
        pre_enqueue: list(Point::PreEnqueue),
        pre_filter: list(Point::PreFilter),
        filter: list(Point::Filter),
        post_filter: list(Point::PostFilter),
        score,
        reserve: list(Point::Reserve),
        permit: list(Point::Permit),
        pre_bind: list(Point::PreBind),
        post_bind: list(Point::PostBind),
        name,
        plugins,
        sampling,
    }
}
