//! Objects made at random along the type graph: right in shape, arbitrary in content. The hooks must accept
//! any object that passes the schema check.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use apiserver_schema::schema;
use apiserver_schema::schema::{Definition, Type};

/// A small generator, so that one seed is one object.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        let index = usize::try_from(self.roll(list.len() as u64)).unwrap();
        list[index]
    }
}

const WORDS: [&str; 16] = [
    "",
    "a",
    "web",
    "Always",
    "RollingUpdate",
    "ClusterIP",
    "LoadBalancer",
    "None",
    "ClientIP",
    "Indexed",
    "10.0.0.1",
    "fd00::1",
    "In",
    "Exists",
    "Bad Name",
    "echo:latest@sha256:0",
];
const AMOUNTS: [&str; 6] = ["0", "1500m", "1Gi", "-2", "1e3", "9223372036854775807"];
const TIMES: [&str; 2] = ["2024-01-01T00:00:00Z", "1970-01-01T00:00:00.5+02:00"];

fn sample(ty: Type, dice: &mut Dice, depth: u32) -> Value {
    let number = [-1, 0, 1, 80, 600, i64::from(i32::MAX)];
    let any_number = |dice: &mut Dice| json!(number[usize::try_from(dice.roll(6)).unwrap()]);
    match ty {
        Type::String => json!(dice.pick(&WORDS)),
        Type::Bytes => json!(dice.pick(&["", "eA==", "AAECAw=="])),
        Type::Int32 | Type::Int64 | Type::Number => any_number(dice),
        Type::Bool => json!(dice.roll(2) == 0),
        Type::IntOrString if dice.roll(2) == 0 => any_number(dice),
        Type::IntOrString => json!(dice.pick(&["", "25%", "101%", "http", "%"])),
        Type::Quantity => json!(dice.pick(&AMOUNTS)),
        Type::Time | Type::MicroTime => json!(dice.pick(&TIMES)),
        Type::Any => json!({"x": [null, 1]}),
        Type::Object(_) => ty.object().map_or(Value::Null, |d| object(d, dice, depth + 1)),
        Type::List(_) => {
            let count = if depth > 6 { 0 } else { dice.roll(3) };
            (0..count).filter_map(|_| Some(sample(ty.element()?, dice, depth + 1))).collect()
        }
        Type::Map(_) => {
            let count = if depth > 6 { 0 } else { dice.roll(3) };
            let entry = |dice: &mut Dice| {
                Some((dice.pick(&WORDS).to_owned(), sample(ty.element()?, dice, depth + 1)))
            };
            Value::Object((0..count).filter_map(|_| entry(dice)).collect())
        }
    }
}

fn object(definition: Definition, dice: &mut Dice, depth: u32) -> Value {
    let mut map = Map::new();
    for field in definition.fields() {
        // The top is nearly always there, deeper fields ever more seldom; some types refer to themselves.
        let wanted = depth < 10 && dice.roll(u64::from(depth) + 2) == 0;
        if wanted || (depth < 4 && matches!(field.name(), "spec" | "template" | "containers" | "metadata")) {
            map.insert(field.name().to_owned(), sample(field.ty(), dice, depth));
        }
    }
    Value::Object(map)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn hooks_accept_any_object_of_the_right_shape(seed in any::<u64>()) {
        let mut dice = Dice(seed);
        let now = "2024-01-01T00:00:00Z".parse().unwrap();
        for resource in crate::registry().iter() {
            let definition = schema::definition(&resource.schema).unwrap();
            let (mut new, mut old) = (object(definition, &mut dice, 0), object(definition, &mut dice, 0));
            for value in [&mut new, &mut old] {
                let problems = schema::check(&resource.schema, value);
                prop_assert!(problems.is_empty(), "{}: {:?}", resource.kind, problems);
                schema::drop_unknown(&resource.schema, value);
                let once = value.clone();
                schema::drop_unknown(&resource.schema, value);
                prop_assert_eq!(&*value, &once, "{}: dropping twice differs", resource.kind);
                (resource.behaviour.default)(value);
                let once = value.clone();
                (resource.behaviour.default)(value);
                prop_assert_eq!(&*value, &once, "{}: defaulting twice differs", resource.kind);
                let problems = schema::check(&resource.schema, value);
                prop_assert!(problems.is_empty(), "{}: {:?}", resource.kind, problems);
                let _ = (resource.behaviour.validate)(value);
                prop_assert_eq!((resource.cells)(value, now).len(), resource.columns.len());
            }
            let unchanged = (resource.behaviour.validate_update)(&old, &old);
            prop_assert!(unchanged.iter().all(|e| !e.message.contains("immutable")), "{}: {:?}", resource.kind, unchanged);
            let _ = (resource.behaviour.validate_update)(&new, &old);
            let mut updated = new.clone();
            (resource.behaviour.prepare_update)(&mut updated, &old);
            (resource.behaviour.prepare_create)(&mut new);
            let problems = schema::check(&resource.schema, &new);
            prop_assert!(problems.is_empty(), "{}: {:?}", resource.kind, problems);
            let mut patched = old.clone();
            let _ = schema::strategic_merge(&resource.schema, &mut patched, &updated);
        }
    }
}
