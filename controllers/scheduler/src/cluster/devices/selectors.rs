//! Compiled selectors of devices.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_cel::{DeviceSelector, DeviceValue};

use crate::limits;

/// Selectors by their text, compiled when they are first asked for.
#[derive(Debug, Default)]
pub struct Selectors {
    kept: Mutex<Kept>,
}

/// The selectors that are kept, up to a number and up to a length of their texts together.
#[derive(Debug, Default)]
struct Kept {
    by_text: BTreeMap<Arc<str>, (u64, Outcome)>,
    /// Their texts, the first compiled first.
    order: VecDeque<Arc<str>>,
    bytes: usize,
    /// The number of the next one.
    next: u64,
}

type Outcome = Result<Arc<DeviceSelector>, Arc<str>>;

/// A selector that compiles.
pub struct Compiled {
    /// A number that no other text has. A text that was compiled again has another one.
    pub number: u64,
    selector: Arc<DeviceSelector>,
}

impl Compiled {
    /// Returns `true` if the selector selects a device, or why there is no answer, in the words of Kubernetes; and the steps
    /// that this takes.
    pub fn judge(&self, device: &DeviceValue) -> (Result<bool, String>, u64) {
        let (answer, micros) = self.selector.judge(device);
        (answer, steps(micros))
    }
}

/// Returns the steps that are taken in a time.
fn steps(micros: u64) -> u64 {
    micros.saturating_mul(limits::SEARCH_STEPS) / 1000
}

/// Returns the bytes that count for a text and its outcome.
fn length(text: &str, outcome: &Outcome) -> usize {
    text.len() + outcome.as_ref().err().map_or(0, |error| error.len())
}

impl Kept {
    fn drop_first(&mut self) {
        let first = self.order.pop_front();
        let dropped = first.and_then(|text| Some((self.by_text.remove(&text)?.1, text)));
        if let Some((outcome, text)) = dropped {
            self.bytes -= length(&text, &outcome);
        }
    }

    /// Compiles a selector; also returns the steps that this takes.
    fn add(&mut self, text: &str) -> ((u64, Outcome), u64) {
        let (compiled, micros) = DeviceSelector::compile_timed(text);
        let outcome: Outcome = compiled.map(Arc::new).map_err(Into::into);
        let bytes = length(text, &outcome);
        while !self.order.is_empty()
            && (self.order.len() >= limits::SELECTORS || self.bytes + bytes > limits::SELECTOR_BYTES)
        {
            self.drop_first();
        }
        let (number, text) = (self.next, Arc::<str>::from(text));
        (self.next, self.bytes) = (number + 1, self.bytes + bytes);
        self.order.push_back(Arc::clone(&text));
        self.by_text.insert(text, (number, outcome.clone()));
        ((number, outcome), steps(micros))
    }
}

impl Selectors {
    /// Returns a compiled selector, or why it does not compile, in the words of Kubernetes; and the steps that this takes.
    pub fn compiled(&self, expression: &str) -> (Result<Compiled, String>, u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let length = expression.len() as u64;
        let ((number, outcome), steps) = match kept.by_text.get(expression) {
            Some(known) => (known.clone(), 1 + length / limits::TEXT_A_STEP),
            None => kept.add(expression),
        };
        let compiled = outcome.map(|selector| Compiled { number, selector });
        (compiled.map_err(|error| error.to_string()), steps)
    }

    /// Returns the number of selectors that are kept, and the length of their texts together.
    #[cfg(test)]
    pub fn size(&self) -> (usize, usize) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(kept.order.len(), kept.by_text.len());
        (kept.order.len(), kept.bytes)
    }
}
