//! Random operations, compared with a model that looks at every pod each time.

use super::*;

const SCRIPTS: &[Script] = &[
    ("Queues", &[NODE_ADD, VOLUME_ADD], Hint::Queue),
    ("Skips", &[NODE_ADD, CLAIM_ADD], Hint::Skip),
    ("Claims", &[CLAIM_ADD], Hint::Queue),
    ("Gate", &[ASSIGNED_DELETE, OWN_UPDATE], Hint::Queue),
];
const GATE: &str = "Gate";
const REJECTORS: [&str; 4] = ["Queues", "Skips", "Claims", EXTENDER];
const EVENTS: [Event; 6] =
    [NODE_ADD, VOLUME_ADD, CLAIM_ADD, CSI_NODE_UPDATE, ASSIGNED_DELETE, Event::WILDCARD];

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Active,
    Backoff,
    Parked,
    Gated,
    Attempted { events: Vec<Event>, is_forced: bool },
}

#[derive(Clone, Debug)]
struct Waiting {
    priority: i32,
    arrival: usize,
    is_free: bool,
    state: State,
    /// Milliseconds since the start.
    queued: u64,
    refused: u32,
    errors: u32,
    plugins: BTreeSet<&'static str>,
    pending: BTreeSet<&'static str>,
}

/// The order in which pods are tried.
type Rank = (i32, u64, usize);

/// The help of an event: none, after the back-off, or at once.
type Help = u8;

impl Waiting {
    fn is_error(&self) -> bool {
        self.plugins.is_empty() && self.pending.is_empty()
    }

    /// Returns the second in which the back-off ends.
    fn window(&self) -> Option<u64> {
        let failures = if self.errors > 0 { self.errors } else { self.refused };
        let pause = 1000 << failures.checked_sub(1)?.min(10);
        Some((self.queued + pause.min(10_000)) / 1000)
    }

    fn is_backing_off(&self, now: u64) -> bool {
        self.window().is_some_and(|window| window >= now / 1000)
    }

    fn rank(&self) -> Rank {
        (-self.priority, self.queued, self.arrival)
    }

    fn help(&self, event: Event) -> Help {
        let helps = |name: &&'static str| {
            SCRIPTS.iter().find(|(script, ..)| script == name).is_none_or(|(_, events, hint)| {
                *hint == Hint::Queue && events.iter().any(|one| one.includes(event))
            })
        };
        if event == Event::WILDCARD || self.is_error() {
            1
        } else if self.pending.iter().any(helps) {
            2
        } else {
            u8::from(self.plugins.iter().any(helps))
        }
    }

    fn enqueue(&mut self, help: Help, is_open: bool, now: u64) {
        if !is_open && !self.is_free {
            if !self.pending.contains(GATE) {
                self.plugins.insert(GATE);
            }
            self.state = State::Gated;
        } else if help == 1 && self.is_backing_off(now) {
            self.state = State::Backoff;
        } else {
            self.state = State::Active;
        }
    }
}

struct Model {
    pods: BTreeMap<String, Waiting>,
    is_open: bool,
    now: u64,
}

impl Model {
    fn happen(&mut self, event: Event) {
        let (is_open, now) = (self.is_open, self.now);
        for pod in self.pods.values_mut() {
            let gate_waits = event == ASSIGNED_DELETE;
            match &mut pod.state {
                State::Attempted { events, .. } if event != CSI_NODE_UPDATE => events.push(event),
                State::Parked => {}
                State::Gated if gate_waits => {}
                _ => continue,
            }
            let help = pod.help(event);
            if help > 0 && !matches!(pod.state, State::Attempted { .. }) {
                pod.enqueue(help, is_open, now);
            }
        }
    }

    fn pop(&mut self) -> Option<String> {
        self.end_backoffs();
        let first = |state: &State, key: &dyn Fn(&Waiting) -> (u64, Rank)| {
            let pods = self.pods.iter().filter(|(_, pod)| pod.state == *state);
            let pods = pods.filter(|(_, pod)| *state == State::Active || !pod.is_error());
            pods.min_by_key(|(_, pod)| key(pod)).map(|(uid, _)| uid.clone())
        };
        let uid = first(&State::Active, &|pod| (0, pod.rank()))
            .or_else(|| first(&State::Backoff, &|pod| (pod.window().unwrap_or_default(), pod.rank())))?;
        self.pods.get_mut(&uid).unwrap().state = State::Attempted { events: Vec::new(), is_forced: false };
        Some(uid)
    }

    fn end_backoffs(&mut self) {
        for pod in self.pods.values_mut().filter(|pod| pod.state == State::Backoff) {
            if !pod.is_backing_off(self.now) {
                pod.state = State::Active;
            }
        }
    }

    fn flush(&mut self) {
        self.end_backoffs();
        for pod in self.pods.values_mut() {
            if pod.state == State::Parked && pod.queued + 300_000 <= self.now {
                pod.enqueue(1, self.is_open, self.now);
            }
        }
    }

    fn fail(&mut self, uid: &str, plugins: BTreeSet<&'static str>, pending: BTreeSet<&'static str>) {
        let pod = self.pods.get_mut(uid).unwrap();
        let State::Attempted { events, is_forced } = pod.state.clone() else {
            panic!("{uid} is not attempted")
        };
        (pod.plugins, pod.pending, pod.queued) = (plugins, pending, self.now);
        if pod.is_error() {
            pod.errors += 1;
        } else {
            pod.refused += 1;
            pod.errors = 0;
        }
        let help = events.iter().map(|event| pod.help(*event)).max().unwrap_or_default();
        match help.max(u8::from(is_forced || pod.is_error())) {
            0 => pod.state = State::Parked,
            help => pod.enqueue(help, self.is_open, self.now),
        }
    }

    fn activate(&mut self, uid: &str) {
        let (is_open, now) = (self.is_open, self.now);
        let Some(pod) = self.pods.get_mut(uid) else { return };
        match &mut pod.state {
            State::Backoff => pod.state = State::Active,
            State::Parked | State::Gated => pod.enqueue(2, is_open, now),
            State::Attempted { is_forced, .. } => *is_forced = true,
            State::Active => {}
        }
    }
}

/// Both queues, and what decides what happens next.
struct Pair {
    rig: Rig,
    model: Model,
    random: u64,
    added: usize,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let rig = Rig::configured(QueueConfig::default(), SCRIPTS, &[GATE]);
        rig.allow(GATE, &["free", "other"]);
        let model = Model { pods: BTreeMap::new(), is_open: true, now: 0 };
        let mut pair = Self { rig, model, random: seed, added: 0 };
        // The windows of the model begin with time, those of the queue with the first pod.
        pair.add();
        pair
    }

    /// Returns a number below `bound` (SplitMix64).
    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    fn any_pod(&mut self, wanted: impl Fn(&State) -> bool) -> Option<String> {
        let pods = self.model.pods.iter().filter(|(_, pod)| wanted(&pod.state));
        let uids: Vec<String> = pods.map(|(uid, _)| uid.clone()).collect();
        (!uids.is_empty()).then(|| uids[self.below(uids.len())].clone())
    }

    fn attempted(&mut self) -> Option<String> {
        self.any_pod(|state| matches!(state, State::Attempted { .. }))
    }

    fn add(&mut self) {
        self.added += 1;
        let uid = format!("pod-{}", self.added);
        let (priority, is_free) = (self.below(3) as i32, self.below(4) > 0);
        let label = if is_free { "free" } else { "other" };
        let fields = json!({"metadata": {"labels": {label: ""}}, "spec": {"priority": priority}});
        self.rig.add_pod(&uid, fields);
        let mut pod = Waiting {
            priority,
            arrival: self.added,
            is_free,
            state: State::Active,
            queued: self.model.now,
            refused: 0,
            errors: 0,
            plugins: BTreeSet::new(),
            pending: BTreeSet::new(),
        };
        pod.enqueue(2, self.model.is_open, self.model.now);
        self.model.pods.insert(uid, pod);
    }

    fn fail(&mut self) {
        let Some(uid) = self.attempted() else { return };
        let (mut plugins, mut pending) = (BTreeSet::new(), BTreeSet::new());
        for name in REJECTORS {
            match self.below(8) {
                0..3 => drop(plugins.insert(name)),
                3 => drop(pending.insert(name)),
                _ => {}
            }
        }
        let names = |set: &BTreeSet<&'static str>| set.iter().copied().collect::<Vec<_>>();
        self.rig.fail(&uid, &names(&plugins), &names(&pending));
        self.model.fail(&uid, plugins, pending);
    }

    fn pass(&mut self) {
        let millis = [10, 500, 1000, 3700, 20_000, 300_000][self.below(6)];
        self.model.now += millis;
        self.rig.now = self.rig.start + Duration::from_millis(self.model.now);
        if self.below(2) == 0 {
            self.rig.queue.flush(&self.rig.cluster, self.rig.now);
            self.model.flush();
            assert!(self.rig.queue.deadline().is_none_or(|deadline| deadline > self.rig.now));
        }
    }

    fn set_gate(&mut self) {
        self.model.is_open = self.below(2) == 0;
        self.rig.allow(GATE, if self.model.is_open { &["free", "other"] } else { &["free"] });
    }

    fn step(&mut self) {
        match self.below(16) {
            0..3 => self.add(),
            3..7 => assert_eq!(self.rig.pop(), self.model.pop()),
            7..10 => self.fail(),
            10 => {
                if let Some(uid) = self.attempted() {
                    self.rig.done(&uid);
                    self.model.pods.remove(&uid);
                }
            }
            11 => {
                if let Some(uid) = self.any_pod(|_| true) {
                    self.rig.activate(&uid);
                    self.model.activate(&uid);
                }
            }
            12 => self.set_gate(),
            13 if self.below(3) == 0 => {
                if let Some(uid) = self.any_pod(|_| true) {
                    self.rig.remove(&uid);
                    self.model.pods.remove(&uid);
                }
            }
            13 | 14 => {
                let event = EVENTS[self.below(EVENTS.len())];
                self.rig.happen(event);
                self.model.happen(event);
            }
            _ => self.pass(),
        }
    }

    /// Checks that each pod is where it should be, and in one pool only.
    fn compare(&self) {
        let mut expected = [0; 4];
        for (uid, pod) in &self.model.pods {
            let pool = match pod.state {
                State::Active => Some(Pool::Active),
                State::Backoff => Some(Pool::Backoff),
                State::Parked => Some(Pool::Unschedulable),
                State::Gated => Some(Pool::Gated),
                State::Attempted { .. } => None,
            };
            assert_eq!(self.rig.pool(uid), pool, "{uid}: {pod:?} at {}", self.model.now);
            if let Some(pool) = pool {
                expected[pool as usize] += 1;
            }
        }
        assert_eq!(self.rig.counts(), expected);
        let waits = |pod: &&Waiting| !matches!(pod.state, State::Attempted { .. });
        let refusals: usize =
            self.model.pods.values().filter(waits).map(|pod| pod.plugins.len() + pod.pending.len()).sum();
        assert_eq!(self.rig.queue.refusals().map(|(_, _, pods)| pods).sum::<usize>(), refusals);
        if self.model.pods.values().all(|pod| waits(&pod)) {
            assert_eq!(self.rig.queue.flights.events(), 0);
        }
    }
}

#[test]
fn the_queue_does_what_a_model_does_that_looks_at_every_pod() {
    for seed in 0..60 {
        let mut pair = Pair::new(seed);
        for _ in 0..400 {
            pair.step();
            pair.compare();
        }
        // In the end all pods are handed out, by an event, a pause or the longest wait, if their gates are open.
        pair.model.is_open = true;
        pair.rig.allow(GATE, &["free", "other"]);
        pair.rig.happen(ASSIGNED_DELETE);
        pair.rig.run(400.0);
        let waiting =
            pair.model.pods.values().filter(|pod| !matches!(pod.state, State::Attempted { .. })).count();
        assert_eq!(pair.rig.pop_all().len(), waiting, "seed {seed}");
        assert_eq!(pair.rig.counts(), [0; 4]);
    }
}
