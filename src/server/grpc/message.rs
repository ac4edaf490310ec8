//! gRPC's messages: how they lie in the stream of a call, and how they are compressed.
//! (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>)

use std::{borrow::Cow, io::Read as _};

use bytes::{Bytes, BytesMut};
use flate2::read::GzDecoder;
use h2::RecvStream;
use http::HeaderMap;
use tonic::Status;

/// Bytes of the largest message, as it was sent and as it is when uncompressed: Go's default, which the reference has.
const MAX_MESSAGE: usize = 4 * 1024 * 1024;

/// Before each message: whether it is compressed, and its length in four bytes.
pub(super) const PREFIX: usize = 5;

/// Everything that the caller sends in a call of one message.
pub(super) async fn read(body: &mut RecvStream) -> Result<Bytes, Status> {
    let Some(first) = body.data().await.transpose().map_err(broken)? else { return Ok(Bytes::new()) };
    // nearly always; what was received needs no release then, for it goes with the stream
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut whole = BytesMut::new();
    let mut next = Some(first);
    while let Some(part) = next {
        whole.extend_from_slice(&part);
        if whole.len() > MAX_MESSAGE + PREFIX {
            return Err(too_large());
        }
        body.flow_control().release_capacity(part.len()).map_err(broken)?;
        next = body.data().await.transpose().map_err(broken)?;
    }
    Ok(whole.freeze())
}

/// The one message that `sent` holds, uncompressed; `headers` are those of its call.
pub(super) fn unpack<'a>(sent: &'a [u8], headers: &HeaderMap) -> Result<Cow<'a, [u8]>, Status> {
    let Some((&[compressed, a, b, c, d], rest)) = sent.split_first_chunk::<PREFIX>() else {
        return Err(Status::internal("the call ended before a message came"));
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MAX_MESSAGE {
        return Err(too_large());
    }
    if rest.len() != length {
        let what = format!("the message is {length} bytes long by its prefix, but {} bytes came", rest.len());
        return Err(Status::internal(what));
    }
    match compressed {
        0 => Ok(Cow::Borrowed(rest)),
        1 => uncompressed(rest, headers).map(Cow::Owned),
        _ => Err(Status::internal("the first byte of a message is 0, or 1 if it is compressed")),
    }
}

#[cold]
fn uncompressed(message: &[u8], headers: &HeaderMap) -> Result<Vec<u8>, Status> {
    let encoding = headers.get("grpc-encoding").and_then(|encoding| encoding.to_str().ok());
    match encoding {
        Some("gzip") => {}
        Some(other) => {
            let mut status =
                Status::unimplemented(format!("messages may be compressed by gzip, but not by {other}"));
            // what gRPC wants to be told besides
            let known = tonic::metadata::MetadataValue::from_static("identity,gzip");
            status.metadata_mut().insert("grpc-accept-encoding", known);
            return Err(status);
        }
        None => return Err(Status::internal("a message is compressed, but no grpc-encoding says how")),
    }
    let mut whole = Vec::new();
    // one byte more than may be tells that there is more
    let most = MAX_MESSAGE as u64 + 1;
    let read = GzDecoder::new(message).take(most).read_to_end(&mut whole);
    match read {
        Ok(_) if whole.len() > MAX_MESSAGE => Err(too_large()),
        Ok(_) => Ok(whole),
        Err(error) => Err(Status::internal(format!("the message is not gzip: {error}"))),
    }
}

fn too_large() -> Status {
    Status::out_of_range(format!("a message may have {MAX_MESSAGE} bytes, compressed or not"))
}

#[expect(clippy::needless_pass_by_value, reason = "it goes into map_err")]
fn broken(error: h2::Error) -> Status {
    Status::cancelled(format!("the call broke off: {error}"))
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
    fn a_message_is_what_its_prefix_says() {
        let none = HeaderMap::new();
        assert_eq!(unpack(&framed(0, b"abc"), &none).expect("a message").as_ref(), b"abc");
        assert_eq!(unpack(&framed(0, b""), &none).expect("an empty message").as_ref(), b"");
        let two = [framed(0, b"a"), framed(0, b"b")].concat();
        for sent in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x02a", b"\x02\0\0\0\0", &two] {
            assert_eq!(unpack(sent, &none).expect_err("no message").code(), Code::Internal, "{sent:?}");
        }
    }

    #[test]
    fn a_compressed_message_is_not_larger_than_another() {
        let packed = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).expect("to memory");
            framed(1, &encoder.finish().expect("to memory"))
        };
        assert_eq!(unpack(&packed(b"abc"), &gzip()).expect("a message").as_ref(), b"abc");
        assert!(unpack(&packed(&vec![0; MAX_MESSAGE]), &gzip()).is_ok());
        let large = unpack(&packed(&vec![0; MAX_MESSAGE + 1]), &gzip()).expect_err("too large");
        assert_eq!(large.code(), Code::OutOfRange);
        assert_eq!(unpack(&framed(1, b"abc"), &gzip()).expect_err("no gzip").code(), Code::Internal);
        let unsaid = unpack(&packed(b"abc"), &HeaderMap::new()).expect_err("compressed how?");
        assert_eq!(unsaid.code(), Code::Internal);
    }
}
