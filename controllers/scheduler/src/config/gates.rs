//! Feature gates of kube-scheduler.

/// The feature gates that switch something here. All are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// `GenericWorkload`: pods of a PodGroup are scheduled together.
    pub generic_workload: bool,
    /// `GangScheduling`: none of a group's pods is bound before enough of them have a node. Needs the other one.
    pub gang_scheduling: bool,
    /// `SchedulerAsyncAPICalls`: requests about pods are counted in metrics.
    pub async_api_calls: bool,
}

/// A list of feature gates cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatesError {
    #[error("missing bool value for {0}")]
    NoValue(String),
    #[error("invalid value of {0}={1}, which is neither true nor false")]
    Value(String, String),
    #[error("{0} is enabled, but depends on features that are disabled: [{1}]")]
    Depends(&'static str, &'static str),
}

impl Gates {
    /// Reads a list such as `GenericWorkload=true,GangScheduling=true`. Returns the gates, and the names that switch nothing
    /// here.
    ///
    /// # Errors
    ///
    /// Fails if a gate has no value, or one that is none, or needs another one that is off.
    pub fn parse(text: &str) -> Result<(Self, Vec<String>), GatesError> {
        let (mut gates, mut others, mut alpha) = ((None, None), Vec::new(), None);
        // The only beta gate that switches something; the others are alpha.
        let (mut async_api_calls, mut beta) = (None, None);
        for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let (name, value) = one.split_once('=').ok_or_else(|| GatesError::NoValue(one.to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            let is_on = is_true(value).ok_or_else(|| GatesError::Value(name.to_owned(), value.to_owned()))?;
            match name {
                "GenericWorkload" => gates.0 = Some(is_on),
                "GangScheduling" => gates.1 = Some(is_on),
                "SchedulerAsyncAPICalls" => async_api_calls = Some(is_on),
                "AllBeta" => beta = Some(is_on),
                "AllAlpha" => alpha = Some(is_on),
                other => others.push(other.to_owned()),
            }
        }
        let is_on = |gate: Option<bool>| gate.or(alpha).unwrap_or(false);
        let async_api_calls = async_api_calls.or(beta).unwrap_or(false);
        let gates =
            Self { generic_workload: is_on(gates.0), gang_scheduling: is_on(gates.1), async_api_calls };
        if gates.gang_scheduling && !gates.generic_workload {
            return Err(GatesError::Depends("GangScheduling", "GenericWorkload"));
        }
        Ok((gates, others))
    }
}

/// Reads a truth value as Go does.
fn is_true(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_off_unless_they_are_named() {
        let on = Gates { generic_workload: true, gang_scheduling: true, ..Gates::default() };
        let calls = Gates { async_api_calls: true, ..Gates::default() };
        for (text, expected) in [
            ("", Gates::default()),
            ("GenericWorkload=true", Gates { gang_scheduling: false, ..on }),
            (" GangScheduling=true , GenericWorkload=1", on),
            ("AllAlpha=true", on),
            ("AllAlpha=true,GangScheduling=false", Gates { gang_scheduling: false, ..on }),
            ("AllAlpha=false", Gates::default()),
            ("SchedulerAsyncAPICalls=true", calls),
            ("AllBeta=true", calls),
            ("AllBeta=true,SchedulerAsyncAPICalls=false", Gates::default()),
        ] {
            assert_eq!(Gates::parse(text), Ok((expected, vec![])), "{text}");
        }
        let (gates, others) = Gates::parse("SchedulerQueueingHints=true,X=false").unwrap();
        assert_eq!(
            (gates, others),
            (Gates::default(), vec!["SchedulerQueueingHints".to_owned(), "X".to_owned()])
        );
    }

    #[test]
    fn lists_that_cannot_be_used_are_refused_in_the_words_of_kubernetes() {
        let error = |text| Gates::parse(text).unwrap_err().to_string();
        assert_eq!(error("GenericWorkload"), "missing bool value for GenericWorkload");
        assert!(error("GenericWorkload=on").starts_with("invalid value of GenericWorkload=on"));
        let depends =
            "GangScheduling is enabled, but depends on features that are disabled: [GenericWorkload]";
        assert_eq!(error("GangScheduling=true"), depends);
    }
}
