//! `WEIR.TAKE`, `WEIR.PEEK` and `WEIR.RESET`: the limits of rules, with the same counters as gRPC.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::action::RuleCommand;
use crate::{
    log,
    resp::{
        arguments::{integer, is_word},
        reply::CommandReplies,
        service::Service,
    },
};
use weir_export::trace::{RequestSpan, SpanCall};
use weir_limit::{Code, Descriptor, Entry, GiveBack, Hits, Request, Timestamp, Verdict};
use weir_store::{Store, TakeOptions};

/// The hits that are given back: as many as can have been counted.
const ALL: u64 = u64::MAX;

/// The arguments are the domain, keys and values in turn, and for [`RuleCommand::Take`] `HITS` and their number.
pub(super) async fn carry_out<S: Store>(
    service: &Service<S>,
    command: RuleCommand,
    arguments: &[&[u8]],
    now: Timestamp,
    replies: &mut CommandReplies,
) {
    let tracer = service.tracer.as_ref();
    let span = tracer.and_then(|tracer| tracer.start(SpanCall::Command(command.name()), None, now));
    let refused = decide(service, command, arguments, now, span.as_deref(), replies).await.err();
    if let Some(error) = &refused {
        replies.error(&format!("ERR {error}"));
    }
    if let Some(span) = span {
        span.end(0, refused.as_deref());
    }
}

async fn decide<S: Store>(
    service: &Service<S>,
    command: RuleCommand,
    arguments: &[&[u8]],
    now: Timestamp,
    span: Option<&RequestSpan>,
    replies: &mut CommandReplies,
) -> Result<(), Cow<'static, str>> {
    if command == RuleCommand::Reset && !service.settings.allows_reset {
        return Err("WEIR.RESET is off: WEIR_REDIS_RESET=true turns it on".into());
    }
    let (arguments, hits) = match command {
        RuleCommand::Take => {
            split_hits(arguments).ok_or("HITS must be followed by a number from 0 to 4294967295")?
        }
        RuleCommand::Peek => (arguments, Hits(0)),
        RuleCommand::Reset => (arguments, Hits(ALL)),
    };
    let [domain, pairs @ ..] = arguments else { return Ok(()) };
    if pairs.is_empty() || pairs.len() % 2 != 0 {
        return Err("a domain must be followed by keys and values in turn".into());
    }
    service.connections.bounds().request.check(pairs.len() / 2).map_err(|error| {
        service.connections.exceeded().add(error.bound());
        error.to_string()
    })?;
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let entries: Option<SmallVec<[Entry<'_>; 4]>> =
        pairs.chunks(2).map(|pair| Some(Entry { key: text(pair[0])?, value: text(pair[1])? })).collect();
    let (Some(domain), Some(entries)) = (text(domain), entries) else {
        return Err("the domain, keys and values must be UTF-8".into());
    };
    let refund = command == RuleCommand::Reset;
    let descriptor = Descriptor { entries, limit: None, hits: Some(hits.0), refund };
    let request = Request { domain, descriptors: std::iter::once(descriptor).collect(), hits: 0 };
    let options = TakeOptions { record: span.map(RequestSpan::record), ..TakeOptions::default() };
    let mut denied_by = None;
    let decided = service.limiter.decide_with(&request, now, options, |verdict| {
        log::decision(&request, verdict);
        if let Some(span) = span {
            span.decided(&request, verdict);
        }
        if verdict.code == Code::OverLimit {
            service.stats.limited.add(1);
        }
        let limits = || verdict.statuses.iter().filter_map(|status| status.limit);
        match command {
            RuleCommand::Reset => {
                let mut denying = limits().filter(|limit| limit.rule.give_back() == Some(GiveBack::Deny));
                if let Some(limit) = denying.next() {
                    denied_by = Some(limit.rule.label());
                    return;
                }
                replies.integer(i64::try_from(limits().count()).unwrap_or(i64::MAX));
            }
            _ => write(verdict, replies),
        }
    });
    decided.await.map_err(|error| error.to_string())?;
    match denied_by {
        None => Ok(()),
        Some(rule) => {
            Err(format!("'give_back: deny' is in force for the rule {}", log::bounded(&rule)).into())
        }
    }
}

/// Splits the number of hits off: `HITS n` at the end, after at least one key and value. None if it is no number.
fn split_hits<'a, 'b>(arguments: &'a [&'b [u8]]) -> Option<(&'a [&'b [u8]], Hits)> {
    match arguments {
        [rest @ .., word, number] if rest.len() >= 3 && rest.len() % 2 == 1 && is_word(word, "HITS") => {
            Some((rest, Hits(integer::<u32>(number)?.into())))
        }
        _ => Some((arguments, Hits(1))),
    }
}

/// Writes what `ShouldRateLimit` answers, by its names. A field without a value is left out.
fn write(verdict: &Verdict<'_>, replies: &mut CommandReplies) {
    let Some(status) = verdict.statuses.first() else { return replies.null() };
    let limit = status.limit.as_ref();
    let name = limit.and_then(|limit| limit.rule.name());
    replies.map(2 + 3 * usize::from(limit.is_some()) + usize::from(name.is_some()));
    replies.bulk("code");
    replies.bulk(match verdict.code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    });
    replies.bulk("limit_remaining");
    replies.integer(status.remaining.into());
    let Some(limit) = limit else { return };
    replies.bulk("requests_per_unit");
    replies.integer(limit.requests.into());
    replies.bulk("unit");
    match limit.tier.map(|tier| (tier.unit(), tier)) {
        Some((Some(unit), _)) => replies.bulk(unit.name()),
        // a period that is no unit
        Some((None, tier)) if tier.calendar.is_none() => replies.bulk(tier.period.to_string()),
        Some((None, tier)) => replies.bulk(tier.per()),
        None => replies.bulk("unknown"),
    }
    replies.bulk("duration_until_reset");
    let seconds = status.reset.map_or(0, weir_limit::Period::as_secs_ceil);
    replies.integer(i64::try_from(seconds).unwrap_or(i64::MAX));
    if let Some(name) = name {
        replies.bulk("name");
        replies.bulk(name);
    }
}
