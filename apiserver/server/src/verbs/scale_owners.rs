//! The owners of the fields of a `Scale`, and those that a write of one makes.

use apiserver_apply::{FieldManager, FieldSet, Incomplete, NeedsConversion, Versions};
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_schema::schema::shape::Builtin;
use serde_json::Value;

use crate::context::Context;
use crate::write::own::manager;

/// A `Scale` written through the subresource: `new` by an update, `config` by applying it.
pub enum ScaleWrite {
    Update(Value),
    Apply(Value),
}

impl ScaleWrite {
    /// Returns `true` if the client requires a version of the object.
    pub fn names_version(&self) -> bool {
        let (Self::Update(scale) | Self::Apply(scale)) = self;
        !meta::resource_version(scale).is_empty()
    }
}

/// Returns the `Scale` that a write makes of `live`, with its managed fields.
pub fn scale(context: &Context, schema: &str, live: &Value, write: ScaleWrite) -> Result<Value, ApiError> {
    let shape = Builtin::of(schema).ok_or_else(|| ApiError::internal(format!("no schema of {schema}")))?;
    let fields = FieldManager {
        versions: &ScaleVersion(shape),
        shape,
        api_version: SCALE_VERSION,
        kind: "Scale",
        subresource: "scale",
        reset: &FieldSet::new(),
        now: context.server.ambient().now(),
    };
    match write {
        ScaleWrite::Update(mut new) => {
            let updated = fields.update(Some(live), &mut new, &manager(context));
            updated.map(|()| new).map_err(|needed| ApiError::internal(needed.to_string()))
        }
        ScaleWrite::Apply(config) => fields
            .apply(Some(live), &config, &manager(context), context.query.flag("force"))
            .map_err(|why| match why {
                Incomplete::Refused(error) => error,
                Incomplete::NeedsConversion(needed) => ApiError::internal(needed.to_string()),
            }),
    }
}

const SCALE_VERSION: &str = "autoscaling/v1";

/// `Scale` is served in one version.
struct ScaleVersion(Builtin);

impl Versions<Builtin> for ScaleVersion {
    fn shape(&self, api_version: &str) -> Option<Builtin> {
        (api_version == SCALE_VERSION).then_some(self.0)
    }

    fn convert(&self, object: &Value, api_version: &str) -> Result<Option<Value>, NeedsConversion> {
        Ok((api_version == SCALE_VERSION).then(|| object.clone()))
    }
}
