//! Configurations of server-side apply, as they are read.

use apiserver_schema::error::ApiError;
use apiserver_schema::schema;
use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

use super::decode::FieldValidation;
use crate::body;
use crate::context::Context;

/// A configuration, and how strictly its fields are checked.
pub struct Configuration {
    pub value: Value,
    validation: FieldValidation,
    /// The fields that occur twice; the last one counts.
    repeated: Vec<String>,
}

impl Configuration {
    /// Reads the body of an apply.
    pub fn read(context: &Context, bytes: &[u8]) -> Result<Self, ApiError> {
        let validation = FieldValidation::of(context)?;
        let (value, repeated) = parse(bytes, validation != FieldValidation::Ignore)?;
        Ok(Self { value, validation, repeated })
    }

    /// Refuses repeated keys, or warns of them. Call it after the configuration has been applied, whose errors
    /// take precedence.
    pub fn check_repeated(&self, context: &Context) -> Result<(), ApiError> {
        if self.validation == FieldValidation::Strict && !self.repeated.is_empty() {
            let lines: String = self.repeated.iter().map(|line| format!("\n  {line}")).collect();
            return Err(ApiError::bad_request(format!(
                "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:{lines}"
            )));
        }
        self.repeated.iter().for_each(|warning| context.warn(warning.clone()));
        Ok(())
    }
}

/// Returns a configuration and, if requested, the fields that it repeats.
pub fn parse(bytes: &[u8], look_for_repeated: bool) -> Result<(Value, Vec<String>), ApiError> {
    let bad = |why: &str| ApiError::bad_request(format!("error decoding YAML: {why}"));
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    // JSON has a parser of its own, which is faster.
    let json = if first == Some(&b'{') { body::json(bytes).ok() } else { None };
    let repeats = json.as_ref().is_none_or(|(_, repeats)| *repeats);
    let value = match json {
        Some((value, _)) => value,
        None => body::yaml(bytes, DuplicateKeyPolicy::LastWins).map_err(|error| bad(&error.message))?,
    };
    if !value.is_object() {
        return Err(bad(&format!(
            "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go value of type \
             map[string]interface {{}}",
            schema::go_kind(&value)
        )));
    }
    // A configuration is YAML to Kubernetes, also where it is JSON.
    let repeated = if look_for_repeated && repeats { body::repeated_in_yaml(bytes) } else { Vec::new() };
    Ok((value, repeated))
}
