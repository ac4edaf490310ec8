//! Where a server is to be found: where the settings say, or where sentinels do.

use std::{future, time::Duration};

use redis::Value;
use tokio::time;

use super::{
    connect::{self, Connection},
    settings::{Address, Auth, Endpoint, Place},
};

/// How often sentinels are asked while all seems well: a master that hangs does not say that another has taken over.
const LOOK: Duration = Duration::from_secs(1);

/// Finds a server.
#[derive(Clone, Debug)]
pub(super) enum Resolver {
    /// It is there.
    At(Address),
    /// Sentinels know.
    Sentinels {
        /// What they call it.
        master: String,
        /// At least one.
        sentinels: Vec<Address>,
        auth: Option<Auth>,
    },
}

impl Resolver {
    /// The one for `place`, unless that is a cluster, whose servers are known by their slots.
    pub(super) fn of(place: &Place) -> Option<Self> {
        match place.clone() {
            Place::Single(address) => Some(Self::At(address)),
            Place::Sentinel { master, sentinels, auth } => Some(Self::Sentinels { master, sentinels, auth }),
            Place::Cluster(_) => None,
        }
    }

    /// What people call the server.
    pub(super) fn name(&self) -> String {
        match self {
            Self::At(address) => address.to_string(),
            Self::Sentinels { master, .. } => master.clone(),
        }
    }

    /// What people call the server, now that it was found at `address`.
    pub(super) fn name_at(&self, address: &Address) -> String {
        match self {
            Self::At(address) => address.to_string(),
            Self::Sentinels { master, .. } => format!("{master} at {address}"),
        }
    }

    /// Where it is.
    pub(super) async fn find(&self, endpoint: &Endpoint) -> Result<Address, String> {
        let (master, sentinels, auth) = match self {
            Self::At(address) => return Ok(address.clone()),
            Self::Sentinels { master, sentinels, auth } => (master, sentinels, auth.as_ref()),
        };
        let mut errors = Vec::new();
        for sentinel in sentinels {
            match ask(endpoint, sentinel, auth, master).await {
                Ok(address) => return Ok(address),
                Err(error) => errors.push(format!("{sentinel}: {error}")),
            }
        }
        Err(format!("no sentinel knows {master}: {}", errors.join("; ")))
    }

    /// Whether what was found at `address` is what it is said to be: for a while after a failover, sentinels may name a
    /// server that has become a replica.
    pub(super) async fn check(&self, address: &Address, connection: &mut Connection) -> Result<(), String> {
        if let Self::Sentinels { master, .. } = self {
            let role: Vec<Value> = connection.ask(&redis::cmd("ROLE")).await?;
            let role: Option<String> =
                role.into_iter().next().and_then(|role| redis::from_redis_value(role).ok());
            if role.as_deref() != Some("master") {
                return Err(format!("{address} is not the master of {master} that sentinels say it is"));
            }
        }
        Ok(())
    }

    /// Waits until it is elsewhere than at `address`, and tells where.
    pub(super) async fn moved(&self, endpoint: &Endpoint, address: &Address) -> Address {
        if let Self::At(_) = self {
            return future::pending().await;
        }
        loop {
            time::sleep(LOOK).await;
            if let Ok(found) = self.find(endpoint).await
                && found != *address
            {
                return found;
            }
        }
    }
}

/// Where the sentinel at `sentinel` says that `master` is.
async fn ask(
    endpoint: &Endpoint,
    sentinel: &Address,
    auth: Option<&Auth>,
    master: &str,
) -> Result<Address, String> {
    let mut connection = connect::connect_sentinel(endpoint, sentinel, auth).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let asked = time::timeout(endpoint.timeout, connection.ask::<Option<(String, u16)>>(&command)).await;
    match asked.map_err(|_| format!("no answer within {:?}", endpoint.timeout))?? {
        Some((host, port)) => Ok(Address::tcp(&host, port)),
        None => Err(format!("it watches no master of the name {master}")),
    }
}
