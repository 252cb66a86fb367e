//! Plans one service: the blocks it needs, those it has, and the values of its frontends.

use ebpf_common::frontend::{Frontend, frontend_flag};
use ebpf_common::limits;
use ipnetwork::IpNetwork;

use super::{KnownLut, Pass, Run, Service, Synchronizer, Value};
use crate::arena::Block;
use crate::convert;
use crate::maglev::{self, Candidate};
use crate::store::{Family, Space, Store, lut_in, lut_units};
use crate::tables::{self, Algorithm, Backend, DataPlaneError, Forwarding, FrontendKey, ServiceTables};

/// The state of planning one service.
struct Planned<'a> {
    name: &'a str,
    service: Service,
    /// Blocks of backends written.
    written: usize,
    /// Blocks that the service is to have.
    runs: Vec<Run>,
    luts: Vec<KnownLut>,
    /// Ranges that have been admitted for it.
    ranges: Vec<IpNetwork>,
}

/// A list of backends that an earlier frontend had, and its block.
struct Placed<'a> {
    family: Family,
    list: &'a [Backend],
    block: Block,
    /// The word of the look-up table; `None` if no frontend has asked for one.
    lut: Option<u32>,
}

impl<S: Store> Synchronizer<S> {
    /// Writes the blocks of a service and records the frontends that are to name them.
    pub(super) fn plan<'a>(&mut self, name: &'a str, desired: &ServiceTables, pass: &mut Pass<'a>) {
        let (service, is_new) = match self.services.get_mut(name) {
            Some(service) => (std::mem::take(service), false),
            None => match self.take_id(name) {
                Ok(id) => (Service { id, ..Service::default() }, true),
                Err(error) => return self.refuse(desired, pass, error),
            },
        };
        let (runs, luts, ranges) = (Vec::new(), Vec::new(), Vec::new());
        let mut planned = Planned { name, service, written: 0, runs, luts, ranges };
        let ranges = networks(&desired.source_ranges);
        let result = self
            .let_in(&ranges, &mut planned, pass)
            .and_then(|()| self.plan_frontends(desired, &mut planned, pass));
        let service = match result {
            Ok(values) => {
                if is_new {
                    pass.names.push((planned.service.id, name));
                }
                self.commit(ranges, values, planned, pass)
            }
            Err(error) => {
                self.refuse(desired, pass, error);
                let service = self.undo(planned, pass);
                if is_new {
                    self.free_ids.insert(service.id);
                    return;
                }
                service
            }
        };
        match self.services.get_mut(name) {
            Some(place) => *place = service,
            None => drop(self.services.insert(name.into(), service)),
        }
    }

    /// Records that a service does not get its desired tables.
    fn refuse(&mut self, desired: &ServiceTables, pass: &mut Pass<'_>, error: DataPlaneError) {
        pass.fail(error);
        if !pass.moved.is_empty() {
            desired.frontends.iter().for_each(|frontend| self.drop_moved(&frontend.key, pass));
        }
    }

    /// Restores the previous state and frees what was written in vain.
    fn undo(&mut self, planned: Planned<'_>, pass: &mut Pass<'_>) -> Service {
        let Planned { service, runs, ranges, .. } = planned;
        for run in runs {
            if !service.runs.contains(&run) {
                self.arenas[run.0.index()].free(run.1);
            }
        }
        for range in ranges {
            if let Err(error) = self.store.delete_source_range(service.id, &range) {
                pass.fail(error);
            }
        }
        service
    }

    /// Records what the service gives up, and the new values of its frontends.
    fn commit<'a>(
        &mut self,
        ranges: Vec<IpNetwork>,
        values: Vec<(FrontendKey, Value)>,
        planned: Planned<'a>,
        pass: &mut Pass<'a>,
    ) -> Service {
        let Planned { name, mut service, written, runs, luts, .. } = planned;
        pass.applied.blocks_written += written;
        let obsolete = service.runs.iter().filter(|run| !runs.contains(run));
        pass.obsolete.extend(obsolete.map(|run| (name, *run)));
        if self.loses(&service.frontends, &values) {
            pass.losers.push(service.id);
        }
        merge(&service, &values, &mut pass.puts);
        // Both have exactly the required capacity: there are many services.
        (service.frontends, service.runs) = (values, runs);
        service.runs.shrink_to_fit();
        let mut extra = service.extra.take().map(|extra| *extra).unwrap_or_default();
        for range in extra.source_ranges.drain(..) {
            if !ranges.contains(&range) {
                pass.stale_ranges.push((name, service.id, range));
            }
        }
        extra.source_ranges = ranges;
        extra.luts = luts;
        let needed = !(extra.luts.is_empty() && extra.source_ranges.is_empty());
        service.extra = needed.then(|| Box::new(extra));
        service
    }

    /// Admits sources before any frontend checks them.
    fn let_in<'a>(
        &mut self,
        ranges: &[IpNetwork],
        planned: &mut Planned<'a>,
        pass: &mut Pass<'a>,
    ) -> Result<(), DataPlaneError> {
        let id = planned.service.id;
        let present = planned.service.extra.as_ref().map(|extra| extra.source_ranges.as_slice());
        let present = present.unwrap_or_default();
        for range in ranges.iter().filter(|range| !present.contains(range)) {
            let mut result = self.store.put_source_range(id, range);
            if result.is_err() && !pass.stale_ranges.is_empty() {
                // Freeing what others no longer need makes room.
                self.write(pass);
                result = self.store.put_source_range(id, range);
            }
            result.map_err(|error| super::named(error, planned.name))?;
            planned.ranges.push(*range);
        }
        Ok(())
    }

    /// Returns the values of the frontends, with every block they need written.
    fn plan_frontends<'a>(
        &mut self,
        desired: &ServiceTables,
        planned: &mut Planned<'a>,
        pass: &mut Pass<'a>,
    ) -> Result<Vec<(FrontendKey, Value)>, DataPlaneError> {
        let mut placed: Vec<Placed<'_>> = Vec::new();
        let mut values = Vec::with_capacity(desired.frontends.len());
        for frontend in &desired.frontends {
            let family = Family::of(&frontend.key);
            let wants = wants_lut(frontend, family);
            let known = placed.iter().position(|known| {
                known.family == family
                    && (wants, known.lut.is_some()) != (true, false)
                    && known.list == frontend.backends
            });
            let (block, lut) = match known {
                _ if !frontend.backends.iter().any(|backend| family.has(backend)) => (None, 0),
                Some(known) => (Some(placed[known].block), placed[known].lut.filter(|_| wants).unwrap_or(0)),
                None => {
                    let mut sorted: Vec<Backend> =
                        frontend.backends.iter().filter(|backend| family.has(backend)).copied().collect();
                    convert::sort(&mut sorted);
                    let hint = planned.service.value(&frontend.key).and_then(Value::block);
                    let block = self.block(family, &sorted, hint, planned, pass)?;
                    let lut = match wants {
                        true => self.lut_or_none((family, block), &sorted, planned, pass)?,
                        false => None,
                    };
                    placed.push(Placed { family, list: &frontend.backends, block, lut });
                    (Some(block), lut.unwrap_or(0))
                }
            };
            values.push((frontend.key, value(frontend, block, lut)));
        }
        values.sort_by_key(|(key, _)| *key);
        values.dedup_by_key(|(key, _)| *key);
        Ok(values)
    }

    /// Returns a block with these backends: one that the service has, preferably the one at `hint`, or a new
    /// one.
    fn block<'a>(
        &mut self,
        family: Family,
        sorted: &[Backend],
        hint: Option<Block>,
        planned: &mut Planned<'a>,
        pass: &mut Pass<'a>,
    ) -> Result<Block, DataPlaneError> {
        let space = Space::Backends(family);
        let length = u32::try_from(sorted.len()).unwrap_or(u32::MAX);
        if length > limits::BACKENDS_PER_FRONTEND {
            let limit = limits::BACKENDS_PER_FRONTEND;
            return Err(DataPlaneError::Full { service: planned.name.to_owned(), map: space.map(), limit });
        }
        let fits = |run: &Run| {
            run.0 == space && run.1.length == length && self.store.block_equals(family, run.1, sorted)
        };
        let hinted = hint.map(|block| (space, block)).filter(|run| planned.service.runs.contains(run));
        let owned = hinted.filter(fits).or_else(|| planned.owned().find(|run| fits(run)));
        if let Some(run) = owned {
            planned.own(run);
            return Ok(run.1);
        }
        let block = self.allocate(space, length, planned.name, pass)?;
        self.store.write_block(family, block, sorted);
        planned.runs.push((space, block));
        planned.written += 1;
        Ok(block)
    }

    /// Returns a look-up table as [`Self::lut`] does; `None` if there is no room and the choice is as even
    /// without a table. Then more connections move when the list changes, which is better than no service at
    /// all.
    fn lut_or_none<'a>(
        &mut self,
        place: (Family, Block),
        sorted: &[Backend],
        planned: &mut Planned<'a>,
        pass: &mut Pass<'a>,
    ) -> Result<Option<u32>, DataPlaneError> {
        match self.lut(place, sorted, planned, pass) {
            Ok(word) => Ok(Some(word)),
            Err(DataPlaneError::Full { map, limit, .. }) if map == Space::Luts.map() && even(sorted) => {
                pass.without_table.get_or_insert((planned.name, limit));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the word of a look-up table over a block: one that the service has, or a new one.
    fn lut<'a>(
        &mut self,
        (family, block): (Family, Block),
        sorted: &[Backend],
        planned: &mut Planned<'a>,
        pass: &mut Pass<'a>,
    ) -> Result<u32, DataPlaneError> {
        let weights = sorted.iter().map(|backend| backend.weight);
        let before = planned.service.extra.iter().flat_map(|extra| &extra.luts);
        let known = before.chain(&planned.luts).find(|known| {
            (known.family, known.block) == (family, block)
                && known.weights.iter().copied().eq(weights.clone())
        });
        let run = match known {
            Some(known) => known.run,
            None => {
                let candidates: Vec<Candidate> = sorted.iter().map(candidate).collect();
                let entries = maglev::table(&candidates, maglev::bits(&candidates));
                let length = lut_units(entries.len());
                let owned = planned.owned().find(|(space, run)| {
                    (*space, run.length) == (Space::Luts, length)
                        && self.store.lut_equals(lut_in(*run), &entries)
                });
                match owned {
                    Some((_, run)) => run,
                    None => {
                        let run = self.allocate(Space::Luts, length, planned.name, pass)?;
                        self.store.write_lut(lut_in(run), &entries);
                        run
                    }
                }
            }
        };
        planned.own((Space::Luts, run));
        if !planned.luts.iter().any(|known| (known.family, known.block, known.run) == (family, block, run)) {
            planned.luts.push(KnownLut { family, block, weights: weights.collect(), run });
        }
        Ok(lut_in(run).pack())
    }

    /// Allocates space; if there is none, first frees what this pass and those before it no longer need.
    fn allocate<'a>(
        &mut self,
        space: Space,
        length: u32,
        name: &str,
        pass: &mut Pass<'a>,
    ) -> Result<Block, DataPlaneError> {
        if let Some(block) = self.arenas[space.index()].allocate(length) {
            return Ok(block);
        }
        self.write(pass);
        if self.arenas[space.index()].resting() > 0 {
            self.store.grace_period();
            self.arenas.iter_mut().for_each(crate::arena::Arena::rested);
        }
        let arena = &mut self.arenas[space.index()];
        let limit = arena.capacity() * space.unit();
        arena.allocate(length).ok_or_else(|| DataPlaneError::Full {
            service: name.to_owned(),
            map: space.map(),
            limit,
        })
    }

    /// Returns `true` if some frontend no longer leads to a backend that it led to.
    fn loses(&self, old: &[(FrontendKey, Value)], new: &[(FrontendKey, Value)]) -> bool {
        // Frontends share blocks: each pair is compared once.
        let mut seen: Vec<(Family, Block, Option<Block>)> = Vec::new();
        for (key, value) in old {
            let Some(block) = value.block() else { continue };
            let now = find(new, key).and_then(Value::block);
            let pair = (Family::of(key), block, now);
            if now == Some(block) || seen.contains(&pair) {
                continue;
            }
            if !now.is_some_and(|now| self.store.block_within(pair.0, block, now)) {
                return true;
            }
            seen.push(pair);
        }
        false
    }
}

impl Service {
    fn value(&self, key: &FrontendKey) -> Option<Value> {
        find(&self.frontends, key)
    }
}

fn find(values: &[(FrontendKey, Value)], key: &FrontendKey) -> Option<Value> {
    values.binary_search_by_key(key, |(key, _)| *key).ok().map(|index| values[index].1)
}

impl Planned<'_> {
    /// Returns the blocks that the service has, or will have.
    fn owned(&self) -> impl Iterator<Item = Run> {
        self.service.runs.iter().chain(&self.runs).copied()
    }

    fn own(&mut self, run: Run) {
        if !self.runs.contains(&run) {
            self.runs.push(run);
        }
    }
}

/// Returns the ranges in the form of the store: without host bits, and without duplicates.
fn networks(ranges: &[IpNetwork]) -> Vec<IpNetwork> {
    let network = |range: &IpNetwork| {
        // The prefix is that of a range of the same family.
        IpNetwork::new(range.network(), range.prefix()).unwrap_or(*range)
    };
    let mut ranges: Vec<IpNetwork> = ranges.iter().map(network).collect();
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}

fn candidate(backend: &Backend) -> Candidate {
    Candidate { identity: convert::identity(backend), weight: backend.weight }
}

/// Returns `true` if all backends have the same weight.
fn even(backends: &[Backend]) -> bool {
    backends.windows(2).all(|pair| pair[0].weight == pair[1].weight)
}

/// Returns `true` if the choice among the backends takes a look-up table.
fn wants_lut(frontend: &tables::Frontend, family: Family) -> bool {
    let mut weights = frontend.backends.iter().filter(|backend| family.has(backend)).map(|one| one.weight);
    let Some(first) = weights.next() else {
        return false;
    };
    let mut count = 1;
    for weight in weights {
        if weight != first {
            return true;
        }
        count += 1;
    }
    frontend.algorithm == Algorithm::Consistent && count > limits::RENDEZVOUS
}

fn flags(frontend: &tables::Frontend) -> u16 {
    let when = |on: bool, flag: u16| if on { flag } else { 0 };
    let forwarding = match frontend.forwarding {
        Forwarding::Nat => 0,
        Forwarding::DsrOption => frontend_flag::DSR_OPTION,
        Forwarding::DsrIpip => frontend_flag::DSR_IPIP,
    };
    forwarding
        | when(frontend.drop_when_empty, frontend_flag::DROP_WHEN_EMPTY)
        | when(frontend.masquerade, frontend_flag::MASQUERADE)
        | when(frontend.limited, frontend_flag::SOURCE_RANGES)
        | when(frontend.algorithm == Algorithm::Consistent, frontend_flag::CONSISTENT)
}

fn value(frontend: &tables::Frontend, block: Option<Block>, lut: u32) -> Value {
    let (start, count) = block.map_or((0, 0), |block| (block.start, block.length as u16));
    Value {
        switch: Frontend::pack(start, count, flags(frontend)),
        lut,
        affinity: convert::ticks(frontend.affinity_seconds),
    }
}

/// Adds the values that differ to the list.
fn merge(service: &Service, values: &[(FrontendKey, Value)], puts: &mut Vec<(FrontendKey, Frontend)>) {
    for (key, value) in values {
        if service.value(key) != Some(*value) {
            puts.push((*key, value.frontend(service.id)));
        }
    }
}
