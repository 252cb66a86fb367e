//! Selectors of devices, as the scheduler evaluates them.

use std::collections::HashMap;
use std::sync::Arc;

use apiserver_structural::Patterns;
use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::{Key, Map};

use super::admission::devices;
use super::eval::evaluate_open;
use super::functions::{self, text, type_of};
use super::limits::{
    COMPILED_A_MICRO, DEVICE_COST, ERROR_BYTES, LARGE_STACK_MICROS, READ_A_MICRO, SMALL_DEPTH,
};
use super::{Fail, Node, compile, counting, on_large_stack};

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
        Self::compile_timed(source).0
    }

    /// Returns what [`Self::compile`] does, and the time that it has taken, estimated in microseconds.
    pub fn compile_timed(source: &str) -> (Result<Self, String>, u64) {
        let read = || {
            let (node, checked) =
                compile(source, &devices()).map_err(|error| format!("compilation failed: {error}"))?;
            super::admission::selects(&checked)?;
            Ok(Self(node))
        };
        let (compiled, bytes) = on_large_stack(|| {
            let mut patterns = Patterns::default();
            let compiled = counting(&mut patterns, read);
            (compiled, patterns.bytes() as u64)
        });
        let compiled = compiled.map_err(|mut error: String| {
            error.truncate(error.floor_char_boundary(ERROR_BYTES));
            error.shrink_to_fit();
            error
        });
        let micros = LARGE_STACK_MICROS + source.len() as u64 / READ_A_MICRO + bytes / COMPILED_A_MICRO;
        (compiled, micros)
    }

    /// Returns `true` if the selector selects a device.
    ///
    /// # Errors
    ///
    /// Returns why there is no answer: an error of the expression, or a cost beyond the limit.
    pub fn matches(&self, device: &DeviceValue) -> Result<bool, String> {
        self.judge(device).0
    }

    /// Returns the answer of [`Self::matches`], and the time that it has taken, estimated in microseconds.
    pub fn judge(&self, device: &DeviceValue) -> (Result<bool, String>, u64) {
        let evaluated = || {
            let open = [Arc::clone(&device.attributes), Arc::clone(&device.capacity)];
            evaluate_open(&self.0, &[("device", device.device.clone())], DEVICE_COST, &open)
        };
        let (evaluated, micros) = if self.0.depth <= SMALL_DEPTH {
            evaluated()
        } else {
            let (evaluated, micros) = on_large_stack(evaluated);
            (evaluated, micros + LARGE_STACK_MICROS)
        };
        (Self::answer(evaluated), micros)
    }

    fn answer(evaluated: Result<Cel, Fail>) -> Result<bool, String> {
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
    fn names_are_bound_to_values() {
        let own = "device.attributes['gpu.example.com']";
        for (source, wanted) in [
            (format!("cel.bind(own, {own}, own.healthy && own.index == 3)"), true),
            (
                "cel.bind(a, 'hello', cel.bind(b, 'world', a + b + b + a)) == 'helloworldworldhello'".into(),
                true,
            ),
            ("cel.bind(valid, [1, 3, 5], [2, 4].exists(one, one in valid))".into(), false),
            ("[1, 2].all(one, cel.bind(twice, one * 2, twice > one))".into(), true),
            // The innermost name counts, and a value does not see the names of the body that asks for it.
            ("cel.bind(a, 1, cel.bind(a, a + 1, a == 2))".into(), true),
            ("cel.bind(a, 1, cel.bind(b, a, [7].all(a, b == 1)))".into(), true),
            // A name hides a function with the same beginning, and the device.
            ("cel.bind(device, {'driver': 'x'}, device.driver == 'x')".into(), true),
            (format!("cel.bind(own, {own}, has(own.model) && !has(own.other))"), true),
            ("cel.bind(other, device.attributes['other.com'], !has(other.model))".into(), true),
        ] {
            assert_eq!(selects(&source), Ok(wanted), "{source}");
        }
    }

    #[test]
    fn bound_value_is_evaluated_once_and_only_if_it_is_asked_for() {
        assert_eq!(selects("cel.bind(bad, 1 / 0 == 1, true || bad)"), Ok(true));
        assert_eq!(selects("cel.bind(bad, 1 / 0 == 1, bad || true)"), Ok(true), "the other side decides");
        assert_eq!(selects("cel.bind(bad, 1 / 0 == 1, bad)"), Err("division by zero".to_owned()));
        let cost = |source: &str| {
            let (node, _) = compile(source, &devices()).unwrap();
            crate::evaluate(&node, &[("device", gpu().device)], u64::MAX).1
        };
        let (once, twice) = ("cel.bind(a, 1 + 1, a > 1)", "cel.bind(a, 1 + 1, a > 1 && a > 0)");
        // The sum, the comparison, and the name; and once more the latter two.
        assert_eq!((cost(once), cost(twice)), (3, 5));
        assert_eq!(cost("cel.bind(a, [1].all(x, x + 1 > 1), true)"), 0);
    }

    #[test]
    fn faulty_bindings_are_refused_when_they_are_written() {
        let fault = |source: &str| match crate::device(source).unwrap_err() {
            crate::Unfit::Invalid(text) => text.lines().next().unwrap().to_owned(),
            crate::Unfit::TooComplex => "too complex".to_owned(),
        };
        let begin = "compilation failed: ERROR: <input>:1:";
        for (source, expected) in [
            ("cel.bind(a.b, 1, true)", "11: cel.bind() variable names must be simple identifiers"),
            (
                "cel.bind(a, 1, a + 'x' == 'y')",
                "18: found no matching overload for '_+_' applied to '(int, string)'",
            ),
            ("cel.bind(a, a, true)", "13: undeclared reference to 'a' (in container '')"),
            ("cel.bind(a, 1, true) && a == 1", "25: undeclared reference to 'a' (in container '')"),
        ] {
            assert_eq!(fault(source), format!("{begin}{expected}"), "{source}");
        }
        assert!(fault("cel.bind(a, 1)").contains("undeclared reference to"), "{}", fault("cel.bind(a, 1)"));
        // Only selectors of devices have it.
        assert!(compile("cel.bind(a, 1, a == 1)", &crate::Env::default()).is_err());
    }

    #[test]
    fn cost_of_a_binding_is_that_of_its_value_and_of_its_body() {
        let cost = |source: &str| {
            let (node, checked) = compile(source, &devices()).unwrap();
            crate::estimate(&node, &checked)
        };
        let driver = cost("device.driver + device.driver == ''");
        assert_eq!(cost("cel.bind(a, device.driver, a + a == '')"), driver - 4 + 2 + 2 + 10);
        let loops = cost("device.attributes.all(domain, domain != '')");
        assert_eq!(cost("cel.bind(a, device.attributes, a.all(domain, domain != ''))"), loops + 1 + 10);
        assert_eq!(cost("cel.bind(a, device.attributes['x.com'], a.name)"), 15, "as in Kubernetes' own test");
        assert_eq!(crate::device("cel.bind(a, device.driver, a != '')"), Ok(()));
    }

    #[test]
    fn values_of_values_are_bounded_in_depth_and_size() {
        let chain = |count: usize, step: &str| {
            let mut text = "cel.bind(v0, 'x', ".to_owned();
            for number in 1..count {
                let value = step.replace('v', &format!("v{}", number - 1));
                text += &format!("cel.bind(v{number}, {value}, ");
            }
            text + &format!("v{} != ''{}", count - 1, ")".repeat(count))
        };
        assert_eq!(selects(&chain(30, "v + ''")), Ok(true));
        let deep = DeviceSelector::compile(&chain(200, "v + ''")).unwrap_err();
        assert!(deep.contains("nested deeper"), "{deep}");
        let doubled = selects(&chain(60, "v + v"));
        assert_eq!(doubled, Err("operation cancelled: actual cost limit exceeded".to_owned()));
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
    fn errors_that_quote_long_values_are_cut() {
        // Nine doublings of 9 kB make 4.6 MB.
        let mut text = format!("cel.bind(v0, '{}', ", "é".repeat(4500));
        (1..10).for_each(|number| {
            let before = number - 1;
            text += &format!("cel.bind(v{number}, v{before} + v{before}, ");
        });
        let error = selects(&format!("{text}{{'x': true}}[v9]{}", ")".repeat(10))).unwrap_err();
        assert!(error.starts_with("no such key: éé") && error.len() < 2048, "{} bytes", error.len());
        let error = selects(&format!("{text}int(v9) == 1{}", ")".repeat(10))).unwrap_err();
        assert!(error.len() < 2048, "{} bytes", error.len());
        // A compiler's error shows the line with each fault.
        let faults = format!("'{}' == '' && {}true", "x".repeat(2000), "a && ".repeat(100));
        let error = DeviceSelector::compile(&faults).unwrap_err();
        assert!(error.starts_with("compilation failed: ERROR: ") && error.len() < 2048, "{}", error.len());
    }

    #[test]
    fn time_of_an_evaluation_grows_with_what_it_does() {
        let micros = |source: &str| DeviceSelector::compile(source).unwrap().judge(&gpu()).1;
        assert!(micros("device.driver == 'gpu.example.com'") <= 1);
        let ones = "1,".repeat(4000);
        let constants = micros(&format!("0 in [{ones}1]"));
        assert!(constants >= 200, "constants cost nothing, but take {constants}");
        let tens = "[0,1,2,3,4,5,6,7,8,9]";
        let costly = format!("{}device.driver != ''{}", format!("{tens}.all(x, ").repeat(6), ")".repeat(6));
        assert!(micros(&costly) >= 50_000, "as much as may be spent: {}", micros(&costly));
        let deep = format!("device.driver{} != ''", " + ''".repeat(40));
        assert!(micros(&deep) >= LARGE_STACK_MICROS, "a thread is made for it");
    }

    #[test]
    fn time_to_compile_a_selector_grows_with_its_text_and_patterns() {
        let micros = |source: &str| DeviceSelector::compile_timed(source).1;
        let small = micros("device.driver == ''");
        assert!(micros(&format!("device.driver == '{}'", "x".repeat(8000))) >= small + 1000);
        let source = "device.driver.matches('^time[a-z]{100}of{50}[^x]{200}$')";
        assert!(micros(source) >= small + 50);
        let selector = DeviceSelector::compile(source).unwrap();
        let [first, second] = [selector.judge(&gpu()).1, selector.judge(&gpu()).1];
        assert!(first >= 50 && second < 50, "kept after the first use: {first}, {second}");
        let many =
            (0..9).map(|index| format!("device.driver.matches('{index}((([a-z]{{40}}){{40}}){{20}})')"));
        let many: Vec<String> = many.collect();
        let error = DeviceSelector::compile(&many.join(" || ")).unwrap_err();
        assert!(error.contains("compil"), "{error}");
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
