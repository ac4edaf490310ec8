//! The streams of connections, with the certificates of the moment.

use std::{future::Future, time::Duration};

use tokio::time;

use weir_net::{
    Address,
    stream::{Stream, StreamTls, open},
    tls::{ClientTls, ClientTlsNames},
};

/// Reads the files of `tls` again, so that renewed ones take effect. A unix socket is never encrypted.
pub(crate) async fn connect_stream(
    address: &Address,
    tls: Option<&ClientTls>,
    names: ClientTlsNames,
) -> Result<Box<dyn Stream>, String> {
    let tls = match tls {
        Some(files) if matches!(address, Address::Tcp(..)) => {
            let config = files.clone().load_aside(names, &[]).await;
            Some(StreamTls { config: config.map_err(|error| error.to_string())?, server_name: None })
        }
        _ => None,
    };
    open(address, tls.as_ref()).await.map_err(|error| error.to_string())
}

/// The error is for people.
pub(crate) async fn within<T>(
    timeout: Duration,
    connecting: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let connected = time::timeout(timeout, connecting).await;
    connected.unwrap_or_else(|_| Err(format!("no connection within {timeout:?}")))
}
