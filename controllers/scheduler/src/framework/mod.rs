//! The scheduling framework: plugins, the profiles that list them, and the attempt to find a node for a pod.
//!
//! Kubernetes runs each plugin on each node for each pod. Here a plugin says what its answers depend on. Those that depend
//! on a node and on a pod's template alone are cached for all pods of the template ([`Views`]), and computed anew for nodes
//! that have changed. Those that depend on more work on the set of the nodes that are left. Words are made only when no
//! node is left.

mod attempt;
mod diagnosis;
mod event;
mod meter;
mod permit;
mod plugin;
mod profile;
mod refusals;
mod score;
mod view;

pub(crate) use self::attempt::rivals;
pub use self::attempt::{Attempt, Feasible, NominatedFirst, all_feasible, diagnose, find_feasible};
pub use self::diagnosis::Diagnosis;
pub use self::event::{Actions, Change, Event, Hint, Reach, Resource, Versions};
pub use self::meter::{Interrupted, Meter, PluginTime, STAGES, Stage, Status};
pub use self::permit::{Permission, Permit, Permitted, Waits, permit};
pub use self::plugin::{
    Cleanup, Code, Finding, MAX_SCORE, NodeFilter, NodeScore, Normalize, Plugin, PreBind, PreFilter,
    PreemptionArgs, Refusal, Scores,
};
pub use self::profile::{Profile, Sampling};
pub use self::refusals::Refusals;
pub use self::score::{best, choose, score, scores_by_plugin};
pub use self::view::Views;
