//! Reads one limit: requests per period in either syntax, and its algorithm.

use super::{
    calendar, duration,
    error::ConfigReport,
    fields::{Field, Fields},
    scalar::brief,
    yaml::YamlPosition,
};
use weir_limit::{AlgorithmKind, Bucket, CalendarUnit, CalendarWindows, Period, Refill, Tier, Unit};

const REFERENCE: [&str; 3] = ["unit", "requests_per_unit", "unit_multiplier"];

const OURS: [&str; 2] = ["requests", "per"];

/// What flows in during this time, in nanoseconds, is the least burst: timers have slots of a millisecond.
const LEAST_BURST: u128 = 2_000_000;

/// The period of a limit that rejects every request, if it names none.
const OF_NONE: Period = Period::from_secs(1);

pub(super) struct Read {
    pub(super) tier: Tier,
    /// The bucket that spreads the hits of a smooth window over it.
    pub(super) pace: Option<Tier>,
    /// Whether it has the syntax and the algorithm of envoyproxy/ratelimit.
    pub(super) is_reference: bool,
}

/// What `per` can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Per {
    Time(Period),
    Calendar(CalendarUnit),
}

/// Reads `per`: a duration, or the unit of a calendar. The error says what would be right.
pub(super) fn period(text: &str) -> Result<Per, String> {
    if let Some(unit) = calendar::unit(text) {
        return unit.map(Per::Calendar);
    }
    let invalid = || format!("invalid period '{}'; {}, or calendar month", brief(text), duration::RIGHT);
    duration::parse(text).map(Per::Time).ok_or_else(invalid)
}

/// `inherited` is the algorithm unless `fields` name one. None if the limit is invalid, which is reported.
pub(super) fn read(
    fields: &Fields<'_>,
    key_at: YamlPosition,
    inherited: Option<AlgorithmKind>,
    report: &mut ConfigReport,
) -> Option<Read> {
    let kind =
        if fields.get("algorithm").is_some() { kind(fields, report)? } else { inherited.unwrap_or_default() };
    let first = |keys: &[&'static str]| keys.iter().find_map(|key| Some((*key, fields.get(key)?.key_at)));
    let (requests, per) = match (first(&REFERENCE), first(&OURS)) {
        (Some((theirs, _)), Some((ours, at))) => {
            report.error(
                at,
                format!(
                    "'{ours}' cannot be combined with '{theirs}'; write either 'requests' and 'per', or \
                     'requests_per_unit' and 'unit'"
                ),
            );
            None
        }
        (None, Some(_)) => ours(fields, report),
        _ => reference(fields, key_at, report).map(|(requests, period)| (requests, Per::Time(period))),
    }?;
    let period = match per {
        Per::Calendar(unit) => {
            let at = fields.get("per").map_or(key_at, |field| field.at);
            let windows = CalendarWindows::new(calendar::read(fields, unit, kind, at, report)?);
            return Some(Read {
                tier: Tier::of_calendar(requests, windows),
                pace: None,
                is_reference: false,
            });
        }
        Per::Time(period) => period,
    };
    calendar::reject_starts(fields, report);
    let mut algorithm = kind.for_limit(requests);
    if kind.refills() {
        algorithm = algorithm.with_bucket(bucket(fields, key_at, requests, report)?);
    } else {
        let is_smooth = fields.flag("smooth", report);
        reject_bucket_keys(fields, is_smooth, report);
        if is_smooth {
            return smooth(fields, Tier::new(requests, period, algorithm), report);
        }
    }
    let is_reference = kind == AlgorithmKind::default() && first(&OURS).is_none();
    Some(Read { tier: Tier::new(requests, period, algorithm), pace: None, is_reference })
}

pub(super) fn kind(fields: &Fields<'_>, report: &mut ConfigReport) -> Option<AlgorithmKind> {
    fields.choice("algorithm", &AlgorithmKind::ALL.map(|kind| (kind.name(), kind)), report)
}

fn reference(fields: &Fields<'_>, key_at: YamlPosition, report: &mut ConfigReport) -> Option<(u32, Period)> {
    let requests = fields.count("requests_per_unit", 0..=u32::MAX, report);
    let multiplier = fields.count("unit_multiplier", 1..=u32::MAX, report);
    let field = fields.text("unit", report);
    let text = field.map_or("", |unit| unit.value);
    let Some(unit) = Unit::parse(text) else {
        // `fields.text` has reported a unit that is not text, and an unknown key may stand for the unit
        if field.is_some() || (fields.get("unit").is_none() && !fields.has_unknown) {
            let at = field.map_or(key_at, |unit| unit.at);
            let right = "write second, minute, hour, day, week, month or year";
            report.error(at, format!("invalid rate limit unit '{}'; {right}", brief(text)));
        }
        return None;
    };
    let period = multiplied(unit.period(), multiplier, report)?;
    if fields.get("requests_per_unit").is_none() {
        report.warn(key_at, "'requests_per_unit' is missing and defaults to 0, which rejects every request");
        return Some((0, period));
    }
    Some((requests?.value, period))
}

fn multiplied(unit: Period, multiplier: Option<Field<u32>>, report: &mut ConfigReport) -> Option<Period> {
    let Some(Field { at, value, .. }) = multiplier else {
        return Some(unit);
    };
    let nanos = unit.as_nanos().checked_mul(value.into());
    let period = nanos.map(Period::from_nanos).filter(|period| *period <= duration::LONGEST);
    if period.is_none() {
        let longest = duration::LONGEST;
        report.error(at, format!("{value} times {unit} exceeds the longest period, {longest}"));
    }
    period
}

fn ours(fields: &Fields<'_>, report: &mut ConfigReport) -> Option<(u32, Per)> {
    let requests = fields.count("requests", 0..=u32::MAX, report);
    let per = fields.text("per", report);
    let rejects_all = requests.is_some_and(|requests| requests.value == 0);
    if rejects_all && fields.get("per").is_none() {
        return Some((0, Per::Time(OF_NONE)));
    }
    for (there, missing, right) in [("per", "requests", "requests: 100"), ("requests", "per", "per: 1m")] {
        if let (Some(field), None) = (fields.get(there), fields.get(missing)) {
            report.error(field.key_at, format!("'{there}' requires '{missing}', such as '{right}'"));
        }
    }
    let Field { at, value, .. } = per?;
    let per = period(value).inspect_err(|message| report.error(at, message)).ok()?;
    Some((requests?.value, per))
}

fn bucket(
    fields: &Fields<'_>,
    key_at: YamlPosition,
    requests: u32,
    report: &mut ConfigReport,
) -> Option<Bucket> {
    if requests == 0 {
        report.error(
            key_at,
            "a token bucket with 0 requests never refills; write at least 1, or use fixed_window",
        );
        return None;
    }
    let refills = [("continuous", Refill::Continuous), ("step", Refill::Step)];
    let refill = match fields.choice("refill", &refills, report) {
        // an invalid value was reported
        None if fields.get("refill").is_some() => return None,
        refill => refill.unwrap_or(Refill::Continuous),
    };
    if fields.flag("smooth", report)
        && let Some(field) = fields.get("smooth")
    {
        report
            .error(field.key_at, "a token bucket is smooth by itself; lower its 'burst', or remove 'smooth'");
        return None;
    }
    let strict = fields.flag("strict", report);
    let burst = match fields.count("burst", 1..=u32::MAX, report) {
        // an invalid value was reported
        None if fields.get("burst").is_some() => return None,
        None => requests,
        Some(field) => {
            if refill == Refill::Step && field.value < requests {
                report.warn(
                    field.at,
                    format!(
                        "a refill step of {requests} tokens exceeds the burst of {}; the excess is lost",
                        field.value
                    ),
                );
            }
            field.value
        }
    };
    Some(Bucket { burst, refill, strict })
}

fn smooth(fields: &Fields<'_>, window: Tier, report: &mut ConfigReport) -> Option<Read> {
    let Tier { requests, period, .. } = window;
    let burst = match fields.count("burst", 1..=u32::MAX, report) {
        // an invalid value was reported
        None if fields.get("burst").is_some() => return None,
        // each hit of a burst takes one from the rate of a sliding window
        None if !window.has_windows() => requests.div_ceil(100),
        None => requests.div_ceil(100).max(5),
        Some(field) => {
            if field.value > requests {
                let message =
                    format!("a burst of {} exceeds the limit of {requests}, which applies", field.value);
                report.warn(field.at, message);
            }
            field.value
        }
    };
    let least = (u128::from(requests) * LEAST_BURST).div_ceil(u128::from(period.as_nanos().max(1)));
    let burst = burst.max(u32::try_from(least).unwrap_or(u32::MAX)).min(requests);
    let (tier, pace) = match requests {
        0 => (window, None),
        _ if window.has_windows() => {
            let pace = window.pace(burst);
            (window, Some(pace))
        }
        // a bucket of that rate and burst admits no more than the limit in any interval of a period
        _ => (Tier { requests: requests - burst + 1, ..window }.pace(burst), None),
    };
    Some(Read { tier, pace, is_reference: false })
}

fn reject_bucket_keys(fields: &Fields<'_>, is_smooth: bool, report: &mut ConfigReport) {
    for key in ["burst", "refill", "strict"].into_iter().filter(|key| !(is_smooth && *key == "burst")) {
        if let Some(field) = fields.get(key) {
            let or_smooth = if key == "burst" { " or 'smooth: true'" } else { "" };
            report.error(
                field.key_at,
                format!("'{key}' requires 'algorithm: token_bucket'{or_smooth}; add that, or remove '{key}'"),
            );
        }
    }
}
