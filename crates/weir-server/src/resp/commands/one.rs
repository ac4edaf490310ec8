//! How one command is carried out that is not about a transaction.

use super::{action::Action, buckets, client, describe, info, rl, rules, throttle};
use crate::resp::{reply::Replies, service::Service, session::Session};
use weir_limit::Timestamp;
use weir_store::Store;

pub(super) async fn carry_out_one<S: Store>(
    service: &Service<S>,
    session: &mut Session,
    action: Action,
    arguments: &[&[u8]],
    now: Timestamp,
    replies: &mut Replies,
) {
    let rest = &arguments[1..];
    match action {
        Action::Rl(command) => rl::carry_out(service, command, rest, now, replies).await,
        Action::Throttle(dialect) => throttle::carry_out(service, dialect, rest, now, replies).await,
        Action::Rules(command) => rules::carry_out(service, command, rest, now, replies).await,
        Action::Buckets(command) => buckets::carry_out(service, command, rest, now, replies).await,
        Action::Client(command) => client::carry_out(service, session, command, rest, replies),
        Action::Command => describe::carry_out(rest, replies),
        Action::Info => info::carry_out(service, session, now, replies),
        Action::Transaction(_) => {}
    }
}
