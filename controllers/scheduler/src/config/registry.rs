//! The plugins by name: their extension points, default weights, and how they are made.

use serde_json::Value;

use super::args;
use super::gates::Gates;
use super::problems::Problems;
use crate::framework::Plugin;
use crate::plugins::{
    DefaultPreemption, DynamicResources, GangScheduling, ImageLocality, InterPodAffinity, NodeAffinity,
    NodeDeclaredFeatures, NodeName, NodePorts, NodeResourcesBalancedAllocation, NodeResourcesFit,
    NodeUnschedulable, NodeVolumeLimits, PodTopologySpread, SchedulingGates, TaintToleration,
    VolumeRestrictions, VolumeZone,
};

/// Extension points that a profile can list plugins for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Point {
    PreEnqueue,
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
}

/// Makes a plugin of its arguments, and reports what is wrong with them.
type Make = fn(&Value, &mut Problems) -> Box<dyn Plugin>;

/// A plugin that a profile can name.
pub(super) struct Entry {
    pub name: &'static str,
    /// Weight of its scores in the default profile; 0 if it has none.
    pub weight: i64,
    pub points: &'static [Point],
    /// `None` for what is not a plugin here: the order of the queue, and the binding.
    pub make: Option<Make>,
}

const FILTER: &[Point] = &[Point::Filter];
const FILTERS: &[Point] = &[Point::PreFilter, Point::Filter];
const SCORES: &[Point] = &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score];

/// The plugins of the default profile without feature gates, in its order.
const ENTRIES: &[Entry] = &[
    entry("SchedulingGates", 0, &[Point::PreEnqueue], |_, _| Box::new(SchedulingGates)),
    Entry { name: "PrioritySort", weight: 0, points: &[Point::QueueSort], make: None },
    entry("NodeUnschedulable", 0, FILTER, |_, _| Box::new(NodeUnschedulable)),
    entry("NodeName", 0, FILTER, |_, _| Box::new(NodeName)),
    entry("TaintToleration", 3, &[Point::Filter, Point::PreScore, Point::Score], |_, _| {
        Box::new(TaintToleration)
    }),
    entry("NodeAffinity", 2, SCORES, |of, to| Box::new(NodeAffinity::new(args::node_affinity(of, to)))),
    entry("NodePorts", 0, FILTERS, |_, _| Box::new(NodePorts)),
    entry("NodeResourcesFit", 1, SCORES, |of, to| Box::new(NodeResourcesFit::new(args::fit(of, to)))),
    entry("VolumeRestrictions", 0, FILTERS, |_, _| Box::new(VolumeRestrictions)),
    entry("NodeVolumeLimits", 0, FILTERS, |_, _| Box::new(NodeVolumeLimits)),
    entry(
        "VolumeBinding",
        0,
        &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score, Point::Reserve, Point::PreBind],
        |of, to| Box::new(args::volume_binding(of, to)),
    ),
    entry("VolumeZone", 0, FILTERS, |_, _| Box::new(VolumeZone)),
    entry("PodTopologySpread", 2, SCORES, |of, to| {
        Box::new(PodTopologySpread::new(&args::pod_topology_spread(of, to)))
    }),
    entry("InterPodAffinity", 2, SCORES, |of, to| {
        Box::new(InterPodAffinity::new(args::inter_pod_affinity(of, to)))
    }),
    entry(
        "DynamicResources",
        2,
        &[
            Point::PreEnqueue,
            Point::PreFilter,
            Point::Filter,
            Point::PostFilter,
            Point::Score,
            Point::Reserve,
            Point::PreBind,
        ],
        |of, to| Box::new(DynamicResources(args::dynamic_resources(of, to))),
    ),
    entry("DefaultPreemption", 0, &[Point::PreEnqueue, Point::PostFilter], |of, to| {
        Box::new(DefaultPreemption(args::preemption(of, to)))
    }),
    entry("NodeResourcesBalancedAllocation", 1, &[Point::PreScore, Point::Score], |of, to| {
        Box::new(NodeResourcesBalancedAllocation::new(args::balanced_allocation(of, to)))
    }),
    entry("ImageLocality", 1, &[Point::Score], |_, _| Box::new(ImageLocality)),
    Entry { name: "DefaultBinder", weight: 0, points: &[Point::Bind], make: None },
    entry("NodeDeclaredFeatures", 0, FILTERS, |_, _| Box::new(NodeDeclaredFeatures)),
];

const fn entry(name: &'static str, weight: i64, points: &'static [Point], make: Make) -> Entry {
    Entry { name, weight, points, make: Some(make) }
}

/// The plugins that follow if `GangScheduling` is on.
const OF_GANGS: &[Entry] =
    &[entry("GangScheduling", 0, &[Point::PreEnqueue, Point::Permit], |_, _| Box::new(GangScheduling))];

/// The plugins that there are with some feature gates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registry(pub Gates);

impl Registry {
    /// Returns the plugins of the default profile, in its order.
    pub fn entries(self) -> impl Iterator<Item = &'static Entry> {
        let gangs = if self.0.gang_scheduling { OF_GANGS } else { &[] };
        ENTRIES.iter().chain(gangs)
    }

    /// Returns the entry of a plugin.
    pub fn named(self, name: &str) -> Option<&'static Entry> {
        self.entries().find(|entry| entry.name == name)
    }
}
