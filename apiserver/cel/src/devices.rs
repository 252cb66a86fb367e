//! Selectors of devices, as the scheduler evaluates them.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::{Key, Map};

use super::admission::devices;
use super::eval::evaluate_open;
use super::functions::{self, text, type_of};
use super::limits::{DEVICE_COST, SMALL_DEPTH};
use super::{Fail, Node, compile, on_large_stack};

/// The value of an attribute of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAttribute<'a> {
    Bool(bool),
    Int(i64),
    Text(&'a str),
    /// A semantic version.
    Version(&'a str),
    /// A value of another type, with which nothing can be done.
    Unsupported,
}

/// A device, as expressions see it. A domain that it has no attributes or capacities of is an empty map.
#[derive(Clone, Debug)]
pub struct DeviceValue {
    device: Cel,
    attributes: Values,
    capacity: Values,
}

type Values = Arc<HashMap<Key, Cel>>;

impl DeviceValue {
    /// Creates the value of a device. Attributes and capacities are by name; those without a domain are in that of the driver.
    ///
    /// # Errors
    ///
    /// Returns the attribute or capacity that has no value, in the words of Kubernetes.
    pub fn new<'a>(
        driver: &str,
        allows_multiple: bool,
        attributes: impl IntoIterator<Item = (&'a str, DeviceAttribute<'a>)>,
        capacity: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, String> {
        let attribute = |(name, attribute): (&'a str, DeviceAttribute<'a>)| {
            let value = match attribute {
                DeviceAttribute::Bool(flag) => Cel::Bool(flag),
                DeviceAttribute::Int(number) => Cel::Int(number),
                DeviceAttribute::Text(value) => text(value),
                DeviceAttribute::Version(version) => functions::call("semver", false, &[text(version)])
                    .map_err(|error| format!("attribute {name}: parse semantic version: {error}"))?,
                DeviceAttribute::Unsupported => {
                    return Err(format!("attribute {name}: unsupported attribute value"));
                }
            };
            Ok((name, value))
        };
        let amount = |(name, amount): (&'a str, &'a str)| {
            let value = functions::call("quantity", false, &[text(amount)]);
            Ok((name, value.map_err(|error| format!("capacity {name}: {error}"))?))
        };
        let attributes = by_domain(driver, attributes.into_iter().map(attribute))?;
        let capacity = by_domain(driver, capacity.into_iter().map(amount))?;
        let fields = [
            ("driver", text(driver)),
            ("allowMultipleAllocations", Cel::Bool(allows_multiple)),
            ("attributes", Cel::Map(Map { map: Arc::clone(&attributes) })),
            ("capacity", Cel::Map(Map { map: Arc::clone(&capacity) })),
        ];
        let fields = fields.map(|(name, value)| (name_key(name), value));
        Ok(Self { device: Cel::Map(Map { map: Arc::new(fields.into()) }), attributes, capacity })
    }
}

fn name_key(name: &str) -> Key {
    Key::String(Arc::new(name.to_owned()))
}

/// Returns values by domain and name.
fn by_domain<'a>(
    driver: &str,
    values: impl Iterator<Item = Result<(&'a str, Cel), String>>,
) -> Result<Values, String> {
    let mut domains: HashMap<&str, HashMap<Key, Cel>> = HashMap::new();
    let values = values.collect::<Result<Vec<_>, _>>()?;
    for (name, value) in values {
        let (domain, name) = name.split_once('/').unwrap_or((driver, name));
        domains.entry(domain).or_default().insert(name_key(name), value);
    }
    let domain = |(name, values)| (name_key(name), Cel::Map(Map { map: Arc::new(values) }));
    Ok(Arc::new(domains.into_iter().map(domain).collect()))
}

/// A compiled selector of devices.
#[derive(Debug)]
pub struct DeviceSelector(Node);

impl DeviceSelector {
    /// Compiles a selector. The worst that it may cost is not estimated: that was done when it was written.
    ///
    /// # Errors
    ///
    /// Returns why the text is no selector, in the words of Kubernetes.
    pub fn compile(source: &str) -> Result<Self, String> {
        on_large_stack(|| {
            let (node, checked) =
                compile(source, &devices()).map_err(|error| format!("compilation failed: {error}"))?;
            super::admission::selects(&checked)?;
            Ok(Self(node))
        })
    }

    /// Returns `true` if the selector selects a device.
    ///
    /// # Errors
    ///
    /// Returns why there is no answer: an error of the expression, or a cost beyond the limit.
    pub fn matches(&self, device: &DeviceValue) -> Result<bool, String> {
        let evaluated = || {
            let open = [Arc::clone(&device.attributes), Arc::clone(&device.capacity)];
            evaluate_open(&self.0, &[("device", device.device.clone())], DEVICE_COST, &open)
        };
        let evaluated = if self.0.depth <= SMALL_DEPTH { evaluated() } else { on_large_stack(evaluated) };
        match evaluated {
            Ok(Cel::Bool(selects)) => Ok(selects),
            Ok(other) => {
                Err(format!("CEL result of type {} could not be converted to bool", type_of(&other)))
            }
            Err(Fail::Error(error)) => Err(error),
            Err(Fail::Limit) => Err("operation cancelled: actual cost limit exceeded".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> DeviceValue {
        let attributes = [
            ("model", DeviceAttribute::Text("a100")),
            ("index", DeviceAttribute::Int(3)),
            ("healthy", DeviceAttribute::Bool(true)),
            ("driverVersion", DeviceAttribute::Version("1.2.3")),
            ("example.com/numa", DeviceAttribute::Int(1)),
        ];
        DeviceValue::new("gpu.example.com", false, attributes, [("memory", "16Gi")]).unwrap()
    }

    fn selects(source: &str) -> Result<bool, String> {
        DeviceSelector::compile(source).unwrap().matches(&gpu())
    }

    #[test]
    fn selectors_read_attributes_and_capacities_by_domain() {
        for (source, wanted) in [
            ("device.driver == 'gpu.example.com'", true),
            ("device.allowMultipleAllocations", false),
            ("device.attributes['gpu.example.com'].healthy", true),
            ("device.attributes['gpu.example.com'].index < 3", false),
            ("device.attributes['example.com'].numa == 1", true),
            ("device.attributes['gpu.example.com'].driverVersion.isLessThan(semver('1.3.0'))", true),
            ("device.capacity['gpu.example.com'].memory.compareTo(quantity('16Gi')) == 0", true),
            ("device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('17G'))", true),
        ] {
            assert_eq!(selects(source), Ok(wanted), "{source}");
        }
    }

    #[test]
    fn domains_that_a_device_does_not_have_are_empty() {
        for (source, wanted) in [
            ("has(device.attributes['other.com'].model)", false),
            ("'other.com' in device.attributes", false),
            ("'example.com' in device.attributes", true),
            ("device.attributes['other.com'].?model.orValue('none') == 'none'", true),
            ("size(device.attributes['other.com']) == 0 && size(device.attributes) == 2", true),
            ("device.attributes.exists(domain, domain == 'other.com')", false),
        ] {
            assert_eq!(selects(source), Ok(wanted), "{source}");
        }
    }

    #[test]
    fn selectors_that_give_no_answer_say_why() {
        let missing = selects("device.attributes['gpu.example.com'].missing == 'x'");
        assert_eq!(missing, Err("no such key: missing".to_owned()));
        let number = selects("device.attributes['gpu.example.com'].index");
        assert_eq!(number, Err("CEL result of type int could not be converted to bool".to_owned()));
        let costly = "[0,1,2,3,4,5,6,7,8,9].all(a, ".repeat(6).replace("(a, ", "(x, ");
        let costly = format!("{costly}device.driver != ''{}", ")".repeat(6));
        let costly = costly.replacen("device.driver", "device.driver + device.driver", 1);
        assert_eq!(selects(&costly), Err("operation cancelled: actual cost limit exceeded".to_owned()));
        assert!(DeviceSelector::compile("device.driver").is_err());
        assert!(DeviceSelector::compile("device.").unwrap_err().starts_with("compilation failed: "));
    }

    #[test]
    fn devices_with_unknown_attributes_cannot_be_judged() {
        let device = |attribute| DeviceValue::new("d", true, [("a", attribute)], []).map(drop);
        let unsupported = device(DeviceAttribute::Unsupported).unwrap_err();
        assert_eq!(unsupported, "attribute a: unsupported attribute value");
        assert!(device(DeviceAttribute::Version("v1")).unwrap_err().starts_with("attribute a: parse"));
        assert_eq!(device(DeviceAttribute::Version("1.0.0")), Ok(()));
    }
}
