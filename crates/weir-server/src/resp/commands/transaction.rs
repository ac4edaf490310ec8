//! `MULTI`, `EXEC` and `DISCARD`, which send several commands together, as some clients do for every pipeline; and
//! `RESET`.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{action::TransactionCommand, carry_out_one, table::COMMANDS};
use crate::{
    connections::ConnectionAccount,
    resp::{
        reply::CommandReplies,
        service::Service,
        session::{CommandQueue, QueuedCommand, Session},
    },
};
use weir_limit::Timestamp;
use weir_store::Store;

/// Leaves the commands of a transaction to [`carry_out_queued`].
pub(super) fn carry_out<S>(
    service: &Service<S>,
    session: &mut Session,
    account: &Arc<ConnectionAccount>,
    command: TransactionCommand,
    replies: &mut CommandReplies,
) {
    match (command, session.queue.take()) {
        (TransactionCommand::Multi, None) => match account.hold(0) {
            Ok(hold) => {
                session.queue = Some(CommandQueue::new(hold));
                replies.simple("OK");
            }
            Err(error) => replies.error(&format!("ERR {error}")),
        },
        (TransactionCommand::Multi, queue) => {
            session.queue = queue;
            replies.error("ERR MULTI calls can not be nested");
        }
        (TransactionCommand::Exec, None) => replies.error("ERR EXEC without MULTI"),
        (TransactionCommand::Exec, Some(queue)) if queue.is_broken => {
            replies.error("EXECABORT Transaction discarded because of previous errors.");
        }
        (TransactionCommand::Exec, Some(queue)) => {
            replies.array(queue.commands().len());
            session.executing = Some(queue);
        }
        (TransactionCommand::Discard, None) => replies.error("ERR DISCARD without MULTI"),
        (TransactionCommand::Discard, Some(_)) => replies.simple("OK"),
        (TransactionCommand::Watch, queue) => {
            session.queue = queue;
            replies.error(
                "ERR WATCH is not supported: the commands of a transaction are carried out each by itself",
            );
        }
        (TransactionCommand::Reset, _) => {
            session.is_authenticated = service.settings.auth.is_none();
            session.name.clear();
            replies.is_resp3 = false;
            replies.simple("RESET");
        }
    }
}

pub(in crate::resp) async fn carry_out_queued<S: Store>(
    service: &Service<S>,
    session: &mut Session,
    command: &QueuedCommand,
    now: Timestamp,
    replies: &mut CommandReplies,
) {
    let arguments: SmallVec<[&[u8]; 12]> = command.arguments().collect();
    let action = COMMANDS[command.command].action;
    carry_out_one(service, session, action, &arguments, now, replies).await;
}

pub(super) fn queue(session: &mut Session, index: usize, arguments: &[&[u8]], replies: &mut CommandReplies) {
    let Some(queue) = &mut session.queue else { return };
    match queue.push(index, arguments) {
        Ok(()) => replies.simple("QUEUED"),
        Err(error) => {
            queue.is_broken = true;
            replies.error(&error.to_string());
        }
    }
}
