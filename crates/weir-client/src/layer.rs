//! A layer for clients that are built with tower.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tower::{Layer, Service};

use super::{error::AcquireError, limiter::Limiter};
use weir_limit::Hits;

/// Limits the requests of a client: each waits until its hit fits, and is then sent. Under a limit on requests in flight
/// it ends with its response, whose body may come later.
///
/// ```
/// # use std::{convert::Infallible, time::Duration};
/// # use tower::{Layer as _, Service as _, service_fn};
/// # use weir_client::{LimitLayer, Limiter};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # let limiter = Limiter::builder().build().await?;
/// # let client = service_fn(|path: String| async move { Ok::<_, Infallible>(path.len()) });
/// let layer = LimitLayer::new(limiter, "partners", Duration::from_secs(2), |path: &String| {
///     vec![("api".to_owned(), path.clone())]
/// });
/// let mut client = layer.layer(client);
/// let length = client.call("/stickers".to_owned()).await?;
/// # assert_eq!(length, 9);
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Debug)]
pub struct LimitLayer<F> {
    limit: Arc<LayerLimit<F>>,
}

/// A client whose requests are limited.
#[derive(Debug)]
pub struct LimitService<S, F> {
    inner: S,
    limit: Arc<LayerLimit<F>>,
}

#[derive(Debug)]
struct LayerLimit<F> {
    limiter: Limiter,
    domain: String,
    max_wait: Duration,
    entries: F,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum LayerError<E> {
    /// The request was not sent.
    #[error(transparent)]
    Limited(AcquireError),
    /// The client failed.
    #[error(transparent)]
    Client(E),
}

// === impl LimitLayer ===

impl<F> LimitLayer<F> {
    /// Takes one hit of `domain` for each request, whose entries `entries` returns; waits up to `max_wait`.
    pub fn new(limiter: Limiter, domain: &str, max_wait: Duration, entries: F) -> Self {
        Self { limit: Arc::new(LayerLimit { limiter, domain: domain.to_owned(), max_wait, entries }) }
    }
}

/// Not derived: that would require entries that are `Clone`.
impl<F> Clone for LimitLayer<F> {
    fn clone(&self) -> Self {
        Self { limit: Arc::clone(&self.limit) }
    }
}

impl<S, F> Layer<S> for LimitLayer<F> {
    type Service = LimitService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        LimitService { inner, limit: Arc::clone(&self.limit) }
    }
}

// === impl LimitService ===

impl<S: Clone, F> Clone for LimitService<S, F> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), limit: Arc::clone(&self.limit) }
    }
}

impl<S, F, R> Service<R> for LimitService<S, F>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    F: Fn(&R) -> Vec<(String, String)> + Send + Sync + 'static,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = LayerError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, LayerError<S::Error>>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(LayerError::Client)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // the one that is ready goes with the request
        let next = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, next);
        let limit = Arc::clone(&self.limit);
        Box::pin(async move {
            let entries = (limit.entries)(&request);
            let entries: Vec<(&str, &str)> =
                entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let acquired = limit.limiter.acquire(&limit.domain, &entries, Hits(1), limit.max_wait).await;
            // a request in flight ends with it
            let _permit = acquired.map_err(LayerError::Limited)?;
            inner.call(request).await.map_err(LayerError::Client)
        })
    }
}
