//! gRPC's message framing and compression.
//! (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>)

use std::{borrow::Cow, future::poll_fn, io::Read as _, sync::Arc, task::Poll, time::Duration};

use bytes::{Bytes, BytesMut};
use flate2::read::GzDecoder;
use h2::RecvStream;
use http::{HeaderMap, Request};
use tokio::time::timeout;
use tonic::Status;

use super::call_headers;
use crate::{
    bounds::{Bound, MAX_MESSAGE},
    connections::{AccountHold, CALL, ConnectionAccount},
};

/// The bytes before each message: a flag for compression, and the length in four bytes.
pub(crate) const PREFIX: usize = 5;

/// Reads the whole body of a call of one message, within `arrival`. `account` holds what has arrived until the returned
/// [`AccountHold`] is dropped; a body that arrived whole needs none.
pub(super) async fn read(
    call: &mut Request<RecvStream>,
    account: &Arc<ConnectionAccount>,
    arrival: Duration,
) -> Result<(Bytes, Option<AccountHold>), Status> {
    let body = call.body_mut();
    let first = poll_fn(|context| match body.poll_data(context) {
        Poll::Ready(first) => Poll::Ready(Some(first)),
        Poll::Pending => Poll::Ready(None),
    });
    let first = match first.await {
        None => None,
        Some(None) => return Ok((Bytes::new(), None)),
        // the usual case; the flow control window needs no release, since the stream has ended
        Some(Some(Ok(first))) if body.is_end_stream() => return Ok((first, None)),
        Some(Some(first)) => Some(first.map_err(broken)?),
    };
    let other = CALL + call_headers::weight(call);
    let hold = account.hold(other)?;
    // boxed, since all calls have a future of the same size
    let whole = Box::pin(timeout(arrival, read_rest(call.body_mut(), first, hold, other)));
    whole.await.unwrap_or_else(|_| {
        account.exceeded().add(Bound::RequestTimeout);
        Err(Status::resource_exhausted(format!("the request did not arrive within {arrival:?}")))
    })
}

/// `first` is none if no part has arrived yet. `hold` holds the `other` bytes of the call.
async fn read_rest(
    body: &mut RecvStream,
    first: Option<Bytes>,
    mut hold: AccountHold,
    other: usize,
) -> Result<(Bytes, Option<AccountHold>), Status> {
    let mut whole = BytesMut::new();
    let mut next = match first {
        None => body.data().await.transpose().map_err(broken)?,
        first => first,
    };
    while let Some(part) = next {
        if whole.len() + part.len() > MAX_MESSAGE + PREFIX {
            hold.exceeded().add(Bound::MessageBytes);
            return Err(too_large());
        }
        // a buffer that grows is as large again as what it holds
        hold.grow_to(other + 2 * (whole.len() + part.len()))?;
        whole.extend_from_slice(&part);
        body.flow_control().release_capacity(part.len()).map_err(broken)?;
        next = body.data().await.transpose().map_err(broken)?;
    }
    Ok((whole.freeze(), Some(hold)))
}

/// `sent` is the prefix and one message, of a call with these `headers`.
pub(super) fn unpack<'a>(sent: &'a [u8], headers: &HeaderMap) -> Result<Cow<'a, [u8]>, Status> {
    let Some((&[compressed, a, b, c, d], rest)) = sent.split_first_chunk::<PREFIX>() else {
        return Err(Status::internal("the call ended before a complete message arrived"));
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MAX_MESSAGE {
        return Err(too_large());
    }
    if rest.len() != length {
        let what = format!("the message has {} bytes, but its prefix says {length}", rest.len());
        return Err(Status::internal(what));
    }
    match compressed {
        0 => Ok(Cow::Borrowed(rest)),
        1 => uncompressed(rest, headers).map(Cow::Owned),
        _ => Err(Status::internal("invalid compression flag; it must be 0 or 1")),
    }
}

#[cold]
fn uncompressed(message: &[u8], headers: &HeaderMap) -> Result<Vec<u8>, Status> {
    let encoding = headers.get("grpc-encoding").and_then(|encoding| encoding.to_str().ok());
    match encoding {
        Some("gzip") => {}
        Some(other) => {
            let mut status =
                Status::unimplemented(format!("unsupported compression '{other}'; use gzip or identity"));
            // gRPC requires the supported encodings in this header
            let known = tonic::metadata::MetadataValue::from_static("identity,gzip");
            status.metadata_mut().insert("grpc-accept-encoding", known);
            return Err(status);
        }
        None => return Err(Status::internal("the message is compressed, but grpc-encoding is missing")),
    }
    let mut whole = Vec::new();
    // one byte past the bound shows that the message exceeds it
    let most = MAX_MESSAGE as u64 + 1;
    let read = GzDecoder::new(message).take(most).read_to_end(&mut whole);
    match read {
        Ok(_) if whole.len() > MAX_MESSAGE => Err(too_large()),
        Ok(_) => Ok(whole),
        Err(error) => Err(Status::internal(format!("invalid gzip data: {error}"))),
    }
}

fn too_large() -> Status {
    Status::resource_exhausted(format!("the message exceeds {MAX_MESSAGE} bytes, compressed or uncompressed"))
}

#[expect(clippy::needless_pass_by_value, reason = "it goes into map_err")]
fn broken(error: h2::Error) -> Status {
    Status::cancelled(format!("call aborted: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};
    use http::HeaderValue;
    use tonic::Code;

    use super::*;

    fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
        [&[flag], &length[..], message].concat()
    }

    fn gzip() -> HeaderMap {
        HeaderMap::from_iter([("grpc-encoding".parse().expect("a name"), HeaderValue::from_static("gzip"))])
    }

    #[test]
    fn a_message_has_the_length_in_its_prefix() {
        let none = HeaderMap::new();
        assert_eq!(unpack(&framed(0, b"abc"), &none).expect("a message").as_ref(), b"abc");
        assert_eq!(unpack(&framed(0, b""), &none).expect("an empty message").as_ref(), b"");
        let two = [framed(0, b"a"), framed(0, b"b")].concat();
        for sent in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x02a", b"\x02\0\0\0\0", &two] {
            assert_eq!(unpack(sent, &none).expect_err("malformed").code(), Code::Internal, "{sent:?}");
        }
    }

    #[test]
    fn the_size_bound_applies_to_the_uncompressed_message() {
        let packed = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).expect("to memory");
            framed(1, &encoder.finish().expect("to memory"))
        };
        assert_eq!(unpack(&packed(b"abc"), &gzip()).expect("a message").as_ref(), b"abc");
        assert!(unpack(&packed(&vec![0; MAX_MESSAGE]), &gzip()).is_ok());
        let large = unpack(&packed(&vec![0; MAX_MESSAGE + 1]), &gzip()).expect_err("too large");
        assert_eq!(large.code(), Code::ResourceExhausted);
        assert_eq!(unpack(&framed(1, b"abc"), &gzip()).expect_err("invalid gzip").code(), Code::Internal);
        let unnamed = unpack(&packed(b"abc"), &HeaderMap::new()).expect_err("no encoding");
        assert_eq!(unnamed.code(), Code::Internal);
    }
}
