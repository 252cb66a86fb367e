//! Attackers against a cluster that is run as a user would: a tenant with permissions in one namespace, a
//! node whose credentials were stolen, a client on the network without credentials, and a compromised kubelet
//! and webhook. Each test starts a cluster and tries everything that its attacker could; `docs/security.md`
//! says which promise each attack is meant to break.

mod attacker;
mod kubelet;
mod node;
mod outsider;
mod tenant;
mod webhook;
