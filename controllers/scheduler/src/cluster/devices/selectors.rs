//! Compiled selectors of devices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_cel::DeviceSelector;

use crate::limits;

/// Selectors by their text, compiled when they are first asked for.
#[derive(Debug, Default)]
pub struct Selectors {
    compiled: Mutex<BTreeMap<String, Arc<Result<DeviceSelector, String>>>>,
}

/// A selector that compiles.
pub struct Compiled(Arc<Result<DeviceSelector, String>>);

impl Compiled {
    /// Returns `true` if the selector selects a device.
    ///
    /// # Errors
    ///
    /// Returns why there is no answer, in the words of Kubernetes.
    pub fn matches(&self, device: &apiserver_cel::DeviceValue) -> Result<bool, String> {
        self.0.as_ref().as_ref().map_err(Clone::clone)?.matches(device)
    }
}

impl Selectors {
    /// Returns a compiled selector.
    ///
    /// # Errors
    ///
    /// Returns why it does not compile, in the words of Kubernetes.
    pub fn compiled(&self, expression: &str) -> Result<Compiled, String> {
        let mut known = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match known.get(expression) {
            Some(found) => Arc::clone(found),
            None => {
                if known.len() >= limits::SELECTORS {
                    known.clear();
                }
                let compiled = Arc::new(DeviceSelector::compile(expression));
                known.insert(expression.to_owned(), Arc::clone(&compiled));
                compiled
            }
        };
        match found.as_ref() {
            Ok(_) => Ok(Compiled(found)),
            Err(error) => Err(error.clone()),
        }
    }
}
