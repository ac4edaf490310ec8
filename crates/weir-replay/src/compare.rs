//! Replays recordings under new rules, and under old ones or beside what was recorded.

use std::ops::ControlFlow;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use weir_limit::{Domain, Period, Timestamp};
use weir_recording::{Merged, RecordedEvent, RecordedKind, Recording, ValueKey};

use super::{
    comparison::{Comparison, KeyChange, OldNew, ReplaySeries, RuleChange},
    exact::{ExactLimiter, ReplaySettings, Replayed},
    hashes::{hashes, named_values, unjudged},
    log_time::format_time,
};

/// The keys that are shown.
const KEYS: usize = 20;

/// The points of a series.
const POINTS: u64 = 120;

/// The names in a sentence.
const NAMES: usize = 5;

/// The progress is told after so many events.
const TOLD: u64 = 1_024;

/// What is replayed.
#[derive(Clone, Debug)]
pub struct ReplayInput<'a> {
    pub recordings: &'a [Recording],
    pub new: &'a [Domain],
    /// Without them, the old decisions are those of the recording.
    pub old: Option<&'a [Domain]>,
    pub settings: ReplaySettings,
    /// That of hashed values.
    pub key: Option<ValueKey>,
    /// What else the result cannot know.
    pub unknown: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct DescriptorCounts {
    /// Old and new, admitted and rejected. They saturate.
    hits: [u32; 4],
    /// The number of its row.
    row: u32,
}

#[derive(Debug)]
struct ReplayTally {
    /// One for each new rule, and then those of old rules alone.
    rows: Vec<RuleChange>,
    old_rows: HashMap<String, usize, RandomState>,
    /// By the number of the descriptor.
    descriptors: Vec<DescriptorCounts>,
    /// The requests that a new rule rejects newly, by its index.
    causes: Vec<u64>,
    comparison: Comparison,
    reloads: u64,
    fallbacks: u64,
}

/// Replays `input`. `progress` gets the share that is done, 0 to 1, and may end it, which returns none.
pub fn compare(
    input: &ReplayInput<'_>,
    mut progress: impl FnMut(f64) -> ControlFlow<()>,
) -> Option<Comparison> {
    let mut new = ExactLimiter::new(input.new, &input.settings);
    let mut old = input.old.map(|old| ExactLimiter::new(old, &input.settings));
    let mut merged = Merged::of(input.recordings, known_values(input));
    let mut tally = ReplayTally::new(&new, series(input.recordings));
    let mut events = 0_u64;
    loop {
        if events.is_multiple_of(TOLD) && progress(merged.progress()).is_break() {
            return None;
        }
        events += 1;
        let Some(event) = merged.next() else { break };
        let replayed_old = old.as_mut().map(|old| old.decide(&event));
        let replayed = new.decide(&event);
        tally.reloads += u64::from(event.kind == RecordedKind::Reload);
        if let Some(replayed) = replayed {
            let old = match (&replayed_old, &old) {
                (Some(Some(replayed)), Some(limiter)) => Some((replayed, limiter.labels())),
                _ => None,
            };
            tally.add(&event, old, &replayed);
        }
    }
    let mut comparison = tally.finish(&merged);
    comparison.unknown = unknown(input, &new, old.as_ref(), &merged);
    if tally.reloads > 0 && input.old.is_none() {
        let times = if tally.reloads == 1 { "once".to_owned() } else { format!("{} times", tally.reloads) };
        let sentence =
            "new rules came into force while requests were recorded: the old decisions are by several";
        comparison.unknown.push(format!("{}: {times}.", capital(sentence)));
    }
    if tally.fallbacks > 0 {
        comparison.unknown.push(format!("{} decisions were made without the store.", tally.fallbacks));
    }
    Some(comparison)
}

fn known_values<'a>(input: &ReplayInput<'a>) -> Vec<(String, &'a str)> {
    let Some(key) = &input.key else { return Vec::new() };
    let old = input.old.map(named_values).unwrap_or_default();
    hashes(named_values(input.new).into_iter().chain(old), key)
}

fn series(recordings: &[Recording]) -> ReplaySeries {
    let headers = || recordings.iter().map(Recording::header).filter(|header| header.until > header.from);
    let on_store = |at: Timestamp, offset| at.shifted(offset);
    let from = headers().map(|header| on_store(header.from, header.clock_offset)).min().unwrap_or_default();
    let until = headers().map(|header| on_store(header.until, header.clock_offset)).max().unwrap_or_default();
    let step = Period::from_nanos((until.since(from).as_nanos() / POINTS).max(1));
    ReplaySeries {
        from,
        step,
        points: vec![OldNew::default(); usize::try_from(POINTS).unwrap_or_default() + 1],
    }
}

// === impl ReplayTally ===

impl ReplayTally {
    fn new(new: &ExactLimiter, series: ReplaySeries) -> Self {
        let row = |label: &String| RuleChange { rule: label.clone(), hits: OldNew::default() };
        Self {
            rows: new.labels().iter().map(row).collect(),
            old_rows: HashMap::default(),
            descriptors: Vec::new(),
            causes: vec![0; new.labels().len()],
            comparison: Comparison { series, ..Comparison::default() },
            reloads: 0,
            fallbacks: 0,
        }
    }

    fn add(
        &mut self,
        event: &RecordedEvent<'_, '_>,
        old: Option<(&Replayed, &[String])>,
        replayed: &Replayed,
    ) {
        let hits: u64 = event.descriptors.iter().map(|descriptor| descriptor.hits.0).sum();
        if event.kind != RecordedKind::Decision || hits == 0 {
            return;
        }
        let was_over = old.map_or(event.is_over, |(old, _)| old.is_over);
        self.comparison.requests += 1;
        self.add_point(event.at, was_over, replayed.is_over);
        match (was_over, replayed.is_over) {
            (false, true) => {
                self.comparison.newly_rejected += 1;
                if let Some(rule) = replayed.rejected_by {
                    self.causes[rule] += 1;
                }
            }
            (true, false) => self.comparison.newly_admitted += 1,
            _ => {}
        }
        for (i, recorded) in event.descriptors.iter().enumerate() {
            self.fallbacks += u64::from(recorded.is_fallback);
            let status = replayed.of(i);
            let (is_over, rule) = status.map_or((false, None), |status| (status.is_over, status.rule));
            let (was_over, old_rule) = match old {
                Some((old, labels)) => {
                    let status = old.of(i);
                    let label = status.and_then(|status| labels.get(status.rule?)).map(String::as_str);
                    (status.is_some_and(|status| status.is_over), label)
                }
                None => (recorded.is_over, Some(recorded.definition.rule).filter(|rule| !rule.is_empty())),
            };
            let row = rule.or_else(|| old_rule.map(|rule| self.old_row(rule)));
            if let Some(row) = row.filter(|_| recorded.hits.0 > 0) {
                let changed = &mut self.rows[row].hits;
                changed.add_old(was_over, recorded.hits.0);
                changed.add_new(is_over, recorded.hits.0);
                self.add_key(recorded.definition.number, row, recorded.hits.0, [was_over, is_over]);
            }
        }
    }

    fn old_row(&mut self, rule: &str) -> usize {
        if let Some(row) = self.old_rows.get(rule) {
            return *row;
        }
        self.rows.push(RuleChange { rule: rule.to_owned(), hits: OldNew::default() });
        self.old_rows.insert(rule.to_owned(), self.rows.len() - 1);
        self.rows.len() - 1
    }

    fn add_point(&mut self, at: Timestamp, was_over: bool, is_over: bool) {
        let series = &mut self.comparison.series;
        let point = at.since(series.from).as_nanos() / series.step.as_nanos().max(1);
        let last = series.points.len().saturating_sub(1);
        let point = usize::try_from(point).unwrap_or(last).min(last);
        if let Some(point) = series.points.get_mut(point) {
            point.add_old(was_over, 1);
            point.add_new(is_over, 1);
        }
    }

    fn add_key(&mut self, number: u32, row: usize, hits: u64, [was_over, is_over]: [bool; 2]) {
        let number = number as usize;
        if number >= self.descriptors.len() {
            self.descriptors.resize(number + 1, DescriptorCounts::default());
        }
        let counts = &mut self.descriptors[number];
        let hits = u32::try_from(hits).unwrap_or(u32::MAX);
        for place in [usize::from(was_over), 2 + usize::from(is_over)] {
            counts.hits[place] = counts.hits[place].saturating_add(hits);
        }
        counts.row = u32::try_from(row).unwrap_or(u32::MAX);
    }

    fn finish(&mut self, merged: &Merged<'_>) -> Comparison {
        let mut comparison = std::mem::take(&mut self.comparison);
        let first = self.causes.iter().enumerate().max_by_key(|(_, requests)| **requests);
        comparison.first_cause = first
            .filter(|(_, requests)| **requests > 0)
            .map(|(rule, requests)| (self.rows[rule].rule.clone(), *requests));
        comparison.keys = self.keys(merged);
        let rows = std::mem::take(&mut self.rows);
        comparison.rules = rows.into_iter().filter(|row| row.hits != OldNew::default()).collect();
        comparison.rules.sort_by_key(|row| std::cmp::Reverse(row.hits.change()));
        comparison
    }

    fn keys(&self, merged: &Merged<'_>) -> Vec<KeyChange> {
        let counted = self.descriptors.iter().enumerate();
        let mut changed: Vec<(u64, u32)> = counted
            .map(|(i, counts)| (counts.all().change(), u32::try_from(i).unwrap_or(u32::MAX)))
            .filter(|(change, _)| *change > 0)
            .collect();
        changed.sort_unstable_by_key(|(change, number)| (std::cmp::Reverse(*change), *number));
        changed.truncate(KEYS);
        let numbers: Vec<u32> = changed.iter().map(|(_, number)| *number).collect();
        let texts = merged.texts(&numbers);
        numbers
            .iter()
            .zip(texts)
            .map(|(number, text)| {
                let counts = self.descriptors[*number as usize];
                let rule = self.rows[counts.row as usize].rule.clone();
                KeyChange { rule, text, hits: counts.all() }
            })
            .collect()
    }
}

// === impl DescriptorCounts ===

impl DescriptorCounts {
    fn all(&self) -> OldNew {
        let [admitted_old, rejected_old, admitted_new, rejected_new] = self.hits.map(u64::from);
        OldNew { admitted_old, rejected_old, admitted_new, rejected_new }
    }
}

fn unknown(
    input: &ReplayInput<'_>,
    new: &ExactLimiter,
    old: Option<&ExactLimiter>,
    merged: &Merged<'_>,
) -> Vec<String> {
    let missing = input.recordings.iter().map(Recording::header).filter(|header| header.is_missing);
    let missing: Vec<String> = missing.map(|header| header.instance.clone()).collect();
    let mut unknown = Vec::new();
    if !missing.is_empty() {
        unknown.push(format!("What these instances have decided is missing: {}.", some(&missing)));
    }
    unknown.extend(input.unknown.iter().cloned());
    let headers = || input.recordings.iter().map(Recording::header);
    let sum = |of: fn(&weir_recording::RecordingHeader) -> u64| headers().map(of).sum::<u64>();
    if headers().any(|header| header.is_hashed) {
        let names = unjudged(input.new, input.key.is_some());
        if !names.is_empty() {
            let why = if input.key.is_some() {
                "and only exact ones are found"
            } else {
                "and there is no key file"
            };
            unknown.push(format!("Values are hashed, {why}. Not judged: {}.", some(&names)));
        }
    }
    let starts: Vec<String> =
        new.gaps().unknown_starts.iter().map(|rule| new.labels()[*rule].clone()).collect();
    if !starts.is_empty() {
        let mut starts = starts;
        starts.sort_unstable();
        let what = "These rules begin with unused counters, since what was used before is not known";
        unknown.push(format!("{what}: {}.", some(&starts)));
    }
    if input.recordings.len() - missing.len() > 1 {
        let what = "One exact limiter decides for all instances: those that sync at intervals may have admitted more";
        unknown.push(format!("{what}, by the bound of their mode."));
    }
    if let [only] = input.recordings
        && only.header().is_shared
    {
        let what = "Counters are shared with other instances, whose requests are not in the recording";
        unknown.push(format!("{what}: record all of them."));
    }
    let dropped = sum(|header| header.dropped);
    if dropped > 0 {
        let from = headers().map(|header| header.from).min().unwrap_or_default();
        unknown.push(format!("{dropped} requests before {} made room for later ones.", format_time(from)));
    }
    for (count, what) in [
        (sum(|header| header.lost), "requests were not recorded"),
        (sum(|header| header.unnamed), "times callers that had waited gave hits back, which is not recorded"),
        (merged.unreadable(), "records are damaged"),
        (new.gaps().unknown_ends, "requests in flight had begun before the recording, or were rejected here"),
        (
            new.gaps().endless,
            "requests in flight end only when they are given up, since the recording rejected them",
        ),
        (
            new.gaps().errors + old.map_or(0, |old| old.gaps().errors),
            "requests are not valid under these rules",
        ),
        (
            input.recordings.iter().filter(|recording| recording.is_truncated()).count() as u64,
            "recordings have no end: it is missing",
        ),
    ] {
        if count > 0 {
            unknown.push(format!("{count} {what}."));
        }
    }
    unknown
}

/// The first of `names`, and how many there are beside.
fn some(names: &[String]) -> String {
    let shown = names[..names.len().min(NAMES)].join(", ");
    match names.len().saturating_sub(NAMES) {
        0 => shown,
        others => format!("{shown} and {others} more"),
    }
}

fn capital(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
