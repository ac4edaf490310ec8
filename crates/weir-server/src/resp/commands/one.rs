//! How one command is carried out that is not about a transaction.

use super::{action::CommandAction, buckets, client, describe, info, rl, rules, throttle};
use crate::resp::{reply::CommandReplies, service::Service, session::Session};
use weir_limit::Timestamp;
use weir_store::Store;

pub(super) async fn carry_out_one<S: Store>(
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
