//! The ServiceCIDRs: whence addresses may come at this moment.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use apiserver_schema::meta;
use arc_swap::ArcSwap;
use ipnetwork::IpNetwork;
use serde_json::Value;
use tokio::sync::Notify;

use super::ranges::usable;

/// One ServiceCIDR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub cidrs: Vec<IpNetwork>,
    /// It is Ready and not being deleted.
    pub open: bool,
    /// It is being deleted.
    pub going: bool,
}

impl Block {
    /// Reads the object; ranges that are none are left out.
    pub fn of(object: &Value) -> Self {
        let cidrs = meta::list(object, "/spec/cidrs").iter().filter_map(|c| c.as_str()?.parse().ok());
        let ready = meta::condition_is_true(object, "Ready");
        let going = meta::deletion_timestamp(object).is_some();
        Self { cidrs: cidrs.collect(), open: ready && !going, going }
    }
}

/// All ServiceCIDRs by name. Written by the feed of the cache, read by every allocation.
#[derive(Default)]
pub struct Blocks {
    by_name: ArcSwap<BTreeMap<String, Block>>,
    change: Notify,
}

impl Blocks {
    /// Takes over a change of one object.
    pub fn set(&self, name: &str, block: Option<Block>) {
        self.by_name.rcu(|blocks| {
            let mut blocks = BTreeMap::clone(blocks);
            match &block {
                Some(block) => blocks.insert(name.to_owned(), block.clone()),
                None => blocks.remove(name),
            };
            blocks
        });
        self.change.notify_one();
    }

    /// Waits for a change since the last call; for one task only.
    pub async fn changed(&self) {
        self.change.notified().await;
    }

    /// Returns the ranges of a family that addresses may be taken from, each once.
    pub fn open(&self, v4: bool) -> Vec<IpNetwork> {
        let blocks = self.by_name.load();
        let open = blocks.values().filter(|block| block.open).flat_map(|block| block.cidrs.iter().copied());
        let mut ranges: Vec<IpNetwork> = Vec::new();
        for range in open.filter(|range| range.is_ipv4() == v4) {
            if !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        ranges
    }

    /// Returns `true` if an address lies in any ServiceCIDR.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.by_name.load().values().any(|block| block.cidrs.iter().any(|range| usable(range, address)))
    }

    /// Returns `true` if an address lies in a ServiceCIDR other than `name` that is not being deleted.
    pub fn covered_without(&self, address: IpAddr, name: &str) -> bool {
        let blocks = self.by_name.load();
        let mut others = blocks.iter().filter(|(other, block)| *other != name && !block.going);
        others.any(|(_, block)| block.cidrs.iter().any(|range| usable(range, address)))
    }

    /// Returns all ranges.
    pub fn all(&self) -> Arc<BTreeMap<String, Block>> {
        self.by_name.load_full()
    }
}
