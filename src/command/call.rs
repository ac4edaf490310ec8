//! `weir call`: sends one request to a server, and prints the reply.

use std::{io, io::Write, path::PathBuf, time::Duration};

use clap::Args;
use prost_reflect::{DescriptorPool, DynamicMessage};
use prost_types::value::Kind;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::Channel;
use weir_limit::{CHECK, IN_FLIGHT, RequestName, Unit};
use weir_net::{
    grpc_client::{Address, StreamTls, connect},
    tls::{ALPN_H2, ClientTls, ClientTlsNames},
};
use weir_observe::text::escaped;
use weir_proto::{
    self,
    envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus},
            rate_limit_service_client::RateLimitServiceClient,
        },
        r#type::v3::RateLimitUnit,
    },
    weir::v1::{AcquireRequest, ExplainResponse, acquire_request, limiter_client::LimiterClient},
};

use super::{
    descriptors::Descriptors,
    error::{CommandResult, failed},
    lines::{write_json, write_line},
};

const UNPRINTED: &str = "cannot print the reply";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// The arguments of `weir call`.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("entries", |entries| entries.required(false).required_unless_present("name")))]
pub struct Call {
    /// Address of the server: HOST:PORT, https://HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    pub address: String,
    /// Domain of the request
    #[arg(long, value_name = "DOMAIN")]
    pub domain: String,
    /// The descriptors of the request.
    #[command(flatten)]
    pub descriptors: Descriptors,
    /// End the request with this name, which `weir call` has printed; with --hits, N is its cost
    #[arg(long, value_name = "NAME", value_parser = parse_name, conflicts_with_all = ["refund", "limit"])]
    pub name: Option<String>,
    /// Hits of each descriptor; 0 checks without counting
    #[arg(long, value_name = "N")]
    pub hits: Option<u64>,
    /// Give the hits back instead of taking them
    #[arg(long)]
    pub refund: bool,
    /// Apply this limit instead of the configured one, such as 10/minute
    #[arg(long, value_name = "N/UNIT", value_parser = parse_limit)]
    pub limit: Option<RateLimitOverride>,
    /// Files of TLS, which https:// or any of them switches on.
    #[command(flatten)]
    pub tls: CallTls,
    /// Exit with 4 if the request is admitted and no limit applies to any descriptor
    #[arg(long)]
    pub require_limit: bool,
    /// Print the reply as JSON
    #[arg(long)]
    pub json: bool,
}

/// The arguments for a connection with TLS.
#[derive(Args, Clone, Debug, Default)]
pub struct CallTls {
    /// Trust the certificate authorities in this PEM file beside those of the system
    #[arg(long = "tls-ca", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Present the certificate chain in this PEM file
    #[arg(long = "tls-cert", value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// The private key of --tls-cert
    #[arg(long = "tls-key", value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// Expect this name in the server's certificate instead of the host
    #[arg(long = "tls-server-name", value_name = "NAME", value_parser = parse_server_name)]
    pub server_name: Option<ServerName<'static>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    Admitted,
    OverLimit,
    /// The request is admitted, because no limit applies to any of its descriptors, and `--require-limit` is given.
    NoLimit,
}

/// Sends the request of `call`, and prints the reply to `out`.
pub async fn call(call: &Call, out: &mut impl Write) -> CommandResult<CallOutcome> {
    let mut request = call.request();
    let (target, tls) = (target(&call.address)?, call.tls.of(&call.address, ALPN_H2)?);
    let channel = connect(&target, tls.as_ref(), CONNECT_TIMEOUT)
        .await
        .map_err(failed(format!("cannot reach {}", call.address)))?;
    // a limit that comes with the request reserves nothing
    if call.hits == Some(0) && call.name.is_none() && call.limit.is_none() {
        make_checks(channel.clone(), &mut request).await;
    }
    let reply = send(channel.clone(), request.clone()).await?;
    // an unlimited rule is a limit, too: somebody wrote it
    let has_limit =
        |status: &DescriptorStatus| status.current_limit.is_some() || status.limit_remaining == u32::MAX;
    let is_limited = reply.statuses.iter().any(has_limit) || in_flight(&reply, "in_flight_left").is_some();
    if call.json {
        let json = json(&reply).map_err(failed("cannot convert the reply to JSON"))?;
        write_json(out, &json).map_err(failed(UNPRINTED))?;
    } else {
        print(&request, &reply, out).map_err(failed(UNPRINTED))?;
        let unlimited = request.descriptors.iter().zip(&reply.statuses);
        let unlimited = unlimited.filter(|(_, status)| !has_limit(status)).map(|(descriptor, _)| descriptor);
        explain(channel, &call.domain, unlimited, out).await.map_err(failed(UNPRINTED))?;
    }
    Ok(match reply.overall_code() {
        Code::OverLimit => CallOutcome::OverLimit,
        _ if call.require_limit && !is_limited => CallOutcome::NoLimit,
        _ => CallOutcome::Admitted,
    })
}

/// What `reply` says of requests in flight.
fn in_flight<'a>(reply: &'a RateLimitResponse, key: &str) -> Option<&'a Kind> {
    reply.dynamic_metadata.as_ref()?.fields.get(key)?.kind.as_ref()
}

async fn send(channel: Channel, request: RateLimitRequest) -> CommandResult<RateLimitResponse> {
    let reply = RateLimitServiceClient::new(channel).should_rate_limit(request).await;
    let reply =
        reply.map_err(|status| format!("the server replied {:?}: {}", status.code(), status.message()))?;
    Ok(reply.into_inner())
}

/// Counts nothing. A server that does not say why it has no rule, such as an older one, need not.
async fn explain(
    channel: Channel,
    domain: &str,
    descriptors: impl Iterator<Item = &RateLimitDescriptor>,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut client = LimiterClient::new(channel);
    for descriptor in descriptors {
        let Ok(reply) = client.explain(question(domain, descriptor)).await else { return Ok(()) };
        let ExplainResponse { unknown_domain, unknown_key, did_you_mean, .. } = reply.into_inner();
        let meant =
            if did_you_mean.is_empty() { String::new() } else { format!("; did you mean `{did_you_mean}`?") };
        if unknown_domain {
            let meant = if meant.is_empty() { "; compare the rules' `domain`" } else { &meant };
            return write_line!(
                out,
                "  the server has no rules for the domain {domain:?}, so it admits every request to it{meant}"
            );
        }
        if !unknown_key.is_empty() {
            write_line!(out, "  the server has no rule with the key {unknown_key:?} at its level{meant}")?;
        }
    }
    Ok(())
}

/// Has each descriptor that would reserve hits only ask, so that nothing is held. An older server reserves nothing.
async fn make_checks(channel: Channel, request: &mut RateLimitRequest) {
    let mut client = LimiterClient::new(channel);
    for descriptor in &mut request.descriptors {
        let is_of_request = descriptor.entries.last().is_some_and(|last| last.key == IN_FLIGHT);
        let Ok(reply) = client.explain(question(&request.domain, descriptor)).await else { return };
        if reply.into_inner().reserves && !is_of_request {
            descriptor.entries.push(Entry { key: IN_FLIGHT.to_owned(), value: CHECK.to_owned() });
        }
    }
}

/// Asks about the rule of `descriptor`.
fn question(domain: &str, descriptor: &RateLimitDescriptor) -> AcquireRequest {
    let entry = |entry: &Entry| acquire_request::Entry { key: entry.key.clone(), value: entry.value.clone() };
    let entries = descriptor.entries.iter().map(entry).collect();
    AcquireRequest { domain: domain.to_owned(), entries, ..AcquireRequest::default() }
}

fn target(address: &str) -> CommandResult<Address> {
    let rest = without_scheme(address, "http://").or_else(|| without_scheme(address, "https://"));
    let rest = rest.map_or(address, |rest| rest.trim_end_matches('/'));
    let invalid =
        || format!("invalid address {address:?}; write host:port, https://host:port or unix:path").into();
    Address::parse_grpc(rest).ok_or_else(invalid)
}

pub(super) fn without_scheme<'a>(address: &'a str, scheme: &str) -> Option<&'a str> {
    let (start, rest) = address.split_at_checked(scheme.len())?;
    start.eq_ignore_ascii_case(scheme).then_some(rest)
}

// === impl CallTls ===

impl CallTls {
    const NAMES: ClientTlsNames =
        ClientTlsNames { ca: "--tls-ca", certificate: "--tls-cert", key: "--tls-key" };

    pub(super) fn of(&self, address: &str, alpn: &[u8]) -> CommandResult<Option<StreamTls>> {
        let Self { ca, certificate, key, server_name } = self;
        let is_given = ca.is_some() || certificate.is_some() || server_name.is_some();
        if without_scheme(address, "http://").is_some() && is_given {
            return Err(format!("{address} is without TLS; write https:// to use the certificates").into());
        }
        if without_scheme(address, "https://").is_none() && !is_given {
            return Ok(None);
        }
        let client = certificate.clone().zip(key.clone());
        let files = ClientTls { ca: ca.clone(), client, any_name: false };
        let config = files.load(&Self::NAMES, &[alpn])?;
        Ok(Some(StreamTls { config, server_name: server_name.clone() }))
    }
}

fn parse_server_name(text: &str) -> Result<ServerName<'static>, &'static str> {
    ServerName::try_from(text.to_owned()).map_err(|_| "write a DNS name or an IP address")
}

// === impl Call ===

impl Call {
    fn request(&self) -> RateLimitRequest {
        let mut descriptors = self.descriptors.to_wire();
        for descriptor in &mut descriptors {
            descriptor.hits_addend = self.hits;
            descriptor.is_negative_hits = self.refund;
            descriptor.limit = self.limit;
            let name = self.name.iter().map(|name| Entry { key: IN_FLIGHT.to_owned(), value: name.clone() });
            descriptor.entries.extend(name);
        }
        RateLimitRequest { domain: self.domain.clone(), descriptors, hits_addend: 0 }
    }
}

fn parse_name(text: &str) -> Result<String, &'static str> {
    let name = RequestName::read(text).map(|_| text.to_owned());
    name.ok_or("write the name of an admitted request, which `weir call` prints, and --json as `in_flight`")
}

fn parse_limit(text: &str) -> Result<RateLimitOverride, String> {
    let units = || Unit::ALL.map(|unit| unit.name().to_lowercase()).join(", ");
    let (requests, unit) = text.split_once('/').ok_or("write it as requests/unit, such as 10/minute")?;
    let requests = requests
        .parse()
        .map_err(|_| format!("invalid number {requests:?}; write a whole number from 0 to {}", u32::MAX))?;
    let unit = Unit::parse(unit).ok_or_else(|| format!("invalid unit {unit:?}; write one of {}", units()))?;
    let unit = RateLimitUnit::from_str_name(unit.name()).unwrap_or_default();
    Ok(RateLimitOverride { requests_per_unit: requests, unit: unit.into() })
}

/// Formats the reply as the server's `/json` does.
fn json(reply: &RateLimitResponse) -> CommandResult<String> {
    let pool = DescriptorPool::decode(weir_proto::DESCRIPTORS)?;
    let name = "envoy.service.ratelimit.v3.RateLimitResponse";
    let descriptor = pool.get_message_by_name(name).ok_or("the message has no description")?;
    let mut message = DynamicMessage::new(descriptor);
    message.transcode_from(reply)?;
    Ok(serde_json::to_string(&message)?)
}

fn print(request: &RateLimitRequest, reply: &RateLimitResponse, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", reply.overall_code().as_str_name())?;
    for (descriptor, status) in request.descriptors.iter().zip(&reply.statuses) {
        let entries: Vec<String> =
            descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        write!(out, "  {}: {}", escaped(&entries.join(" ")), status.code().as_str_name())?;
        match &status.current_limit {
            None if status.limit_remaining == u32::MAX => write!(out, ", unlimited")?,
            None if descriptor.entries.last().is_some_and(|last| last.key == IN_FLIGHT) => {}
            None => write!(out, ", no limit")?,
            Some(limit) => {
                let remaining = status.limit_remaining;
                write!(out, ", {remaining} of {} left", limit.requests_per_unit)?;
                if limit.unit != 0 {
                    write!(out, " in each {}", limit.unit().as_str_name().to_lowercase())?;
                }
                if !limit.name.is_empty() {
                    write!(out, " ({})", escaped(&limit.name))?;
                }
            }
        }
        if let Some(reset) = &status.duration_until_reset {
            write!(out, ", reset in {}", seconds(reset))?;
        }
        writeln!(out)?;
    }
    if let Some(Kind::NumberValue(left)) = in_flight(reply, "in_flight_left") {
        writeln!(out, "  in flight: {left} more may begin")?;
    }
    if let Some(Kind::StringValue(name)) = in_flight(reply, "in_flight") {
        writeln!(out, "  it holds what it has taken until it ends: weir call … --name {}", escaped(name))?;
    }
    for header in &reply.response_headers_to_add {
        write_line!(out, "  header {}: {}", header.key, header.value)?;
    }
    if let Some(metadata) = &reply.dynamic_metadata {
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
    fn a_limit_is_a_number_and_a_unit() {
        let limit = parse_limit("10/minute").expect("a valid limit");
        assert_eq!((limit.requests_per_unit, limit.unit()), (10, RateLimitUnit::Minute));
        for unit in Unit::ALL {
            let limit = parse_limit(&format!("1/{unit}")).expect("a valid unit");
            assert_eq!(limit.unit().as_str_name(), unit.name());
        }
    }

    #[test]
    fn an_invalid_limit_names_the_valid_form() {
        let error = |text| parse_limit(text).expect_err("an invalid limit");
        assert!(error("10").contains("10/minute"));
        assert!(error("-1/minute").contains("invalid number \"-1\""));
        assert!(error("1/fortnight").contains("second, minute, hour, day, week, month, year"));
    }
}
