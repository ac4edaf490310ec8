use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tonic::{
    Request, Status,
    metadata::MetadataMap,
    transport::{Channel, Endpoint, Uri},
};
use tower::service_fn;

use super::{failure::Cause, settings::ExportSettings};

const USER_AGENT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"));

/// Opens the connection when it is needed, and again after it has broken; failures go into `cause`. Must be called in a
/// runtime. Fails if the collector's address is no URI.
pub(crate) fn channel(settings: &ExportSettings, cause: Arc<Cause>) -> Result<Channel, String> {
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let uri = format!("{scheme}://{}", settings.endpoint.target.authority());
    let uri = Uri::try_from(uri).map_err(|error| error.to_string())?;
    let endpoint = Endpoint::from(uri).timeout(settings.timeout).user_agent(USER_AGENT);
    let settings = Arc::new(settings.clone());
    let connector = service_fn(move |_: Uri| {
        let (settings, cause) = (Arc::clone(&settings), Arc::clone(&cause));
        async move {
            let connected = timeout(settings.timeout, settings.connect()).await;
            let late = || Err(format!("no connection within {:?}", settings.timeout));
            connected
                .unwrap_or_else(|_| late())
                .map(TokioIo::new)
                .inspect_err(|error| *cause.lock() = Some(error.clone()))
        }
    });
    Ok(endpoint.map_err(|error| error.to_string())?.connect_with_connector_lazy(connector))
}

/// Replaces the headers that OpenTelemetry's exporters take from the environment: the settings have read them already.
pub(crate) fn with_headers(
    settings: &ExportSettings,
) -> impl FnMut(Request<()>) -> Result<Request<()>, Status> + Clone + use<> {
    let headers = MetadataMap::from_headers(settings.headers.iter().cloned().collect());
    move |mut request| {
        *request.metadata_mut() = headers.clone();
        Ok(request)
    }
}
