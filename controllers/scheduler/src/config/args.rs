//! Arguments of plugins: read, filled up with defaults, and validated as kube-scheduler does.

use std::collections::BTreeSet;
use std::time::Duration;

use apiserver_meta::period::Period;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::document::{self, API_VERSION};
use super::problems::Problems;
use crate::framework::PreemptionArgs;
use crate::plugins::{
    BalancedAllocationArgs, DynamicResourcesArgs, FitArgs, InterPodAffinityArgs, NodeAffinityArgs,
    PodTopologySpreadArgs, ResourceWeight, ShapePoint, Strategy, VolumeBinding, default_resources,
};

/// Highest score of a point of a shape.
const MAX_SHAPE_SCORE: i64 = 10;

/// Reads the arguments of a plugin; the defaults if there are none, or if they cannot be read.
fn read<T: DeserializeOwned + Default>(kind: &str, args: &Value, problems: &mut Problems) -> T {
    if args.is_null() {
        return T::default();
    }
    let mut args = args.clone();
    if let Some(fields) = args.as_object_mut() {
        for (field, expected) in [("apiVersion", API_VERSION), ("kind", kind)] {
            if let Some(given) = fields.remove(field) {
                problems.check(given == expected, field, format_args!("must be {expected}"));
            }
        }
    }
    serde_json::from_value(args).unwrap_or_else(|error| {
        problems.add("", error);
        T::default()
    })
}

pub(super) fn node_affinity(args: &Value, problems: &mut Problems) -> NodeAffinityArgs {
    let args: document::NodeAffinityArgs = read("NodeAffinityArgs", args, problems);
    NodeAffinityArgs { added_affinity: args.added_affinity }
}

pub(super) fn preemption(args: &Value, problems: &mut Problems) -> PreemptionArgs {
    let args: document::DefaultPreemptionArgs = read("DefaultPreemptionArgs", args, problems);
    let default = PreemptionArgs::default();
    let mut number = |field: &str, given: Option<i64>, default: u32, most: i64, range: &str| {
        let Some(given) = given else { return default };
        problems.check(
            (0..=most).contains(&given),
            field,
            format_args!("{given} is not in valid range {range}"),
        );
        u32::try_from(given).unwrap_or(default)
    };
    let percentage = number(
        "minCandidateNodesPercentage",
        args.min_candidate_nodes_percentage,
        default.min_candidate_nodes_percentage,
        100,
        "[0, 100]",
    );
    let absolute = number(
        "minCandidateNodesAbsolute",
        args.min_candidate_nodes_absolute,
        default.min_candidate_nodes_absolute,
        i64::from(i32::MAX),
        "[0, inf)",
    );
    let is_empty = percentage == 0 && absolute == 0;
    problems.check(
        !is_empty,
        "minCandidateNodesPercentage",
        "cannot be zero at the same time as minCandidateNodesAbsolute",
    );
    PreemptionArgs { min_candidate_nodes_percentage: percentage, min_candidate_nodes_absolute: absolute }
}

pub(super) fn inter_pod_affinity(args: &Value, problems: &mut Problems) -> InterPodAffinityArgs {
    let args: document::InterPodAffinityArgs = read("InterPodAffinityArgs", args, problems);
    let default = InterPodAffinityArgs::default();
    let weight = args.hard_pod_affinity_weight;
    let is_right = weight.is_none_or(|weight| (0..=100).contains(&weight));
    problems.check(is_right, "hardPodAffinityWeight", "not in valid range [0, 100]");
    let weight = weight.and_then(|weight| i32::try_from(weight).ok());
    InterPodAffinityArgs {
        hard_pod_affinity_weight: weight.unwrap_or(default.hard_pod_affinity_weight),
        ignore_preferred_terms_of_existing_pods: args.ignore_preferred_terms_of_existing_pods,
    }
}

pub(super) fn pod_topology_spread(args: &Value, problems: &mut Problems) -> PodTopologySpreadArgs {
    let args: document::PodTopologySpreadArgs = read("PodTopologySpreadArgs", args, problems);
    let constraints = args.default_constraints;
    let mut seen = BTreeSet::new();
    for (index, constraint) in constraints.iter().enumerate() {
        problems.within(format_args!("defaultConstraints[{index}]"), |problems| {
            problems.check(constraint.max_skew > 0, "maxSkew", "not in valid range (0, inf)");
            problems.check(!constraint.topology_key.is_empty(), "topologyKey", "can not be empty");
            let when = constraint.when_unsatisfiable.as_str();
            let is_known = ["DoNotSchedule", "ScheduleAnyway"].contains(&when);
            problems.check(is_known, "whenUnsatisfiable", "must be DoNotSchedule or ScheduleAnyway");
            let forbidden = "constraint must not define a selector, as they deduced for each pod";
            problems.check(constraint.label_selector.is_none(), "labelSelector", forbidden);
            let pair = (constraint.topology_key.clone(), when.to_owned());
            problems.check(seen.insert(pair), "", "its topologyKey and whenUnsatisfiable are there twice");
        });
    }
    match args.defaulting_type.as_str() {
        "" | "System" => {
            problems.check(
                constraints.is_empty(),
                "defaultingType",
                "System is not for .defaultConstraints that are not empty",
            );
            PodTopologySpreadArgs::System
        }
        "List" => PodTopologySpreadArgs::List(constraints),
        other => {
            problems.add("defaultingType", format_args!("{other:?} is neither System nor List"));
            PodTopologySpreadArgs::System
        }
    }
}

pub(super) fn volume_binding(args: &Value, problems: &mut Problems) -> VolumeBinding {
    let args: document::VolumeBindingArgs = read("VolumeBindingArgs", args, problems);
    let off = "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring";
    problems.check(args.shape.is_none(), "shape", off);
    let Some(seconds) = args.bind_timeout_seconds else { return VolumeBinding::default() };
    let field = "bindTimeoutSeconds";
    problems.check(seconds >= 0, field, "invalid BindTimeoutSeconds, should not be a negative value");
    VolumeBinding { bind_timeout: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()) }
}

pub(super) fn balanced_allocation(args: &Value, problems: &mut Problems) -> BalancedAllocationArgs {
    let args: document::BalancedAllocationArgs = read("NodeResourcesBalancedAllocationArgs", args, problems);
    if args.resources.is_empty() {
        return BalancedAllocationArgs::default();
    }
    let mut seen = BTreeSet::new();
    problems.within("resources", |problems| {
        for (index, resource) in args.resources.iter().enumerate() {
            let is_new = seen.insert(resource.name.as_str());
            problems.check(
                is_new,
                format_args!("[{index}].name"),
                format_args!("{} is there twice", resource.name),
            );
            problems.check(matches!(resource.weight, 0 | 1), format_args!("[{index}].weight"), "must be 1");
        }
    });
    BalancedAllocationArgs { resources: weights(args.resources) }
}

/// Returns resources with their weights, 1 where none is given.
fn weights(resources: Vec<document::ResourceSpec>) -> Vec<ResourceWeight> {
    let weight = |spec: document::ResourceSpec| ResourceWeight {
        weight: if spec.weight == 0 { 1 } else { spec.weight },
        name: spec.name,
    };
    resources.into_iter().map(weight).collect()
}

pub(super) fn fit(args: &Value, problems: &mut Problems) -> FitArgs {
    let args: document::NodeResourcesFitArgs = read("NodeResourcesFitArgs", args, problems);
    for (index, group) in args.ignored_resource_groups.iter().enumerate() {
        let field = format!("ignoredResourceGroups[{index}]");
        problems.check(!group.contains('/'), field, "resource group name can't contain '/'");
    }
    let (strategy, resources) = problems.within("scoringStrategy", |problems| match args.scoring_strategy {
        Some(given) => self::strategy(given, problems),
        None => (Strategy::LeastAllocated, default_resources()),
    });
    FitArgs {
        ignored_resources: args.ignored_resources.into_iter().collect(),
        ignored_resource_groups: args.ignored_resource_groups.into_iter().collect(),
        strategy,
        resources,
    }
}

fn strategy(given: document::ScoringStrategy, problems: &mut Problems) -> (Strategy, Vec<ResourceWeight>) {
    for (index, resource) in given.resources.iter().enumerate() {
        problems.check(
            (0..=100).contains(&resource.weight),
            format_args!("resources[{index}].weight"),
            format_args!("resource weight of {} not in valid range (0, 100]", resource.name),
        );
    }
    let ratio = given.requested_to_capacity_ratio;
    let field = "requestedToCapacityRatio";
    let strategy = match given.kind.as_str() {
        "RequestedToCapacityRatio" => {
            problems.check(ratio.is_some(), field, "must be specified when type is RequestedToCapacityRatio");
            let points = ratio.map(|ratio| ratio.shape).unwrap_or_default();
            Strategy::RequestedToCapacityRatio(
                problems
                    .within(field, |problems| problems.within("shape", |problems| shape(&points, problems))),
            )
        }
        kind => {
            problems.check(ratio.is_none(), field, "must be nil when type is not RequestedToCapacityRatio");
            let known = ["", "LeastAllocated", "MostAllocated"].contains(&kind);
            let supported = "LeastAllocated, MostAllocated, RequestedToCapacityRatio";
            problems.check(known, "type", format_args!("{kind:?} is not one of {supported}"));
            if kind == "MostAllocated" { Strategy::MostAllocated } else { Strategy::LeastAllocated }
        }
    };
    let resources = if given.resources.is_empty() { default_resources() } else { weights(given.resources) };
    (strategy, resources)
}

fn shape(points: &[document::Point], problems: &mut Problems) -> Vec<ShapePoint> {
    problems.check(!points.is_empty(), "", "at least one point must be specified");
    for (index, pair) in points.windows(2).enumerate() {
        let field = format!("[{}].utilization", index + 1);
        problems.check(
            pair[0].utilization < pair[1].utilization,
            field,
            "values must be sorted in increasing order",
        );
    }
    for (index, point) in points.iter().enumerate() {
        let in_range = (0..=100).contains(&point.utilization);
        problems.check(in_range, format_args!("[{index}].utilization"), "not in valid range [0, 100]");
        let in_range = (0..=MAX_SHAPE_SCORE).contains(&point.score);
        problems.check(in_range, format_args!("[{index}].score"), "not in valid range [0, 10]");
    }
    points.iter().map(|point| ShapePoint { utilization: point.utilization, score: point.score }).collect()
}

pub(super) fn dynamic_resources(args: &Value, problems: &mut Problems) -> DynamicResourcesArgs {
    let args: document::DynamicResourcesArgs = read("DynamicResourcesArgs", args, problems);
    let default = DynamicResourcesArgs::default();
    let mut time = |field: &str, given: Option<Period>, default: Duration, least: i64, rule: &str| {
        problems.check(given.is_none_or(|given| given >= Period::seconds(least)), field, rule);
        given.and_then(Period::duration).unwrap_or(default)
    };
    let (filter, binding) = (args.filter_timeout, args.binding_timeout);
    DynamicResourcesArgs {
        filter_timeout: time("filterTimeout", filter, default.filter_timeout, 0, "must be zero or positive"),
        binding_timeout: time(
            "bindingTimeout",
            binding,
            default.binding_timeout,
            1,
            "must be at least 1 second",
        ),
    }
}
