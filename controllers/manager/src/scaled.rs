//! Counts that are given as a number or as a percentage.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Resolves an absolute count or a percentage of `total`. An unreadable value counts as 0; validation should
/// have refused it.
pub(crate) fn scaled(value: &IntOrString, total: i32, up: bool) -> i32 {
    match value {
        IntOrString::Int(count) => (*count).max(0),
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%').and_then(|text| text.parse().ok()).unwrap_or(0);
            let product = percent.max(0) * i64::from(total);
            let count = if up { (product + 99) / 100 } else { product / 100 };
            i32::try_from(count).unwrap_or(i32::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_up_for_surge_and_down_for_unavailability() {
        let quarter = IntOrString::String("25%".to_owned());
        assert_eq!(scaled(&quarter, 10, true), 3);
        assert_eq!(scaled(&quarter, 10, false), 2);
        assert_eq!(scaled(&quarter, 3, false), 0);
        assert_eq!(scaled(&quarter, 3, true), 1);
        assert_eq!(scaled(&IntOrString::Int(2), 100, true), 2);
        assert_eq!(scaled(&IntOrString::String("100%".to_owned()), i32::MAX, true), i32::MAX);
    }
}
