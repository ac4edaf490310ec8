//! Names of one's own for the stats of envoyproxy/ratelimit: the rules of `statsd_exporter`'s mapper, whose files
//! envoyproxy/ratelimit reads (`PROMETHEUS_MAPPER_YAML`).

use std::{fmt, sync::Arc, time::Duration};

use crate::{histogram::Refinement, template::Template};

/// The beginnings of names that other metrics than those of a mapper have.
pub const RESERVED: [&str; 2] = ["weir_", "process_"];

/// A file's mappings. As in `statsd_exporter`, the first matching glob applies, or else the first regular expression.
#[derive(Clone, Debug, Default)]
pub struct Mapper {
    globs: Vec<(Glob, Mapping)>,
    regexes: Vec<(Arc<dyn Expression>, Mapping)>,
    /// `glob_disable_ordering`: the most specific glob applies instead of the first.
    most_specific: bool,
}

#[derive(Clone, Debug)]
pub struct Mapping {
    /// `match_metric_type`: the only kind of stat that it applies to.
    pub kind: Option<StatKind>,
    /// What becomes of the stat; none if it is dropped.
    pub series: Option<SeriesTemplate>,
}

#[derive(Clone, Debug)]
pub struct SeriesTemplate {
    /// The name of the metric; characters that a name cannot have become `_`.
    pub name: Template,
    pub labels: Vec<(String, Template)>,
    pub help: Option<String>,
    /// The factor of values. Durations are in milliseconds before.
    pub scale: f64,
    pub observer: Observer,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Observer {
    /// By the number within each bound; by weir's own bounds if none are given.
    Histogram(Option<Vec<BucketBound>>),
    Summary(Summary),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketBound {
    /// As written, in units of the scaled duration.
    pub written: f64,
    /// The same in nanoseconds.
    pub nanos: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The quantiles that are shown, from 0 to 1.
    pub quantiles: Vec<f64>,
    /// `max_age`: for how long a duration counts.
    pub max_age: Duration,
    /// `age_buckets`: in how many steps the durations of that time change. At least 1.
    pub age_buckets: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatKind {
    Counter,
    Gauge,
    Observer,
}

#[derive(Clone, Debug)]
pub enum Matcher {
    /// `*` stands for one step of the name.
    Glob(Glob),
    /// A regular expression, found anywhere in the name.
    Regex(Arc<dyn Expression>),
}

/// A regular expression. Its engine is elsewhere, so that a limiter needs none.
pub trait Expression: fmt::Debug + Send + Sync {
    /// Returns the texts of its groups in `stat`, that of an absent one empty: first all that matches. None if nothing
    /// does.
    fn captures<'a>(&self, stat: &'a str) -> Option<Vec<&'a str>>;

    /// Returns the names of its groups, of which the first is all that matches.
    fn groups(&self) -> Vec<Option<&str>>;
}

/// Compiles a regular expression, or returns why it is invalid.
pub type Compile = fn(&str) -> Result<Arc<dyn Expression>, String>;

#[derive(Clone, Debug)]
pub struct Glob {
    /// None for `*`.
    steps: Vec<Option<String>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Series<'m> {
    pub name: String,
    /// The labels, none of them empty.
    pub labels: Vec<(&'m str, String)>,
    pub help: Option<&'m str>,
    pub scale: f64,
    pub observer: &'m Observer,
}

// === impl Mapper ===

impl Mapper {
    /// Returns a mapper without mappings. `most_specific` is `glob_disable_ordering`.
    pub const fn new(most_specific: bool) -> Self {
        Self { globs: Vec::new(), regexes: Vec::new(), most_specific }
    }

    pub fn push(&mut self, matcher: Matcher, mapping: Mapping) {
        match matcher {
            Matcher::Glob(glob) => self.globs.push((glob, mapping)),
            Matcher::Regex(regex) => self.regexes.push((regex, mapping)),
        }
    }

    pub fn regexes(&self) -> usize {
        self.regexes.len()
    }

    /// Returns the buckets that durations need for these mappings, if they are not weir's own.
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
    pub fn series(&self, stat: &str, kind: StatKind) -> Option<Series<'_>> {
        if let Some((groups, mapping)) = self.glob(stat, kind) {
            return mapping.series(|group| group.checked_sub(1).map_or("", |group| groups[group]));
        }
        for (regex, mapping) in self.regexes.iter().filter(|(_, mapping)| mapping.applies_to(kind)) {
            if let Some(groups) = regex.captures(stat) {
                return mapping.series(|group| groups.get(group).copied().unwrap_or_default());
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

    /// Returns the number of the group of that name or number, if there is one.
    pub fn group(&self, name: &str) -> Option<usize> {
        let number = name.parse().ok();
        match self {
            Self::Glob(glob) => {
                let groups = glob.steps.iter().filter(|step| step.is_none()).count();
                number.filter(|number| (1..=groups).contains(number))
            }
            Self::Regex(regex) => number
                .filter(|number| *number < regex.groups().len())
                .or_else(|| regex.groups().iter().position(|group| *group == Some(name))),
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
