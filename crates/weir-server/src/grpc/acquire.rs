//! `weir.v1.Limiter`: callers that wait.

use std::{future::poll_fn, sync::Arc, time::Duration};

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
    tokens::Tokens,
};
use crate::{
    bounds::{Bounds, RequestBounds},
    connections::{CALL, ConnectionAccount, UnreadBytes},
    wait::duration,
};
use weir_limit::{Descriptor, Entry, NANOS_PER_SECOND, Period, Request, Verdict, line::Rejection};
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

/// The service for callers that wait, on a limiter.
pub struct AcquireService<S> {
    limiter: Arc<Limiter<S>>,
    clock: Arc<dyn Clock>,
    bounds: RequestBounds,
    tokens: Tokens,
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
    ///
    /// # Errors
    ///
    /// The status for the caller: the message is malformed, or it could not be decided.
    pub async fn decide(&self, message: &[u8]) -> Result<Bytes, Status> {
        self.acquire(message, None).await
    }

    /// Handles `call` within the times of `bounds`. A call that its client resets gives its place up.
    pub(super) async fn handle(
        &self,
        method: Method,
        mut call: HttpRequest<RecvStream>,
        mut respond: SendResponse<UnreadBytes>,
        account: &Arc<ConnectionAccount>,
        bounds: &Bounds,
    ) {
        if method == Method::AcquireStream {
            return self.handle_stream(call, respond, account, bounds.sending).await;
        }
        let answer = async {
            let longest = call_headers::longest_wait(call.headers())?;
            let (sent, held) = message::read(&mut call, account, bounds.arrival).await?;
            let message = message::unpack(&sent, call.headers())?;
            if method == Method::Release {
                return self.release(&message);
            }
            let of_call = if held.is_some() { 0 } else { CALL };
            let _hold = account.hold(of_call + WAITING + 2 * self.bounds.weight_of_one(message.len()))?;
            if method == Method::Explain {
                return self.explain(&message);
            }
            self.acquire(&message, longest).await
        };
        let response = tokio::select! {
            biased;
            response = answer => response,
            _ = poll_fn(|context| respond.poll_reset(context)) => return tracing::debug!("call cancelled"),
        };
        if let Err(error) = send(respond, response, account) {
            tracing::debug!(%error, "call aborted");
        }
    }

    /// The caller waits no longer than `longest`. The response has gRPC's message prefix.
    async fn acquire(&self, message: &[u8], longest: Option<Duration>) -> Result<Bytes, Status> {
        let message = self.decoded(message)?;
        if message.entries.is_empty() {
            return Err(status(&AcquireError::NoEntries));
        }
        let max_wait = max_wait(&message)?.min(longest.map_or(Period::MAX, |longest| {
            Period::from_nanos(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX))
        }));
        let descriptor = Descriptor {
            entries: entries(&message),
            hits: Some(message.hits.max(1)),
            ..Descriptor::default()
        };
        let descriptors = std::iter::once(descriptor).collect();
        let request = Request { domain: &message.domain, descriptors, hits: 0 };
        let encode = |_: &Verdict<'_>, acquired: &Acquired| {
            framed(&self.response(acquired, message.id, message.returnable))
        };
        let response = self.limiter.acquire(&request, max_wait, &*self.clock, encode).await;
        response.map_err(|error| status(&error))
    }

    fn response(&self, acquired: &Acquired, id: u64, returnable: bool) -> AcquireResponse {
        let (outcome, retry_after) = match acquired.rejection {
            None => (Outcome::Admitted, None),
            Some(Rejection::Timeout { retry_after }) => (Outcome::Timeout, Some(retry_after)),
            Some(Rejection::Full { retry_after }) => (Outcome::Full, Some(retry_after)),
            Some(Rejection::Never) => (Outcome::Never, None),
            Some(Rejection::Closed) => (Outcome::Closed, None),
        };
        // a receipt of other stores has the names of its counters, which could be long
        let has_token = |receipt: &&Receipt| receipt.is_returnable && receipt.names.is_none();
        let receipt = acquired.receipt.as_ref().filter(|_| returnable).filter(has_token);
        let token = receipt.map(|receipt| self.tokens.issue(receipt.clone(), self.clock.now()));
        AcquireResponse {
            outcome: outcome.into(),
            waited: Some(duration(acquired.waited)),
            retry_after: retry_after.map(duration),
            token: token.map(Vec::from).unwrap_or_default(),
            id,
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
        });
        let response = response.ok_or_else(|| status(&AcquireError::Limit(LimitError::NoRules)))?;
        Ok(framed(&response))
    }

    fn release(&self, message: &[u8]) -> Result<Bytes, Status> {
        let message = ReleaseRequest::decode(message)
            .map_err(|error| Status::invalid_argument(format!("not a weir.v1.ReleaseRequest: {error}")))?;
        let now = self.clock.now();
        let receipt = self.tokens.redeem(&message.token, now);
        let known = receipt.is_some();
        if let Some(receipt) = receipt {
            self.limiter.give_back(receipt, now);
        }
        Ok(framed(&ReleaseResponse { known }))
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
                let response: Bytes = answered?;
                send_data(stream, response, account, sending).await?;
            }
            while calls.len() < PIPELINED
                && let Some(sent) = next_message(&mut buffer)?
            {
                let reserved = account.hold(WAITING + 2 * self.bounds.weight_of_one(sent.len()))?;
                let headers = &parts.headers;
                calls.push(async move {
                    let _reserved = reserved;
                    let message = message::unpack(&sent, headers)?;
                    self.acquire(&message, None).await
                });
            }
            hold.grow_to(CALL + 2 * buffer.len())?;
        }
        if buffer.is_empty() {
            Ok(true)
        } else {
            Err(Status::internal("the call ended before a complete message arrived"))
        }
    }
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
