//! How a connection to a Redis server is made and used.

use std::{future::Future, sync::Arc, time::Duration};

use redis::{Cmd, Pipeline, Value};
use tokio::time;

use super::{
    connection::{self, RedisConnection},
    resolver::Resolver,
    script,
    settings::RedisEndpoint,
};
use crate::transport::{self, Address, Connection, RemoteProtocol};
use weir_limit::Timestamp;
use weir_store::remote::RemoteError;

pub(super) type RedisServer = transport::ServerConnection<RedisProtocol>;

pub(super) struct RedisProtocol {
    pub(super) endpoint: Arc<RedisEndpoint>,
    pub(super) resolver: Resolver,
}

pub(super) struct PipelineReply {
    pub(super) now: Option<Timestamp>,
    pub(super) values: Vec<Value>,
}

impl RemoteProtocol for RedisProtocol {
    const STORE: &'static str = "redis";

    type Command = Cmd;
    type Reply = PipelineReply;
    type Connection = RedisConnection;

    fn name(&self) -> String {
        self.resolver.name()
    }

    fn name_at(&self, address: &Address) -> String {
        self.resolver.name_at(address)
    }

    fn timeout(&self) -> Duration {
        self.endpoint.timeout
    }

    async fn connect(&self) -> Result<(Address, RedisConnection), String> {
        self.resolver.connect(&self.endpoint).await
    }

    async fn moved(&self, address: &Address) -> Address {
        self.resolver.moved(&self.endpoint, address).await
    }
}

impl Connection for RedisConnection {
    type Command = Cmd;
    type Reply = PipelineReply;

    fn exchange(
        &self,
        calls: Vec<Vec<Cmd>>,
    ) -> impl Future<Output = Result<Vec<PipelineReply>, RemoteError>> + Send + 'static {
        let counts: Vec<usize> = calls.iter().map(Vec::len).collect();
        let mut pipeline = Pipeline::with_capacity(counts.iter().sum::<usize>() + 1);
        pipeline.cmd("TIME");
        for command in calls.into_iter().flatten() {
            pipeline.add_command(command);
        }
        let (mut handle, held) = (self.handle.clone(), Arc::clone(&self.held));
        async move {
            let values = handle.send_packed_commands(&pipeline, 0, pipeline.len()).await;
            let values = values.map_err(|error| RemoteError::Unreachable(connection::explain(&error)))?;
            held.received(&values);
            if values.len() != pipeline.len() {
                return Err(RemoteError::Unreachable("its reply is incomplete".into()));
            }
            Ok(divided(values, &counts))
        }
    }

    async fn ended(&mut self) {
        self.driver.ended().await;
    }

    fn retire(self, within: Duration) {
        let Self { handle, mut driver, held: _ } = self;
        // the driver ends when the last handle is dropped and every reply has arrived
        drop(handle);
        tokio::spawn(async move { time::timeout(within, driver.ended()).await });
    }
}

fn divided(values: Vec<Value>, counts: &[usize]) -> Vec<PipelineReply> {
    let mut values = values.into_iter();
    let now = values.next().and_then(|value| script::time(&value));
    counts.iter().map(|count| PipelineReply { now, values: values.by_ref().take(*count).collect() }).collect()
}
