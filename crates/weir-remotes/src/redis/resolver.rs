//! Finds the address of a server: a fixed one, or the master that sentinels report.

use std::{future, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::Value;
use tokio::time::{self, Instant};

use super::{
    connection::{self, RedisConnection},
    settings::{Login, RedisEndpoint},
    slot_map,
};
use weir_net::Address;

/// While the connection works: a master that hangs does not report that another server has taken over.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// For a sentinel where others have replied: one that hangs must not delay them.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) enum Resolver {
    Fixed(Address),
    Sentinels(Sentinels),
}

#[derive(Clone, Debug)]
pub(super) struct Sentinels {
    pub(super) master: String,
    pub(super) addresses: Vec<Address>,
}

struct PolledSentinel<'a> {
    sentinels: &'a Sentinels,
    address: &'a Address,
    /// Kept, so that not every query needs another one.
    connection: Option<RedisConnection>,
}

// === impl Resolver ===

impl Resolver {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Fixed(address) => address.to_string(),
            Self::Sentinels(sentinels) => sentinels.master.clone(),
        }
    }

    pub(super) fn name_at(&self, address: &Address) -> String {
        match self {
            Self::Fixed(address) => address.to_string(),
            Self::Sentinels(sentinels) => format!("{} at {address}", sentinels.master),
        }
    }

    pub(super) async fn connect(
        &self,
        endpoint: &RedisEndpoint,
    ) -> Result<(Address, RedisConnection), String> {
        match self {
            Self::Fixed(address) => {
                let connection = connection::connect(endpoint, address).await;
                let connection = connection.map_err(|error| format!("{address}: {error}"))?;
                Ok((address.clone(), connection))
            }
            Self::Sentinels(sentinels) => sentinels.connect(endpoint).await,
        }
    }

    pub(super) async fn moved(&self, endpoint: &RedisEndpoint, address: &Address) -> Address {
        match self {
            Self::Fixed(_) => future::pending().await,
            Self::Sentinels(sentinels) => sentinels.moved(endpoint, address).await,
        }
    }
}

// === impl Sentinels ===

impl Sentinels {
    /// The first reported server that is a master: after a failover, sentinels may report a replica, or one that is gone.
    async fn connect(&self, endpoint: &RedisEndpoint) -> Result<(Address, RedisConnection), String> {
        let attempts = self.polled().map(async |mut sentinel| match sentinel.query(endpoint).await {
            Ok(address) => self.connect_to(endpoint, address).await,
            Err(error) => Err(format!("{}: {error}", sentinel.address)),
        });
        let (mut attempts, mut errors) = (attempts.collect::<FuturesUnordered<_>>(), Vec::new());
        loop {
            // once others have failed, a sentinel that hangs must not delay the next attempt
            let patience = if errors.is_empty() { Duration::MAX } else { PATIENCE };
            match time::timeout(patience, attempts.next()).await {
                Ok(Some(Ok(master))) => return Ok(master),
                Ok(Some(Err(error))) => errors.push(error),
                Ok(None) | Err(_) => break,
            }
        }
        Err(connection::cut(&errors.join("; ")))
    }

    /// Fails if the server is no master.
    async fn connect_to(
        &self,
        endpoint: &RedisEndpoint,
        address: Address,
    ) -> Result<(Address, RedisConnection), String> {
        let connection = connection::connect(endpoint, &address).await;
        let mut connection = connection.map_err(|error| format!("{address}: {error}"))?;
        let role = time::timeout(endpoint.timeout, connection.query::<Vec<Value>>(&redis::cmd("ROLE"))).await;
        let role = role.unwrap_or_else(|_| Err(format!("no reply within {:?}", endpoint.timeout)));
        let role =
            role.map_err(|error| format!("{address}: {}", endpoint.with_login(error, Login::Server)))?;
        let role = role.into_iter().next();
        let role: Option<String> = role.and_then(|role| redis::from_redis_value(role).ok());
        if role.as_deref() != Some("master") {
            let master = &self.master;
            return Err(format!(
                "sentinels report {address} as the master of {master}, but it is not a master"
            ));
        }
        Ok((address, connection))
    }

    /// Waits until more sentinels report another address. With one, weir would move between its report and the others'.
    async fn moved(&self, endpoint: &RedisEndpoint, address: &Address) -> Address {
        let mut sentinels: Vec<_> = self.polled().collect();
        loop {
            time::sleep(POLL_INTERVAL).await;
            let deadline = Instant::now() + PATIENCE;
            let mut answers: FuturesUnordered<_> =
                sentinels.iter_mut().map(|sentinel| sentinel.query(endpoint)).collect();
            let mut reported = Vec::new();
            while let Ok(Some(answer)) = time::timeout_at(deadline, answers.next()).await {
                reported.extend(answer.ok());
                // need not wait for one that hangs
                if let Some((most, votes)) = most_reported(&reported)
                    && most != address
                    && 2 * votes > self.addresses.len()
                {
                    return most.clone();
                }
            }
            let votes = reported.iter().filter(|reported| *reported == address).count();
            if let Some((most, _)) = most_reported(&reported).filter(|(_, most)| *most > votes) {
                return most.clone();
            }
        }
    }

    fn polled(&self) -> impl Iterator<Item = PolledSentinel<'_>> {
        self.addresses.iter().map(|address| PolledSentinel { sentinels: self, address, connection: None })
    }
}

fn most_reported(reported: &[Address]) -> Option<(&Address, usize)> {
    let votes = |of: &Address| reported.iter().filter(|reported| *reported == of).count();
    reported.iter().map(|reported| (reported, votes(reported))).max_by_key(|(_, votes)| *votes)
}

// === impl PolledSentinel ===

impl PolledSentinel<'_> {
    async fn query(&mut self, endpoint: &RedisEndpoint) -> Result<Address, String> {
        let Sentinels { master, .. } = self.sentinels;
        // taken, so that a connection without its reply is not used again
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connection::connect_without_scripts(endpoint, self.address, Login::Sentinel).await?,
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let reply = connection.query::<Option<(String, u16)>>(&command);
        let reply = time::timeout(endpoint.timeout, reply).await;
        let reply = reply.map_err(|_| format!("no reply within {:?}", endpoint.timeout))?;
        let reply = reply.map_err(|error| endpoint.with_login(error, Login::Sentinel))?;
        self.connection = Some(connection);
        match reply {
            Some((host, port)) if slot_map::is_host(&host) => Ok(Address::tcp(&host, port)),
            Some(_) => Err("the host of its master is too long".into()),
            None => Err(format!("it watches no master with the name {master}")),
        }
    }
}
