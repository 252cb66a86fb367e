//! The annotations of a pod, read once.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use apiserver_meta::quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use userspace_dataplane::tables::{BANDWIDTH_RANGE, PodBandwidth};

use crate::compile::short;

const EGRESS: &str = "kubernetes.io/egress-bandwidth";
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
/// The annotation of a mirror pod with the UID that its sandbox has.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// A pod with such annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limited {
    /// The UID that its sandbox has, if it says that it is the mirror of a static pod. Whoever may create pods
    /// may say so.
    pub mirrored: Option<Box<str>>,
    /// Empty if it has none yet, or has ended: then another pod may have them.
    pub addresses: Box<[IpAddr]>,
    pub limits: PodBandwidth,
    /// The annotations that are not followed.
    pub faults: Vec<Fault>,
}

/// An annotation that is not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    annotation: &'static str,
    /// Shortened.
    value: Box<str>,
    reason: &'static str,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { annotation, value, reason } = self;
        let direction = if *annotation == EGRESS { "what the pod sends" } else { "what the pod receives" };
        write!(f, "annotation {annotation}: {value:?} {reason}; {direction} is not limited")
    }
}

impl Limited {
    /// Reads a pod's annotations; `None` if it has neither.
    pub fn of(metadata: &ObjectMeta, addresses: &[IpAddr]) -> Option<Box<Self>> {
        let annotations = metadata.annotations.as_ref()?;
        let mut faults = Vec::new();
        let mut read = |name| {
            rate(annotations, name).unwrap_or_else(|fault| {
                faults.push(fault);
                None
            })
        };
        let limits = PodBandwidth { egress: read(EGRESS), ingress: read(INGRESS) };
        if limits == PodBandwidth::default() && faults.is_empty() {
            return None;
        }
        let mirrored = annotations.get(CONFIG_HASH).map(|hash| short(hash).into());
        Some(Box::new(Self { mirrored, addresses: addresses.into(), limits, faults }))
    }
}

/// Returns the bits per second of an annotation.
fn rate(annotations: &BTreeMap<String, String>, name: &'static str) -> Result<Option<u64>, Fault> {
    let Some(text) = annotations.get(name) else { return Ok(None) };
    let fault = |reason| Fault { annotation: name, value: short(text).into(), reason };
    let value = quantity::parse(text).map_err(|_| fault("is not a quantity"))?.value();
    let rate = u64::try_from(value).unwrap_or_default();
    if rate < *BANDWIDTH_RANGE.start() {
        return Err(fault("is less than 1k"));
    }
    if rate > *BANDWIDTH_RANGE.end() {
        return Err(fault("is more than 1P"));
    }
    Ok(Some(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(annotations: &[(&str, &str)]) -> Option<Box<Limited>> {
        let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Limited::of(&ObjectMeta { annotations: Some(annotations.collect()), ..ObjectMeta::default() }, &[])
    }

    #[test]
    fn quantities_are_bits_per_second() {
        let values = [
            ("10M", 10_000_000),
            ("1k", 1_000),
            ("1P", 1_000_000_000_000_000),
            ("1Mi", 1_048_576),
            ("2e6", 2_000_000),
            ("999999m", 1_000),
            ("1500.5", 1_501),
        ];
        for (text, rate) in values {
            let found = read(&[(EGRESS, text)]).unwrap();
            assert_eq!(
                (found.limits, found.faults.len()),
                (PodBandwidth { egress: Some(rate), ingress: None }, 0)
            );
        }
    }

    #[test]
    fn values_that_kubernetes_refuses_are_faults_and_the_other_direction_counts() {
        let values = [
            ("", "is not a quantity"),
            ("fast", "is not a quantity"),
            ("10 M", "is not a quantity"),
            ("0", "is less than 1k"),
            ("999", "is less than 1k"),
            ("-10M", "is less than 1k"),
            ("1000000000000001", "is more than 1P"),
            ("1E", "is more than 1P"),
            ("99999999999999999999999999E", "is more than 1P"),
        ];
        for (text, reason) in values {
            let found = read(&[(INGRESS, text), (EGRESS, "5M")]).unwrap();
            assert_eq!(found.limits, PodBandwidth { egress: Some(5_000_000), ingress: None }, "{text}");
            let [fault] = &found.faults[..] else { panic!("one fault for {text}") };
            let expected =
                format!("annotation {INGRESS}: {text:?} {reason}; what the pod receives is not limited");
            assert_eq!(fault.to_string(), expected);
        }
        assert_eq!(read(&[(INGRESS, "no"), (EGRESS, "no")]).unwrap().faults.len(), 2);
    }

    #[test]
    fn long_values_are_shortened_and_others_annotations_are_nothing() {
        let long = "9".repeat(200_000);
        let found = read(&[(EGRESS, &long)]).unwrap();
        assert!(found.faults[0].to_string().len() < 300);
        assert_eq!(read(&[("kubernetes.io/bandwidth", "1M")]), None);
        assert_eq!(Limited::of(&ObjectMeta::default(), &[]), None);
    }

    #[test]
    fn the_sandbox_of_a_mirror_pod_has_the_uid_of_its_file() {
        let found = read(&[(EGRESS, "1M"), (CONFIG_HASH, "42")]).unwrap();
        assert_eq!(found.mirrored.as_deref(), Some("42"));
    }
}
