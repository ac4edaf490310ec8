//! `weir.v1.Limiter`: callers that wait.

use std::{collections::BTreeMap, future::poll_fn, sync::Arc, time::Duration};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use h2::{RecvStream, SendStream, server::SendResponse};
use http::{HeaderValue, Request as HttpRequest, Response, header};
use prost::Message as _;
use smallvec::SmallVec;
use tonic::Status;

use super::{
    call_headers,
    message::{self, PREFIX},
    response::{end, send, send_data},
    service::{BegunRequest, RpcAnswer},
    tokens::Tokens,
};
use crate::{
    bounds::{Bounds, RequestBounds},
    connections::{AccountHold, CALL, ConnectionAccount, UnreadBytes},
    request_token,
    wait::duration,
};
use weir_limit::{
    Descriptor, Entry, Hits, Lookup, NANOS_PER_SECOND, Period, Request, Verdict, line::Rejection,
};
use weir_limiter::{AcquireError, Acquired, LimitError, Limiter, did_you_mean};
use weir_proto::weir::v1::{
    AcquireRequest, AcquireResponse, ExplainResponse, ReleaseRequest, ReleaseResponse,
    acquire_response::Outcome,
};
use weir_store::{Receipt, Store, StoreError, clock::Clock};

/// The largest message in bytes: a request has one descriptor.
const MAX_REQUEST: usize = 16 << 10;

/// The most requests of a stream that wait at a time. Others are read when one of them is answered.
const PIPELINED: usize = 1_024;

/// The estimated memory of a request that waits, in bytes, beside its message.
const WAITING: usize = 2_048;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Acquire,
    Release,
    AcquireStream,
    Explain,
}

pub struct AcquireService<S> {
    limiter: Arc<Limiter<S>>,
    clock: Arc<dyn Clock>,
    bounds: RequestBounds,
    tokens: Tokens,
}

/// The answer to a request of a stream.
struct StreamAnswer {
    message: Bytes,
    begun: Option<Box<BegunRequest>>,
    /// The token of a request in flight that has ended.
    ended: Option<Box<str>>,
}

/// The requests in flight that a stream has begun and not released, by their tokens. They end when this is dropped.
struct BegunRequests<'a, S: Store> {
    service: &'a AcquireService<S>,
    by_token: BTreeMap<String, (Box<BegunRequest>, Option<AccountHold>)>,
}

// === impl Method ===

impl Method {
    pub(super) fn at(path: &str) -> Option<Self> {
        match path.strip_prefix("/weir.v1.Limiter/")? {
            "Acquire" => Some(Self::Acquire),
            "Release" => Some(Self::Release),
            "AcquireStream" => Some(Self::AcquireStream),
            "Explain" => Some(Self::Explain),
            _ => None,
        }
    }
}

// === impl AcquireService ===

impl<S: Store> AcquireService<S> {
    pub(super) fn new(limiter: Arc<Limiter<S>>, clock: Arc<dyn Clock>, bounds: RequestBounds) -> Self {
        Self { limiter, clock, bounds, tokens: Tokens::default() }
    }

    /// Does all of a request but HTTP/2. The response has gRPC's message prefix.
    pub async fn decide(&self, message: &[u8]) -> Result<Bytes, Status> {
        self.acquire(&self.decoded(message)?, None).await.map(|answer| answer.message)
    }

    /// Handles `call` within the times of `bounds`. A call that its client resets gives its place up. Returns the request in
    /// flight that the response names, and whether it was sent.
    pub(super) async fn handle(
        &self,
        method: Method,
        mut call: HttpRequest<RecvStream>,
        mut respond: SendResponse<UnreadBytes>,
        account: &Arc<ConnectionAccount>,
        bounds: &Bounds,
    ) -> Option<(Box<BegunRequest>, bool)> {
        if method == Method::AcquireStream {
            self.handle_stream(call, respond, account, bounds.sending).await;
            return None;
        }
        let answer = async {
            let longest = call_headers::longest_wait(call.headers())?;
            let (sent, held) = message::read(&mut call, account, bounds.arrival).await?;
            let message = message::unpack(&sent, call.headers())?;
            if method == Method::Release {
                return self.release(&message).await.map(RpcAnswer::of);
            }
            let of_call = if held.is_some() { 0 } else { CALL };
            let _hold = account.hold(of_call + WAITING + 2 * self.bounds.weight_of_one(message.len()))?;
            if method == Method::Explain {
                return self.explain(&message).map(RpcAnswer::of);
            }
            let message = self.decoded(&message)?;
            if message.release.is_some() {
                return Err(Status::invalid_argument("release is for AcquireStream: call Release"));
            }
            self.acquire(&message, longest).await
        };
        let response = tokio::select! {
            biased;
            response = answer => response,
            _ = poll_fn(|context| respond.poll_reset(context)) => {
                tracing::debug!("call cancelled");
                return None;
            }
        };
        let (response, begun) = match response {
            Ok(RpcAnswer { message, begun }) => (Ok(message), begun),
            Err(status) => (Err(status), None),
        };
        let sent = send(respond, response, account);
        if let Err(error) = &sent {
            tracing::debug!(%error, "call aborted");
        }
        begun.map(|begun| (begun, sent.is_ok()))
    }

    /// The caller waits no longer than `longest`. The response has gRPC's message prefix.
    async fn acquire(
        &self,
        message: &AcquireRequest,
        longest: Option<Duration>,
    ) -> Result<RpcAnswer, Status> {
        if message.entries.is_empty() {
            return Err(status(&AcquireError::NoEntries));
        }
        let max_wait = max_wait(message)?.min(longest.map_or(Period::MAX, |longest| {
            Period::from_nanos(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX))
        }));
        let descriptor = Descriptor {
            entries: entries(message),
            hits: Some(message.hits.max(1)),
            ..Descriptor::default()
        };
        let descriptors = std::iter::once(descriptor).collect();
        let request = Request { domain: &message.domain, descriptors, hits: 0 };
        let encode = |_: &Verdict<'_>, acquired: &Acquired| RpcAnswer {
            message: framed(&self.response(acquired, message)),
            begun: acquired.name.as_deref().map(|name| Box::new(BegunRequest::new(&message.domain, name))),
        };
        let response = self.limiter.acquire(&request, max_wait, &*self.clock, encode).await;
        response.map_err(|error| status(&error))
    }

    fn response(&self, acquired: &Acquired, message: &AcquireRequest) -> AcquireResponse {
        let (outcome, retry_after) = match acquired.rejection {
            None => (Outcome::Admitted, None),
            Some(Rejection::Timeout { retry_after }) => (Outcome::Timeout, Some(retry_after)),
            Some(Rejection::Full { retry_after }) => (Outcome::Full, Some(retry_after)),
            Some(Rejection::Never) => (Outcome::Never, None),
            Some(Rejection::Closed) => (Outcome::Closed, None),
        };
        // a receipt of other stores has the names of its counters, which could be long
        let has_token = |receipt: &&Receipt| receipt.is_returnable && receipt.names.is_none();
        let receipt = acquired.receipt.as_ref().filter(|_| message.returnable).filter(has_token);
        let issue = |receipt: &Receipt| Vec::from(self.tokens.issue(receipt.clone(), self.clock.now()));
        let token = match acquired.name.as_deref() {
            Some(name) => request_token::write(&message.domain, name).into_bytes(),
            None => receipt.map(issue).unwrap_or_default(),
        };
        AcquireResponse {
            outcome: outcome.into(),
            waited: Some(duration(acquired.waited)),
            retry_after: retry_after.map(duration),
            token,
            id: message.id,
        }
    }

    fn decoded(&self, message: &[u8]) -> Result<AcquireRequest, Status> {
        if message.len() > MAX_REQUEST {
            return Err(too_large());
        }
        let message = AcquireRequest::decode(message)
            .map_err(|error| Status::invalid_argument(format!("not a weir.v1.AcquireRequest: {error}")))?;
        let most = self.bounds.entries;
        if message.entries.len() > most {
            return Err(Status::resource_exhausted(format!(
                "the request has more than {most} entries (WEIR_MAX_ENTRIES)"
            )));
        }
        Ok(message)
    }

    fn explain(&self, message: &[u8]) -> Result<Bytes, Status> {
        let message = self.decoded(message)?;
        let (domain, entries) = (&*message.domain, entries(&message));
        let response = self.limiter.rules(|rules| ExplainResponse {
            unknown_domain: !rules.has_domain(domain),
            unknown_key: rules.unknown_key(domain, &entries).unwrap_or_default().to_owned(),
            did_you_mean: did_you_mean(rules, domain, &entries).unwrap_or_default().to_owned(),
            reserves: matches!(rules.find(domain, &entries), Lookup::Rule(rule) if rule.reserve().is_some()),
        });
        let response = response.ok_or_else(|| status(&AcquireError::Limit(LimitError::NoRules)))?;
        Ok(framed(&response))
    }

    async fn release(&self, message: &[u8]) -> Result<Bytes, Status> {
        let message = ReleaseRequest::decode(message)
            .map_err(|error| Status::invalid_argument(format!("not a weir.v1.ReleaseRequest: {error}")))?;
        let known = self.release_token(&message).await?;
        Ok(framed(&ReleaseResponse { known }))
    }

    /// Returns whether the token was known.
    async fn release_token(&self, ReleaseRequest { token, cost }: &ReleaseRequest) -> Result<bool, Status> {
        let now = self.clock.now();
        if let Some((domain, name)) = running(token) {
            let ended = self.limiter.end_request(domain.into(), name.into(), cost.map(Hits), now).await;
            ended.map_err(|error| status(&error.into()))?;
            return Ok(true);
        }
        let receipt = self.tokens.redeem(token, now);
        let known = receipt.is_some();
        if let Some(receipt) = receipt {
            self.limiter.give_back(receipt, now);
        }
        Ok(known)
    }

    async fn answer_in_stream(&self, message: &[u8]) -> Result<StreamAnswer, Status> {
        let message = self.decoded(message)?;
        let Some(release) = &message.release else {
            let RpcAnswer { message, begun } = self.acquire(&message, None).await?;
            return Ok(StreamAnswer { message, begun, ended: None });
        };
        let known = self.release_token(release).await?;
        let outcome = if known { Outcome::Released } else { Outcome::UnknownToken };
        let response =
            AcquireResponse { outcome: outcome.into(), id: message.id, ..AcquireResponse::default() };
        let ended = std::str::from_utf8(&release.token).ok().map(Box::from);
        Ok(StreamAnswer { message: framed(&response), begun: None, ended })
    }

    async fn handle_stream(
        &self,
        call: HttpRequest<RecvStream>,
        mut respond: SendResponse<UnreadBytes>,
        account: &Arc<ConnectionAccount>,
        sending: Duration,
    ) {
        let mut head = Response::new(());
        head.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let Ok(mut stream) = respond.send_response(head, false) else { return };
        let ended = self.answer_all(call, &mut stream, account, sending).await;
        let status = match ended {
            Ok(true) => Status::ok(""),
            // the client has reset it
            Ok(false) => return tracing::debug!("call cancelled"),
            Err(status) => status,
        };
        end(stream, &status);
    }

    /// The client has to read each answer within `sending`. Returns whether the client has ended the stream.
    async fn answer_all(
        &self,
        call: HttpRequest<RecvStream>,
        stream: &mut SendStream<UnreadBytes>,
        account: &Arc<ConnectionAccount>,
        sending: Duration,
    ) -> Result<bool, Status> {
        let (parts, mut body) = call.into_parts();
        let mut hold = account.hold(CALL)?;
        let (mut buffer, mut calls) = (BytesMut::new(), FuturesUnordered::new());
        let mut running = BegunRequests { service: self, by_token: BTreeMap::new() };
        let mut is_ended = false;
        while !is_ended || !calls.is_empty() {
            let can_read = !is_ended && calls.len() < PIPELINED;
            let answered = tokio::select! {
                biased;
                _ = poll_fn(|context| stream.poll_reset(context)) => return Ok(false),
                Some(answered) = calls.next(), if !calls.is_empty() => Some(answered),
                part = body.data(), if can_read => {
                    match part {
                        None => is_ended = true,
                        Some(part) => {
                            let part = part.map_err(|_| Status::cancelled("the call was aborted"))?;
                            buffer.extend_from_slice(&part);
                            body.flow_control()
                                .release_capacity(part.len())
                                .map_err(|_| Status::cancelled("the call was aborted"))?;
                        }
                    }
                    None
                }
            };
            if let Some(answered) = answered {
                let StreamAnswer { message, begun, ended } = answered?;
                if let Some(begun) = begun {
                    running.add(begun, account)?;
                }
                if let Some(token) = ended {
                    running.by_token.remove(&*token);
                }
                send_data(stream, message, account, sending).await?;
            }
            while calls.len() < PIPELINED
                && let Some(sent) = next_message(&mut buffer)?
            {
                let reserved = account.hold(WAITING + 2 * self.bounds.weight_of_one(sent.len()))?;
                let headers = &parts.headers;
                calls.push(async move {
                    let _reserved = reserved;
                    let message = message::unpack(&sent, headers)?;
                    self.answer_in_stream(&message).await
                });
            }
            hold.grow_to(CALL + 2 * buffer.len())?;
        }
        if buffer.is_empty() {
            // the tokens are the client's to release
            running.by_token.clear();
            Ok(true)
        } else {
            Err(Status::internal("the call ended before a complete message arrived"))
        }
    }
}

impl<S: Store> BegunRequests<'_, S> {
    fn add(&mut self, begun: Box<BegunRequest>, account: &Arc<ConnectionAccount>) -> Result<(), Status> {
        let token = request_token::write(&begun.domain, &begun.name);
        let (hold, refused) = match account.hold(begun.weight() + token.len()) {
            Ok(hold) => (Some(hold), None),
            Err(error) => (None, Some(error)),
        };
        self.by_token.insert(token, (begun, hold));
        refused.map_or(Ok(()), |error| Err(error.into()))
    }
}

impl<S: Store> Drop for BegunRequests<'_, S> {
    fn drop(&mut self) {
        let AcquireService { limiter, clock, .. } = self.service;
        for (begun, _) in std::mem::take(&mut self.by_token).into_values() {
            drop(limiter.end_request(begun.domain, begun.name, None, clock.now()));
        }
    }
}

/// Returns the domain and the name of the request in flight of a token, if it is one of these.
fn running(token: &[u8]) -> Option<(&str, &str)> {
    request_token::read(std::str::from_utf8(token).ok()?)
}

/// Takes a message off `buffer`, with gRPC's prefix. None if it has not arrived whole.
fn next_message(buffer: &mut BytesMut) -> Result<Option<Bytes>, Status> {
    let Some(&[_, a, b, c, d]) = buffer.first_chunk::<PREFIX>() else { return Ok(None) };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MAX_REQUEST {
        return Err(too_large());
    }
    if buffer.remaining() < PREFIX + length {
        return Ok(None);
    }
    // a copy, since a call that waits would keep all that was read together
    Ok(Some(Bytes::copy_from_slice(&buffer.split_to(PREFIX + length))))
}

fn framed(message: &impl prost::Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut framed);
    framed.freeze()
}

fn entries(message: &AcquireRequest) -> SmallVec<[Entry<'_>; 4]> {
    message.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value }).collect()
}

fn max_wait(message: &AcquireRequest) -> Result<Period, Status> {
    let Some(prost_types::Duration { seconds, nanos }) = message.max_wait else {
        return Ok(Period::default());
    };
    match (u64::try_from(seconds), u64::try_from(nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < NANOS_PER_SECOND => {
            Ok(Period::from_secs(seconds) + Period::from_nanos(nanos))
        }
        _ => Err(Status::invalid_argument(format!(
            "max_wait is {seconds} s and {nanos} ns; it must be 0 or longer, with nanos from 0 to 999999999"
        ))),
    }
}

fn too_large() -> Status {
    Status::resource_exhausted(format!("a message of weir.v1.Limiter exceeds {MAX_REQUEST} bytes"))
}

fn status(error: &AcquireError) -> Status {
    let text = error.to_string();
    match error {
        AcquireError::SeveralLimits(_)
        | AcquireError::NoEntries
        | AcquireError::Limit(LimitError::EmptyDomain | LimitError::NoDescriptors) => {
            Status::invalid_argument(text)
        }
        AcquireError::MustAsk
        | AcquireError::Limit(LimitError::NoName | LimitError::Store(StoreError::Unsupported(_))) => {
            Status::unimplemented(text)
        }
        AcquireError::Limit(LimitError::TooManyPatterns(_)) => Status::resource_exhausted(text),
        AcquireError::Limit(LimitError::NoRules | LimitError::Store(_)) => Status::unavailable(text),
    }
}

impl<S> std::fmt::Debug for AcquireService<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AcquireService").finish_non_exhaustive()
    }
}
