//! `INFO`, in the format of Redis.

use crate::resp::{reply::CommandReplies, service::Service, session::Session};
use weir_limit::Timestamp;

/// The version of Redis whose protocol this is, for clients that look for one.
pub(super) const COMPATIBLE_VERSION: &str = "7.2.0";

/// The same sections come whatever was asked for.
pub(super) fn carry_out<S>(
    service: &Service<S>,
    session: &Session,
    now: Timestamp,
    replies: &mut CommandReplies,
) {
    let lines = [
        "# Server".to_owned(),
        format!("redis_version:{COMPATIBLE_VERSION}"),
        format!("weir_version:{}", env!("CARGO_PKG_VERSION")),
        "redis_mode:standalone".to_owned(),
        format!("process_id:{}", std::process::id()),
        format!("server_time_usec:{}", now.as_nanos() / 1_000),
        format!("uptime_in_seconds:{}", service.started.elapsed().as_secs()),
        String::new(),
        "# Clients".to_owned(),
        format!("connected_clients:{}", service.connections.count()),
        format!("client_id:{}", session.id),
        String::new(),
        "# Persistence".to_owned(),
        "loading:0".to_owned(),
        String::new(),
        "# Stats".to_owned(),
        format!("total_commands_processed:{}", service.stats.total()),
        format!("total_error_replies:{}", service.stats.errors.get()),
        format!("limited_requests:{}", service.stats.limited.get()),
        String::new(),
        "# Replication".to_owned(),
        "role:master".to_owned(),
        "connected_slaves:0".to_owned(),
        String::new(),
        "# Cluster".to_owned(),
        "cluster_enabled:0".to_owned(),
        String::new(),
    ];
    replies.text(&lines.join("\r\n"));
}
