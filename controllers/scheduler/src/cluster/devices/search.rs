//! The search for devices on one node: claim by claim, request by request, device by device, back to the last choice where it
//! leads nowhere. The first solution counts, so the order of the choices is that of kube-scheduler.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use apiserver_cel::DeviceValue;
use apiserver_client::ObjectKey;
use k8s_openapi::api::resource::v1::{Device, DeviceSelector, ResourceClaim};

use super::capacity::{Amounts, add, consumed, has_room, subtract};
use super::constraints::Constraint;
use super::counters::CounterUse;
use super::pools::{Pool, State, Target, gather};
use super::request::{Asked, Choice, Mode, Request, requests};
use super::slices::Slice;
use super::{Devices, tolerations};
use crate::cluster::DeviceClasses;
use crate::limits;

/// Devices that one claim can have (`AllocationResultsMaxSize`).
const MAX_DEVICES: usize = 32;

/// The reason for which a node's devices cannot be looked at to the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The node is out of the question, others may not be.
    OnNode(String),
    /// The search has taken too many steps.
    TooLong,
    /// A claim, a class or a selector is not as it should be.
    Fails(String),
}

/// The place of a device in the pools of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub pool: usize,
    pub slice: usize,
    pub device: usize,
}

/// A device that was chosen for a claim.
#[derive(Debug)]
pub struct Chosen {
    pub place: Place,
    pub request: usize,
    pub alternative: usize,
    /// The capacity that is taken of a device that several can have.
    pub consumed: Option<Amounts>,
}

/// The reason to stop a branch of the search, or all of it.
enum Stop {
    /// The claim would have too many devices. Earlier choices may need fewer.
    TooMany,
    Trouble(Trouble),
}

/// The device to find next.
#[derive(Clone, Copy)]
struct At {
    claim: usize,
    request: usize,
    alternative: usize,
    device: usize,
    /// The alternative is decided.
    is_decided: bool,
}

impl At {
    fn request(claim: usize, request: usize) -> Self {
        Self { claim, request, alternative: 0, device: 0, is_decided: false }
    }
}

/// The devices as they are offered and used.
#[derive(Clone, Copy)]
pub struct Offer<'a> {
    pub devices: &'a Devices,
    pub classes: &'a DeviceClasses,
    pub target: Target<'a>,
    /// Steps that the searches of an attempt may take together.
    pub steps: u64,
}

impl Offer<'_> {
    /// Counts steps that are about to be taken, or were.
    ///
    /// # Errors
    ///
    /// Returns [`Trouble::TooLong`] if none were left.
    fn take_steps(&self, steps: u64) -> Result<(), Trouble> {
        if self.devices.steps.taken() >= self.steps {
            return Err(Trouble::TooLong);
        }
        self.devices.steps.take(steps);
        Ok(())
    }
}

/// A search, and after its success the devices that were found.
pub struct Search<'a> {
    pub(super) offer: Offer<'a>,
    pub(super) pools: Vec<Pool<'a>>,
    pub(super) claims: &'a [&'a ResourceClaim],
    /// Requests by claim.
    pub(super) choices: Vec<Vec<Choice<'a>>>,
    /// Devices by claim.
    pub(super) chosen: Vec<Vec<Chosen>>,
    constraints: Vec<Vec<Constraint<'a>>>,
    counters: CounterUse<'a>,
    /// Claims that have a device alone.
    alone: BTreeMap<Place, BTreeSet<usize>>,
    /// Capacity that is taken of devices, and the number of those that take it.
    shared: BTreeMap<Place, (Amounts, usize)>,
    /// Numbers of the first device of each slice, by pool.
    first_numbers: Vec<Vec<usize>>,
    /// Devices as selectors see them, by number.
    values: RefCell<BTreeMap<usize, Rc<Result<DeviceValue, String>>>>,
    depth: usize,
}

/// Returns the devices for claims on a node; `None` if it does not have them.
///
/// # Errors
///
/// Returns why nothing can be said.
pub fn search<'a>(offer: Offer<'a>, claims: &'a [&'a ResourceClaim]) -> Result<Option<Search<'a>>, Trouble> {
    offer.take_steps(1)?;
    let pools = gather(&offer.devices.slices, &offer.devices.in_use, offer.target);
    let mut search = Search {
        offer,
        first_numbers: numbers(&pools),
        pools,
        claims,
        choices: Vec::new(),
        chosen: claims.iter().map(|_| Vec::new()).collect(),
        constraints: Vec::new(),
        counters: CounterUse::default(),
        alone: BTreeMap::new(),
        shared: BTreeMap::new(),
        values: RefCell::default(),
        depth: 0,
    };
    for claim in claims {
        search.prepare(claim)?;
    }
    match search.find(At::request(0, 0), Place::default()) {
        Ok(true) => Ok(Some(search)),
        Ok(false) if search.pools.iter().any(|pool| pool.state == State::Invalid) => {
            Err(Trouble::OnNode("invalid resource pools were encountered".to_owned()))
        }
        Ok(false) => Ok(None),
        Err(Stop::TooMany) => Err(Trouble::Fails("allocation max size exceeded".to_owned())),
        Err(Stop::Trouble(trouble)) => Err(trouble),
    }
}

/// Returns the number of the first device of each slice, by pool.
fn numbers(pools: &[Pool<'_>]) -> Vec<Vec<usize>> {
    let mut next = 0;
    let mut number = |devices: usize| {
        next += devices;
        next - devices
    };
    let of_pool = |pool: &Pool<'_>| pool.slices.iter().map(|slice| number(slice.devices.len())).collect();
    pools.iter().map(of_pool).collect()
}

fn places(index: usize, pool: &Pool<'_>) -> impl Iterator<Item = Place> {
    let slices: Vec<usize> = pool.slices.iter().map(|slice| slice.devices.len()).collect();
    let of_slice = move |(slice, devices): (usize, usize)| {
        (0..devices).map(move |device| Place { pool: index, slice, device })
    };
    slices.into_iter().enumerate().flat_map(of_slice)
}

impl<'a> Search<'a> {
    /// Prepares the search for a claim's devices.
    fn prepare(&mut self, claim: &'a ResourceClaim) -> Result<(), Trouble> {
        let key = ObjectKey::of(claim);
        let (mut choices, mut least) = (Vec::new(), 0_usize);
        for source in requests(claim) {
            let mut choice = Choice { alternatives: Vec::new(), is_choice: false, chosen: 0 };
            choice.is_choice = source.first_available.as_ref().is_some_and(|first| !first.is_empty());
            for request in Request::alternatives(source) {
                let name = request.name;
                let text = |why: String| Trouble::Fails(format!("claim {key}, request {name}{why}"));
                choice.alternatives.push(self.asked(request, claim, &text)?);
            }
            least = least.saturating_add(choice.alternatives.iter().map(|one| one.count).min().unwrap_or(0));
            choices.push(choice);
        }
        if least > MAX_DEVICES {
            return Err(Trouble::Fails(format!(
                "claim {key}: number of requested devices {least} exceeds the claim limit of {MAX_DEVICES}"
            )));
        }
        let constraints = claim.spec.devices.iter().flat_map(|devices| devices.constraints.iter().flatten());
        let parsed = constraints.enumerate().map(|(index, constraint)| {
            Constraint::parse(constraint).ok_or_else(|| {
                let what = "empty constraint (unsupported constraint type?)";
                Trouble::Fails(format!("claim {key}, constraint #{index}: {what}"))
            })
        });
        self.constraints.push(parsed.collect::<Result<_, _>>()?);
        self.choices.push(choices);
        Ok(())
    }

    /// Prepares the search for a request's devices.
    fn asked(
        &self,
        request: Request<'a>,
        claim: &ResourceClaim,
        text: &dyn Fn(String) -> Trouble,
    ) -> Result<Asked<'a>, Trouble> {
        if let Some(index) = request.selectors.iter().position(|selector| selector.cel.is_none()) {
            return Err(text(format!(
                ", selector #{index}: CEL expression empty (unsupported selector type?)"
            )));
        }
        if request.class_name.is_empty() {
            return Err(text(": missing device class name (unsupported request type?)".to_owned()));
        }
        let Some(class) = self.offer.classes.named(request.class_name) else {
            let class = request.class_name;
            return Err(text(format!(
                ": could not retrieve device class {class}: deviceclass.resource.k8s.io {class:?} not found"
            )));
        };
        self.offer.take_steps(1)?;
        let devices = self.pools.iter().flat_map(|pool| &pool.slices).map(|slice| slice.devices.len()).sum();
        let mut asked =
            Asked { request, class, count: 0, all: Vec::new(), matches: vec![Cell::default(); devices] };
        match &asked.request.mode {
            Mode::Exact(count) => asked.count = *count,
            Mode::All => self.list_all(&mut asked, claim, text)?,
            Mode::Unknown(mode) => return Err(text(format!(": unsupported count mode {mode}"))),
        }
        Ok(asked)
    }

    /// Finds the devices of a request for all devices.
    fn list_all(
        &self,
        asked: &mut Asked<'a>,
        claim: &ResourceClaim,
        text: &dyn Fn(String) -> Trouble,
    ) -> Result<(), Trouble> {
        let mut all = Vec::new();
        for (index, pool) in self.pools.iter().enumerate() {
            let state = match pool.state {
                State::Usable => None,
                State::Incomplete => Some("being updated"),
                State::Invalid => Some("invalid"),
            };
            // A pool of another node has no devices for this one, whatever becomes of it.
            if let Some(state) = state.filter(|_| !pool.is_elsewhere) {
                return Err(text(format!(
                    ": asks for all devices, but resource pool {}/{} is currently {state}",
                    pool.id.driver, pool.id.pool
                )));
            }
            for place in places(index, pool) {
                self.offer.take_steps(1)?;
                if self.matches(asked, claim, place)? && self.has_room(asked, place) {
                    all.push(place);
                }
            }
        }
        (asked.count, asked.all) = (all.len(), all);
        Ok(())
    }

    fn source(&self, place: Place) -> &'a Device {
        self.pools[place.pool].slices[place.slice].source(place.device)
    }

    fn number(&self, place: Place) -> usize {
        self.first_numbers[place.pool][place.slice] + place.device
    }

    /// Returns `true` if a device is one that the request asks for, and the node can use it.
    fn matches(&self, asked: &Asked<'a>, claim: &ResourceClaim, place: Place) -> Result<bool, Trouble> {
        let number = self.number(place);
        if let Some(known) = asked.matches[number].get() {
            return Ok(known);
        }
        let class = asked.class.metadata.name.as_deref().unwrap_or_default();
        let of_class = asked.class.spec.selectors.as_deref().unwrap_or_default();
        let by_node = || {
            let by_device =
                self.pools[place.pool].slices[place.slice].spec().per_device_node_selection == Some(true);
            !by_device || self.offer.target.can_use(self.source(place))
        };
        let matches = self.selected(of_class, place, || format!("class {class}"))?
            && self.selected(asked.request.selectors, place, || format!("claim {}", ObjectKey::of(claim)))?
            && by_node();
        asked.matches[number].set(Some(matches));
        Ok(matches)
    }

    /// Returns `true` if all selectors select a device.
    fn selected(
        &self,
        selectors: &[DeviceSelector],
        place: Place,
        owner: impl Fn() -> String,
    ) -> Result<bool, Trouble> {
        let slice = self.pools[place.pool].slices[place.slice];
        for (index, selector) in selectors.iter().enumerate() {
            let expression = selector.cel.as_ref().map_or("", |cel| &cel.expression);
            let fails = |what: &str, error: &str| {
                Trouble::Fails(format!("{}: selector #{index}: CEL {what} error: {error}", owner()))
            };
            let (compiled, steps) = self.offer.devices.selectors.compiled(expression);
            self.offer.take_steps(steps)?;
            let compiled = compiled.map_err(|error| fails("compile", &error))?;
            let answer = match slice.remembered(place.device, compiled.number) {
                Some(known) => Ok(known),
                None => {
                    let value = self.value(place)?;
                    let (answer, steps) = slice.answer(place.device, &compiled, &value);
                    self.offer.take_steps(steps)?;
                    answer
                }
            };
            if !answer.map_err(|error| fails("runtime", &error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns a device as selectors see it.
    fn value(&self, place: Place) -> Result<Rc<Result<DeviceValue, String>>, Trouble> {
        let mut values = self.values.borrow_mut();
        let number = self.number(place);
        if let Some(known) = values.get(&number) {
            return Ok(Rc::clone(known));
        }
        let (value, steps) = self.pools[place.pool].slices[place.slice].value(place.device);
        self.offer.take_steps(steps)?;
        if values.len() >= limits::DEVICE_VALUES {
            values.pop_first();
        }
        let value = Rc::new(value);
        values.insert(number, Rc::clone(&value));
        Ok(value)
    }

    fn has_room(&self, asked: &Asked<'a>, place: Place) -> bool {
        let pool = &self.pools[place.pool];
        let used =
            pool.used.and_then(|used| used.of(&self.source(place).name)).and_then(|used| used.capacity());
        let taking = self.shared.get(&place).map(|(amounts, _)| amounts);
        has_room(&pool.slices[place.slice].devices[place.device], &asked.request.capacity, [used, taking])
    }

    /// Returns `true` if a claim has the device alone.
    fn is_taken(&self, place: Place) -> bool {
        let used = self.pools[place.pool].used.and_then(|used| used.of(&self.source(place).name));
        used.is_some_and(|used| used.is_alone())
            || self.alone.get(&place).is_some_and(|claims| !claims.is_empty())
    }

    fn is_taken_by(&self, place: Place, claim: usize) -> bool {
        self.alone.get(&place).is_some_and(|claims| claims.contains(&claim))
    }

    fn step(&self) -> Result<(), Stop> {
        self.offer.take_steps(1).map_err(Stop::Trouble)
    }

    fn asked_at(&self, at: At) -> &Asked<'a> {
        &self.choices[at.claim][at.request].alternatives[at.alternative]
    }

    /// Finds a device, and all that come after it, from a place on. Returns `false` if there is no way.
    fn find(&mut self, at: At, from: Place) -> Result<bool, Stop> {
        self.step()?;
        if self.depth >= limits::SEARCH_DEPTH {
            let what = format!("more than {} devices and requests are searched for", limits::SEARCH_DEPTH);
            return Err(Stop::Trouble(Trouble::Fails(what)));
        }
        self.depth += 1;
        let found = self.find_next(at, from);
        self.depth -= 1;
        found
    }

    fn find_next(&mut self, at: At, from: Place) -> Result<bool, Stop> {
        if at.claim >= self.claims.len() {
            return Ok(true);
        }
        if at.request >= self.choices[at.claim].len() {
            return match self.find(At::request(at.claim + 1, 0), Place::default()) {
                // An earlier claim with alternatives may leave room for one here that needs less.
                Err(Stop::TooMany) => Ok(false),
                found => found,
            };
        }
        let choice = &self.choices[at.claim][at.request];
        if choice.is_choice && !at.is_decided {
            return self.find_first_available(at);
        }
        let Some(asked) = choice.alternatives.get(at.alternative) else { return Ok(false) };
        let is_all = asked.request.mode == Mode::All;
        if is_all && asked.all.is_empty() {
            return Ok(false);
        }
        if at.device >= asked.count {
            return self.find(At::request(at.claim, at.request + 1), Place::default());
        }
        if self.chosen[at.claim].len() + asked.count - at.device > MAX_DEVICES {
            return Err(Stop::TooMany);
        }
        if is_all { self.find_listed(at) } else { self.find_any(at, from) }
    }

    /// Takes the first alternative that leads to a solution.
    fn find_first_available(&mut self, at: At) -> Result<bool, Stop> {
        let mut needs_too_many = true;
        for alternative in 0..self.choices[at.claim][at.request].alternatives.len() {
            match self.find(At { alternative, is_decided: true, ..at }, Place::default()) {
                Err(Stop::TooMany) => {}
                Ok(false) => needs_too_many = false,
                Ok(true) => {
                    self.choices[at.claim][at.request].chosen = alternative;
                    return Ok(true);
                }
                Err(stop) => return Err(stop),
            }
        }
        if needs_too_many { Err(Stop::TooMany) } else { Ok(false) }
    }

    /// Takes the next device of a request for all devices.
    fn find_listed(&mut self, at: At) -> Result<bool, Stop> {
        let place = self.asked_at(at).all[at.device];
        if !self.take(at, place)? {
            return Ok(false);
        }
        let found = self.find(At { device: at.device + 1, ..at }, Place::default());
        if !matches!(found, Ok(true)) {
            self.give_back(at, place);
        }
        found
    }

    /// Takes any device from a place on. Devices before it were tried for the same request: their order makes no difference.
    fn find_any(&mut self, at: At, from: Place) -> Result<bool, Stop> {
        for pool in from.pool..self.pools.len() {
            if self.pools[pool].state != State::Usable {
                continue;
            }
            let first = if pool == from.pool { from.slice } else { 0 };
            for slice in first..self.pools[pool].slices.len() {
                let first = if (pool, slice) == (from.pool, from.slice) { from.device } else { 0 };
                for device in first..self.pools[pool].slices[slice].devices.len() {
                    let place = Place { pool, slice, device };
                    if !self.is_candidate(at, place)? || !self.take(at, place)? {
                        continue;
                    }
                    let next = Place { device: device + 1, ..place };
                    let found = self.find(At { device: at.device + 1, ..at }, next);
                    if matches!(found, Ok(true)) {
                        return found;
                    }
                    self.give_back(at, place);
                    found?;
                }
            }
        }
        Ok(false)
    }

    fn is_candidate(&self, at: At, place: Place) -> Result<bool, Stop> {
        self.step()?;
        let is_admin = self.asked_at(at).request.is_admin;
        if is_admin && self.is_taken_by(place, at.claim) || !is_admin && self.is_taken(place) {
            return Ok(false);
        }
        let claim = self.claims[at.claim];
        let asked = self.asked_at(at);
        let matches = self.matches(asked, claim, place).map_err(Stop::Trouble)?;
        Ok(matches && self.has_room(asked, place))
    }

    /// Takes a device, unless it is not to be had.
    fn take(&mut self, at: At, place: Place) -> Result<bool, Stop> {
        // Each constraint compares the name of the request with all that it is about.
        let steps = self.constraints[at.claim].len() / 4;
        self.offer.take_steps(steps as u64).map_err(Stop::Trouble)?;
        let (pool, source) = (&self.pools[place.pool], self.source(place));
        let slice: &'a Slice = pool.slices[place.slice];
        let device = &slice.devices[place.device];
        let (driver, uses) = (&pool.id.driver, pool.used.and_then(|used| used.of(&source.name)));
        let request = &self.choices[at.claim][at.request].alternatives[at.alternative].request;
        let allows_multiple = device.allows_multiple;
        let is_refused = if request.is_admin {
            !allows_multiple && self.is_taken_by(place, at.claim)
        } else {
            self.is_taken(place)
        };
        if is_refused {
            return Ok(false);
        }
        // Sharers of a device take from the counters once.
        let has_sharers =
            uses.is_some_and(|uses| uses.capacity().is_some()) || self.shared.contains_key(&place);
        let is_paid = device.consumes.is_empty() || allows_multiple && has_sharers;
        if !is_paid && !self.counters.take(place.pool, pool, &device.consumes) {
            return Ok(false);
        }
        // A device that is refused from here on keeps what it has taken from counters, as in kube-scheduler.
        if tolerations::forbid(source, request.tolerations) {
            return Ok(false);
        }
        for index in 0..self.constraints[at.claim].len() {
            if self.constraints[at.claim][index].add(request, source, driver) {
                continue;
            }
            if request.mode == Mode::All {
                return Err(Stop::Trouble(self.unmet(at, place)));
            }
            self.constraints[at.claim][..index].iter_mut().for_each(|constraint| constraint.remove(request));
            return Ok(false);
        }
        if !allows_multiple {
            self.alone.entry(place).or_default().insert(at.claim);
        }
        if !self.has_room(self.asked_at(at), place) {
            return Ok(false);
        }
        let taken = allows_multiple.then(|| consumed(device, &self.asked_at(at).request.capacity));
        if let Some(taken) = &taken {
            let (sum, sharers) = self.shared.entry(place).or_default();
            add(sum, taken);
            *sharers += 1;
        }
        let chosen = Chosen { place, request: at.request, alternative: at.alternative, consumed: taken };
        self.chosen[at.claim].push(chosen);
        Ok(true)
    }

    /// Returns the trouble that a constraint forbids a device of a request for all devices.
    fn unmet(&self, at: At, place: Place) -> Trouble {
        let id = &self.pools[place.pool].id;
        Trouble::Fails(format!(
            "claim {}, request {}: cannot add device {}/{}/{} because a claim constraint would not be satisfied",
            ObjectKey::of(self.claims[at.claim]),
            self.asked_at(at).request.name,
            id.driver,
            id.pool,
            self.source(place).name
        ))
    }

    /// Undoes [`Self::take`] of the last device of a claim.
    fn give_back(&mut self, at: At, place: Place) {
        let request = &self.choices[at.claim][at.request].alternatives[at.alternative].request;
        self.constraints[at.claim].iter_mut().for_each(|constraint| constraint.remove(request));
        if let Some(claims) = self.alone.get_mut(&place) {
            claims.remove(&at.claim);
        }
        let Some(Chosen { consumed, .. }) = self.chosen[at.claim].pop() else { return };
        let Some(consumed) = consumed else {
            let slice: &'a Slice = self.pools[place.pool].slices[place.slice];
            self.counters.give_back(place.pool, &slice.devices[place.device].consumes);
            return;
        };
        // A device that several can have keeps what it has taken from counters, as in kube-scheduler.
        if let Some((sum, sharers)) = self.shared.get_mut(&place) {
            subtract(sum, &consumed);
            *sharers -= 1;
            if *sharers == 0 {
                self.shared.remove(&place);
            }
        }
    }
}
