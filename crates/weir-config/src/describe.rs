//! A rule in words and as JSON, for `weir explain` and for the page `/rules`.

use serde_json::{Value, json};

use super::{
    share::{ANONYMOUS, BORROW, LEND},
    zone,
};
use weir_limit::{
    Bucket, CompiledRule, Coordination, CountBy, GiveBack, Hits, IN_FLIGHT, Limit, OnStoreFailure,
    OverLimitPolicy, Pattern, Refill, Reserve, ReserveAmount, Rule, Schedule, Scope, SharedCounts,
    SharedStore, Tier, Timestamp, Values, share::Sharing,
};
use weir_observe::text::escaped;

/// A compiled rule in words, as `weir explain` and the log show it.
#[derive(Clone, Copy, Debug)]
pub struct RuleDescription<'a> {
    pub compiled: &'a CompiledRule,
    pub scope: Scope,
    pub shared: SharedCounts,
}

impl RuleDescription<'_> {
    /// The first names the rule. None has a line break, whatever its names contain.
    pub fn lines(&self) -> Vec<String> {
        let rule = &self.compiled.rule;
        let mut lines =
            vec![format!("rule {}", self.compiled.path), format!("  declared at {}", rule.origin)];
        let counted = self.compiled.levels.iter().filter(|level| level.count_by != CountBy::Values);
        lines.extend(counted.map(|level| format!("  counts '{}' by {}", level.key, level.count_by)));
        lines.extend(rule.schedule.as_deref().map(|schedule| schedule_line(schedule, rule.until)));
        lines.extend(rule.in_flight.map(|limit| format!("  {limit}")));
        match &rule.limit {
            Limit::Unlimited if rule.in_flight.is_some() => {
                lines.push("  rejected requests do not count".to_owned());
                lines.extend(self.place_lines(rule));
            }
            Limit::Unlimited => lines.push("  unlimited".to_owned()),
            Limit::Tiers { tiers, over_limit_policy } => {
                if tiers.len() > 1 {
                    lines.push(format!("  {} tiers, all of which a request must pass:", tiers.len()));
                }
                let indent = if tiers.len() > 1 { "    " } else { "  " };
                lines.extend(tiers.iter().map(|tier| format!("{indent}{tier}")));
                lines.extend(rule.sharing.as_deref().map(share_line));
                lines.extend(reserve_lines(rule));
                if *over_limit_policy == OverLimitPolicy::Ignore
                    || self.scope == Scope::Request
                    || rule.meters()
                {
                    lines.push("  rejected requests do not count".to_owned());
                }
                if self.scope == Scope::Request {
                    lines.push(
                        "  nor do requests that another descriptor's rule rejects (all or nothing)"
                            .to_owned(),
                    );
                }
                if self.compiled.give_back == GiveBack::Deny {
                    lines.push("  hits cannot be given back (give_back: deny)".to_owned());
                }
                lines.extend(self.coordination_lines(rule));
                lines.extend(rule.places().iter().flat_map(|_| self.place_lines(rule)));
                lines.extend(rule.shadow.iter().flat_map(|shadow| self.shadow_lines(rule, shadow)));
            }
        }
        lines.extend(rule.name.as_ref().map(|name| format!("  name: {name}")));
        if !rule.replaces.is_empty() {
            lines.push(format!("  replaces: {}", rule.replaces.join(", ")));
        }
        for (key, is_on) in flags(rule) {
            if is_on {
                lines.push(format!("  {key}"));
            }
        }
        lines.iter().map(|line| escaped(line).into_owned()).collect()
    }

    fn coordination_lines(&self, rule: &Rule) -> Vec<String> {
        let store = self.shared.store.unwrap_or(SharedStore::REDIS);
        let name = store.name;
        let requested = self.shared.requested(rule);
        let is_declared = rule.coordination.mode.is_some();
        if let Some(name) = &rule.instances_of {
            let number = rule.coordination.split_between.map(|instances| format!("{instances} "));
            let number = number.unwrap_or_else(|| "the ".to_owned());
            return vec![format!(
                "  split between {number}instances by the addresses of {name}: each counts its part by itself"
            )];
        }
        if let Some(instances) = rule.coordination.split_between {
            return vec![format!("  split between {instances} instances: each counts this part by itself")];
        }
        let modes = match self.modes_of_auto(store, rule) {
            None if requested == Coordination::Split => split_words(rule),
            _ if requested.is_coordinated() && !store.shares(rule) && rule.sharing.is_some() => {
                "of N instances, each has the N-th part of the pool".to_owned()
            }
            _ if requested.is_coordinated() && !store.shares(rule) && rule.limit.is_smooth() => {
                "an error, since it counts windows only; write 'coordination: split' or 'local'".to_owned()
            }
            _ if requested.is_coordinated() && !store.shares(rule) => {
                "local, since it counts only single fixed windows".to_owned()
            }
            Some(modes) => format!("{modes} ({}auto)", if is_declared { "" } else { "WEIR_COORDINATION: " }),
            None => {
                let mode = self.shared.mode_in(store, rule, 1).name();
                if is_declared { mode.to_owned() } else { format!("{mode} (WEIR_COORDINATION)") }
            }
        };
        let mut lines = vec![format!("  with {name}: {modes}")];
        let any = [1, usize::MAX].map(|instances| self.shared.mode_in(store, rule, instances));
        if any.iter().any(|mode| mode.syncs()) {
            lines.push(format!("  syncs every {} near the limit", self.shared.sync_interval_of(rule)));
        }
        if any.iter().any(|mode| *mode != Coordination::Local) {
            let failure = self.shared.on_store_failure_of(rule).name();
            lines.push(format!("  while {name} does not answer: {failure}"));
        }
        let mode = self.shared.mode_now(rule).map(Coordination::name);
        let now = match (self.shared.store, mode, self.shared.instances) {
            (None, ..) => Some("now: local, since no shared store is set".to_owned()),
            (_, Some(mode), Some(1)) => Some(format!("now, with 1 instance: {mode}")),
            (_, Some(mode), Some(many)) => Some(format!("now, with {many} instances: {mode}")),
            (_, Some(mode), None) => Some(format!("now: {mode}")),
            (_, None, _) => None,
        };
        lines.extend(now.map(|now| format!("  {now}")));
        lines
    }

    /// How instances share requests in flight, and what answers tell.
    fn place_lines(&self, rule: &Rule) -> Vec<String> {
        let mode = self.shared.requested(rule);
        let store = self.shared.store.unwrap_or(SharedStore::REDIS).name;
        let mode = if mode == Coordination::Local { "local" } else { "strict" };
        let ends = format!(
            "  answers name a request ({IN_FLIGHT}), and the entry {IN_FLIGHT} with that name ends it"
        );
        let mut lines = vec![format!("  requests in flight with {store}: {mode}"), ends];
        let instances = self.shared.instances.filter(|_| mode != "local").unwrap_or_default();
        if let Some(limit) = rule.in_flight.filter(|limit| (limit.most as usize) < instances)
            && self.shared.on_store_failure_of(rule) == OnStoreFailure::Local
        {
            lines.push(format!(
                "  while {store} does not answer, nobody is admitted: {} is below the {instances} instances",
                limit.most
            ));
        }
        if self.shared.store.is_none() && rule.limit == Limit::Unlimited {
            lines.push("  now: local, since no shared store is set".to_owned());
        }
        lines
    }

    fn shadow_lines(&self, rule: &Rule, shadow: &Limit) -> Vec<String> {
        let mut lines =
            vec!["  in its shadow (weir_shadow_over_limit_total counts what it would reject):".to_owned()];
        lines.extend(shadow.tiers().iter().map(|tier| format!("    {tier}")));
        let alone = Rule { limit: shadow.clone(), ..rule.clone() };
        let coordination = self.coordination_lines(&alone);
        lines.extend(coordination.first().map(|modes| format!("  {modes}")));
        lines
    }

    fn modes_of_auto(&self, store: SharedStore, rule: &Rule) -> Option<String> {
        if self.shared.requested(rule) != Coordination::Auto {
            return None;
        }
        let exact = self.shared.mode_in(store, rule, usize::MAX).name();
        let most = rule.limit.capacity() / Coordination::EXACT_BELOW;
        let plural = if most == 1 { "" } else { "s" };
        Some(match most {
            0 => exact.to_owned(),
            _ => format!("interval with up to {most} instance{plural}, {exact} with more"),
        })
    }

    pub fn json(&self) -> Value {
        let (compiled, rule) = (self.compiled, &self.compiled.rule);
        let descriptor: Vec<Value> = compiled
            .levels
            .iter()
            .map(|level| match &level.values {
                Values::Any if level.count_by == CountBy::Values => json!({ "key": level.key }),
                Values::Any => json!({ "key": level.key, "count_by": level.count_by.to_string() }),
                Values::Networks(list) => {
                    let values = list.networks().iter().map(|listed| listed.network.to_string());
                    json!({
                        "key": level.key,
                        "match": "cidr",
                        "values": values.collect::<Vec<_>>(),
                        "count_by": level.count_by.to_string(),
                    })
                }
                Values::One(pattern) => json!({ "key": level.key, "value": pattern.text() }),
                Values::Table(values) => {
                    json!({ "key": level.key, "table": values.to_string(), "plan": level.plan })
                }
                Values::Of(patterns) => {
                    let values: Vec<&str> = patterns.iter().map(Pattern::text).collect();
                    json!({ "key": level.key, "values": values })
                }
            })
            .collect();
        let mut json = json!({
            "rule": compiled.path.to_string(),
            "domain": &*compiled.domain,
            "descriptor": descriptor,
            "declared_at": { "file": &*rule.origin.file, "line": rule.origin.line, "column": rule.origin.column },
            "unlimited": rule.is_unlimited(),
            "in_flight": rule.in_flight.map(|limit| limit.most),
            "give_up_after": rule.places().map(|limit| limit.give_up_after.to_string()),
            "tiers": rule.tiers().iter().map(tier_json).collect::<Vec<_>>(),
            "share": rule.sharing.as_deref().map(described),
            "shadow": rule.shadow.as_ref().map(|shadow| shadow.tiers().iter().map(tier_json).collect::<Vec<_>>()),
            "rejected_requests_count": self.scope == Scope::Descriptor
                && !rule.meters()
                && rule.limit.over_limit_policy() == OverLimitPolicy::Count,
            "reserve": rule.reserve.map(|reserve| match reserve.amount {
                ReserveAmount::Hits(hits) => json!(hits.0),
                ReserveAmount::Auto => json!("auto"),
            }),
            "all_or_nothing": self.scope == Scope::Request,
            "give_back": compiled.give_back.name(),
            "until": rule.until.map(|until| zone::words(until, None)),
            "name": rule.name,
            "replaces": rule.replaces,
            "coordination": Value::Null,
        });
        if rule.limit != Limit::Unlimited {
            json["coordination"] = json!({
                "requested": mode_name(rule, Some(self.shared.requested(rule))),
                "now": mode_name(rule, self.shared.mode_now(rule)),
                "split_between": rule.coordination.split_between,
                "instances_of": rule.instances_of,
                "store": self.shared.store.map(|store| store.name),
                "instances": self.shared.instances,
                "sync_interval": self.shared.sync_interval_of(rule).to_string(),
                "on_store_failure": self.shared.on_store_failure_of(rule).name(),
            });
        }
        for (key, is_on) in flags(rule) {
            json[key] = is_on.into();
        }
        json
    }
}

fn described(sharing: &Sharing) -> Value {
    let Sharing { borrow, lend, reserve, headroom, weights, anonymous, forget_after, max_members, min, max } =
        sharing;
    json!({
        "borrow": name_of(&BORROW, *borrow),
        "lend": name_of(&LEND, *lend),
        "reserve": format!("{reserve}%"),
        "headroom": format!("{headroom}%"),
        "min": min,
        "max": max,
        "weights": weights,
        "anonymous": name_of(&ANONYMOUS, *anonymous),
        "forget_after": forget_after,
        "max_members": max_members,
    })
}

fn name_of<T: Copy + PartialEq>(names: &[(&'static str, T)], of: T) -> &'static str {
    names.iter().find(|(_, value)| *value == of).map_or("", |(name, _)| name)
}

fn reserve_lines(rule: &Rule) -> Vec<String> {
    let Some(reserve) = &rule.reserve else { return Vec::new() };
    let Some(place) = rule.reserve.filter(Reserve::takes_hits).and(rule.places()) else {
        return vec!["  more than one hit is a cost: it counts also above the limit (reserve: 0)".to_owned()];
    };
    let (hits, key) = match reserve.amount {
        ReserveAmount::Hits(Hits(hits)) => (format!("{hits} hits when it begins"), hits.to_string()),
        ReserveAmount::Auto => {
            ("what nine of ten requests cost when it begins".to_owned(), "auto".to_owned())
        }
    };
    let awaits = if reserve.awaits_cost { ", once a cost was reported" } else { "" };
    vec![
        format!("  a request reserves {hits}{awaits} (reserve: {key})"),
        "  more than one hit is its cost, and so are those beside its name: they count instead, also above the limit"
            .to_owned(),
        format!("  without an end, what it has reserved is given back after {}", place.give_up_after),
    ]
}

fn schedule_line(schedule: &Schedule, until: Option<Timestamp>) -> String {
    let zone = schedule.limits.iter().find_map(|limit| limit.active.as_ref()?.zone.as_deref());
    let until = until.map(|until| format!(", until {}", zone::words(until, zone))).unwrap_or_default();
    format!("  by its schedule{until}:")
}

fn share_line(sharing: &Sharing) -> String {
    let described = described(sharing);
    let keys = described.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let keys: Vec<String> = keys.map(|(key, value)| format!("{key}: {}", text(value))).collect();
    format!("  shared by its members: {}", keys.join(", "))
}

fn split_words(rule: &Rule) -> String {
    let most = rule.limit.tiers().iter().map(Tier::capacity).min().unwrap_or_default();
    let most = u64::from(most) / Coordination::COARSE_BELOW;
    let least = Coordination::COARSE_BELOW;
    let setting = if rule.coordination.mode.is_some() { "" } else { " (WEIR_COORDINATION)" };
    format!(
        "split{setting}: each instance has its own part, at least {least} hits with up to {most} instances"
    )
}

/// A limit that its rule has divided is counted locally, but shown as split.
fn mode_name(rule: &Rule, mode: Option<Coordination>) -> Option<&'static str> {
    let is_split = rule.coordination.split_between.is_some() || rule.instances_of.is_some();
    if is_split { Some(Coordination::Split.name()) } else { mode.map(Coordination::name) }
}

fn flags(rule: &Rule) -> [(&'static str, bool); 3] {
    [
        ("shadow_mode", rule.shadow_mode),
        ("quota_mode", rule.quota_mode),
        ("detailed_metric", rule.detailed_metric),
    ]
}

fn tier_json(tier: &Tier) -> Value {
    let mut json = json!({ "requests": tier.requests, "per": tier.per() });
    if let Some(calendar) = tier.calendar() {
        json["timezone"] = calendar.timezone().into();
        json["starts"] = calendar.starts().into();
    }
    if tier.refills() {
        let Bucket { burst, refill, strict } = tier.bucket();
        json["burst"] = burst.into();
        json["refill"] = if refill == Refill::Step { "step" } else { "continuous" }.into();
        json["strict"] = strict.into();
    }
    json["algorithm"] = tier.algorithm.kind().name().into();
    json
}
