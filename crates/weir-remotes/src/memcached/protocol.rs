//! One connection: the stream, and the pipelines on it.
//!
//! Every pipeline ends with `mn`. If its reply is not where it belongs, replies and commands do not correspond any
//! more, and the connection ends.

use std::{future::Future, io, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, ReadHalf, WriteHalf, split},
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};

use super::codec::{MetaCommand, MetaReply, read_reply};
use crate::transport::{self, Connection, RemoteProtocol, connect_stream, within};
use weir_net::{
    Address,
    stream::Stream,
    tls::{ClientTls, ClientTlsNames},
};
use weir_store::remote::RemoteError;

pub(super) const TLS_NAMES: ClientTlsNames = ClientTlsNames {
    ca: "MEMCACHE_TLS_CACERT",
    certificate: "MEMCACHE_TLS_CLIENT_CERT",
    key: "MEMCACHE_TLS_CLIENT_KEY",
};

pub(super) type MemcachedConnection = transport::ServerConnection<MetaProtocol>;

pub(super) struct MetaProtocol {
    pub(super) address: Address,
    pub(super) tls: Option<ClientTls>,
    pub(super) timeout: Duration,
}

/// The task runs until the last sender is dropped and every reply has arrived.
pub(super) struct MetaConnection {
    pipelines: mpsc::UnboundedSender<Pipeline>,
    /// One task, which returns why it has ended. Dropping it ends the task.
    driver: JoinSet<String>,
}

struct Pipeline {
    bytes: Vec<u8>,
    awaited: AwaitedReplies,
}

struct AwaitedReplies {
    /// Without `mn`.
    count: usize,
    reply: oneshot::Sender<Result<Vec<MetaReply>, String>>,
}

impl RemoteProtocol for MetaProtocol {
    const STORE: &'static str = "memcached";

    type Command = MetaCommand;
    type Reply = Vec<MetaReply>;
    type Connection = MetaConnection;

    fn name(&self) -> String {
        self.address.to_string()
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn connect(&self) -> Result<(Address, MetaConnection), String> {
        let connecting = async {
            let stream = connect_stream(&self.address, self.tls.as_ref(), TLS_NAMES).await?;
            let connection = MetaConnection::new(stream);
            // reports a server without meta commands, or with too many connections
            let probe = connection.exchange(vec![vec![MetaCommand::subtract("weir:probe", 1)]]).await;
            probe.map_err(|error| match error {
                RemoteError::Unreachable(reason) => reason,
                error => error.to_string(),
            })?;
            Ok(connection)
        };
        match within(self.timeout, connecting).await {
            Ok(connection) => Ok((self.address.clone(), connection)),
            Err(error) => Err(format!("{}: {error}", self.address)),
        }
    }
}

// === impl MetaConnection ===

impl MetaConnection {
    fn new(stream: Box<dyn Stream>) -> Self {
        let (pipelines, receiver) = mpsc::unbounded_channel();
        let mut driver = JoinSet::new();
        driver.spawn(drive(stream, receiver));
        Self { pipelines, driver }
    }
}

impl Connection for MetaConnection {
    type Command = MetaCommand;
    type Reply = Vec<MetaReply>;

    fn exchange(
        &self,
        calls: Vec<Vec<MetaCommand>>,
    ) -> impl Future<Output = Result<Vec<Vec<MetaReply>>, RemoteError>> + Send + 'static {
        let counts: Vec<usize> = calls.iter().map(Vec::len).collect();
        let commands = || calls.iter().flatten();
        let mut bytes = Vec::with_capacity(commands().map(|command| command.0.len()).sum::<usize>() + 4);
        commands().for_each(|command| bytes.extend_from_slice(&command.0));
        bytes.extend_from_slice(&MetaCommand::no_op().0);
        let (reply, receiver) = oneshot::channel();
        let awaited = AwaitedReplies { count: counts.iter().sum(), reply };
        // if the driver has ended, the reply does not come
        let _ = self.pipelines.send(Pipeline { bytes, awaited });
        async move {
            let outcome = receiver.await.unwrap_or_else(|_| Err("the connection broke".into()));
            let mut all = outcome.map_err(RemoteError::Unreachable)?.into_iter();
            Ok(counts.iter().map(|count| all.by_ref().take(*count).collect()).collect())
        }
    }

    async fn ended(&mut self) {
        if let Some(Ok(reason)) = self.driver.join_next().await {
            tracing::debug!(reason, "a connection to a memcached server has ended");
        }
    }

    fn retire(self, within: Duration) {
        let Self { pipelines, mut driver } = self;
        drop(pipelines);
        tokio::spawn(async move { timeout(within, driver.join_next()).await.is_ok() });
    }
}

/// Returns why it has ended.
async fn drive(stream: Box<dyn Stream>, pipelines: mpsc::UnboundedReceiver<Pipeline>) -> String {
    let (reader, writer) = split(stream);
    let (sender, awaited) = mpsc::unbounded_channel();
    let end = tokio::select! {
        end = write(writer, pipelines, sender) => end,
        end = read(BufReader::new(reader), awaited) => end,
    };
    end.map_or_else(|error| error.to_string(), |()| "no longer used".into())
}

/// Ends only with an error.
async fn write(
    mut writer: WriteHalf<Box<dyn Stream>>,
    mut pipelines: mpsc::UnboundedReceiver<Pipeline>,
    awaited: mpsc::UnboundedSender<AwaitedReplies>,
) -> io::Result<()> {
    while let Some(pipeline) = pipelines.recv().await {
        // first, so that no reply arrives before it is awaited
        let _ = awaited.send(pipeline.awaited);
        writer.write_all(&pipeline.bytes).await?;
        writer.flush().await?;
    }
    // the reader ends when it has read what is awaited
    drop(awaited);
    std::future::pending().await
}

async fn read(
    mut reader: BufReader<ReadHalf<Box<dyn Stream>>>,
    mut pipelines: mpsc::UnboundedReceiver<AwaitedReplies>,
) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        let awaited = tokio::select! {
            biased;
            awaited = pipelines.recv() => awaited,
            // notices a server that closes the connection
            unasked = reader.fill_buf() => {
                let is_end = unasked?.is_empty();
                match pipelines.try_recv() {
                    Ok(awaited) => Some(awaited),
                    Err(_) if is_end => return Err(io::ErrorKind::UnexpectedEof.into()),
                    // such as `ERROR Too many open connections`
                    Err(_) => {
                        read_reply(&mut reader, &mut line).await?;
                        return Err(io::Error::other("it sends replies without a command"));
                    }
                }
            }
        };
        let Some(AwaitedReplies { count, reply }) = awaited else { return Ok(()) };
        let replies = read_pipeline(&mut reader, &mut line, count).await;
        let error = replies.as_ref().err().map(|error| io::Error::new(error.kind(), error.to_string()));
        // a caller that has given up has dropped its receiver
        let _ = reply.send(replies.map_err(|error| error.to_string()));
        if let Some(error) = error {
            return Err(error);
        }
    }
}

async fn read_pipeline(
    reader: &mut BufReader<ReadHalf<Box<dyn Stream>>>,
    line: &mut Vec<u8>,
    count: usize,
) -> io::Result<Vec<MetaReply>> {
    let mut replies = Vec::with_capacity(count);
    for _ in 0..count {
        replies.push(read_reply(reader, line).await?);
    }
    let last = read_reply(reader, line).await?;
    if last != MetaReply::NoOp || replies.contains(&MetaReply::NoOp) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its replies are not those to the commands"));
    }
    Ok(replies)
}
