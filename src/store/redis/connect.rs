//! One connection: socket, TLS, and the first words.

use std::{future::Future, io};

use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, ProtocolVersion, RedisConnectionInfo, RedisError,
    Value, aio::MultiplexedConnection,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use super::{
    script,
    settings::{Address, Auth, Endpoint},
};

/// A connection that has said who it is.
pub(super) struct Connection {
    /// Sends, and waits for answers. Clones share the connection.
    pub(super) handle: MultiplexedConnection,
    /// Ends when the connection does.
    pub(super) driver: Driver,
}

/// The task that moves bytes. It ends with this.
pub(super) struct Driver(JoinHandle<()>);

/// A stream of whichever kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects to the server at `address`, which is to have the scripts at hand.
pub(super) async fn connect(endpoint: &Endpoint, address: &Address) -> Result<Connection, String> {
    let connecting = async {
        let mut connection = open(endpoint, address, endpoint.auth.as_ref(), endpoint.database).await?;
        // where a script cannot be loaded, whoever needs it will say so
        for script in script::ALL {
            let _ = connection.ask::<Value>(redis::cmd("SCRIPT").arg("LOAD").arg(script.text)).await;
        }
        Ok(connection)
    };
    within(endpoint, connecting).await
}

/// Connects to the sentinel at `address`.
pub(super) async fn connect_sentinel(
    endpoint: &Endpoint,
    address: &Address,
    auth: Option<&Auth>,
) -> Result<Connection, String> {
    within(endpoint, open(endpoint, address, auth, 0)).await
}

async fn within<T>(
    endpoint: &Endpoint,
    connecting: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    match timeout(endpoint.timeout, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(format!("no connection within {:?}", endpoint.timeout)),
    }
}

async fn open(
    endpoint: &Endpoint,
    address: &Address,
    auth: Option<&Auth>,
    database: i64,
) -> Result<Connection, String> {
    let stream = dial(endpoint, address).await?;
    match greet(stream, auth, database, ProtocolVersion::RESP3).await {
        Err(error) if knows_no_resp3(&error) => {
            let stream = dial(endpoint, address).await?;
            greet(stream, auth, database, ProtocolVersion::RESP2).await
        }
        greeted => greeted,
    }
    .map_err(|error| explain(&error))
}

async fn dial(endpoint: &Endpoint, address: &Address) -> Result<Box<dyn Stream>, String> {
    let told = |error: io::Error| error.to_string();
    let (host, stream) = match address {
        Address::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await.map_err(told)?)),
        Address::Tcp(host, port) => (host, TcpStream::connect((&**host, *port)).await.map_err(told)?),
    };
    // pipelines are written whole, and nothing is gained by waiting for more of them
    stream.set_nodelay(true).map_err(told)?;
    let Some(tls) = &endpoint.tls else {
        return Ok(Box::new(stream));
    };
    let connector = TlsConnector::from(tls.load().map_err(|error| error.to_string())?);
    let name = ServerName::try_from(host.to_string()).map_err(|error| error.to_string())?;
    Ok(Box::new(connector.connect(name, stream).await.map_err(|error| format!("TLS: {error}"))?))
}

async fn greet(
    stream: Box<dyn Stream>,
    auth: Option<&Auth>,
    database: i64,
    protocol: ProtocolVersion,
) -> Result<Connection, RedisError> {
    let mut who = RedisConnectionInfo::default()
        .set_protocol(protocol)
        .set_db(database)
        .set_lib_name("weir", env!("CARGO_PKG_VERSION"));
    if let Some(auth) = auth {
        who = who.set_password(&auth.password);
        if let Some(user) = &auth.user {
            who = who.set_username(user);
        }
    }
    let config = AsyncConnectionConfig::new()
        // a link bounds what is in flight, and how long it waits for it
        .set_response_timeout(None)
        .set_pipeline_buffer_size(super::link::IN_FLIGHT);
    let (handle, driver) = MultiplexedConnection::new_with_config(&who, stream, config).await?;
    Ok(Connection { handle, driver: Driver(tokio::spawn(driver)) })
}

fn knows_no_resp3(error: &RedisError) -> bool {
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.detail().is_some_and(|detail| detail.contains("unknown command"))
}

/// What went wrong, in Redis' own words where it has any.
pub(super) fn explain(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

// === impl Connection ===

impl Connection {
    /// The answer to one command.
    pub(super) async fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, String> {
        command.query_async(&mut self.handle).await.map_err(|error| explain(&error))
    }
}

// === impl Driver ===

impl Driver {
    /// Waits until the connection has ended.
    pub(super) async fn ended(&mut self) {
        // whether it was cut or closed makes no difference
        let _ = (&mut self.0).await;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}
