//! The connection to a server: the socket, TLS, authentication and the scripts, and the pipelines on it.

use std::{future::Future, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, Pipeline, ProtocolVersion, RedisConnectionInfo,
    RedisError, ServerError, Value, aio::MultiplexedConnection,
};
use tokio::{
    io::{join, split},
    task::JoinSet,
    time::timeout,
};

use super::{
    reply_guard::{HeldReplies, ReplyGuard},
    resolver::Resolver,
    script,
    settings::{Auth, Login, RedisEndpoint},
};
use crate::transport::{self, Connection, RemoteProtocol, connect_stream, within};
use weir_limit::Timestamp;
use weir_net::{Address, stream::Stream, tls::ClientTlsNames};
use weir_observe::text::shortened;
use weir_store::remote::RemoteError;

/// The pipelines that wait to be written to one connection; the worker keeps fewer in flight.
const PIPELINES: usize = 64;

const MAX_TEXT: usize = 1_000;

pub(super) const TLS_NAMES: ClientTlsNames = ClientTlsNames {
    ca: "REDIS_TLS_CACERT",
    certificate: "REDIS_TLS_CLIENT_CERT",
    key: "REDIS_TLS_CLIENT_KEY",
};

pub(super) type RedisServer = transport::ServerConnection<RedisProtocol>;

pub(super) struct RedisProtocol {
    pub(super) endpoint: Arc<RedisEndpoint>,
    pub(super) resolver: Resolver,
}

pub(super) struct PipelineReply {
    pub(super) now: Option<Timestamp>,
    pub(super) values: Vec<Value>,
}

pub(super) struct RedisConnection {
    handle: MultiplexedConnection,
    /// One task. Dropping it ends the task.
    driver: JoinSet<()>,
    held: Arc<HeldReplies>,
}

pub(super) async fn connect(endpoint: &RedisEndpoint, address: &Address) -> Result<RedisConnection, String> {
    let connecting = async {
        let mut connection = open(endpoint, address, Login::Server, endpoint.database).await?;
        connection.load_scripts().await;
        Ok(connection)
    };
    within(endpoint.timeout, connecting).await
}

/// For a sentinel, or a server that is only asked for slots.
pub(super) async fn connect_without_scripts(
    endpoint: &RedisEndpoint,
    address: &Address,
    login: Login,
) -> Result<RedisConnection, String> {
    within(endpoint.timeout, open(endpoint, address, login, 0)).await
}

/// With RESP3, or with RESP2 if the server does not support that.
async fn open(
    endpoint: &RedisEndpoint,
    address: &Address,
    login: Login,
    database: i64,
) -> Result<RedisConnection, String> {
    let auth = endpoint.auth(login);
    let stream = connect_stream(address, endpoint.tls.as_ref(), TLS_NAMES).await?;
    match handshake(stream, auth, database, ProtocolVersion::RESP3).await {
        Err(error) if lacks_resp3(&error) => {
            let stream = connect_stream(address, endpoint.tls.as_ref(), TLS_NAMES).await?;
            handshake(stream, auth, database, ProtocolVersion::RESP2).await
        }
        connected => connected,
    }
    .map_err(|error| endpoint.with_login(explain(&error), login))
}

async fn handshake(
    stream: Box<dyn Stream>,
    auth: Option<&Auth>,
    database: i64,
    protocol: ProtocolVersion,
) -> Result<RedisConnection, RedisError> {
    let mut info = RedisConnectionInfo::default()
        .set_protocol(protocol)
        .set_db(database)
        .set_lib_name("weir", env!("CARGO_PKG_VERSION"));
    if let Some(auth) = auth {
        info = info.set_password(&auth.password);
        if let Some(user) = &auth.user {
            info = info.set_username(user);
        }
    }
    let config = AsyncConnectionConfig::new()
        // the worker bounds the time and the number of pipelines in flight
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINES);
    let held = Arc::<HeldReplies>::default();
    // both are used by one task
    let (reader, writer) = split(stream);
    let stream = join(ReplyGuard::new(reader, Arc::clone(&held)), writer);
    let (handle, task) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
    let mut driver = JoinSet::new();
    driver.spawn(task);
    Ok(RedisConnection { handle, driver, held })
}

fn lacks_resp3(error: &RedisError) -> bool {
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.detail().is_some_and(|detail| detail.contains("unknown command"))
}

fn explain(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => cut(&format!("{code} {detail}")),
        _ => cut(&error.to_string()),
    }
}

pub(super) fn explain_reply(error: &ServerError) -> String {
    cut(&format!("{} {}", error.code(), error.details().unwrap_or_default()))
}

pub(super) fn cut(text: &str) -> String {
    shortened(text, MAX_TEXT).into_owned()
}

// === impl RedisProtocol ===

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

// === impl RedisConnection ===

impl RedisConnection {
    pub(super) async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, String> {
        let value: Value = command.query_async(&mut self.handle).await.map_err(|error| explain(&error))?;
        self.held.received(std::slice::from_ref(&value));
        redis::from_redis_value(value).map_err(|error| cut(&error.to_string()))
    }

    /// In one round trip: a distant server leaves time for few. The first command that needs a missing script fails.
    async fn load_scripts(&mut self) {
        let scripts = [&script::TAKE, &script::HEARTBEAT, &script::BOARD, &script::POOLS];
        let mut pipeline = Pipeline::with_capacity(scripts.len());
        for script in scripts {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(script.text);
        }
        let replies = self.handle.send_packed_commands(&pipeline, 0, pipeline.len()).await;
        self.held.received(&replies.unwrap_or_default());
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
            let values = values.map_err(|error| RemoteError::Unreachable(explain(&error)))?;
            held.received(&values);
            if values.len() != pipeline.len() {
                return Err(RemoteError::Unreachable("its reply is incomplete".into()));
            }
            let mut values = values.into_iter();
            let now = values.next().and_then(|value| script::time(&value));
            let reply = |count: &usize| PipelineReply { now, values: values.by_ref().take(*count).collect() };
            Ok(counts.iter().map(reply).collect())
        }
    }

    async fn ended(&mut self) {
        // a broken and a closed connection are treated alike
        self.driver.join_next().await;
    }

    fn retire(self, within: Duration) {
        let Self { handle, mut driver, held: _ } = self;
        // the driver ends when the last handle is dropped and every reply has arrived
        drop(handle);
        tokio::spawn(async move { timeout(within, driver.join_next()).await });
    }
}
