//! Reads how a mapper file shows durations: the buckets of histograms, and the quantiles of summaries.

use std::time::Duration;

use super::{
    duration,
    error::ConfigReport,
    fields::{Field, Fields, number, wrong},
    keys::KeyLevel,
    scalar::{Meaning, Scalar},
    yaml::YamlNode,
};
use weir_observe::mapper::{BucketBound, Observer, Summary};

const MAX_BUCKETS: usize = 200;

/// What `statsd_exporter` shows in a summary whose quantiles are not written.
const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

/// `statsd_exporter`'s `max_age` and `age_buckets`.
const WINDOW: (Duration, u32) = (Duration::from_mins(10), 5);

/// The unit of durations before they are scaled, in nanoseconds.
const MILLISECOND: f64 = 1e6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObserverKind {
    Histogram,
    Summary,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ObserverOptions {
    kind: Option<ObserverKind>,
    buckets: Option<Vec<f64>>,
    quantiles: Option<Vec<f64>>,
    max_age: Option<Duration>,
    age_buckets: Option<u32>,
}

pub(super) fn read(fields: &Fields<'_>, report: &mut ConfigReport) -> ObserverOptions {
    let ttl = fields.text("ttl", report).filter(|ttl| !matches!(ttl.value, "0" | "0s"));
    if let Some(ttl) = ttl {
        report.error(ttl.at, "weir's series do not expire, since its rules bound their number; remove 'ttl'");
    }
    let kinds = [("histogram", ObserverKind::Histogram), ("summary", ObserverKind::Summary)];
    let mut options = ObserverOptions::default();
    for key in ["timer_type", "observer_type"] {
        options.kind = fields.choice(key, &kinds, report).or(options.kind);
    }
    let histogram = section(fields, "histogram_options", KeyLevel::HistogramOptions, report);
    for key in ["native_histogram_bucket_factor", "native_histogram_max_buckets"] {
        if let Some(field) = histogram.as_ref().and_then(|options| options.get(key)) {
            report.error(field.key_at, "weir has no native histograms; remove this key");
        }
    }
    let summary = section(fields, "summary_options", KeyLevel::SummaryOptions, report);
    let at = |keys: [&str; 2]| keys.into_iter().find_map(|key| fields.get(key)).map(|field| field.key_at);
    let histogram_at = at(["histogram_options", "buckets"]);
    let summary_at = at(["summary_options", "quantiles"]);
    let implied = histogram_at.map(|_| ObserverKind::Histogram).or(summary_at.map(|_| ObserverKind::Summary));
    options.kind = options.kind.or(implied);
    options.buckets = buckets(histogram.as_ref(), report).or_else(|| buckets(Some(fields), report));
    options.quantiles = quantiles(summary.as_ref(), report).or_else(|| quantiles(Some(fields), report));
    if let Some(summary) = summary {
        options.max_age = max_age(&summary, report);
        options.age_buckets = summary.count("age_buckets", 1..=u32::MAX, report).map(|count| count.value);
        // weir has buckets instead of samples
        summary.count("buf_cap", 0..=u32::MAX, report);
    }
    if let (Some(ObserverKind::Histogram), Some(at)) = (options.kind, summary_at) {
        report.error(at, "a histogram has no quantiles; write 'observer_type: summary', or remove this key");
    }
    if let (Some(ObserverKind::Summary), Some(at)) = (options.kind, histogram_at) {
        report.error(at, "a summary has no buckets; write 'observer_type: histogram', or remove this key");
    }
    options
}

fn section<'n>(
    fields: &Fields<'n>,
    key: &str,
    level: KeyLevel,
    report: &mut ConfigReport,
) -> Option<Fields<'n>> {
    let node = fields.get(key)?.value;
    Fields::new(node, level, &format!("'{key}'"), report)
}

fn buckets(fields: Option<&Fields<'_>>, report: &mut ConfigReport) -> Option<Vec<f64>> {
    let written = list(fields?, "buckets", report)?;
    // the bucket of all durations is always there
    let written = match written {
        [others @ .., last] if is_infinite(last) => others,
        written => written,
    };
    let bounds: Vec<Field<f64>> = written.iter().filter_map(|node| number(node, "buckets", report)).collect();
    for pair in bounds.windows(2).filter(|pair| pair[0].value >= pair[1].value) {
        let (first, second) = (pair[0].value, pair[1].value);
        report.error(pair[1].at, format!("'buckets' must ascend, but {second} follows {first}"));
    }
    Some(bounds.iter().map(|bound| bound.value).collect())
}

fn is_infinite(node: &YamlNode) -> bool {
    matches!(node.scalar().map(Scalar::meaning), Some(Meaning::Float(number)) if number == f64::INFINITY)
}

fn list<'n>(
    fields: &Fields<'n>,
    key: &str,
    report: &mut ConfigReport,
) -> Option<&'n [std::rc::Rc<YamlNode>]> {
    let list = fields.list(key, report);
    if list.len() > MAX_BUCKETS {
        report.error(list[MAX_BUCKETS].at, format!("'{key}' has more than {MAX_BUCKETS} entries"));
        return None;
    }
    (!list.is_empty()).then_some(list)
}

fn quantiles(fields: Option<&Fields<'_>>, report: &mut ConfigReport) -> Option<Vec<f64>> {
    let list = list(fields?, "quantiles", report)?;
    let mut quantiles: Vec<f64> = list.iter().filter_map(|node| quantile(node, report)).collect();
    quantiles.sort_by(f64::total_cmp);
    quantiles.dedup();
    Some(quantiles)
}

fn quantile(node: &YamlNode, report: &mut ConfigReport) -> Option<f64> {
    let fields = Fields::new(node, KeyLevel::Quantile, "a quantile", report)?;
    let mut share = |key: &str| {
        let node = fields.get(key)?.value;
        let share = match node.scalar().map(Scalar::meaning) {
            Some(Meaning::Int(0)) => Some(0.0),
            Some(Meaning::Int(1)) => Some(1.0),
            Some(Meaning::Float(number)) => Some(number).filter(|number| (0.0..=1.0).contains(number)),
            _ => None,
        };
        if share.is_none() {
            report.error(node.at, wrong(key, "a number from 0 to 1", node));
        }
        Some(share)
    };
    // the accuracy does not depend on it
    share("error");
    let quantile = share("quantile");
    if quantile.is_none() {
        report.error(node.at, "the quantile is missing; write such as 'quantile: 0.99'");
    }
    quantile?
}

fn max_age(fields: &Fields<'_>, report: &mut ConfigReport) -> Option<Duration> {
    let text = fields.text("max_age", report)?;
    let period = duration::parse(text.value);
    if period.is_none() {
        report.error(text.at, format!("invalid max_age: {}", duration::RIGHT));
    }
    period.map(|period| Duration::from_nanos(period.as_nanos()))
}

// === impl ObserverOptions ===

impl ObserverOptions {
    pub(super) fn resolve(&self, defaults: &Self, scale: f64) -> Observer {
        match self.kind.or(defaults.kind).unwrap_or(ObserverKind::Histogram) {
            ObserverKind::Histogram => {
                let buckets = self.buckets.as_ref().or(defaults.buckets.as_ref());
                let bound = |written: &f64| BucketBound { written: *written, nanos: nanos(*written, scale) };
                Observer::Histogram(buckets.map(|buckets| buckets.iter().map(bound).collect()))
            }
            ObserverKind::Summary => Observer::Summary(Summary {
                quantiles: self
                    .quantiles
                    .as_ref()
                    .or(defaults.quantiles.as_ref())
                    .map_or_else(|| QUANTILES.to_vec(), Clone::clone),
                max_age: self.max_age.or(defaults.max_age).unwrap_or(WINDOW.0),
                age_buckets: self.age_buckets.or(defaults.age_buckets).unwrap_or(WINDOW.1),
            }),
        }
    }
}

/// `scaled` is in the unit after scaling. 584 years stand for longer durations.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is above 0, and the largest number stands for larger ones"
)]
fn nanos(scaled: f64, scale: f64) -> u64 {
    (scaled / scale * MILLISECOND).round() as u64
}
