//! The points of a node for the alternatives that it serves.

use super::super::prepared::Prepared;
use super::*;
use crate::framework::Normalize;

/// Returns the points of a node with two devices for claims with these requests: the number of alternatives of each, and the
/// first one that the node can serve. The claim of `None` has its device already.
fn points(claims: &[Option<&[(usize, usize)]>]) -> i64 {
    let mut cluster = two_nodes();
    let mut names = Vec::new();
    for (index, requests) in claims.iter().enumerate() {
        let name = format!("x{index}");
        let alternative = |which: usize, possible: usize| {
            let count = if which < possible { 9 } else { 1 };
            json!({"name": format!("s{which}"), "deviceClassName": "c", "allocationMode": "ExactCount", "count": count})
        };
        let fields = match requests {
            None => json!({"status": allocated("a", "d1")}),
            Some(requests) => {
                let request = |(index, (number, possible)): (usize, &(usize, usize))| {
                    let alternatives: Vec<Value> =
                        (0..*number).map(|which| alternative(which, *possible)).collect();
                    json!({"name": format!("r{index}"), "firstAvailable": alternatives})
                };
                let requests: Vec<Value> = requests.iter().enumerate().map(request).collect();
                json!({"spec": {"devices": {"requests": requests}}})
            }
        };
        add(&mut cluster, &claim(&name, fields));
        names.push(name);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let pod = user(&names);
    let prepared = Prepared::of(DynamicResourcesArgs::default(), &pod, &cluster).unwrap().unwrap();
    prepared.score(named(&cluster, "a"))
}

#[test]
fn each_request_counts_the_more_the_earlier_its_alternative_is() {
    assert_eq!(points(&[None, Some(&[])]), 0, "no request has alternatives");
    assert_eq!(points(&[Some(&[(1, 0)])]), 8);
    assert_eq!(points(&[Some(&[(8, 7)])]), 1);
    assert_eq!(points(&[Some(&[(4, 3), (5, 4)])]), 9, "5 and 4");
    assert_eq!(points(&[Some(&[(8, 7), (1, 0)])]), 9, "1 and 8");
    assert_eq!(points(&[Some(&[(8, 7)]), Some(&[(8, 7)])]), 2, "two claims");
    assert_eq!(points(&[Some(&[(1, 0)]), Some(&[(1, 0)])]), 16);
    assert_eq!(points(&[None, Some(&[(2, 1)])]), 7, "a claim that has its device counts nothing");
}

#[test]
fn points_become_scores_in_proportion_to_the_greatest() {
    let most = i64::from(i32::MAX);
    let rows: &[(Normalize, &[i64], &[i64])] = &[
        (Normalize::Greatest, &[], &[]),
        (Normalize::Greatest, &[42], &[100]),
        (Normalize::Greatest, &[8, 8], &[100, 100]),
        (Normalize::Greatest, &[most, most], &[100, 100]),
        (Normalize::Greatest, &[most, 0], &[100, 0]),
        (Normalize::Greatest, &[99, 98, 97], &[100, 98, 97]),
        (Normalize::Greatest, &[most, most - 1, 1, 0], &[100, 99, 0, 0]),
        (Normalize::Greatest, &[1, 2, 3, 4], &[25, 50, 75, 100]),
        (Normalize::Least, &[1, 2, 3, 4], &[75, 50, 25, 0]),
        (Normalize::Greatest, &[1000, 10, 20, 30], &[100, 1, 2, 3]),
        (Normalize::Least, &[1000, 10, 20, 30], &[0, 99, 98, 97]),
        (Normalize::Greatest, &[1, 1, 1, 1], &[100; 4]),
        (Normalize::Greatest, &[1000, 1, 1, 1], &[100, 0, 0, 0]),
        (Normalize::Least, &[0, 1, 1, 1], &[100, 0, 0, 0]),
        (Normalize::Greatest, &[0, 0, 0, 0], &[0; 4]),
        (Normalize::Least, &[0, 0, 0, 0], &[100; 4]),
    ];
    for (normalize, raw, expected) in rows {
        let mut scores = raw.to_vec();
        normalize.apply(&mut scores);
        assert_eq!(scores, *expected, "{normalize:?} of {raw:?}");
    }
}
