//! One exact limiter in virtual time: all counters in memory, and every request decided when it came.

use std::sync::Arc;

use foldhash::fast::RandomState;
use futures_util::FutureExt as _;
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use weir_config::put_in_force;
use weir_limit::{
    Code, CompiledRule, Descriptor, Domain, IN_FLIGHT, KeyHasher, LimitCheck, Matched, Modes, PlaceName,
    Request, RequestName, RuleSet, Scope, Timestamp, algorithm::CounterState,
};
use weir_limiter::{
    DecisionSettings, Limiter, ReportedRejections,
    observe::Stats,
    store::{MemoryStore, TakeOptions},
};
use weir_recording::{Definition, RecordedDescriptor, RecordedEvent, RecordedKind};

/// More counters than a recording of 64 MiB names.
const MAX_COUNTERS: usize = 4_000_000;

/// A step of a sweep after so many events.
const SWEEP: u64 = 512;

/// The most requests in flight at a time whose names are known.
const MAX_RUNNING: usize = 1_000_000;

/// What applies to all rules, as the variables of the service say.
#[derive(Clone, Debug, Default)]
pub struct ReplaySettings {
    pub modes: Modes,
    pub scope: Scope,
}

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    pub is_over: bool,
    /// One for each descriptor that was asked about.
    pub statuses: SmallVec<[ReplayedStatus; 2]>,
    /// The index of the rule that rejected it.
    pub rejected_by: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedStatus {
    /// The descriptor's place in the request.
    pub descriptor: usize,
    pub is_over: bool,
    pub remaining: u32,
    /// The index of the rule that limits it.
    pub rule: Option<usize>,
}

/// What a replay does not know.
#[derive(Clone, Debug, Default)]
pub struct ReplayGaps {
    /// The indexes of rules with a counter whose hits before the recording are not known.
    pub unknown_starts: HashSet<usize, RandomState>,
    /// Requests in flight that ended and had begun before.
    pub unknown_ends: u64,
    /// Requests with places that were admitted here and not there, so that their ends are not known.
    pub endless: u64,
    /// Requests that no rules could decide.
    pub errors: u64,
}

/// Decides recorded requests by the rules that it is made of.
#[derive(Debug)]
pub struct ExactLimiter {
    limiter: Arc<Limiter<MemoryStore>>,
    domains: Vec<Domain>,
    /// Kept, since counters are found by it.
    hasher: KeyHasher,
    /// When the rules change next in recorded time, if they change with time.
    edge: Option<Timestamp>,
    /// The names of requests in flight here, by those of the recording.
    names: HashMap<PlaceName, String, RandomState>,
    labels: Vec<String>,
    gaps: ReplayGaps,
    events: u64,
}

// === impl Replayed ===

impl Replayed {
    /// Returns what became of a descriptor. They are in their order, and few are missing.
    pub fn of(&self, descriptor: usize) -> Option<&ReplayedStatus> {
        let is_it = |status: &&ReplayedStatus| status.descriptor == descriptor;
        let found = || self.statuses.binary_search_by_key(&descriptor, |status| status.descriptor);
        self.statuses.get(descriptor).filter(is_it).or_else(|| self.statuses.get(found().ok()?))
    }
}

// === impl ExactLimiter ===

impl ExactLimiter {
    pub fn new(domains: &[Domain], settings: &ReplaySettings) -> Self {
        let ReplaySettings { modes, scope } = settings.clone();
        let settings = DecisionSettings {
            modes,
            scope,
            reported_rejections: ReportedRejections::None,
            ..DecisionSettings::default()
        };
        let limiter = Limiter::new(MemoryStore::new(MAX_COUNTERS), Arc::new(Stats::silent()), settings);
        let hasher = KeyHasher::random();
        let rules = RuleSet::new(domains, hasher);
        let labels = rules.rules().iter().map(|rule| rule.path.to_string()).collect();
        limiter.load(rules);
        Self {
            limiter: Arc::new(limiter),
            domains: domains.to_vec(),
            hasher,
            // the first event says when it is
            edge: Some(Timestamp::default()),
            names: HashMap::default(),
            labels,
            gaps: ReplayGaps::default(),
            events: 0,
        }
    }

    /// The paths of the rules, by their index.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    pub const fn gaps(&self) -> &ReplayGaps {
        &self.gaps
    }

    /// Decides `event`. None if there is nothing to decide.
    pub fn decide(&mut self, event: &RecordedEvent<'_, '_>) -> Option<Replayed> {
        self.events += 1;
        if self.edge.is_some_and(|edge| edge <= event.at) {
            self.edge = put_in_force(&mut self.domains, event.at);
            self.limiter.load(RuleSet::new(&self.domains, self.hasher));
        }
        if self.events.is_multiple_of(SWEEP) {
            let step = usize::try_from(self.events / SWEEP).unwrap_or_default();
            self.limiter.store().sweep_step(step, event.at);
        }
        match event.kind {
            RecordedKind::Reload => None,
            RecordedKind::Reset => {
                self.reset(event);
                None
            }
            _ if event.is_undone => {
                self.undo(event);
                None
            }
            _ => self.decide_request(event),
        }
    }

    fn decide_request(&mut self, event: &RecordedEvent<'_, '_>) -> Option<Replayed> {
        let names = self.names_of_ends(event);
        let mut request =
            Request { domain: event.descriptors.first()?.definition.domain, ..Request::default() };
        let mut places: SmallVec<[usize; 2]> = SmallVec::new();
        for (i, recorded) in event.descriptors.iter().enumerate() {
            let mut descriptor = descriptor_of(recorded);
            if let Some((_, name)) = names.iter().find(|(descriptor, _)| *descriptor == i) {
                let (Some(name), Some(last)) = (name, descriptor.entries.last_mut()) else { continue };
                last.value = name;
            }
            request.descriptors.push(descriptor);
            places.push(i);
        }
        if request.descriptors.is_empty() {
            return None;
        }
        if event.descriptors.iter().any(|recorded| recorded.is_first) {
            self.begin_counters(event, &request, &places);
        }
        let options = TakeOptions { takes_names: true, ..TakeOptions::default() };
        let decided = self.limiter.decide_with(&request, event.at, options, |verdict| {
            let mut replayed = Replayed {
                is_over: verdict.code == Code::OverLimit,
                rejected_by: None,
                statuses: SmallVec::new(),
            };
            for (status, descriptor) in verdict.statuses.iter().zip(&places) {
                let rule = status.limit.and_then(|limit| limit.rule.compiled()).map(CompiledRule::index);
                let is_over = status.code == Code::OverLimit;
                let (descriptor, remaining) = (*descriptor, status.remaining);
                replayed.statuses.push(ReplayedStatus { descriptor, is_over, remaining, rule });
            }
            let nearest = verdict.nearest.filter(|_| replayed.is_over);
            replayed.rejected_by = nearest.and_then(|nearest| replayed.statuses[nearest].rule);
            let name =
                verdict.in_flight.as_ref().and_then(|places| places.name.as_deref().map(str::to_owned));
            (replayed, name)
        });
        let Some(Ok((replayed, name))) = decided.now_or_never() else {
            self.gaps.errors += 1;
            return None;
        };
        self.note_name(event, name);
        Some(replayed)
    }

    fn note_name(&mut self, event: &RecordedEvent<'_, '_>, name: Option<String>) {
        let Some(name) = name else { return };
        match event.place {
            Some(place) if self.names.len() < MAX_RUNNING => {
                self.names.insert(place, name);
            }
            _ => self.gaps.endless += 1,
        }
    }

    /// For descriptors that name a request in flight: its name here, or none if it is not known.
    fn names_of_ends(&mut self, event: &RecordedEvent<'_, '_>) -> Vec<(usize, Option<String>)> {
        if event.kind != RecordedKind::End {
            return Vec::new();
        }
        let mut names = Vec::new();
        for (i, recorded) in event.descriptors.iter().enumerate() {
            if let Some(place) = place_of(recorded.definition) {
                let name = self.names.get(&place).cloned();
                self.gaps.unknown_ends += u64::from(name.is_none());
                names.push((i, name));
            }
        }
        for recorded in &event.descriptors {
            if let Some(place) = place_of(recorded.definition) {
                self.names.remove(&place);
            }
        }
        names
    }

    fn undo(&mut self, event: &RecordedEvent<'_, '_>) {
        for recorded in &event.descriptors {
            let name = place_of(recorded.definition).and_then(|place| self.names.remove(&place));
            if let Some(name) = name {
                self.limiter.undo(recorded.definition.domain, &name, event.at).now_or_never();
            }
        }
    }

    /// Counters that are not there yet begin as the recording says.
    #[cold]
    fn begin_counters(&mut self, event: &RecordedEvent<'_, '_>, request: &Request<'_>, places: &[usize]) {
        let (store, gaps) = (self.limiter.store(), &mut self.gaps);
        self.limiter.rules(|rules| {
            let matched = Matched::new(rules, request);
            for (found, descriptor) in matched.matches.iter().zip(places) {
                let recorded = &event.descriptors[*descriptor];
                let Some(check) = found.check().filter(|_| recorded.is_first) else { continue };
                begin(store, &matched.checks[check], recorded.definition, gaps);
            }
        });
    }

    fn reset(&self, event: &RecordedEvent<'_, '_>) {
        for recorded in &event.descriptors {
            let definition = recorded.definition;
            let request = Request::of(definition.domain, &definition.entries);
            self.limiter.rules(|rules| {
                for check in &Matched::new(rules, &request).checks {
                    for tier in check.tiers() {
                        self.limiter.store().with_slot(check.key.of_tier(tier), |slot| {
                            if let Some(slot) = slot {
                                slot.counter = CounterState::unused(tier, event.at);
                            }
                        });
                    }
                }
            });
        }
    }
}

fn begin(store: &MemoryStore, check: &LimitCheck<'_>, definition: &Definition<'_>, gaps: &mut ReplayGaps) {
    for tier in check.own_tiers() {
        let key = check.key.of_tier(tier);
        if let Some(state) = definition.before.iter().find_map(|before| before.of_tier(tier)) {
            store.insert_if(key, || true, || (state, ()), |_| {});
        } else if store.with_slot(key, |slot| slot.is_none())
            && let Some(rule) = check.rule.compiled()
        {
            gaps.unknown_starts.insert(rule.index());
        }
    }
}

/// The place of a request in flight that a descriptor names.
fn place_of(definition: &Definition<'_>) -> Option<PlaceName> {
    let last = definition.entries.last().filter(|last| last.key == IN_FLIGHT)?;
    RequestName::read_place(last.value)
}

fn descriptor_of<'d>(recorded: &RecordedDescriptor<'d, '_>) -> Descriptor<'d> {
    let is_default = !recorded.has_own_hits && recorded.hits.0 == 1;
    Descriptor {
        entries: SmallVec::from_slice(&recorded.definition.entries),
        limit: recorded.definition.limit.clone(),
        hits: (!is_default).then_some(recorded.hits.0),
        refund: recorded.is_refund,
    }
}
