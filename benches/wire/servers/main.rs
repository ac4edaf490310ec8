//! The servers that `benches/wire` compares weir with. They make no decisions.
//!
//! This is a separate program, because cargo builds benchmarks with unwinding panics, which cost a few percent more
//! instructions than weir's own profile.

mod bare;
// the benchmark and this program agree on it
#[path = "../comparison.rs"]
mod comparison;
mod constant;

use std::io::{self, Read as _, Write as _};

use clap::Parser;
use tokio::{net::TcpListener, runtime::Builder, sync::oneshot};
use weir_proto::envoy::service::ratelimit::v3::{
    RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
};

use crate::comparison::Kind;

/// Serves on a free port, which it prints, until standard input ends.
#[derive(Debug, Parser)]
struct Options {
    kind: Kind,

    /// The number of descriptors in a response.
    descriptors: usize,
}

fn main() -> io::Result<()> {
    let Options { kind, descriptors } = Options::parse();
    let (ended, end) = oneshot::channel();
    // the end of standard input ends this process with its parent
    std::thread::spawn(move || {
        // an error also ends the input
        let _ = io::stdin().read_to_end(&mut Vec::new());
        let _ = ended.send(());
    });
    let mut runtime = match kind {
        Kind::Tonic => Builder::new_multi_thread(),
        Kind::H2 | Kind::H2Spawn | Kind::TonicCurrentThread => Builder::new_current_thread(),
    };
    runtime.worker_threads(1).enable_all().build()?.block_on(async move {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        println!("listening {}", listener.local_addr()?);
        io::stdout().flush()?;
        let response = canned(descriptors);
        let serving = async {
            match kind {
                Kind::H2 | Kind::H2Spawn => bare::serve(listener, kind, response).await,
                Kind::Tonic | Kind::TonicCurrentThread => constant::serve(listener, response).await,
            }
        };
        tokio::select! {
            served = serving => served,
            _ = end => Ok(()),
        }
    })
}

/// Returns the constant response, as long as a response of weir with so many descriptors.
fn canned(descriptors: usize) -> RateLimitResponse {
    let status = DescriptorStatus {
        code: Code::Ok.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: 4_000_000_000,
            unit: Unit::Hour.into(),
            ..RateLimit::default()
        }),
        limit_remaining: 3_999_999_000,
        duration_until_reset: Some(prost_types::Duration { seconds: 1_800, nanos: 0 }),
    };
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![status; descriptors],
        ..RateLimitResponse::default()
    }
}
