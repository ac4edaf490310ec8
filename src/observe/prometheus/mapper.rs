//! Names of one's own for the stats of envoyproxy/ratelimit: the rules of `statsd_exporter`'s mapper, whose files
//! envoyproxy/ratelimit reads (`PROMETHEUS_MAPPER_YAML`).

use std::time::Duration;

use regex::{Captures, Regex, RegexBuilder};

use super::template::Template;
use crate::observe::refined::Refinement;

/// The maximum size of a compiled regular expression, in bytes.
const MAX_REGEX: usize = 1 << 18;

/// A file's mappings. As in `statsd_exporter`, the first matching glob applies, or else the first regular expression.
#[derive(Clone, Debug, Default)]
pub struct Mapper {
    globs: Vec<(Glob, Mapping)>,
    regexes: Vec<(Regex, Mapping)>,
    /// `glob_disable_ordering`: the most specific glob applies instead of the first.
    most_specific: bool,
}

/// What a mapping applies to, and what it does.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// `match_metric_type`: the only kind of stat that it applies to.
    pub kind: Option<StatKind>,
    /// What becomes of the stat; none if it is dropped.
    pub series: Option<SeriesTemplate>,
}

/// The series that a mapping makes of a stat.
#[derive(Clone, Debug)]
pub struct SeriesTemplate {
    /// The name of the metric; characters that a name cannot have become `_`.
    pub name: Template,
    /// The labels, by name.
    pub labels: Vec<(String, Template)>,
    /// The help text.
    pub help: Option<String>,
    /// The factor of values. Durations are in milliseconds before.
    pub scale: f64,
    /// What becomes of durations.
    pub observer: Observer,
}

/// How durations are shown.
#[derive(Clone, Debug, PartialEq)]
pub enum Observer {
    /// By the number within each bound; by weir's own bounds if none are given.
    Histogram(Option<Vec<Bound>>),
    /// By quantiles.
    Summary(Summary),
}

/// A bound of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// As written, in units of the scaled duration.
    pub written: f64,
    /// The same in nanoseconds.
    pub nanos: u64,
}

/// What a summary shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The quantiles that are shown, from 0 to 1.
    pub quantiles: Vec<f64>,
    /// `max_age`: for how long a duration counts.
    pub max_age: Duration,
    /// `age_buckets`: in how many steps the durations of that time change. At least 1.
    pub age_buckets: u32,
}

/// A kind of stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatKind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Durations.
    Observer,
}

/// The names of stats that a mapping applies to.
#[derive(Clone, Debug)]
pub enum Matcher {
    /// `*` stands for one step of the name.
    Glob(Glob),
    /// A regular expression, found anywhere in the name.
    Regex(Regex),
}

/// A pattern of steps.
#[derive(Clone, Debug)]
pub struct Glob {
    /// None for `*`.
    steps: Vec<Option<String>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series<'m> {
    pub(super) name: String,
    pub(super) labels: Vec<(&'m str, String)>,
    pub(super) help: Option<&'m str>,
    pub(super) scale: f64,
    pub(super) observer: &'m Observer,
}

// === impl Mapper ===

impl Mapper {
    /// Returns a mapper without mappings. `most_specific` is `glob_disable_ordering`.
    #[must_use]
    pub const fn new(most_specific: bool) -> Self {
        Self { globs: Vec::new(), regexes: Vec::new(), most_specific }
    }

    /// Adds a mapping after the others.
    pub fn push(&mut self, matcher: Matcher, mapping: Mapping) {
        match matcher {
            Matcher::Glob(glob) => self.globs.push((glob, mapping)),
            Matcher::Regex(regex) => self.regexes.push((regex, mapping)),
        }
    }

    /// Returns the number of regular expressions.
    #[must_use]
    pub fn regexes(&self) -> usize {
        self.regexes.len()
    }

    /// Returns the buckets that durations need for these mappings, if they are not weir's own.
    #[must_use]
    pub fn refinement(&self) -> Option<Refinement> {
        let globs = self.globs.iter().map(|(_, mapping)| mapping);
        let mappings = globs.chain(self.regexes.iter().map(|(_, mapping)| mapping));
        let (mut bounds, mut summaries) = (Vec::new(), Vec::new());
        for series in mappings.filter_map(|mapping| mapping.series.as_ref()) {
            match &series.observer {
                Observer::Histogram(shown) => bounds.extend(shown.iter().flatten().map(|bound| bound.nanos)),
                Observer::Summary(summary) => summaries.push((summary.max_age, summary.age_buckets)),
            }
        }
        Refinement::new(&bounds, &summaries)
    }

    /// None if the stat is dropped. Without a mapping it keeps its name, as far as a metric can have it.
    pub(super) fn series(&self, stat: &str, kind: StatKind) -> Option<Series<'_>> {
        if let Some((groups, mapping)) = self.glob(stat, kind) {
            return mapping.series(|group| group.checked_sub(1).map_or("", |group| groups[group]));
        }
        for (regex, mapping) in self.regexes.iter().filter(|(_, mapping)| mapping.applies_to(kind)) {
            if let Some(groups) = regex.captures(stat) {
                return mapping.series(|group| text(&groups, group));
            }
        }
        let name = metric_name(stat);
        Some(Series {
            name,
            labels: Vec::new(),
            help: None,
            scale: 1.0,
            observer: &Observer::Histogram(None),
        })
    }

    fn glob<'a>(&self, stat: &'a str, kind: StatKind) -> Option<(Vec<&'a str>, &Mapping)> {
        let steps: Vec<&str> = stat.split('.').collect();
        let mut matching =
            self.globs.iter().filter(|(glob, mapping)| mapping.applies_to(kind) && glob.matches(&steps));
        let (glob, mapping) = if self.most_specific {
            // false, a text, is less than true, a `*`; the first step decides first, and of equal globs the first
            // applies
            matching.min_by_key(|(glob, _)| glob.steps.iter().map(Option::is_none).collect::<Vec<_>>())?
        } else {
            matching.next()?
        };
        let groups = glob.steps.iter().zip(steps).filter(|(step, _)| step.is_none());
        Some((groups.map(|(_, text)| text).collect(), mapping))
    }
}

fn text<'a>(groups: &Captures<'a>, group: usize) -> &'a str {
    groups.get(group).map_or("", |group| group.as_str())
}

// === impl Mapping ===

impl Mapping {
    fn applies_to(&self, kind: StatKind) -> bool {
        self.kind.is_none_or(|only| only == kind)
    }

    fn series<'a>(&self, group: impl Fn(usize) -> &'a str) -> Option<Series<'_>> {
        let template = self.series.as_ref()?;
        let name = metric_name(&template.name.fill(&group));
        let labels = template.labels.iter().map(|(name, value)| (name.as_str(), value.fill(&group)));
        // to Prometheus an empty label is none: with it, one series could be there twice
        let labels = labels.filter(|(_, value)| !value.is_empty());
        (!name.is_empty()).then(|| Series {
            name,
            labels: labels.collect(),
            help: template.help.as_deref(),
            scale: template.scale,
            observer: &template.observer,
        })
    }
}

/// Like `statsd_exporter`, makes one `_` of several `-`.
fn metric_name(text: &str) -> String {
    let mut name = String::with_capacity(text.len() + 1);
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        name.push('_');
    }
    let mut before = None;
    for c in text.chars() {
        match c {
            '-' if before == Some('-') => {}
            c if c.is_ascii_alphanumeric() => name.push(c),
            _ => name.push('_'),
        }
        before = Some(c);
    }
    name
}

// === impl Matcher ===

impl Matcher {
    /// Parses a glob, such as `ratelimit.service.rate_limit.*.*.total_hits`. None unless each step is `*` or a word.
    #[must_use]
    pub fn glob(text: &str) -> Option<Self> {
        let is_word = |text: &str| {
            let rest = text.strip_prefix(|c: char| c.is_ascii_alphanumeric() || c == '_');
            rest.is_some_and(|rest| {
                rest.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
            })
        };
        let is_valid = text.split('.').all(|step| step == "*" || is_word(step))
            && !text.starts_with(|c: char| c.is_ascii_digit());
        let step = |step: &str| (step != "*").then(|| step.to_owned());
        is_valid.then(|| Self::Glob(Glob { steps: text.split('.').map(step).collect() }))
    }

    /// Compiles a regular expression.
    ///
    /// # Errors
    ///
    /// The reason why it is invalid.
    pub fn regex(text: &str) -> Result<Self, String> {
        let regex = RegexBuilder::new(text).size_limit(MAX_REGEX).build();
        regex.map(Self::Regex).map_err(|error| {
            // the crate also draws the pattern, in several lines
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default().trim();
            reason.strip_prefix("error: ").unwrap_or(reason).trim_end_matches('.').to_owned()
        })
    }

    /// Returns the number of the group of that name or number, if there is one.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<usize> {
        let number = name.parse().ok();
        match self {
            Self::Glob(glob) => {
                let groups = glob.steps.iter().filter(|step| step.is_none()).count();
                number.filter(|number| (1..=groups).contains(number))
            }
            Self::Regex(regex) => number
                .filter(|number| *number < regex.captures_len())
                .or_else(|| regex.capture_names().position(|group| group == Some(name))),
        }
    }
}

// === impl Glob ===

impl Glob {
    fn matches(&self, steps: &[&str]) -> bool {
        self.steps.len() == steps.len()
            && self.steps.iter().zip(steps).all(|(own, step)| own.as_deref().is_none_or(|own| own == *step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(mapper: &mut Mapper, matcher: Matcher, kind: Option<StatKind>, name: &str, label: &str) {
        let parse = |text: &str| Template::parse(text, |name| matcher.group(name)).0;
        let labels = if label.is_empty() { Vec::new() } else { vec![("l".to_owned(), parse(label))] };
        let series = SeriesTemplate {
            name: parse(name),
            labels,
            help: None,
            scale: 1.0,
            observer: Observer::Histogram(None),
        };
        let series = (name != "drop").then_some(series);
        mapper.push(matcher, Mapping { kind, series });
    }

    fn glob(text: &str) -> Matcher {
        Matcher::glob(text).expect("a glob")
    }

    fn regex(text: &str) -> Matcher {
        Matcher::regex(text).expect("a regular expression")
    }

    /// Returns `name{label}` of a counter, or nothing if it is dropped.
    fn mapped(mapper: &Mapper, stat: &str) -> String {
        let series = mapper.series(stat, StatKind::Counter);
        series.map_or(String::new(), |series| {
            let labels: Vec<&str> = series.labels.iter().map(|(_, value)| value.as_str()).collect();
            format!("{}{{{}}}", series.name, labels.join(","))
        })
    }

    #[test]
    fn globs_come_before_regular_expressions_and_the_first_of_each_applies() {
        let mut mapper = Mapper::new(false);
        add(&mut mapper, regex("^a\\."), None, "regex", "$0");
        add(&mut mapper, glob("a.*.*"), None, "glob", "$2-$1");
        add(&mut mapper, glob("a.b.*"), None, "never", "");
        add(&mut mapper, glob("*.x"), Some(StatKind::Observer), "never", "");
        add(&mut mapper, regex("(?P<first>[^.]+)\\.dropped"), None, "drop", "");
        add(&mut mapper, regex("^(?P<first>[^.]+)\\.(y)?z"), None, "${first}_total", "$2|${first}");
        for (stat, expected) in [
            ("a.b.c", "glob{c-b}"),
            ("a..", "glob{-}"),
            ("a.b", "regex{a.}"),
            ("b.dropped", ""),
            ("b.z.more", "b_total{|b}"),
            ("b.yz", "b_total{y|b}"),
            ("n.x", "n_x{}"),
            ("1a.b--c:ü", "_1a_b_c__{}"),
        ] {
            assert_eq!(mapped(&mapper, stat), expected, "{stat}");
        }
    }

    #[test]
    fn the_most_specific_glob_applies_without_ordering() {
        let mut mapper = Mapper::new(true);
        for (text, name) in [("a.*.*", "any"), ("a.*.d", "last"), ("a.b.*", "middle"), ("a.b.d", "all")] {
            add(&mut mapper, glob(text), None, name, "");
        }
        for (stat, expected) in [("a.x.y", "any"), ("a.x.d", "last"), ("a.b.y", "middle"), ("a.b.d", "all")] {
            assert_eq!(mapped(&mapper, stat), format!("{expected}{{}}"), "{stat}");
        }
    }

    #[test]
    fn invalid_matches_are_rejected() {
        for text in ["", "a..b", "a.b*", "1a.b", "a/b", "a.-b", "."] {
            assert!(Matcher::glob(text).is_none(), "{text}");
        }
        for text in ["*", "*.*", "a.1.b-c", "_a"] {
            assert!(Matcher::glob(text).is_some(), "{text}");
        }
        assert_eq!(Matcher::regex("a(").expect_err("it is invalid"), "unclosed group");
        assert!(Matcher::regex("(?:a{1000}){1000}").is_err());
    }
}
