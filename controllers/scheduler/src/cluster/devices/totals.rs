//! The devices of a class on a node, and those in use: what scores look at.

use k8s_openapi::api::resource::v1::DeviceClass;

use super::slices::Slice;
use super::{Devices, Target};

/// Numbers of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub all: i64,
    /// Those that are in use, by one claim or by several.
    pub used: i64,
}

impl Devices {
    /// Returns the number of devices of a class that a node can use; none if a selector of the class has no answer. As in
    /// kube-scheduler, all slices count, also those of pools that are not whole.
    pub fn totals(&self, class: &DeviceClass, target: Target<'_>) -> Totals {
        self.try_totals(class, target).unwrap_or_default()
    }

    /// # Errors
    ///
    /// Returns why a selector has no answer.
    fn try_totals(&self, class: &DeviceClass, target: Target<'_>) -> Result<Totals, String> {
        let mut totals = Totals::default();
        for slice in self.slices.for_node(target.name) {
            let has_slice = target.has_slice(slice);
            let used = self.in_use.of(&slice.pool);
            for (index, device) in slice.spec().devices.iter().flatten().enumerate() {
                let can_use = has_slice.unwrap_or_else(|| target.can_use(device));
                if can_use && self.is_of(class, slice, index)? {
                    totals.all += 1;
                    totals.used += i64::from(used.is_some_and(|used| used.of(&device.name).is_some()));
                }
            }
        }
        Ok(totals)
    }

    /// Returns `true` if all selectors of a class select a device.
    fn is_of(&self, class: &DeviceClass, slice: &Slice, device: usize) -> Result<bool, String> {
        for selector in class.spec.selectors.iter().flatten().filter_map(|selector| selector.cel.as_ref()) {
            let compiled = self.selectors.compiled(&selector.expression).0?;
            let answer = match slice.remembered(device, compiled.number) {
                Some(known) => known,
                None => slice.answer(device, &compiled, &slice.value(device).0).0?,
            };
            if !answer {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
