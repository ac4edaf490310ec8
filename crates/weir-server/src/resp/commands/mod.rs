//! The commands: the list of them, and how one is carried out.

mod action;
mod buckets;
mod client;
mod describe;
mod info;
mod rl;
mod rules;
mod table;
mod throttle;
mod transaction;

use std::sync::Arc;

pub(super) use self::{table::COMMANDS, transaction::carry_out_queued};

use self::{
    action::{CommandAction, ReplyDialect},
    table::CommandSpec,
};
use super::{
    reply::{CommandReplies, quoted},
    service::Service,
    session::Session,
};
use crate::connections::ConnectionAccount;
use weir_limit::Timestamp;
use weir_store::{Store, StoreError};

/// `arguments` begin with the command's name.
pub(super) async fn carry_out<S: Store>(
    service: &Service<S>,
    session: &mut Session,
    account: &Arc<ConnectionAccount>,
    arguments: &[&[u8]],
    now: Timestamp,
    replies: &mut CommandReplies,
) {
    let Some(name) = arguments.first() else { return };
    let Some(index) = table::find(name) else {
        service.stats.unknown.add(1);
        session.queue.iter_mut().for_each(|queue| queue.is_broken = true);
        return refuse_unknown(name, session.is_authenticated, replies);
    };
    let spec = &COMMANDS[index];
    service.stats.count(index);
    if !session.is_authenticated && !spec.action.is_before_auth() {
        return replies.error("NOAUTH Authentication required.");
    }
    if !spec.arguments.contains(&(arguments.len() - 1)) {
        session.queue.iter_mut().for_each(|queue| queue.is_broken = true);
        return refuse_number(spec, replies);
    }
    match spec.action {
        CommandAction::Transaction(action) => {
            transaction::carry_out(service, session, account, action, replies);
        }
        _ if session.queue.is_some() && !spec.action.is_at_once() => {
            transaction::queue(session, index, arguments, replies);
        }
        _ => carry_out_one(service, session, spec.action, arguments, now, replies).await,
    }
}

async fn carry_out_one<S: Store>(
    service: &Service<S>,
    session: &mut Session,
    action: CommandAction,
    arguments: &[&[u8]],
    now: Timestamp,
    replies: &mut CommandReplies,
) {
    let rest = &arguments[1..];
    match action {
        CommandAction::Rl(command) => rl::carry_out(service, command, rest, now, replies).await,
        CommandAction::Throttle(dialect) => throttle::carry_out(service, dialect, rest, now, replies).await,
        CommandAction::Rules(command) => rules::carry_out(service, command, rest, now, replies).await,
        CommandAction::Buckets(command) => buckets::carry_out(service, command, rest, now, replies).await,
        CommandAction::Client(command) => client::carry_out(service, session, command, rest, replies),
        CommandAction::Command => describe::carry_out(rest, replies),
        CommandAction::Info => info::carry_out(service, session, now, replies),
        CommandAction::Transaction(_) => {}
    }
}

fn refuse_store(error: &StoreError, replies: &mut CommandReplies) {
    replies.error(&format!("ERR {error}"));
}

fn refuse_unknown(name: &[u8], is_authenticated: bool, replies: &mut CommandReplies) {
    let name = quoted(name);
    if !is_authenticated {
        replies.error("NOAUTH Authentication required.");
    } else if name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("rl.")) {
        replies.error(&format!("Unknown command: '{}'", name.to_ascii_lowercase()));
    } else {
        replies.error(&format!("ERR unknown command '{name}'"));
    }
}

/// Refuses a wrong number of arguments in the words of the command's first server.
fn refuse_number(spec: &CommandSpec, replies: &mut CommandReplies) {
    match spec.action {
        CommandAction::Rl(_) => {
            replies.error(&format!("Wrong number of arguments for '{}' command", spec.name));
        }
        CommandAction::Throttle(ReplyDialect::RedisCell) => replies.error(throttle::USAGE),
        _ => replies.error(&format!("ERR wrong number of arguments for '{}' command", spec.name)),
    }
}
