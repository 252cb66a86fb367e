//! The product as a whole, in one binary.

#![allow(clippy::print_stdout, reason = "a test tells what it saw")]

mod attack;
mod bad_days;
mod bad_links;
mod claims;
mod components;
mod control_nodes;
mod daemonset;
mod dual_stack;
mod join;
mod names;
mod node_tunnels;
mod policies;
mod replacement;
mod shop;
mod single_node;
mod storage;
mod two_nodes;
