//! Covers the cases that Kubernetes tests of this plugin: 52 of the check, 4 of the number of pods, 4 of storage, 4 of sidecars,
//! 9 of strategies in general, 13 of LeastAllocated, 11 of MostAllocated, 14 of RequestedToCapacityRatio, 8 of assumed
//! requests, 11 of changes of pods, 7 of changes of nodes, 6 of nodes that fit, 10 of nodes that grow, and 9 of device
//! classes. Left out are those of gates that are off, of objects of another type, of arguments, which the configuration
//! validates, of signatures and placements, and of scores of devices.

mod changes;
mod fits;
mod scores;
