//! Opens connections to the collector.

use super::settings::{ExportSettings, OtlpProtocol};
use weir_net::{
    grpc_client::{Stream, TargetTls, open},
    tls::{ALPN_H2, TlsError},
};

pub(super) async fn connect(settings: &ExportSettings) -> Result<Box<dyn Stream>, String> {
    let tls = tls(settings).await.map_err(|error| error.to_string())?;
    open(&settings.endpoint.target, tls.as_ref()).await.map_err(|error| error.to_string())
}

/// Reads the files for each connection, so that renewed ones take effect. None for plain text.
pub(crate) async fn tls(settings: &ExportSettings) -> Result<Option<TargetTls>, TlsError> {
    let Some((files, names)) = settings.tls.clone() else { return Ok(None) };
    let alpn: &'static [&'static [u8]] = match settings.protocol {
        OtlpProtocol::Grpc => &[ALPN_H2],
        OtlpProtocol::Http => &[b"http/1.1"],
    };
    let config = files.load_aside(names, alpn).await?;
    Ok(Some(TargetTls { config, server_name: None }))
}
