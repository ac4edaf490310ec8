//! A tonic server of the rate limit service with a constant response.

use std::io;

use tokio::net::TcpListener;
use tonic::transport::{Server, server::TcpIncoming};
use weir_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};

struct ConstantResponse(RateLimitResponse);

#[tonic::async_trait]
impl RateLimitService for ConstantResponse {
    async fn should_rate_limit(
        &self,
        _: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, tonic::Status> {
        Ok(tonic::Response::new(self.0.clone()))
    }
}

pub(crate) async fn serve(listener: TcpListener, response: RateLimitResponse) -> io::Result<()> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let service = RateLimitServiceServer::new(ConstantResponse(response));
    let served = Server::builder().add_service(service).serve_with_incoming(incoming).await;
    served.map_err(io::Error::other)
}
