//! The responses of the control plane, and their bounds.

use bytes::{Buf as _, Bytes};
use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstCodec, ProstEncoder};

use super::parts::{ExceededPart, PartBounds};
use weir_proto::envoy::service::discovery::v3::DiscoveryRequest;

/// In bytes, of a nonce, version or type, which are echoed or kept. Common ones have 10 to 70 bytes.
const MAX_TEXT: usize = 4_096;

/// A response, of which only the resources may be large.
#[derive(Clone, Debug)]
pub(super) struct Response {
    pub(super) version_info: String,
    pub(super) type_url: String,
    pub(super) nonce: String,
    /// An error if they would take too much memory; then they were not decoded.
    pub(super) resources: Result<Vec<Resource>, ExceededPart>,
}

/// `google.protobuf.Any`, whose value is a part of the message that it came in.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct Resource {
    #[prost(string, tag = "1")]
    pub(super) type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// `DiscoveryResponse` without its resources.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
struct ResponseHead {
    #[prost(string, tag = "1")]
    version_info: String,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
struct Resources {
    #[prost(message, repeated, tag = "2")]
    resources: Vec<Resource>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct BoundedCodec {
    pub(super) bounds: PartBounds,
}

impl Codec for BoundedCodec {
    type Encode = DiscoveryRequest;
    type Decode = Response;
    type Encoder = ProstEncoder<DiscoveryRequest>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<DiscoveryRequest, ()>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        *self
    }
}

impl Decoder for BoundedCodec {
    type Item = Response;
    type Error = Status;

    /// Decodes one message. An error ends the stream: without its nonce, a response cannot even be rejected.
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let message = buffer.copy_to_bytes(buffer.remaining());
        decode(message, &self.bounds).map(Some)
    }
}

fn decode(message: Bytes, bounds: &PartBounds) -> Result<Response, Status> {
    let malformed = |error: prost::DecodeError| {
        Status::internal(format!("the response of the control plane cannot be decoded: {error}"))
    };
    let ResponseHead { version_info, type_url, nonce } =
        ResponseHead::decode(message.clone()).map_err(malformed)?;
    for (what, text) in [("nonce", &nonce), ("version", &version_info), ("type", &type_url)] {
        if text.len() > MAX_TEXT {
            let bytes = text.len();
            return Err(Status::out_of_range(format!(
                "the response of the control plane has a {what} of {bytes} bytes; the maximum is {MAX_TEXT}"
            )));
        }
    }
    let resources = match bounds.check(&message) {
        Ok(()) => Ok(Resources::decode(message).map_err(malformed)?.resources),
        Err(exceeded) => Err(exceeded),
    };
    Ok(Response { version_info, type_url, nonce, resources })
}

#[cfg(test)]
mod tests {
    use prost_types::Any;
    use tonic::Code;

    use super::*;
    use weir_proto::envoy::service::discovery::v3::DiscoveryResponse;

    fn decoded(response: &DiscoveryResponse) -> Result<Response, Status> {
        decode(response.encode_to_vec().into(), &PartBounds { parts: 4, paths: 100 })
    }

    #[test]
    fn a_response_is_decoded_within_its_bounds() {
        let resource = Any { type_url: "t".into(), value: b"v".to_vec() };
        let mut response = DiscoveryResponse {
            version_info: "1".into(),
            resources: vec![resource; 2],
            type_url: "type".into(),
            nonce: "n".into(),
        };
        let Response { version_info, type_url, nonce, resources } = decoded(&response).expect("a response");
        assert_eq!((&*version_info, &*type_url, &*nonce), ("1", "type", "n"));
        let expected = Resource { type_url: "t".into(), value: Bytes::from_static(b"v") };
        assert_eq!(resources, Ok(vec![expected.clone(), expected]));

        response.resources = vec![Any::default(); 5];
        let many = decoded(&response).expect("it can be rejected");
        assert_eq!((&*many.nonce, many.resources), ("n", Err(ExceededPart::Parts(4))));

        response.nonce = "n".repeat(MAX_TEXT + 1);
        let error = decoded(&response).expect_err("a long nonce");
        assert_eq!(error.code(), Code::OutOfRange);
        assert!(error.message().contains("a nonce of 4097 bytes; the maximum is 4096"), "{error}");
        assert!(decode(Bytes::from_static(b"\x0a\x05x"), &PartBounds { parts: 4, paths: 100 }).is_err());
    }
}
