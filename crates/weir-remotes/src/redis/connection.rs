//! One connection: the socket, TLS, authentication and the scripts.

use std::{future::Future, sync::Arc};

use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, Pipeline, ProtocolVersion, RedisConnectionInfo,
    RedisError, ServerError, Value, aio::MultiplexedConnection,
};
use tokio::{task::JoinHandle, time::timeout};

use super::{
    reply_guard::{HeldReplies, ReplyGuard},
    script,
    settings::{Auth, Login, RedisEndpoint},
};
use crate::transport::{Address, RemoteStream, connect_stream};
use weir_observe::text::shortened;

/// The pipelines that wait to be written to one connection; the worker keeps fewer in flight.
const PIPELINES: usize = 64;

const MAX_TEXT: usize = 1_000;

pub(super) struct RedisConnection {
    pub(super) handle: MultiplexedConnection,
    pub(super) driver: Driver,
    pub(super) held: Arc<HeldReplies>,
}

/// Dropping it aborts the task.
pub(super) struct Driver(JoinHandle<()>);

pub(super) async fn connect(endpoint: &RedisEndpoint, address: &Address) -> Result<RedisConnection, String> {
    let connecting = async {
        let mut connection = open(endpoint, address, Login::Server, endpoint.database).await?;
        connection.load_scripts().await;
        Ok(connection)
    };
    within(endpoint, connecting).await
}

/// For a sentinel, or a server that is only asked for slots.
pub(super) async fn connect_without_scripts(
    endpoint: &RedisEndpoint,
    address: &Address,
    login: Login,
) -> Result<RedisConnection, String> {
    within(endpoint, open(endpoint, address, login, 0)).await
}

async fn within<T>(
    endpoint: &RedisEndpoint,
    connecting: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    match timeout(endpoint.timeout, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(format!("no connection within {:?}", endpoint.timeout)),
    }
}

/// With RESP3, or with RESP2 if the server does not support that.
async fn open(
    endpoint: &RedisEndpoint,
    address: &Address,
    login: Login,
    database: i64,
) -> Result<RedisConnection, String> {
    let auth = endpoint.auth(login);
    let stream = open_stream(endpoint, address).await?;
    match handshake(stream, auth, database, ProtocolVersion::RESP3).await {
        Err(error) if lacks_resp3(&error) => {
            let stream = open_stream(endpoint, address).await?;
            handshake(stream, auth, database, ProtocolVersion::RESP2).await
        }
        connected => connected,
    }
    .map_err(|error| endpoint.with_login(explain(&error), login))
}

async fn open_stream(endpoint: &RedisEndpoint, address: &Address) -> Result<Box<dyn RemoteStream>, String> {
    let tls = match &endpoint.tls {
        Some(tls) => Some(tls.load_aside().await.map_err(|error| error.to_string())?),
        None => None,
    };
    connect_stream(address, tls).await
}

async fn handshake(
    stream: Box<dyn RemoteStream>,
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
    let stream = ReplyGuard::new(stream, Arc::clone(&held));
    let (handle, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
    Ok(RedisConnection { handle, driver: Driver(tokio::spawn(driver)), held })
}

fn lacks_resp3(error: &RedisError) -> bool {
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.detail().is_some_and(|detail| detail.contains("unknown command"))
}

pub(super) fn explain(error: &RedisError) -> String {
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

// === impl RedisConnection ===

impl RedisConnection {
    pub(super) async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, String> {
        let value: Value = command.query_async(&mut self.handle).await.map_err(|error| explain(&error))?;
        self.held.received(std::slice::from_ref(&value));
        redis::from_redis_value(value).map_err(|error| cut(&error.to_string()))
    }

    /// In one round trip: a distant server leaves time for few. The first command that needs a missing script fails.
    async fn load_scripts(&mut self) {
        let mut pipeline = Pipeline::with_capacity(script::ALL.len());
        for script in script::ALL {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(script.text);
        }
        let replies = self.handle.send_packed_commands(&pipeline, 0, pipeline.len()).await;
        self.held.received(&replies.unwrap_or_default());
    }
}

// === impl Driver ===

impl Driver {
    pub(super) async fn ended(&mut self) {
        // a broken and a closed connection are treated alike
        let _ = (&mut self.0).await;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}
