//! Runs a case through the real decision path, and compares every answer with the model's.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Builder, task::yield_now, time::sleep};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Condition, Network, SimulatedClock, SimulatedStore},
};
use weir_limit::{
    Algorithm, Code, Coordination, CountBy, Descriptor, Domain, Entry, IpNetwork, KeyHasher,
    Limit as RuleLimit, ListedNetwork, NANOS_PER_SECOND, NetworkList, Period, PrefixLengths, Request,
    Reserve, Rule, RuleNode, RuleSet, RuntimeLimit, Scope, Timestamp, Values, Verdict,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::{MemoryStore, Store, clock::Clock as _};

use crate::{
    case::{Ask, Case, KEYS, Limit, OF_NETWORKS, OF_PREFIXES, Step, VALUES},
    model::{Answer, Check, Model},
    models::Models,
    on_disk::OnDisk,
};

/// The time in which instances learn from each other.
const SETTLES: Duration = Duration::from_millis(1_100);

/// The time in which they also return what they hold.
const RETURNS: Duration = Duration::from_secs(11);

/// The time at which cases begin: shortly after the start of a window of every length.
pub(crate) const EPOCH: Timestamp = Timestamp::from_millis(1_699_999_200_321);

/// The time in nanoseconds for which instances that split limits have known each other: longer than any window, and
/// than any bucket needs to fill.
const BEFORE: i64 = 30 * 365 * 86_400 * 1_000_000_000;

/// Where the counters are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Memory,
    /// On disk, with next to none in memory, and restarts in between.
    Disk,
    Coordinated(Coordination),
    /// In a shared store. Each rule has a mode of its own, which reloads change.
    Mixed,
}

impl Mode {
    /// Returns whether all instances decide by one count in the store.
    pub(crate) fn is_coordinated(self) -> bool {
        !matches!(self, Self::Memory | Self::Disk | Self::Coordinated(Coordination::Split))
    }
}

/// The modes of rules under [`Mode::Mixed`].
const MIXED: [Coordination; 4] =
    [Coordination::Strict, Coordination::Interval, Coordination::Lease, Coordination::Auto];

fn mixed_mode(limit: &Limit) -> Coordination {
    MIXED[limit.tiers[0].requests as usize % MIXED.len()]
}

/// Runs `case` in `mode`. Fails with the first answer that differs.
pub(crate) fn run(case: &Case, mode: Mode) -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let clock = SimulatedClock::new(EPOCH);
        let early = clock.clone();
        if mode == Mode::Coordinated(Coordination::Split) {
            early.set_offset(-BEFORE);
        }
        match mode {
            Mode::Memory => {
                let store = MemoryStore::new(1_000);
                Run::new(case, mode, clock, vec![store], None).all().await
            }
            Mode::Disk => {
                let store = OnDisk::new(clock.clone());
                Run::new(case, mode, clock, vec![store], None).all().await
            }
            Mode::Coordinated(_) | Mode::Mixed => {
                let coordination = match mode {
                    Mode::Coordinated(coordination) => coordination,
                    _ => Coordination::Auto,
                };
                let shared = SimulatedStore::new(clock.clone(), 7);
                let network = Network {
                    round_trip: Duration::from_millis(case.round_trip),
                    timeout: Duration::from_secs(10),
                    ..Network::default()
                };
                let stores = (0..case.instances).map(|i| {
                    let settings = CoordinationSettings {
                        coordination,
                        local_cache: case.local_cache,
                        // for a report on its way, what has to precede a decision, and the decision
                        budget: Period::from_millis(50),
                        instance: format!("i{i}"),
                        ..CoordinationSettings::default()
                    };
                    Coordinated::new(shared.connect(network), Arc::new(clock.clone()), settings)
                });
                let stores: Vec<_> = stores.collect();
                let run = Run::new(case, mode, clock, stores, Some(shared));
                // after two heartbeats all instances know each other
                sleep(Duration::from_millis(2_500)).await;
                if mode == Mode::Coordinated(Coordination::Split) {
                    // the part of an instance that starts is that of what began afterwards
                    sleep(Duration::from_secs(3)).await;
                    early.set_offset(0);
                }
                run.all().await
            }
        }
    })
}

/// The limiters of a case, and the model that they are compared with.
struct Run<'a, S> {
    case: &'a Case,
    clock: SimulatedClock,
    limiters: Vec<Limiter<S>>,
    mode: Mode,
    has_outages: bool,
    /// Whether hits are given back.
    returns: bool,
    longest_pause: Duration,
    /// None in memory.
    shared: Option<SimulatedStore>,
    hasher: KeyHasher,
    limits: Vec<Limit>,
    models: Models,
    /// Whether an answer differed because instances pause, so that the rest of the case says nothing.
    is_paused: bool,
}

impl<'a, S: Store> Run<'a, S> {
    fn new(
        case: &'a Case,
        mode: Mode,
        clock: SimulatedClock,
        stores: Vec<S>,
        shared: Option<SimulatedStore>,
    ) -> Self {
        let scope = if case.together { Scope::Request } else { Scope::Descriptor };
        let settings = DecisionSettings { scope, ..DecisionSettings::default() };
        let limiters =
            stores.into_iter().map(|store| Limiter::new(store, Arc::new(Stats::default()), settings.clone()));
        let limits = case.limits.clone();
        Self {
            case,
            clock,
            limiters: limiters.collect(),
            mode,
            returns: case.together
                || case.steps.iter().any(
                    |step| matches!(step, Step::Request(_, asks) if asks.iter().any(|ask| ask.gives_back)),
                ),
            longest_pause: case.longest_pause(),
            has_outages: case.steps.iter().any(|step| matches!(step, Step::Outage(_))),
            shared,
            hasher: KeyHasher::random(),
            limits,
            models: Models::default(),
            is_paused: false,
        }
    }

    async fn all(mut self) -> Result<(), String> {
        self.load();
        for (i, step) in self.case.steps.iter().enumerate() {
            match step {
                Step::Wait(time) => sleep((*time).into()).await,
                Step::Reload(key, limit) => {
                    self.limits[*key] = limit.clone();
                    self.load();
                }
                Step::Outage(fails) => {
                    // what is on its way arrives
                    for _ in 0..100 {
                        yield_now().await;
                    }
                    let condition = if *fails { Condition::Down } else { Condition::Up };
                    self.shared.iter().for_each(|shared| shared.set(condition));
                }
                Step::Request(instance, asks) => {
                    if self.has_outages {
                        // counters that share a tier report in the order of their hits, whose instants must differ
                        sleep(Duration::from_millis(1)).await;
                    }
                    let checks: Vec<Check> = asks.iter().map(|ask| self.check(ask)).collect();
                    self.settle(*instance, asks).await;
                    if self.models.is_open(&checks, self.clock.now()) {
                        return Ok(());
                    }
                    if let Err(differs) = self.request(*instance, asks, &checks).await {
                        if self.models.are_too_many || self.is_paused {
                            return Ok(());
                        }
                        return Err(format!("step {i}, {step:?}: {differs}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Has all instances report what they have counted, and `instance` learn what it is asked about, as a check without
    /// hits does.
    async fn settle(&self, instance: usize, asks: &[Ask]) {
        let settles = match self.mode {
            _ if self.limiters.len() == 1 => return,
            // hits that are given back, also by a request of all or none, are reported soon after the answer
            Mode::Coordinated(Coordination::Strict) if self.returns => {
                return sleep(Duration::from_millis(20)).await;
            }
            Mode::Coordinated(Coordination::Strict) => return,
            Mode::Coordinated(Coordination::Interval) => SETTLES,
            _ => RETURNS,
        };
        sleep(settles.max(self.longest_pause + SETTLES)).await;
        // one by one: a request that is rejected by what is known of one counter asks about no other
        for ask in asks {
            let looks = Ask { hits: 0, gives_back: false, ..ask.clone() };
            let request =
                Request { domain: "d", descriptors: [descriptor(&looks, 0)].into_iter().collect(), hits: 1 };
            let _ = self.limiters[instance].decide(&request, self.clock.now(), |_| ()).await;
        }
        sleep(SETTLES).await;
    }

    fn load(&self) {
        for limiter in &self.limiters {
            let nodes = KEYS.iter().zip(&self.limits).map(|(key, limit)| {
                let tiers = RuleLimit::Tiers { tiers: limit.tiers(), over_limit_policy: limit.policy() };
                let mut rule = Rule { reserve: limit.meters.then_some(Reserve::NOTHING), ..Rule::new(tiers) };
                if self.mode == Mode::Mixed {
                    rule.coordination.mode = Some(mixed_mode(limit));
                }
                let (values, count_by) = match KEYS.iter().position(|other| other == key) {
                    Some(OF_PREFIXES) => (Values::Any, CountBy::Prefix(PrefixLengths { ipv4: 24, ipv6: 64 })),
                    Some(OF_NETWORKS) => (Values::Networks(networks().into()), CountBy::Network),
                    _ => (Values::Any, CountBy::Values),
                };
                RuleNode { rule: Some(rule), count_by, ..RuleNode::new(key, values) }
            });
            let domain = Domain::new("d", nodes.collect());
            limiter.load(RuleSet::new(&[domain], self.hasher));
        }
    }

    async fn request(&mut self, instance: usize, asks: &[Ask], checks: &[Check]) -> Result<(), String> {
        let before = self.clock.now();
        let spelling = before.as_nanos() / 1_000_000;
        let descriptors = asks.iter().map(|ask| descriptor(ask, spelling)).collect();
        let request = Request { domain: "d", descriptors, hits: 1 };
        let limiter = &self.limiters[instance];
        let decided = limiter.decide(&request, before, |verdict| (verdict.code, answers(verdict))).await;
        let (code, got) = decided.map_err(|error| error.to_string())?;
        let time = self.clock.now().since(before);
        // a decision is made at one instant while its request waits: in the store, or when a lease has arrived, which
        // may have been on its way already
        let mut instants: Vec<u64> = (0..=time.as_nanos() / 1_000_000).collect();
        let decides_in_store = self.mode == Mode::Coordinated(Coordination::Strict);
        let likely = if decides_in_store { time.as_nanos() / 2_000_000 } else { u64::MAX };
        instants.sort_by_key(|millis| millis.abs_diff(likely));
        let instants: Vec<Timestamp> =
            instants.into_iter().map(|millis| before.after(Period::from_millis(millis))).collect();
        let has_holds = self.limiters.len() > 1 && self.leases();
        let expected = if self.case.together && checks.len() > 1 {
            let knows_less: Vec<bool> = (0..checks.len())
                .map(|i| self.decides_in_store(&asks[i]) && self.knows_less_of_returns(i, checks))
                .collect();
            self.models.follow(&instants, checks, &got, |model, now| {
                let answers = model.answer_together(checks, now).into_iter().enumerate();
                // what is rejected by what an instance knows of one counter asks about no other
                let may_ask_nobody =
                    self.limiters.len() > 1 && !decides_in_store && got.iter().any(|answer| answer.over);
                let told = |(i, answer): (usize, Answer)| {
                    if may_ask_nobody && !got[i].over {
                        return got[i].clone();
                    }
                    let remaining = if may_ask_nobody { got[i].remaining } else { answer.remaining };
                    let reset = reset_with_holds(&got[i], &answer, has_holds);
                    let answer = Answer { remaining, reset, ..answer };
                    let over = if checks[i].gives_back { got[i].over } else { answer.over };
                    if knows_less[i] { Answer { over, ..got[i].clone() } } else { answer }
                };
                answers.map(told).collect()
            })
        } else {
            let mut expected = Vec::new();
            for (i, (check, own)) in checks.iter().zip(&got).enumerate() {
                let counts_rejected = check.limit.reference && !check.limit.meters && !self.case.together;
                let decides_in_store = self.decides_in_store(&asks[i]);
                let is_restarted = decides_in_store && self.is_restarted_later(i, checks, &got);
                let knows_less = decides_in_store && self.knows_less_of_returns(i, checks);
                let (of, answers) = (std::slice::from_ref(check), std::slice::from_ref(own));
                let answer = |model: &mut Model, now| {
                    let answer = model.answer(check, counts_rejected, now);
                    let reset =
                        if is_restarted { own.reset } else { reset_with_holds(own, &answer, has_holds) };
                    let over = if check.gives_back { own.over } else { answer.over };
                    vec![if knows_less { Answer { over, ..own.clone() } } else { Answer { reset, ..answer } }]
                };
                expected.extend(self.models.follow(&instants, of, answers, answer));
            }
            expected
        };
        if got != expected {
            self.is_paused = self.may_pause(checks, &got, &expected);
            return Err(format!("\n      got {got:?}\n expected {expected:?}"));
        }
        let over = expected.iter().any(|answer| answer.over);
        if (code == Code::OverLimit) != over {
            return Err(format!("the request's code is {code:?}"));
        }
        Ok(())
    }

    /// Returns whether the store decides what `ask` asks for.
    fn decides_in_store(&self, ask: &Ask) -> bool {
        match self.mode {
            Mode::Coordinated(mode) => mode == Coordination::Strict,
            Mode::Mixed => ask.own.is_none() && mixed_mode(&self.limits[ask.key]) == Coordination::Strict,
            Mode::Memory | Mode::Disk => false,
        }
    }

    /// Returns whether a later one of `checks`, with the answers `got`, restarts the wait of a strict bucket of check `i`.
    /// Tries of one command are one after the other in the store, whose states are those after all of them.
    fn is_restarted_later(&self, i: usize, checks: &[Check], got: &[Answer]) -> bool {
        let is_strict = checks[i].limit.tiers().iter().any(|tier| tier.bucket().strict);
        let mut later = (i + 1..checks.len()).filter(|j| checks[*j].name == checks[i].name);
        self.limiters.len() > 1 && is_strict && later.any(|j| got[j].over)
    }

    /// Returns whether check `i`, or a later one of `checks`, gives back hits of its counter: by what this instance knows
    /// of it. Of several checks the store says how it stands after all of them: an instance that does not know how it
    /// stood before cannot tell what the return has added.
    fn knows_less_of_returns(&self, i: usize, checks: &[Check]) -> bool {
        let mut later = checks[i..].iter().filter(|check| check.name == checks[i].name);
        self.limiters.len() > 1 && later.any(|check| check.gives_back)
    }

    /// Returns whether the answers `got` may differ from the `expected` ones because several instances pause: a check of
    /// the request has taken hits of a bucket under a lease, and has left less than all of them could use.
    fn may_pause(&self, checks: &[Check], got: &[Answer], expected: &[Answer]) -> bool {
        let first = got.iter().zip(expected).position(|(got, expected)| got != expected);
        first.is_some_and(|i| {
            let is_bucket = |tier: &weir_limit::Tier| matches!(tier.algorithm, Algorithm::TokenBucket(_));
            let has_bucket = checks[i].limit.tiers().iter().any(is_bucket);
            let mut earlier = (0..i).filter(|j| checks[*j].name == checks[i].name && !got[*j].over);
            self.leases()
                && self.limiters.len() > 1
                && has_bucket
                && got[i].over
                // nothing is admitted before the pause ends, so no earlier retry would be right
                && (!expected[i].over || got[i].reset > expected[i].reset)
                && earlier.next().is_some()
        })
    }

    fn leases(&self) -> bool {
        matches!(self.mode, Mode::Mixed | Mode::Coordinated(Coordination::Lease | Coordination::Auto))
    }

    fn check(&self, ask: &Ask) -> Check {
        Check {
            // a limit of the request counts the value as text, and the rule a network that is no value
            name: format!(
                "{}={}{}",
                KEYS[ask.key],
                VALUES[ask.key][ask.value][0],
                if ask.key == OF_NETWORKS && ask.own.is_some() { " as text" } else { "" }
            ),
            limit: ask.own.clone().unwrap_or_else(|| self.limits[ask.key].clone()),
            hits: ask.hits,
            gives_back: ask.gives_back,
        }
    }
}

/// Returns the reset of `expected`, or that of `got` if it is later by no more than a hold: of several instances, a sliding
/// window counts leased hits as if they were used at its end.
fn reset_with_holds(got: &Answer, expected: &Answer, has_holds: bool) -> u64 {
    let is_sliding = expected.tier.algorithm == Algorithm::SlidingWindow;
    let hold = if has_holds && is_sliding { expected.tier.period.as_nanos() / 100 } else { 0 };
    let later = expected.reset..=expected.reset + hold.min(NANOS_PER_SECOND);
    if later.contains(&got.reset) { got.reset } else { expected.reset }
}

fn networks() -> NetworkList {
    let networks = VALUES[OF_NETWORKS].iter().map(|spellings| ListedNetwork {
        network: IpNetwork::of_rule(spellings[0]).expect("a network"),
        line: 1,
        column: 1,
    });
    NetworkList::new("".into(), networks.collect())
}

/// Its value is written in the way of the number `spelling`.
fn descriptor(ask: &Ask, spelling: u64) -> Descriptor<'static> {
    let spellings = VALUES[ask.key][ask.value];
    let spelling = if ask.own.is_some() { 0 } else { spelling % spellings.len() as u64 };
    let entry = Entry { key: KEYS[ask.key], value: spellings[usize::try_from(spelling).unwrap_or(0)] };
    let own = |limit: &Limit| {
        Box::new(RuntimeLimit::new(limit.tiers(), limit.policy()).expect("generated limits are valid"))
    };
    Descriptor {
        entries: [entry].into_iter().collect(),
        limit: ask.own.as_ref().map(own),
        hits: Some(ask.hits),
        refund: ask.gives_back,
    }
}

fn answers(verdict: &Verdict<'_>) -> Vec<Answer> {
    let answer = |status: &weir_limit::Status<'_>| Answer {
        over: status.code == Code::OverLimit,
        remaining: status.remaining,
        reset: status.reset.expect("each descriptor has a limit").as_nanos(),
        tier: status.limit.expect("each descriptor has a limit").tier.expect("it has tiers").clone(),
    };
    verdict.statuses.iter().map(answer).collect()
}
