//! A master with a replica, and sentinels that monitor them.

use crate::{redis_server::Server, wait::until};

/// The name of the master.
pub const MASTER: &str = "mymaster";

/// A master, a replica and three sentinels.
pub struct MonitoredMaster {
    pub master: Server,
    pub replica: Server,
    pub sentinels: Vec<Server>,
    pub password: Option<String>,
}

impl MonitoredMaster {
    /// Starts sentinels that consider a master lost after a short time, and require `password` if there is one.
    pub async fn start(password: Option<&str>) -> Self {
        let master = Server::start_with(&["--repl-diskless-sync-delay", "0"]);
        let of = master.port().to_string();
        let replica = Server::start_with(&["--replicaof", "127.0.0.1", &of]);
        until("the replica is in sync", async || {
            let info: String = replica.send(&["INFO", "replication"]);
            info.contains("master_link_status:up")
        })
        .await;
        let require_password =
            password.map_or_else(String::new, |password| format!("requirepass {password}\n"));
        let configuration = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {of} 2\nsentinel down-after-milliseconds {MASTER} 300\n\
             sentinel failover-timeout {MASTER} 3000\n{require_password}"
        );
        let sentinels: Vec<Server> = (0..3)
            .map(|_| {
                let sentinel_password = password
                    .map_or_else(String::new, |password| format!("sentinel sentinel-pass {password}\n"));
                Server::start_sentinel(&format!("{configuration}{sentinel_password}"), password)
            })
            .collect();
        let monitored = Self { master, replica, sentinels, password: password.map(str::to_owned) };
        until("the sentinels know each other and the replica", async || {
            monitored.sentinels.iter().all(|sentinel| {
                let others: Vec<redis::Value> = sentinel.send(&["SENTINEL", "SENTINELS", MASTER]);
                let replicas: Vec<redis::Value> = sentinel.send(&["SENTINEL", "REPLICAS", MASTER]);
                others.len() == 2 && replicas.len() == 1
            })
        })
        .await;
        monitored
    }
}
