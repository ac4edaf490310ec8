//! `weir call`: sends one request to a server, and prints the answer.

use std::{error::Error, io, io::Write};

use clap::Args;
use prost_reflect::{DescriptorPool, DynamicMessage};
use tonic::transport::Endpoint;

use super::descriptors::Descriptors;
use crate::{
    limit::Unit,
    proto::{
        self,
        envoy::{
            extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
            service::ratelimit::v3::{
                RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
                rate_limit_service_client::RateLimitServiceClient,
            },
            r#type::v3::RateLimitUnit,
        },
    },
};

/// What to send, and where.
#[derive(Args, Clone, Debug)]
pub struct Call {
    /// The server: a host and port, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    pub address: String,
    /// The domain that is asked about
    #[arg(long, value_name = "DOMAIN")]
    pub domain: String,
    /// What is asked about.
    #[command(flatten)]
    pub descriptors: Descriptors,
    /// Hits that each descriptor takes; 0 checks without counting
    #[arg(long, value_name = "N")]
    pub hits: Option<u64>,
    /// Give the hits back instead
    #[arg(long)]
    pub refund: bool,
    /// LimitCheck about this limit in place of the configured one, such as 10/minute
    #[arg(long, value_name = "N/UNIT", value_parser = parse_limit)]
    pub limit: Option<RateLimitOverride>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody answers there.
    #[error("cannot reach {address}")]
    Unreachable {
        /// Where.
        address: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// The server refused the request.
    #[error("the server answered {code}: {message}")]
    Refused {
        /// gRPC's code, as a word.
        code: String,
        /// What the server said.
        message: String,
    },
    /// The answer cannot be printed.
    #[error("cannot print the answer")]
    Print(#[from] io::Error),
    /// The answer has no form in JSON.
    #[error("cannot write the answer as JSON")]
    Json(#[source] Box<dyn Error + Send + Sync>),
}

/// What the server said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request may pass.
    Passes,
    /// It may not.
    OverLimit,
}

/// Sends what `call` says, and prints the answer to `out`.
pub async fn call(call: &Call, out: &mut impl Write) -> Result<Outcome, CallError> {
    let request = call.request();
    let answer = ask(&call.address, request.clone()).await?;
    if call.json {
        writeln!(out, "{}", json(&answer)?)?;
    } else {
        print(&request, &answer, out)?;
    }
    Ok(if answer.overall_code() == Code::OverLimit { Outcome::OverLimit } else { Outcome::Passes })
}

async fn ask(address: &str, request: RateLimitRequest) -> Result<RateLimitResponse, CallError> {
    let unreachable = |source| CallError::Unreachable { address: address.to_owned(), source };
    let uri = if address.contains("://") || address.starts_with("unix:") {
        address.to_owned()
    } else {
        format!("http://{address}")
    };
    let channel = Endpoint::from_shared(uri).map_err(unreachable)?.connect().await.map_err(unreachable)?;
    let answer = RateLimitServiceClient::new(channel).should_rate_limit(request).await;
    answer.map(tonic::Response::into_inner).map_err(|status| CallError::Refused {
        code: format!("{:?}", status.code()),
        message: status.message().to_owned(),
    })
}

// === impl Call ===

impl Call {
    fn request(&self) -> RateLimitRequest {
        let mut descriptors = self.descriptors.to_wire();
        for descriptor in &mut descriptors {
            descriptor.hits_addend = self.hits;
            descriptor.is_negative_hits = self.refund;
            descriptor.limit = self.limit;
        }
        RateLimitRequest { domain: self.domain.clone(), descriptors, hits_addend: 0 }
    }
}

/// Reads `10/minute`.
fn parse_limit(text: &str) -> Result<RateLimitOverride, String> {
    let units = || Unit::ALL.map(|unit| unit.name().to_lowercase()).join(", ");
    let (requests, unit) = text.split_once('/').ok_or("write it as requests/unit, such as 10/minute")?;
    let requests =
        requests.parse().map_err(|_| format!("{requests:?} is no number from 0 to {}", u32::MAX))?;
    let unit = Unit::parse(unit).ok_or_else(|| format!("{unit:?} is no unit; there are {}", units()))?;
    let unit = RateLimitUnit::from_str_name(unit.name()).unwrap_or_default();
    Ok(RateLimitOverride { requests_per_unit: requests, unit: unit.into() })
}

/// As `/json` of a server would write it.
fn json(answer: &RateLimitResponse) -> Result<String, CallError> {
    fn failed(error: impl Error + Send + Sync + 'static) -> CallError {
        CallError::Json(Box::new(error))
    }
    let pool = DescriptorPool::decode(proto::DESCRIPTORS).map_err(failed)?;
    let name = "envoy.service.ratelimit.v3.RateLimitResponse";
    let descriptor = pool
        .get_message_by_name(name)
        .ok_or_else(|| CallError::Json(format!("there is no message {name}").into()))?;
    let mut message = DynamicMessage::new(descriptor);
    message.transcode_from(answer).map_err(failed)?;
    serde_json::to_string(&message).map_err(failed)
}

/// A line on the whole, one for each descriptor, and what else was sent along.
fn print(request: &RateLimitRequest, answer: &RateLimitResponse, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", answer.overall_code().as_str_name())?;
    for (descriptor, status) in request.descriptors.iter().zip(&answer.statuses) {
        let entries: Vec<String> =
            descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        write!(out, "  {}: {}", entries.join(" "), status.code().as_str_name())?;
        match &status.current_limit {
            None if status.limit_remaining == u32::MAX => write!(out, ", unlimited")?,
            None => write!(out, ", no limit")?,
            Some(limit) => {
                let remaining = status.limit_remaining;
                write!(out, ", {remaining} of {} left", limit.requests_per_unit)?;
                if limit.unit != 0 {
                    write!(out, " in each {}", limit.unit().as_str_name().to_lowercase())?;
                }
                if !limit.name.is_empty() {
                    write!(out, " ({})", limit.name)?;
                }
            }
        }
        if let Some(reset) = &status.duration_until_reset {
            write!(out, ", reset in {}", seconds(reset))?;
        }
        writeln!(out)?;
    }
    for header in &answer.response_headers_to_add {
        writeln!(out, "  header {}: {}", header.key, header.value)?;
    }
    if let Some(metadata) = &answer.dynamic_metadata {
        writeln!(out, "  metadata: {} field(s); --json shows them", metadata.fields.len())?;
    }
    Ok(())
}

fn seconds(duration: &prost_types::Duration) -> String {
    let millis = duration.nanos / 1_000_000;
    if millis == 0 { format!("{}s", duration.seconds) } else { format!("{}.{millis:03}s", duration.seconds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_people_say_them() {
        let limit = parse_limit("10/minute").expect("it is right");
        assert_eq!((limit.requests_per_unit, limit.unit()), (10, RateLimitUnit::Minute));
        for unit in Unit::ALL {
            let limit = parse_limit(&format!("1/{unit}")).expect("every unit is right");
            assert_eq!(limit.unit().as_str_name(), unit.name());
        }
    }

    #[test]
    fn wrong_limits_say_what_would_be_right() {
        let error = |text| parse_limit(text).expect_err("it is wrong");
        assert!(error("10").contains("10/minute"));
        assert!(error("-1/minute").contains("\"-1\" is no number"));
        assert!(error("1/fortnight").contains("second, minute, hour, day, week, month, year"));
    }
}
