//! The memory of the graph.

use super::tests::{kind, reference};
use super::*;
use crate::garbage::object::{Family, Reference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The least number of entries of a node of a `BTreeSet`, except for the root.
const LEAST: usize = 5;
/// The number of entries for which a node of a `BTreeSet` has room.
const ROOM: usize = 11;
/// The counts of an `Arc`, or what a node of a `BTreeSet` has beside its entries.
const HEADER: usize = 16;

/// Returns the memory of a block of the heap: that of its size class in jemalloc.
fn block(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        1..=8 => 8,
        9..=128 => bytes.next_multiple_of(16),
        // Four classes between two powers of two.
        _ => bytes.next_multiple_of(bytes.next_power_of_two() / 8),
    }
}

/// Returns the most memory that an ordered set of this many entries can take.
fn tree(entries: usize, entry: usize) -> usize {
    let (mut nodes, mut node, mut bytes) = (entries, ROOM * entry + HEADER, 0);
    while nodes > 0 {
        nodes = if nodes <= ROOM { 1 } else { nodes / LEAST };
        bytes += nodes * block(node);
        if nodes == 1 {
            break;
        }
        // The next level, whose nodes point to those below.
        node = ROOM * entry + HEADER + (ROOM + 1) * size_of::<usize>();
    }
    bytes
}

fn text(text: &str) -> usize {
    block(text.len())
}

/// Returns the bytes of the heap that the uid of an object takes.
fn uid(uid: &Uid) -> usize {
    assert_eq!(uid.to_string().len(), 36, "one that is no UUID");
    0
}

fn of_object(object: &Object) -> usize {
    let Object { uid: own, name, family: _, deletion: _ } = object;
    block(HEADER + size_of::<Object>()) + uid(own) + text(name)
}

fn of_family(family: &Family) -> usize {
    let Family { owners, namespace: _, kind: _ } = family;
    let of_owner = |owner: &Reference| {
        let Reference { uid: own, name, kind: _, api_version: _, block_owner_deletion: _, controller: _ } =
            owner;
        uid(own) + text(name)
    };
    let owners = block(size_of_val(&**owners)) + owners.iter().map(of_owner).sum::<usize>();
    block(HEADER + size_of::<Family>()) + owners
}

/// Returns the most memory that the graph can take, without its kinds. Each structure is taken apart, so that a new
/// field does not compile before it is counted here.
fn bytes(graph: &Graph) -> usize {
    let Graph { objects, edges, counts: _, shared, is_complete: _ } = graph;
    let Objects { families, texts } = shared;
    let of_texts: usize = texts.iter().map(|text| block(HEADER + text.len())).sum();
    tree(objects.len(), size_of::<ByUid>())
        + tree(edges.len(), size_of::<Edge>())
        + tree(families.len(), size_of::<Arc<Family>>())
        + tree(texts.len(), size_of::<Arc<str>>())
        + objects.iter().map(|ByUid(object)| of_object(object)).sum::<usize>()
        + families.iter().map(|family| of_family(family)).sum::<usize>()
        + of_texts
}

fn random(numbers: &mut impl Iterator<Item = u64>) -> u64 {
    numbers.next().unwrap_or_default()
}

/// Returns a graph of ReplicaSets with pods, or of these alone.
fn replica_sets(sets: usize, pods: usize) -> Graph {
    let mut graph = Graph::default();
    let (of_sets, of_pods) = (kind("ReplicaSet"), kind("Pod"));
    let mut numbers = (1_u64..).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut fresh = || {
        let (a, b) = (random(&mut numbers), random(&mut numbers) | (1 << 63));
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            a >> 32,
            a & 0xffff,
            b & 0xfff,
            b >> 48,
            a & 0xffff_ffff_ffff
        )
    };
    for set in 0..sets {
        let namespace = format!("team-{}", set / 20);
        let (name, own) = (format!("web-{set:05}-5d4f8c7b9d"), fresh());
        let object = |name: String, uid: String, owner: Option<(&str, &str, &str)>| ObjectMeta {
            namespace: Some(namespace.clone()),
            name: Some(name),
            uid: Some(uid),
            owner_references: owner.map(|(kind, name, uid)| {
                let mut owner = reference(name);
                (owner.kind, owner.uid) = (kind.to_owned(), uid.to_owned());
                owner.api_version = "apps/v1".to_owned();
                vec![owner]
            }),
            ..ObjectMeta::default()
        };
        let deployment = (format!("web-{set:05}"), fresh());
        let of_deployment = Some(("Deployment", deployment.0.as_str(), deployment.1.as_str()));
        graph.apply(&of_sets, &object(name.clone(), own.clone(), of_deployment));
        for pod in 0..pods {
            let owner = Some(("ReplicaSet", name.as_str(), own.as_str()));
            graph.apply(&of_pods, &object(format!("{name}-x{pod:04}"), fresh(), owner));
        }
    }
    assert_eq!(graph.len(), sets * (1 + pods));
    graph
}

#[test]
fn blocks_have_the_sizes_of_the_allocator() {
    let sizes: Vec<_> = [0, 1, 9, 64, 65, 128, 129, 161, 193, 257, 448].into_iter().map(block).collect();
    assert_eq!(sizes, [0, 8, 16, 64, 80, 128, 160, 192, 224, 320, 448]);
}

#[test]
fn pod_with_one_owner_takes_at_most_250_bytes() {
    for (sets, pods) in [(100, 50), (200, 10), (500, 5)] {
        // All that comes with the pods, their part of the ordered sets included.
        let added = bytes(&replica_sets(sets, pods)) - bytes(&replica_sets(sets, 0));
        let each = added / (sets * pods);
        assert!(each <= 250, "{each} bytes for each of {pods} pods of {sets} sets");
    }
}

#[test]
fn object_that_shares_nothing_takes_at_most_500_bytes() {
    let each = bytes(&replica_sets(1000, 0)) / 1000;
    assert!(each <= 500, "{each} bytes for each set");
}

#[test]
fn graph_that_loses_its_objects_takes_no_memory() {
    let mut graph = replica_sets(20, 5);
    let all: Vec<Uid> = graph.objects.iter().map(|ByUid(object)| object.uid.clone()).collect();
    all.iter().for_each(|uid| drop(graph.remove(uid)));
    graph.shared.texts.forget_unused();
    assert_eq!(bytes(&graph), 0);
}
