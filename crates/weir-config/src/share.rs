//! Reads `share`: how the values of a descriptor's key share a limit.

use std::{collections::BTreeMap, ops::RangeInclusive};

use super::{
    error::ConfigReport,
    fields::{Field, Fields, wrong},
    keys::KeyLevel,
    scalar::{Meaning, brief},
    tier::Read,
    yaml::{Value, YamlNode, YamlPosition},
};
use weir_limit::{
    Tier,
    share::{Anonymous, Borrow, Lend, MAX_MEMBERS, MAX_WEIGHTS, Sharing},
};

/// `read` is the limit that is shared; none if it is invalid.
pub(super) fn read(fields: &Fields<'_>, read: Option<&Read>, report: &mut ConfigReport) -> Option<Sharing> {
    let field = fields.get("share")?;
    let is_smooth = read.is_some_and(|read| read.pace.is_some());
    if is_smooth || read.is_some_and(|read| !read.tier.has_windows()) {
        let right =
            if is_smooth { "remove 'smooth'" } else { "leave out 'algorithm', or write 'fixed_window'" };
        report.error(field.key_at, format!("a shared limit is a fixed window; {right}"));
    }
    let fields = Fields::new(field.value, KeyLevel::Share, "'share'", report)?;
    let default = Sharing::default();
    let borrow = fields.choice("borrow", &BORROW, report).unwrap_or_default();
    let lend = fields.choice("lend", &LEND, report);
    let count = |key: &str, range: RangeInclusive<u32>, report: &mut ConfigReport| {
        fields.count(key, range, report).map(|field| field.value)
    };
    let sharing = Sharing {
        borrow,
        lend: lend.unwrap_or_default(),
        reserve: percent(&fields, "reserve", report).unwrap_or(default.reserve),
        headroom: percent(&fields, "headroom", report).unwrap_or(default.headroom),
        weights: weights(&fields, report),
        anonymous: fields.choice("anonymous", &ANONYMOUS, report).unwrap_or_default(),
        forget_after: count("forget_after", 1..=1_000_000, report).unwrap_or(default.forget_after),
        max_members: count("max_members", 2..=MAX_MEMBERS, report).unwrap_or(default.max_members),
        min: count("min", 0..=u32::MAX, report).unwrap_or(default.min),
        max: count("max", 1..=u32::MAX, report),
    };
    check(&sharing, &fields, read.map(|read| &read.tier), lend.is_some(), report);
    Some(sharing)
}

fn check(
    sharing: &Sharing,
    fields: &Fields<'_>,
    tier: Option<&Tier>,
    has_lend: bool,
    report: &mut ConfigReport,
) {
    let at = |key| fields.get(key).map_or(fields.at, |field: Field<_>| field.at);
    if let Some(max) = sharing.max.filter(|max| *max < sharing.min) {
        report.error(at("min"), format!("'min' ({}) exceeds 'max' ({max})", sharing.min));
    }
    if let Some(Tier { requests, .. }) = tier {
        if sharing.min > *requests {
            let min = sharing.min;
            report.warn(
                at("min"),
                format!("'min' ({min}) exceeds the limit of all members ({requests}): nobody has it"),
            );
        }
        if let Some(max) = sharing.max.filter(|max| max > requests) {
            report.warn(
                at("max"),
                format!("'max' ({max}) has no effect, since all members together have {requests}"),
            );
        }
    }
    if sharing.borrow == Borrow::None && has_lend {
        report.warn(at("lend"), "'lend' has no effect with 'borrow: none'");
    }
    if sharing.weights.len() + 1 > MAX_MEMBERS as usize {
        let (found, most) = (sharing.weights.len(), MAX_MEMBERS - 1);
        report.error(at("weights"), format!("{found} members have weights, and a pool has {most} at most"));
    }
    let named: u64 = sharing.weights.values().copied().map(u64::from).sum();
    if named > u64::from(MAX_WEIGHTS) {
        report.error(
            at("weights"),
            format!("the sum of all weights is {named}, and may be {MAX_WEIGHTS} at most"),
        );
    }
    if let Some(tier) = tier.filter(|tier| named > u64::from(tier.requests)) {
        let requests = tier.requests;
        report.warn(
            at("weights"),
            format!("the sum of all weights is {named}, so not everybody's default is a whole one of {requests} requests"),
        );
    }
}

pub(super) const BORROW: [(&str, Borrow); 3] =
    [("by_demand", Borrow::ByDemand), ("max_min", Borrow::MaxMin), ("none", Borrow::None)];
pub(super) const LEND: [(&str, Lend); 2] =
    [("within_cycle", Lend::WithinCycle), ("next_cycle", Lend::NextCycle)];
pub(super) const ANONYMOUS: [(&str, Anonymous); 3] =
    [("deny", Anonymous::Deny), ("allow", Anonymous::Allow), ("share", Anonymous::Share)];

fn percent(fields: &Fields<'_>, key: &str, report: &mut ConfigReport) -> Option<u32> {
    let field = fields.text(key, report)?;
    let number = field.value.strip_suffix('%').and_then(|number| number.parse().ok());
    let percent = number.filter(|percent: &u32| *percent <= 100);
    if percent.is_none() {
        let written = brief(field.value);
        report
            .error(field.at, format!("invalid '{key}: {written}'; write a whole percentage from 0% to 100%"));
    }
    percent
}

fn weights(fields: &Fields<'_>, report: &mut ConfigReport) -> BTreeMap<Box<str>, u32> {
    let Some(field) = fields.get("weights") else { return BTreeMap::new() };
    let Value::Map(entries) = &field.value.value else {
        report.error(field.at, wrong("weights", "a mapping of members to weights", field.value));
        return BTreeMap::new();
    };
    entries.iter().filter_map(|(name, weight)| weight_of(name, weight, report)).collect()
}

fn weight_of(name: &YamlNode, weight: &YamlNode, report: &mut ConfigReport) -> Option<(Box<str>, u32)> {
    let mut error = |at: YamlPosition, message: String| report.error(at, message);
    let Some(name) = name.scalar() else {
        error(name.at, format!("a member's name must be text, not {}", name.kind()));
        return None;
    };
    let number = match weight.scalar().map(super::scalar::Scalar::meaning) {
        Some(Meaning::Int(number)) => u32::try_from(number).ok(),
        _ => None,
    };
    let Some(number) = number.filter(|number| (1..=MAX_WEIGHTS).contains(number)) else {
        let member = name.brief();
        error(weight.at, format!("the weight of '{member}' must be a whole number from 1 to {MAX_WEIGHTS}"));
        return None;
    };
    Some((name.text().into(), number))
}
