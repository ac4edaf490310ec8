//! Finds the address of a server: a fixed one, or the master that sentinels report.

use std::{future, time::Duration};

use redis::Value;
use tokio::time;

use super::{
    connection::{self, RedisConnection},
    settings::{Auth, Endpoint, Topology},
};
use crate::store::transport::Address;

/// The interval at which sentinels are queried while the connection works, because a master that hangs does not report
/// that another server has taken over.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Finds the address of a server.
#[derive(Clone, Debug)]
pub(super) enum Resolver {
    /// A fixed address.
    Fixed(Address),
    /// The master that sentinels report.
    Sentinels {
        /// The name of the master at the sentinels.
        master: String,
        /// The sentinels, at least one.
        sentinels: Vec<Address>,
        auth: Option<Auth>,
    },
}

impl Resolver {
    /// Returns the resolver for `topology`; none for a cluster, whose servers are found by slot.
    pub(super) fn of(topology: &Topology) -> Option<Self> {
        match topology.clone() {
            Topology::Single(address) => Some(Self::Fixed(address)),
            Topology::Sentinel { master, sentinels, auth } => {
                Some(Self::Sentinels { master, sentinels, auth })
            }
            Topology::Cluster(_) => None,
        }
    }

    /// Returns the server's name for logs.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Fixed(address) => address.to_string(),
            Self::Sentinels { master, .. } => master.clone(),
        }
    }

    /// Returns the server's name for logs, after it was found at `address`.
    pub(super) fn name_at(&self, address: &Address) -> String {
        match self {
            Self::Fixed(address) => address.to_string(),
            Self::Sentinels { master, .. } => format!("{master} at {address}"),
        }
    }

    /// Finds the server's address.
    pub(super) async fn find(&self, endpoint: &Endpoint) -> Result<Address, String> {
        let (master, sentinels, auth) = match self {
            Self::Fixed(address) => return Ok(address.clone()),
            Self::Sentinels { master, sentinels, auth } => (master, sentinels, auth.as_ref()),
        };
        let mut errors = Vec::new();
        for sentinel in sentinels {
            match query_sentinel(endpoint, sentinel, auth, master).await {
                Ok(address) => return Ok(address),
                Err(error) => errors.push(format!("{sentinel}: {error}")),
            }
        }
        Err(format!("no sentinel knows {master}: {}", errors.join("; ")))
    }

    /// Checks that the server at `address` is a master if sentinels reported it: for a while after a failover they may
    /// report a server that has become a replica.
    pub(super) async fn check(
        &self,
        address: &Address,
        connection: &mut RedisConnection,
    ) -> Result<(), String> {
        if let Self::Sentinels { master, .. } = self {
            let role: Vec<Value> = connection.query(&redis::cmd("ROLE")).await?;
            let role: Option<String> =
                role.into_iter().next().and_then(|role| redis::from_redis_value(role).ok());
            if role.as_deref() != Some("master") {
                return Err(format!(
                    "sentinels report {address} as the master of {master}, but it is not a master"
                ));
            }
        }
        Ok(())
    }

    /// Waits until the server is no longer at `address`, and returns its new address.
    pub(super) async fn moved(&self, endpoint: &Endpoint, address: &Address) -> Address {
        if let Self::Fixed(_) = self {
            return future::pending().await;
        }
        loop {
            time::sleep(POLL_INTERVAL).await;
            if let Ok(found) = self.find(endpoint).await
                && found != *address
            {
                return found;
            }
        }
    }
}

/// Returns the address of `master` that the sentinel at `sentinel` reports.
async fn query_sentinel(
    endpoint: &Endpoint,
    sentinel: &Address,
    auth: Option<&Auth>,
    master: &str,
) -> Result<Address, String> {
    let mut connection = connection::connect_sentinel(endpoint, sentinel, auth).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let reply = time::timeout(endpoint.timeout, connection.query::<Option<(String, u16)>>(&command)).await;
    match reply.map_err(|_| format!("no reply within {:?}", endpoint.timeout))?? {
        Some((host, port)) => Ok(Address::tcp(&host, port)),
        None => Err(format!("it watches no master with the name {master}")),
    }
}
