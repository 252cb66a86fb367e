//! The strategies that score nodes by what is used of them.

use super::super::allocation::Amounts;
use crate::framework::MAX_SCORE;

/// Highest score in a shape (`MaxCustomPriorityScore`).
const MAX_SHAPE_SCORE: i64 = 10;

/// Prefers nodes by what is used of their resources (`ScoringStrategy`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The less is used, the better.
    LeastAllocated,
    /// The more is used, the better.
    MostAllocated,
    /// By a function of the percentage that is used, which has these points with straight lines between them, ordered
    /// by utilization.
    RequestedToCapacityRatio(Vec<ShapePoint>),
}

/// A point of the function of [`Strategy::RequestedToCapacityRatio`] (`UtilizationShapePoint`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapePoint {
    /// Percentage that is used.
    pub utilization: i64,
    /// Score from 0 to 10.
    pub score: i64,
}

/// A strategy that is ready to score.
#[derive(Debug)]
pub(super) enum Scorer {
    Least,
    Most,
    /// Points with scores up to [`MAX_SCORE`].
    Ratio(Vec<ShapePoint>),
}

impl Scorer {
    pub fn new(strategy: &Strategy) -> Self {
        match strategy {
            Strategy::LeastAllocated => Self::Least,
            Strategy::MostAllocated => Self::Most,
            Strategy::RequestedToCapacityRatio(shape) => {
                let scaled = |point: &ShapePoint| ShapePoint {
                    score: point.score * (MAX_SCORE / MAX_SHAPE_SCORE),
                    ..*point
                };
                Self::Ratio(shape.iter().map(scaled).collect())
            }
        }
    }

    /// Returns the mean of the scores of a node's resources, by weight.
    pub fn score(&self, resources: impl Iterator<Item = Amounts>) -> i64 {
        let (mut sum, mut weights) = (0, 0);
        for amounts in resources {
            let score = self.score_of(amounts);
            // With a shape, resources of no score do not lower that of the others.
            if score > 0 || !matches!(self, Self::Ratio(_)) {
                sum += score * amounts.weight;
                weights += amounts.weight;
            }
        }
        match self {
            _ if weights == 0 => 0,
            Self::Ratio(_) => (sum as f64 / weights as f64).round() as i64,
            Self::Least | Self::Most => sum / weights,
        }
    }

    fn score_of(&self, Amounts { allocatable, with_pod, .. }: Amounts) -> i64 {
        match self {
            Self::Least if with_pod > allocatable => 0,
            Self::Least => (allocatable - with_pod) * MAX_SCORE / allocatable,
            Self::Most => with_pod.min(allocatable) * MAX_SCORE / allocatable,
            Self::Ratio(shape) if with_pod > allocatable => at(shape, 100),
            Self::Ratio(shape) => at(shape, with_pod * 100 / allocatable),
        }
    }
}

/// Returns the value of a function that is straight between points, and constant before the first and after the last.
pub(super) fn at(shape: &[ShapePoint], utilization: i64) -> i64 {
    match shape.iter().position(|point| utilization <= point.utilization) {
        Some(0) => shape[0].score,
        Some(right) => {
            let (left, right) = (shape[right - 1], shape[right]);
            let rise = (right.score - left.score) * (utilization - left.utilization);
            left.score + rise / (right.utilization - left.utilization)
        }
        None => shape.last().map_or(0, |point| point.score),
    }
}
